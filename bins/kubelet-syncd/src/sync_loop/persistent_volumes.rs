//! The volumes of a pod that the volume manager mounts: waited for before its first container, and taken back after its last.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kubelet_model::v1::Pod;

use super::view;
use super::work::{PodSyncer, Step, Stop};
use crate::admission;
use crate::pod_workers::{Retry, requeue};
use crate::volumes::VolumeKind;
use crate::volumes::set_up::{Outcomes, Ready};
use kubelet_model::events::EventType;
use kubelet_runtime::runtime::container_config::{MountedVolume, MountedVolumes, VolumeRoot};
use kubelet_runtime::status::pod_status::{Fails, TerminationReason};
use kubelet_volume_manager::{Root, Waiting};

/// Upstream's VolumeAttachmentLimitExceededReason.
const LIMIT_EXCEEDED: &str = "VolumeAttachmentLimitExceeded";
const LIMIT_REACHED: &str = "Node has reached its volume attachment limit, rejecting pod.";

impl PodSyncer {
    /// Waits for those of the pod's volumes that the volume manager mounts. What came of them is put into `outcomes`.
    pub(super) async fn persistent_volumes(&self, pod: &Arc<Pod>, outcomes: &mut Outcomes) -> Step<MountedVolumes> {
        let managed: Vec<&str> = outcomes
            .iter()
            .filter(|(plan, _)| matches!(plan.kind, VolumeKind::Managed { .. }))
            .map(|(plan, _)| plan.name.as_str())
            .collect();
        if managed.is_empty() {
            return Ok(MountedVolumes::new());
        }
        self.why(format!("waits for its volumes: {}", managed.join(", ")));
        let patience = self.node.config.internal.pod_volumes_timeout();
        let found = match self.wait(self.node.volume_manager.wait_for_attach_and_mount(&self.uid, patience)).await? {
            Ok(found) => found,
            Err(waiting) => return Err(self.volumes_missing(pod, waiting).await?),
        };
        for (plan, outcome) in outcomes.iter_mut() {
            if let Some(volume) = found.get(plan.name.as_str()) {
                let host_path = volume.host_path.to_string_lossy().into_owned();
                *outcome = Ok(Ready { host_path, content: None });
            }
        }
        view::volumes(&self.node, &self.uid, outcomes);
        Ok(found.into_iter().map(|(name, volume)| (name, mounted(volume))).collect::<BTreeMap<_, _>>())
    }

    async fn volumes_missing(&self, pod: &Pod, waiting: Waiting) -> Step<Stop> {
        let event = event_of(&waiting);
        let Waiting { text, away, errors, .. } = waiting;
        let why = if errors.is_empty() { text.clone() } else { errors.join("; ") };
        self.why(format!("waits for its volumes: {why}"));
        if away {
            return Ok(Stop::Retry(Retry::PeerAway));
        }
        if self.wait(self.node.volume_manager.limit_reached(&self.uid)).await?.is_some() {
            self.reject(pod, LIMIT_EXCEEDED, format!("{LIMIT_REACHED} {text}"));
            return Ok(Stop::Rejected);
        }
        let Some(retry) = self.node.pods.volumes_failed(&self.uid, &[text], requeue::BACK_OFF) else {
            return Ok(Stop::Cancelled);
        };
        if let Some(message) = event.filter(|_| retry.say) {
            self.event(pod, EventType::Warning, "FailedMount", message);
        }
        Ok(Stop::Retry(next_look(retry.wait)))
    }

    /// The pod that has begun may not go on (upstream `rejectPod` of SyncPod).
    fn reject(&self, pod: &Pod, reason: &'static str, message: String) {
        self.node.metrics.admission.rejections.with_label_values(&[admission::metric_label(reason)]).inc();
        let status = format!("Pod was rejected: {message}");
        let fails = Fails::UntilStopped;
        let termination = TerminationReason { reason: reason.to_owned(), message: status, disruption: None, fails };
        if self.node.pods.terminate_pod(&self.uid, termination) {
            self.event(pod, EventType::Warning, reason, message);
        }
    }

    /// The pod's containers have ended: drivers take its volumes back, before its folder goes.
    pub(super) async fn take_back_volumes(&self) -> Step<()> {
        let manager = &self.node.volume_manager;
        manager.remove_pod(&self.uid);
        match self.wait(manager.wait_for_unmount(&self.uid, Duration::from_secs(1))).await? {
            Ok(()) => return Ok(()),
            Err(left) => self.why(format!("has ended: its volumes are taken back: {left}")),
        }
        let patience = self.node.config.internal.pod_volumes_timeout();
        match self.wait(manager.wait_for_unmount(&self.uid, patience)).await? {
            Ok(()) => Ok(()),
            Err(left) => {
                self.why(format!("has ended: its volumes could not be taken back yet: {left}"));
                tracing::warn!(%left, "failed to unmount volumes of the pod");
                Err(super::work::FAILED)
            }
        }
    }
}

/// What the pod is told of volumes that are missing. Nothing where it has only lasted for too long: operations that failed have said
/// so by themselves (upstream `pkg/kubelet/kubelet.go` SyncPod, wait.Interrupted).
fn event_of(waiting: &Waiting) -> Option<String> {
    (!waiting.timed_out).then(|| format!("Unable to attach or mount volumes: {}", waiting.text))
}

/// After `wait`, which grows, for a claim may be bound in a moment; and then as often as after any other failure.
fn next_look(wait: Duration) -> Retry {
    Retry::Failed { back_off: Some(wait).filter(|wait| *wait < requeue::BACK_OFF) }
}

fn mounted(volume: kubelet_volume_manager::MountedVolume) -> MountedVolume {
    let is_labelled = !matches!(volume.root, Root::Nfs | Root::HostPath);
    let root = match volume.root {
        Root::Csi => VolumeRoot::Plugin("kubernetes.io/csi"),
        Root::Local => VolumeRoot::Plugin("kubernetes.io/local-volume"),
        Root::Fc => VolumeRoot::Plugin("kubernetes.io/fc"),
        Root::Iscsi => VolumeRoot::Plugin("kubernetes.io/iscsi"),
        Root::Nfs => VolumeRoot::Plugin("kubernetes.io/nfs"),
        Root::Flex { driver } => VolumeRoot::Flex { driver },
        Root::HostPath => VolumeRoot::HostPath,
    };
    MountedVolume {
        host_path: volume.host_path,
        read_only: volume.read_only,
        // Upstream has neither an export nor a path of the host relabelled.
        managed: volume.relabel && !volume.read_only && is_labelled,
        root,
        folder: Some(volume.spec_name),
        gid: volume.gid,
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::volumes::back_off::MountBackOff;

    #[test]
    fn a_wait_that_has_lasted_too_long_is_no_event() {
        let waiting = |timed_out| {
            let text = "unmounted volumes=[data]".to_owned();
            Waiting { text, away: false, timed_out, unmounted: vec!["data".to_owned()], errors: Vec::new() }
        };
        assert_eq!(event_of(&waiting(true)), None);
        let message = "Unable to attach or mount volumes: unmounted volumes=[data]";
        assert_eq!(event_of(&waiting(false)).as_deref(), Some(message));
    }

    #[test]
    fn a_claim_that_is_not_bound_is_looked_at_as_often_as_any_pod_that_failed() {
        let mut now = Instant::now();
        let mut back_off = MountBackOff::new(now);
        let mut look = || {
            let retry = back_off.failed(&["unbound".to_owned()], requeue::BACK_OFF, now);
            now += retry.wait;
            assert!(retry.say);
            next_look(retry.wait)
        };
        for expected in [500, 1000, 2000, 4000, 8000] {
            assert_eq!(look(), Retry::Failed { back_off: Some(Duration::from_millis(expected)) });
        }
        for _ in 0..20 {
            assert_eq!(look(), Retry::Failed { back_off: None });
        }
    }
}
