//! The node's own registry credentials: Docker's configuration files where upstream looks for them, opened by the
//! descriptor broker since they are root's, and looked at again after five minutes.

use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::volnetd::RegistryConfig;
use bulkhead_ipc::volnetd::open_request::Kind;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tonic::Code;

use super::docker_config::{self, Entry};

/// Upstream's cache time (`pkg/credentialprovider/config.go`).
const KEPT: Duration = Duration::from_secs(300);
/// Largest file.
const MAX_BYTES: u64 = 1 << 20;
/// Places in the search order: four of config.json, then four of .dockercfg. The first file that can be used counts.
const PLACES: u32 = 8;
const CONFIG_JSON_PLACES: u32 = 4;

/// See the module.
#[derive(Debug)]
pub struct NodeFiles {
    broker: BrokerClient,
    known: Mutex<Option<(Instant, Arc<[Entry]>)>>,
}

impl NodeFiles {
    pub fn new(broker: BrokerClient) -> Self {
        NodeFiles { broker, known: Mutex::default() }
    }

    /// What the files say now or said lately. A file that cannot be used is logged and passed over.
    pub async fn entries(&self) -> Arc<[Entry]> {
        let mut known = self.known.lock().await;
        if let Some((at, entries)) = &*known
            && at.elapsed() < KEPT
        {
            return entries.clone();
        }
        match self.read().await {
            Some(entries) => {
                *known = Some((Instant::now(), entries.clone()));
                entries
            }
            // The broker is away: what was known stays true.
            None => known.as_ref().map_or_else(|| Arc::from([]), |(_, entries)| entries.clone()),
        }
    }

    async fn read(&self) -> Option<Arc<[Entry]>> {
        for index in 0..PLACES {
            let file = match self.broker.open(Kind::RegistryConfig(RegistryConfig { index })).await {
                Ok(file) => std::fs::File::from(file),
                Err(error) if matches!(error.code(), Code::NotFound) => continue,
                Err(error) if matches!(error.code(), Code::OutOfRange) => break,
                Err(error) if matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded) => return None,
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "failed to read registry credentials");
                    continue;
                }
            };
            let mut text = Vec::new();
            if let Err(error) = file.take(MAX_BYTES).read_to_end(&mut text) {
                tracing::warn!(%error, index, "failed to read registry credentials file");
                continue;
            }
            let entries = if index < CONFIG_JSON_PLACES {
                docker_config::config_json(&text, |_| true)
            } else {
                docker_config::dockercfg(&text, |_| true)
            };
            match entries {
                Ok(entries) => return Some(entries.into()),
                Err(error) => tracing::warn!(%error, index, "failed to decode registry credentials file"),
            }
        }
        Some(Arc::from([]))
    }
}
