//! What drivers say of the room in their volumes (upstream `pkg/volume/csi` csi_metrics.go): asked when somebody wants it, of each
//! driver that can say it (GET_VOLUME_STATS), for each volume that is there.

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
use crate::context::Context;
use crate::spec::{ObjectRef, Source, UniqueName};

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
    /// `None`: its driver does not say, or has not answered.
    pub usage: Option<Usage>,
    /// A folder whose file system's figures are the volume's; empty for a driver's volume.
    pub folder: String,
    /// Whether the driver calls it abnormal; `None`: it does not say, or nobody asked.
    pub abnormal: Option<bool>,
}

/// One question.
#[derive(Debug, Clone)]
struct Question {
    unique: UniqueName,
    answer: VolumeUsage,
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
        for question in self.questions() {
            by_driver.entry(question.driver.clone()).or_default().push(question);
        }
        stream::select_all(by_driver.into_values().map(|questions| self.of_driver(questions)))
    }

    fn of_driver(&self, questions: Vec<Question>) -> BoxStream<'static, VolumeUsage> {
        let (this, silent) = (self.clone(), Arc::new(AtomicBool::new(false)));
        let answered = move |question: Question| {
            let (this, silent) = (this.clone(), silent.clone());
            async move { this.ask(question, &silent).await }
        };
        stream::iter(questions).map(answered).buffer_unordered(AT_A_TIME).boxed()
    }

    fn questions(&self) -> Vec<Question> {
        let state = self.context.state();
        let mut questions = Vec::new();
        for (uid, pod) in &state.desired.pods {
            for (unique, wanted) in &pod.volumes {
                let Some(there) = state.actual.published(unique, uid).filter(|p| p.presence == Presence::Yes) else {
                    continue;
                };
                let claim = wanted.spec.claim.as_ref();
                let claim = claim.map(|c| ObjectRef { namespace: c.namespace.clone(), name: c.name.clone() });
                let (driver, handle, folder) = match &wanted.spec.source {
                    Source::Csi(source) => (source.driver.clone(), source.handle.clone(), String::new()),
                    // The node's own disk (hostPath) has figures of its own.
                    Source::Local { .. } | Source::Nfs { .. } | Source::Fc(_) | Source::Iscsi(_)
                        if !wanted.spec.block =>
                    {
                        (String::new(), String::new(), there.host_path.clone())
                    }
                    Source::Flex(source) if source.can.measure => {
                        (String::new(), String::new(), there.host_path.clone())
                    }
                    Source::Local { .. }
                    | Source::Nfs { .. }
                    | Source::HostPath { .. }
                    | Source::Fc(_)
                    | Source::Iscsi(_)
                    | Source::Flex(_) => continue,
                };
                let Some(path) = asked_path(there, wanted.spec.block, uid) else { continue };
                questions.extend(wanted.names.iter().map(|volume| Question {
                    unique: unique.clone(),
                    answer: VolumeUsage {
                        pod: uid.clone(),
                        volume: volume.clone(),
                        claim: claim.clone(),
                        usage: None,
                        folder: folder.clone(),
                        abnormal: None,
                    },
                    driver: driver.clone(),
                    handle: handle.clone(),
                    path: path.clone(),
                }));
            }
        }
        questions
    }

    /// `silent`: the driver has not answered another question in time.
    async fn ask(&self, question: Question, silent: &AtomicBool) -> VolumeUsage {
        let Question { unique, mut answer, driver, handle, path } = question;
        if driver.is_empty() || silent.load(Ordering::Relaxed) {
            return answer;
        }
        let key = (answer.pod.clone(), unique);
        if !self.asked.lock().insert(key.clone()) {
            return answer;
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
                answer.usage = Some(usage);
                answer.abnormal = condition.as_ref().map(|condition| condition.abnormal);
                if let Some(condition) = condition.filter(|condition| condition.abnormal) {
                    self.say_abnormal(&answer, &condition.message);
                }
            }
            Ok(Err(error)) => {
                tracing::debug!(driver, volume = answer.volume, %error, "no statistics of a volume");
            }
            Err(_) => {
                silent.store(true, Ordering::Relaxed);
                tracing::debug!(driver, volume = answer.volume, "the driver tells no statistics in time");
            }
        }
        answer
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

    #[test]
    fn a_block_volume_is_asked_for_by_its_map() {
        let pod = PodUid::parse("4bb0ec72-4ebc-4585-a543-8b341daf7e02").unwrap();
        let there = |target: &str| Published {
            presence: Presence::Yes,
            spec_name: String::new(),
            host_path: String::new(),
            target_path: target.to_owned(),
            unreadable: false,
            relabel: false,
            found: false,
        };
        let mount = there("/r/pods/p/volumes/kubernetes.io~csi/pvc-1/mount");
        assert_eq!(asked_path(&mount, false, &pod), Some(mount.target_path.clone().into()));
        let block =
            there("/r/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-2/4bb0ec72-4ebc-4585-a543-8b341daf7e02");
        let map = "/r/plugins/kubernetes.io/csi/volumeDevices/pvc-2/dev/4bb0ec72-4ebc-4585-a543-8b341daf7e02";
        assert_eq!(asked_path(&block, true, &pod), Some(map.into()));
        assert_eq!(asked_path(&there("x"), true, &pod), None);
    }
}
