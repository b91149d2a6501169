//! How the runtime's streaming server is connected to: by an address of this node, from the same address, so that the
//! connection cannot leave the node whatever the URL says.
//!
//! The URL comes from the runtime through kubelet-syncd for this one request. Upstream dials whatever it names; here both
//! ends of the connection are bound to the address that it names, which the kernel grants for this node's own addresses
//! alone. That holds for TLS too: the certificate is not checked, because the same runtime would be believed without TLS at
//! the same place, and the one that containerd makes for itself could not be checked by anybody.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use bulkhead_apiclient::tls::{self, Trust};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::target::{Host, StreamUrl};

/// A connection to the runtime's streaming server.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// See [`Io`].
pub type BoxedIo = Box<dyn Io>;

/// Why there is no connection. Names the address and never the token.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("error dialing backend: dial tcp {to}: {error}")]
    Connect {
        to: SocketAddr,
        #[source]
        error: io::Error,
    },
    #[error("error dialing backend: {0} is no address of this node")]
    Elsewhere(SocketAddr),
    #[error("error dialing backend: lookup {0}: no such host")]
    NoSuchHost(Box<str>),
    #[error("error dialing backend: tls: {0}")]
    Tls(String),
    #[error("error dialing backend: the runtime's streaming server did not answer in time")]
    Deadline,
}

/// Connects, and shakes hands where the URL is https. Nothing has been written then.
///
/// # Errors
/// See [`DialError`].
pub async fn connect(target: &StreamUrl, deadline: Instant) -> Result<BoxedIo, DialError> {
    let connected = async {
        let stream = tcp(target).await?;
        if !target.is_tls() {
            return Ok(Box::new(stream) as BoxedIo);
        }
        let name = match target.host() {
            Host::Address(address) => ServerName::IpAddress((*address).into()),
            Host::Name(name) => ServerName::try_from(name.to_string()).map_err(|e| DialError::Tls(e.to_string()))?,
        };
        let stream = connector()?.connect(name, stream).await.map_err(|e| DialError::Tls(e.to_string()))?;
        Ok(Box::new(stream) as BoxedIo)
    };
    timeout_at(deadline, connected).await.unwrap_or(Err(DialError::Deadline))
}

/// The first of the host's addresses that takes the connection.
async fn tcp(target: &StreamUrl) -> Result<TcpStream, DialError> {
    let addresses = match (target.addresses(), target.host()) {
        (Some(addresses), _) => addresses,
        (None, Host::Address(address)) => vec![*address],
        (None, Host::Name(name)) => look_up(name, target.port()).await?,
    };
    let mut first = None;
    for address in addresses {
        let to = SocketAddr::new(address, target.port());
        match from_and_to(to).await {
            Ok(stream) => return Ok(stream),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or(DialError::Deadline))
}

async fn look_up(name: &str, port: u16) -> Result<Vec<IpAddr>, DialError> {
    let found = tokio::net::lookup_host((name, port)).await.map_err(|_| DialError::NoSuchHost(name.into()))?;
    let found: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    if found.is_empty() { Err(DialError::NoSuchHost(name.into())) } else { Ok(found) }
}

/// A connection from an address to itself.
async fn from_and_to(to: SocketAddr) -> Result<TcpStream, DialError> {
    let failed = |error| DialError::Connect { to, error };
    let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.map_err(failed)?;
    socket.bind(SocketAddr::new(to.ip(), 0)).map_err(|error| match error.kind() {
        io::ErrorKind::AddrNotAvailable => DialError::Elsewhere(to),
        _ => DialError::Connect { to, error },
    })?;
    let stream = socket.connect(to).await.map_err(failed)?;
    // With nobody there the kernel may connect a socket with itself, when it was bound to that very port.
    if stream.local_addr().map_err(failed)? == to {
        return Err(failed(io::ErrorKind::ConnectionRefused.into()));
    }
    // Keystrokes are small, and each is waited for.
    stream.set_nodelay(true).map_err(failed)?;
    Ok(stream)
}

/// Made at the first use: most runtimes speak no TLS there.
fn connector() -> Result<TlsConnector, DialError> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(TlsConnector::from(config.clone()));
    }
    let mut config = tls::client_config(&Trust::Anyone, None).map_err(|error| DialError::Tls(error.to_string()))?;
    // An upgrade exists in this version alone.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(CONFIG.get_or_init(|| Arc::new(config)).clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    fn url(address: SocketAddr) -> StreamUrl {
        StreamUrl::parse(&format!("http://{address}/exec/TOKEN")).unwrap()
    }

    #[tokio::test]
    async fn both_ends_have_the_address_of_the_url() {
        let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut stream = connect(&url(address), soon()).await.unwrap();
        let (mut accepted, from) = listener.accept().await.unwrap();
        assert_eq!(from.ip(), address.ip());
        stream.write_all(b"ping").await.unwrap();
        let mut got = [0; 4];
        accepted.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"ping");
    }

    #[tokio::test]
    async fn a_listener_on_all_addresses_is_reached() {
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        assert!(connect(&url(address), soon()).await.is_ok());
    }

    #[tokio::test]
    async fn nothing_leaves_the_node() {
        // An address for documentation: no machine has it.
        let failure = connect(&url("192.0.2.1:80".parse().unwrap()), soon()).await.err().unwrap();
        assert_eq!(failure.to_string(), "error dialing backend: 192.0.2.1:80 is no address of this node");
    }

    #[tokio::test]
    async fn failures_name_the_address_and_not_the_token() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let failure = connect(&url(address), soon()).await.err().unwrap();
        let text = format!("{failure} {failure:?}");
        assert!(text.contains(&address.to_string()) && !text.contains("TOKEN"), "{text}");
    }

    #[tokio::test]
    async fn a_certificate_that_the_runtime_made_for_itself_is_taken() {
        let made = rcgen::generate_simple_self_signed(["runtime".to_owned()]).unwrap();
        let key = tokio_rustls::rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let server = tokio_rustls::rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serves = async {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = tokio_rustls::TlsAcceptor::from(Arc::new(server)).accept(stream).await.unwrap();
            stream.write_all(b"over TLS").await.unwrap();
            stream.shutdown().await.unwrap();
        };
        let reads = async {
            let url = StreamUrl::parse(&format!("https://{address}/exec/TOKEN")).unwrap();
            let mut seen = String::new();
            connect(&url, soon()).await.unwrap().read_to_string(&mut seen).await.unwrap();
            seen
        };
        let ((), seen) = tokio::join!(serves, reads);
        assert_eq!(seen, "over TLS");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_shakes_hands_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let url = StreamUrl::parse(&format!("https://{address}/exec/TOKEN")).unwrap();
        let failure = connect(&url, soon()).await.err().unwrap();
        assert!(matches!(failure, DialError::Deadline), "{failure}");
    }
}
