//! The manager with a driver and a kubelet-volnetd that misbehave as told; the time is virtual.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;

use bulkhead_csi::v1 as csi;
use bulkhead_ipc::common::{DestructiveGuard, FlexCapabilities};
use bulkhead_ipc::syncd::ClaimStatus;
use bulkhead_ipc::volnetd as api;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Secret};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use kubelet_edges::csi::CsiError;
use kubelet_edges::volnetd::VolnetdError;
use kubelet_model::events::{EventSink, NodeEvent, ObjectEvent, PodEvent};
use kubelet_model::objects::{ObjectError, Token, TokenWanted};
use parking_lot::Mutex;
use serde_json::json;
use tonic::Status;

use super::*;
use crate::csi::policy::Capabilities;
use crate::metrics::OperationMetrics;
use crate::ports::{Answer, ClaimWriter, ClusterReader, Drivers, Read, Reply, VolumeVerbs};
use crate::selinux::SeLinuxMount;
use crate::spec::CsiSource;
use crate::waiting::Root;

#[path = "manager_expand_tests.rs"]
mod expansion;
#[path = "manager_flex_tests.rs"]
mod flexvolume;
#[path = "manager_found_tests.rs"]
mod found;
#[path = "manager_host_path_tests.rs"]
mod host_path;
#[path = "manager_selinux_tests.rs"]
mod selinux;
#[path = "manager_statistics_tests.rs"]
mod statistics;

/// What a call of the driver does.
#[derive(Debug, Clone)]
enum Does {
    Fail(Status),
    /// It never answers; the edge gives up after two minutes.
    Hang,
    NotRegistered,
}

/// Everything outside: what happened, and what is to happen.
#[derive(Debug)]
struct Outside {
    log: Mutex<Vec<String>>,
    script: Mutex<HashMap<&'static str, VecDeque<Does>>>,
    /// Prepared and not committed, or committed.
    staged: Mutex<BTreeMap<String, (api::CsiDevice, bool)>>,
    published: Mutex<BTreeMap<(String, String), (api::CsiVolumeData, bool)>>,
    disks: Mutex<BTreeSet<String>>,
    /// Whether each CommitPublish was of what a start has found.
    found: Mutex<Vec<bool>>,
    /// What a FlexVolume driver says it can do; the claim's volume is its. `None`: there is none, and the volume is CSI's.
    flex: Mutex<Option<FlexCapabilities>>,
    /// Parts of the claim's volume, which is a path of the host. Null: it is CSI's.
    host_path: Mutex<serde_json::Value>,
    events: Mutex<Vec<String>>,
    epoch: watch::Sender<u64>,
    node: watch::Sender<Option<Arc<Node>>>,
    registered: watch::Sender<u64>,
    /// The driver's object says that a controller attaches its volumes.
    attached: watch::Sender<bool>,
    republish: bool,
    growth: Mutex<Growth>,
    /// What the driver says of its volumes' condition, where it can say it.
    condition: Mutex<Option<csi::VolumeCondition>>,
    selinux: Option<SeLinuxMount>,
    /// Flags of each mount that the driver was asked for.
    flags: Mutex<Vec<String>>,
    /// What was read of claims and volumes.
    reads: Mutex<Vec<&'static str>>,
}

/// Of the claim and its volume, where a test is about their sizes.
#[derive(Debug, Clone, Default)]
struct Growth {
    /// The PersistentVolume's; empty: it says nothing.
    volume: &'static str,
    /// Parts of the claim's status beside its phase.
    status: serde_json::Map<String, serde_json::Value>,
    requests: &'static str,
    expands: bool,
    /// The volume names a secret for it, which is not there.
    secret: bool,
}

const UNIQUE: &str = "kubernetes.io/csi/d^h";

impl Outside {
    fn new() -> Arc<Self> {
        Self::with(false)
    }

    fn with(republish: bool) -> Arc<Self> {
        Self::on(republish, None)
    }

    fn on(republish: bool, selinux: Option<SeLinuxMount>) -> Arc<Self> {
        let node = json!({"metadata": {"name": "n"}, "status": {"volumesInUse": [UNIQUE],
            "volumesAttached": [{"name": UNIQUE, "devicePath": ""}]}});
        Arc::new(Outside {
            log: Mutex::default(),
            script: Mutex::default(),
            staged: Mutex::default(),
            published: Mutex::default(),
            disks: Mutex::default(),
            found: Mutex::default(),
            flex: Mutex::default(),
            host_path: Mutex::default(),
            events: Mutex::default(),
            epoch: watch::Sender::new(1),
            node: watch::Sender::new(Some(Arc::new(serde_json::from_value(node).unwrap()))),
            registered: watch::Sender::new(0),
            attached: watch::Sender::new(true),
            republish,
            growth: Mutex::default(),
            condition: Mutex::default(),
            selinux,
            flags: Mutex::default(),
            reads: Mutex::default(),
        })
    }

    fn say(&self, what: impl Into<String>) {
        self.log.lock().push(what.into());
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().clone()
    }

    fn events(&self) -> Vec<String> {
        self.events.lock().clone()
    }

    fn will(&self, call: &'static str, does: Does) {
        self.script.lock().entry(call).or_default().push_back(does);
    }

    async fn called(&self, call: &'static str) -> Result<(), CsiError> {
        self.say(call);
        let does = self.script.lock().get_mut(call).and_then(VecDeque::pop_front);
        match does {
            None => Ok(()),
            Some(Does::Fail(status)) => Err(CsiError::from(status)),
            Some(Does::NotRegistered) => Err(CsiError::NotRegistered { driver: "d".into() }),
            Some(Does::Hang) => {
                tokio::time::sleep(Duration::from_secs(120)).await;
                Err(CsiError::from(Status::deadline_exceeded("context deadline exceeded")))
            }
        }
    }

    fn manager(self: &Arc<Self>) -> Arc<VolumeManager> {
        self.manager_with(true)
    }

    fn manager_with(self: &Arc<Self>, controller_attaches: bool) -> Arc<VolumeManager> {
        let manager = VolumeManager::start(Ports {
            drivers: Arc::new(End(self.clone())),
            verbs: Arc::new(End(self.clone())),
            reader: Arc::new(End(self.clone())),
            events: Arc::new(End(self.clone())),
            claims: Arc::new(End(self.clone())),
            metrics: OperationMetrics::unregistered().unwrap(),
            node_name: "n".into(),
            controller_attaches,
            selinux: self.selinux.clone(),
        });
        tokio::spawn(report(self.clone(), manager.in_use()));
        manager
    }
}

/// Writes the Node's list where all of it is reported, as kubelet-statusd does.
async fn report(outside: Arc<Outside>, mut in_use: watch::Receiver<InUse>) {
    loop {
        let InUse { names, complete } = in_use.borrow_and_update().clone();
        outside.node.send_if_modified(|node| {
            let Some(node) = node.as_mut().filter(|_| complete) else { return false };
            let status = Arc::make_mut(node).status.get_or_insert_default();
            let listed = (!names.is_empty()).then_some(names);
            let changed = status.volumes_in_use != listed;
            status.volumes_in_use = listed;
            changed
        });
        if in_use.changed().await.is_err() {
            return;
        }
    }
}

/// One of the ends of it.
#[derive(Debug, Clone)]
struct End(Arc<Outside>);

impl End {
    fn note_flags(&self, call: &str, capability: Option<csi::VolumeCapability>) {
        use csi::volume_capability::AccessType;
        if let Some(AccessType::Mount(mount)) = capability.and_then(|capability| capability.access_type) {
            self.0.flags.lock().push(format!("{call} {}", mount.mount_flags.join(",")));
        }
    }
}

impl EventSink for End {
    fn emit(&self, event: PodEvent) {
        self.0.events.lock().push(format!("{} {}", event.reason, event.message));
    }

    fn emit_node(&self, _: NodeEvent) {}

    fn emit_object(&self, event: ObjectEvent) {
        let ObjectEvent { object, reason, message, .. } = event;
        self.0.events.lock().push(format!("{} {}: {reason} {message}", object.kind, object.name));
    }
}

impl ClaimWriter for End {
    fn write(&self, status: ClaimStatus) -> futures_util::future::BoxFuture<'_, Result<(), String>> {
        let ClaimStatus { capacity, resize_status, resize_done, resize_error, .. } = status;
        self.0.say(format!("claim [{capacity}] [{resize_status}] {resize_done} [{resize_error}]"));
        let claim = &mut self.0.growth.lock().status;
        if !capacity.is_empty() {
            claim.insert("capacity".into(), json!({"storage": capacity}));
        }
        let statuses = if resize_status.is_empty() { json!({}) } else { json!({"storage": resize_status}) };
        claim.insert("allocatedResourceStatuses".into(), statuses);
        async { Ok(()) }.boxed()
    }
}

impl Drivers for End {
    fn changes(&self) -> BoxStream<'static, BTreeSet<String>> {
        let next = |mut seen: watch::Receiver<u64>| async move {
            seen.changed().await.ok().map(|()| (BTreeSet::from(["d".to_owned()]), seen))
        };
        futures_util::stream::unfold(self.0.registered.subscribe(), next).boxed()
    }

    fn capabilities<'a>(&'a self, _: &'a str, _: bool) -> Answer<'a, Capabilities> {
        async {
            self.0.called("NodeGetCapabilities").await?;
            let expand = self.0.growth.lock().expands;
            let stats = self.0.script.lock().contains_key("NodeGetVolumeStats");
            let condition = self.0.condition.lock().is_some();
            Ok(Capabilities { stage: true, expand, stats, condition, ..Capabilities::default() })
        }
        .boxed()
    }

    fn stage<'a>(&'a self, _: &'a CsiSource, request: csi::NodeStageVolumeRequest) -> Answer<'a, ()> {
        let lun = self.0.attached.borrow().then_some("3");
        assert_eq!(request.publish_context.get("lun").map(String::as_str), lun);
        self.note_flags("stage", request.volume_capability);
        self.0.called("NodeStageVolume").boxed()
    }

    fn unstage<'a>(&'a self, _: &'a str, _: csi::NodeUnstageVolumeRequest) -> Answer<'a, ()> {
        self.0.called("NodeUnstageVolume").boxed()
    }

    fn publish<'a>(&'a self, _: &'a CsiSource, request: csi::NodePublishVolumeRequest) -> Answer<'a, ()> {
        assert_eq!(request.staging_target_path, "/staging/h");
        self.note_flags("publish", request.volume_capability);
        self.0.called("NodePublishVolume").boxed()
    }

    fn unpublish<'a>(&'a self, _: &'a str, _: csi::NodeUnpublishVolumeRequest) -> Answer<'a, ()> {
        self.0.called("NodeUnpublishVolume").boxed()
    }

    fn expand<'a>(&'a self, _: &'a CsiSource, request: csi::NodeExpandVolumeRequest) -> Answer<'a, i64> {
        assert_eq!((request.volume_path.as_str(), request.staging_target_path.as_str()), ("/target", "/staging/h"));
        self.0.say(format!("to {}", request.capacity_range.unwrap().required_bytes));
        async { self.0.called("NodeExpandVolume").await.map(|()| 0) }.boxed()
    }

    fn stats<'a>(
        &'a self,
        _: &'a str,
        _: csi::NodeGetVolumeStatsRequest,
    ) -> Answer<'a, csi::NodeGetVolumeStatsResponse> {
        async {
            self.0.called("NodeGetVolumeStats").await?;
            let usage = vec![csi::VolumeUsage { total: 7, unit: 1, ..csi::VolumeUsage::default() }];
            Ok(csi::NodeGetVolumeStatsResponse { usage, volume_condition: self.0.condition.lock().clone() })
        }
        .boxed()
    }
}

fn handle(device: Option<&api::CsiDevice>) -> String {
    device.map(|device| device.volume_handle.clone()).unwrap_or_default()
}

impl VolumeVerbs for End {
    fn guard(&self, _: &'static str) -> Result<DestructiveGuard, VolnetdError> {
        Ok(DestructiveGuard::default())
    }

    fn epoch(&self) -> watch::Receiver<u64> {
        self.0.epoch.subscribe()
    }

    fn prepare_stage(&self, request: api::PrepareStageRequest) -> Reply<'_, api::PrepareStageReply> {
        self.0.say("PrepareStage");
        let handle = handle(request.device.as_ref());
        self.0.staged.lock().insert(handle.clone(), (request.device.unwrap_or_default(), false));
        async move { Ok(api::PrepareStageReply { staging_path: format!("/staging/{handle}"), committed_before: false }) }
            .boxed()
    }

    fn commit_stage(&self, request: api::CsiDevice) -> Reply<'_, api::CommitStageReply> {
        self.0.say("CommitStage");
        self.0.staged.lock().insert(request.volume_handle.clone(), (request, true));
        async { Ok(api::CommitStageReply {}) }.boxed()
    }

    fn begin_unstage(&self, _: api::EndStageRequest) -> Reply<'_, api::EndStageReply> {
        self.0.say("BeginUnstage");
        async { Ok(api::EndStageReply {}) }.boxed()
    }

    fn end_stage(&self, request: api::EndStageRequest) -> Reply<'_, api::EndStageReply> {
        self.0.say("EndStage");
        self.0.staged.lock().remove(&handle(request.device.as_ref()));
        async { Ok(api::EndStageReply {}) }.boxed()
    }

    fn prepare_publish(&self, request: api::PreparePublishRequest) -> Reply<'_, api::PreparePublishReply> {
        self.0.say("PreparePublish");
        let data = request.data.unwrap_or_default();
        let key = (request.pod_uid, handle(data.device.as_ref()));
        self.0.published.lock().entry(key).or_insert((data, false));
        async { Ok(api::PreparePublishReply { target_path: "/target".into(), committed_before: false }) }.boxed()
    }

    fn commit_publish(&self, request: api::CommitPublishRequest) -> Reply<'_, api::CommitPublishReply> {
        self.0.say("CommitPublish");
        self.0.found.lock().push(request.found);
        // As a volume of many files.
        let does = self.0.script.lock().get_mut("CommitPublish").and_then(VecDeque::pop_front);
        if let Some(Does::Fail(source)) = does {
            let refused = if source.code() == tonic::Code::Unavailable {
                VolnetdError::Away { verb: "commit_publish", source }
            } else {
                VolnetdError::Refused { verb: "commit_publish", source }
            };
            return async { Err(refused) }.boxed();
        }
        let takes = Duration::from_secs(if request.fs_group == Some(100) { 100 } else { 0 });
        let key = (request.pod_uid, handle(request.device.as_ref()));
        if let Some(published) = self.0.published.lock().get_mut(&key) {
            published.1 = true;
        }
        async move {
            tokio::time::sleep(takes).await;
            Ok(api::CommitPublishReply { host_path: "/target".into(), takes_no_labels: false })
        }
        .boxed()
    }

    fn begin_unpublish(&self, _: api::EndPublishRequest) -> Reply<'_, api::EndPublishReply> {
        self.0.say("BeginUnpublish");
        async { Ok(api::EndPublishReply {}) }.boxed()
    }

    fn end_publish(&self, request: api::EndPublishRequest) -> Reply<'_, api::EndPublishReply> {
        assert_eq!(request.device.as_ref().unwrap().spec_name, "pv");
        self.0.say("EndPublish");
        self.0.published.lock().remove(&(request.pod_uid, handle(request.device.as_ref())));
        async { Ok(api::EndPublishReply {}) }.boxed()
    }

    fn list_staged(&self) -> Reply<'_, Vec<api::StagedVolume>> {
        let staged = self.0.staged.lock().clone();
        let staged = staged.into_values().map(|(device, committed)| api::StagedVolume {
            staging_path: format!("/staging/{}", device.volume_handle),
            device: Some(api::CsiDevice { spec_name: String::new(), ..device }),
            mounted: true,
            uncertain: !committed,
            ..api::StagedVolume::default()
        });
        let staged = staged.collect();
        async { Ok(staged) }.boxed()
    }

    fn list_published(&self) -> Reply<'_, Vec<api::PublishedVolume>> {
        let published = self.0.published.lock().clone();
        let published = published.into_iter().map(|((pod_uid, _), (data, committed))| api::PublishedVolume {
            pod_uid,
            data: Some(data),
            target_path: "/target".into(),
            mounted: true,
            uncertain: !committed,
            ..api::PublishedVolume::default()
        });
        let published = published.collect();
        async { Ok(published) }.boxed()
    }

    fn set_up_local(&self, _: api::SetUpLocalRequest) -> Reply<'_, api::SetUpVolumeReply> {
        async { Ok(api::SetUpVolumeReply { host_path: "/local".into(), ..Default::default() }) }.boxed()
    }

    fn set_up_nfs(&self, request: api::SetUpNfsRequest) -> Reply<'_, api::SetUpVolumeReply> {
        let api::SetUpNfsRequest { volume, server, addresses, path, options, read_only, .. } = request;
        self.0.say(format!("SetUpNfs {volume} {server}:{path} {addresses:?} {options:?} {read_only}"));
        async { Ok(api::SetUpVolumeReply { host_path: "/nfs".into(), ..Default::default() }) }.boxed()
    }

    fn set_up_fc(&self, request: api::SetUpFcRequest) -> Reply<'_, api::SetUpVolumeReply> {
        let api::SetUpFcRequest { volume, disk, fs_type, read_only, .. } = request;
        let disk = disk.unwrap_or_default();
        let name = format!("{}-lun-{}", disk.target_wwns.join("-"), disk.lun);
        self.0.say(format!("SetUpFc {volume} {name} {fs_type} {read_only}"));
        self.0.disks.lock().insert(name);
        async { Ok(api::SetUpVolumeReply { host_path: "/fc".into(), ..Default::default() }) }.boxed()
    }

    fn ask_flex_driver(&self, request: api::AskFlexDriverRequest) -> Reply<'_, api::AskFlexDriverReply> {
        self.0.say(format!("AskFlexDriver {}", request.driver));
        let said = match *self.0.flex.lock() {
            Some(_) if request.driver == "v/off" => Err(Status::aborted("off")),
            None => Err(Status::unavailable("starting")),
            capabilities => Ok(api::AskFlexDriverReply { capabilities }),
        };
        async { said.map_err(|source| flexvolume::refusal("ask_flex_driver", source)) }.boxed()
    }

    fn set_up_flex(&self, request: api::SetUpFlexRequest) -> Reply<'_, api::SetUpFlexReply> {
        self.0.say(flexvolume::shown(&request));
        if request.device.is_some() {
            self.0.disks.lock().insert(format!("{}/{}", request.driver, request.volume));
        }
        let does = self.0.script.lock().get_mut("SetUpFlex").and_then(VecDeque::pop_front);
        async {
            match does {
                Some(Does::Hang) => {
                    tokio::time::sleep(Duration::from_secs(120)).await;
                    Ok(api::SetUpFlexReply::default())
                }
                Some(Does::Fail(source)) => Err(flexvolume::refusal("set_up_flex", source)),
                _ => Ok(api::SetUpFlexReply { host_path: "/flex".into(), relabel: false }),
            }
        }
        .boxed()
    }

    fn set_up_iscsi(&self, request: api::SetUpIscsiRequest) -> Reply<'_, api::SetUpVolumeReply> {
        let disk = request.disk.unwrap_or_default();
        self.0.say(format!("SetUpIscsi {} {:?} {} {}", request.volume, disk.portals, disk.iqn, disk.lun));
        async { Ok(api::SetUpVolumeReply { host_path: "/iscsi".into(), ..Default::default() }) }.boxed()
    }

    fn end_disk(&self, request: api::EndDiskRequest) -> Reply<'_, api::EndDiskReply> {
        let place = request.place.unwrap_or_default();
        self.0.say(format!("EndDisk {}/{}", place.plugin, place.name));
        self.0.disks.lock().remove(&place.name);
        async { Ok(api::EndDiskReply {}) }.boxed()
    }

    fn list_disks(&self) -> Reply<'_, Vec<api::DiskState>> {
        let disks = self.0.disks.lock().clone().into_iter();
        let plugin = |name: &str| if name.contains('/') { "kubernetes.io/flexvolume" } else { "kubernetes.io/fc" };
        let state = |name: String| api::DiskState {
            place: Some(api::DiskPlace { plugin: plugin(&name).into(), name, block: false }),
            in_use: true,
        };
        let disks = disks.map(state).collect();
        async { Ok(disks) }.boxed()
    }

    fn check_host_path(&self, _: api::CheckHostPathRequest) -> Reply<'_, api::SetUpVolumeReply> {
        async { Ok(api::SetUpVolumeReply { host_path: "/host".into(), ..Default::default() }) }.boxed()
    }
}

impl ClusterReader for End {
    fn claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> Read<'a, Arc<PersistentVolumeClaim>> {
        self.0.reads.lock().push("claim");
        let growth = self.0.growth.lock().clone();
        let mut status = growth.status;
        status.insert("phase".into(), json!(if name == "unbound" { "Pending" } else { "Bound" }));
        let mut claim = json!({"metadata": {"name": name, "namespace": namespace, "uid": "cu"},
            "spec": {"volumeName": "pv"}, "status": status});
        if !growth.requests.is_empty() {
            claim["spec"]["resources"] = json!({"requests": {"storage": growth.requests}});
        }
        async move { Ok(Arc::new(serde_json::from_value(claim).unwrap())) }.boxed()
    }

    fn volume<'a>(&'a self, name: &'a str) -> Read<'a, Arc<PersistentVolume>> {
        self.0.reads.lock().push("volume");
        let mut volume = json!({"metadata": {"name": name}, "spec": {"claimRef": {"uid": "cu"},
            "accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "h"}}});
        if self.0.selinux.is_some() {
            volume["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
        }
        if self.0.flex.lock().is_some() {
            let spec = volume["spec"].as_object_mut().unwrap();
            spec.remove("csi");
            spec.insert("flexVolume".into(), json!({"driver": "v/d", "fsType": "xfs"}));
        }
        let Growth { volume: size, secret, .. } = *self.0.growth.lock();
        if !size.is_empty() {
            volume["spec"]["capacity"] = json!({"storage": size});
        }
        if secret {
            volume["spec"]["csi"]["nodeExpandSecretRef"] = json!({"namespace": "kube-system", "name": "s"});
        }
        if !self.0.host_path.lock().is_null() {
            let spec = volume["spec"].as_object_mut().unwrap();
            spec.remove("csi");
            spec.extend(self.0.host_path.lock().as_object().unwrap().clone());
        }
        async move { Ok(Arc::new(serde_json::from_value(volume).unwrap())) }.boxed()
    }

    fn attachment<'a>(&'a self, name: &'a str) -> Read<'a, VolumeAttachment> {
        assert_eq!(name, crate::names::attachment("h", "d", "n"));
        let attachment = json!({"metadata": {"name": name}, "spec": {"attacher": "d", "nodeName": "n", "source": {}},
            "status": {"attached": true, "attachmentMetadata": {"lun": "3"}}});
        async move { Ok(serde_json::from_value(attachment).unwrap()) }.boxed()
    }

    fn secret<'a>(&'a self, _: &'a str, name: &'a str) -> Read<'a, Secret> {
        async move { Err(ObjectError::NotFound(format!("secrets {name:?} not found"))) }.boxed()
    }

    fn token<'a>(&'a self, _: &'a TokenWanted) -> Read<'a, Token> {
        async { Err(ObjectError::Away("none".into())) }.boxed()
    }

    fn driver(&self, name: &str) -> Result<Option<Arc<CSIDriver>>, ObjectError> {
        let driver = json!({"metadata": {"name": name}, "spec": {"requiresRepublish": self.0.republish,
            "attachRequired": *self.0.attached.borrow(), "fsGroupPolicy": "File", "seLinuxMount": true}});
        Ok(Some(Arc::new(serde_json::from_value(driver).unwrap())))
    }

    fn driver_changes(&self) -> BoxStream<'static, ()> {
        let next = |mut seen: watch::Receiver<bool>| async move { seen.changed().await.ok().map(|()| ((), seen)) };
        futures_util::stream::unfold(self.0.attached.subscribe(), next).boxed()
    }

    fn node(&self) -> watch::Receiver<Option<Arc<Node>>> {
        self.0.node.subscribe()
    }
}

fn uid(name: &str) -> PodUid {
    PodUid::parse(name).unwrap()
}

fn pod_of(uid: &str, claim: &str) -> Arc<Pod> {
    let pod = json!({"metadata": {"name": uid, "namespace": "ns", "uid": uid}, "spec": {
        "containers": [{"name": "c", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]}});
    Arc::new(serde_json::from_value(pod).unwrap())
}

const LONG: Duration = Duration::from_secs(1000);

async fn begin(manager: &VolumeManager, name: &str) {
    manager.add_pod(&uid(name), &pod_of(name, "c")).await;
    manager.folders_ready(&uid(name));
}

async fn mount_pod(manager: &VolumeManager, name: &str) {
    begin(manager, name).await;
    let found = manager.wait_for_attach_and_mount(&uid(name), LONG).await.unwrap();
    assert_eq!(found["data"].host_path, PathBuf::from("/target"));
}

const MOUNTED: [&str; 7] = [
    "NodeGetCapabilities",
    "PrepareStage",
    "NodeStageVolume",
    "CommitStage",
    "PreparePublish",
    "NodePublishVolume",
    "CommitPublish",
];

#[tokio::test(start_paused = true)]
async fn a_volume_comes_and_goes() {
    let outside = Outside::new();
    let manager = outside.manager();
    mount_pod(&manager, "a").await;
    assert_eq!(outside.log(), MOUNTED);
    // The second pod of the node has it without another stage.
    mount_pod(&manager, "b").await;
    assert_eq!(outside.log()[7..], ["NodeGetCapabilities", "PreparePublish", "NodePublishVolume", "CommitPublish"]);
    let mut in_use = manager.in_use();
    assert_eq!(*in_use.borrow_and_update(), InUse { names: vec![UNIQUE.into()], complete: true });
    manager.remove_pod(&uid("a"));
    manager.wait_for_unmount(&uid("a"), LONG).await.unwrap();
    assert_eq!(outside.log()[11..], ["BeginUnpublish", "NodeUnpublishVolume", "EndPublish"]);
    manager.remove_pod(&uid("b"));
    manager.wait_for_unmount(&uid("b"), LONG).await.unwrap();
    in_use.wait_for(|in_use| in_use.names.is_empty()).await.unwrap();
    assert_eq!(outside.log()[17..], ["NodeGetCapabilities", "BeginUnstage", "NodeUnstageVolume", "EndStage"]);
    assert!(outside.staged.lock().is_empty() && outside.published.lock().is_empty());
    assert!(outside.events().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_attach_is_awaited_by_event() {
    let outside = Outside::new();
    let attached = outside.node.send_replace(None);
    let manager = outside.manager();
    begin(&manager, "a").await;
    let waiting = manager.wait_for_attach_and_mount(&uid("a"), Duration::from_secs(123)).await.unwrap_err();
    assert_eq!(
        waiting.text,
        "unmounted volumes=[data], unattached volumes=[data], failed to process volumes=[]: context deadline exceeded"
    );
    assert!(waiting.timed_out);
    assert_eq!(*manager.in_use().borrow(), InUse { names: vec![UNIQUE.into()], complete: false });
    let before = Instant::now();
    outside.node.send_replace(attached);
    manager.wait_for_attach_and_mount(&uid("a"), LONG).await.unwrap();
    assert_eq!(before.elapsed(), Duration::ZERO);
}

/// The driver's object comes after the pod, and says that nobody attaches its volumes.
#[tokio::test(start_paused = true)]
async fn what_needs_no_attach_after_all_is_mounted_at_once() {
    let outside = Outside::new();
    outside.node.send_modify(|node| *node = Some(Arc::default()));
    let manager = outside.manager();
    begin(&manager, "a").await;
    manager.wait_for_attach_and_mount(&uid("a"), Duration::from_secs(1)).await.unwrap_err();
    let before = Instant::now();
    outside.attached.send_replace(false);
    manager.wait_for_attach_and_mount(&uid("a"), LONG).await.unwrap();
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert!(manager.in_use().borrow().names.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_not_bound_is_said_at_once() {
    let outside = Outside::new();
    let manager = outside.manager();
    manager.add_pod(&uid("a"), &pod_of("a", "unbound")).await;
    let waiting = manager.wait_for_attach_and_mount(&uid("a"), LONG).await.unwrap_err();
    assert_eq!(
        waiting.text,
        "unmounted volumes=[data], unattached volumes=[], failed to process volumes=[data]: error processing PVC \
         ns/unbound: PVC is not bound"
    );
    assert!(!waiting.away && manager.in_use().borrow().names.is_empty());
}

/// Every call fails for good once, and leaves nothing; it is called again after half a second.
#[tokio::test(start_paused = true)]
async fn refusals_are_said_and_tried_again() {
    for (call, text) in [
        (
            "NodeStageVolume",
            "FailedMount MountVolume.MountDevice failed for volume \"pv\" : rpc error: code = Internal desc = no",
        ),
        (
            "NodePublishVolume",
            "FailedMount MountVolume.SetUp failed for volume \"pv\" : rpc error: code = Internal desc = no",
        ),
        (
            "NodeGetCapabilities",
            "FailedMount MountVolume.MountDevice failed for volume \"pv\" : rpc error: code = Internal desc = no",
        ),
    ] {
        let outside = Outside::new();
        outside.will(call, Does::Fail(Status::internal("no")));
        let (manager, began) = (outside.manager(), Instant::now());
        mount_pod(&manager, "a").await;
        assert_eq!(outside.events(), [text], "{call}");
        let undone = outside.log().contains(&match call {
            "NodeStageVolume" => "EndStage".to_owned(),
            "NodePublishVolume" => "EndPublish".to_owned(),
            _ => "CommitPublish".to_owned(),
        });
        assert!(undone, "{call}: {:?}", outside.log());
        assert!(began.elapsed() >= Duration::from_millis(500) && began.elapsed() < Duration::from_secs(1), "{call}");
    }
}

/// What a call may have done is not taken for undone: it is called again, or, with the pod, its opposite.
#[tokio::test(start_paused = true)]
async fn what_is_uncertain_is_taken_back_with_its_pod() {
    for (call, opposite) in [("NodeStageVolume", "NodeUnstageVolume"), ("NodePublishVolume", "NodeUnpublishVolume")] {
        let outside = Outside::new();
        outside.will(call, Does::Hang);
        let manager = outside.manager();
        begin(&manager, "a").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        manager.remove_pod(&uid("a"));
        manager.wait_for_unmount(&uid("a"), LONG).await.unwrap();
        manager.in_use().wait_for(|in_use| in_use.names.is_empty()).await.unwrap();
        let log = outside.log();
        assert!(log.contains(&opposite.to_owned()), "{call}: {log:?}");
        assert_eq!(log.iter().filter(|line| *line == call).count(), 1, "{log:?}");
        assert!(outside.staged.lock().is_empty() && outside.published.lock().is_empty(), "{call}: {log:?}");
    }
}

/// Upstream UnmountVolume: each pod's call has its own time, and one that hangs holds up no other.
#[tokio::test(start_paused = true)]
async fn a_volume_is_taken_back_from_several_pods_at_a_time() {
    let outside = Outside::new();
    let manager = outside.manager();
    let pods = ["a", "b", "c"];
    for pod in pods {
        mount_pod(&manager, pod).await;
    }
    pods.iter().for_each(|_| outside.will("NodeUnpublishVolume", Does::Hang));
    let began = Instant::now();
    pods.iter().for_each(|pod| manager.remove_pod(&uid(pod)));
    for pod in pods {
        manager.wait_for_unmount(&uid(pod), LONG).await.unwrap();
    }
    // The driver gives up after two minutes, and is asked again after half a second.
    assert_eq!(began.elapsed(), Duration::from_millis(120_500));
    manager.in_use().wait_for(|in_use| in_use.names.is_empty()).await.unwrap();
    assert!(outside.staged.lock().is_empty() && outside.published.lock().is_empty());
}

/// Upstream PodHasMountedVolumes: what is done once a node holds back no pod's end, and is in use until it is taken back.
#[tokio::test(start_paused = true)]
async fn a_pod_goes_while_its_volume_is_staged() {
    let outside = Outside::new();
    outside.will("NodeStageVolume", Does::Hang);
    let manager = outside.manager();
    begin(&manager, "a").await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    manager.remove_pod(&uid("a"));
    let began = Instant::now();
    manager.wait_for_unmount(&uid("a"), LONG).await.unwrap();
    manager.torn_down(&uid("a"));
    assert_eq!(began.elapsed(), Duration::ZERO);
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(manager.in_use().borrow().names, [UNIQUE]);
    manager.in_use().wait_for(|in_use| in_use.names.is_empty()).await.unwrap();
    let log = outside.log();
    assert!(!log.contains(&"PreparePublish".to_owned()) && log.contains(&"NodeUnstageVolume".to_owned()), "{log:?}");
    assert!(outside.staged.lock().is_empty() && outside.events().is_empty());
}

/// What may come to be published to a pod is waited for.
#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_what_is_published_to_it() {
    let outside = Outside::new();
    outside.will("NodePublishVolume", Does::Hang);
    let manager = outside.manager();
    begin(&manager, "a").await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    manager.remove_pod(&uid("a"));
    let left = manager.wait_for_unmount(&uid("a"), Duration::from_secs(90)).await.unwrap_err();
    assert_eq!(left.left, [format!("volume {UNIQUE} is being unmounted")]);
    manager.wait_for_unmount(&uid("a"), LONG).await.unwrap();
    assert!(outside.published.lock().is_empty());
}

/// After a restart of this process a pod's end may be known before what there is of it.
#[tokio::test(start_paused = true)]
async fn a_pod_that_has_ended_before_its_volumes_are_listed() {
    let outside = Outside::new();
    mount_pod(&outside.manager(), "a").await;
    outside.log.lock().clear();
    outside.epoch.send_replace(0);
    let manager = outside.manager();
    manager.remove_pod(&uid("a"));
    tokio::time::sleep(Duration::from_millis(100)).await;
    outside.epoch.send_replace(1);
    manager.wait_for_unmount(&uid("a"), Duration::from_secs(10)).await.unwrap();
    assert!(outside.log().contains(&"NodeUnpublishVolume".to_owned()), "{:?}", outside.log());
}

#[tokio::test(start_paused = true)]
async fn a_hanging_driver_is_said_with_its_deadline() {
    let outside = Outside::new();
    outside.will("NodeStageVolume", Does::Hang);
    let manager = outside.manager();
    mount_pod(&manager, "a").await;
    assert_eq!(
        outside.events(),
        ["FailedMount MountVolume.MountDevice failed for volume \"pv\" : rpc error: code = DeadlineExceeded desc = \
          context deadline exceeded"]
    );
    assert!(!outside.log().contains(&"EndStage".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn unpublish_and_unstage_are_repeated_until_they_are_done() {
    let outside = Outside::new();
    let manager = outside.manager();
    mount_pod(&manager, "a").await;
    for does in [Does::NotRegistered, Does::Hang, Does::Fail(Status::internal("busy"))] {
        outside.will("NodeUnpublishVolume", does.clone());
        outside.will("NodeUnstageVolume", does);
    }
    manager.remove_pod(&uid("a"));
    let left = manager.wait_for_unmount(&uid("a"), Duration::from_millis(100)).await.unwrap_err();
    assert_eq!(
        left.to_string(),
        "UnmountVolume.TearDown failed for volume \"pv\" : kubernetes.io/csi: Unmounter.TearDownAt failed to get CSI \
         client: driver name d not found in the list of registered CSI drivers"
    );
    assert_eq!(manager.in_use().borrow().names, [UNIQUE]);
    manager.wait_for_unmount(&uid("a"), LONG).await.unwrap();
    assert_eq!(manager.in_use().borrow().names, [UNIQUE], "it is staged still");
    manager.in_use().wait_for(|in_use| in_use.names.is_empty()).await.unwrap();
    let count = |call: &str| outside.log().iter().filter(|line| *line == call).count();
    assert_eq!((count("NodeUnpublishVolume"), count("NodeUnstageVolume")), (4, 4));
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_registers_is_called_at_once() {
    let outside = Outside::new();
    (0..8).for_each(|_| outside.will("NodeGetCapabilities", Does::NotRegistered));
    let manager = outside.manager();
    begin(&manager, "a").await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(
        outside.events()[0],
        "FailedMount MountVolume.MountDevice failed for volume \"pv\" : kubernetes.io/csi: attacher.MountDevice failed to \
         create newCsiDriverClient: driver name d not found in the list of registered CSI drivers"
    );
    let began = Instant::now();
    outside.registered.send_modify(|count| *count += 1);
    manager.wait_for_attach_and_mount(&uid("a"), LONG).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

/// Nothing of a pod that nobody has named yet is touched; once it is known to be gone, all of it goes.
#[tokio::test(start_paused = true)]
async fn leftovers_go_when_their_pod_is_known_to_be_gone() {
    let outside = Outside::new();
    mount_pod(&outside.manager(), "a").await;
    let manager = outside.manager();
    tokio::time::sleep(LONG).await;
    assert_eq!(outside.published.lock().len(), 1);
    assert_eq!(manager.in_use().borrow().names, [UNIQUE]);
    manager.retain(|uid| uid.as_str() != "a");
    manager.in_use().wait_for(|in_use| in_use.names.is_empty()).await.unwrap();
    assert!(outside.staged.lock().is_empty() && outside.published.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_wants_it_is_called_with_every_sync() {
    let outside = Outside::with(true);
    let manager = outside.manager();
    mount_pod(&manager, "a").await;
    outside.log.lock().clear();
    outside.will("NodePublishVolume", Does::Fail(Status::internal("no")));
    manager.add_pod(&uid("a"), &pod_of("a", "c")).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    // It fails, the pod keeps what it has, and the driver is called again after the back-off.
    let called = ["NodeGetCapabilities", "PreparePublish", "NodePublishVolume"];
    assert_eq!(outside.log()[..3], called);
    assert_eq!(outside.log()[3..6], called);
    assert_eq!(outside.log()[6..], ["CommitPublish"]);
    manager.wait_for_attach_and_mount(&uid("a"), Duration::ZERO).await.unwrap();
    outside.log.lock().clear();
    manager.add_pod(&uid("a"), &pod_of("a", "c")).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(outside.log()[..3], called);
    assert_eq!(outside.log()[3..], ["CommitPublish"], "once a sync, where it succeeds");
}

/// An inline export: mounted without a word of the API server, and again when the same static pod comes again.
#[tokio::test(start_paused = true)]
async fn an_export_is_mounted_in_each_life_of_a_static_pod() {
    let outside = Outside::new();
    outside.node.send_replace(None);
    let manager = outside.manager();
    let pod = json!({"metadata": {"name": "a", "namespace": "ns", "uid": "a"}, "spec": {
        "containers": [{"name": "c", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}],
        "volumes": [{"name": "data", "nfs": {"server": "10.0.0.1", "path": "/p", "readOnly": true}}]}});
    let pod: Arc<Pod> = Arc::new(serde_json::from_value(pod).unwrap());
    for life in 1..=2 {
        manager.add_pod(&uid("a"), &pod).await;
        manager.folders_ready(&uid("a"));
        let found = manager.wait_for_attach_and_mount(&uid("a"), LONG).await.unwrap();
        let (path, root) = (found["data"].host_path.clone(), found["data"].root.clone());
        assert_eq!((path, root, found["data"].read_only), (PathBuf::from("/nfs"), Root::Nfs, true));
        assert_eq!(outside.log(), vec!["SetUpNfs data 10.0.0.1:/p [\"10.0.0.1\"] [] true"; life]);
        assert_eq!(manager.statistics().all().collect::<Vec<_>>().await[0].folder, "/nfs");
        manager.remove_pod(&uid("a"));
        manager.wait_for_unmount(&uid("a"), LONG).await.unwrap();
        assert!(manager.counts().1.values().all(|count| *count == 0));
    }
    assert!(outside.events().is_empty() && manager.in_use().borrow().names.is_empty());
}

fn pod_with_disk(uid: &str) -> Arc<Pod> {
    let pod = json!({"metadata": {"name": uid, "namespace": "ns", "uid": uid}, "spec": {
        "containers": [{"name": "c", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}],
        "volumes": [{"name": "data", "fc": {"targetWWNs": ["50", "51"], "lun": 1, "fsType": "xfs"}}]}});
    Arc::new(serde_json::from_value(pod).unwrap())
}

/// It stays in the Node's list until it is detached, which is after the last pod's folder has gone; over a restart as well.
#[tokio::test(start_paused = true)]
async fn a_disk_is_detached_after_its_last_pod() {
    const DISK: &str = "kubernetes.io/fc/[50 51]:1";
    let outside = Outside::new();
    let node = json!({"metadata": {"name": "n"}, "status": {"volumesInUse": [DISK],
        "volumesAttached": [{"name": DISK, "devicePath": ""}]}});
    outside.node.send_replace(Some(Arc::new(serde_json::from_value(node).unwrap())));
    let manager = outside.manager();
    manager.add_pod(&uid("a"), &pod_with_disk("a")).await;
    manager.folders_ready(&uid("a"));
    let found = manager.wait_for_attach_and_mount(&uid("a"), LONG).await.unwrap();
    assert_eq!((&found["data"].root, &found["data"].host_path), (&Root::Fc, &PathBuf::from("/fc")));
    assert_eq!(outside.log(), ["SetUpFc data 50-51-lun-1 xfs false"]);
    let mut in_use = manager.in_use();
    let listed = InUse { names: vec![DISK.into()], complete: true };
    in_use.wait_for(|in_use| *in_use == listed).await.unwrap();
    // kubelet-volnetd starts again: the disk is found, and set up for whom it is.
    outside.epoch.send_replace(2);
    manager.wait_for_attach_and_mount(&uid("a"), LONG).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    manager.remove_pod(&uid("a"));
    manager.wait_for_unmount(&uid("a"), LONG).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(*in_use.borrow_and_update(), listed);
    manager.torn_down(&uid("a"));
    in_use.wait_for(|in_use| in_use.names.is_empty()).await.unwrap();
    assert_eq!(outside.log().last().unwrap(), "EndDisk kubernetes.io/fc/50-51-lun-1");
    // A successor that finds one which nobody wants detaches it.
    outside.disks.lock().insert("50-51-lun-1".into());
    outside.log.lock().clear();
    let _successor = outside.manager();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(outside.log(), ["EndDisk kubernetes.io/fc/50-51-lun-1"]);
    assert!(outside.events().is_empty());
}

/// enableControllerAttachDetach: false. Upstream's kubelet attaches what needs nothing for it, and refuses CSI's.
#[tokio::test(start_paused = true)]
async fn a_node_that_attaches_by_itself() {
    let outside = Outside::new();
    let manager = outside.manager_with(false);
    manager.add_pod(&uid("a"), &pod_with_disk("a")).await;
    manager.folders_ready(&uid("a"));
    manager.wait_for_attach_and_mount(&uid("a"), LONG).await.unwrap();
    assert_eq!(outside.events(), ["SuccessfulAttachVolume AttachVolume.Attach succeeded for volume \"data\" "]);
    outside.events.lock().clear();
    begin(&manager, "b").await;
    let waiting = manager.wait_for_attach_and_mount(&uid("b"), Duration::from_secs(2)).await.unwrap_err();
    let refused = "AttachVolume.Attach failed for volume \"pv\" : attaching volumes from the kubelet is not supported";
    let text =
        "unmounted volumes=[data], unattached volumes=[data], failed to process volumes=[]: context deadline exceeded";
    assert_eq!((waiting.text.as_str(), waiting.errors.as_slice()), (text, &[refused.to_owned()][..]));
    let said = outside.events();
    assert!(said.len() > 1 && said.iter().all(|said| *said == format!("FailedAttachVolume {refused}")), "{said:?}");
    assert_eq!(outside.log(), ["SetUpFc data 50-51-lun-1 xfs false"]);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_takes_long_is_said() {
    let outside = Outside::new();
    let manager = outside.manager();
    let mut pod = (*pod_of("a", "c")).clone();
    pod.spec.as_mut().unwrap().security_context = Some(serde_json::from_value(json!({"fsGroup": 100})).unwrap());
    manager.add_pod(&uid("a"), &Arc::new(pod)).await;
    manager.folders_ready(&uid("a"));
    manager.wait_for_attach_and_mount(&uid("a"), LONG).await.unwrap();
    // After 30 s and 90 s of 100.
    let says = "VolumePermissionChangeInProgress Setting volume ownership for a/volumes/kubernetes.io~csi/pv/mount is taking longer \
                than expected, consider using OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods";
    assert_eq!(outside.events(), [says, says]);
}
