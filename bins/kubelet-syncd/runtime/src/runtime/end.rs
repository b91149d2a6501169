//! How one container is ended: it is said, its preStop runs, it waits for its turn, and it is stopped with what is left
//! of its grace period (upstream `kuberuntime_container.go` killContainer, `kuberuntime_termination_order.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use bulkhead_types::ContainerId;
use k8s_openapi::api::core::v1::{ContainerPort, LifecycleHandler};
use kubelet_model::v1::{Container, Pod};
use tokio::sync::watch;

use super::grace_clock::{GraceClock, HeldBack};
use super::kill::with_floor;
use super::ports::{HostFiles, Images};
use super::result::ActionError;
use super::sync::RuntimeManager;
use kubelet_edges::runtime_service::RuntimeService;
use kubelet_model::events::{EventType, PodEvent};
use kubelet_model::pod::model::RuntimePod;
use kubelet_model::pod::spec::{ContainerKind, PodIdentity, host_network};
use kubelet_probes::hooks::run::run;
use kubelet_probes::hooks::{Hook, annotated};

/// A handler, and the ports that it may name.
pub(super) type PreStop = (LifecycleHandler, Vec<ContainerPort>);

/// One end, ready to be made.
pub(super) struct Ending<'a> {
    /// None: nobody can be told of it.
    pub identity: Option<&'a PodIdentity>,
    pub kind: ContainerKind,
    pub name: &'a str,
    pub id: &'a ContainerId,
    /// Message of the event `Killing`; empty is upstream's usual one.
    pub message: &'a str,
    /// Seconds. Without any, no hook runs and no turn is waited for.
    pub grace: i64,
    pub pre_stop: Option<PreStop>,
    /// The pod's primary address.
    pub ip: Option<IpAddr>,
    /// The others that end with it.
    pub turns: Option<&'a Turns>,
}

/// Who has ended, for those that wait for it.
pub(super) struct Turns {
    before: BTreeMap<String, BTreeSet<String>>,
    ended: watch::Sender<BTreeSet<String>>,
    held: HeldBack,
}

impl Turns {
    /// `before`: from [`super::kill::predecessors`]. `held`: for how long the pod's signals are held back.
    pub(super) fn new(before: BTreeMap<String, BTreeSet<String>>, held: &HeldBack) -> Self {
        Turns { before, ended: watch::Sender::new(BTreeSet::new()), held: held.clone() }
    }

    /// Counts the grace period of a container. That of one that waits for others stands while their signals are held back: else it
    /// would be over before they were asked to end. (Of one that waits for nobody it is only its hook's time, which it has had.)
    fn clock(&self, name: &str) -> GraceClock {
        if self.before.contains_key(name) { self.held.clock() } else { HeldBack::default().clock() }
    }

    /// Waits until all that have to end first have ended, at most for the grace period.
    async fn wait(&self, name: &str, grace: i64, clock: &GraceClock) {
        let Some(before) = self.before.get(name) else { return };
        let mut ended = self.ended.subscribe();
        let turn = async {
            // The sender lives in self, so this only ends by success.
            let _ = ended.wait_for(|ended| before.is_subset(ended)).await;
        };
        clock.within(seconds(grace), turn).await;
    }

    fn done(&self, name: &str) {
        self.ended.send_modify(|ended| {
            ended.insert(name.to_owned());
        });
    }
}

fn seconds(grace: i64) -> Duration {
    Duration::from_secs(u64::try_from(grace).unwrap_or(0))
}

/// What is left of a grace period: whole seconds that were waited are gone from it, parts of one are not.
fn less(grace: i64, spent: Duration) -> i64 {
    grace.saturating_sub(i64::try_from(spent.as_secs()).unwrap_or(i64::MAX))
}

/// The container's own preStop hook.
pub(super) fn pre_stop(container: &Container) -> Option<PreStop> {
    let handler = container.lifecycle.as_ref()?.pre_stop.clone()?;
    Some((handler, container.ports.clone().unwrap_or_default()))
}

/// The pod's primary address, where a hook's request goes: the sandbox's, with host network the node's as it is now, and what was
/// told of the pod where neither is known.
pub(super) fn primary_ip(pod: Option<&Pod>, status: &RuntimePod, host_ips: &[IpAddr]) -> Option<IpAddr> {
    let host = host_ips.first().filter(|_| pod.is_some_and(host_network));
    let told = || pod?.status.as_ref()?.pod_ip.as_ref()?.parse().ok();
    status.ips().first().or(host).copied().or_else(told)
}

impl<R: RuntimeService, F: HostFiles, I: Images> RuntimeManager<R, F, I> {
    /// Ends the container; that it is gone already is success. May be cancelled and begun anew at any time: a hook that
    /// was begun goes on, and is not begun again.
    pub(super) async fn end(&self, ending: Ending<'_>) -> Result<(), ActionError> {
        let Ending { name, id, turns, .. } = ending;
        let usual = format!("Stopping container {name}");
        let message = if ending.message.is_empty() { &usual } else { ending.message };
        // With the id in it, no two events would be alike and none could be counted.
        self.say_end(&ending, EventType::Normal, "Killing", &message.replace(id.as_str(), name));
        let clock = || turns.map_or_else(|| HeldBack::default().clock(), |turns| turns.clock(name));
        let mut grace = ending.grace;
        if let Some(pre_stop) = ending.pre_stop.as_ref().filter(|_| grace > 0) {
            let clock = clock();
            self.run_pre_stop(&ending, pre_stop, grace).await;
            grace = less(grace, clock.spent());
        }
        if let Some(turns) = turns.filter(|_| grace > 0) {
            let clock = turns.clock(name);
            turns.wait(name, grace, &clock).await;
            grace = less(grace, clock.spent());
        }
        match self.api.stop_container(id, with_floor(grace)).await {
            Err(error) if !error.is_not_found() => {
                let transient = error.is_unknown_outcome();
                return Err(ActionError { transient, ..ActionError::new("KillContainerError", error.to_string()) });
            }
            _ => {}
        }
        if self.pre_stops.stopped(id) {
            self.say_end(&ending, EventType::Warning, "FailedPreStopHook", "PreStopHook failed");
        }
        if let Some(turns) = turns {
            turns.done(name);
        }
        Ok(())
    }

    async fn run_pre_stop(&self, ending: &Ending<'_>, (handler, ports): &PreStop, grace: i64) {
        let hook = Hook {
            pod: ending.identity.cloned(),
            kind: ending.kind,
            container: ending.name.to_owned(),
            id: ending.id.clone(),
            ports: ports.clone(),
            ip: ending.ip,
            handler: handler.clone(),
        };
        let (api, events) = (self.api.clone(), self.events.clone());
        let run = move |elapsed| async move {
            let Err(failed) = run(&api, &*events, &hook, elapsed).await else { return };
            tracing::warn!(container = hook.container, id = hook.id.as_str(), error = %failed, "preStop hook failed");
            if let Some(pod) = &hook.pod {
                // Nothing of the text: it could hold what the container keeps to itself.
                let (container, text) = ((hook.kind, hook.container.as_str()), "PreStopHook failed");
                events.emit(PodEvent::container(pod, container, EventType::Warning, "FailedPreStopHook", text));
            }
        };
        self.api.unhurried(self.pre_stops.run(ending.id, seconds(grace), (self.clock)(), run)).await;
    }

    /// What the container itself carries of its hook, for a pod that no source names any more.
    pub(super) async fn noted_pre_stop(&self, id: &ContainerId, grace: i64) -> Result<Option<PreStop>, ActionError> {
        if grace <= 0 {
            return Ok(None);
        }
        match self.api.annotations(id).await {
            Ok(annotations) => Ok(annotated::pre_stop(&annotations)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => {
                let transient = error.is_unknown_outcome();
                Err(ActionError { transient, ..ActionError::new("KillContainerError", error.to_string()) })
            }
        }
    }

    fn say_end(&self, ending: &Ending<'_>, kind: EventType, reason: &'static str, message: &str) {
        let Some(identity) = ending.identity else { return };
        self.event(PodEvent::container(identity, (ending.kind, ending.name), kind, reason, message));
    }
}
