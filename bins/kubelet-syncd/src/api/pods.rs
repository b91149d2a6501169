//! The API server as a source of pods: one watch of the pods that are bound to this node.
//!
//! What it delivers first, and after each interruption that cannot be resumed, is everything that exists; before that
//! nothing is known to be gone. A failure changes nothing, and of a pod that exists and cannot be decoded the last copy goes on
//! counting. Mirror pods are never run: they are the API server's copies of static pods.

use std::collections::HashSet;
use std::sync::Arc;

use bulkhead_apiclient::object::Whole;
use bulkhead_apiclient::watch::{Change, List, Scope, watch_whole};
use bulkhead_apiclient::{ApiClient, Lane, ObjectRef};
use bulkhead_ipc::syncd::{ApiObject, MirrorRef};
use bulkhead_types::{NodeName, PodUid};
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kubelet_model::v1::Pod;
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::mirrors::{CopyOf, Mirrors};
use crate::hub::PodHub;
use crate::mirror_pods::MirrorPods;
use crate::sources::{FullName, SetSender, SetSink as _, StaticName};
use crate::start_latency::StartTimes;
use kubelet_model::annotations::CONFIG_MIRROR;

/// What is to be told of the watch itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ApiPods {
    /// It has delivered. Before that "no mirror pod" means "not known".
    pub synced: bool,
    /// Mirror pods whose static pod no manifest names.
    pub unwanted_mirrors: Vec<MirrorRef>,
}

/// Where it goes.
#[derive(Debug)]
pub struct PodSource {
    pub node: NodeName,
    pub sender: SetSender,
    pub hub: Arc<PodHub>,
    pub mirror_pods: Arc<MirrorPods>,
    pub statics: watch::Receiver<Arc<[StaticName]>>,
    pub seen: watch::Sender<ApiPods>,
    pub starts: Arc<StartTimes>,
}

/// The pods that are bound to the node, of all namespaces. Whole: what was noted of their managers is shown.
pub fn changes(client: &ApiClient, node: &NodeName) -> BoxStream<'static, Change<Whole<Pod>>> {
    let scope = Scope { field_selector: format!("spec.nodeName={node}"), ..Scope::default() };
    watch_whole(client, Lane::Main, scope)
}

/// A pod as it was seen, sorted out.
#[derive(Debug)]
enum WatchedPod {
    /// To be run here.
    Pod(PodUid, ApiObject, Box<Pod>),
    Mirror(FullName, ApiObject),
    /// Not ours, or not a pod that can be worked on.
    Nothing,
}

impl PodSource {
    /// Follows the changes until they or the merge end.
    pub async fn run(self, mut changes: BoxStream<'static, Change<Whole<Pod>>>) {
        let mut source = Source { mirrors: Mirrors::default(), known: HashSet::new(), failed: false, parts: self };
        let wanted = source.parts.statics.borrow_and_update().clone();
        let copies = source.mirrors.statics(&wanted);
        source.tell(copies);
        loop {
            tokio::select! {
                change = changes.next() => match change {
                    Some(change) => if !source.take(change).await { return },
                    None => return,
                },
                Ok(()) = source.parts.statics.changed() => {
                    let wanted = source.parts.statics.borrow_and_update().clone();
                    let copies = source.mirrors.statics(&wanted);
                    source.tell(copies);
                }
            }
            source.publish();
        }
    }
}

struct Source {
    parts: PodSource,
    mirrors: Mirrors,
    /// Pods of the API server; not the mirrors.
    known: HashSet<PodUid>,
    failed: bool,
}

impl Source {
    /// False when nobody listens any more. What the server has of a pod is told before the pod itself is wanted.
    async fn take(&mut self, change: Change<Whole<Pod>>) -> bool {
        let failed = matches!(change, Change::Failed(_));
        if std::mem::replace(&mut self.failed, failed) && !failed {
            self.parts.sender.errors(Vec::new());
        }
        match change {
            Change::Restarted(pods) => self.restarted(pods).await,
            Change::Applied(Whole { object, managed_fields }) => match self.sort_out(object) {
                WatchedPod::Pod(uid, object, pod) => {
                    self.parts.hub.set_api(&uid, Some(object));
                    self.parts.hub.keep_managed_fields(&uid, || shown(managed_fields.as_deref()));
                    self.known.insert(uid);
                    self.parts.sender.upsert(*pod).await
                }
                WatchedPod::Mirror(name, object) => {
                    let copy = self.mirrors.upsert(name, object);
                    self.tell(copy);
                    true
                }
                WatchedPod::Nothing => true,
            },
            Change::Deleted(object) => match self.known_uid(&object) {
                Some(uid) => {
                    self.forget(&uid);
                    self.known.remove(&uid);
                    self.parts.sender.remove(uid).await
                }
                None => {
                    let copy = self.mirrors.remove(&(object.namespace, object.name), &object.uid);
                    self.tell(copy);
                    true
                }
            },
            Change::Failed(error) => {
                tracing::debug!("pods could not be watched on the API server: {error}");
                self.parts.sender.errors(vec![error]);
                true
            }
        }
    }

    /// What the pod is to us. How far its start has got is noted on the way: later its status is not at hand any more.
    fn sort_out(&self, pod: Pod) -> WatchedPod {
        if let Some(uid) = pod.metadata.uid.as_deref().and_then(|uid| PodUid::parse(uid).ok())
            && !is_mirror(&pod)
        {
            self.parts.starts.observed(&uid, &pod, jiff::Timestamp::now());
        }
        sort_out(pod, &self.parts.node)
    }

    /// The pod, if it is one of those that are run here.
    fn known_uid(&self, object: &ObjectRef) -> Option<PodUid> {
        PodUid::parse(&object.uid).ok().filter(|uid| self.known.contains(uid))
    }

    /// Nothing is told of a pod any more.
    fn forget(&self, uid: &PodUid) {
        self.parts.hub.set_api(uid, None);
        self.parts.hub.drop_managed_fields(uid);
        self.parts.starts.forget(uid);
    }

    async fn restarted(&mut self, all: List<Whole<Pod>>) -> bool {
        let (mut pods, mut mirrors, mut known) = (Vec::new(), Vec::new(), HashSet::new());
        for Whole { object, managed_fields } in all.objects {
            match self.sort_out(object) {
                WatchedPod::Pod(uid, object, pod) => {
                    self.parts.hub.set_api(&uid, Some(object));
                    self.parts.hub.keep_managed_fields(&uid, || shown(managed_fields.as_deref()));
                    known.insert(uid);
                    pods.push(*pod);
                }
                WatchedPod::Mirror(name, object) => mirrors.push((name, object)),
                WatchedPod::Nothing => {}
            }
        }
        // These are there, too: their last copies stay.
        let mut any_stays = false;
        for object in all.undecodable {
            if let Some(uid) = self.known_uid(&object) {
                any_stays |= known.insert(uid);
            } else {
                let name = (object.namespace, object.name);
                let last = self.mirrors.last(&name, &object.uid).cloned();
                mirrors.extend(last.map(|last| (name, last)));
            }
        }
        let before = std::mem::replace(&mut self.known, known);
        let gone: Vec<PodUid> = before.difference(&self.known).cloned().collect();
        gone.iter().for_each(|uid| self.forget(uid));
        let copies = self.mirrors.set(mirrors);
        self.tell(copies);
        if !self.parts.seen.borrow().synced {
            tracing::info!(pods = pods.len(), "listed the node's pods from the API server");
        }
        self.parts.seen.send_if_modified(|seen| !std::mem::replace(&mut seen.synced, true));
        if any_stays { self.set_but_what_stays(pods, gone).await } else { self.parts.sender.set(pods).await }
    }

    /// The same set one by one, which leaves pods alone that are neither among those nor gone.
    async fn set_but_what_stays(&mut self, pods: Vec<Pod>, gone: Vec<PodUid>) -> bool {
        for uid in gone {
            if !self.parts.sender.remove(uid).await {
                return false;
            }
        }
        for pod in pods {
            if !self.parts.sender.upsert(pod).await {
                return false;
            }
        }
        true
    }

    fn tell(&self, copies: impl IntoIterator<Item = CopyOf>) {
        for (uid, copy) in copies {
            self.parts.mirror_pods.set(&uid, copy.clone());
            self.parts.hub.set_api(&uid, copy);
        }
    }

    fn publish(&self) {
        let unwanted_mirrors: Vec<MirrorRef> = self
            .mirrors
            .unwanted()
            .into_iter()
            .map(|((namespace, name), uid)| MirrorRef { uid, namespace, name })
            .collect();
        self.parts.seen.send_if_modified(|seen| {
            let changed = seen.unwanted_mirrors != unwanted_mirrors;
            if changed {
                seen.unwanted_mirrors = unwanted_mirrors;
            }
            changed
        });
    }
}

fn sort_out(pod: Pod, node: &NodeName) -> WatchedPod {
    let bound_here = pod.spec.as_ref().is_some_and(|s| s.node_name.as_deref() == Some(node.as_str()));
    let uid = pod.metadata.uid.as_deref().map(PodUid::parse);
    let Some(Ok(uid)) = uid.filter(|_| bound_here) else {
        tracing::warn!(
            namespace = pod.metadata.namespace,
            name = pod.metadata.name,
            "the API server sent a pod of another node, or one without a usable uid: ignored"
        );
        return WatchedPod::Nothing;
    };
    let object = api_object(&pod);
    if object.mirror_hash.is_empty() && !is_mirror(&pod) {
        return WatchedPod::Pod(uid, object, Box::new(compact(pod)));
    }
    WatchedPod::Mirror((pod.metadata.namespace.unwrap_or_default(), pod.metadata.name.unwrap_or_default()), object)
}

/// A pod's managedFields for those who show them. None also for what no typed decoder takes: whoever shows pods would stumble over
/// it.
fn shown(managed_fields: Option<&RawValue>) -> Option<Vec<u8>> {
    let entries: Vec<ManagedFieldsEntry> = serde_json::from_str(managed_fields?.get()).ok()?;
    serde_json::to_vec(&entries).ok()
}

fn is_mirror(pod: &Pod) -> bool {
    pod.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(CONFIG_MIRROR))
}

/// What others are told of the server's copy.
fn api_object(pod: &Pod) -> ApiObject {
    let meta = &pod.metadata;
    let hash = meta.annotations.as_ref().and_then(|a| a.get(CONFIG_MIRROR));
    let status = pod.status.as_ref().and_then(|status| serde_json::to_vec(status).ok());
    ApiObject {
        uid: meta.uid.clone().unwrap_or_default(),
        resource_version: meta.resource_version.clone().unwrap_or_default(),
        status_json: status.unwrap_or_default(),
        deleting: meta.deletion_timestamp.is_some(),
        generation: meta.generation.unwrap_or_default(),
        mirror_hash: hash.cloned().unwrap_or_default(),
    }
}

/// The one typed copy that is kept: without what nobody here reads, and without the slack that decoding leaves in its
/// lists and texts (a clone has none).
fn compact(mut pod: Pod) -> Pod {
    pod.metadata.self_link = None;
    pod.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::file::NoManifests;
    use crate::sources::uids::Forgetful;
    use crate::sources::{PodOp, PodUpdate, Sources, SourcesConfig};
    use serde_json::json;

    fn pod(uid: &str, name: &str, node: &str, mirror: Option<&str>) -> Whole<Pod> {
        let annotations = mirror.map(|hash| json!({ CONFIG_MIRROR: hash }));
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"uid": uid, "name": name, "namespace": "default", "resourceVersion": "7", "generation": 2,
                "annotations": annotations, "managedFields": [{"manager": "m"}]},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}, "status": {"phase": "Pending"}}))
        .unwrap()
    }

    fn object(uid: &str, name: &str) -> ObjectRef {
        ObjectRef { namespace: "default".into(), name: name.into(), uid: uid.into() }
    }

    fn uid(text: &str) -> PodUid {
        PodUid::parse(text).unwrap()
    }

    struct World {
        sources: Sources,
        updates: tokio::sync::mpsc::Receiver<PodUpdate>,
        hub: Arc<PodHub>,
        mirror_pods: Arc<MirrorPods>,
        seen: watch::Receiver<ApiPods>,
        statics: watch::Sender<Arc<[StaticName]>>,
        changes: tokio::sync::mpsc::UnboundedSender<Change<Whole<Pod>>>,
    }

    fn world() -> World {
        let node = NodeName::parse("n").unwrap();
        let config =
            SourcesConfig { node: node.clone().into(), file: None, http: None, api: true, running: Vec::new() };
        let (sources, updates) = Sources::start(config, NoManifests, Box::new(Forgetful), Arc::new(|_| {}));
        let (hub, mirror_pods) = (Arc::new(PodHub::default()), Arc::new(MirrorPods::default()));
        let (seen_sender, seen) = watch::channel(ApiPods::default());
        let (statics, static_names) = watch::channel(Arc::default());
        let (changes, incoming) = tokio::sync::mpsc::unbounded_channel();
        let source = PodSource {
            node,
            sender: sources.api_sender().unwrap(),
            hub: hub.clone(),
            mirror_pods: mirror_pods.clone(),
            statics: static_names,
            seen: seen_sender,
            starts: StartTimes::register(&prometheus::Registry::new()).unwrap(),
        };
        tokio::spawn(source.run(tokio_stream::wrappers::UnboundedReceiverStream::new(incoming).boxed()));
        World { sources, updates, hub, mirror_pods, seen, statics, changes }
    }

    impl World {
        async fn next(&mut self) -> (PodOp, Vec<String>) {
            let update = self.updates.recv().await.unwrap();
            (update.op, update.pods.iter().map(|p| p.metadata.uid.clone().unwrap()).collect())
        }
    }

    #[tokio::test]
    async fn a_relist_removes_pods_that_are_gone_and_a_failed_one_none() {
        let mut world = world();
        world.changes.send(Change::Failed("refused".into())).unwrap();
        let first = vec![pod("1", "a", "n", None), pod("2", "b", "n", None), pod("9", "z", "other", None)];
        world.changes.send(Change::Restarted(first.into())).unwrap();
        assert_eq!(world.next().await, (PodOp::Add, vec!["1".into(), "2".into()]));
        assert!(world.seen.borrow().synced);
        let copy = world.hub.api(&uid("1")).unwrap();
        assert_eq!((copy.resource_version.as_str(), copy.generation, copy.deleting), ("7", 2, false));
        assert_eq!(copy.status_json, br#"{"phase":"Pending"}"#);
        assert_eq!(world.hub.managed_fields(&uid("1")).as_deref(), Some(&br#"[{"manager":"m"}]"#[..]));

        // Nothing at all follows from an interruption; the relist after it knows better than we do.
        world.changes.send(Change::Failed("away".into())).unwrap();
        let second = vec![pod("2", "b", "n", None), pod("3", "c", "n", None)];
        world.changes.send(Change::Restarted(second.into())).unwrap();
        assert_eq!(world.next().await, (PodOp::Remove, vec!["1".into()]));
        assert_eq!(world.next().await, (PodOp::Add, vec!["3".into()]));
        assert!(world.hub.api(&uid("1")).is_none() && world.hub.api(&uid("3")).is_some());
        assert!(world.hub.managed_fields(&uid("1")).is_none());
        assert!(world.sources.states()[0].errors.is_empty(), "it delivers again");

        let mut ending = pod("3", "c", "n", None);
        ending.object.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time("2026-11-21T00:00:00Z".parse().unwrap()));
        world.changes.send(Change::Applied(ending)).unwrap();
        assert_eq!(world.next().await, (PodOp::Delete, vec!["3".into()]));
        assert!(world.hub.api(&uid("3")).unwrap().deleting);
        world.changes.send(Change::Deleted(object("3", "c"))).unwrap();
        assert_eq!(world.next().await, (PodOp::Remove, vec!["3".into()]));
        assert!(world.hub.api(&uid("3")).is_none());
    }

    #[tokio::test]
    async fn a_pod_that_cannot_be_decoded_any_more_stays_until_it_is_gone() {
        let mut world = world();
        let undecodable = |uids: &[&str]| uids.iter().map(|uid| object(uid, &format!("p{uid}"))).collect::<Vec<_>>();
        let pods = |uids: &[&str]| uids.iter().map(|uid| pod(uid, &format!("p{uid}"), "n", None)).collect::<Vec<_>>();
        world.statics.send_replace(Arc::new([StaticName { uid: uid("s"), name: ("default".into(), "pm".into()) }]));
        let mut first = pods(&["1", "2", "3"]);
        first.push(pod("m", "pm", "n", Some("s")));
        // Of pod 8 there was never a copy: it is as if not there, and the source is ready all the same.
        let list = List { objects: first, undecodable: undecodable(&["8"]) };
        world.changes.send(Change::Restarted(list)).unwrap();
        assert_eq!(world.next().await, (PodOp::Add, vec!["1".into(), "2".into(), "3".into()]));
        // Pods 1 and 3 and the mirror exist and cannot be decoded, pod 2 is gone, pod 4 is new.
        let list = List { objects: pods(&["4"]), undecodable: undecodable(&["1", "3", "m", "8"]) };
        world.changes.send(Change::Restarted(list)).unwrap();
        assert_eq!(world.next().await, (PodOp::Remove, vec!["2".into()]));
        assert_eq!(world.next().await, (PodOp::Add, vec!["4".into()]));
        assert!(world.hub.api(&uid("1")).is_some() && world.hub.managed_fields(&uid("1")).is_some());
        assert_eq!(world.mirror_pods.get(&uid("s")).unwrap().uid, "m");
        // One of another uid has taken the name: it is none that is known.
        world.changes.send(Change::Deleted(object("8", "p8"))).unwrap();
        world.changes.send(Change::Deleted(object("1", "p1"))).unwrap();
        assert_eq!(world.next().await, (PodOp::Remove, vec!["1".into()]));
        assert!(world.hub.api(&uid("1")).is_none());
        world.changes.send(Change::Restarted(pods(&["4"]).into())).unwrap();
        assert_eq!(world.next().await, (PodOp::Remove, vec!["3".into()]));
        assert!(world.mirror_pods.get(&uid("s")).is_none());
    }

    #[tokio::test]
    async fn mirrors_are_copies_of_static_pods() {
        let mut world = world();
        world.statics.send_replace(Arc::new([StaticName { uid: uid("s"), name: ("default".into(), "web-n".into()) }]));
        let first = vec![pod("m1", "web-n", "n", Some("s")), pod("m2", "old-n", "n", Some("x"))];
        world.changes.send(Change::Restarted(first.into())).unwrap();
        assert_eq!(world.next().await, (PodOp::Add, vec![]), "mirrors are not run");
        let seen = world.seen.wait_for(|seen| !seen.unwanted_mirrors.is_empty()).await.unwrap().clone();
        assert_eq!(seen.unwanted_mirrors[0].uid, "m2");
        let copy = world.mirror_pods.get(&uid("s")).unwrap();
        assert_eq!((copy.uid.as_str(), copy.mirror_hash.as_str()), ("m1", "s"));
        world.changes.send(Change::Deleted(object("m1", "web-n"))).unwrap();
        world.changes.send(Change::Deleted(object("m2", "old-n"))).unwrap();
        world.seen.wait_for(|seen| seen.unwanted_mirrors.is_empty()).await.unwrap();
        assert!(world.mirror_pods.get(&uid("s")).is_none());
    }

    #[test]
    fn an_empty_mirror_annotation_makes_a_mirror() {
        assert!(matches!(
            sort_out(pod("m", "a", "n", Some("")).object, &NodeName::parse("n").unwrap()),
            WatchedPod::Mirror(..)
        ));
    }

    #[test]
    fn which_managed_fields_are_shown() {
        let shown = |text: &str| shown(Some(&RawValue::from_string(text.to_owned()).unwrap()));
        let whole = pod("m", "a", "n", None);
        assert!(whole.object.metadata.managed_fields.is_none());
        assert_eq!(super::shown(whole.managed_fields.as_deref()).unwrap(), br#"[{"manager":"m"}]"#);
        let deep = format!(r#"[{{"fieldsV1":{}{}}}]"#, r#"{"f:a":"#.repeat(130), "{}".to_owned() + &"}".repeat(130));
        for text in [deep.as_str(), r#"[{"time":"9999-12-31T00:00:00Z"}]"#, "7"] {
            assert_eq!(shown(text), None, "{text}");
        }
        assert_eq!(super::shown(None), None);
    }
}
