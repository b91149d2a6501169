use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;

use super::*;
use crate::runtime::actions::PodActions;
use crate::runtime::resize::plan;
use kubelet_model::fixtures::{container_status, sandbox_status};
use kubelet_model::node_facts::HostFacts;
use kubelet_model::node_facts::MemoryQos;
use kubelet_model::pod::model::{RunState, RuntimePod, SandboxState};

/// A runtime and a cgroup that write down what they are asked.
#[derive(Debug, Clone, Default)]
struct World(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    lines: Vec<String>,
    limits: Option<PodLimits>,
    usage: Option<u64>,
    container_usage: Option<u64>,
    /// The line that fails, and how.
    fails: Option<(String, Code)>,
    sandbox: Option<Code>,
    qos: Option<MemoryQos>,
    without_quota: WithoutQuota,
}

impl World {
    fn say(&self, line: String) -> Result<(), CriError> {
        let mut inner = self.0.lock();
        let code = inner.fails.as_ref().filter(|(at, _)| *at == line).map(|(_, code)| *code);
        inner.lines.push(line);
        code.map_or(Ok(()), |code| Err(CriError { code, method: "test", message: "no".to_owned() }))
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().lines)
    }
}

impl Ports for World {
    async fn update_container(&self, id: &ContainerId, r: v1::LinuxContainerResources) -> Result<(), CriError> {
        self.say(format!("container {id} {} {} {}", r.cpu_shares, r.cpu_quota, r.memory_limit_in_bytes))
    }
    async fn update_sandbox(
        &self,
        _: &SandboxId,
        _: v1::LinuxContainerResources,
        r: v1::LinuxContainerResources,
    ) -> Result<(), CriError> {
        let code = self.0.lock().sandbox;
        self.say(format!("sandbox {} {} {}", r.cpu_shares, r.cpu_quota, r.memory_limit_in_bytes))?;
        code.map_or(Ok(()), |code| Err(CriError { code, method: "test", message: "not implemented".to_owned() }))
    }
    async fn memory_usage(&self, _: &ContainerId) -> Result<Option<u64>, CriError> {
        Ok(self.0.lock().container_usage)
    }
    async fn pod_cgroup(&self, change: CgroupResources) -> Result<Option<(PodLimits, Option<u64>)>, HostFilesError> {
        if change != CgroupResources::default() {
            let CgroupResources { cpu_shares, cpu_quota_us, memory_limit_bytes, memory_min_bytes, .. } = change;
            let line = match memory_min_bytes {
                Some(bytes) => format!("keep {bytes}"),
                None => format!("pod {cpu_shares:?} {cpu_quota_us:?} {memory_limit_bytes:?}").replace("None", "-"),
            };
            self.say(line).map_err(|e| HostFilesError { message: e.message, transient: false })?;
        }
        let inner = self.0.lock();
        Ok(inner.limits.map(|limits| (limits, inner.usage)))
    }
    fn container_has(&self, name: &str, r: &ResourceRequirements) -> std::io::Result<()> {
        let size = Size::of(r);
        self.say(format!("note {name} {} {}", size.cpu_limit, size.memory_limit)).map_err(std::io::Error::other)
    }
    fn pod_has(&self) -> std::io::Result<()> {
        self.say("note pod".to_owned()).map_err(std::io::Error::other)
    }
}

/// Guaranteed containers a, b, ... with CPU in thousandths and memory in MiB.
fn pod(sizes: &[(i64, i64)]) -> Pod {
    let container = |(i, (cpu, memory)): (usize, &(i64, i64))| {
        let list = json!({"cpu": format!("{cpu}m"), "memory": format!("{memory}Mi")});
        let name = char::from(b'a' + u8::try_from(i).unwrap()).to_string();
        json!({"name": name, "resources": {"requests": list, "limits": list}})
    };
    let containers: Vec<_> = sizes.iter().enumerate().map(container).collect();
    serde_json::from_value(json!({"metadata": {}, "spec": {"containers": containers}})).unwrap()
}

const MI: i64 = 1 << 20;

async fn resize(world: &World, old: &[(i64, i64)], new: &[(i64, i64)]) -> Result<(), ResizeError> {
    let (had, pod) = (pod(old), pod(new));
    let mut facts = NodeFacts::new(HostFacts { memory_capacity: 1 << 34, ..HostFacts::default() });
    let without_quota = world.0.lock().without_quota.clone();
    let sum = |of: fn(&(i64, i64)) -> i64| old.iter().map(of).sum::<i64>();
    {
        let mut inner = world.0.lock();
        inner.limits.get_or_insert(PodLimits {
            cpu_shares: milli_cpu_to_shares(sum(|s| s.0)),
            cpu_quota_us: sum(|s| s.0) * 100,
            cpu_period_us: 100_000,
            memory_limit_bytes: sum(|s| s.1) * MI,
        });
        facts.memory_qos = inner.qos;
        inner.usage.get_or_insert(MI as u64);
        inner.container_usage.get_or_insert(MI as u64);
    }
    let names = ["a", "b", "c"].into_iter().take(new.len());
    let runtime = RuntimePod {
        sandboxes: vec![sandbox_status("s0", 0, SandboxState::Ready)],
        containers: names.map(|name| container_status(name, RunState::Running, 0)).collect(),
        ..Default::default()
    };
    let mut actions = PodActions::default();
    let actuated = PodResources::of(&had, Gates::default()).actuated();
    plan(&pod, &runtime, Some(&actuated), Gates::default(), &mut actions);
    let sandbox = SandboxId::parse("s0").unwrap();
    let (sandbox, resize, without_quota) = (&sandbox, &actions.resize, &without_quota);
    Act { ports: world, pod: &pod, facts: &facts, sandbox, resize, without_quota }.run().await
}

#[tokio::test]
async fn the_runtime_hears_of_each_step_before_the_kernel() {
    let world = World::default();
    resize(&world, &[(100, 50), (200, 50)], &[(200, 20), (150, 60)]).await.unwrap();
    let m = |mi: i64| mi * MI;
    assert_eq!(
        world.take(),
        [
            // Memory shrinks from 100 to 80 in sum.
            format!("container a-id 102 10000 {}", m(20)),
            format!("container b-id 204 20000 {}", m(60)),
            format!("sandbox 307 30000 {}", m(80)),
            format!("pod - - Some({})", m(80)),
            // CPU grows from 300 to 350 in sum.
            format!("sandbox 307 35000 {}", m(80)),
            "pod - Some(35000) -".to_owned(),
            format!("sandbox 358 35000 {}", m(80)),
            "pod Some(358) - -".to_owned(),
            format!("container b-id 153 15000 {}", m(60)),
            format!("container a-id 204 20000 {}", m(20)),
            // Not before the pod's cgroup has its part.
            "note a 200 20971520".to_owned(),
            "note b 150 62914560".to_owned(),
        ]
    );
}

#[tokio::test]
async fn what_has_cpus_for_itself_gets_no_quota_by_a_resize() {
    let world = World::default();
    let limits = PodLimits { cpu_shares: 2150, cpu_quota_us: -1, cpu_period_us: 100_000, memory_limit_bytes: 100 * MI };
    {
        let mut inner = world.0.lock();
        inner.limits = Some(limits);
        inner.without_quota = WithoutQuota { containers: ["a".to_owned()].into(), pod: true };
    }
    resize(&world, &[(2000, 50), (100, 50)], &[(2000, 60), (200, 50)]).await.unwrap();
    assert_eq!(
        world.take(),
        [
            format!("sandbox 2150 -1 {}", 110 * MI),
            format!("pod - - Some({})", 110 * MI),
            format!("container a-id 2048 -1 {}", 60 * MI),
            format!("sandbox 2252 -1 {}", 110 * MI),
            "pod Some(2252) - -".to_owned(),
            format!("container b-id 204 20000 {}", 50 * MI),
            format!("note a 2000 {}", 60 * MI),
            format!("note b 200 {}", 50 * MI),
        ]
    );
    // A quota that the pod's cgroup should not have goes with the next resize of CPUs.
    world.0.lock().limits = Some(PodLimits { cpu_quota_us: 210_000, ..limits });
    resize(&world, &[(2000, 50), (100, 50)], &[(2000, 50), (200, 50)]).await.unwrap();
    assert_eq!(world.take()[..2], [format!("sandbox 2150 -1 {}", 100 * MI), "pod - Some(-1) -".to_owned()]);
}

#[tokio::test]
async fn what_is_kept_for_the_pod_follows_its_request() {
    let world = World::default();
    let qos = MemoryQos { throttling_factor: 0.9, tiered: true, allocatable: 1 << 34, page_size: 4096 };
    world.0.lock().qos = Some(qos);
    resize(&world, &[(100, 50)], &[(100, 60)]).await.unwrap();
    let lines = world.take();
    assert_eq!(lines[lines.len() - 2..], [format!("keep {}", 60 * MI), "note a 100 62914560".to_owned()]);
}

#[tokio::test]
async fn no_limit_falls_below_what_is_used() {
    let world = World::default();
    world.0.lock().usage = Some(40 * MI as u64);
    let error = resize(&world, &[(100, 50)], &[(100, 30)]).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot decrease memory limits: attempting to set pod memory limit (31457280) below current usage (41943040)"
    );
    world.0.lock().container_usage = Some(35 * MI as u64);
    let error = resize(&world, &[(100, 50)], &[(200, 30)]).await.unwrap_err().to_string();
    assert!(
        error.contains("[attempting to set pod memory") && error.contains("container \"a\" memory limit (31457280)")
    );
    assert!(world.take().is_empty(), "nothing was begun");
    // The CPU alone is no reason to look.
    resize(&world, &[(100, 30)], &[(200, 30)]).await.unwrap();
}

#[tokio::test]
async fn a_runtime_that_knows_no_sandboxes_is_no_obstacle_and_one_that_refuses_is() {
    for (code, ok) in [(Code::Unimplemented, true), (Code::Unknown, true), (Code::Internal, false)] {
        let world = World::default();
        world.0.lock().sandbox = Some(code);
        let outcome = resize(&world, &[(100, 50)], &[(200, 50)]).await;
        assert_eq!(outcome.is_ok(), ok, "{code:?}");
        if let Err(error) = outcome {
            let text = "failed to notify runtime for UpdatePodSandboxResources (resource=cpu); resize rejected: updatePodSandboxResources failed for sanboxID \"s0\": rpc error: code = Internal desc = not implemented";
            assert_eq!(error.to_string(), text);
            assert_eq!(world.take().len(), 1);
        }
    }
}

#[tokio::test]
async fn what_the_kernel_refuses_is_taken_back_at_the_runtime() {
    let world = World::default();
    world.0.lock().fails = Some(("pod - Some(20000) -".to_owned(), Code::Internal));
    assert!(resize(&world, &[(100, 50)], &[(200, 50)]).await.is_err());
    let limit = 50 * MI;
    assert_eq!(
        world.take(),
        [format!("sandbox 102 20000 {limit}"), "pod - Some(20000) -".to_owned(), format!("sandbox 102 10000 {limit}")]
    );
}

#[tokio::test]
async fn a_container_that_fails_ends_the_resize_and_what_is_done_is_noted() {
    let world = World::default();
    world.0.lock().fails = Some((format!("container b-id 204 20000 {}", 20 * MI), Code::Unavailable));
    let error = resize(&world, &[(100, 50), (200, 50)], &[(100, 20), (200, 20)]).await.unwrap_err();
    assert!(error.is_transient());
    let lines = world.take();
    assert_eq!(lines.iter().filter(|l| l.starts_with("note")).count(), 1);
    assert!(!lines.iter().any(|l| l.starts_with("pod")), "the pod keeps its room");
}
