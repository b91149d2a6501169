//! `/exec`, `/attach`, `/portForward`, `/run`, `/checkpoint`.

pub mod dial;
pub mod target;

use std::sync::Arc;

use http::{Request, StatusCode};
use hyper::body::Incoming;

use crate::app::App;
use crate::routes::{ContainerPath, PodPath};
use crate::server::answer::{self, Answer};

pub async fn exec(_app: &Arc<App>, _place: &ContainerPath, _request: Request<Incoming>) -> Answer {
    answer::text(StatusCode::NOT_IMPLEMENTED, "exec\n")
}

pub async fn attach(_app: &Arc<App>, _place: &ContainerPath, _request: Request<Incoming>) -> Answer {
    answer::text(StatusCode::NOT_IMPLEMENTED, "attach\n")
}

pub async fn port_forward(_app: &Arc<App>, _place: &PodPath, _request: Request<Incoming>) -> Answer {
    answer::text(StatusCode::NOT_IMPLEMENTED, "portForward\n")
}

pub async fn run(_app: &Arc<App>, _place: &ContainerPath, _request: Request<Incoming>) -> Answer {
    answer::text(StatusCode::NOT_IMPLEMENTED, "run\n")
}

pub async fn checkpoint(_app: &Arc<App>, _place: &ContainerPath, _request: Request<Incoming>) -> Answer {
    answer::text(StatusCode::NOT_IMPLEMENTED, "checkpoint\n")
}
