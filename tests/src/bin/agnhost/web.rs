//! The paths that are answered over HTTP.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use http::{HeaderValue, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::sync::mpsc::Sender;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// As long as the command `liveness` is well.
const WELL: Duration = Duration::from_secs(10);

/// What one server knows.
#[derive(Clone)]
pub struct Site {
    started: Instant,
    ending: Sender<u8>,
    pub tls: Option<TlsAcceptor>,
    /// Whether the health service was told not to serve.
    pub forced: Arc<AtomicBool>,
}

impl Site {
    /// `ending` takes the code that the program is to end with.
    pub fn new(ending: Sender<u8>) -> Self {
        Self { started: Instant::now(), ending, tls: None, forced: Arc::default() }
    }
}

/// One request, as the paths see it.
pub struct Call {
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    client: SocketAddr,
}

impl Call {
    fn asked(&self, name: &str) -> &str {
        self.query.get(name).map(String::as_str).unwrap_or_default()
    }

    fn code(&self, default: u16) -> u16 {
        self.asked("code").parse().unwrap_or(default)
    }
}

/// Status, `Location` where there is one, body.
type Answer = (u16, Option<String>, String);

/// What a command answers.
type Paths = fn(&Site, &Call) -> Answer;

/// A certificate and its key in PEM; none where no file is named.
pub fn tls(certificate: &str, key: &str) -> Result<Option<TlsAcceptor>> {
    if certificate.is_empty() {
        return Ok(None);
    }
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
        .with_context(|| format!("opening {certificate}"))?
        .collect::<Result<_, _>>()
        .with_context(|| format!("reading {certificate}"))?;
    let key = PrivateKeyDer::from_pem_file(key).with_context(|| format!("reading {key}"))?;
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

/// Answers on all addresses of the pod.
pub async fn serve(port: u16, site: Site, paths: Paths) -> Result<()> {
    let listener = super::listen(port).await?;
    loop {
        let (stream, client) = listener.accept().await.context("taking a connection")?;
        let site = site.clone();
        tokio::spawn(async move {
            let service = hyper::service::service_fn(|request: Request<Incoming>| {
                let site = site.clone();
                async move { Ok::<_, Infallible>(answer(&site, &request, client, paths).await) }
            });
            let server = hyper::server::conn::http1::Builder::new();
            let ended = match &site.tls {
                None => server.serve_connection(TokioIo::new(stream), service).await.map_err(anyhow::Error::from),
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => server.serve_connection(TokioIo::new(stream), service).await.map_err(Into::into),
                    Err(error) => Err(error.into()),
                },
            };
            if let Err(error) = ended {
                println!("connection of {client}: {error:#}");
            }
        });
    }
}

async fn answer(site: &Site, request: &Request<Incoming>, client: SocketAddr, paths: Paths) -> Response<Full<Bytes>> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = request.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    println!("{} {} {}", request.method(), request.uri(), json!(headers));
    let query = decode(request.uri().query().unwrap_or_default());
    let call = Call { path: request.uri().path().to_owned(), query, headers, client };
    if call.path == "/exit" {
        let wait = call.asked("wait").trim_end_matches('s').parse().unwrap_or(0);
        tokio::time::sleep(Duration::from_secs(wait)).await;
    }
    let (status, location, body) = match call.path.as_str() {
        "/shell" => shell(&call).await,
        _ => paths(site, &call),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Some(location) = location.and_then(|text| HeaderValue::from_str(&text).ok()) {
        response.headers_mut().insert(http::header::LOCATION, location);
    }
    response
}

fn said(status: u16, body: impl Into<String>) -> Answer {
    (status, None, body.into())
}

/// The command `netexec`.
pub fn netexec(site: &Site, call: &Call) -> Answer {
    match call.path.as_str() {
        "/" => said(200, format!("NOW: {:?}", std::time::SystemTime::now())),
        "/clientip" => said(200, call.client.to_string()),
        "/echo" => said(call.code(200), call.asked("msg")),
        "/exit" | "/shutdown" => {
            // Full: somebody else has said so already.
            let _ = site.ending.try_send(call.asked("code").parse().unwrap_or(0));
            said(200, "")
        }
        "/header" => match call.asked("key") {
            "" => said(200, json!(call.headers).to_string()),
            key => said(200, call.headers.get(&key.to_ascii_lowercase()).cloned().unwrap_or_default()),
        },
        "/healthz" => said(200, ""),
        "/readyz" => said(200, "ok"),
        "/hostname" | "/hostName" => {
            said(200, nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned())
        }
        "/redirect" => (call.code(302), Some(call.asked("location").to_owned()), String::new()),
        _ => said(404, "404 page not found\n"),
    }
}

/// The command `liveness`.
pub fn liveness(site: &Site, call: &Call) -> Answer {
    let age = site.started.elapsed();
    match call.path.as_str() {
        "/started" => said(200, format!("{age:?}")),
        "/healthz" if age > WELL => said(500, format!("error: {}", age.as_secs_f64())),
        "/healthz" => said(200, "ok"),
        "/redirect" => (302, Some(call.asked("loc").to_owned()), String::new()),
        _ => said(404, "404 page not found\n"),
    }
}

/// The command `test-webserver`: whatever is asked for is there.
pub fn anything(_: &Site, call: &Call) -> Answer {
    said(200, call.path.as_str())
}

/// The switch of the health service.
pub fn switch(site: &Site, call: &Call) -> Answer {
    match call.path.as_str() {
        "/make-serving" => site.forced.store(false, Ordering::Relaxed),
        "/make-not-serving" => site.forced.store(true, Ordering::Relaxed),
        _ => return said(404, "404 page not found\n"),
    }
    said(200, format!("{:?}", site.started.elapsed()))
}

async fn shell(call: &Call) -> Answer {
    let script = [call.asked("shellCommand"), call.asked("cmd")].into_iter().find(|one| !one.is_empty());
    let done = tokio::process::Command::new("/bin/sh").args(["-c", script.unwrap_or_default()]).output().await;
    let mut answer = json!({});
    match done {
        Ok(done) => {
            let all = [done.stdout, done.stderr].concat();
            answer["output"] = json!(String::from_utf8_lossy(&all));
            if !done.status.success() {
                answer["error"] = json!(done.status.to_string());
            }
        }
        Err(error) => answer["error"] = json!(error.to_string()),
    }
    said(200, answer.to_string())
}

/// A query with its escapes undone.
fn decode(query: &str) -> BTreeMap<String, String> {
    let plain = |text: &str| {
        let bytes = text.replace('+', " ").into_bytes();
        let mut out = Vec::with_capacity(bytes.len());
        let mut rest = bytes.as_slice();
        while let [first, after @ ..] = rest {
            let hex = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
            match hex.and_then(|two| u8::from_str_radix(two, 16).ok()).filter(|_| *first == b'%') {
                Some(byte) => {
                    out.push(byte);
                    rest = &after[2..];
                }
                None => {
                    out.push(*first);
                    rest = after;
                }
            }
        }
        String::from_utf8_lossy(&out).into_owned()
    };
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (plain(name), plain(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_a_query_are_undone() {
        let query = decode("location=%2Fecho%3Fmsg%3Da+b&code=307&bad=%zz&flag");
        assert_eq!(query["location"], "/echo?msg=a b");
        assert_eq!((query["code"].as_str(), query["bad"].as_str(), query["flag"].as_str()), ("307", "%zz", ""));
    }
}
