//! Requests that go on to a node, and what comes back: logs, switched connections, whatever the kubelet serves
//! (`apimachinery/pkg/util/proxy`, `apiserver/pkg/registry/generic/rest`).

use std::net::IpAddr;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode, request};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt as _;

use super::{Kind, Kubelet, Passage};
use crate::Shared;
use crate::serve::{Body, response};
use crate::status::ApiError;

/// Sub-protocols of WebSockets that somebody has to translate.
const TRANSLATED: [&str; 2] = ["v5.channel.k8s.io", "SPDY/3.1+portforward.k8s.io"];
/// As much of a refusal as is read.
const MAX_REFUSAL: usize = 50_000;
/// How long the end of a switched connection may take.
const FAREWELL: Duration = Duration::from_secs(2);
/// Headers that are about one connection only.
const HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

fn mentions(headers: &HeaderMap, name: &HeaderName, wanted: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|one| one.trim().eq_ignore_ascii_case(wanted))
}

impl Passage {
    /// Asks the node; `peer` is who asked us.
    ///
    /// # Errors
    /// The node did not answer, or what it said has to be told in a Status.
    pub(crate) async fn run(
        self,
        shared: &Shared,
        mut head: request::Parts,
        body: Bytes,
        peer: IpAddr,
    ) -> Result<Response<Body>, ApiError> {
        // Whom the server has recognised is not told further.
        head.headers.remove(header::AUTHORIZATION);
        let switching = mentions(&head.headers, &header::CONNECTION, "upgrade");
        match self.kind {
            Kind::Log(ref pod) => log(shared, &self, pod).await,
            Kind::Stream if !switching => Err(ApiError::bad_request("Upgrade request required")),
            Kind::Stream => {
                let protocols = &header::SEC_WEBSOCKET_PROTOCOL;
                let translated = TRANSLATED.iter().any(|one| mentions(&head.headers, protocols, one));
                if translated && !self.kubelet.websockets {
                    // A real server would translate for such a node; clients fall back to SPDY.
                    return Err(ApiError::plain("the node does not take WebSockets".to_owned()));
                }
                switch(shared, &self.kubelet, &self.path, head, peer).await
            }
            // As the real server: the query is lost on this way.
            Kind::Proxy { .. } if switching => switch(shared, &self.kubelet, &self.path, head, peer).await,
            Kind::Proxy { ref prefix } => proxy(shared, &self, prefix, head, body, peer).await,
        }
    }
}

async fn log(shared: &Shared, passage: &Passage, pod: &str) -> Result<Response<Body>, ApiError> {
    let kubelet = &passage.kubelet;
    let request = Request::get(&passage.path).header(header::HOST, host(kubelet)).body(Full::default());
    let request = request.map_err(|error| ApiError::plain(error.to_string()))?;
    let answer = shared.kubelets.send(kubelet, request, false).await;
    let answer = answer
        .map_err(|error| ApiError::plain(format!("Get \"https://{}{}\": {error}", host(kubelet), passage.path)))?;
    let status = answer.status();
    if (200..=206).contains(&status.as_u16()) {
        return Ok(response(200, "text/plain", Body::Passed { body: answer.into_body(), to_the_end: false }, None));
    }
    let text = Limited::new(answer.into_body(), MAX_REFUSAL).collect().await.map(|body| body.to_bytes());
    let text = String::from_utf8_lossy(&text.unwrap_or_default()).into_owned();
    Err(match status {
        StatusCode::INTERNAL_SERVER_ERROR => ApiError::internal(&text),
        StatusCode::BAD_REQUEST => ApiError::bad_request(text),
        _ => ApiError::of_a_server(status.as_u16(), "pods/log", pod, &text),
    })
}

/// Leaves HTTP on both sides.
async fn switch(
    shared: &Shared,
    kubelet: &Kubelet,
    path: &str,
    head: request::Parts,
    peer: IpAddr,
) -> Result<Response<Body>, ApiError> {
    let mut request = Request::new(Full::default());
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = path.parse().map_err(|error: http::uri::InvalidUri| ApiError::plain(error.to_string()))?;
    *request.headers_mut() = head.headers.clone();
    forwarded_for(request.headers_mut(), peer);
    let answer = shared.kubelets.send(kubelet, request, true).await;
    let answer = answer.map_err(|error| ApiError::plain(format!("error dialing backend: {error}")))?;
    let status = answer.status();
    if status != StatusCode::SWITCHING_PROTOCOLS {
        if status.as_u16() < 400 {
            let message = format!("invalid upgrade response: status code {}", status.as_u16());
            return Err(ApiError::plain(message));
        }
        let mut refusal = answer.map(|body| Body::Passed { body, to_the_end: true });
        strip(refusal.headers_mut());
        refusal.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        return Ok(refusal);
    }
    let mut switched = Response::new(Body::Full(None));
    *switched.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *switched.headers_mut() = answer.headers().clone();
    let theirs = hyper::upgrade::on(Request::from_parts(head, ()));
    shared.spawn_stream(async move {
        let (Ok(ours), Ok(theirs)) = tokio::join!(hyper::upgrade::on(answer), theirs) else { return };
        pass_on(TokioIo::new(ours), TokioIo::new(theirs)).await;
    });
    Ok(switched)
}

/// Bytes both ways until one side has ended.
async fn pass_on(node: TokioIo<hyper::upgrade::Upgraded>, client: TokioIo<hyper::upgrade::Upgraded>) {
    let (mut node_read, mut node_write) = tokio::io::split(node);
    let (mut client_read, mut client_write) = tokio::io::split(client);
    tokio::select! {
        _ = tokio::io::copy(&mut node_read, &mut client_write) => {}
        _ = tokio::io::copy(&mut client_read, &mut node_write) => {}
    }
    let farewell = async { tokio::join!(client_write.shutdown(), node_write.shutdown()) };
    let _ = tokio::time::timeout(FAREWELL, farewell).await;
}

async fn proxy(
    shared: &Shared,
    passage: &Passage,
    prefix: &str,
    head: request::Parts,
    body: Bytes,
    peer: IpAddr,
) -> Result<Response<Body>, ApiError> {
    let query = head.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    if passage.path.is_empty() && matches!(head.method.as_str(), "GET" | "HEAD") {
        let mut redirect = Response::new(Body::Full(None));
        *redirect.status_mut() = StatusCode::MOVED_PERMANENTLY;
        if let Ok(location) = HeaderValue::from_str(&format!("{prefix}/{query}")) {
            redirect.headers_mut().insert(header::LOCATION, location);
        }
        return Ok(redirect);
    }
    let path = if passage.path.is_empty() { "/" } else { &passage.path };
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = head.method;
    let uri = format!("{path}{query}");
    *request.uri_mut() = uri.parse().map_err(|error: http::uri::InvalidUri| ApiError::plain(error.to_string()))?;
    *request.headers_mut() = head.headers;
    strip(request.headers_mut());
    forwarded_for(request.headers_mut(), peer);
    for (name, value) in [("x-forwarded-uri", format!("{prefix}{path}")), ("x-forwarded-proto", "https".to_owned())] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            request.headers_mut().insert(name, value);
        }
    }
    if !request.headers().contains_key(header::HOST)
        && let Ok(value) = HeaderValue::from_str(&host(&passage.kubelet))
    {
        request.headers_mut().insert(header::HOST, value);
    }
    let answer = shared.kubelets.send(&passage.kubelet, request, false).await;
    let mut answer = answer
        .map_err(|error| ApiError::unavailable(&format!("error trying to reach service: {error}")))?
        .map(|body: Incoming| Body::Passed { body, to_the_end: true });
    strip(answer.headers_mut());
    let location = answer.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
    let here = location.filter(|path| path.starts_with('/') && !path.starts_with(prefix));
    if let Some(Ok(here)) = here.map(|path| HeaderValue::from_str(&format!("{prefix}{path}"))) {
        answer.headers_mut().insert(header::LOCATION, here);
    }
    Ok(answer)
}

fn strip(headers: &mut HeaderMap) {
    for name in HOP {
        headers.remove(name);
    }
}

fn forwarded_for(headers: &mut HeaderMap, peer: IpAddr) {
    let before: Vec<&str> = headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok()).collect();
    let peer = peer.to_string();
    let all = before.into_iter().chain(std::iter::once(peer.as_str())).collect::<Vec<_>>().join(", ");
    if let Ok(value) = HeaderValue::from_str(&all) {
        headers.insert(FORWARDED_FOR, value);
    }
}

fn host(kubelet: &Kubelet) -> String {
    std::net::SocketAddr::from((kubelet.address, kubelet.port)).to_string()
}
