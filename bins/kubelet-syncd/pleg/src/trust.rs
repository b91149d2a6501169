//! Whether an open stream of events is one to rely on. A server may open it, never fail and never tell anything, as a proxy does that
//! knows the call and no events (upstream `test/e2e_node/criproxy/proxy_runtime_service.go` GetContainerEvents). That shows once
//! something has happened of which it told nothing; until then an idle node costs no more for the doubt.
//!
//! ```text
//! new --stands--> (untried) --something happened--> (waits) --nothing told in TOLD_WITHIN--> (silent)
//!                                                       a list found what was not told ----^  |
//!                                 (proven) <------------ an event, from any of them ----------+
//! ```
//!
//! Pure, with the clocks passed in.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::relist::{PodLifecycleEvent, PodLifecycleEventKind};
use kubelet_model::pod::model::RuntimePod;

/// An event follows what it tells of at once; a runtime that is slow takes part of a second.
const TOLD_WITHIN: Duration = Duration::from_secs(2);
/// A server that has nothing to say does not tell when it began to listen.
const LISTENS_AFTER: Duration = Duration::from_secs(1);

/// Of one stream, from its opening on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Trust {
    /// It does not stand yet.
    #[default]
    New,
    /// Nothing is known to have happened since that time.
    Untried { from: SystemTime },
    /// Something happened, and an event of it is awaited.
    Waits { until: Instant },
    /// It told nothing of what happened.
    Silent,
    /// It has told an event.
    Proven,
}

impl Trust {
    /// The stream stands.
    pub(super) fn stands(&mut self, now: SystemTime) {
        if *self == Trust::New {
            *self = Trust::Untried { from: now + LISTENS_AFTER };
        }
    }

    /// The stream told an event. True: nobody relied on it any more.
    pub(super) fn told(&mut self) -> bool {
        std::mem::replace(self, Trust::Proven) == Trust::Silent
    }

    /// A look at the pod brought these events to light, whoever asked for it.
    pub(super) fn seen(&mut self, pod: &RuntimePod, events: &[PodLifecycleEvent], now: Instant) {
        if let Trust::Untried { from } = *self
            && events.iter().any(|event| is_since(pod, event, from))
        {
            *self = Trust::Waits { until: now + TOLD_WITHIN };
        }
    }

    /// A list brought something to light that should have been told. True: from now on nobody relies on the stream.
    pub(super) fn missed(&mut self) -> bool {
        match self {
            Trust::Untried { .. } | Trust::Waits { .. } => {
                *self = Trust::Silent;
                true
            }
            Trust::New | Trust::Silent | Trust::Proven => false,
        }
    }

    /// Time has gone by. True: from now on nobody relies on the stream.
    pub(super) fn wait_is_over(&mut self, now: Instant) -> bool {
        self.due().is_some_and(|until| until <= now) && self.missed()
    }

    /// When to ask [`Trust::wait_is_over`].
    pub(super) fn due(&self) -> Option<Instant> {
        match self {
            Trust::Waits { until } => Some(*until),
            Trust::New | Trust::Untried { .. } | Trust::Silent | Trust::Proven => None,
        }
    }

    /// What happens is seen by lists alone.
    pub(super) fn is_silent(&self) -> bool {
        *self == Trust::Silent
    }
}

/// A container was started or ended after that time, by the runtime's clock, which is ours.
fn is_since(pod: &RuntimePod, event: &PodLifecycleEvent, from: SystemTime) -> bool {
    let Some(container) = pod.containers.iter().find(|container| container.id.as_str() == &*event.id) else {
        return false;
    };
    let at = match event.kind {
        PodLifecycleEventKind::ContainerStarted => container.started_at,
        PodLifecycleEventKind::ContainerDied => container.finished_at,
        _ => None,
    };
    at.is_some_and(|at| at >= from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_types::PodUid;
    use kubelet_model::fixtures::container_status;
    use kubelet_model::pod::model::RunState;

    use PodLifecycleEventKind::{ContainerDied, ContainerRemoved, ContainerStarted};

    /// Second of the wall clock.
    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(second)
    }

    /// A pod whose container was started then, and has ended where that is said.
    fn pod(started: u64, finished: Option<u64>) -> RuntimePod {
        let state = if finished.is_some() { RunState::Exited } else { RunState::Running };
        let mut container = container_status("c", state, 0);
        container.started_at = Some(at(started));
        container.finished_at = finished.map(at);
        RuntimePod { containers: vec![container], ..RuntimePod::default() }
    }

    fn event(kind: PodLifecycleEventKind, id: &str) -> PodLifecycleEvent {
        PodLifecycleEvent { uid: PodUid::parse("u").unwrap(), kind, id: id.into() }
    }

    #[test]
    fn what_a_stream_should_have_told() {
        // It stands at 10, and listens from 11 on.
        for (started, finished, kind, id, is_awaited) in [
            (11, None, ContainerStarted, "c-id", true),
            (10, None, ContainerStarted, "c-id", false),
            (5, Some(12), ContainerDied, "c-id", true),
            (5, Some(9), ContainerDied, "c-id", false),
            (5, None, ContainerStarted, "c-id", false),
            (12, None, ContainerStarted, "another", false),
            (12, None, ContainerRemoved, "c-id", false),
        ] {
            let (mut trust, now) = (Trust::default(), Instant::now());
            trust.stands(at(10));
            trust.seen(&pod(started, finished), &[event(kind, id)], now);
            let expected = is_awaited.then(|| now + TOLD_WITHIN);
            assert_eq!(trust.due(), expected, "{started} {finished:?} {kind:?} {id}");
        }
    }

    #[derive(Debug, Clone, Copy)]
    enum Then {
        Stands,
        Starts,
        Told,
        Missed,
        Waits,
    }

    #[test]
    fn who_is_relied_on() {
        use Then::*;
        for (story, is_silent) in [
            (&[][..], false),
            (&[Stands], false),
            (&[Stands, Waits], false),
            (&[Stands, Starts], false),
            (&[Stands, Starts, Waits], true),
            (&[Stands, Starts, Waits, Told], false),
            (&[Stands, Starts, Told, Waits], false),
            (&[Stands, Told, Starts, Waits], false),
            (&[Stands, Told, Missed], false),
            (&[Stands, Missed], true),
            (&[Stands, Starts, Missed], true),
            (&[Stands, Missed, Stands, Starts], true),
            (&[Stands, Missed, Told, Missed], false),
            (&[Starts, Missed, Waits], false),
        ] {
            let (mut trust, mut now) = (Trust::default(), Instant::now());
            for then in story {
                match then {
                    Stands => trust.stands(at(10)),
                    Starts => trust.seen(&pod(20, None), &[event(ContainerStarted, "c-id")], now),
                    Told => drop(trust.told()),
                    Missed => drop(trust.missed()),
                    Waits => {
                        assert!(!trust.wait_is_over(now));
                        now += TOLD_WITHIN;
                        trust.wait_is_over(now);
                    }
                }
            }
            assert_eq!(trust.is_silent(), is_silent, "{story:?}");
        }
    }
}
