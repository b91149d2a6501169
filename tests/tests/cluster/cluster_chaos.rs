//! Any process, or all of them, may die at any instruction while pods of a cluster come and go: none is lost, doubled,
//! restarted or stuck, and what the API server was told is never taken back.
//!
//! `BULKHEAD_KILLS` is how often each of the five processes, the runtime and all of them together die (3), `BULKHEAD_PODS`
//! how many pods there are at any time (18). The long run: `BULKHEAD_KILLS=20 BULKHEAD_PODS=50`.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::apiserver::Config;
use bulkhead_testkit::cri::Fingerprint;
use bulkhead_testkit::node::DAEMONS;
use bulkhead_testkit::{Cluster, LONG, Lab, Node, Pod, eventually, leaks};
use bulkhead_tests::joined::{
    NAMESPACE, NODE, ends_on_sign, give_sign, idle, never_back, never_back_but_times, never_stirred, pod, wait_ready,
};
use bulkhead_tests::{Dice, lab};
use serde_json::{Value, json};

/// Static pods of the test without a server.
const STATIC: usize = 4;

/// How much is to happen.
struct Plan {
    /// Deaths of each.
    kills: u64,
    /// Pods of the API server, and static ones, that nothing is done to.
    stable: usize,
    stable_static: usize,
    /// Pods of the API server, and static ones, that come and go: as many are there at a time.
    idle: usize,
    idle_static: usize,
}

impl Plan {
    fn from_environment() -> Self {
        let number =
            |name: &str, default: usize| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
        let sixth = (number("BULKHEAD_PODS", 18) / 6).max(1);
        let kills = number("BULKHEAD_KILLS", 3) as u64;
        Self { kills, stable: 2 * sixth, stable_static: sixth, idle: 2 * sixth, idle_static: sixth }
    }
}

/// Who dies; the order is another in each cycle.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Victim {
    Daemon(&'static str),
    Launcher,
    Runtime,
    Everything,
}

impl Victim {
    fn is_runtime(self) -> bool {
        matches!(self, Victim::Runtime | Victim::Everything)
    }

    /// Who asks the runtime for a start, and with it those that take it along.
    fn is_caller(self) -> bool {
        matches!(self, Victim::Daemon("kubelet-syncd") | Victim::Launcher | Victim::Everything)
    }
}

/// Pods that are made or ended in a round: two made and two deleted on the server, one that ends by itself, one manifest put
/// there and one taken away.
const IN_MOTION: usize = 7;

/// The deaths that a pod has lived through, which are all that anything odd in its story is excused by.
#[derive(Debug, Default)]
struct Endured {
    runtime: bool,
    caller: bool,
}

impl Endured {
    /// `deaths` of the rounds from the one that the pod was made in up to the last that it had not yet ended before.
    fn of(deaths: &[Victim]) -> Self {
        Self {
            runtime: deaths.iter().any(|one| one.is_runtime()),
            caller: deaths.iter().any(|one| one.is_runtime() || one.is_caller()),
        }
    }

    /// Whether a container that was to end with 0 may be told to have ended so.
    fn excuses(&self, terminated: &Value) -> bool {
        let reason = terminated["reason"].as_str().unwrap_or_default();
        // The code of an end that the runtime was not there to see is lost, and it says so. Where it dies in the middle of a
        // start, it says of that instance that it ended, and not when it began.
        let began = terminated["startedAt"].as_str().is_some_and(|at| !at.starts_with("1970"));
        // A start whose caller died is called off by the runtime, and counts as an instance, as with upstream's kubelet.
        terminated["exitCode"] == 0
            || self.runtime && (reason.ends_with("Unknown") || !began)
            || self.caller && reason == "StartError"
    }
}

struct World {
    node: Node,
    cluster: Cluster,
    lab: Lab,
    dice: Dice,
}

impl World {
    /// A pod that does its work, which must be done once, and has ended then.
    fn once(&self, name: &str) -> Value {
        let script = format!("echo ran >> /work/{name}; sleep 0.3");
        let mut all = pod(&self.node, name, &script, &json!({"restartPolicy": "Never"}));
        all["spec"]["volumes"] = json!([{"name": "work", "hostPath": {"path": self.lab.folder().join("work")}}]);
        all["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "work", "mountPath": "/work"}]);
        all
    }

    fn stable(&self) -> Result<Vec<Fingerprint>> {
        // A churned container may end between the list and the look at its process.
        let all = eventually("every listed container is still there", LONG, || self.node.fingerprint())?;
        Ok(all.into_iter().filter(|one| one.pod.starts_with("stable-")).collect())
    }

    /// Kills; what must be started by hand is.
    fn strike(&mut self, victim: Victim) -> Result<()> {
        match victim {
            Victim::Daemon(daemon) => self.node.kill_daemon(daemon)?,
            Victim::Launcher => {
                self.node.kill_launcher();
                std::thread::sleep(Duration::from_millis(self.dice.below(300)));
                self.node.launch()?;
            }
            Victim::Runtime => {
                self.lab.containerd().kill();
                std::thread::sleep(Duration::from_millis(self.dice.below(300)));
                self.lab.containerd().spawn()?;
            }
            Victim::Everything => {
                self.lab.containerd().kill();
                self.node.kill_everything();
                self.lab.containerd().spawn()?;
                self.node.launch()?;
            }
        }
        Ok(())
    }

    /// Each victim once, in an order of chance.
    fn cycle(&mut self) -> Vec<Victim> {
        let mut left: Vec<Victim> = DAEMONS.into_iter().map(Victim::Daemon).collect();
        left.extend([Victim::Launcher, Victim::Runtime, Victim::Everything]);
        let mut order = Vec::new();
        while !left.is_empty() {
            let which = self.dice.below(left.len() as u64) as usize;
            order.push(left.swap_remove(which));
        }
        order
    }
}

#[test]
fn deaths_at_random_moments_under_churn_are_not_noticed_by_pods_or_the_server() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let dice = Dice::from_environment();
    println!("seed {} (set BULKHEAD_SEED to repeat)", dice.seed());
    std::fs::create_dir_all(lab.folder().join("work"))?;
    let cluster = lab.stand_in(Config { bookmark_every: Duration::from_secs(1), ..Config::default() })?;
    let node = lab.node(NODE).joins(&cluster)?.config("maxPods", json!(250)).start()?;
    let mut world = World { node, cluster, lab, dice };
    let cluster = world.cluster.clone();
    let plan = Plan::from_environment();

    let mut stable: Vec<String> = (0..plan.stable).map(|index| format!("stable-{index}")).collect();
    for name in &stable {
        cluster.create(&idle(&world.node, name))?;
    }
    for index in 0..plan.stable_static {
        let name = format!("stable-static-{index}");
        world.node.write(&Pod::idle(&name))?;
        stable.push(world.node.pod_name(&name));
    }
    // What is to be in the end: of pods of the API server, and of manifests.
    let mut idles: VecDeque<String> = (0..plan.idle).map(|index| format!("idle-first-{index}")).collect();
    let mut statics: VecDeque<String> = (0..plan.idle_static).map(|index| format!("static-first-{index}")).collect();
    let mut once: VecDeque<String> = VecDeque::new();
    for name in &idles {
        cluster.create(&idle(&world.node, name))?;
    }
    for name in &statics {
        world.node.write(&Pod::idle(name))?;
    }
    for name in &stable {
        wait_ready(&cluster, name)?;
    }
    let before = world.stable()?;
    ensure!(before.len() == plan.stable + plan.stable_static, "{before:#?}");

    let (mut all, mut untold): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    let mut victims = Vec::new();
    for _ in 0..plan.kills {
        victims.extend(world.cycle());
    }
    // Of each pod that ends by itself, the number of rounds that had begun when it was first seen to have ended.
    let mut ended_before: BTreeMap<String, usize> = BTreeMap::new();
    for (round, victim) in victims.iter().copied().enumerate() {
        for name in &once {
            if !ended_before.contains_key(name) && has_ended(&cluster.get("pods", NAMESPACE, name)?) {
                ended_before.insert(name.clone(), round);
            }
        }
        let began = Instant::now();
        for half in 0..2 {
            let name = format!("idle-{round}-{half}");
            cluster.create(&idle(&world.node, &name))?;
            idles.push_back(name);
        }
        let name = format!("once-{round}");
        cluster.create(&world.once(&name))?;
        once.push_back(name);
        let name = format!("static-{round}");
        world.node.write(&Pod::idle(&name))?;
        statics.push_back(name);
        for name in idles.drain(..2).collect::<Vec<_>>() {
            cluster.delete("pods", NAMESPACE, &name, None)?;
            all.push(name);
        }
        if let Some(name) = statics.pop_front() {
            world.node.remove(&name)?;
            let mirror = world.node.pod_name(&name);
            // Among so many deaths a manifest may go before anybody could tell the server of it.
            let told = cluster.find("pods", NAMESPACE, &mirror)?.is_some();
            if told { all.push(mirror) } else { untold.push(mirror) }
        }
        let moment = Duration::from_millis(world.dice.below(1200));
        std::thread::sleep(moment);
        world.strike(victim)?;
        world.node.wait_healthy().with_context(|| format!("after the death of {victim:?} in round {round}"))?;
        let now = world.stable()?;
        ensure!(now == before, "round {round}, death of {victim:?}: {before:#?} became {now:#?}");
        println!("{round}: {victim:?} after {moment:?}; {:.1} s", began.elapsed().as_secs_f32());
    }

    let statics: Vec<String> = statics.iter().map(|name| world.node.pod_name(name)).collect();
    for name in idles.iter().chain(&statics) {
        wait_ready(&cluster, name)?;
    }
    for (made, name) in once.iter().enumerate() {
        let ended = cluster.wait_for("pods", NAMESPACE, name, "it has ended", has_ended)?;
        let until = ended_before.get(name).copied().unwrap_or(victims.len());
        let endured = Endured::of(&victims[made..until]);
        let container = &ended["status"]["containerStatuses"][0];
        let code = container["state"]["terminated"]["exitCode"].as_i64().with_context(|| format!("{ended:#}"))?;
        ensure!(endured.excuses(&container["state"]["terminated"]), "{endured:?}, rounds {made} to {until}: {ended:#}");
        ensure!((ended["status"]["phase"] == "Succeeded") == (code == 0), "{ended:#}");
        // Another instance was begun only where the runtime could not say that the first had ever run.
        let begun = container["restartCount"].as_u64().unwrap_or_default() + 1;
        ensure!(begun == 1 || endured.caller, "{name} was begun {begun} times, rounds {made} to {until}: {ended:#}");
        let ran = std::fs::read_to_string(world.lab.folder().join("work").join(name)).unwrap_or_default();
        let ran = u64::try_from(ran.lines().count())?;
        ensure!(ran <= begun && (code != 0 || ran > 0), "{name} ran {ran} times: {ended:#}");
    }
    println!("{} manifests went before they had a mirror: {untold:?}", untold.len());
    for name in all.iter().chain(&untold) {
        cluster.wait_gone("pods", NAMESPACE, name)?;
    }
    let live: Vec<&String> = stable.iter().chain(&idles).chain(&statics).collect();
    eventually("one sandbox and one running container for each pod", LONG, || exact(&world.node, &live))?;
    let now = world.stable()?;
    ensure!(now == before, "{before:#?} became {now:#?}");

    for name in &stable {
        let pod = cluster.get("pods", NAMESPACE, name)?;
        ensure!(pod["status"]["containerStatuses"][0]["restartCount"] == 0, "{pod:#}");
        never_stirred(&cluster, name)?;
    }
    for name in idles.iter().chain(&statics).chain(&all) {
        never_back(&cluster, name)?;
    }
    for name in idles.iter().chain(&once) {
        cluster.delete("pods", NAMESPACE, name, None)?;
    }
    for name in idles.iter().chain(&once) {
        cluster.wait_gone("pods", NAMESPACE, name)?;
        never_back_but_times(&cluster, name)?;
    }
    finish(world.node, &cluster, victims.iter().filter(|one| one.is_runtime()).count())
}

fn has_ended(pod: &Value) -> bool {
    pod["status"]["phase"] == "Succeeded" || pod["status"]["phase"] == "Failed"
}

/// No pod, and nothing of any. A containerd that dies while it makes or ends a sandbox may forget its shim, its network
/// namespace and its address: no sandbox is left then that a kubelet could remove. So of each kind there may be as many as
/// sandboxes were made and ended in the rounds in which it died, and no more.
fn finish(mut node: Node, cluster: &Cluster, runtime_deaths: usize) -> Result<()> {
    node.remove_all()?;
    for pod in cluster.list("pods", Some(NAMESPACE))? {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        if pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_null() {
            cluster.delete("pods", NAMESPACE, name, Some(1))?;
        }
    }
    eventually("every pod is gone without a trace", LONG, || {
        let forgotten = ["shim process ", "network namespace ", "address "];
        let mut left = leaks::of_pods(&node);
        for kind in forgotten {
            let count = left.iter().filter(|thing| thing.starts_with(kind)).count();
            ensure!(count <= IN_MOTION * runtime_deaths, "{count} of a kind after {runtime_deaths} deaths: {left:#?}");
        }
        left.retain(|thing| !forgotten.iter().any(|kind| thing.starts_with(kind)));
        ensure!(left.is_empty(), "{left:#?}");
        let pods = cluster.list("pods", None)?;
        ensure!(pods.is_empty(), "{} pods are left on the server", pods.len());
        Ok(())
    })?;
    node.stop()?;
    node.abandon();
    Ok(())
}

#[test]
fn what_happens_while_the_server_is_away_outlives_the_processes_that_saw_it() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.stand_in(Config::default())?;
    let mut node = lab.node(NODE).joins(&cluster)?.start()?;
    let names: Vec<String> = (0..STATIC).map(|index| format!("stable-{index}")).collect();
    for name in &names {
        cluster.create(&idle(&node, name))?;
    }
    for (name, code) in [("done", 0), ("failed", 3)] {
        cluster.create(&ends_on_sign(&node, name, code, "Never")?)?;
    }
    cluster.create(&idle(&node, "ending"))?;
    node.write(&Pod::idle("static"))?;
    for name in names.iter().map(String::as_str).chain(["done", "failed", "ending", "static-alpha"]) {
        wait_ready(&cluster, name)?;
    }
    let stable = |node: &Node| -> Result<Vec<Fingerprint>> {
        let all = eventually("every listed container is still there", LONG, || node.fingerprint())?;
        Ok(all.into_iter().filter(|one| one.pod.starts_with("sta")).collect())
    };
    let before = stable(&node)?;
    ensure!(before.len() == STATIC + 1, "{before:#?}");
    cluster.delete("pods", NAMESPACE, "ending", None)?;
    cluster.stop()?;
    for name in ["done", "failed"] {
        give_sign(&node, name)?;
    }
    let cri = node.cri()?;
    eventually("both have ended", LONG, || {
        let all = cri.containers()?;
        let ended = all.iter().filter(|one| one.exited && (one.pod == "done" || one.pod == "failed")).count();
        ensure!(ended == 2, "{all:?}");
        Ok(())
    })?;
    for daemon in ["kubelet-statusd", "kubelet-syncd", "kubelet-volnetd", "kubelet-syncd"] {
        node.kill_daemon(daemon)?;
        node.wait_healthy()?;
        ensure!(stable(&node)? == before, "after the death of {daemon}");
    }
    node.kill_everything();
    node.launch()?;
    node.wait_healthy()?;
    // Nobody knows which pods of the API server there are: those that run are left alone, and manifests are followed.
    node.write(&Pod::idle("coming"))?;
    node.wait_running("coming", 1)?;
    ensure!(stable(&node)? == before);
    cluster.resume()?;

    for (name, phase, code) in [("done", "Succeeded", 0), ("failed", "Failed", 3)] {
        let told = cluster.wait_for("pods", NAMESPACE, name, phase, |pod| pod["status"]["phase"] == phase)?;
        let container = &told["status"]["containerStatuses"][0];
        ensure!(container["state"]["terminated"]["exitCode"] == code && container["restartCount"] == 0, "{told:#}");
    }
    cluster.wait_gone("pods", NAMESPACE, "ending")?;
    wait_ready(&cluster, &node.pod_name("coming"))?;
    ensure!(stable(&node)? == before);
    let attempts = node.cri()?.containers()?.iter().map(|one| one.attempt).max();
    ensure!(attempts == Some(0), "nothing was started again");
    for name in names.iter().map(String::as_str).chain(["static-alpha"]) {
        never_stirred(&cluster, name)?;
    }
    for name in ["done", "failed", "ending", "coming-alpha"] {
        never_back(&cluster, name)?;
    }
    node.finish_after_deaths()
}

fn exact(node: &Node, pods: &[&String]) -> Result<()> {
    let cri = node.cri()?;
    let mut sandboxes: BTreeMap<String, usize> = BTreeMap::new();
    for sandbox in cri.sandboxes()?.into_iter().filter(|one| one.ready) {
        *sandboxes.entry(sandbox.pod).or_default() += 1;
    }
    let mut running: BTreeMap<String, usize> = BTreeMap::new();
    for container in cri.containers()?.into_iter().filter(|one| one.running) {
        *running.entry(container.pod).or_default() += 1;
    }
    let expected: BTreeMap<String, usize> = pods.iter().map(|name| ((*name).clone(), 1)).collect();
    ensure!(sandboxes == expected, "sandboxes {sandboxes:?}, not {expected:?}");
    ensure!(running == expected, "containers {running:?}, not {expected:?}");
    Ok(())
}

/// Nothing is excused by the death of somebody else.
#[test]
fn only_the_runtime_s_death_excuses_what_it_forgets() {
    let ended = |code: i64, reason: &str, at: &str| json!({"exitCode": code, "reason": reason, "startedAt": at});
    let (lost, never_began) = (ended(255, "Unknown", "2026-01-01"), ended(128, "Error", "1970-01-01T00:00:00Z"));
    let (called_off, wrong) = (ended(128, "StartError", "2026-01-01"), ended(1, "Error", "2026-01-01"));
    let excused = |deaths: &[Victim]| {
        let endured = Endured::of(deaths);
        [&lost, &never_began, &called_off, &wrong].map(|one| endured.excuses(one))
    };
    for runtime in [Victim::Runtime, Victim::Everything] {
        assert_eq!(excused(&[Victim::Daemon("kubelet-statusd"), runtime]), [true, true, true, false]);
    }
    for caller in [Victim::Daemon("kubelet-syncd"), Victim::Launcher] {
        assert_eq!(excused(&[caller]), [false, false, true, false]);
    }
    assert_eq!(excused(&[Victim::Daemon("kubelet-volnetd")]), [false; 4]);
    assert!(Endured::of(&[]).excuses(&ended(0, "Completed", "2026-01-01")));
}
