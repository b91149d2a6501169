//! Volumes of claims: what kubelet-volnetd has prepared, what the driver has mounted, what the Node's object says of them, and what
//! must hold of them. Both the journal and the mounts outlive whoever made them.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_ipc::volnetd as api;

use crate::node::PODS;
use crate::root_dir::RootDir;
use crate::schedule::Shape;
use crate::volumes_schedule::{Claim, DriverFault};
use crate::world::{Container, World};

/// The driver's name.
pub const DRIVER: &str = "simulated.csi";
/// Its socket below `plugins_registry`.
pub const REGISTRATION: &str = "simulated.csi-reg.sock";

/// As `Node.status.volumesInUse` and `volumesAttached` name a volume.
pub fn unique_name(handle: &str) -> String {
    format!("kubernetes.io/csi/{DRIVER}^{handle}")
}

/// Where the driver is told to publish a volume for a pod.
pub fn target_path(uid: &str, volume: &str) -> String {
    format!("{PODS}/{uid}/volumes/kubernetes.io~csi/{volume}/mount")
}

/// The pod of a path that [`target_path`] has made.
fn pod_of(target: &str) -> &str {
    target.strip_prefix(PODS).and_then(|rest| rest.split('/').nth(1)).unwrap_or_default()
}

/// A watcher of `plugins_registry`.
pub type Watcher = tokio::sync::mpsc::UnboundedSender<Result<api::WatchEvent, tonic::Status>>;

/// See the module.
#[derive(Debug, Default)]
pub struct Volumes {
    /// What the driver has mounted once a node: handles by paths.
    pub staged_at: BTreeMap<String, String>,
    /// And for pods.
    pub published_at: BTreeMap<String, String>,
    /// Volumes that the Node's object names, by handle.
    pub in_use: BTreeSet<String>,
    pub attached: BTreeSet<String>,
    /// Which socket of the driver lies in `plugins_registry`; 0: none.
    pub socket: u64,
    pub watchers: Vec<Watcher>,
    pub faults: Vec<DriverFault>,
}

impl Volumes {
    /// The driver has begun to listen.
    pub fn socket_comes(&mut self) {
        use api::watch_event::Change;
        let was_there = self.socket != 0;
        self.socket += 1;
        let identity = self.socket.to_string();
        self.watchers.retain(|watcher| {
            let removed = !was_there || watcher.send(Ok(event(Change::Removed, REGISTRATION, ""))).is_ok();
            removed && watcher.send(Ok(event(Change::Added, REGISTRATION, &identity))).is_ok()
        });
    }

    /// A watch begins.
    pub fn watch(&mut self, watcher: Watcher) {
        use api::watch_event::Change;
        let identity = self.socket.to_string();
        let there = (self.socket != 0).then(|| event(Change::Added, REGISTRATION, &identity));
        for event in [event(Change::Rescan, "", "")].into_iter().chain(there).chain([event(Change::Listed, "", "")]) {
            // Its other end is the caller's.
            let _ = watcher.send(Ok(event));
        }
        self.watchers.push(watcher);
    }

    fn pods_of<'a>(&'a self, handle: &'a str) -> impl Iterator<Item = &'a str> {
        self.published_at.iter().filter(move |(_, of)| of.as_str() == handle).map(|(target, _)| pod_of(target))
    }

    /// Volumes that are mounted anywhere.
    fn mounted(&self) -> BTreeSet<String> {
        self.staged_at.values().chain(self.published_at.values()).cloned().collect()
    }
}

fn event(change: api::watch_event::Change, name: &str, identity: &str) -> api::WatchEvent {
    api::WatchEvent {
        change: change.into(),
        name: name.to_owned(),
        identity: identity.to_owned(),
        ..Default::default()
    }
}

impl World {
    /// Whether something is published to the pod.
    pub(crate) fn has_volumes(&self, uid: &str) -> bool {
        self.root_dir.has_volumes(uid) || self.volumes.published_at.keys().any(|target| pod_of(target) == uid)
    }

    /// Before a container starts: the volumes of all claims of its pod are there, and it gets them.
    pub(crate) fn check_volumes_first(&mut self, container: &Container, shape: &Shape) {
        let uid = container.uid();
        for claim in &shape.claims {
            let target = target_path(uid, &claim.volume_of(uid));
            let is_there = self.volumes.published_at.contains_key(&target);
            let gets = container.config.mounts.iter().any(|mount| mount.host_path == target);
            if !is_there || !gets {
                let (pod, claim) = (self.short(uid), claim.name());
                let how = if is_there { "without its mount" } else { "before it is published" };
                self.breaks("volumes-first", format!("{} of {pod} starts {how}: claim {claim}", container.name()));
            }
        }
    }

    /// Before the driver does something that nothing on the disk would tell of, were kubelet-volnetd to end now. What is there already
    /// and certain is asked for once more without an intent: nothing comes of it.
    fn check_intent(&mut self, is_known: bool, what: String) {
        if !is_known && self.root_dir.knows_boot() {
            self.breaks(
                "intent-first",
                format!("{what}, and the journal has no intent of it that a power cut would leave"),
            );
        }
    }

    /// Before the driver stages.
    pub(crate) fn check_stage(&mut self, handle: &str, path: &str) {
        let is_there = self.volumes.staged_at.get(path).map(String::as_str) == Some(handle);
        self.check_intent(is_there || RootDir::intends_to_stage(path), format!("{handle} is staged"));
        if !self.volumes.attached.contains(handle) || !self.volumes.in_use.contains(handle) {
            let text = format!("{handle} is staged, and the Node does not name it as attached and in use");
            self.breaks("attached-first", text);
        }
        let other = self.volumes.staged_at.iter().find(|(at, of)| of.as_str() == handle && at.as_str() != path);
        if let Some(other) = other.map(|(at, _)| at.clone()) {
            self.breaks("one-place", format!("{handle} is staged at {path}, and at {other} as well"));
        }
    }

    /// Before the driver publishes.
    pub(crate) fn check_publish(&mut self, handle: &str, staging: &str, target: &str) {
        let is_there = self.volumes.published_at.get(target).map(String::as_str) == Some(handle);
        self.check_intent(is_there || Self::intends(target), format!("{handle} is published"));
        if self.volumes.staged_at.get(staging).map(String::as_str) != Some(handle) {
            self.breaks("stage-first", format!("{handle} is published, and not staged at {staging:?}"));
        }
        let uid = pod_of(target);
        let is_single = handle == Claim::OncePod.volume_of(uid);
        let twice = self
            .volumes
            .published_at
            .iter()
            .find(|(at, of)| of.as_str() == handle && at.as_str() != target && (is_single || pod_of(at) == uid));
        if let Some(other) = twice.map(|(at, _)| at.clone()) {
            self.breaks("one-place", format!("{handle} is published at {target}, and at {other} as well"));
        }
    }

    /// Whether the journal has something of what is to be published there.
    fn intends(target: &str) -> bool {
        let volume = target.strip_suffix("/mount").and_then(|folder| folder.rsplit('/').next()).unwrap_or_default();
        RootDir::intends(pod_of(target), volume)
    }

    /// Before the driver takes a volume back from a pod.
    pub(crate) fn check_unpublish(&mut self, handle: &str, target: &str) {
        self.check_intent(Self::intends(target), format!("{handle} is taken back from a pod"));
        let uid = pod_of(target).to_owned();
        let running = self.running(&uid).next().map(|container| container.name().to_owned());
        if let Some(running) = running.filter(|_| self.volumes.published_at.contains_key(target)) {
            let pod = self.short(&uid);
            self.breaks("volume-in-use", format!("{handle} is taken from {pod} while {running} runs"));
        }
    }

    /// Before the driver takes a volume from the node.
    pub(crate) fn check_unstage(&mut self, handle: &str, path: &str) {
        self.check_intent(RootDir::intends_to_stage(path), format!("{handle} is unstaged"));
        let pods: Vec<String> = self.volumes.pods_of(handle).map(str::to_owned).collect();
        if let Some(uid) = pods.first() {
            let pod = self.short(uid);
            self.breaks("unstage-last", format!("{handle} is unstaged while it is published to {pod}"));
        }
    }

    /// A version of the Node that the server has stored.
    pub(crate) fn check_node(&mut self, node: &serde_json::Value) {
        self.check_conditions(node);
        let prefix = unique_name("");
        let handle = |name: &str| name.strip_prefix(&prefix).map(str::to_owned);
        let list = |key: &str| node["status"][key].as_array().into_iter().flatten();
        let in_use: BTreeSet<String> = list("volumesInUse").filter_map(|name| name.as_str().and_then(handle)).collect();
        self.volumes.attached =
            list("volumesAttached").filter_map(|one| one["name"].as_str().and_then(handle)).collect();
        if self.volumes.in_use == in_use {
            return;
        }
        self.tell("kube-apiserver", format!("has volumes in use: {in_use:?}"));
        let left = self.volumes.mounted().difference(&in_use).next().cloned();
        self.volumes.in_use = in_use;
        if let Some(left) = left {
            self.breaks("in-use-shown", format!("{left} is still mounted, and no more in use by what the Node says"));
        }
    }

    /// Before the controller takes a volume from the node.
    pub(crate) fn check_detach(&mut self, handle: &str) {
        if self.volumes.mounted().contains(handle) {
            self.breaks("detach-last", format!("{handle} is detached, and still mounted"));
        }
    }

    /// Pods that wait for a volume that another one has, as both may at the end.
    pub(crate) fn contested(&self) -> BTreeSet<u64> {
        let claims = self.wanted.values().filter(|wanted| wanted.shape.claims.contains(&Claim::OncePod));
        let versions: BTreeSet<u64> = claims.map(|wanted| wanted.version).collect();
        if versions.len() > 1 { versions } else { BTreeSet::new() }
    }

    /// At the end: what is wanted is published, and nothing else.
    pub(crate) fn check_volumes_end(&mut self) {
        let contested = self.contested();
        let (mut must, mut may) = (BTreeSet::new(), BTreeSet::new());
        for wanted in self.wanted.values() {
            let Some(uid) = wanted.uid.as_deref() else { continue };
            let over = self.told.get(uid).is_some_and(|told| matches!(told.phase.as_str(), "Succeeded" | "Failed"));
            if over {
                continue;
            }
            for claim in &wanted.shape.claims {
                let volume = claim.volume_of(uid);
                let target = target_path(uid, &volume);
                if !contested.contains(&wanted.version) {
                    must.insert((target.clone(), volume.clone()));
                }
                may.insert((target, volume));
            }
        }
        let published: BTreeSet<(String, String)> =
            self.volumes.published_at.iter().map(|(at, of)| (at.clone(), of.clone())).collect();
        let handles = |of: &BTreeSet<(String, String)>| of.iter().map(|(_, handle)| handle.clone()).collect();
        let (must_handles, may_handles): (BTreeSet<String>, BTreeSet<String>) = (handles(&must), handles(&may));
        let staged: BTreeSet<String> = self.volumes.staged_at.values().cloned().collect();
        let disk = self.root_dir.look();
        let at = |((uid, volume), handle): (&(String, String), &String)| (target_path(uid, volume), handle.clone());
        let folders: BTreeSet<(String, String)> = disk.published.iter().map(at).collect();
        let mut wrong = Vec::new();
        let missing = must.difference(&published).map(|(target, _)| format!("nothing is published at {target}"));
        wrong.extend(missing.map(|text| ("volumes-as-desired", text)));
        let intended: BTreeSet<String> = disk.intents.iter().map(|(uid, volume)| target_path(uid, volume)).collect();
        let uncertain = |target: &String| contested.is_empty() && intended.contains(target);
        let uncertain = must.iter().filter(|(target, _)| uncertain(target));
        wrong.extend(uncertain.map(|(target, _)| ("volumes-as-desired", format!("{target} is still uncertain"))));
        let forgotten = intended.iter().filter(|target| !may.iter().any(|(at, _)| at == *target));
        wrong.extend(forgotten.map(|target| ("volumes-gone", format!("the journal still has an intent of {target}"))));
        if may.is_empty() {
            let staging = disk.staging_intents.iter();
            wrong.extend(staging.map(|one| ("volumes-gone", format!("the journal still has an intent of {one}"))));
        }
        for (what, there) in [("published", &published), ("prepared", &folders)] {
            let left = there.difference(&may).map(|(target, _)| format!("{target} is still {what}"));
            wrong.extend(left.map(|text| ("volumes-gone", text)));
        }
        let of_node = [
            ("staged", &staged),
            ("prepared to be staged", &disk.staged),
            ("in use by what the Node says", &self.volumes.in_use),
            ("attached", &self.volumes.attached),
        ];
        for (what, there) in of_node {
            let lacking = must_handles.difference(there).map(|handle| format!("{handle} is not {what}"));
            wrong.extend(lacking.map(|text| ("volumes-as-desired", text)));
            let left = there.difference(&may_handles).map(|handle| format!("{handle} is still {what}"));
            wrong.extend(left.map(|text| ("volumes-gone", text)));
        }
        for (check, text) in wrong {
            self.breaks(check, text);
        }
    }
}
