//! Where spans go: `tracing.endpoint`, in the forms that gRPC's targets have. Pure but for the connection.

use std::os::linux::net::SocketAddrExt as _;
use std::path::PathBuf;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

/// Upstream's (`component-base/tracing`): a collector on the node.
const DEFAULT: &str = "localhost:4317";

/// A collector's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Collector {
    /// `host:port`.
    Network(String),
    Socket(PathBuf),
    /// A socket without a file.
    Abstract(String),
}

/// Why an endpoint cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("tracing.endpoint {0:?} is not host:port, dns:[///]host:port, unix:[//]path or unix-abstract:name")]
pub struct EndpointError(String);

impl Collector {
    /// # Errors
    /// The text is none of the forms; `dns` with a server of its own is one that is not taken.
    pub fn parse(endpoint: Option<&str>) -> Result<Self, EndpointError> {
        let text = endpoint.filter(|text| !text.is_empty()).unwrap_or(DEFAULT);
        let wrong = || EndpointError(text.to_owned());
        if let Some(name) = text.strip_prefix("unix-abstract:") {
            return Ok(Collector::Abstract(name.to_owned()));
        }
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') { Ok(Collector::Socket(path.into())) } else { Err(wrong()) };
        }
        let address = match text.strip_prefix("dns:") {
            Some(rest) => rest.strip_prefix("///").unwrap_or(rest),
            None => text,
        };
        let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
        let fits = !host.is_empty() && !address.contains(['/', '@', '?', '#']) && port.parse::<u16>().is_ok();
        if fits { Ok(Collector::Network(address.to_owned())) } else { Err(wrong()) }
    }

    /// A connection that is made by the first call, and anew after it broke. Without TLS, as upstream's.
    ///
    /// # Errors
    /// The host is none.
    pub fn channel(&self) -> Result<Channel, tonic::transport::Error> {
        match self {
            Collector::Network(address) => Ok(Endpoint::from_shared(format!("http://{address}"))?.connect_lazy()),
            Collector::Socket(path) => {
                let path = path.clone();
                Ok(local(move || {
                    let path = path.clone();
                    async move { UnixStream::connect(path).await }
                }))
            }
            Collector::Abstract(name) => {
                let name = name.clone();
                Ok(local(move || {
                    let name = name.clone();
                    async move {
                        let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
                        let stream = std::os::unix::net::UnixStream::connect_addr(&address)?;
                        stream.set_nonblocking(true)?;
                        UnixStream::from_std(stream)
                    }
                }))
            }
        }
    }
}

fn local<F>(connect: impl Fn() -> F + Clone + Send + 'static) -> Channel
where
    F: Future<Output = std::io::Result<UnixStream>> + Send + 'static,
{
    let connector = tower::service_fn(move |_: http::Uri| {
        let connecting = connect();
        async move { connecting.await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let network = |text: &str| Collector::Network(text.to_owned());
        for (text, expected) in [
            (None, network("localhost:4317")),
            (Some(""), network("localhost:4317")),
            (Some("10.0.0.1:55680"), network("10.0.0.1:55680")),
            (Some("[::1]:4317"), network("[::1]:4317")),
            (Some("dns:///collector.obs:4317"), network("collector.obs:4317")),
            (Some("dns:collector:4317"), network("collector:4317")),
            (Some("unix:///run/otel.sock"), Collector::Socket("/run/otel.sock".into())),
            (Some("unix:/run/otel.sock"), Collector::Socket("/run/otel.sock".into())),
            (Some("unix-abstract:otel"), Collector::Abstract("otel".into())),
        ] {
            assert_eq!(Collector::parse(text).expect("a form"), expected, "{text:?}");
        }
        for text in ["localhost", "unix:run/otel.sock", "dns://8.8.8.8/collector:4317", "a:b", "x/y:1"] {
            assert!(Collector::parse(Some(text)).is_err(), "{text}");
        }
    }
}
