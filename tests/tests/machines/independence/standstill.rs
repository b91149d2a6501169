//! What stands still for a while and goes on by itself: the runtime, the API server, a file system. Nobody is to be
//! restarted for it, least of all by the watchdog: who waits for another is not stuck.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bulkhead_testkit::apiserver::faults::{Action, Rule};
use bulkhead_testkit::machine::run;
use bulkhead_testkit::systemd::{Machine, SERVICES, Unit};
use bulkhead_testkit::{Cluster, LONG, Pod, eventually};
use bulkhead_tests::joined::{NAMESPACE, condition, is_ready, wait_ready};
use bulkhead_tests::moments::now;
use serde_json::json;

use super::{RUNTIME, always_ready, pods};

/// Where the file system that hangs is inside the machine.
pub const HANGS: &str = "/mnt/hangs";
/// Its size, MiB.
pub const HANGS_MIB: u64 = 32;
/// More than kubelet-volnetd has threads for blocking work.
const HUNG: usize = 10;
/// Upstream's, in milliseconds: a runtime that has not answered for so long makes the node not ready...
const RUNTIME_SILENT: i64 = 30_000;
/// ...and it is asked so often...
const ASKED: i64 = 5_000;
/// ...and the node is looked at so often.
const LOOKED_AT: i64 = 10_000;

/// All units, as they are before and have to be afterwards: the same runs of the same processes.
fn units(machine: &Machine) -> Result<Vec<(&'static str, Unit)>> {
    SERVICES.into_iter().chain([RUNTIME]).map(|unit| Ok((unit, machine.unit(unit)?))).collect()
}

fn untouched(machine: &Machine, before: &[(&'static str, Unit)]) -> Result<()> {
    let after = units(machine)?;
    ensure!(after == before, "{before:#?} became {after:#?}");
    Ok(())
}

/// containerd by SIGSTOP: it takes every connection and answers nothing. The node stays ready for as long as upstream's, and
/// is ready again as soon; in the long run it is not ready in between, for longer than three probes of a container fail in.
pub fn runtime(machine: &Machine, cluster: &Cluster, long: bool) -> Result<()> {
    let pause = Duration::from_secs(if long { 75 } else { 10 });
    let (before, running, node) = (units(machine)?, pods(machine)?, machine.hostname());
    let ready = || -> Result<bool> { Ok(condition(&cluster.get("nodes", "", node)?, "Ready") == "True") };
    machine.signal(RUNTIME, "STOP")?;
    let (stopped, began) = (now(), Instant::now());
    let mut lost = None;
    while began.elapsed() < pause {
        if lost.is_none() && !ready()? {
            lost = Some(now() - stopped);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    machine.signal(RUNTIME, "CONT")?;
    let continued = now();
    eventually("the node is ready", LONG, || {
        ensure!(ready()?, "it is not");
        Ok(())
    })?;
    let regained = now() - continued;
    let kept = lost.is_none_or(|after| after >= RUNTIME_SILENT - ASKED - 1000);
    ensure!(kept && lost.is_some() == long, "not ready {lost:?} ms after the runtime stood still");
    ensure!(regained <= ASKED + LOOKED_AT, "ready again {regained} ms after the runtime went on");
    eventually("the runtime has the same containers", LONG, || {
        let after = pods(machine)?;
        ensure!(after == running, "{running:#?} became {after:#?}");
        Ok(())
    })?;
    machine.wait_healthy()?;
    println!("the runtime stood still for {pause:?}: not ready after {lost:?} ms, again within {regained} ms");
    untouched(machine, &before)
}

/// The API server takes every request and answers none, for longer than the watchdog waits; in the long run also for longer
/// than any request and any promise.
pub fn api_server(machine: &Machine, cluster: &Cluster, long: bool) -> Result<()> {
    let pause = Duration::from_secs(if long { 120 } else { 10 });
    let (before, running) = (units(machine)?, pods(machine)?);
    cluster.faults()?.add(Rule::new(Action::Hang).agent("kubelet/"));
    std::thread::sleep(pause);
    cluster.faults()?.clear();
    let lease = || -> Result<String> {
        Ok(cluster.get("leases", "kube-node-lease", machine.hostname())?["spec"]["renewTime"].to_string())
    };
    let old = lease()?;
    eventually("the lease is renewed again", LONG, || {
        ensure!(lease()? != old, "it is not: {old}");
        Ok(())
    })?;
    let after = pods(machine)?;
    ensure!(after == running, "{running:#?} became {after:#?}");
    untouched(machine, &before)
}

/// Pods want folders on a file system that hangs: each takes a worker of kubelet-volnetd's, which no signal would give back.
/// Others start meanwhile, no process is killed for that, and when the file system goes on the pods start.
pub fn file_system(machine: &Machine, cluster: &Cluster, long: bool) -> Result<()> {
    let pause = Duration::from_secs(if long { 60 } else { 8 });
    let (before, running) = (units(machine)?, pods(machine)?);
    let names: Vec<String> = (0..HUNG).map(|index| format!("hung-{index}")).collect();
    let held = Held::freeze(machine.disk())?;
    for name in &names {
        let folder = json!({"hostPath": {"path": format!("{HANGS}/{name}"), "type": "DirectoryOrCreate"}});
        let folder = folder.as_object().cloned().unwrap_or_default();
        let pod = Pod::idle(name).volume("disk", folder, "/disk").spec("nodeName", json!(machine.hostname()));
        cluster.create(pod.value())?;
    }
    let created = Instant::now();
    eventually("a worker hangs for each pod", LONG, || {
        let hung = hung_workers(machine)?;
        ensure!(hung >= HUNG, "{hung} do");
        Ok(())
    })?;
    println!("its workers hung {:.1} s after the pods came", created.elapsed().as_secs_f32());
    std::thread::sleep(pause);
    ensure!(hung_workers(machine)? >= HUNG, "they did not hang for long");
    untouched(machine, &before)?;
    cluster.create(Pod::idle("beside").spec("nodeName", json!(machine.hostname())).value())?;
    wait_ready(cluster, "beside")?;
    cluster.delete("pods", NAMESPACE, "beside", Some(1))?;
    cluster.wait_gone("pods", NAMESPACE, "beside")?;
    always_ready(cluster, machine.hostname())?;
    let now = pods(machine)?;
    ensure!(now == running, "{running:#?} became {now:#?}");
    let said = machine.journal(&["--unit", SERVICES[0], "--output=cat"])?;
    ensure!(said.contains("has not answered a worker for a while") && said.contains("CheckHostPath"), "{said}");
    for name in &names {
        ensure!(!is_ready(&cluster.get("pods", NAMESPACE, name)?), "{name} is ready without its folder");
    }
    drop(held);
    let thawed = Instant::now();
    for name in &names {
        wait_ready(cluster, name)?;
    }
    println!("the file system hung for {pause:?}: its pods were ready {:.1} s later", thawed.elapsed().as_secs_f32());
    for name in &names {
        cluster.delete("pods", NAMESPACE, name, Some(1))?;
    }
    for name in &names {
        cluster.wait_gone("pods", NAMESPACE, name)?;
    }
    untouched(machine, &before)
}

/// Workers of kubelet-volnetd's that sleep where no signal reaches them.
fn hung_workers(machine: &Machine) -> Result<usize> {
    let proc = machine.live_root()?.join("proc");
    let is_worker = |line: &[String]| line.first().is_some_and(|title| title == "kubelet-volnetd: worker");
    let state = |pid: i32| std::fs::read_to_string(proc.join(format!("{pid}/stat"))).unwrap_or_default();
    let hangs = |pid: i32| state(pid).rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('D'));
    Ok(machine.processes()?.into_iter().filter(|(pid, line)| is_worker(line) && hangs(*pid)).count())
}

/// A file system hangs until this is dropped: it is frozen, and whoever writes to it sleeps in the kernel, SIGKILL or not, as with a
/// network disk that is gone. Where nobody drops it, taking down the machine lets it go on.
#[derive(Debug)]
struct Held(PathBuf);

impl Held {
    fn freeze(mounted: PathBuf) -> Result<Self> {
        run("fsfreeze", &["--freeze", &mounted.display().to_string()])?;
        Ok(Self(mounted))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = run("fsfreeze", &["--unfreeze", &self.0.display().to_string()]);
    }
}
