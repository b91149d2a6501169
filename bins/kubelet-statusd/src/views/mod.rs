//! What the node shows of its state: `/pods`, `/runningpods/`, `/configz` and the debugging switches.

use std::sync::Arc;

use http::{Request, StatusCode};
use hyper::body::Incoming;

use crate::app::App;
use crate::server::answer::{self, Answer};

pub async fn pods(_app: &Arc<App>, _request: Request<Incoming>) -> Answer {
    answer::text(StatusCode::NOT_IMPLEMENTED, "pods\n")
}

pub async fn running_pods(_app: &Arc<App>, _request: Request<Incoming>) -> Answer {
    answer::text(StatusCode::NOT_IMPLEMENTED, "runningpods\n")
}

pub async fn configz(_app: &Arc<App>, _request: Request<Incoming>) -> Answer {
    answer::text(StatusCode::NOT_IMPLEMENTED, "configz\n")
}

pub async fn flags_v(_app: &Arc<App>, _request: Request<Incoming>) -> Answer {
    answer::text(StatusCode::NOT_IMPLEMENTED, "flags\n")
}

pub async fn flagz(_app: &Arc<App>, _request: Request<Incoming>) -> Answer {
    answer::text(StatusCode::NOT_IMPLEMENTED, "flagz\n")
}

pub async fn statusz(_app: &Arc<App>, _request: Request<Incoming>) -> Answer {
    answer::text(StatusCode::NOT_IMPLEMENTED, "statusz\n")
}

/// `profile`: what follows `/debug/pprof/`.
pub async fn pprof(_app: &Arc<App>, _profile: &str, _request: Request<Incoming>) -> Answer {
    answer::text(StatusCode::NOT_IMPLEMENTED, "pprof\n")
}
