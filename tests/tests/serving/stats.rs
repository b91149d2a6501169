//! Statistics of a node, beside the kernel's own files: a pod that works shows in all three endpoints, one that rests does
//! not, and while a process of the agent is away the answers say so.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bulkhead_testkit::https::Https;
use bulkhead_testkit::processes::{self, signal};
use bulkhead_testkit::{IDLE, LONG, Lab, Node, Pod, cgroups, eventually};
use bulkhead_tests::lab;
use bulkhead_tests::scrape::{Format, Scrape};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
/// A daemon that was killed is whole again.
const RESTART: Duration = Duration::from_secs(5);

struct World {
    node: Node,
    port: Https,
    signs: PathBuf,
}

impl World {
    fn start(lab: &Lab) -> Result<Self> {
        let signs = lab.folder().join("signs");
        std::fs::create_dir_all(&signs)?;
        let node = lab.node("alpha").config("readOnlyPort", json!(10255)).start()?;
        let port = Https::plain(SocketAddr::new(lab.netns().address().into(), 10255));
        Ok(World { node, port, signs })
    }

    /// What `path` says now. A sample answers for ten seconds, but only whoever wants no more than it holds: each of these
    /// two holds what the other lacks, so asking in turns has it measured anew.
    fn get(&self, path: &str) -> Result<String> {
        let others: &[&str] = match path.split('?').next() {
            Some("/stats/summary") => &["/metrics/cadvisor"],
            Some("/metrics/cadvisor") => &["/stats/summary"],
            _ => &["/metrics/cadvisor", "/stats/summary"],
        };
        for other in others {
            self.port.get(other)?;
        }
        let answer = self.port.get(path)?;
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        ensure!(answer.status == 200, "{path}: {} {body:.300}", answer.status);
        Ok(body)
    }

    fn scrape(&self, path: &str) -> Result<Scrape> {
        Scrape::read(&self.get(path)?, Format::Prometheus).with_context(|| path.to_owned())
    }

    fn summary(&self, query: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.get(&format!("/stats/summary{query}"))?)?)
    }

    fn pod(&self, name: &str) -> Result<Value> {
        let summary = self.summary("")?;
        let name = self.node.pod_name(name);
        let pods = summary["pods"].as_array().context("no pods")?;
        let found = pods.iter().find(|pod| pod["podRef"]["name"] == name.as_str()).cloned();
        found.with_context(|| format!("{name} is not among {} pods", pods.len()))
    }
}

fn number(value: &Value, pointer: &str) -> Result<u64> {
    value.pointer(pointer).and_then(Value::as_u64).with_context(|| format!("no number {pointer} in {value:#}"))
}

/// A cgroup's file, in whichever hierarchy has it.
fn kernel(cgroup: &str, name: &str) -> Result<String> {
    let files = cgroups::hierarchies().into_iter().map(|mount| mount.join(cgroup.trim_start_matches('/')).join(name));
    files.into_iter().find_map(|file| std::fs::read_to_string(file).ok()).with_context(|| format!("{cgroup} {name}"))
}

/// CPU seconds that the kernel counts.
fn cpu_seconds(cgroup: &str) -> Result<f64> {
    if let Ok(nanoseconds) = kernel(cgroup, "cpuacct.usage") {
        return Ok(nanoseconds.trim().parse::<f64>()? / 1e9);
    }
    let text = kernel(cgroup, "cpu.stat")?;
    let microseconds = text.lines().find_map(|line| line.strip_prefix("usage_usec ")).context("no usage_usec")?;
    Ok(microseconds.trim().parse::<f64>()? / 1e6)
}

/// Received and sent bytes of eth0 in that process's network.
fn interface(pid: i32) -> Result<(u64, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/net/dev"))?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix("eth0:")).context("no eth0")?;
    let fields: Vec<u64> = line.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    Ok((fields[0], fields[8]))
}

/// Uses processor, memory, its disks, its log and its network, then says so and rests.
fn busy(world: &World) -> Pod {
    let script = format!(
        "dd if=/dev/zero of=/dev/shm/held bs=1M count=12 2>/dev/null; dd if=/dev/zero of=/v/file bs=1M count=8 2>/dev/null; \
         dd if=/dev/zero of=/layer bs=1M count=5 2>/dev/null; i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; \
         seq 1 20000; sleep 1000 & httpd -p 8080 -h /v; echo worked; {IDLE}"
    );
    Pod::busybox("busy", &script)
        .container_field(
            "resources",
            json!({"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "1500m", "memory": "96Mi"}}),
        )
        .and_container("side", IDLE)
        .empty_dir("v", "", None, "/v")
        .empty_dir("m", "Memory", Some("4Mi"), "/m")
        .host_path("w", &world.signs.to_string_lossy(), "Directory", "/w")
}

#[test]
fn what_a_pod_uses_is_shown_as_the_kernel_counts_it() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let world = World::start(&lab)?;
    let node = &world.node;
    node.write(&busy(&world))?;
    node.write(&Pod::idle("hosted").host_network())?;
    let waits = json!([{"name": "first", "image": node.image(), "command": ["sh", "-c", "until [ -e /w/go ]; do sleep 0.1; done"],
                        "volumeMounts": [{"name": "w", "mountPath": "/w"}]}]);
    let begins = Pod::idle("begins").host_path("w", &world.signs.to_string_lossy(), "Directory", "/w");
    node.write(&begins.spec("initContainers", waits))?;
    node.wait_for_log("busy", "main", "worked")?;
    let running = node.wait_running("busy", 2)?;
    node.wait_running("hosted", 1)?;
    let cri = node.cri()?;
    let address = cri.address(&running.sandbox.id)?;
    let (status, body) = node.http_get(address, 8080, "/file")?;
    ensure!(status == 200 && body.len() >= 7 << 20, "{status} {}", body.len());

    let group = cadvisor(&world, &running.main().id, &running.sandbox.id)?;
    summary_of_busy(&world, &running.sandbox.uid, &group, cri.pid(&running.main().id)?)?;
    small_summary(&world)?;
    resource(&world, &group)?;
    others(&world)?;
    restart(&world, running.main().labels.get("io.kubernetes.container.name").context("no name")?)?;
    away(&world)?;
    layers(&world)?;
    groups(&world)?;
    world.node.finish()
}

/// Gives the container's cgroup.
fn cadvisor(world: &World, container: &str, sandbox: &str) -> Result<String> {
    let pod = world.node.pod_name("busy");
    let of_main = [("container", "main"), ("pod", pod.as_str()), ("namespace", "default")];
    let of_sandbox = [("name", sandbox), ("container", ""), ("pod", pod.as_str())];
    let scrape = eventually("the pod's work is in the series", LONG, || {
        let scrape = world.scrape("/metrics/cadvisor")?;
        let sent = scrape.one("container_network_transmit_bytes_total", &of_sandbox)?;
        ensure!(sent >= 8e6, "{sent}");
        let series = scrape.all("container_network_transmit_bytes_total", &of_sandbox);
        let has_image = |image: &String| !image.is_empty();
        ensure!(series.iter().all(|one| one.labels.get("image").is_some_and(has_image)), "{series:?}");
        Ok(scrape)
    })?;
    let one = |name: &str| scrape.one(name, &of_main);
    let series = scrape.all("container_memory_rss", &of_main);
    let [series] = series.as_slice() else { anyhow::bail!("{} series of one container", series.len()) };
    let label = |name: &str| series.labels.get(name).map(String::as_str).unwrap_or_default();
    let group = label("id").to_owned();
    ensure!(label("name") == container && !label("image").is_empty() && group.ends_with(container), "{series:?}");
    let told = one("container_cpu_usage_seconds_total")?;
    let counted = cpu_seconds(&group)?;
    ensure!(told > 0.05 && told <= counted && counted - told < 5.0, "{told} of {counted}");
    ensure!(one("container_memory_usage_bytes")? >= (12 * MIB) as f64, "what it holds in memory");
    ensure!(one("container_spec_memory_limit_bytes")? == (96 * MIB) as f64);
    ensure!(one("container_spec_cpu_quota")? / one("container_spec_cpu_period")? == 1.5);
    ensure!(one("container_cpu_cfs_periods_total")? > 0.0, "with a quota the kernel counts periods");
    ensure!(one("container_processes")? >= 3.0, "the shell, its sleep and httpd");
    ensure!(one("container_file_descriptors")? >= 6.0 && one("container_threads")? >= 3.0);
    ensure!(scrape.one("container_ulimits_soft", &[("container", "main"), ("pod", &pod)])? > 0.0);
    ensure!(one("container_oom_events_total")? == 0.0 && one("container_last_seen")? > 1.7e9);
    ensure!(scrape.all("container_cpu_cfs_periods_total", &[("container", "side")]).is_empty(), "it has no quota");
    let host = world.node.pod_name("hosted");
    ensure!(
        scrape.all("container_network_receive_bytes_total", &[("pod", &host)]).is_empty(),
        "the node's, not the pod's"
    );
    ensure!(
        scrape.all("container_network_receive_bytes_total", &[("pod", &pod)]).len() == 1,
        "one source for each pod"
    );
    for level in ["", "/burstable", "/besteffort"] {
        let id = format!("{}/kubepods{level}", world.node.cgroup_root());
        let id = id.trim_start_matches('/');
        let id = format!("/{id}");
        ensure!(
            scrape.one("container_memory_working_set_bytes", &[("id", &id)])? > 0.0 || level == "/besteffort",
            "{id}"
        );
    }
    ensure!(scrape.one("container_scrape_error", &[])? == 0.0 && scrape.one("machine_scrape_error", &[])? == 0.0);
    ensure!(scrape.one("machine_cpu_cores", &[])? >= 1.0 && scrape.one("cadvisor_version_info", &[])? == 1.0);
    let at: i64 = series.timestamp.as_deref().context("no timestamp")?.parse()?;
    ensure!(at > 1_700_000_000_000, "milliseconds");
    Ok(group)
}

fn summary_of_busy(world: &World, uid: &str, group: &str, pid: i32) -> Result<()> {
    let pod = world.pod("busy")?;
    ensure!(pod["podRef"]["uid"] == uid && pod["podRef"]["namespace"] == "default", "{}", pod["podRef"]);
    let main = container(&pod, "main")?;
    let told = number(main, "/cpu/usageCoreNanoSeconds")? as f64 / 1e9;
    ensure!(told <= cpu_seconds(group)? && told > 0.05, "{told}");
    let (limit, working_set) = (96 * MIB, number(main, "/memory/workingSetBytes")?);
    ensure!(number(main, "/memory/availableBytes")? == limit - working_set, "limit less working set");
    let side = container(&pod, "side")?;
    ensure!(side["memory"].get("availableBytes").is_none(), "no limit, nothing to be left of it: {side:#}");
    ensure!(number(main, "/logs/usedBytes")? > 100_000 && number(main, "/logs/inodesUsed")? == 1, "{}", main["logs"]);
    ensure!(number(&pod, "/process_stats/process_count")? >= 4, "both containers' processes");
    let volumes = pod["volume"].as_array().context("no volumes")?;
    let volume = |name: &str| volumes.iter().find(|volume| volume["name"] == name).context("a volume");
    ensure!((8 * MIB..9 * MIB).contains(&number(volume("v")?, "/usedBytes")?), "{volumes:?}");
    ensure!(number(volume("m")?, "/capacityBytes")? == 4 * MIB, "a volume in memory is its own file system");
    ensure!(volumes.len() == 2, "what is the host's own is nobody's: {volumes:?}");
    let ephemeral = number(&pod, "/ephemeral-storage/usedBytes")?;
    ensure!(ephemeral >= 8 * MIB, "the volume on disk and more: {ephemeral}");
    let network = eventually("the network's counters are the kernel's", LONG, || {
        let network = world.pod("busy")?["network"].clone();
        let (received, sent) = interface(pid)?;
        let told = (number(&network, "/rxBytes")?, number(&network, "/txBytes")?);
        ensure!(told == (received, sent), "{told:?} of {received} {sent}");
        Ok(network)
    })?;
    ensure!(
        network["name"] == "eth0" && network["interfaces"].as_array().is_some_and(|all| all.len() == 1),
        "{network}"
    );
    ensure!(number(main, "/swap/swapUsageBytes")? == 0);

    let node = world.summary("")?["node"].clone();
    ensure!(node["nodeName"] == "alpha" && number(&node, "/rlimit/curproc")? > 0);
    let pods = node["systemContainers"].as_array().and_then(|all| all.iter().find(|one| one["name"] == "pods"));
    ensure!(pods.is_some_and(|pods| number(pods, "/cpu/usageCoreNanoSeconds").is_ok()), "{node:#}");
    for figure in ["/fs/usedBytes", "/runtime/containerFs/capacityBytes", "/memory/availableBytes"] {
        ensure!(number(&node, figure)? > 0, "{figure}");
    }
    ensure!(node["network"]["interfaces"].is_array() && node["cpu"]["usageNanoCores"].is_u64(), "{node:#}");
    Ok(())
}

fn container<'a>(pod: &'a Value, name: &str) -> Result<&'a Value> {
    let all = pod["containers"].as_array().context("no containers")?;
    all.iter().find(|one| one["name"] == name).with_context(|| format!("no container {name} in {pod:#}"))
}

fn small_summary(world: &World) -> Result<()> {
    let small = world.summary("?only_cpu_and_memory=true")?;
    ensure!(small["node"].get("fs").is_none() && small["node"].get("network").is_none(), "{small:#}");
    let pods = small["pods"].as_array().filter(|pods| !pods.is_empty()).context("no pods")?;
    for pod in pods {
        ensure!(pod["cpu"].is_object() && pod.get("volume").is_none() && pod.get("network").is_none(), "{pod:#}");
        ensure!(pod["containers"][0]["memory"].is_object() && pod["containers"][0].get("logs").is_none(), "{pod:#}");
    }
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    let answer = world.port.request("POST", "/stats/summary", &form, b"only_cpu_and_memory=true")?;
    let posted: Value = serde_json::from_slice(&answer.body)?;
    ensure!(answer.status == 200 && posted["node"].get("fs").is_none(), "a form says it as well");
    let answer = world.port.request("POST", "/stats/summary/", &[], b"")?;
    ensure!(answer.status == 200 && serde_json::from_slice::<Value>(&answer.body)?["node"]["fs"].is_object());
    Ok(())
}

fn resource(world: &World, group: &str) -> Result<()> {
    let scrape = world.scrape("/metrics/resource")?;
    let pod = world.node.pod_name("busy");
    let main = [("container", "main"), ("pod", pod.as_str()), ("namespace", "default")];
    let told = scrape.one("container_cpu_usage_seconds_total", &main)?;
    ensure!(told > 0.05 && told <= cpu_seconds(group)?, "{told}");
    ensure!(scrape.one("container_memory_working_set_bytes", &main)? >= (12 * MIB) as f64);
    ensure!(scrape.one("container_swap_usage_bytes", &main)? == 0.0);
    ensure!(scrape.one("pod_cpu_usage_seconds_total", &[("pod", &pod)])? >= told, "the pod with all of it");
    ensure!(
        scrape.one("node_memory_working_set_bytes", &[])? > 0.0 && scrape.one("resource_scrape_error", &[])? == 0.0
    );
    for name in ["container_cpu_usage_seconds_total", "container_memory_working_set_bytes"] {
        let series = scrape.all(name, &[]);
        ensure!(series.len() >= 3 && series.iter().all(|one| one.value > 0.0 && one.timestamp.is_some()), "{series:?}");
    }
    let starts = scrape.all("container_start_time_seconds", &[]);
    ensure!(starts.len() >= 3 && starts.iter().all(|one| one.timestamp.is_none()), "{starts:?}");
    Ok(())
}

/// A pod in the host's network, and one that has only begun.
fn others(world: &World) -> Result<()> {
    ensure!(world.pod("hosted")?.get("network").is_none(), "its interfaces are the node's");
    let names = |pod: &Value| {
        let all = pod["containers"].as_array().cloned().unwrap_or_default();
        all.iter().filter_map(|one| one["name"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    let begins = world.pod("begins")?;
    ensure!(names(&begins) == ["first"], "an init container while it runs: {begins:#}");
    std::fs::write(world.signs.join("go"), "")?;
    eventually("the init container is no longer shown", LONG, || {
        let names = names(&world.pod("begins")?);
        ensure!(names == ["main"], "{names:?}");
        Ok(())
    })
}

/// Another instance has a later start time and begins to count again.
fn restart(world: &World, container: &str) -> Result<()> {
    let pod = world.node.pod_name("busy");
    let labels = [("container", container), ("pod", pod.as_str())];
    let before = world.scrape("/metrics/resource")?.one("container_start_time_seconds", &labels)?;
    let cri = world.node.cri()?;
    let id = world.node.wait_running("busy", 2)?.main().id.clone();
    cri.stop_container(&id)?;
    eventually("the new instance is shown", LONG, || {
        let scrape = world.scrape("/metrics/resource")?;
        let after = scrape.one("container_start_time_seconds", &labels)?;
        ensure!(after > before, "{after} {before}");
        Ok(())
    })
}

/// Killed processes come back; meanwhile nothing false is told, in any scrape.
fn away(world: &World) -> Result<()> {
    let pod = world.node.pod_name("busy");
    for daemon in ["kubelet-syncd", "kubelet-evictiond"] {
        let mut wrong = None;
        let killed = Instant::now();
        world.node.kill_daemon(daemon)?;
        eventually(&format!("{daemon} is back and all is told"), LONG, || {
            let mut is_shown = true;
            for (path, error) in
                [("/metrics/resource", "resource_scrape_error"), ("/metrics/cadvisor", "container_scrape_error")]
            {
                let scrape = world.scrape(path)?;
                let failed = scrape.one(error, &[])? != 0.0;
                let shown = !scrape.all("container_memory_working_set_bytes", &[("pod", &pod)]).is_empty();
                if !failed && !shown {
                    wrong.get_or_insert_with(|| format!("{daemon} away: {path} says no error and shows no pod"));
                }
                is_shown &= shown;
            }
            ensure!(is_shown && killed.elapsed() > RESTART, "not yet");
            world.pod("busy")?;
            Ok(())
        })?;
        ensure!(wrong.is_none(), "{}", wrong.unwrap_or_default());
    }
    Ok(())
}

/// What containers have written, which the runtime finds out every ten seconds.
fn layers(world: &World) -> Result<()> {
    eventually("the writable layer is known", LONG, || {
        let pod = world.pod("busy")?;
        let main = container(&pod, "main")?;
        let used = number(main, "/rootfs/usedBytes")?;
        ensure!(used >= 5 * MIB && number(main, "/rootfs/inodesUsed")? > 0, "{used}");
        ensure!(number(main, "/rootfs/capacityBytes")? > used);
        ensure!(number(&world.summary("")?, "/node/runtime/imageFs/usedBytes")? > MIB, "images are on it");
        let ephemeral = number(&pod, "/ephemeral-storage/usedBytes")?;
        ensure!((13 * MIB..18 * MIB).contains(&ephemeral), "layer, logs and the volume on disk: {ephemeral}");
        Ok(())
    })
}

/// Whoever looks for it finds each cgroup where the series say that it is.
fn groups(world: &World) -> Result<()> {
    let scrape = world.scrape("/metrics/cadvisor")?;
    let all = scrape.all("container_memory_usage_bytes", &[]);
    let begins = world.node.pod_name("begins");
    ensure!(all.iter().filter(|one| one.labels["pod"] == begins).count() == 3, "the pod, its sandbox, its container");
    for one in all {
        let id = one.labels["id"].trim_start_matches('/').to_owned();
        ensure!(cgroups::hierarchies().iter().any(|mount| mount.join(&id).is_dir()), "{id}");
    }
    Ok(())
}

/// A process that stands still until this is dropped.
struct Stopped(i32);

impl Stopped {
    fn stop(pid: i32) -> Self {
        signal(pid, Signal::SIGSTOP);
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, Signal::SIGCONT);
    }
}

/// A runtime asks its shims one after the other, and with a thousand containers that takes seconds. Here one shim stands still.
#[test]
fn what_the_runtime_says_late_is_told_as_soon_as_it_is_said() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let mut world = World::start(&lab)?;
    world.node.write(&Pod::idle("rests"))?;
    let running = world.node.wait_running("rests", 1)?;
    let cri = world.node.cri()?;
    let shim = processes::stat(cri.pid(&running.main().id)?)?.parent;
    // From here on nothing is known.
    world.node.kill_daemon("kubelet-evictiond")?;
    let stopped = Stopped::stop(shim);
    world.node.wait_healthy()?;
    for _ in 0..3 {
        let pod = eventually("the pod is told", LONG, || world.pod("rests"))?;
        let main = container(&pod, "main")?;
        ensure!(main["memory"].is_object() && main["rootfs"].is_null(), "{main:#}");
    }
    drop(stopped);
    // Each waits for the question that was asked first: one that had been given up would be asked again after seconds only.
    for _ in 0..3 {
        let pod = world.pod("rests")?;
        if number(container(&pod, "main")?, "/rootfs/inodesUsed").is_ok() {
            return world.node.finish_after_deaths();
        }
    }
    bail!("what the runtime said at last is not told")
}
