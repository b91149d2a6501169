//! What an answer is made of: a whole body, or a stream that is read as fast as the client takes it.

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};
use hyper::body::Frame;

/// Why a body ended before its end; the client sees its connection or stream broken off.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;
/// An answer.
pub type Answer = Response<Body>;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// A body that is there already.
pub fn body(content: impl Into<Bytes>) -> Body {
    Full::new(content.into()).map_err(|never| match never {}).boxed_unsync()
}

/// An answer without a body and without a content type.
pub fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    *answer.status_mut() = status;
    answer
}

/// `content_type` is one of ours, not a stranger's.
pub fn typed(status: StatusCode, content_type: &'static str, content: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(body(content));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// `text/plain`, which a browser must not take for anything else.
pub fn text(status: StatusCode, content: impl Into<Bytes>) -> Answer {
    let mut answer = typed(status, TEXT, content);
    answer.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// `application/json`.
pub fn json(content: impl Into<Bytes>) -> Answer {
    typed(StatusCode::OK, JSON, content)
}

/// 200 with a body that comes piece by piece. The stream is asked for the next piece when the one before has been taken.
pub fn stream(pieces: impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static) -> Answer {
    Response::new(StreamBody::new(pieces.map(|piece| piece.map(Frame::data))).boxed_unsync())
}
