//! The way to the nodes: what of pods and nodes is not stored here but asked of the kubelet that has it. Where a kubelet
//! is reached its Node says; the server shows it the certificate that kubeadm makes for that, and does not check the
//! kubelet's (`pkg/kubelet/client`).

mod options;
mod passing;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::authority::Authority;
use super::identity::CLUSTER_ADMINS;
use super::request::Request as ApiRequest;
use super::resources::named;
use super::status::ApiError;
use super::storage::Store;
use crate::any_certificate::AnyCertificate;

/// The user that the server is for its kubelets.
pub const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Where a kubelet listens that does not say.
const PORT: u16 = 10250;
/// The declared feature of nodes that translate WebSockets themselves.
const WEBSOCKETS: &str = "ExtendWebSocketsToKubelet";

/// A kubelet, as its Node describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Kubelet {
    pub address: IpAddr,
    pub port: u16,
    /// Whether it takes WebSockets of the kinds that need a translation.
    pub websockets: bool,
}

/// A request that goes on to a node.
#[derive(Debug, PartialEq)]
pub(super) struct Passage {
    kubelet: Kubelet,
    /// What the kubelet is asked for, with query.
    path: String,
    kind: Kind,
}

/// What is done with the answer.
#[derive(Debug, PartialEq)]
enum Kind {
    /// `pods/log` of the pod of this name: a plain text, refusals become Status objects.
    Log(String),
    /// `pods/exec` and its kin: the connection is switched and its bytes are passed on.
    Stream,
    /// `nodes/proxy`: as it is; `prefix` is what the path has here and not there.
    Proxy { prefix: String },
}

/// Who answers a request.
#[derive(Debug, PartialEq)]
pub(super) enum Way {
    /// This server.
    Own,
    /// Nobody: there is nothing yet.
    Empty,
    Node(Passage),
}

/// Whether a request is one for a node, and what that node is asked.
///
/// # Errors
/// The pod or node is not there, has no address, or the options are wrong.
pub(super) fn way(store: &Store, request: &ApiRequest) -> Result<Way, ApiError> {
    let Some(resource) = request.resource else { return Ok(Way::Own) };
    let allowed: &[&str] = match (resource.plural, request.subresource.as_str()) {
        ("nodes", "proxy") => return proxy(store, request).map(Way::Node),
        ("pods", "log") => &["get"],
        ("pods", "exec" | "attach" | "portforward") => &["get", "create"],
        _ => return Ok(Way::Own),
    };
    if !allowed.contains(&request.verb) {
        return Err(ApiError::method_not_allowed(resource, request.verb));
    }
    let pods = named("pods");
    let refused = if request.subresource == "log" { options::refusal(request) } else { None };
    if let Some(refusal) = refused {
        return Err(refusal);
    }
    let pod =
        store.get(pods, &request.namespace, &request.name).ok_or_else(|| ApiError::not_found(pods, &request.name))?;
    let path = options::path(&pod.value, request)?;
    let node = pod.value["spec"]["nodeName"].as_str().unwrap_or_default();
    if node.is_empty() {
        return match request.subresource.as_str() {
            "log" => Ok(Way::Empty),
            _ => Err(ApiError::bad_request(format!("pod {} does not have a host assigned", request.name))),
        };
    }
    let kind = if request.subresource == "log" { Kind::Log(request.name.clone()) } else { Kind::Stream };
    Ok(Way::Node(Passage { kubelet: kubelet(store, node)?, path, kind }))
}

/// `nodes/proxy`: the name may say a scheme and a port, of which the kubelet's own are served alone.
fn proxy(store: &Store, request: &ApiRequest) -> Result<Passage, ApiError> {
    let invalid = || ApiError::bad_request(format!("invalid node request {:?}", request.name));
    let (name, port) = match request.name.split(':').collect::<Vec<_>>().as_slice() {
        [name] => (*name, ""),
        [name, port] => (*name, *port),
        ["https" | "", name, port] => (*name, *port),
        _ => return Err(invalid()),
    };
    let kubelet = kubelet(store, name)?;
    if !port.is_empty() && port.parse() != Ok(kubelet.port) {
        return Err(invalid());
    }
    let (prefix, path) = options::proxied(&request.path);
    Ok(Passage { kubelet, path: path.to_owned(), kind: Kind::Proxy { prefix: prefix.to_owned() } })
}

/// Where a node's kubelet is.
fn kubelet(store: &Store, node: &str) -> Result<Kubelet, ApiError> {
    let found = store.get(named("nodes"), "", node).ok_or_else(|| ApiError::not_found(named("nodes"), node))?;
    let status = &found.value["status"];
    let addresses = status["addresses"].as_array().map(Vec::as_slice).unwrap_or_default();
    // The order that kubeadm sets.
    let address = ["InternalIP", "ExternalIP"].iter().find_map(|kind| {
        let found = addresses.iter().find(|one| one["type"] == *kind)?;
        found["address"].as_str()?.parse().ok()
    });
    let Some(address) = address else {
        let known = Value::from(addresses);
        return Err(ApiError::plain(format!("no preferred addresses found; known addresses: {known}")));
    };
    let port = status["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64().and_then(|port| u16::try_from(port).ok());
    let declared = status["declaredFeatures"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(Kubelet {
        address,
        port: port.filter(|port| *port != 0).unwrap_or(PORT),
        websockets: declared.iter().any(|one| one == WEBSOCKETS),
    })
}

/// The server's side of the connections to nodes.
pub(super) struct Kubelets {
    /// Both HTTP versions, as for everything but what leaves HTTP.
    any: TlsConnector,
    http1: TlsConnector,
}

impl std::fmt::Debug for Kubelets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kubelets")
    }
}

impl Kubelets {
    /// With a new certificate of the authority.
    ///
    /// # Errors
    /// No randomness.
    pub(super) fn new(ca: &Authority) -> Result<Self> {
        let pair = ca.client(KUBELET_CLIENT, CLUSTER_ADMINS, YEAR)?;
        let connector = |protocols: &[&[u8]]| -> Result<TlsConnector> {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let chain = vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes())?];
            let mut config = ClientConfig::builder_with_provider(provider.clone())
                .with_safe_default_protocol_versions()?
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
                .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(pair.key.as_bytes())?)?;
            config.alpn_protocols = protocols.iter().map(|one| one.to_vec()).collect();
            Ok(TlsConnector::from(Arc::new(config)))
        };
        Ok(Self { any: connector(&[b"h2", b"http/1.1"])?, http1: connector(&[b"http/1.1"])? })
    }

    /// Sends a request whose URI is a path; with `switching` over HTTP/1.1, else over what the kubelet prefers.
    ///
    /// # Errors
    /// No answer; in words, as the client hears of it.
    async fn send(
        &self,
        kubelet: &Kubelet,
        mut request: Request<Full<Bytes>>,
        switching: bool,
    ) -> Result<Response<Incoming>, String> {
        let place = (kubelet.address, kubelet.port);
        let shown = std::net::SocketAddr::from(place);
        let connecting = async {
            let stream = TcpStream::connect(place).await?;
            stream.set_nodelay(true)?;
            let tls = if switching { &self.http1 } else { &self.any };
            tls.connect(ServerName::IpAddress(kubelet.address.into()), stream).await
        };
        let stream = tokio::time::timeout(CONNECT_LIMIT, connecting)
            .await
            .map_err(|_| format!("dial tcp {shown}: i/o timeout"))?
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::ConnectionRefused => format!("dial tcp {shown}: connect: connection refused"),
                _ => format!("dial tcp {shown}: {error}"),
            })?;
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let stream = TokioIo::new(stream);
        if http2 {
            let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
            let uri = format!("https://{shown}{path}").parse::<Uri>().map_err(|error| error.to_string())?;
            *request.uri_mut() = uri;
            request.headers_mut().remove(http::header::HOST);
            let greeting = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await;
            let (mut sender, connection) = greeting.map_err(|error| error.to_string())?;
            tokio::spawn(connection);
            return sender.send_request(request).await.map_err(|error| error.to_string());
        }
        let greeting = hyper::client::conn::http1::handshake(stream).await;
        let (mut sender, connection) = greeting.map_err(|error| error.to_string())?;
        tokio::spawn(connection.with_upgrades());
        sender.send_request(request).await.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests;
