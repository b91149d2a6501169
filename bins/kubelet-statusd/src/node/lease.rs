//! The node's lease: says that the node lives, whatever its status says, and goes on while status writes fail.
//!
//! As upstream's `component-helpers/apimachinery/lease`: the last answer is the base of the next PUT; a conflict reads the
//! lease anew; what keeps failing is made sure of from the start, with growing pauses. It is not deleted at the end.

use std::time::Duration;

use bulkhead_apiclient::random_fraction;
use bulkhead_config::NodeConfig;
use bulkhead_types::BackOff;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use tokio::sync::watch;

use super::cadence::jittered;
use super::metrics::Metrics;
use super::reporter::Clock;
use super::server::{RequestError, Server};

const TRIES: usize = 5;
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(7));
/// Upstream's jitter of the interval.
const JITTER: f64 = 0.04;

/// A node's owner reference, without the controller flag.
pub fn owner(node: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    }
}

/// The lease to write: `base` renewed, or a new one. `node_uid`: when it is known. Pure.
pub fn renewed(base: Option<&Lease>, node: &str, node_uid: Option<&str>, seconds: i32, now: Timestamp) -> Lease {
    let mut lease = base.cloned().unwrap_or_else(|| Lease {
        metadata: ObjectMeta {
            name: Some(node.to_owned()),
            namespace: Some("kube-node-lease".to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec { holder_identity: Some(node.to_owned()), ..LeaseSpec::default() }),
    });
    // Who wrote which field is the API server's to keep.
    lease.metadata.managed_fields = None;
    let spec = lease.spec.get_or_insert_default();
    spec.lease_duration_seconds = Some(seconds);
    spec.renew_time = Some(MicroTime(now));
    let owned = lease.metadata.owner_references.as_ref().is_some_and(|owners| !owners.is_empty());
    if let (false, Some(uid)) = (owned, node_uid) {
        lease.metadata.owner_references = Some(vec![owner(node, uid)]);
    }
    lease
}

/// Creates and renews the lease for ever.
#[derive(Debug)]
pub struct Leaser {
    server: Server,
    metrics: Metrics,
    seconds: i32,
    /// The Node's uid, once it is known.
    node_uid: watch::Receiver<Option<String>>,
    last: Option<Lease>,
    clock: Clock,
}

impl Leaser {
    pub fn new(
        config: &NodeConfig,
        server: Server,
        metrics: Metrics,
        node_uid: watch::Receiver<Option<String>>,
        clock: Clock,
    ) -> Self {
        let seconds = config.kubelet.node_lease_duration_seconds;
        Leaser { server, metrics, seconds, node_uid, last: None, clock }
    }

    /// Never ends.
    pub async fn run(mut self) {
        // A quarter of its duration.
        let interval = Duration::from_millis(u64::try_from(self.seconds).unwrap_or(40).max(1) * 250);
        loop {
            let round = self.renew().await;
            let pause = tokio::time::sleep(jittered(interval, JITTER, random_fraction()));
            if let Round::NoNode { gone } = round {
                // Upstream comes back a period later; the Node mostly stands much sooner.
                let known = self.node_uid.wait_for(|uid| uid.is_some() && *uid != gone);
                let lost = self.server.rests(async {
                    tokio::select! {
                        () = pause => false,
                        known = known => known.is_err(),
                    }
                });
                if lost.await {
                    return;
                }
            } else {
                self.server.rests(pause).await;
            }
        }
    }

    fn next(&self, base: Option<&Lease>, node_uid: Option<&str>) -> Lease {
        renewed(base, self.server.name(), node_uid, self.seconds, (self.clock)())
    }

    /// One period's work.
    async fn renew(&mut self) -> Round {
        if let Some(last) = self.last.take() {
            match self.replace(last).await {
                Ok(()) => return Round::Done,
                Err(error) => tracing::warn!(%error, "failed to renew node lease, ensuring that it exists"),
            }
        }
        let mut retry = BackOff::new(RETRY.0, RETRY.1);
        loop {
            match self.ensure().await {
                Ok(Ensured::Created(lease)) => {
                    self.last = Some(lease);
                    return Round::Done;
                }
                Ok(Ensured::There(lease)) => {
                    if let Err(error) = self.replace(lease).await {
                        tracing::warn!(%error, "failed to renew node lease");
                    }
                    return Round::Done;
                }
                Ok(Ensured::NoNode { gone }) => return Round::NoNode { gone },
                Err(error) => {
                    let pause = retry.pause();
                    tracing::warn!(%error, retry = ?pause, "failed to ensure node lease, will retry");
                    self.server.pause(jittered(pause, 0.5, random_fraction())).await;
                }
            }
        }
    }

    async fn ensure(&self) -> Result<Ensured, RequestError> {
        match self.server.get_lease().await {
            Ok(lease) => Ok(Ensured::There(lease)),
            Err(error) if error.is_not_found() => {
                let known = self.node_uid.borrow().clone();
                if known.is_none() {
                    return Ok(Ensured::NoNode { gone: None });
                }
                // The Node may have gone, and the lease with it: one of a Node that is no more would be removed again, for ever
                // (upstream `pkg/kubelet/util/nodelease.go`, SetNodeOwnerFunc).
                let node = match self.server.get_node().await {
                    Ok(node) => node,
                    Err(error) if error.is_not_found() => return Ok(Ensured::NoNode { gone: known }),
                    Err(error) => return Err(error),
                };
                let created = self.server.create_lease(&self.next(None, node.metadata.uid.as_deref())).await;
                self.metrics.lease_write(created.is_ok());
                created.map(Ensured::Created)
            }
            Err(error) => Err(error),
        }
    }

    /// Up to five PUTs.
    async fn replace(&mut self, mut base: Lease) -> Result<(), RequestError> {
        let mut pause = Duration::ZERO;
        let mut tries = 0;
        loop {
            self.server.pause(pause).await;
            let node_uid = self.node_uid.borrow().clone();
            let written = self.server.replace_lease(&self.next(Some(&base), node_uid.as_deref())).await;
            self.metrics.lease_write(written.is_ok());
            tries += 1;
            match written {
                Ok(lease) => {
                    self.last = Some(lease);
                    return Ok(());
                }
                Err(error) if tries >= TRIES || error.is_overload() || error.is_not_found() => return Err(error),
                Err(error) if error.is_conflict() => match self.server.get_lease().await {
                    Ok(lease) => base = lease,
                    Err(unread) if unread.is_not_found() => return Err(unread),
                    Err(_) => {}
                },
                Err(error) => {
                    tracing::debug!(%error, tries, "renewing again");
                    if tries > 1 {
                        self.server.reconnect();
                    }
                }
            }
            pause = (pause * 2).max(Duration::from_millis(100));
        }
    }
}

/// What a period's work came to.
enum Round {
    Done,
    /// There is no Node that a new lease could belong to; `gone`: the uid of the one that there was.
    NoNode {
        gone: Option<String>,
    },
}

enum Ensured {
    Created(Lease),
    There(Lease),
    /// As [`Round::NoNode`].
    NoNode {
        gone: Option<String>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_microsecond(1_795_223_922_619_033 + micros).unwrap()
    }

    #[test]
    fn a_new_lease_is_upstreams() {
        let lease = renewed(None, "node-a", Some("u-1"), 40, at(0));
        assert_eq!(
            serde_json::to_value(lease).unwrap(),
            json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {
                    "name": "node-a",
                    "namespace": "kube-node-lease",
                    "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "u-1"}],
                },
                "spec": {
                    "holderIdentity": "node-a",
                    "leaseDurationSeconds": 40,
                    "renewTime": "2026-11-21T01:18:42.619033Z",
                },
            })
        );
    }

    #[test]
    fn renewing_keeps_what_others_wrote() {
        let base: Lease = serde_json::from_value(json!({
            "metadata": {
                "name": "node-a", "namespace": "kube-node-lease", "uid": "l", "resourceVersion": "7",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "old"}],
                "managedFields": [{"manager": "kubelet"}],
            },
            "spec": {"holderIdentity": "node-a", "leaseDurationSeconds": 20, "leaseTransitions": 3},
        }))
        .unwrap();
        let lease = serde_json::to_value(renewed(Some(&base), "node-a", Some("new"), 40, at(1))).unwrap();
        assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], "old");
        assert_eq!(lease["metadata"]["resourceVersion"], "7");
        assert_eq!(lease["metadata"].get("managedFields"), None);
        assert_eq!(lease["spec"]["leaseTransitions"], 3);
        assert_eq!(lease["spec"]["leaseDurationSeconds"], 40);
        assert_eq!(lease["spec"]["renewTime"], "2026-11-21T01:18:42.619034Z");
    }

    #[test]
    fn an_owner_is_added_as_soon_as_it_is_known() {
        let base = renewed(None, "n", None, 40, at(0));
        assert_eq!(base.metadata.owner_references, None);
        let owned = renewed(Some(&base), "n", Some("u"), 40, at(0));
        assert_eq!(owned.metadata.owner_references.unwrap(), [owner("n", "u")]);
    }
}
