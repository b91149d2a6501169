//! TLS and HTTP: connections in, answers out (HTTP/1.1 and HTTP/2), and the faults that happen on the wire.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Result;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::Shared;
use super::authentication::authenticate;
use super::authority::Pair;
use super::dispatch::{Brought, Reply, dispatch};
use super::faults::Action;
use super::request::Request;
use super::request_log::{KIT_AGENT, Record};
use super::status::ApiError;
use super::watches::QUEUE;

/// The real server's bound on a body.
const MAX_BODY: usize = 3 << 20;
/// Requests at a time on one HTTP/2 connection, and bytes of a body ahead of its reader: the real server's settings,
/// which a client with many watches has to live with.
const MAX_STREAMS: u32 = 100;
const STREAM_WINDOW: u32 = 256 << 10;
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// The TLS side: any client certificate gets in, whether it is valid is a question of authentication (so that an
/// expired one meets 401 and not a broken handshake, as with the real server).
#[derive(Debug)]
struct AskEveryone(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for AskEveryone {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// The server's side of TLS.
///
/// # Errors
/// A certificate or key that cannot be read.
pub(super) fn tls(pair: &Pair, verifier: Arc<dyn ClientCertVerifier>) -> Result<TlsAcceptor> {
    let chain = vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes())?];
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(Arc::new(AskEveryone(verifier)))
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves until it is dropped; its connections end with it.
pub(super) async fn listen(shared: Arc<Shared>, listener: TcpListener, tls: TlsAcceptor) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(shared.clone(), stream, tls.clone()));
                }
                // Out of descriptors, or a client that left in the queue.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(shared: Arc<Shared>, stream: TcpStream, tls: TlsAcceptor) {
    let _ = stream.set_nodelay(true);
    let peer = stream.peer_addr().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip());
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_LIMIT, tls.accept(stream)).await else { return };
    let certificates: Arc<[CertificateDer<'static>]> = stream
        .get_ref()
        .1
        .peer_certificates()
        .map(|chain| chain.iter().map(|one| one.clone().into_owned()).collect::<Vec<_>>())
        .unwrap_or_default()
        .into();
    talk(shared, stream, certificates, peer).await;
}

/// A connection without TLS: its requests are those of whoever their tokens name.
pub(super) async fn plain<S>(shared: Arc<Shared>, stream: S)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    talk(shared, stream, Arc::new([]), IpAddr::V4(Ipv4Addr::LOCALHOST)).await;
}

async fn talk<S>(shared: Arc<Shared>, stream: S, certificates: Arc<[CertificateDer<'static>]>, peer: IpAddr)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let broken = Arc::new(Notify::new());
    let service = hyper::service::service_fn({
        let broken = broken.clone();
        move |request| {
            let (shared, certificates, broken) = (shared.clone(), certificates.clone(), broken.clone());
            async move { Ok::<_, Infallible>(answer(shared, &certificates, peer, &broken, request).await) }
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http2().max_concurrent_streams(MAX_STREAMS).initial_stream_window_size(STREAM_WINDOW);
    tokio::select! {
        _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service) => {}
        () = broken.notified() => {}
    }
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

async fn answer(
    shared: Arc<Shared>,
    certificates: &[CertificateDer<'static>],
    peer: IpAddr,
    broken: &Notify,
    request: http::Request<Incoming>,
) -> Response<Body> {
    let (head, body) = request.into_parts();
    let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
    let agent = text(&head.headers, header::USER_AGENT).to_owned();
    let accept = text(&head.headers, header::ACCEPT).to_owned();
    let content_type = text(&head.headers, header::CONTENT_TYPE).to_owned();
    let parsed = match Request::parse(head.method.as_str(), path, query) {
        Ok(parsed) => parsed,
        Err(error) => return refusal(&error),
    };
    let uri = head.uri.path_and_query().map_or_else(String::new, ToString::to_string);
    let user = authenticate(&shared, certificates, text(&head.headers, header::AUTHORIZATION));
    let name = user.as_ref().map(|user| user.name.clone()).unwrap_or_default();
    let record = Record {
        user: name.clone(),
        agent: agent.clone(),
        content_type: content_type.clone(),
        protocol: format!("{:?}", head.version),
        time: shared.clock.now(),
        ..Record::new(&parsed, head.method.as_str(), uri)
    };
    let number = shared.log.begin(record);
    shared.faults.lit(&agent).await;
    let fault = shared.faults.meet(&parsed, &name, &agent);
    let mut lose_answer = false;
    match fault {
        None => {}
        Some((_, Action::Delay(delay))) => tokio::time::sleep(delay).await,
        Some((id, Action::Hang)) => shared.faults.gone(id).await,
        Some((_, Action::LoseAnswer)) => lose_answer = true,
        Some((_, Action::DropConnection)) => {
            broken.notify_one();
            return std::future::pending().await;
        }
        Some((_, Action::Conflict)) => {
            let error = match parsed.resource {
                Some(resource) => ApiError::modified(resource, &parsed.name),
                None => ApiError::injected(409),
            };
            shared.log.end(number, error.code, None);
            return refusal(&error);
        }
        Some((_, Action::ErrorEvent { code, reason, message })) => {
            shared.log.end(number, 200, None);
            let event = serde_json::json!({"type": "ERROR", "object": ApiError::of(code, reason, message).status()});
            return response(200, "application/json", Body::Full(Some(format!("{event}\n").into())), None);
        }
        Some((_, Action::Answer { code, retry_after_seconds })) => {
            let mut error = ApiError::injected(code);
            if let Some(seconds) = retry_after_seconds {
                error.details = serde_json::json!({"retryAfterSeconds": seconds});
            }
            shared.log.end(number, error.code, None);
            return refusal(&error);
        }
    }
    let body = match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => return refusal(&ApiError::too_large_body(MAX_BODY)),
    };
    let kept = shared.config.keep_bodies && !body.is_empty() && !agent.starts_with(KIT_AGENT);
    let kept = kept.then(|| serde_json::from_slice(&body).ok()).flatten();
    let brought = Brought { accept: &accept, content_type: &content_type, body: &body };
    let reply = user.and_then(|user| dispatch(&shared, &user, parsed, brought));
    let answer = match reply {
        Ok(Reply::Full { code, content_type, body }) => response(code, content_type, Body::Full(Some(body)), None),
        Ok(Reply::Stream(watch)) => {
            let (sender, receiver) = mpsc::channel(QUEUE);
            tokio::spawn(watch.run(shared.clone(), sender));
            response(200, "application/json", Body::Stream(receiver), None)
        }
        Ok(Reply::Node(passage)) => {
            passage.run(&shared, head, body, peer).await.unwrap_or_else(|error| refusal(&error))
        }
        Err(error) => refusal(&error),
    };
    shared.log.end(number, answer.status().as_u16(), kept);
    if lose_answer {
        broken.notify_one();
        return std::future::pending().await;
    }
    answer
}

fn refusal(error: &ApiError) -> Response<Body> {
    let body = Body::Full(Some(error.status().to_string().into()));
    response(error.code, "application/json", body, error.retry_after())
}

pub(super) fn response(code: u16, content_type: &'static str, body: Body, retry_after: Option<u64>) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-cache, private"));
    if let Some(seconds) = retry_after {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// An answer's body: all at once, a watch's events as they come, or what comes from a node.
pub(super) enum Body {
    Full(Option<Bytes>),
    Stream(mpsc::Receiver<Bytes>),
    /// Without `to_the_end` a connection that breaks looks like an end: so the real server does with logs.
    Passed {
        body: Incoming,
        to_the_end: bool,
    },
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Passed { body, to_the_end } => match std::task::ready!(Pin::new(body).poll_frame(context)) {
                Some(Err(_)) if !*to_the_end => Poll::Ready(None),
                frame => Poll::Ready(frame),
            },
            Self::Stream(receiver) => {
                let Some(first) = std::task::ready!(receiver.poll_recv(context)) else { return Poll::Ready(None) };
                // Events that wait together go together: fewer writes, fewer wake-ups on the other side.
                let Ok(second) = receiver.try_recv() else { return Poll::Ready(Some(Ok(Frame::data(first)))) };
                let mut all = BytesMut::from(first);
                all.extend_from_slice(&second);
                while let Ok(next) = receiver.try_recv() {
                    all.extend_from_slice(&next);
                }
                Poll::Ready(Some(Ok(Frame::data(all.freeze()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(bytes) => bytes.is_none(),
            Self::Stream(_) => false,
            Self::Passed { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            Self::Full(bytes) => {
                hyper::body::SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Stream(_) => hyper::body::SizeHint::default(),
            // A length that is promised has to be kept.
            Self::Passed { body, to_the_end } => {
                if *to_the_end {
                    body.size_hint()
                } else {
                    Default::default()
                }
            }
        }
    }
}
