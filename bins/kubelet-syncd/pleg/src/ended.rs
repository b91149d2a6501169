//! Containers that are known to have ended before the runtime's answers say so.
//!
//! containerd's own events, which are listened to beside the CRI's as well, carry the exit code and the moment: the first that the
//! process has ended, the second also the promise that all output is written. Its CRI side answers "running" until some 20 ms after
//! the second, which comes some 20 ms after the first on an idle node and (measured on two busy cores, 1.6) 170 ms in the median,
//! more than a second in the tenth that waits longest. A process that has ended stays so, and the CRI answers with the same code and
//! moment later: what the first event said is laid over its answers until they agree. Two ends wait for the second event: one whose
//! message is to be taken from the output, and, for a moment, one by SIGKILL, whose reason another event may tell. Meanwhile the
//! runtime may refuse to remove a container that the cache calls exited: who removes, retries.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use bulkhead_cri::{RuntimeEvent, RuntimeEventKind};
use tokio::time::Instant;

use kubelet_model::pod::model::{RunState, RuntimePod};

/// After this the runtime's answers are believed again, whatever the event said. Longer than containerd takes to note an
/// end whose output a surviving process holds open (10 s), so that no container seems to come back.
const BELIEVED_FOR: Duration = Duration::from_secs(60);
/// Far more than can end, and not be agreed upon, in that time.
const ENTRIES_MAX: usize = 1024;
/// The exit code of a process that SIGKILL ended, and how long an event that tells of memory may be behind it.
const KILLED: i32 = 128 + 9;
const MEMORY_TOLD: Duration = Duration::from_millis(30);
/// Upstream's `TerminationMessageFallbackToLogsOnError`.
const FROM_OUTPUT: &str = "FallbackToLogsOnError";

#[derive(Debug, Default)]
pub(super) struct EndedAhead {
    containers: HashMap<Box<str>, Ahead>,
}

#[derive(Debug)]
struct Ahead {
    end: Option<(i32, SystemTime)>,
    /// All output is written.
    complete: bool,
    out_of_memory: bool,
    /// From when on the reason is known.
    from: Instant,
    until: Instant,
}

impl Ahead {
    /// The end as the CRI will tell it, if that can be known already.
    fn known(&self, policy: &str, now: Instant) -> Option<(i32, SystemTime)> {
        let (code, at) = self.end?;
        let needs_output = code != 0 && policy == FROM_OUTPUT;
        let reason_is_known = self.out_of_memory || now >= self.from;
        (self.complete || (reason_is_known && !needs_output)).then_some((code, at))
    }
}

impl EndedAhead {
    /// Takes note of what an event says of an end.
    pub(super) fn note(&mut self, event: &RuntimeEvent, now: Instant) {
        let (end, complete, out_of_memory) = match event.kind {
            // The CRI's own event comes when its answers agree; only containerd's is ahead of them.
            RuntimeEventKind::Exited(Some(exit_code)) if event.pod_uid.is_none() => {
                (Some((exit_code, event.at)), false, false)
            }
            RuntimeEventKind::Finished(exit_code) => (Some((exit_code, event.at)), true, false),
            RuntimeEventKind::OutOfMemory => (None, false, true),
            _ => return,
        };
        self.containers.retain(|_, ahead| now < ahead.until);
        if self.containers.len() >= ENTRIES_MAX {
            return;
        }
        let fresh = Ahead { end: None, complete: false, out_of_memory: false, from: now, until: now };
        let ahead = self.containers.entry(event.id.as_str().into()).or_insert(fresh);
        if let Some((KILLED, _)) = end
            && ahead.end.is_none()
        {
            ahead.from = now + MEMORY_TOLD;
        }
        ahead.end = end.or(ahead.end);
        ahead.complete |= complete;
        ahead.out_of_memory |= out_of_memory;
        ahead.until = now + BELIEVED_FOR;
    }

    /// What the runtime itself answers: where it says that a container has ended, nothing needs to be laid over it.
    pub(super) fn agree(&mut self, pod: &RuntimePod) {
        if !self.containers.is_empty() {
            for container in pod.containers.iter().filter(|c| c.state == RunState::Exited) {
                self.containers.remove(container.id.as_str());
            }
        }
    }

    /// Corrects containers that the runtime still calls running. True if there was one.
    pub(super) fn apply(&mut self, pod: &mut RuntimePod, now: Instant) -> bool {
        let mut applied = false;
        if self.containers.is_empty() {
            return false;
        }
        for container in pod.containers.iter_mut().filter(|c| c.state == RunState::Running) {
            let ahead = self.containers.get(container.id.as_str()).filter(|ahead| now < ahead.until);
            let Some(ahead) = ahead else { continue };
            let Some((exit_code, at)) = ahead.known(&container.termination_message_policy, now) else { continue };
            container.state = RunState::Exited;
            container.exit_code = exit_code;
            container.finished_at = Some(at);
            if container.reason.is_empty() {
                // containerd's own rule for its CRI answer.
                container.reason = match (ahead.out_of_memory, exit_code) {
                    (true, _) => "OOMKilled",
                    (false, 0) => "Completed",
                    (false, _) => "Error",
                }
                .to_owned();
            }
            applied = true;
        }
        applied
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    use bulkhead_cri::v1;

    use crate::mapping;

    fn pod() -> RuntimePod {
        let running = v1::ContainerStatus { id: "c".into(), state: 1, ..Default::default() };
        RuntimePod { containers: vec![mapping::container(&running, "s").unwrap()], ..Default::default() }
    }

    fn event(kind: RuntimeEventKind) -> RuntimeEvent {
        RuntimeEvent { kind, id: "c".into(), pod_uid: None, at: UNIX_EPOCH + Duration::from_secs(7) }
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_is_laid_over_answers_that_are_behind() {
        let (mut ended, now) = (EndedAhead::default(), Instant::now());
        let told = RuntimeEvent { pod_uid: Some("u".into()), ..event(RuntimeEventKind::Exited(Some(3))) };
        ended.note(&told, now);
        assert!(!ended.apply(&mut pod(), now), "the CRI's own event comes with its answer");
        ended.note(&event(RuntimeEventKind::Exited(Some(3))), now);
        let mut output_counts = pod();
        output_counts.containers[0].termination_message_policy = FROM_OUTPUT.into();
        assert!(!ended.apply(&mut output_counts, now), "its output may still be on the way");
        let mut behind = pod();
        assert!(ended.apply(&mut behind, now));
        let container = &behind.containers[0];
        assert_eq!((container.state, container.exit_code, container.reason.as_str()), (RunState::Exited, 3, "Error"));
        assert_eq!(container.finished_at, Some(UNIX_EPOCH + Duration::from_secs(7)));
        assert!(!ended.apply(&mut behind, now), "nothing left to correct");
        assert!(!ended.apply(&mut pod(), now + BELIEVED_FOR), "not for ever");
        ended.note(&event(RuntimeEventKind::Finished(3)), now);
        assert!(ended.apply(&mut output_counts, now));
        ended.agree(&pod());
        assert_eq!(ended.containers.len(), 1, "the runtime is still behind");
        ended.agree(&behind);
        assert!(ended.containers.is_empty(), "it has caught up");
    }

    #[tokio::test(start_paused = true)]
    async fn reasons() {
        let now = Instant::now();
        let reason = |kinds: &[RuntimeEventKind]| {
            let mut ended = EndedAhead::default();
            kinds.iter().for_each(|kind| ended.note(&event(*kind), now));
            let mut pod = pod();
            ended.apply(&mut pod, now);
            pod.containers[0].reason.clone()
        };
        assert_eq!(reason(&[RuntimeEventKind::Finished(0)]), "Completed");
        assert_eq!(reason(&[RuntimeEventKind::OutOfMemory, RuntimeEventKind::Finished(137)]), "OOMKilled");
        assert_eq!(reason(&[RuntimeEventKind::OutOfMemory]), "");
        let exited = |code| RuntimeEventKind::Exited(Some(code));
        assert_eq!(reason(&[exited(0)]), "Completed");
        assert_eq!(reason(&[exited(143)]), "Error");
        assert_eq!(reason(&[exited(KILLED)]), "", "it may have been for memory");
        assert_eq!(reason(&[RuntimeEventKind::OutOfMemory, exited(KILLED)]), "OOMKilled");
        assert_eq!(reason(&[exited(KILLED), RuntimeEventKind::OutOfMemory]), "OOMKilled");
        assert_eq!(reason(&[exited(KILLED), RuntimeEventKind::Finished(KILLED)]), "Error");
        let mut ended = EndedAhead::default();
        ended.note(&event(exited(KILLED)), now);
        let mut later = pod();
        assert!(ended.apply(&mut later, now + MEMORY_TOLD));
        assert_eq!(later.containers[0].reason, "Error", "nothing told of memory in time");
    }

    #[tokio::test(start_paused = true)]
    async fn bounded() {
        let (mut ended, now) = (EndedAhead::default(), Instant::now());
        for n in 0..5000 {
            let event = RuntimeEvent { id: format!("c{n}"), ..event(RuntimeEventKind::Finished(0)) };
            ended.note(&event, now);
        }
        assert_eq!(ended.containers.len(), ENTRIES_MAX);
        ended.note(&event(RuntimeEventKind::Finished(0)), now + BELIEVED_FOR);
        assert_eq!(ended.containers.len(), 1);
    }
}
