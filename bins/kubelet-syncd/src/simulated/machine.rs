//! The runtime of the simulated node. It knows what really ran and when, and writes down each call that breaks a rule.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bulkhead_cri::{Code, CriError, v1};
use bulkhead_types::{ContainerId, SandboxId};
use kubelet_model::v1::{Container, Pod};
use parking_lot::{Mutex, MutexGuard};

use kubelet_edges::runtime_service::RuntimeService;
use kubelet_model::fixtures::{container_status, sandbox_status};
use kubelet_model::pod::model::{ContainerStatus, RunState, RuntimePod, SandboxState};
use kubelet_model::pod::restart::may_restart_all;
use kubelet_model::pod::spec::{containers, ephemeral_containers, image, init_containers, is_sidecar, restart_policy};

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is refused.
    Refused,
    /// It is done, and the answer is lost.
    AnswerLost,
    /// Whoever called dies before it is done.
    Death,
}

/// How far the pod has come in its newest sandbox, by the truth.
#[derive(Debug, Default)]
struct Progress {
    /// Init containers that have succeeded.
    done: BTreeSet<String>,
    /// Sidecars that have got going.
    started: BTreeSet<String>,
}

#[derive(Debug, Default)]
pub struct Machine {
    pub runtime: RuntimePod,
    pub pod: Arc<Pod>,
    pub seconds: u64,
    /// After so many calls one goes wrong.
    pub fuse: Option<(usize, Fault)>,
    /// The runtime does not know what becomes of them; they run.
    pub doubtful: BTreeSet<ContainerId>,
    /// Nothing of the pod may start any more.
    pub over: bool,
    pub broken: Vec<String>,
    /// What the runtime showed after each call of the work in hand.
    pub seen: Vec<RuntimePod>,
    /// Last hash with which a container that runs once has run.
    ran: BTreeMap<String, u32>,
    /// Containers of which records were lost or in doubt: that they ran cannot be known.
    pub unsure: BTreeSet<String>,
    /// Highest number of a log of each container.
    logs: BTreeMap<String, u32>,
    progress: Progress,
    count: u64,
}

impl Machine {
    pub fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + self.seconds)
    }

    fn next_id(&mut self, prefix: &str) -> String {
        self.count += 1;
        format!("{prefix}{}", self.count)
    }

    fn breaks(&mut self, what: String) {
        self.broken.push(what);
    }

    pub fn highest_log(&self) -> Option<u32> {
        self.logs.values().copied().max()
    }

    fn instance(&mut self, id: &ContainerId) -> Option<&mut ContainerStatus> {
        self.runtime.containers.iter_mut().find(|c| c.id == *id)
    }

    /// Really runs, whatever the runtime says.
    fn lives(&self, c: &ContainerStatus) -> bool {
        c.state == RunState::Running || self.doubtful.contains(&c.id)
    }

    pub fn living(&self) -> impl Iterator<Item = &ContainerStatus> {
        self.runtime.containers.iter().filter(|c| self.lives(c))
    }

    /// A container ends.
    pub fn exit(&mut self, id: &ContainerId, code: i32, reason: &str) {
        let now = self.now();
        self.doubtful.remove(id);
        let newest = self.runtime.sandboxes.first().map(|s| s.id.clone());
        let Some(instance) = self.instance(id) else { return };
        instance.state = RunState::Exited;
        instance.exit_code = code;
        instance.finished_at = Some(now);
        instance.reason = match (reason, code) {
            ("", 0) => "Completed".to_owned(),
            ("", _) => "Error".to_owned(),
            (other, _) => other.to_owned(),
        };
        let (name, current) = (instance.name.clone(), newest.as_ref() == Some(&instance.sandbox_id));
        if code == 0 && reason.is_empty() && current {
            self.progress.done.insert(name);
        }
    }

    /// A sidecar has got going.
    pub fn got_going(&mut self, name: &str) {
        self.progress.started.insert(name.to_owned());
    }

    /// The record is gone from the runtime, and the container with it.
    pub fn lose(&mut self, id: &ContainerId) {
        self.doubtful.remove(id);
        if let Some(found) = self.runtime.containers.iter().find(|c| c.id == *id) {
            self.unsure.insert(found.name.clone());
        }
        self.forget(id);
    }

    fn forget(&mut self, id: &ContainerId) {
        self.runtime.containers.retain(|c| c.id != *id);
        let pod = self.pod.clone();
        let counts = |name: &str| containers(&pod).iter().chain(init_containers(&pod)).any(|c| c.name == name);
        if !self.runtime.containers.iter().any(|c| counts(&c.name)) {
            // Nothing is left of what was: in the same sandbox, the pod begins anew.
            self.progress = Progress::default();
        }
    }

    /// The sandbox's own process ends; with `all` everything in it.
    pub fn sandbox_dies(&mut self, all: bool) {
        let Some(newest) = self.runtime.sandboxes.first_mut() else { return };
        newest.state = SandboxState::NotReady;
        if all {
            let living: Vec<ContainerId> = self.living().map(|c| c.id.clone()).collect();
            for id in living {
                self.exit(&id, 255, "Unknown");
            }
        }
    }

    fn check_start(&mut self, id: &ContainerId) {
        let Some(this) = self.runtime.containers.iter().find(|c| c.id == *id).cloned() else { return };
        let name = this.name.clone();
        if self.over {
            self.breaks(format!("{name} starts although the pod is over"));
        }
        if self.living().any(|c| c.name == name) {
            self.breaks(format!("{name} starts while another instance of it runs"));
        }
        let newest = self.runtime.sandboxes.first();
        if newest.is_none_or(|s| s.id != this.sandbox_id || s.state != SandboxState::Ready) {
            self.breaks(format!("{name} starts in a sandbox that is not the pod's"));
        }
        let pod = self.pod.clone();
        let inits = init_containers(&pod);
        let place = inits.iter().position(|c| c.name == name);
        let regular = containers(&pod).iter().find(|c| c.name == name);
        if place.is_some() || regular.is_some() {
            let before = &inits[..place.unwrap_or(inits.len())];
            for other in before {
                let passed = if is_sidecar(other) { &self.progress.started } else { &self.progress.done };
                if !passed.contains(&other.name) {
                    let what = format!("{name} starts before {} has passed", other.name);
                    self.breaks(what);
                }
            }
        }
        if let Some(container) = regular.filter(|c| runs_once(c, &pod)) {
            let hash = this.hash;
            if self.ran.insert(name.clone(), hash) == Some(hash) && !self.unsure.contains(&name) {
                self.breaks(format!("{name} runs twice: {:?}", container.restart_policy));
            }
        }
        if ephemeral_containers(&pod).iter().any(|c| c.name == name)
            && self.ran.insert(name.clone(), 0).is_some()
            && !self.unsure.contains(&name)
        {
            self.breaks(format!("ephemeral container {name} starts again"));
        }
        if place.is_some_and(|at| is_sidecar(&inits[at]) && inits[at].startup_probe.is_none()) {
            self.got_going(&name);
        }
    }
}

/// Nothing but its image's change lets the container run a second time.
fn runs_once(container: &Container, pod: &Pod) -> bool {
    !may_restart_all(pod)
        && container.restart_policy_rules.is_none()
        && container.restart_policy.as_deref().unwrap_or(restart_policy(pod)) == "Never"
}

/// The machine as the executor reaches it.
#[derive(Debug, Clone, Default)]
pub struct Reach(Arc<Mutex<Machine>>);

impl Reach {
    pub fn machine(&self) -> MutexGuard<'_, Machine> {
        self.0.lock()
    }

    async fn call<T>(&self, what: impl FnOnce(&mut Machine) -> T) -> Result<T, CriError> {
        let fault = {
            let mut machine = self.machine();
            match machine.fuse {
                Some((0, fault)) => {
                    machine.fuse = None;
                    Some(fault)
                }
                Some((left, fault)) => {
                    machine.fuse = Some((left - 1, fault));
                    None
                }
                None => None,
            }
        };
        let refused = |code| CriError { code, method: "test", message: "no".to_owned() };
        match fault {
            Some(Fault::Refused) => return Err(refused(Code::Unavailable)),
            Some(Fault::Death) => std::future::pending().await,
            Some(Fault::AnswerLost) | None => {}
        }
        let mut machine = self.machine();
        let done = what(&mut machine);
        let seen = machine.runtime.clone();
        machine.seen.push(seen);
        if fault.is_some() { Err(refused(Code::DeadlineExceeded)) } else { Ok(done) }
    }
}

impl RuntimeService for Reach {
    async fn run_pod_sandbox(&self, config: &v1::PodSandboxConfig, _: &str) -> Result<SandboxId, CriError> {
        let attempt = config.metadata.as_ref().unwrap().attempt;
        self.call(|machine| {
            if machine.runtime.sandboxes.iter().any(|s| s.attempt == attempt) {
                machine.breaks(format!("two sandboxes of attempt {attempt}"));
            }
            if machine.over {
                machine.breaks("a sandbox is made although the pod is over".to_owned());
            }
            let id = machine.next_id("s");
            let mut sandbox = sandbox_status(&id, attempt, SandboxState::Ready);
            sandbox.created_at = machine.now();
            let id = sandbox.id.clone();
            machine.runtime.sandboxes.insert(0, sandbox);
            machine.progress = Progress::default();
            id
        })
        .await
    }

    async fn sandbox_ips(&self, _: &SandboxId) -> Result<Vec<IpAddr>, CriError> {
        self.call(|_| vec!["10.88.0.5".parse().unwrap()]).await
    }

    async fn stop_pod_sandbox(&self, sandbox: &SandboxId) -> Result<(), CriError> {
        self.call(|machine| {
            let inside: Vec<ContainerId> =
                machine.living().filter(|c| c.sandbox_id == *sandbox).map(|c| c.id.clone()).collect();
            for id in inside {
                machine.exit(&id, 137, "");
            }
            for one in machine.runtime.sandboxes.iter_mut().filter(|s| s.id == *sandbox) {
                one.state = SandboxState::NotReady;
            }
        })
        .await
    }

    async fn remove_pod_sandbox(&self, sandbox: &SandboxId) -> Result<(), CriError> {
        self.call(|machine| machine.runtime.sandboxes.retain(|s| s.id != *sandbox)).await
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: v1::ContainerConfig,
        _: &v1::PodSandboxConfig,
    ) -> Result<ContainerId, CriError> {
        let metadata = config.metadata.clone().unwrap();
        self.call(|machine| {
            let same = |c: &&ContainerStatus| c.name == metadata.name && c.restart_count == metadata.attempt;
            if machine.runtime.containers.iter().any(|c| same(&c)) {
                machine.breaks(format!("two instances {} of {}", metadata.attempt, metadata.name));
            }
            let id = machine.next_id("c");
            let pod = machine.pod.clone();
            let listed = containers(&pod).iter().chain(init_containers(&pod)).find(|c| c.name == metadata.name);
            let mut status = container_status(&metadata.name, RunState::Created, 0);
            status.id = ContainerId::parse(&id).unwrap();
            status.sandbox_id = sandbox.clone();
            status.created_at = machine.now() + Duration::from_nanos(machine.count);
            status.restart_count = metadata.attempt;
            if let Some(container) = listed {
                status.hash = kubelet_model::pod::hash::container_hash(&container.name, image(container));
            }
            machine.logs.insert(metadata.name.clone(), metadata.attempt);
            let id = status.id.clone();
            machine.runtime.containers.insert(0, status);
            id
        })
        .await
    }

    async fn start_container(&self, container: &ContainerId) -> Result<(), CriError> {
        self.call(|machine| {
            machine.check_start(container);
            let now = machine.now();
            if let Some(instance) = machine.instance(container) {
                instance.state = RunState::Running;
                instance.started_at = Some(now);
            }
        })
        .await
    }

    async fn stop_container(&self, container: &ContainerId, _: i64) -> Result<(), CriError> {
        self.call(|machine| {
            let Some(found) = machine.runtime.containers.iter().find(|c| c.id == *container).cloned() else { return };
            if machine.lives(&found) || found.state == RunState::Unknown {
                // Some end well when they are asked to.
                let code = if found.name.ends_with('a') { 0 } else { 137 };
                machine.exit(container, code, "");
            }
        })
        .await
    }

    async fn remove_container(&self, container: &ContainerId) -> Result<(), CriError> {
        self.call(|machine| {
            let found = machine.living().find(|c| c.id == *container).map(|c| c.name.clone());
            if let Some(name) = found {
                machine.breaks(format!("{name} is removed while it runs"));
            }
            machine.forget(container);
        })
        .await
    }

    async fn exec_sync(&self, _: &ContainerId, _: &[String]) -> Result<v1::ExecSyncResponse, CriError> {
        Ok(v1::ExecSyncResponse::default())
    }

    async fn annotations(&self, _: &ContainerId) -> Result<BTreeMap<String, String>, CriError> {
        Ok(BTreeMap::new())
    }
}
