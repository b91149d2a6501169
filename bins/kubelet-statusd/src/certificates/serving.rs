//! The certificate of the node's HTTPS server, where it is asked for at the API server (serverTLSBootstrap): for the names and
//! addresses that the Node has, anew when it has others, and before it ends. Until somebody approves there is none.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_apiclient::source::BrokerSource;
use bulkhead_apiclient::{ApiClient, CredentialFile, is_pair, random_fraction};
use bulkhead_config::{Feature, NodeConfig};
use bulkhead_daemon::StateDir;
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::volnetd::credential::Kind;
use bulkhead_types::chain as words;
use futures_util::stream::BoxStream;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeAddress;
use tokio::sync::watch;

use super::client::{AGAIN, AUDIT, wait};
use super::decide::{self, Todo};
use super::key::KeyError;
use super::leaf::{Chain, Subject, of_node};
use super::metrics::ServingMetrics;
use super::pending;
use super::request::{RequestError, Signer, Wish, obtain};
use super::store::{Store, StoreError};

/// Why something is not done.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the certificates on the disk: {0}")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// What the certificate is to be for: None while the Node has nothing that one could be for (upstream
/// `pkg/kubelet/certificate`, newGetTemplateFn). `names_suffice`: gate AllowDNSOnlyNodeCSR.
pub fn wanted(node: &str, addresses: &[NodeAddress], names_suffice: bool) -> Option<Subject> {
    let (mut dns_names, mut ips) = (BTreeSet::new(), BTreeSet::new());
    for NodeAddress { type_, address } in addresses.iter().filter(|one| !one.address.is_empty()) {
        let ip = address.parse().ok();
        match (type_.as_str(), ip) {
            ("Hostname" | "InternalIP" | "ExternalIP", Some(ip)) => drop(ips.insert(ip)),
            ("Hostname", None) | ("InternalDNS" | "ExternalDNS", _) => drop(dns_names.insert(address.clone())),
            _ => {}
        }
    }
    let enough = !ips.is_empty() || (names_suffice && !dns_names.is_empty());
    enough.then(|| Subject { dns_names, addresses: ips, ..of_node(node) })
}

/// See the module.
pub struct ServingCertificate {
    node: String,
    names_suffice: bool,
    api: ApiClient,
    store: Store,
    state: Arc<StateDir>,
    metrics: ServingMetrics,
    addresses: watch::Receiver<Vec<NodeAddress>>,
}

impl std::fmt::Debug for ServingCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServingCertificate").field("node", &self.node).finish_non_exhaustive()
    }
}

impl ServingCertificate {
    /// `addresses`: those of the Node, as they are found out.
    pub fn new(
        config: &NodeConfig,
        api: ApiClient,
        (broker, volnetd): (BrokerClient, Link),
        state: Arc<StateDir>,
        metrics: ServingMetrics,
        addresses: watch::Receiver<Vec<NodeAddress>>,
    ) -> Self {
        let source = BrokerSource::serving(broker.clone(), volnetd);
        ServingCertificate {
            node: config.node_name.as_str().to_owned(),
            names_suffice: config.feature_gates().enabled(Feature::AllowDNSOnlyNodeCSR),
            api,
            store: Store { source: Arc::new(source), broker },
            state,
            metrics,
            addresses,
        }
    }

    /// For ever.
    pub async fn run(mut self) {
        let mut changes = self.store.source.changes();
        let share = random_fraction();
        let (mut failures, mut in_a_row) = (0, 0);
        let mut told = None;
        loop {
            let current = match self.current().await {
                Ok(current) => current,
                Err(error) => {
                    tracing::debug!(%error, "the serving certificate cannot be looked at now");
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
            };
            self.metrics.in_force(current.as_ref().map(|chain| chain.not_after));
            let subject = wanted(&self.node, &self.addresses.borrow_and_update(), self.names_suffice);
            let todo = decide::renewal(current.as_ref(), subject.as_ref(), share, Timestamp::now());
            let pause = match (todo, &subject) {
                (Todo::Renew(why), Some(subject)) => {
                    if told != Some(todo) {
                        tracing::info!(why = why.as_str(), "asking for a serving certificate");
                    }
                    told = Some(todo);
                    tokio::time::sleep(decide::pause(in_a_row, random_fraction())).await;
                    match self.ask(subject, current.as_ref()).await {
                        Ok(true) => {
                            (failures, in_a_row) = (0, in_a_row + 1);
                            continue;
                        }
                        // The Node has other addresses by now.
                        Ok(false) => continue,
                        Err(error) => {
                            failures += 1;
                            self.metrics.failures.inc();
                            let pause = decide::pause(failures, random_fraction());
                            tracing::error!(
                                error = words(&error),
                                ?pause,
                                "failed to get a serving certificate, will retry"
                            );
                            tokio::time::sleep(pause).await;
                            continue;
                        }
                    }
                }
                (Todo::Until(at), _) => {
                    if told != Some(todo) {
                        tracing::info!(%at, "the serving certificate is good until it is looked at again");
                    }
                    Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default()
                }
                _ => AUDIT,
            };
            (failures, in_a_row, told) = (0, 0, Some(todo));
            self.news(&mut changes, pause.min(AUDIT)).await;
        }
    }

    /// Until something on the disk, or an address, is another one.
    async fn news(&mut self, changes: &mut BoxStream<'static, ()>, longest: Duration) {
        tokio::select! {
            () = wait(changes, longest) => {}
            changed = self.addresses.changed() => {
                if changed.is_err() {
                    // Whoever tells of them has ended, and so do we.
                    std::future::pending::<()>().await;
                }
            }
        }
    }

    /// The certificate in force: the one that was signed, else the one that is configured.
    async fn current(&self) -> Result<Option<Chain>, StoreError> {
        let mut found = Vec::new();
        for file in [CredentialFile::ServingPair, CredentialFile::ServingCertificate] {
            match self.store.read(file).await {
                Err(error) if error.is_unknown() => return Err(error),
                Ok(Some(pem)) if file == CredentialFile::ServingCertificate || is_pair(&pem) => {
                    found.extend(Chain::parse(&pem));
                }
                Ok(_) | Err(_) => {}
            }
        }
        Ok(found.into_iter().next())
    }

    /// Asks and waits; false: it is not wanted any more.
    async fn ask(&mut self, subject: &Subject, old: Option<&Chain>) -> Result<bool, Failure> {
        let pending = pending::load_or_make(&self.state, Signer::Serving, subject)?;
        let name = pending.name.clone();
        let wish = Wish { signer: Signer::Serving, key: &pending.key, subject, name };
        let (node, names_suffice) = (self.node.clone(), self.names_suffice);
        let moved = self.addresses.wait_for(|now| {
            let now = wanted(&node, now, names_suffice);
            now.is_some_and(|now| now != *subject)
        });
        let issued = tokio::select! {
            issued = obtain(&self.api, &wish) => issued,
            _ = moved => return Ok(false),
        };
        let issued = match issued {
            Err(error) if error.needs_new_key() => {
                pending::forget(&self.state, Signer::Serving);
                return Err(error.into());
            }
            other => other?,
        };
        self.store.put(Kind::ServingPair, issued, &pending.key.to_pem()).await?;
        pending::forget(&self.state, Signer::Serving);
        if let Some(old) = old {
            self.metrics.lives.observe(Timestamp::now().duration_since(old.not_before).as_secs_f64());
        }
        tracing::info!("this node has a new serving certificate");
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_of_the_node() {
        let of = |list: &[(&str, &str)], names_suffice: bool| {
            let list: Vec<NodeAddress> = list
                .iter()
                .map(|(kind, address)| NodeAddress { type_: (*kind).to_owned(), address: (*address).to_owned() })
                .collect();
            wanted("a", &list, names_suffice).map(|subject| {
                let ips: Vec<String> = subject.addresses.iter().map(ToString::to_string).collect();
                let names: Vec<String> = subject.dns_names.into_iter().collect();
                assert_eq!(subject.common_name, "system:node:a");
                format!("{} {}", names.join(","), ips.join(","))
            })
        };
        let all =
            [("InternalIP", "192.0.2.1"), ("InternalIP", "fd00::1"), ("Hostname", "a"), ("ExternalDNS", "a.example")];
        assert_eq!(of(&all, false).as_deref(), Some("a,a.example 192.0.2.1,fd00::1"));
        assert_eq!(of(&[("Hostname", "192.0.2.9"), ("ExternalIP", "x")], false).as_deref(), Some(" 192.0.2.9"));
        assert_eq!(of(&[("Hostname", "a"), ("InternalIP", "")], false), None, "no address");
        assert_eq!(of(&[("Hostname", "a")], true).as_deref(), Some("a "));
        assert_eq!(of(&[], true), None);
        assert_eq!(of(&[("InternalDNS", "192.0.2.1"), ("Odd", "192.0.2.2")], true).as_deref(), Some("192.0.2.1 "));
    }
}
