//! Random pods and random misfortunes; what must hold all the time, and what must have come of it once all is calm.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::machine::Fault;
use super::world::World;
use crate::pod_workers::Lifecycle;
use kubelet_model::fixtures::{UID, uid};
use kubelet_model::pod::model::{RunState, SandboxState};
use kubelet_model::pod::restart::may_restart;
use kubelet_model::pod::spec::{containers, init_containers, is_sidecar};
use kubelet_probes::prober::results::ProbeResult;
use kubelet_runtime::status::next::is_over;

/// Something that happens. Numbers choose among what is there.
#[derive(Debug, Clone)]
enum Event {
    Work,
    Time(u64),
    Exit(usize, i32),
    OutOfMemory(usize),
    Lose(usize),
    Doubt(usize),
    SandboxDies(bool),
    Startup(usize, bool),
    Unhealthy(usize),
    Image(usize),
    Debug,
    Delete(i64),
    Remove,
    Restart,
    Fault(usize, Fault),
    Publish,
    Collect,
    Housekeep,
}

fn any_event() -> impl Strategy<Value = Event> {
    let fault = prop_oneof![Just(Fault::Refused), Just(Fault::AnswerLost), Just(Fault::Death)];
    let code = prop_oneof![3 => Just(0), 3 => Just(1), 2 => Just(42), 2 => Just(88)];
    prop_oneof![
        12 => Just(Event::Work),
        6 => prop_oneof![Just(1u64), Just(11), Just(100), Just(700)].prop_map(Event::Time),
        12 => (any::<usize>(), code).prop_map(|(which, code)| Event::Exit(which, code)),
        1 => any::<usize>().prop_map(Event::OutOfMemory),
        2 => any::<usize>().prop_map(Event::Lose),
        1 => any::<usize>().prop_map(Event::Doubt),
        3 => any::<bool>().prop_map(Event::SandboxDies),
        5 => (any::<usize>(), prop::bool::weighted(0.7)).prop_map(|(which, good)| Event::Startup(which, good)),
        2 => any::<usize>().prop_map(Event::Unhealthy),
        2 => any::<usize>().prop_map(Event::Image),
        1 => Just(Event::Debug),
        1 => (0i64..40).prop_map(Event::Delete),
        1 => Just(Event::Remove),
        3 => Just(Event::Restart),
        4 => (0usize..12, fault).prop_map(|(calls, fault)| Event::Fault(calls, fault)),
        5 => Just(Event::Publish),
        2 => Just(Event::Collect),
        2 => Just(Event::Housekeep),
    ]
}

fn any_regular() -> impl Strategy<Value = Value> {
    let rule = |action: &str, code: i32| json!([{"action": action, "exitCodes": {"operator": "In", "values": [code]}}]);
    let own = prop_oneof![
        6 => Just(json!({})),
        1 => Just(json!({"restartPolicy": "Always"})),
        1 => Just(json!({"restartPolicy": "OnFailure"})),
        1 => Just(json!({"restartPolicy": "Never"})),
        2 => Just(json!({"restartPolicy": "Never", "restartPolicyRules": rule("Restart", 42)})),
        1 => Just(json!({"restartPolicy": "Never", "restartPolicyRules": rule("RestartAllContainers", 88)})),
    ];
    (own, any::<bool>()).prop_map(|(mut container, probed)| {
        if probed {
            container["livenessProbe"] = json!({"exec": {"command": ["true"]}});
        }
        container
    })
}

fn any_init() -> impl Strategy<Value = Value> {
    let probe = json!({"exec": {"command": ["true"]}});
    prop_oneof![
        3 => Just(json!({})),
        1 => Just(json!({"restartPolicy": "OnFailure"})),
        2 => Just(json!({"restartPolicy": "Always"})),
        2 => Just(json!({"restartPolicy": "Always", "startupProbe": probe.clone()})),
        1 => Just(json!({"restartPolicy": "Always", "livenessProbe": probe})),
    ]
}

fn named(list: Vec<Value>, prefix: &str) -> Value {
    let name = |(index, mut container): (usize, Value)| {
        // Some names end in a letter: those end well when they are stopped.
        container["name"] = json!(format!("{prefix}{index}{}", if index % 2 == 1 { "a" } else { "" }));
        container["image"] = json!("i");
        container
    };
    list.into_iter().enumerate().map(name).collect()
}

/// A pod that failures print in one line.
#[derive(Clone)]
struct Given(kubelet_model::v1::Pod);

impl std::fmt::Debug for Given {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&serde_json::to_string(&self.0.spec).unwrap())
    }
}

prop_compose! {
    fn any_pod()(
        policy in prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")],
        init in prop::collection::vec(any_init(), 0..4),
        regular in prop::collection::vec(any_regular(), 1..4),
    ) -> Given {
        Given(serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": UID,
                         "annotations": {"kubernetes.io/config.source": "api"}},
            "spec": {"restartPolicy": policy, "terminationGracePeriodSeconds": 5, "enableServiceLinks": true,
                     "initContainers": named(init, "i"), "containers": named(regular, "c")},
        })).unwrap())
    }
}

impl World {
    fn pick(&self, which: usize, wanted: impl Fn(&str) -> bool) -> Option<kubelet_model::pod::model::ContainerStatus> {
        let machine = self.reach.machine();
        let all: Vec<_> = machine.living().filter(|c| wanted(&c.name)).cloned().collect();
        all.get(which.checked_rem(all.len())?).cloned()
    }

    fn has_startup_probe(&self, name: &str) -> bool {
        init_containers(&self.pod).iter().any(|c| c.name == name && c.startup_probe.is_some())
    }

    fn happens(&mut self, event: &Event) {
        match event {
            Event::Work => self.settle(),
            Event::Time(seconds) => {
                self.reach.machine().seconds += seconds;
                self.settle();
            }
            Event::Exit(which, code) => {
                if let Some(one) = self.pick(*which, |_| true) {
                    self.reach.machine().exit(&one.id, *code, "");
                    self.event();
                }
            }
            Event::OutOfMemory(which) => {
                if let Some(one) = self.pick(*which, |_| true) {
                    self.reach.machine().exit(&one.id, 0, "OOMKilled");
                    self.event();
                }
            }
            Event::Lose(which) => {
                let all: Vec<_> = self.reach.machine().runtime.containers.iter().map(|c| c.id.clone()).collect();
                if let Some(id) = which.checked_rem(all.len()).map(|at| &all[at]) {
                    self.reach.machine().lose(id);
                    self.event();
                }
            }
            Event::Doubt(which) => {
                if let Some(one) = self.pick(*which, |_| true) {
                    let mut machine = self.reach.machine();
                    machine.doubtful.insert(one.id.clone());
                    machine.unsure.insert(one.name.clone());
                    for status in machine.runtime.containers.iter_mut().filter(|c| c.id == one.id) {
                        status.state = RunState::Unknown;
                    }
                    drop(machine);
                    self.event();
                }
            }
            Event::SandboxDies(all) => {
                self.reach.machine().sandbox_dies(*all);
                self.event();
            }
            Event::Startup(which, good) => {
                if let Some(one) = self.pick(*which, |name| self.has_startup_probe(name)) {
                    self.startup(&one, *good);
                }
            }
            Event::Unhealthy(which) => {
                if let Some(one) = self.pick(*which, |_| true) {
                    self.probes.liveness.insert(one.id, ProbeResult::Failure);
                    self.deliver(crate::pod_workers::UpdateType::Sync);
                }
            }
            Event::Image(which) => self.changed(|pod| {
                let spec = pod.spec.as_mut().unwrap();
                let all = spec.containers.len();
                let image = format!("i{which}");
                spec.containers[which % all].image = Some(image);
            }),
            Event::Debug => self.changed(|pod| {
                let list = pod.spec.as_mut().unwrap().ephemeral_containers.get_or_insert_default();
                let name = format!("e{}", list.len());
                list.push(serde_json::from_value(json!({"name": name, "image": "i"})).unwrap());
            }),
            Event::Delete(grace) => self.changed(|pod| {
                let at = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
                pod.metadata.deletion_timestamp.get_or_insert(at);
                let shortest = pod.metadata.deletion_grace_period_seconds.map_or(*grace, |old| old.min(*grace));
                pod.metadata.deletion_grace_period_seconds = Some(shortest);
            }),
            Event::Remove => self.remove(),
            Event::Restart => self.restart(),
            Event::Fault(calls, fault) => self.fails_after(*calls, *fault),
            Event::Publish => self.publish(),
            Event::Collect => self.collect(),
            Event::Housekeep => self.housekeep(),
        }
    }

    fn startup(&mut self, one: &kubelet_model::pod::model::ContainerStatus, good: bool) {
        if one.state != RunState::Running {
            return;
        }
        let result = if good { ProbeResult::Success } else { ProbeResult::Failure };
        self.probes.startup.insert(one.id.clone(), result);
        if good {
            self.reach.machine().got_going(&one.name);
        }
        self.event();
    }

    /// No more misfortune: everybody does what is expected of it, until nothing changes any more.
    fn calm(&mut self) {
        self.reach.machine().fuse = None;
        self.probes.liveness.clear();
        for _ in 0..40 {
            self.settle();
            self.housekeep();
            self.settle();
            self.publish();
            let living: Vec<_> = self.reach.machine().living().cloned().collect();
            for one in living {
                let regular = containers(&self.pod).iter().find(|c| c.name == one.name);
                let init = init_containers(&self.pod).iter().find(|c| c.name == one.name);
                let sidecar = init.is_some_and(is_sidecar);
                if one.state == RunState::Unknown {
                    self.reach.machine().exit(&one.id, 137, "");
                } else if sidecar && self.has_startup_probe(&one.name) {
                    if self.probes.startup.get(&one.id) != Some(&ProbeResult::Success) {
                        let one = one.clone();
                        self.startup(&one, true);
                    }
                } else if init.is_some() && !sidecar || regular.is_some_and(|c| !may_restart(c, &self.pod, 0)) {
                    self.reach.machine().exit(&one.id, 0, "");
                } else {
                    continue;
                }
                self.event();
            }
            self.settle();
            self.reach.machine().seconds += 400;
        }
        self.settle();
        self.publish();
    }

    /// What has come of it.
    fn outcome(&self) -> Result<(), String> {
        let lifecycle = self.workers.lifecycle(&uid());
        let machine = self.reach.machine();
        let runs = |name: &str| machine.living().filter(|c| c.name == name).count();
        let none_runs = machine.living().next().is_none();
        let gone = !self.wanted || self.pod.metadata.deletion_timestamp.is_some();
        let Some(told) = self.told.as_ref().filter(|told| !gone && !is_over(told)) else {
            let finished = matches!(lifecycle, None | Some(Lifecycle::Finished));
            return if finished && none_runs { Ok(()) } else { Err(format!("it should be over: {lifecycle:?}")) };
        };
        if told.phase.as_deref() != Some("Running") {
            return Err(format!("phase is {:?}", told.phase));
        }
        if machine.runtime.sandboxes.first().is_none_or(|s| s.state != SandboxState::Ready) {
            return Err("it has no sandbox".to_owned());
        }
        for sidecar in init_containers(&self.pod).iter().filter(|c| is_sidecar(c)) {
            if runs(&sidecar.name) != 1 {
                return Err(format!("{} does not run", sidecar.name));
            }
        }
        let mut one_runs = false;
        for container in containers(&self.pod) {
            one_runs |= runs(&container.name) == 1;
            let newest = machine.runtime.newest(&container.name);
            let shown = told.container_statuses.iter().flatten().find(|s| s.name == container.name);
            let shown = shown.and_then(|s| s.state.as_ref()).is_some_and(|s| s.running.is_some());
            if shown != (runs(&container.name) == 1) {
                return Err(format!("that {} runs is told as {shown}", container.name));
            }
            let again =
                newest.is_some_and(|s| s.state == RunState::Exited && may_restart(container, &self.pod, s.exit_code));
            if again || newest.is_some_and(|s| s.state == RunState::Created) {
                return Err(format!("{} should run", container.name));
            }
        }
        if one_runs { Ok(()) } else { Err("nothing runs".to_owned()) }
    }
}

proptest! {
    #[test]
    fn whatever_happens(pod in any_pod(), events in prop::collection::vec(any_event(), 0..40)) {
        let mut world = World::new(pod.0, tokio::time::Instant::now());
        for event in &events {
            world.happens(event);
            let broken = std::mem::take(&mut world.reach.machine().broken);
            prop_assert!(broken.is_empty(), "{event:?}: {broken:#?}");
        }
        world.calm();
        let broken = std::mem::take(&mut world.reach.machine().broken);
        prop_assert!(broken.is_empty(), "in the calm: {broken:#?}");
        if let Err(what) = world.outcome() {
            prop_assert!(false, "{what}\n{}", world.picture());
        }
    }
}
