//! Containers that are known to have ended before the runtime's answers say so.
//!
//! containerd's own event of the end carries the exit code, the moment, and the promise that all output is written; its
//! CRI side answers "running" for some 20 ms more. What the event said is laid over such answers until they agree. So
//! for that time the runtime may refuse to remove a container that the cache calls exited: who removes, retries.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use bulkhead_cri::{RuntimeEvent, RuntimeEventKind};
use tokio::time::Instant;

use crate::runtime::model::{RunState, RuntimePod};

/// After this the runtime's answers are believed again, whatever the event said.
const BELIEVED_FOR: Duration = Duration::from_secs(3);
/// Far more than can end in that time.
const ENTRIES_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct EndedAhead {
    containers: HashMap<Box<str>, Ahead>,
}

#[derive(Debug)]
struct Ahead {
    end: Option<(i32, SystemTime)>,
    out_of_memory: bool,
    until: Instant,
}

impl EndedAhead {
    /// Takes note of what an event says of an end.
    pub(super) fn note(&mut self, event: &RuntimeEvent, now: Instant) {
        let (end, out_of_memory) = match event.kind {
            RuntimeEventKind::Finished(exit_code) => (Some((exit_code, event.at)), false),
            RuntimeEventKind::OutOfMemory => (None, true),
            _ => return,
        };
        self.containers.retain(|_, ahead| now < ahead.until);
        if self.containers.len() >= ENTRIES_MAX {
            return;
        }
        let fresh = Ahead { end: None, out_of_memory: false, until: now };
        let ahead = self.containers.entry(event.id.as_str().into()).or_insert(fresh);
        ahead.end = end.or(ahead.end);
        ahead.out_of_memory |= out_of_memory;
        ahead.until = now + BELIEVED_FOR;
    }

    /// Corrects containers that the runtime still calls running. True if there was one.
    pub(super) fn apply(&mut self, pod: &mut RuntimePod, now: Instant) -> bool {
        let mut applied = false;
        if self.containers.is_empty() {
            return false;
        }
        for container in pod.containers.iter_mut().filter(|c| c.state == RunState::Running) {
            let ahead = self.containers.get(container.id.as_str()).filter(|ahead| now < ahead.until);
            let Some(Ahead { end: Some((exit_code, at)), out_of_memory, .. }) = ahead else { continue };
            container.state = RunState::Exited;
            container.exit_code = *exit_code;
            container.finished_at = Some(*at);
            if container.reason.is_empty() {
                // containerd's own rule for its CRI answer.
                container.reason = match (out_of_memory, exit_code) {
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

    use crate::pleg::mapping;

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
        ended.note(&event(RuntimeEventKind::Exited(Some(1))), now);
        assert!(!ended.apply(&mut pod(), now), "its output may still be on the way");
        ended.note(&event(RuntimeEventKind::Finished(3)), now);
        let mut behind = pod();
        assert!(ended.apply(&mut behind, now));
        let container = &behind.containers[0];
        assert_eq!((container.state, container.exit_code, container.reason.as_str()), (RunState::Exited, 3, "Error"));
        assert_eq!(container.finished_at, Some(UNIX_EPOCH + Duration::from_secs(7)));
        assert!(!ended.apply(&mut behind, now), "nothing left to correct");
        assert!(!ended.apply(&mut pod(), now + BELIEVED_FOR), "not for ever");
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
