//! The measurements. A node's start counts from the manifest's arrival in the folder until the node itself says that
//! the pod runs; a floor's from the first CRI call to the last one's answer. So the node is also charged for learning.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_ipc::syncd::pod_update::Update;
use bulkhead_ipc::syncd::{PodState, WorkerState};
use bulkhead_testkit::agent::PodWatch;
use bulkhead_testkit::floor::{Floor, FloorPod};
use bulkhead_testkit::wait::eventually;
use bulkhead_testkit::{Cluster, LONG, Lab, Node, NodeBuilder, Pod, Release, processes};
use nix::sys::signal::Signal;
use serde_json::json;

/// How much of everything.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Whether the budgets apply: too few of everything says nothing.
    pub judged: bool,
    pub pairs: usize,
    pub pods: usize,
    pub exits: usize,
    pub idle: Duration,
    /// Numbers of starts in flight that the floor is tried with; the best counts.
    pub in_flight: Vec<usize>,
}

/// A figure of the floor and the node's.
#[derive(Debug, Clone, Default)]
pub struct Pair {
    pub floor: Vec<Duration>,
    pub node: Vec<Duration>,
}

/// What a process uses, or all together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    pub cpu_ns: u64,
    pub context_switches: u64,
}

impl Usage {
    /// What was used after `before`, which a process that began later does not have.
    pub fn since(self, before: Option<Usage>) -> Usage {
        let before = before.unwrap_or_default();
        Usage {
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            context_switches: self.context_switches.saturating_sub(before.context_switches),
        }
    }
}

impl std::iter::Sum for Usage {
    fn sum<I: Iterator<Item = Usage>>(all: I) -> Usage {
        all.fold(Usage::default(), |sum, one| Usage {
            cpu_ns: sum.cpu_ns + one.cpu_ns,
            context_switches: sum.context_switches + one.context_switches,
        })
    }
}

#[derive(Debug, Clone, Default)]
pub struct Measurements {
    pub start_one: Pair,
    pub delete_one: Pair,
    /// Each pod's time from the common beginning.
    pub start_many: Pair,
    pub floor_in_flight: usize,
    /// The last pod's end.
    pub delete_many: Pair,
    pub exit_to_known: Pair,
    pub start_many_cpu_ns: u64,
    pub idle: Usage,
    pub idle_seconds: f64,
    pub pss_empty_kib: BTreeMap<String, u64>,
    pub pss_full_kib: BTreeMap<String, u64>,
    pub events_missed: u64,
}

/// Time for a stack to come to rest before idling is measured: the slow audit of a fresh start is no idling.
pub const SETTLE: Duration = Duration::from_secs(8);
/// Every 15 s a daemon lets go of pages of its program where nothing goes on any more: twice, for the first look may come into the
/// end of the work.
pub const MEMORY_SETTLES: Duration = Duration::from_secs(31);
/// How often memory is looked at while nothing happens.
const SAMPLED: Duration = Duration::from_secs(5);
/// A hundred pods on two slow cores.
pub const MANY: Duration = Duration::from_secs(300);

/// Runs everything.
///
/// # Errors
/// A pod did not start or end, or a process ended meanwhile.
pub fn run(plan: &Plan) -> Result<Measurements> {
    let mut measured = Measurements::default();
    progress("a runtime for the floor, another one with the node");
    let node_lab = Lab::start_alone()?;
    let floor = Floor::new(Lab::start_beside()?)?;
    let node = node_lab.node("bench").start()?;
    std::thread::sleep(SETTLE);
    measured.pss_empty_kib = pss(&node)?;

    pairs(plan, &floor, &node, &mut measured)?;
    floor_exits(plan, &floor, &mut measured)?;
    let best = floor_many(&floor, "many", plan.pods, &plan.in_flight)?;
    measured.start_many.floor = best.started;
    measured.delete_many.floor = vec![best.deleted];
    measured.floor_in_flight = best.in_flight;
    node_many(plan, &node, &mut measured)?;
    measured.events_missed = node.agent()?.node()?.events_missed;
    node.finish().context("the node's end")?;
    Ok(measured)
}

fn progress(text: &str) {
    eprintln!("bench: {text}");
}

fn pairs(plan: &Plan, floor: &Floor, node: &Node, measured: &mut Measurements) -> Result<()> {
    let agent = node.agent()?;
    let mut watch = agent.watch()?;
    // The first start of a runtime reads its files from disk: it counts for neither.
    for index in 0..=plan.pairs {
        progress(&format!("pair {index} of {}", plan.pairs));
        let (pod, floor_start) = floor.start(&format!("pair-{index}"))?;
        let floor_delete = floor.delete(&pod)?;
        let (node_start, node_delete) = one(node, &mut watch, &format!("pair-{index}"))?;
        if index > 0 {
            measured.start_one.floor.push(floor_start);
            measured.delete_one.floor.push(floor_delete);
            measured.start_one.node.push(node_start);
            measured.delete_one.node.push(node_delete);
        }
    }
    Ok(())
}

fn one(node: &Node, watch: &mut PodWatch<'_>, name: &str) -> Result<(Duration, Duration)> {
    let full_name = node.pod_name(name);
    let mut uid = String::new();
    let begin = Instant::now();
    node.write(&Pod::idle(name))?;
    let up = watch.until("the pod runs", LONG, |update| match update {
        Update::Upsert(pod) if pod.name == full_name && runs(pod) => {
            uid = pod.uid.clone();
            true
        }
        _ => false,
    })?;
    let start = up - begin;

    let begin = Instant::now();
    node.remove(name)?;
    let down =
        watch.until("the pod's containers have ended", LONG, |update| ended(update).is_some_and(|it| it == uid))?;
    let delete = down - begin;
    // What follows (removal of containers, directories, cgroups) must not run into the next pair's floor.
    let cri = node.cri()?;
    eventually("the pod is removed", LONG, || {
        ensure!(cri.sandboxes()?.is_empty(), "the sandbox is still there");
        Ok(())
    })?;
    Ok((start, delete))
}

fn runs(pod: &PodState) -> bool {
    pod.phase == "Running" && !pod.containers.is_empty() && pod.containers.iter().all(|one| one.state == "running")
}

/// The uid of a pod all of whose containers have stopped, its sandbox included.
fn ended(update: &Update) -> Option<&str> {
    match update {
        Update::RemovedUid(uid) => Some(uid),
        Update::Upsert(pod) => {
            let states = [WorkerState::Terminated as i32, WorkerState::Finished as i32];
            states.contains(&pod.worker).then_some(pod.uid.as_str())
        }
        Update::SnapshotDone(_) => None,
    }
}

fn floor_exits(plan: &Plan, floor: &Floor, measured: &mut Measurements) -> Result<()> {
    progress("floor: exits");
    for index in 0..plan.exits {
        let (pod, _) = floor.start(&format!("exit-{index}"))?;
        measured.exit_to_known.floor.push(floor.exit_to_known(&pod)?);
        floor.delete(&pod)?;
    }
    Ok(())
}

/// The floor's best.
#[derive(Debug, Clone)]
pub struct FloorMany {
    /// Each pod's time from the common beginning.
    pub started: Vec<Duration>,
    pub deleted: Duration,
    pub in_flight: usize,
}

/// Starts and ends `pods` pods with each number of starts in flight; the earliest end counts.
///
/// # Errors
/// A call failed, or there is no number to try.
pub fn floor_many(floor: &Floor, prefix: &str, pods: usize, in_flight: &[usize]) -> Result<FloorMany> {
    let mut best: Option<FloorMany> = None;
    let last = |times: &[Duration]| times.iter().copied().max().unwrap_or_default();
    for &in_flight in in_flight {
        progress(&format!("floor: {pods} pods at once, {in_flight} in flight"));
        let all = floor.start_many(&format!("{prefix}-{in_flight}-"), pods, in_flight)?;
        let started: Vec<Duration> = all.iter().map(|(_, time)| *time).collect();
        let pods: Vec<FloorPod> = all.into_iter().map(|(pod, _)| pod).collect();
        let deleted = floor.delete_many(&pods, in_flight)?;
        if best.as_ref().is_none_or(|best| last(&started) < last(&best.started)) {
            best = Some(FloorMany { started, deleted, in_flight });
        }
    }
    best.context("the floor was not tried")
}

fn node_many(plan: &Plan, node: &Node, measured: &mut Measurements) -> Result<()> {
    let agent = node.agent()?;
    progress(&format!("node: {} pods at once", plan.pods));
    let mut watch = agent.watch()?;
    let before = total(node)?;
    let begin = Instant::now();
    for index in 0..plan.pods {
        node.write(&Pod::idle(&format!("many-{index}")))?;
    }
    let mut running = BTreeMap::new();
    watch.until("all pods run", MANY, |update| {
        if let Update::Upsert(pod) = update
            && runs(pod)
        {
            running.entry(pod.uid.clone()).or_insert_with(|| begin.elapsed());
        }
        running.len() == plan.pods
    })?;
    measured.start_many.node = running.values().copied().collect();
    measured.start_many_cpu_ns = total(node)?.since(Some(before)).cpu_ns;
    drop(watch);

    progress(&format!("node: idle with {} pods for {} s", plan.pods, plan.idle.as_secs()));
    std::thread::sleep(SETTLE);
    let (before, since) = (total(node)?, Instant::now());
    std::thread::sleep(plan.idle);
    measured.idle = total(node)?.since(Some(before));
    measured.idle_seconds = since.elapsed().as_secs_f64();
    measured.pss_full_kib = pss(node)?;

    progress("node: exits");
    let mut watch = agent.watch()?;
    let cri = node.cri()?;
    // Each container is killed once: the second time its restart is held back, which is another thing.
    let victims: Vec<(String, i32)> = cri
        .containers()?
        .into_iter()
        .take(plan.exits.min(plan.pods))
        .map(|container| Ok((container.id.clone(), cri.pid(&container.id)?)))
        .collect::<Result<_>>()?;
    for (id, pid) in victims {
        let begin = Instant::now();
        processes::signal(pid, Signal::SIGKILL);
        let known = watch.until("the node knows of the exit", LONG, |update| match update {
            Update::Upsert(pod) => pod.containers.iter().any(|one| {
                // Either it is shown as ended, or its successor is shown already.
                one.id == id && one.state == "terminated"
                    || one.restart_count > 0 && one.id != id && is_of(pod, &id, &cri)
            }),
            _ => false,
        })?;
        measured.exit_to_known.node.push(known - begin);
        // The restart must be over before the next one is killed.
        std::thread::sleep(Duration::from_millis(700));
    }
    drop(watch);

    progress(&format!("node: deletion of {} pods", plan.pods));
    let mut watch = agent.watch()?;
    let begin = Instant::now();
    node.remove_all()?;
    let mut gone = BTreeSet::new();
    watch.until("all pods have ended", MANY, |update| {
        if let Some(uid) = ended(update) {
            gone.insert(uid.to_owned());
        }
        gone.len() == plan.pods
    })?;
    measured.delete_many.node = vec![begin.elapsed()];
    Ok(())
}

/// Whether a container that is no longer shown belonged to this pod.
fn is_of(pod: &PodState, container: &str, cri: &bulkhead_testkit::cri::Cri) -> bool {
    cri.containers().is_ok_and(|all| all.iter().any(|one| one.id == container && one.uid == pod.uid))
}

/// A lab to measure in. Whoever sets `BULKHEAD_BESIDE` does not wait for other labs, and judges nothing.
///
/// # Errors
/// As [`Lab::start`].
pub fn lab(release: Release) -> Result<Lab> {
    let beside = std::env::var_os("BULKHEAD_BESIDE").is_some();
    if beside { Lab::start_beside_on(release) } else { Lab::start_alone_on(release) }
}

/// A member of a cluster with the cluster's DNS, as kubeadm configures it. Without that each pod's start has two events more, which say
/// so.
///
/// # Errors
/// As [`NodeBuilder::joins`].
pub fn member(lab: &Lab, name: &str, cluster: &Cluster) -> Result<NodeBuilder> {
    let node = lab.node(name).joins(cluster)?;
    Ok(node.config("clusterDNS", json!(["10.96.0.10"])).config("clusterDomain", json!("cluster.local")))
}

/// What each program's processes have used since their start, workers among them. One that ends meanwhile is left out.
///
/// # Errors
/// A daemon has ended.
pub fn usage(node: &Node) -> Result<BTreeMap<String, Usage>> {
    Ok(usage_of(&alive(node)?))
}

/// The same of any processes, each with its program's name.
pub fn usage_of(family: &[(String, i32)]) -> BTreeMap<String, Usage> {
    let mut sum = BTreeMap::<String, Usage>::new();
    for (name, pid) in family {
        let (Ok(cpu_ns), Ok(context_switches)) = (processes::cpu_nanoseconds(*pid), processes::context_switches(*pid))
        else {
            continue;
        };
        let used = sum.entry(name.clone()).or_default();
        *used = [*used, Usage { cpu_ns, context_switches }].into_iter().sum();
    }
    sum
}

/// The node agent's processes, its daemons all among them.
///
/// # Errors
/// A daemon has ended.
pub fn alive(node: &Node) -> Result<Vec<(String, i32)>> {
    let family = node.family();
    for daemon in bulkhead_testkit::node::DAEMONS {
        ensure!(family.iter().any(|(name, _)| name == daemon), "{daemon} has ended");
    }
    Ok(family)
}

/// What each process has used since `before` was taken.
pub fn since(before: &BTreeMap<String, Usage>, after: &BTreeMap<String, Usage>) -> BTreeMap<String, Usage> {
    after.iter().map(|(name, after)| (name.clone(), after.since(before.get(name).copied()))).collect()
}

fn total(node: &Node) -> Result<Usage> {
    Ok(usage(node)?.into_values().sum())
}

/// What doing nothing takes.
#[derive(Debug, Clone, Default)]
pub struct Idle {
    pub used: BTreeMap<String, Usage>,
    pub seconds: f64,
    /// By program, in KiB: the median of samples over the whole time. What a process holds goes up and down: its looks at pods leave
    /// free memory, and it is given back now and then.
    pub pss_kib: BTreeMap<String, u64>,
}

/// Looks on while nothing happens. `family`: the processes, each with its program's name.
///
/// # Errors
/// A process has ended that must not.
pub fn idle(time: Duration, mut family: impl FnMut() -> Result<Vec<(String, i32)>>) -> Result<Idle> {
    let (before, begin) = (usage_of(&family()?), Instant::now());
    let mut samples = BTreeMap::<String, Vec<u64>>::new();
    while let Some(left) = time.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::sleep(left.min(SAMPLED));
        for (name, kib) in pss_of(&family()?) {
            samples.entry(name).or_default().push(kib);
        }
    }
    let used = since(&before, &usage_of(&family()?));
    let median = |mut values: Vec<u64>| {
        values.sort_unstable();
        values.get(values.len() / 2).copied().unwrap_or_default()
    };
    let pss_kib = samples.into_iter().map(|(name, values)| (name, median(values))).collect();
    Ok(Idle { used, seconds: begin.elapsed().as_secs_f64(), pss_kib })
}

/// Proportional set size of each program's processes in KiB, workers among them.
///
/// # Errors
/// A daemon has ended.
pub fn pss(node: &Node) -> Result<BTreeMap<String, u64>> {
    Ok(pss_of(&alive(node)?))
}

/// The same of any processes, each with its program's name.
pub fn pss_of(family: &[(String, i32)]) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    for (name, pid) in family {
        *sum.entry(name.clone()).or_default() += processes::pss_kib(*pid).unwrap_or(0);
    }
    sum
}

/// Nanoseconds of processor time of this thread.
///
/// # Errors
/// The kernel does not tell.
pub fn own_cpu() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").context("the thread's processor time")?;
    text.split(' ').next().and_then(|ns| ns.parse().ok()).context("the thread's processor time has another form")
}

/// Nanoseconds that a runtime's daemon and shims have used, with what they started and waited for: commands in containers, and the
/// programs that start these.
pub fn runtime_cpu(runtime: &bulkhead_testkit::containerd::Containerd) -> u64 {
    let tick = 1_000_000_000 / processes::ticks_per_second().max(1);
    let used = |pid: i32| {
        let waited = processes::stat(pid).map_or(0, |stat| stat.waited_ticks) * tick;
        processes::cpu_nanoseconds(pid).unwrap_or(0) + waited
    };
    runtime.processes().into_iter().map(used).sum()
}
