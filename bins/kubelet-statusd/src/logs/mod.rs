//! `/containerLogs`: what a container has written.

use std::sync::Arc;

use http::{Request, StatusCode};
use hyper::body::Incoming;

use crate::app::App;
use crate::routes::ContainerPath;
use crate::server::answer::{self, Answer};

/// Answers.
pub async fn serve(_app: &Arc<App>, _place: &ContainerPath, _request: Request<Incoming>) -> Answer {
    answer::text(StatusCode::NOT_IMPLEMENTED, "logs\n")
}
