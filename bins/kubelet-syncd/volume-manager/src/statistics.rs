//! What drivers say of the room in their volumes (upstream `pkg/volume/csi` csi_metrics.go): asked when somebody wants it, of each
//! driver that can say it (GET_VOLUME_STATS), for each volume that is there. Of block volumes without a driver the size is told.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bulkhead_csi::v1 as csi;
use bulkhead_csi::v1::volume_usage::Unit;
use bulkhead_types::PodUid;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _, stream};
use kubelet_edges::csi::CsiError;
use kubelet_model::events::EventType;
use parking_lot::Mutex;

use crate::actual_state::{Presence, Published};
use crate::block_devices::{self, HeldDevices};
use crate::context::Context;
use crate::spec::{ObjectRef, Source, UniqueName, VolumeSpec};

/// A driver that takes longer has not answered; what hangs is not asked again before it has ended.
const PATIENCE: Duration = Duration::from_secs(10);
/// Volumes of one driver that are asked for at a time.
const AT_A_TIME: usize = 8;

/// Bytes and inodes, as far as the driver says them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub available: Option<i64>,
    pub capacity: Option<i64>,
    pub used: Option<i64>,
    pub inodes_free: Option<i64>,
    pub inodes: Option<i64>,
    pub inodes_used: Option<i64>,
}

/// A volume of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeUsage {
    pub pod: PodUid,
    /// Its name in the pod.
    pub volume: String,
    pub claim: Option<ObjectRef>,
    /// `None`: its driver does not say, or has not answered; a device whose size is not known; or `folder` is to be looked at.
    pub usage: Option<Usage>,
    /// A folder whose file system's figures are the volume's; empty for a driver's volume, and for a block volume.
    pub folder: String,
    /// Whether the driver calls it abnormal; `None`: it does not say, or nobody asked.
    pub abnormal: Option<bool>,
}

/// What is told of one volume of a pod, once for each name that it has there (upstream getMountedVolumes).
type Answers = Vec<VolumeUsage>;

/// Who knows a volume's figures.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Measure {
    /// Its driver, which is asked about that path.
    Driver { driver: String, handle: String, path: PathBuf },
    /// Its file system, which who asks has looked at through that folder.
    Folder(String),
    /// Its device, which is bound there, below the root directory.
    Device(PathBuf),
}

/// A question to a driver.
#[derive(Debug, Clone)]
struct Question {
    unique: UniqueName,
    answers: Answers,
    driver: String,
    handle: String,
    path: PathBuf,
}

/// Asks drivers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Statistics {
    context: Arc<Context>,
    /// Gate CSIVolumeHealth: what drivers say of their volumes' condition is passed on.
    health: bool,
    asked: Arc<Mutex<HashSet<(PodUid, UniqueName)>>>,
}

/// Gives the place back, however the call ends.
struct Asked<'a>(&'a Statistics, (PodUid, UniqueName));

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.0.asked.lock().remove(&self.1);
    }
}

impl Statistics {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Statistics { context, health: false, asked: Arc::default() }
    }

    /// The same, which passes on what drivers say of the condition of their volumes, or does not.
    pub fn with_health(self, health: bool) -> Self {
        Statistics { health, ..self }
    }

    /// All volumes that are there, as their drivers answer: one that takes its time holds up none of the others, and one that has not
    /// answered in time is asked for no further volume.
    pub fn all(&self) -> impl Stream<Item = VolumeUsage> + Send + use<> {
        let mut by_driver: BTreeMap<String, Vec<Question>> = BTreeMap::new();
        let (mut folders, mut devices) = (Vec::new(), Vec::new());
        for (unique, answers, measure) in self.there() {
            match measure {
                Measure::Driver { driver, handle, path } => {
                    let question = Question { unique, answers, driver: driver.clone(), handle, path };
                    by_driver.entry(driver).or_default().push(question);
                }
                Measure::Folder(folder) => {
                    folders.extend(answers.into_iter().map(|answer| VolumeUsage { folder: folder.clone(), ..answer }));
                }
                Measure::Device(bound) => devices.push((answers, bound)),
            }
        }
        let mut all = vec![stream::iter(folders).boxed(), of_devices(devices)];
        all.extend(by_driver.into_values().map(|questions| self.of_driver(questions)));
        stream::select_all(all)
    }

    fn of_driver(&self, questions: Vec<Question>) -> BoxStream<'static, VolumeUsage> {
        let (this, silent) = (self.clone(), Arc::new(AtomicBool::new(false)));
        let answered = move |question: Question| {
            let (this, silent) = (this.clone(), silent.clone());
            async move { this.ask(question, &silent).await }
        };
        stream::iter(questions).map(answered).buffer_unordered(AT_A_TIME).flat_map(stream::iter).boxed()
    }

    /// Each volume that is there, of whose figures somebody knows.
    fn there(&self) -> Vec<(UniqueName, Answers, Measure)> {
        let state = self.context.state();
        let mut all = Vec::new();
        for (uid, pod) in &state.desired.pods {
            for (unique, wanted) in &pod.volumes {
                let there = state.actual.published(unique, uid).filter(|p| p.presence == Presence::Yes);
                let Some(measure) = there.and_then(|there| measure(&wanted.spec, there, uid)) else { continue };
                let claim = wanted.spec.claim.as_ref();
                let claim = claim.map(|c| ObjectRef { namespace: c.namespace.clone(), name: c.name.clone() });
                let answer = |volume: &String| VolumeUsage {
                    pod: uid.clone(),
                    volume: volume.clone(),
                    claim: claim.clone(),
                    usage: None,
                    folder: String::new(),
                    abnormal: None,
                };
                all.push((unique.clone(), wanted.names.iter().map(answer).collect(), measure));
            }
        }
        all
    }

    /// `silent`: the driver has not answered another question in time.
    async fn ask(&self, question: Question, silent: &AtomicBool) -> Answers {
        let Question { unique, mut answers, driver, handle, path } = question;
        let Some(pod) = answers.first().map(|answer| answer.pod.clone()) else { return answers };
        if silent.load(Ordering::Relaxed) {
            return answers;
        }
        let volume = unique.0.clone();
        let key = (pod, unique);
        if !self.asked.lock().insert(key.clone()) {
            return answers;
        }
        let _asked = Asked(self, key);
        let drivers = &self.context.ports.drivers;
        let call = async {
            let can = drivers.capabilities(&driver, false).await?;
            if !can.stats {
                return Ok(None);
            }
            let request = csi::NodeGetVolumeStatsRequest {
                volume_id: handle,
                volume_path: path.to_string_lossy().into_owned(),
                staging_target_path: String::new(),
            };
            let told = drivers.stats(&driver, request).await?;
            let condition = condition(self.health && can.condition, told.volume_condition);
            Ok::<_, CsiError>(Some((usage(&told.usage), condition)))
        };
        match tokio::time::timeout(PATIENCE, call).await {
            Ok(Ok(None)) => {}
            Ok(Ok(Some((usage, condition)))) => {
                for answer in &mut answers {
                    answer.usage = Some(usage);
                    answer.abnormal = condition.as_ref().map(|condition| condition.abnormal);
                    if let Some(condition) = condition.as_ref().filter(|condition| condition.abnormal) {
                        self.say_abnormal(answer, &condition.message);
                    }
                }
            }
            Ok(Err(error)) => {
                tracing::debug!(driver, volume, %error, "no statistics of a volume");
            }
            Err(_) => {
                silent.store(true, Ordering::Relaxed);
                tracing::debug!(driver, volume, "the driver tells no statistics in time");
            }
        }
        answers
    }
}

impl Statistics {
    fn say_abnormal(&self, answer: &VolumeUsage, message: &str) {
        let pod = self.context.state().desired.pods.get(&answer.pod).map(|pod| pod.facts.clone());
        let Some(pod) = pod else { return };
        let message = format!("Volume {}: {message}", answer.volume);
        self.context.event(&pod, EventType::Warning, "VolumeConditionAbnormal", message);
    }
}

/// `None`: nobody knows, or the node's own disk (hostPath) has figures of its own.
fn measure(spec: &VolumeSpec, there: &Published, pod: &PodUid) -> Option<Measure> {
    match &spec.source {
        Source::Csi(source) => {
            let path = asked_path(there, spec.block, pod)?;
            Some(Measure::Driver { driver: source.driver.clone(), handle: source.handle.clone(), path })
        }
        Source::Local { .. } | Source::Nfs { .. } | Source::Fc(_) | Source::Iscsi(_) if spec.block => {
            block_devices::bound(spec, pod).map(Measure::Device)
        }
        Source::Local { .. } | Source::Nfs { .. } | Source::Fc(_) | Source::Iscsi(_) => {
            Some(Measure::Folder(there.host_path.clone()))
        }
        Source::Flex(source) => source.can.measure.then(|| Measure::Folder(there.host_path.clone())),
        Source::HostPath { .. } => None,
    }
}

/// Block volumes with the sizes of their devices, which are looked for all at once, and only if there are such volumes.
fn of_devices(volumes: Vec<(Answers, PathBuf)>) -> BoxStream<'static, VolumeUsage> {
    if volumes.is_empty() {
        return stream::empty().boxed();
    }
    let sized = async move {
        let held = tokio::task::spawn_blocking(HeldDevices::read).await.unwrap_or_default();
        let sized = move |(answers, bound): (Answers, PathBuf)| {
            let capacity = held.bytes(&bound);
            let usage = capacity.is_some().then(|| Usage { capacity, ..Usage::default() });
            answers.into_iter().map(move |answer| VolumeUsage { usage, ..answer })
        };
        stream::iter(volumes.into_iter().flat_map(sized))
    };
    stream::once(sized).flatten().boxed()
}

/// What the driver is told: where it published the volume; of a block volume the device in the volume's map.
fn asked_path(there: &Published, block: bool, pod: &PodUid) -> Option<PathBuf> {
    let target = Path::new(&there.target_path);
    if !block {
        return Some(target.to_owned());
    }
    // plugins/kubernetes.io/csi/volumeDevices/publish/<volume>/<pod> -> .../volumeDevices/<volume>/dev/<pod>
    let of_volume = target.parent()?;
    let devices = of_volume.parent()?.parent()?;
    Some(devices.join(of_volume.file_name()?).join("dev").join(pod.as_str()))
}

/// `is_told`: the gate is on, and the driver can tell its volumes' condition. If it says nothing then, the volume is well (upstream
/// `pkg/volume/csi/csi_client.go`, NodeGetVolumeStats).
fn condition(is_told: bool, told: Option<csi::VolumeCondition>) -> Option<csi::VolumeCondition> {
    is_told.then(|| told.unwrap_or_default())
}

/// Of what the driver does not say nothing is shown.
fn usage(told: &[csi::VolumeUsage]) -> Usage {
    let mut usage = Usage::default();
    for one in told {
        match Unit::try_from(one.unit) {
            Ok(Unit::Bytes) => {
                (usage.available, usage.capacity, usage.used) = (Some(one.available), Some(one.total), Some(one.used));
            }
            Ok(Unit::Inodes) => {
                (usage.inodes_free, usage.inodes, usage.inodes_used) =
                    (Some(one.available), Some(one.total), Some(one.used));
            }
            Ok(Unit::Unknown) | Err(_) => {
                tracing::debug!(unit = one.unit, "a driver tells of a unit that is not known");
            }
        }
    }
    usage
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{FcSource, FlexCan, FlexSource, IscsiSource};

    #[test]
    fn units_are_told_apart() {
        let one = |unit: i32, available, total, used| csi::VolumeUsage { available, total, used, unit };
        assert_eq!(usage(&[]), Usage::default());
        assert_eq!(
            usage(&[one(1, 60, 100, 40), one(2, 7, 10, 3), one(9, 1, 1, 1)]),
            Usage {
                available: Some(60),
                capacity: Some(100),
                used: Some(40),
                inodes_free: Some(7),
                inodes: Some(10),
                inodes_used: Some(3),
            }
        );
    }

    #[test]
    fn a_driver_that_can_tell_a_condition_and_does_not_calls_the_volume_well() {
        let ill = csi::VolumeCondition { abnormal: true, message: "bad blocks".into() };
        assert_eq!(condition(true, Some(ill.clone())), Some(ill.clone()));
        assert_eq!(condition(true, None), Some(csi::VolumeCondition::default()));
        assert_eq!((condition(false, Some(ill)), condition(false, None)), (None, None));
    }

    fn there(target: &str) -> Published {
        Published {
            presence: Presence::Yes,
            spec_name: String::new(),
            host_path: "/r/pods/p/volumes/x/pv".into(),
            target_path: target.to_owned(),
            unreadable: false,
            relabel: false,
            found: false,
        }
    }

    #[test]
    fn who_knows_a_volume_s_figures() {
        let pod = PodUid::parse("p").unwrap();
        let local = Source::Local { path: "/dev/sdb".into(), fs_type: String::new() };
        let nfs = Source::Nfs { server: "s".into(), path: "/".into() };
        let host_path = Source::HostPath { path: "/".into(), kind: String::new() };
        let flex = |measure| {
            let can = FlexCan { measure, ..FlexCan::default() };
            Source::Flex(FlexSource { can, ..FlexSource::default() })
        };
        let (folder, device) = (Some("folder"), Some("device"));
        for (source, of_files, of_block) in [
            (local, folder, device),
            (Source::Iscsi(IscsiSource::default()), folder, device),
            (Source::Fc(FcSource::default()), folder, None),
            (nfs, folder, None),
            (flex(true), folder, folder),
            (flex(false), None, None),
            (host_path, None, None),
        ] {
            let of = |block: bool| {
                let spec = VolumeSpec { block, ..VolumeSpec::inline("pv".into(), source.clone()) };
                measure(&spec, &there(""), &pod)
            };
            let name = |measure: Option<Measure>| {
                measure.map(|measure| match measure {
                    Measure::Driver { .. } => "driver",
                    Measure::Folder(_) => "folder",
                    Measure::Device(_) => "device",
                })
            };
            assert_eq!((name(of(false)), name(of(true))), (of_files, of_block), "{source:?}");
        }
    }

    #[tokio::test]
    async fn a_block_volume_without_a_device_has_no_figures() {
        let answer = VolumeUsage {
            pod: PodUid::parse("p").unwrap(),
            volume: "raw".into(),
            claim: None,
            usage: None,
            folder: String::new(),
            abnormal: None,
        };
        let told: Vec<VolumeUsage> =
            of_devices(vec![(vec![answer.clone()], "plugins/nowhere/p".into())]).collect().await;
        assert_eq!(told, [answer]);
    }

    #[test]
    fn a_block_volume_is_asked_for_by_its_map() {
        let pod = PodUid::parse("4bb0ec72-4ebc-4585-a543-8b341daf7e02").unwrap();
        let mount = there("/r/pods/p/volumes/kubernetes.io~csi/pvc-1/mount");
        assert_eq!(asked_path(&mount, false, &pod), Some(mount.target_path.clone().into()));
        let block =
            there("/r/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-2/4bb0ec72-4ebc-4585-a543-8b341daf7e02");
        let map = "/r/plugins/kubernetes.io/csi/volumeDevices/pvc-2/dev/4bb0ec72-4ebc-4585-a543-8b341daf7e02";
        assert_eq!(asked_path(&block, true, &pod), Some(map.into()));
        assert_eq!(asked_path(&there("x"), true, &pod), None);
    }
}
