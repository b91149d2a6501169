//! Resizes in place on a cluster: what the kernel has, what the statuses say and what the events tell of it, in the cases
//! of upstream's conformance suite; who has to wait, and what outlives a restart in the middle.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::{LONG, Lab, cgroups, eventually};
use bulkhead_tests::joined::{Member, NAMESPACE, NODE};
use bulkhead_tests::lab;
use bulkhead_types::cpu;
use serde_json::{Value, json};

/// Request and limit of CPU in thousandths, request and limit of memory in MiB; 0 is none.
type Size = [i64; 4];

fn resources([cpu, cpu_limit, memory, memory_limit]: Size) -> Value {
    let list = |cpu: i64, memory: i64| {
        let mut list = json!({});
        if cpu > 0 {
            list["cpu"] = json!(format!("{cpu}m"));
        }
        if memory > 0 {
            list["memory"] = json!(format!("{memory}Mi"));
        }
        list
    };
    let mut all = json!({});
    for (name, list) in [("requests", list(cpu, memory)), ("limits", list(cpu_limit, memory_limit))] {
        if list.as_object().is_some_and(|list| !list.is_empty()) {
            all[name] = list;
        }
    }
    all
}

/// Containers c1, c2, ... of these sizes.
fn sized(sizes: &[Size]) -> Value {
    let one = |(i, size): (usize, &Size)| json!({"name": format!("c{}", i + 1), "resources": resources(*size)});
    json!(sizes.iter().enumerate().map(one).collect::<Vec<_>>())
}

fn path(pod: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}/resize")
}

/// Asks for other resources by a strategic patch of the spec.
fn ask(member: &Member, pod: &str, spec: &Value) -> Result<Value> {
    let kind = "strategic-merge-patch";
    member.cluster.client().patch(&path(pod), kind, &json!({"spec": spec}))?.success()
}

fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a Value> {
    pod["status"]["conditions"].as_array()?.iter().find(|one| one["type"] == kind)
}

/// What upstream's suite waits for.
fn is_resized(pod: &Value) -> bool {
    pod["status"]["observedGeneration"] == pod["metadata"]["generation"]
        && condition(pod, "PodResizePending").is_none()
        && condition(pod, "PodResizeInProgress").is_none()
        && condition(pod, "Ready").is_some_and(|one| one["status"] == "True")
}

fn wait_resized(member: &Member, pod: &str) -> Result<Value> {
    member.wait(pod, "it is resized", is_resized)
}

/// Limits of a cgroup: CPU shares, CPU quota for each 100 ms in microseconds (-1: none), memory in bytes (-1: none).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Limits {
    shares: u64,
    pub(super) quota: i64,
    memory: i64,
}

impl Limits {
    /// Of a size. Shares lose a little on the way through the weight of cgroup v2.
    fn of([cpu, cpu_limit, _, memory_limit]: Size) -> Self {
        let shares = cpu::milli_cpu_to_shares(u64::try_from(cpu).unwrap_or_default());
        Limits {
            shares: if is_v2() { cpu::weight_to_shares(cpu::shares_to_weight(shares)) } else { shares },
            quota: if cpu_limit > 0 { cpu_limit * 100 } else { -1 },
            memory: if memory_limit > 0 { memory_limit << 20 } else { -1 },
        }
    }
}

fn is_v2() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

fn read(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Ok(text.trim().to_owned())
}

/// The limits of a process's cgroup, or of the one `above` levels up.
pub(super) fn limits(pid: i32, above: usize) -> Result<Limits> {
    let own = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let folder = |controller: &str| -> Result<PathBuf> {
        let mut lines = own.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
        let named = |names: &str| if is_v2() { names.is_empty() } else { names.split(',').any(|n| n == controller) };
        let (names, path) = lines.find(|(names, _)| named(names)).context("no such controller")?;
        let mut path = Path::new(path);
        for _ in 0..above {
            path = path.parent().context("no cgroup above")?;
        }
        let of = |mount: &PathBuf| {
            is_v2() || mount.file_name().is_some_and(|name| name.to_string_lossy().split(',').any(|n| n == controller))
        };
        let mount = cgroups::hierarchies().into_iter().find(of).with_context(|| format!("{names} is not mounted"))?;
        Ok(mount.join(path.strip_prefix("/")?))
    };
    let number = |text: &str| if text == "max" { Ok(-1) } else { text.parse::<i64>() };
    if is_v2() {
        let folder = folder("")?;
        let max = read(&folder.join("cpu.max"))?;
        return Ok(Limits {
            shares: cpu::weight_to_shares(read(&folder.join("cpu.weight"))?.parse()?),
            quota: number(max.split(' ').next().unwrap_or_default())?,
            memory: number(&read(&folder.join("memory.max"))?)?,
        });
    }
    let memory = number(&read(&folder("memory")?.join("memory.limit_in_bytes"))?)?;
    Ok(Limits {
        shares: read(&folder("cpu")?.join("cpu.shares"))?.parse()?,
        quota: number(&read(&folder("cpu")?.join("cpu.cfs_quota_us"))?)?,
        memory: if memory > 1 << 60 { -1 } else { memory },
    })
}

fn container_pid(member: &Member, pod: &str, name: &str) -> Result<i32> {
    let cri = member.node.cri()?;
    let all = cri.containers()?;
    let found = all.iter().rfind(|one| one.pod == pod && one.name == name && one.running);
    cri.pid(&found.with_context(|| format!("{pod}/{name} does not run"))?.id)
}

/// Kernel and status agree that the containers have these sizes, and the pod's cgroup their sum.
fn has(member: &Member, pod: &Value, sizes: &[Size]) -> Result<()> {
    let name = pod["metadata"]["name"].as_str().context("name")?;
    for (i, size) in sizes.iter().enumerate() {
        let container = format!("c{}", i + 1);
        let pid = container_pid(member, name, &container)?;
        ensure!(limits(pid, 0)? == Limits::of(*size), "{container}: {:?}, not {size:?}", limits(pid, 0)?);
        let status = &pod["status"]["containerStatuses"][i];
        ensure!(status["name"] == container.as_str(), "{status}");
        ensure!(amounts(&status["resources"])? == *size, "{container}: {status}, not {size:?}");
        let [cpu, _, memory, _] = amounts(&json!({"requests": status["allocatedResources"]}))?;
        ensure!([cpu, memory] == [size[0], size[2]], "{container}: {status}");
    }
    let mut sum = sizes.iter().fold([0; 4], |sum, size| std::array::from_fn(|i| sum[i] + size[i]));
    for limit in [1, 3] {
        // A limit of the pod exists where every container has one.
        if sizes.iter().any(|size| size[limit] == 0) {
            sum[limit] = 0;
        }
    }
    let of_pod = limits(container_pid(member, name, "c1")?, 1)?;
    ensure!(of_pod == Limits::of(sum), "the pod: {of_pod:?}, not {:?}", Limits::of(sum));
    Ok(())
}

fn amounts(resources: &Value) -> Result<Size> {
    let one = |list: &str, name: &str, unit: i64| -> Result<i64> {
        let Some(text) = resources[list][name].as_str() else { return Ok(0) };
        let amount = bulkhead_types::Quantity::parse(text)?;
        Ok(if name == "cpu" { amount.milli_value() } else { amount.value() / unit })
    };
    let mi = 1 << 20;
    Ok([
        one("requests", "cpu", 1)?,
        one("limits", "cpu", 1)?,
        one("requests", "memory", mi)?,
        one("limits", "memory", mi)?,
    ])
}

fn ids(pod: &Value) -> Vec<Value> {
    let all = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    all.map(|one| json!([one["containerID"], one["restartCount"]])).collect()
}

fn start(lab: &Lab) -> Result<Member> {
    // The static manager alone refuses to resize what it has bound to CPUs.
    let configure = |node: bulkhead_testkit::NodeBuilder| {
        node.config("cpuManagerPolicy", json!("static")).config("kubeReserved", json!({"cpu": "100m"}))
    };
    Member::start(lab, &[], configure)
}

#[test]
fn running_containers_get_other_sizes() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let member = start(&lab)?;
    let first = [[30, 50, 40, 60], [30, 50, 40, 60], [60, 80, 70, 90]];
    member.create("three", &json!({"containers": sized(&first)}))?;
    let created = member.wait_ready("three")?;
    has(&member, &created, &first)?;
    // Net increase, net decrease, each resource its own way, and requests and limits that were not there.
    for sizes in [
        [[60, 80, 70, 90], [40, 60, 50, 70], [30, 50, 40, 60]],
        [[70, 90, 75, 95], [20, 40, 30, 50], [20, 40, 30, 50]],
        [[80, 100, 75, 95], [10, 30, 40, 60], [30, 50, 50, 70]],
    ] {
        ask(&member, "three", &json!({"containers": sized(&sizes)}))?;
        let pod = wait_resized(&member, "three")?;
        has(&member, &pod, &sizes)?;
        ensure!(ids(&pod) == ids(&created), "something was restarted: {pod:#}");
    }
    let resized = wait_resized(&member, "three")?;
    ensure!(resized["status"]["allocatedResources"] == json!({"cpu": "120m", "memory": "165Mi"}), "{resized:#}");
    ensure!(resized["status"]["resources"]["limits"] == json!({"cpu": "180m", "memory": "225Mi"}), "{resized:#}");
    let started = "Pod resize started: {\"containers\":[{\"name\":\"c1\",\"resources\":{\"limits\":{\"cpu\":\"80m\",\"memory\":\"90Mi\"},";
    member.wait_event("three", "ResizeStarted", |text| {
        text.starts_with(started) && text.ends_with("\"generation\":2}")
    })?;
    member.wait_event("three", "ResizeCompleted", |text| {
        text.starts_with("Pod resize completed: {") && text.ends_with("\"generation\":4}")
    })?;

    // Equal amounts in other units ask for nothing.
    let same = json!([{"name": "c1", "resources": {"requests": {"cpu": "0.08"}, "limits": {"cpu": "1e-1"}}}]);
    ask(&member, "three", &json!({"containers": same}))?;
    let pod = wait_resized(&member, "three")?;
    has(&member, &pod, &[[80, 100, 75, 95], [10, 30, 40, 60], [30, 50, 50, 70]])?;

    // The replace endpoint.
    let sizes = [[90, 110, 80, 100], [10, 30, 40, 60], [30, 50, 50, 70]];
    loop {
        let mut whole = member.cluster.get("pods", NAMESPACE, "three")?;
        let containers = whole["spec"]["containers"].as_array_mut().context("containers")?;
        for (container, wanted) in containers.iter_mut().zip(sizes) {
            container["resources"] = resources(wanted);
        }
        let answer = member.cluster.client().send_json("PUT", &path("three"), &whole)?;
        // The node may patch the status meanwhile.
        if answer.status != 409 {
            answer.success()?;
            break;
        }
    }
    has(&member, &wait_resized(&member, "three")?, &sizes)?;

    // What nobody asked for is added; what is not there yet is the whole of what another has.
    let bare = [[10, 0, 20, 0], [0, 0, 20, 30]];
    member.create("bare", &json!({"containers": sized(&bare)}))?;
    let created = member.wait_ready("bare")?;
    let added = [[20, 50, 30, 40], [10, 0, 20, 30]];
    ask(&member, "bare", &json!({"containers": sized(&added)}))?;
    let pod = wait_resized(&member, "bare")?;
    has(&member, &pod, &added)?;
    ensure!(ids(&pod) == ids(&created), "{pod:#}");
    member.node.finish()
}

#[test]
fn restart_rules_for_containers_sidecars_and_the_whole_pod() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let member = start(&lab)?;
    let policy = json!([
        {"resourceName": "cpu", "restartPolicy": "NotRequired"},
        {"resourceName": "memory", "restartPolicy": "RestartContainer"},
    ]);
    let mut containers = sized(&[[30, 50, 40, 60], [30, 50, 40, 60]]);
    containers[0]["resizePolicy"] = policy;
    member.create("picky", &json!({"containers": containers}))?;
    let created = member.wait_ready("picky")?;
    // CPU alone: nothing restarts.
    let sizes = [[40, 60, 40, 60], [30, 50, 40, 60]];
    ask(&member, "picky", &json!({"containers": sized(&sizes)}))?;
    let pod = wait_resized(&member, "picky")?;
    has(&member, &pod, &sizes)?;
    ensure!(ids(&pod) == ids(&created), "{pod:#}");
    let sizes = [[40, 60, 50, 70], [20, 40, 50, 70]];
    ask(&member, "picky", &json!({"containers": sized(&sizes)}))?;
    let pod = member.wait("picky", "c1 was restarted", |pod| {
        is_resized(pod) && pod["status"]["containerStatuses"][0]["restartCount"] == 1
    })?;
    has(&member, &pod, &sizes)?;
    ensure!(ids(&pod)[1] == ids(&created)[1], "the other one was restarted, too: {pod:#}");
    member.wait_event("picky", "Killing", |text| text == "Container c1 resize requires restart")?;

    // A limit below what is used is not written: it would end in a kill.
    let fill = "head -c 33554432 /dev/zero | tail & while true; do sleep 1; done";
    let hungry = json!({"name": "c1", "command": ["sh", "-c", fill], "resources": resources([10, 20, 60, 80])});
    member.create("hungry", &json!({"containers": [hungry]}))?;
    member.wait_ready("hungry")?;
    eventually("it has taken its memory", LONG, || {
        let (_, said) = member.try_exec("hungry", "c1", &["sh", "-c", "cat /proc/[0-9]*/status | grep VmRSS"])?;
        let largest = said.lines().filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).max();
        ensure!(largest >= Some(16 << 10), "{said}");
        Ok(())
    })?;
    ask(&member, "hungry", &json!({"containers": sized(&[[10, 20, 1, 1]])}))?;
    let why = member.wait("hungry", "its resize fails", |pod| {
        condition(pod, "PodResizeInProgress").is_some_and(|one| one["reason"] == "Error")
    })?;
    let why = condition(&why, "PodResizeInProgress").and_then(|one| one["message"].as_str()).unwrap_or_default();
    ensure!(why.starts_with("cannot decrease memory limits: "), "{why}");
    ensure!(limits(container_pid(&member, "hungry", "c1")?, 0)? == Limits::of([10, 20, 60, 80]), "it was written");
    member.wait_event("hungry", "ResizeError", |text| text.contains("cannot decrease memory limits"))?;
    ask(&member, "hungry", &json!({"containers": sized(&[[10, 20, 60, 90]])}))?;
    has(&member, &wait_resized(&member, "hungry")?, &[[10, 20, 60, 90]])?;

    // A sidecar, and resources of the pod as a whole with its overhead.
    let sidecar = json!([{"name": "s", "restartPolicy": "Always", "resources": resources([10, 20, 10, 20])}]);
    member.create(
        "whole",
        &json!({
            "initContainers": sidecar,
            "containers": [{"name": "c1"}],
            "resources": resources([100, 200, 64, 128]),
        }),
    )?;
    let created = member.wait_ready("whole")?;
    let (pid, side) = (container_pid(&member, "whole", "c1")?, container_pid(&member, "whole", "s")?);
    ensure!(limits(pid, 1)? == Limits::of([100, 200, 64, 128]), "{:?}", limits(pid, 1)?);
    ensure!(limits(pid, 0)?.memory == 128 << 20, "the pod's limit is the container's: {:?}", limits(pid, 0)?);
    let wider = json!([{"name": "s", "resources": resources([20, 30, 10, 25])}]);
    ask(&member, "whole", &json!({"initContainers": wider, "resources": resources([150, 250, 64, 140])}))?;
    let pod = wait_resized(&member, "whole")?;
    ensure!(limits(pid, 1)? == Limits::of([150, 250, 64, 140]), "{:?}", limits(pid, 1)?);
    ensure!(limits(pid, 0)?.memory == 140 << 20 && limits(side, 0)? == Limits::of([20, 30, 10, 25]));
    ensure!(amounts(&pod["status"]["resources"])? == [150, 250, 64, 140], "{pod:#}");
    ensure!(pod["status"]["allocatedResources"] == json!({"cpu": "150m", "memory": "64Mi"}), "{pod:#}");
    ensure!(amounts(&pod["status"]["initContainerStatuses"][0]["resources"])? == [20, 30, 10, 25], "{pod:#}");
    ensure!(ids(&pod) == ids(&created), "{pod:#}");
    member.node.finish()
}

/// CPU that pods may have on the node, in thousandths.
fn allocatable(member: &Member) -> Result<i64> {
    let known = |node: &Value| node["status"]["allocatable"]["cpu"].is_string();
    let node = member.cluster.wait_for("nodes", "", NODE, "its resources are known", known)?;
    let cpu = node["status"]["allocatable"]["cpu"].as_str().context("allocatable")?;
    Ok(bulkhead_types::Quantity::parse(cpu)?.milli_value())
}

#[test]
fn deferred_resizes_are_retried_and_outlive_a_restart() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let member = start(&lab)?;
    let all = allocatable(&member)?;
    let part = all / 4;
    let small = |cpu: i64| json!({"containers": sized(&[[cpu, 0, 16, 0]])});
    for name in ["keeps", "grows"] {
        member.create(name, &small(part))?;
        member.wait_ready(name)?;
    }
    let guaranteed = json!({"containers": sized(&[[100, 100, 32, 32]])});
    member.create("bound", &guaranteed)?;
    let before: Vec<Value> = ["keeps", "grows", "bound"]
        .iter()
        .map(|name| Ok(ids(&member.wait_ready(name)?).into()))
        .collect::<Result<_>>()?;

    // Not on this node, whoever goes.
    ask(&member, "bound", &json!({"containers": sized(&[[200, 200, 32, 32]])}))?;
    let never = member.wait("bound", "it is infeasible", |pod| {
        condition(pod, "PodResizePending").is_some_and(|one| one["reason"] == "Infeasible")
    })?;
    let text = "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"";
    ensure!(condition(&never, "PodResizePending").is_some_and(|one| one["message"] == text), "{never:#}");
    ensure!(condition(&never, "PodResizePending").is_some_and(|one| one["observedGeneration"] == 2), "{never:#}");
    member.wait_event("bound", "ResizeInfeasible", |text| text.starts_with("Pod resize Infeasible: {"))?;
    // What it has is asked for again: there is nothing to say of it any more.
    ask(&member, "bound", &guaranteed)?;
    wait_resized(&member, "bound")?;

    // No room yet.
    ask(&member, "grows", &small(part * 3))?;
    let waits = |pod: &Value| condition(pod, "PodResizePending").is_some_and(|one| one["reason"] == "Deferred");
    let deferred = member.wait("grows", "it waits for room", waits)?;
    let said = condition(&deferred, "PodResizePending").context("condition")?.clone();
    let text = format!(
        "Node didn't have enough resource: cpu, requested: {}, used: {}, capacity: {all}",
        part * 3,
        part + 100
    );
    ensure!(said["message"] == text.as_str(), "{said}");
    ensure!(amounts(&deferred["status"]["containerStatuses"][0]["resources"])?[0] == part, "{deferred:#}");
    ensure!(deferred["status"]["allocatedResources"]["cpu"] == format!("{part}m"), "{deferred:#}");
    member.wait_event("grows", "ResizeDeferred", |text| text.starts_with("Pod resize OutOfcpu: {"))?;

    // It still waits after a restart, with what it had, and nobody is refused for what it asks for.
    let agent = member.node.agent()?;
    let epoch = agent.hello("kubelet-syncd")?.epoch;
    member.node.kill_daemon("kubelet-syncd")?;
    eventually("syncd is back", LONG, || {
        let hello = agent.hello("kubelet-syncd")?;
        ensure!(hello.epoch != epoch && hello.ready, "not yet");
        Ok(())
    })?;
    ask(&member, "keeps", &small(part - 1))?;
    let kept = wait_resized(&member, "keeps")?;
    has(&member, &kept, &[[part - 1, 0, 16, 0]])?;
    let still = member.wait("grows", "it still waits", waits)?;
    ensure!(
        condition(&still, "PodResizePending").context("condition")?["lastTransitionTime"] == said["lastTransitionTime"]
    );

    // Its turn has come when another goes.
    member.cluster.delete("pods", NAMESPACE, "keeps", None)?;
    let pod = wait_resized(&member, "grows")?;
    has(&member, &pod, &[[part * 3, 0, 16, 0]])?;
    member.wait_event("grows", "ResizeStarted", |text| text.ends_with("\"generation\":2}"))?;

    // Killed in the middle, again and again: it gets there.
    for step in 1..=3 {
        let wanted = [part * 3 - step * 10, 0, 16, 0];
        ask(&member, "grows", &json!({"containers": sized(&[wanted])}))?;
        member.node.kill_daemon("kubelet-syncd")?;
        let pod = member.wait("grows", "it is resized", |pod| {
            is_resized(pod) && pod["status"]["allocatedResources"]["cpu"] == format!("{}m", wanted[0])
        })?;
        has(&member, &pod, &[wanted])?;
    }
    for (name, before) in [("grows", &before[1]), ("bound", &before[2])] {
        let now = member.cluster.get("pods", NAMESPACE, name)?;
        ensure!(Value::from(ids(&now)) == *before, "{name} was disturbed: {now:#}");
    }
    // Whoever takes the node over finds what was granted.
    let file = member.node.root_dir().join("allocated_pods_state");
    eventually("upstream's checkpoint says what was granted", LONG, || {
        let checkpoint: Value = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
        let data = checkpoint["data"].as_str().unwrap_or_default();
        ensure!(data.contains(&format!("{}m", part * 3 - 30)), "{data}");
        Ok(())
    })?;
    member.node.finish()
}
