//! `/metrics/cadvisor`.

use std::sync::Arc;

use http::{Request, StatusCode};
use hyper::body::Incoming;

use crate::app::App;
use crate::server::answer::{self, Answer};

pub async fn serve(_app: &Arc<App>, _request: Request<Incoming>) -> Answer {
    answer::text(StatusCode::NOT_IMPLEMENTED, "cadvisor\n")
}
