//! Claims of pods, watched where the cluster lets its nodes watch them.
//!
//! The node authorizer lets a node get the claims of its pods, and not watch them (upstream
//! `plugin/pkg/auth/authorizer/node/node_authorizer.go`): a claim that has grown is seen with its pod's next sync then. A cluster that
//! grants `list` and `watch` to its nodes (`deploy/rbac/watch-claims.yaml`) has its pods synced as soon as a claim changes. Whether it
//! does is asked by SelfSubjectAccessReview, so that no request is refused; nothing is asked before the first pod with a claim.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Once};
use std::time::Duration;

use bulkhead_apiclient::watch::{Change, Scope, watch};
use bulkhead_apiclient::{ApiClient, Lane};
use bulkhead_types::PodUid;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use kube::api::PostParams;
use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast};
use tokio::task::AbortHandle;

use super::references;
use kubelet_model::v1::Pod;

/// A cluster that did not let nodes watch claims is asked again after this time.
const REVIEW_AGAIN: Duration = Duration::from_secs(600);
/// One that could not be asked, or whose watch has failed, after this.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// Namespace and name.
type Key = (String, String);

/// What of a claim makes a difference to the volume of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    uid: String,
    phase: String,
    volume: String,
    /// `status.capacity`, `status.allocatedResources` and `status.allocatedResourceStatuses` of `storage`.
    capacity: String,
    allocated: String,
    allocated_status: String,
    /// The condition FileSystemResizePending.
    pending: bool,
}

impl Seen {
    fn of(claim: &PersistentVolumeClaim) -> Self {
        let status = claim.status.clone().unwrap_or_default();
        let storage = |amounts: Option<std::collections::BTreeMap<String, _>>| {
            let amount: Option<k8s_openapi::apimachinery::pkg::api::resource::Quantity> =
                amounts.and_then(|mut amounts| amounts.remove("storage"));
            amount.map_or_else(String::new, |amount| amount.0)
        };
        let statuses = status.allocated_resource_statuses.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        Seen {
            uid: claim.metadata.uid.clone().unwrap_or_default(),
            phase: status.phase.unwrap_or_default(),
            volume: claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default(),
            capacity: storage(status.capacity),
            allocated: storage(status.allocated_resources),
            allocated_status: statuses.get("storage").cloned().unwrap_or_default(),
            pending: conditions.iter().any(|one| one.type_ == "FileSystemResizePending" && one.status == "True"),
        }
    }

    /// Its controller has done its part of an expansion.
    fn is_nodes_turn(&self) -> bool {
        self.pending || self.allocated_status == "NodeResizePending"
    }
}

/// Whether pods are to look at their claim again. Pure. `before`: `None` if the claim was not listed yet, which its pods have just
/// looked at; inside, `None`: there is no such claim.
fn concerns_pods(before: Option<&Option<Seen>>, now: Option<&Seen>) -> bool {
    match before {
        None => now.is_some_and(Seen::is_nodes_turn),
        Some(before) => before.as_ref() != now,
    }
}

#[derive(Debug, Default)]
struct State {
    /// The claims of each pod.
    users: HashMap<PodUid, BTreeSet<Key>>,
    /// What watches each of them; nothing does while nodes may not.
    watches: HashMap<Key, AbortHandle>,
    may_watch: bool,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct ClaimWatches {
    client: ApiClient,
    state: Mutex<State>,
    changes: broadcast::Sender<PodUid>,
    failed: Notify,
    begun: Once,
}

impl ClaimWatches {
    /// `changes`: pods that are to be synced.
    pub fn new(client: &ApiClient, changes: broadcast::Sender<PodUid>) -> Arc<Self> {
        let (state, failed, begun) = (Mutex::default(), Notify::new(), Once::new());
        Arc::new(ClaimWatches { client: client.clone(), state, changes, failed, begun })
    }

    /// The pod is wanted here. Must be called within a tokio runtime.
    pub fn register(self: &Arc<Self>, uid: &PodUid, pod: &Pod) {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let names = references::claims(pod).into_iter();
        let keys: BTreeSet<Key> = names.map(|name| (namespace.to_owned(), name)).collect();
        if keys.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        if state.users.insert(uid.clone(), keys.clone()) != Some(keys) {
            self.arrange(&mut state);
        }
        drop(state);
        self.begun.call_once(|| drop(tokio::spawn(self.clone().review())));
    }

    pub fn unregister(self: &Arc<Self>, uid: &PodUid) {
        let mut state = self.state.lock();
        if state.users.remove(uid).is_some() {
            self.arrange(&mut state);
        }
    }

    /// Watches what pods have, and nothing else.
    fn arrange(self: &Arc<Self>, state: &mut State) {
        let State { users, watches, may_watch } = state;
        let wanted: BTreeSet<&Key> = users.values().flatten().filter(|_| *may_watch).collect();
        watches.retain(|key, task| {
            let stays = wanted.contains(key);
            if !stays {
                task.abort();
            }
            stays
        });
        for key in wanted {
            watches.entry(key.clone()).or_insert_with(|| {
                let scope = Scope {
                    namespace: Some(key.0.clone()),
                    field_selector: format!("metadata.name={}", key.1),
                    ..Scope::default()
                };
                let stream = watch(&self.client, Lane::Main, scope);
                tokio::spawn(self.clone().follow(key.clone(), stream)).abort_handle()
            });
        }
    }

    async fn follow(self: Arc<Self>, key: Key, mut stream: BoxStream<'static, Change<PersistentVolumeClaim>>) {
        let mut known = None;
        while let Some(change) = stream.next().await {
            let now = match change {
                // It is there; what was known of it goes on counting.
                Change::Restarted(all) if !all.undecodable.is_empty() => continue,
                Change::Restarted(all) => all.objects.first().map(Seen::of),
                Change::Applied(claim) => Some(Seen::of(&claim)),
                Change::Deleted(_) => None,
                Change::Failed(_) => {
                    self.failed.notify_one();
                    continue;
                }
            };
            if concerns_pods(known.as_ref(), now.as_ref()) {
                let state = self.state.lock();
                for (pod, _) in state.users.iter().filter(|(_, keys)| keys.contains(&key)) {
                    // Nobody listens: nobody is to be told.
                    let _ = self.changes.send(pod.clone());
                }
            }
            known = Some(now);
        }
    }

    /// Finds out for ever whether nodes may watch claims.
    async fn review(self: Arc<Self>) {
        loop {
            let answer = async { Ok::<_, kube::Error>(self.may("list").await? && self.may("watch").await?) }.await;
            match &answer {
                Ok(may_watch) => {
                    let mut state = self.state.lock();
                    if std::mem::replace(&mut state.may_watch, *may_watch) != *may_watch {
                        tracing::info!(may_watch, "the right to watch PersistentVolumeClaims has changed");
                        self.arrange(&mut state);
                    }
                }
                Err(error) => {
                    tracing::debug!("whether this node may watch persistentVolumeClaims is not known: {error}")
                }
            }
            match answer {
                Ok(false) => tokio::time::sleep(REVIEW_AGAIN).await,
                Err(_) => tokio::time::sleep(ASK_AGAIN).await,
                Ok(true) => {
                    self.failed.notified().await;
                    tokio::time::sleep(ASK_AGAIN).await;
                }
            }
        }
    }

    /// Whether we may do this with claims of all namespaces.
    async fn may(&self, verb: &str) -> Result<bool, kube::Error> {
        let attributes = ResourceAttributes {
            verb: Some(verb.to_owned()),
            resource: Some("persistentvolumeclaims".to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let api: Api<SelfSubjectAccessReview> = Api::all(self.client.client(Lane::Main));
        let answer = api.create(&PostParams::default(), &review).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn seen(status: serde_json::Value) -> Seen {
        let claim = json!({"metadata": {"name": "c", "uid": "u"}, "spec": {"volumeName": "pv"}, "status": status});
        Seen::of(&serde_json::from_value(claim).unwrap())
    }

    #[test]
    fn when_pods_look_at_their_claim_again() {
        let small = seen(json!({"phase": "Bound", "capacity": {"storage": "1Gi"}}));
        let controllers = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"}});
        let nodes = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": "NodeResizePending"}});
        let by_condition = json!({"phase": "Bound", "capacity": {"storage": "1Gi"},
            "conditions": [{"type": "FileSystemResizePending", "status": "True"}]});
        let (controllers, nodes, by_condition) = (seen(controllers), seen(nodes), seen(by_condition));
        let grown = seen(json!({"phase": "Bound", "capacity": {"storage": "2Gi"}}));
        let listed = |seen: &Seen| Some(Some(seen.clone()));
        let cases = [
            ("first seen, nothing to do", None, Some(&small), false),
            ("first seen, the controller's turn", None, Some(&controllers), false),
            ("first seen, the node's turn", None, Some(&nodes), true),
            ("first seen, the node's turn by its condition", None, Some(&by_condition), true),
            ("first seen, none", None, None, false),
            ("as before", listed(&small), Some(&small), false),
            ("the node's turn", listed(&controllers), Some(&nodes), true),
            ("the node's turn by its condition", listed(&small), Some(&by_condition), true),
            ("grown", listed(&nodes), Some(&grown), true),
            ("made", Some(None), Some(&small), true),
            ("gone", listed(&small), None, true),
        ];
        for (name, before, now, expected) in cases {
            assert_eq!(concerns_pods(before.as_ref(), now), expected, "{name}");
        }
        let unlike = seen(json!({"phase": "Pending"}));
        assert!(concerns_pods(listed(&unlike).as_ref(), Some(&small)), "bound");
    }
}
