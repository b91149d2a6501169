//! `/logs/`: files below /var/log, and the log query.

use std::sync::Arc;

use http::{Request, StatusCode};
use hyper::body::Incoming;

use crate::app::App;
use crate::server::answer::{self, Answer};

/// `relative`: what follows `/logs/`.
pub async fn serve(_app: &Arc<App>, _relative: &str, _request: Request<Incoming>) -> Answer {
    answer::text(StatusCode::NOT_IMPLEMENTED, "logs\n")
}
