//! How soon a pod that takes the pods' memory is told to end: from the moment at which what is left falls below the threshold to the
//! SIGTERM in its process, in parts, and whether it ended evicted before the kernel ended it; and how soon a disk is judged. The
//! control plane is a real one with `KUBEBUILDER_ASSETS`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::{Cluster, LONG, Lab, Node, agnhost, cgroups, eventually};
use bulkhead_tests::disk::Disk;
use serde_json::{Value, json};

const NODE: &str = "bench";
const NAMESPACE: &str = "default";
const MIB: u64 = 1 << 20;
/// What all pods may have, and below how much left one of them goes.
const PODS_HAVE: u64 = 700 * MIB;
const THRESHOLD: u64 = 100 * MIB;
const DISK_MIB: u64 = 400;
/// How often the bench looks at the pods' memory.
const LOOK: Duration = Duration::from_millis(1);
/// Memory is taken in steps of so much.
const STEP_MIB: u64 = 1;

/// How much of everything.
#[derive(Debug, Clone)]
pub struct Plan {
    pub judged: bool,
    /// Takers of 256 MiB/s that end when they are told to.
    pub runs: usize,
    /// Takers for each cell of the table of rates and ends.
    pub cell: usize,
    /// Times that a disk becomes short.
    pub disks: usize,
}

/// MiB a second.
pub const RATE: u64 = 256;
pub const RATES: [u64; 4] = [64, 256, 512, 1024];
/// How long a taker takes to end, milliseconds.
pub const ENDS: [u64; 4] = [0, 100, 250, 1000];

/// One pod's life.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// Evicted, and told to end before the kernel ended it.
    pub evicted: bool,
    /// From the crossing: the eviction manager had judged, had ranked, kubelet-syncd had written it down, the process was told.
    pub judged: Duration,
    pub ranked: Duration,
    pub accepted: Duration,
    pub told: Duration,
}

#[derive(Debug, Clone)]
pub struct Cell {
    pub rate: u64,
    pub end_after: u64,
    pub evicted: usize,
    pub runs: usize,
}

#[derive(Debug, Clone, Default)]
pub struct Measurements {
    pub runs: Vec<Run>,
    pub cells: Vec<Cell>,
    /// From the crossing of nodefs.available to the judgement.
    pub disks: Vec<Duration>,
}

/// Runs everything.
///
/// # Errors
/// A pod did not start, or did not end in any way.
pub fn run(plan: &Plan) -> Result<Measurements> {
    let lab = Lab::start_alone()?;
    let program = std::env::current_exe()?.with_file_name("agnhost");
    agnhost::import(&lab, &program)?;
    let cluster = lab.stock_cluster()?;
    let node = lab
        .node(NODE)
        .joins(&cluster)?
        .config("systemReserved", json!({"memory": reserved()?}))
        .config("evictionHard", json!({"memory.available": "100Mi"}))
        .config("evictionPressureTransitionPeriod", json!("1s"))
        .start()?;
    cluster.wait_for("nodes", "", NODE, "the node is ready", |node| {
        node["status"]["conditions"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
    })?;
    let mut measured = Measurements::default();
    for index in 0..plan.runs {
        let run = one(&cluster, &node, &format!("taker-{index}"), RATE, 0)?;
        eprintln!("bench: eviction: {}/{} {RATE} MiB/s: {run:?}", index + 1, plan.runs);
        measured.runs.push(run);
    }
    for rate in RATES.into_iter().filter(|_| plan.cell > 0) {
        for end_after in ENDS {
            let mut cell = Cell { rate, end_after, evicted: 0, runs: plan.cell };
            for index in 0..plan.cell {
                let run = one(&cluster, &node, &format!("cell-{rate}-{end_after}-{index}"), rate, end_after)?;
                cell.evicted += usize::from(run.evicted);
            }
            eprintln!("bench: eviction: {rate} MiB/s, ends after {end_after} ms: {} of {}", cell.evicted, cell.runs);
            measured.cells.push(cell);
        }
    }
    node.finish().context("the node's end")?;
    measured.disks = disks(plan.disks, &lab)?;
    Ok(measured)
}

/// A file system in a file becomes short, again and again.
fn disks(times: usize, lab: &Lab) -> Result<Vec<Duration>> {
    let mut verdicts = Vec::new();
    if times == 0 {
        return Ok(verdicts);
    }
    let disk = Disk::new(lab, "nodefs", DISK_MIB)?;
    let node = lab
        .node(NODE)
        .in_folder(disk.path())
        .config("evictionHard", json!({"nodefs.available": "100Mi"}))
        .config("evictionPressureTransitionPeriod", json!("1s"))
        .start()?;
    for index in 0..times {
        let log_before = std::fs::metadata(node.log())?.len();
        let file = disk.path().join("filler");
        let mut filler = std::fs::File::create(&file)?;
        let chunk = vec![1; 1 << 20];
        while left(disk.path())? >= THRESHOLD {
            filler.write_all(&chunk)?;
        }
        let crossed = SystemTime::now();
        let judged = eventually("the disk is judged to be short", LONG, || {
            let log = std::fs::read(node.log())?;
            let log = String::from_utf8_lossy(&log[usize::try_from(log_before)?.min(log.len())..]).into_owned();
            let line = log.lines().find(|line| line.contains("Eviction manager: attempting to reclaim"));
            line.and_then(time_of).context("not yet")
        })?;
        verdicts.push(judged.duration_since(crossed).unwrap_or_default());
        eprintln!("bench: eviction: disk {}/{times}: {:?}", index + 1, verdicts.last());
        drop(filler);
        std::fs::remove_file(&file)?;
        eventually("the disk is well", LONG, || {
            let pressure: Value = serde_json::from_str(&node.ctl(&["pressure", "-o", "json"])?)?;
            ensure!(pressure["conditions"]["DiskPressure"] == false, "{pressure}");
            ensure!(pressure["doing"] == "", "{pressure}");
            Ok(())
        })?;
    }
    node.finish().context("the node's end")?;
    Ok(verdicts)
}

fn left(folder: &Path) -> Result<u64> {
    let found = rustix::fs::statvfs(folder)?;
    Ok(found.f_bavail * found.f_frsize)
}

/// What is kept from pods, so that they have [`PODS_HAVE`].
fn reserved() -> Result<String> {
    let meminfo = std::fs::read_to_string("/proc/meminfo")?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).context("no MemTotal")?;
    let total: u64 = line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024;
    Ok((total - PODS_HAVE).to_string())
}

/// When the pods' memory crossed the threshold, seen from outside of the node.
struct Crossing {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Option<SystemTime>>,
}

impl Crossing {
    fn watch(file: PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let used = std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u64>().ok());
                if used.is_some_and(|used| PODS_HAVE.saturating_sub(used) < THRESHOLD) {
                    return Some(SystemTime::now());
                }
                std::thread::sleep(LOOK);
            }
            None
        });
        Crossing { stop, thread }
    }

    fn seen(self) -> Result<SystemTime> {
        self.stop.store(true, Ordering::Relaxed);
        let seen = self.thread.join().ok().context("the watching thread panicked")?;
        seen.context("the pods' memory never crossed the threshold")
    }
}

fn one(cluster: &Cluster, node: &Node, name: &str, rate: u64, end_after: u64) -> Result<Run> {
    let log_before = std::fs::metadata(node.log())?.len();
    let usage = cgroups::memory_usage_file(&format!("{}/kubepods", node.cgroup_root()))?;
    let crossing = Crossing::watch(usage);
    let step = format!("{STEP_MIB}Mi");
    let pause = format!("{}us", STEP_MIB * 1_000_000 / rate);
    let container = json!({
        "name": "main",
        "image": agnhost::IMAGE,
        "args": ["stress", "--mem-total", "2Gi", "--mem-alloc-size", step, "--mem-alloc-sleep", pause],
        "env": [{"name": "END_AFTER_MS", "value": end_after.to_string()}],
        // A pod without requests is refused while the node is still under pressure.
        "resources": {"requests": {"memory": "8Mi"}},
    });
    let spec = json!({"nodeName": NODE, "restartPolicy": "Never", "containers": [container]});
    let metadata = json!({"name": name, "namespace": NAMESPACE});
    cluster.create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))?;
    let ended = cluster.wait_for("pods", NAMESPACE, name, "it has ended", |pod| {
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        let terminated = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
        matches!(phase, "Failed" | "Succeeded") && (is_evicted(pod) || !terminated.is_null())
    })?;
    let crossed = crossing.seen()?;
    let log = std::fs::read(node.log())?;
    let log = String::from_utf8_lossy(&log[usize::try_from(log_before)?.min(log.len())..]).into_owned();
    cluster.delete("pods", NAMESPACE, name, Some(0))?;
    eventually("the pod's memory is given back", LONG, || {
        ensure!(cluster.find("pods", NAMESPACE, name)?.is_none(), "the object is there");
        let used: u64 =
            std::fs::read_to_string(cgroups::memory_usage_file(&format!("{}/kubepods", node.cgroup_root()))?)?
                .trim()
                .parse()?;
        ensure!(used < PODS_HAVE / 2, "{used} bytes are used");
        Ok(())
    })?;
    run_of(&ended, crossed, &log)
}

/// One that exits with 0 has Succeeded, without a reason.
fn is_evicted(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "DisruptionTarget" && one["status"] == "True"))
}

fn run_of(ended: &Value, crossed: SystemTime, log: &str) -> Result<Run> {
    let after = |time: Option<SystemTime>| time.and_then(|time| time.duration_since(crossed).ok()).unwrap_or_default();
    let terminated = &ended["status"]["containerStatuses"][0]["state"]["terminated"];
    let said = terminated["message"].as_str().unwrap_or_default();
    let told = said.strip_prefix("SIGTERM at ").and_then(|text| text.parse().ok());
    let told_at = told.map(|nanoseconds| SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds));
    let by_kernel = terminated["reason"] == "OOMKilled" || terminated["exitCode"] == 137;
    let logged = |text: &str| {
        let line = log.lines().find(|line| line.contains(text))?;
        time_of(line)
    };
    Ok(Run {
        evicted: is_evicted(ended) && told.is_some() && !by_kernel,
        judged: after(logged("Eviction manager: attempting to reclaim")),
        ranked: after(logged("Eviction manager: pods ranked for eviction")),
        accepted: after(logged("Evicting pod")),
        told: after(told_at),
    })
}

/// Of a line in klog's form, `I1124 08:16:30.123456 ...`, of this year and in local time.
fn time_of(line: &str) -> Option<SystemTime> {
    let (date, rest) = line.get(1..)?.split_once(' ')?;
    let time = rest.get(..15)?;
    let now = jiff::Zoned::now();
    let text = format!("{}{date} {time}", now.strftime("%Y"));
    let local = jiff::civil::DateTime::strptime("%Y%m%d %H:%M:%S%.f", text).ok()?;
    Some(local.to_zoned(now.time_zone().clone()).ok()?.timestamp().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_log() {
        let now = jiff::Zoned::now();
        let line = format!("I{}  123 x.rs:1] said", now.strftime("%m%d %H:%M:%S%.6f"));
        let read = time_of(&line).unwrap();
        let exact = SystemTime::from(now.timestamp());
        assert!(exact.duration_since(read).unwrap() < Duration::from_micros(1));
        assert_eq!(time_of("not a line"), None);
    }

    #[test]
    fn an_eviction_is_one_that_the_kernel_did_not_forestall() {
        let pod = |condition: &str, code: i64, why: &str, said: &str| {
            let terminated = json!({"exitCode": code, "reason": why, "message": said});
            let conditions = json!([{"type": condition, "status": "True"}]);
            json!({"status": {"conditions": conditions, "containerStatuses": [{"state": {"terminated": terminated}}]}})
        };
        let crossed = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
        let of = |pod: &Value| run_of(pod, crossed, "").unwrap();
        let said = "SIGTERM at 5100000000";
        let good = of(&pod("DisruptionTarget", 0, "Completed", said));
        assert_eq!((good.evicted, good.told), (true, Duration::from_millis(100)));
        assert!(!of(&pod("DisruptionTarget", 137, "OOMKilled", said)).evicted);
        assert!(!of(&pod("Ready", 137, "OOMKilled", "")).evicted);
        assert!(!of(&pod("DisruptionTarget", 137, "Error", "")).evicted);
    }
}
