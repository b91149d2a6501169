//! A container that ends again and again is started with pauses: after its first restart 10 s pass from its end to the next one, then
//! twice as many, up to five minutes (upstream `pkg/kubelet/kubelet.go` backOffPeriod, MaxCrashLoopBackOff).

use std::collections::BTreeMap;
use std::time::Duration;

use bulkhead_simulation_kernel as kernel;

use crate::world::{Container, World};

const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(300);
/// One that ran for ten minutes begins anew; a start was noted some time before it was there.
const SURELY_NOT_ANEW: Duration = Duration::from_secs(500);
/// The runtime may note an end before it was seen here.
const SLACK: Duration = Duration::from_millis(10);

/// The newest instance of a container.
#[derive(Debug, Clone)]
struct Instance {
    id: String,
    sandbox: String,
    /// Its image and its resources: others begin anew (upstream `pkg/kubelet/kuberuntime/helpers.go` GetBackoffKey).
    made_of: String,
    count: u32,
    /// Restarts that have surely raised the pause, up to its own.
    raised: u32,
    started: Duration,
    ended: Option<Duration>,
    /// Somebody asked for its end.
    was_stopped: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct BackOff {
    /// Pauses are over when the machine's clock says so, and that was set.
    pub clock_was_set: bool,
    /// By uid and name.
    newest: BTreeMap<(String, String), Instance>,
}

/// What has to pass between an end and the next start, after so many restarts that count.
fn pause(raised: u32) -> Duration {
    match raised.checked_sub(1) {
        None => Duration::ZERO,
        Some(doubled) => FIRST.saturating_mul(1 << doubled.min(10)).min(LONGEST),
    }
}

impl BackOff {
    /// A container has ended.
    pub fn ends(&mut self, container: &Container) {
        let key = (container.uid().to_owned(), container.name().to_owned());
        if let Some(instance) = self.newest.get_mut(&key).filter(|instance| instance.id == container.id) {
            (instance.ended, instance.was_stopped) = (Some(kernel::now()), container.is_stopped);
        }
    }

    /// A container starts. `size`: stands for its resources. `disturbed`: when a call last went wrong, so that what was noted of it may
    /// have been taken back. What is too early about it, if anything.
    fn starts(&mut self, container: &Container, size: &str, disturbed: Option<Duration>) -> Option<String> {
        let now = kernel::now();
        let (key, count) = ((container.uid().to_owned(), container.name().to_owned()), container.restart_count());
        let image = container.config.image.as_ref().map(|image| image.image.clone()).unwrap_or_default();
        let made_of = format!("{image} {size}");
        // Without its kept value a pause would be one of another sandbox, another image, or an instance that never ran.
        let before = self.newest.get(&key).filter(|before| {
            before.sandbox == container.sandbox && before.made_of == made_of && before.count + 1 == count
        });
        let (mut raised, mut early) = (0, None);
        if let Some((before, ended)) = before.and_then(|before| Some((before, before.ended?))) {
            let is_sure = disturbed.is_none_or(|at| at < before.started) && !self.clock_was_set;
            let is_anew = ended.saturating_sub(before.started) > SURELY_NOT_ANEW;
            let due = ended + pause(before.raised);
            raised = match (is_sure, before.was_stopped) {
                (false, _) => 0,
                // It is started in the same work, which saw it running (upstream doBackOff).
                (true, true) => before.raised,
                (true, false) if is_anew => 1,
                (true, false) => {
                    early = (now + SLACK < due).then(|| {
                        let after = now.saturating_sub(ended).as_millis();
                        format!("{after} ms after its end, and not {} s", pause(before.raised).as_secs())
                    });
                    before.raised + 1
                }
            };
        }
        let id = container.id.clone();
        let instance = Instance {
            id,
            sandbox: container.sandbox.clone(),
            made_of,
            count,
            raised,
            started: now,
            ended: None,
            was_stopped: false,
        };
        self.newest.insert(key, instance);
        early
    }
}

impl World {
    /// Before a container starts.
    pub fn check_back_off(&mut self, container: &Container) {
        let (disturbed, size) = (self.resources.disturbed(), self.size_mark(container));
        if let Some(early) = self.back_off.starts(container, &size, disturbed) {
            let pod = self.short(container.uid());
            self.breaks("back-off", format!("{} of {pod} starts {early}", container.name()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_five_minutes() {
        let pauses: Vec<u64> = (0..9).map(|raised| pause(raised).as_secs()).collect();
        assert_eq!(pauses, [0, 10, 20, 40, 80, 160, 300, 300, 300]);
    }
}
