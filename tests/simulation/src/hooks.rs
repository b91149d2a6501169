//! Hooks of containers: the commands as the runtime runs them, and what must hold of them.

use std::collections::BTreeMap;
use std::time::Duration;

use bulkhead_simulation_kernel as kernel;
use serde_json::Value;
use tonic::Status;

use crate::checks::{DISTURBED, SYNCING};
use crate::hooks_schedule::{Hook, HookKind};
use crate::schedule::Shape;
use crate::stop::until_ended;
use crate::world::{Container, Shared, State, Told, World};

/// How long what is told of a pod may be behind what is so, where nothing is wrong.
const BEHIND: Duration = Duration::from_secs(5);
/// The least grace that a stop gives, seconds (upstream `pkg/kubelet/kuberuntime` minimumGracePeriodInSeconds).
const LEAST_GRACE: u64 = 2;
/// How far a hook is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Runs,
    /// Who had it run has gone.
    CutOff,
    Ended {
        code: i32,
    },
}

/// One hook of one instance, as it ran last.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// Of kubelet-syncd.
    life: u64,
    began: Duration,
    at: At,
}

/// See the module.
#[derive(Debug, Default)]
pub struct HookRuns {
    /// By container.
    runs: BTreeMap<(String, HookKind), Run>,
    /// In which life of kubelet-syncd containers have started.
    lives: BTreeMap<String, u64>,
}

impl HookRuns {
    fn run(&self, id: &str, kind: HookKind) -> Option<Run> {
        self.runs.get(&(id.to_owned(), kind)).copied()
    }

    /// Whether the container was told to end: its preStop has begun.
    pub fn is_to_end(&self, id: &str) -> bool {
        self.run(id, HookKind::PreStop).is_some()
    }

    /// A container starts.
    pub fn starts(&mut self, id: &str, life: u64) {
        self.lives.insert(id.to_owned(), life);
    }

    fn is_at(&mut self, id: &str, kind: HookKind, at: At) {
        if let Some(run) = self.runs.get_mut(&(id.to_owned(), kind)) {
            run.at = at;
        }
    }
}

/// A hook that runs; without an end it is cut off.
struct Running<'a> {
    shared: &'a Shared,
    id: &'a str,
    kind: HookKind,
    has_ended: bool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            let mut world = self.shared.lock();
            world.tell("runtime", format!("{} of {} is cut off", self.kind.name(), self.id));
            world.hooks.is_at(self.id, self.kind, At::CutOff);
        }
    }
}

/// Runs a hook's command in a container: its exit code.
///
/// # Errors
/// The container does not run.
pub async fn run(shared: &Shared, id: &str, hook: Hook) -> Result<i32, Status> {
    shared.lock().hook_begins(id, hook.kind)?;
    let mut running = Running { shared, id, kind: hook.kind, has_ended: false };
    let lasts = async {
        match hook.lasts {
            Some(lasts) => tokio::time::sleep(Duration::from_millis(lasts)).await,
            None => std::future::pending().await,
        }
    };
    let code = tokio::select! {
        // It goes with its container.
        () = until_ended(shared, id) => 137,
        () = lasts => hook.code,
    };
    running.has_ended = true;
    let mut world = shared.lock();
    world.tell("runtime", format!("{} of {id} ends with {code}", hook.kind.name()));
    world.hooks.is_at(id, hook.kind, At::Ended { code });
    Ok(code)
}

impl World {
    fn shape_of(&self, container: &Container) -> Option<&Shape> {
        self.past.get(container.uid())?.shape.as_ref()
    }

    /// The hook that is a container's command.
    pub fn hook_of(&self, id: &str, command: &[String]) -> Option<Hook> {
        let container = self.containers.get(id)?;
        let mut hooks = self.shape_of(container)?.hooks.get(container.name())?.iter();
        hooks.find(|hook| hook.words() == command).copied()
    }

    fn hook_begins(&mut self, id: &str, kind: HookKind) -> Result<(), Status> {
        let Some(container) = self.containers.get(id).cloned() else {
            return Err(Status::not_found(format!("container {id}: not found")));
        };
        let (now, name, pod) = (kernel::now(), container.name().to_owned(), self.short(container.uid()));
        let what = kind.name();
        if container.state != State::Running {
            self.check_too_late(&container, kind);
            return Err(Status::unknown(format!("container {id} is not running")));
        }
        self.tell("runtime", format!("{what} of {name} ({id}) of {pod} begins"));
        // A later life does not know how far a preStop has come that was cut off, or whose end it has not heard of.
        let before = self.hooks.run(id, kind);
        if before.is_some_and(|before| before.life == self.life || kind == HookKind::PostStart) {
            self.breaks("hook-once", format!("{what} of {name} ({id}) of {pod} begins a second time"));
        }
        let run = Run { life: self.life, began: now, at: At::Runs };
        self.hooks.runs.insert((id.to_owned(), kind), run);
        Ok(())
    }

    /// A hook is asked of a container that does not run any more.
    fn check_too_late(&mut self, container: &Container, kind: HookKind) {
        let now = kernel::now();
        let weather = self.weather;
        let last = [weather.lost_until, weather.late_until, weather.slow_until].into_iter().max().unwrap_or_default();
        let ended = World::wall().saturating_sub(container.finished);
        let is_long_ago = ended > i64::try_from(BEHIND.as_nanos()).unwrap_or(i64::MAX);
        let is_calm = last + DISTURBED < now && !self.is_disturbed(now.saturating_sub(DISTURBED));
        if container.state == State::Exited && is_long_ago && is_calm && !self.back_off.clock_was_set {
            let (name, pod) = (container.name(), self.short(container.uid()));
            let text = format!("{} of {name} of {pod} is asked for, which has ended long ago", kind.name());
            self.breaks("hook-once", text);
        }
    }

    /// Before a container is stopped with so many seconds: its preStop has ended, or has used up the grace period.
    pub(crate) fn check_pre_stop(&mut self, container: &Container, grace: u64) {
        let Some(shape) = self.shape_of(container) else { return };
        if shape.hook(container.name(), HookKind::PreStop).is_none() || shape.grace == 0 {
            return;
        }
        // Its grace period may stand while others end.
        let is_sidecar = shape.init.iter().any(|init| init.name == container.name());
        let is_right = match self.hooks.run(&container.id, HookKind::PreStop).map(|run| run.at) {
            Some(At::Ended { .. }) => true,
            Some(At::Runs) => grace <= LEAST_GRACE || is_sidecar,
            Some(At::CutOff) | None => {
                let now = kernel::now();
                let forced = self.forced.contains(container.uid());
                forced || self.is_disturbed(now.saturating_sub(DISTURBED))
            }
        };
        if !is_right {
            let (name, pod) = (container.name(), self.short(container.uid()));
            let text = format!("{name} of {pod} is stopped with {grace} s, and its preStop has not ended");
            self.breaks("pre-stop-first", text);
        }
    }

    /// Its postStart has ended, and not well.
    fn has_failed(&self, container: &Container) -> bool {
        let run = self.hooks.run(&container.id, HookKind::PostStart);
        run.is_some_and(|run| matches!(run.at, At::Ended { code } if code != 0))
    }

    /// It may be stopped: its postStart has failed, or may not have been asked for as it should be.
    pub fn may_be_stopped_by_hook(&self, container: &Container) -> bool {
        let hook = self.shape_of(container).and_then(|shape| shape.hook(container.name(), HookKind::PostStart));
        match self.hooks.run(&container.id, HookKind::PostStart).map(|run| run.at) {
            _ if hook.is_none() => false,
            None => self.is_disturbed(kernel::now().saturating_sub(DISTURBED)),
            Some(At::Runs) => false,
            Some(At::CutOff) => true,
            Some(At::Ended { .. }) => self.has_failed(container),
        }
    }

    /// Nobody is to be told that it runs: its postStart does, or has failed.
    fn is_starting(&self, container: &Container) -> bool {
        let hook = self.shape_of(container).and_then(|shape| shape.hook(container.name(), HookKind::PostStart));
        if hook.is_none() || container.is_ghost || self.hooks.lives.get(&container.id) != Some(&self.life) {
            return false;
        }
        match self.hooks.run(&container.id, HookKind::PostStart).map(|run| run.at) {
            Some(At::Runs) => true,
            // Who has not heard of the start runs none, and what is to end for its hook may be out of reach.
            None => !self.is_disturbed(container.began.saturating_sub(DISTURBED)),
            Some(At::Ended { code }) if code != 0 => !self.is_disturbed(container.began.saturating_sub(DISTURBED)),
            Some(At::CutOff | At::Ended { .. }) => false,
        }
    }

    /// What kubelet-syncd tells of a pod. Until the new instance is shown the one before it is, and that may be told once more, as for a
    /// sentence for people that has changed: the count of restarts tells which one is meant.
    pub(crate) fn check_starting_told(&mut self, uid: &str, told: &Told) {
        let is_told = |container: &Container| {
            let (name, count) = (container.name(), container.restart_count());
            told.running.contains(name) && told.counts.get(name).is_none_or(|told| *told >= count)
        };
        let wrong = self.running(uid).find(|container| is_told(container) && self.is_starting(container));
        if let Some(name) = wrong.map(|container| container.name().to_owned()).filter(|_| told.worker == SYNCING) {
            let text = format!("{name} of {} is told to run, and its postStart has not succeeded", self.short(uid));
            self.breaks("post-start-first", text);
        }
    }

    /// What the API server has of a pod.
    pub(crate) fn check_starting_written(&mut self, uid: &str, pod: &Value) {
        if pod["metadata"]["deletionTimestamp"].is_string() || self.hooks.lives.is_empty() {
            return;
        }
        let lists = ["initContainerStatuses", "containerStatuses"].into_iter();
        let statuses = lists.flat_map(|list| pod["status"][list].as_array().into_iter().flatten());
        let running = statuses.filter(|status| status["state"]["running"].is_object());
        let wrong = running.into_iter().find_map(|status| {
            let (_, id) = status["containerID"].as_str()?.split_once("://")?;
            let container = self.containers.get(id).filter(|container| container.state == State::Running)?;
            self.is_starting(container).then(|| container.name().to_owned())
        });
        if let Some(name) = wrong {
            let text = format!("{name} of {} is written to run, and its postStart has not succeeded", self.short(uid));
            self.breaks("post-start-first", text);
        }
    }

    /// Once nothing has happened from outside for long: what runs has started well.
    pub(crate) fn check_hooks_end(&mut self) {
        let end = self.end();
        let wrong = self.containers.values().find(|container| {
            let run = self.hooks.run(&container.id, HookKind::PostStart);
            let is_undisturbed = |run: Run| run.life == self.life && !self.is_disturbed(run.began);
            container.state == State::Running
                && self.has_failed(container)
                && run.is_some_and(|run| is_undisturbed(run) && run.began + DISTURBED < end)
        });
        if let Some((name, uid)) = wrong.map(|container| (container.name().to_owned(), container.uid().to_owned())) {
            let text = format!("{name} of {} runs at the end, and its postStart has failed", self.short(&uid));
            self.breaks("failed-hook-ends", text);
        }
    }
}
