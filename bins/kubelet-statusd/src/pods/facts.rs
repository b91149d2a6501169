//! What is known of the node: who owns mirror pods, and which of them have no static pod.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bulkhead_ipc::syncd::NodeState;
use bulkhead_types::PodUid;
use serde::Deserialize;

use super::mirror::Owner;
use super::requests::{Action, Job, Outcome};
use crate::api_writer::gate::{ANSWERED, Jitter};

/// How long after its deletion an orphaned mirror pod that is still there is deleted again.
const AGAIN: Duration = Duration::from_secs(10);
/// How long an orphan waits when a static pod of its name is still ending.
const BUSY: Duration = Duration::from_secs(1);
/// Orphans kept; kubelet-syncd names them anew when there are more.
const MAX_ORPHANS: usize = 1000;

/// A mirror pod without a static pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrphanMirror {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
}

/// A state of the node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Of the kubelet-syncd that said so; 0: none did.
    pub epoch: u64,
    /// `None` while the node is not registered or is being deleted.
    pub owner: Option<Owner>,
    /// Pods on the API server are known: what has no copy has none there.
    pub api_synced: bool,
    pub sources_ready: bool,
    /// The machine is going down.
    pub shutting_down: bool,
    pub orphans: Vec<OrphanMirror>,
}

impl Facts {
    pub fn of(state: &NodeState, epoch: u64) -> Self {
        // One without a uid cannot be deleted: no precondition would say which is meant.
        let orphan = |mirror: &bulkhead_ipc::syncd::MirrorRef| {
            let uid = PodUid::parse(&mirror.uid).ok()?;
            Some(OrphanMirror { uid, namespace: mirror.namespace.clone(), name: mirror.name.clone() })
        };
        Facts {
            epoch,
            owner: owner(&state.api_node_json),
            api_synced: state.api_synced,
            sources_ready: state.sources_ready,
            shutting_down: state.shutting_down,
            orphans: state.orphan_mirrors.iter().take(MAX_ORPHANS).filter_map(orphan).collect(),
        }
    }
}

/// The node as an owner. A node that is being deleted takes nothing more.
fn owner(node: &[u8]) -> Option<Owner> {
    #[derive(Deserialize)]
    struct Node {
        metadata: Meta,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Meta {
        name: String,
        uid: String,
        deletion_timestamp: Option<String>,
    }
    let node: Node = serde_json::from_slice(node).ok()?;
    let meta = node.metadata;
    (meta.deletion_timestamp.is_none() && !meta.uid.is_empty()).then_some(Owner { name: meta.name, uid: meta.uid })
}

#[derive(Debug)]
struct Orphan {
    namespace: String,
    name: String,
    due: Instant,
    failures: u32,
    in_flight: bool,
}

/// The orphans that are to be deleted, each with its pauses.
#[derive(Debug, Default)]
pub struct Orphans {
    by_uid: HashMap<PodUid, Orphan>,
}

impl Orphans {
    /// These are the orphans now.
    pub fn keep(&mut self, orphans: &[OrphanMirror], now: Instant) {
        self.by_uid.retain(|uid, _| orphans.iter().any(|orphan| orphan.uid == *uid));
        for orphan in orphans {
            self.by_uid.entry(orphan.uid.clone()).or_insert_with(|| Orphan {
                namespace: orphan.namespace.clone(),
                name: orphan.name.clone(),
                due: now,
                failures: 0,
                in_flight: false,
            });
        }
    }

    /// When the next may be deleted.
    pub fn due(&self) -> Option<Instant> {
        self.by_uid.values().filter(|orphan| !orphan.in_flight).map(|orphan| orphan.due).min()
    }

    /// The next that is due. `busy`: its static pod still ends.
    pub fn next(&mut self, now: Instant, busy: impl Fn(&str, &str) -> bool) -> Option<Job> {
        for (uid, orphan) in self.by_uid.iter_mut().filter(|(_, orphan)| !orphan.in_flight && orphan.due <= now) {
            if busy(&orphan.namespace, &orphan.name) {
                orphan.due = now + BUSY;
                continue;
            }
            orphan.in_flight = true;
            return Some(Job {
                pod: None,
                namespace: orphan.namespace.clone(),
                name: orphan.name.clone(),
                target: Some(uid.clone()),
                fingerprint: 0,
                trace_parent: String::new(),
                action: Action::DeleteOrphan,
            });
        }
        None
    }

    /// Its deletion was tried.
    pub fn finished(&mut self, uid: &PodUid, outcome: &Outcome, now: Instant, jitter: &mut Jitter) {
        let Some(orphan) = self.by_uid.get_mut(uid) else { return };
        orphan.in_flight = false;
        orphan.due = match outcome {
            Outcome::Silent => now,
            Outcome::Later(after) => {
                orphan.failures = orphan.failures.saturating_add(1);
                now + after.unwrap_or_default().max(jitter.pause(ANSWERED, orphan.failures))
            }
            _ => now + AGAIN,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_owns_when_it_is_there_to_stay() {
        let of = |json: &str| Facts::of(&NodeState { api_node_json: json.into(), ..NodeState::default() }, 1).owner;
        assert_eq!(of(r#"{"metadata":{"name":"n","uid":"u"}}"#), Some(Owner { name: "n".into(), uid: "u".into() }));
        assert_eq!(of(r#"{"metadata":{"name":"n","uid":"u","deletionTimestamp":"2026-01-01T00:00:00Z"}}"#), None);
        assert_eq!(of(r#"{"metadata":{"name":"n","uid":""}}"#), None);
        assert_eq!(of(""), None);
    }

    #[test]
    fn an_orphan_waits_for_its_pod_and_is_deleted_once_unless_it_stays() {
        let (mut orphans, now, mut jitter) = (Orphans::default(), Instant::now(), Jitter::new(3));
        let named = [OrphanMirror { uid: PodUid::parse("m").unwrap(), namespace: "d".into(), name: "p".into() }];
        orphans.keep(&named, now);
        assert!(orphans.next(now, |_, _| true).is_none() && orphans.due() > Some(now));
        let later = now + BUSY;
        let job = orphans.next(later, |_, _| false).unwrap();
        assert_eq!((job.target.as_ref(), job.name.as_str(), job.namespace.as_str()), (Some(&named[0].uid), "p", "d"));
        assert!(orphans.next(later, |_, _| false).is_none());
        orphans.finished(&named[0].uid, &Outcome::Done, later, &mut jitter);
        orphans.keep(&named, later);
        assert_eq!(orphans.due(), Some(later + AGAIN));
        orphans.keep(&[], later);
        assert_eq!(orphans.due(), None);
    }
}
