//! The HTTPS server as the configuration wants it: its port, its certificates, its gate.

use std::net::SocketAddr;
use std::sync::Arc;

use bulkhead_apiclient::ApiClient;
use bulkhead_apiclient::source::BrokerSource;
use bulkhead_config::{Feature, NodeConfig};
use bulkhead_daemon::{Daemon, ListenError, RunError};
use bulkhead_types::Process;
use tokio::net::TcpListener;

use super::gate::Gate;
use super::limits::Limits;
use super::listener;
use super::ports;
use super::tls::Serving;
use super::tls::follow::{self, Files, Own};
use super::tls::policy::Policy;
use crate::routes::Surface;

/// A port that is listened on, and who may come through it.
#[derive(Debug)]
pub struct Https {
    pub listener: TcpListener,
    pub address: SocketAddr,
    pub serving: Serving,
    gate: Gate,
}

/// Listens, where the server is enabled. The first connections may have to wait for a certificate.
///
/// # Errors
/// The port cannot be had, which ends the process as it does upstream; or nobody could be told from anybody.
pub async fn listen(daemon: &Daemon, api: Option<&ApiClient>) -> Result<Option<Https>, RunError> {
    let config = &daemon.config;
    let Some(address) = config.https_address() else { return Ok(None) };
    let listener = match ports::earlier(daemon, Surface::Main, address) {
        Some(listener) => listener,
        None => {
            let listener = listener::bind(address).await.map_err(|source| ListenError { address, source })?;
            ports::keep(Surface::Main, &listener);
            listener
        }
    };
    tracing::info!(%address, surface = ?Surface::Main, "listening");
    let serving = follow::start(Files {
        source: Arc::new(BrokerSource::serving(daemon.broker.clone(), daemon.link(Process::Volnetd))),
        broker: daemon.broker.clone(),
        policy: Policy::of(&config.kubelet),
        own: config.serving_pair().own.then(|| own(config)),
        signed: config.asks_for_serving(),
        client_ca: !config.kubelet.authentication.x509.client_ca_file.is_empty(),
        client_uids: config.feature_gates().enabled(Feature::AllowParsingUserUIDFromCertAuth),
    });
    let gate = Gate::new(config, serving.clone(), api, &daemon.registry)?;
    Ok(Some(Https { listener, address, serving, gate }))
}

impl Https {
    pub fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// What its connections may take, by the number of files that the process may open.
    pub fn limits() -> Limits {
        let open_files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        Limits::main(usize::try_from(open_files).unwrap_or(usize::MAX))
    }
}

/// The node's name, and the addresses that it was given.
fn own(config: &NodeConfig) -> Own {
    let addresses = config.node_ips.iter().copied().filter(|address| !address.is_unspecified()).collect();
    Own { name: config.node_name.as_str().to_owned(), addresses }
}
