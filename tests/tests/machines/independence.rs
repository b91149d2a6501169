//! Installed as systemd units: any of them may be restarted, killed, wedged or stopped for a while, alone or two at
//! once, and the runtime too, and no pod notices, nor does any other process go down with it. What is wedged is found
//! by the watchdog and put right; those who follow logs lose no line; the lease is renewed in time for as long as the
//! process that renews it runs. And for what stands still without being theirs (the runtime, the API server, a file
//! system) none of them is restarted.
//!
//! `BULKHEAD_PODS` is how many pods there are (10), `BULKHEAD_MINUTES` for how long random strikes go on after each unit was
//! struck in each way once (0). The long run: `BULKHEAD_PODS=50 BULKHEAD_MINUTES=10`, a seed by `BULKHEAD_SEED`.
//!
//! Two numbers are smaller here than in the field, so that the test is short: WatchdogSec (30 s in the units), and the
//! lease's duration (40 s).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::apiserver::Config;
use bulkhead_testkit::cluster::client::Credential;
use bulkhead_testkit::cri::Fingerprint;
use bulkhead_testkit::https::Https;
use bulkhead_testkit::systemd::{Machine, SERVICES};
use bulkhead_testkit::{Cluster, LONG, Pod, build, eventually};
use bulkhead_tests::followers::{Followed, Followers};
use bulkhead_tests::history::{self, values_of};
use bulkhead_tests::joined::{NAMESPACE, condition, never_stirred, wait_ready};
use bulkhead_tests::moments::{Span, longest_gap, now};
use bulkhead_tests::{Dice, systemd_machine};
use serde_json::{Value, json};

#[path = "independence/standstill.rs"]
mod standstill;

/// Seconds after which a wedged process is noticed.
const WATCHDOG: u32 = 5;
/// Seconds for which the node counts as alive after a renewal of its lease; renewed after a quarter of it.
const LEASE: i64 = 12;
const FOLLOWERS: usize = 4;
const STATUSD: &str = "kubelet-statusd.service";
const JOURNAL: &str = "kubelet-journal.service";
const RUNTIME: &str = "containerd.service";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// `systemctl restart`.
    Restart,
    /// SIGKILL.
    Kill,
    /// SIGSTOP, and nobody continues it.
    Wedge,
    /// `systemctl stop` with its sockets (by which it would be started again), and `systemctl start` after [`AWAY`].
    Stop,
}

/// For how long a unit is stopped.
const AWAY: Duration = Duration::from_secs(1);

/// One strike: until the unit ran again and the node was healthy.
#[derive(Debug, Clone)]
struct Strike {
    unit: &'static str,
    way: Way,
    span: Span,
}

impl Strike {
    /// Whether it ends connections to the node's HTTPS server.
    fn ends_connections(&self) -> bool {
        ends(self.unit, STATUSD)
    }
}

/// Whether a strike on `unit` may end the process of `service`.
fn ends(unit: &str, service: &str) -> bool {
    unit == service || matches!(unit, "kubelet.service" | "kubelet.target") || sockets_of(service).contains(&unit)
}

/// The sockets of a service: without them nothing starts it again.
fn sockets_of(service: &str) -> &'static [&'static str] {
    match service {
        "kubelet-volnetd.service" => &["kubelet-volnetd.socket", "kubelet-volnetd-broker.socket"],
        "kubelet-syncd.service" => &["kubelet-syncd.socket"],
        // That of the kernel's log goes with it.
        "kubelet-evictiond.service" => &["kubelet-evictiond.socket"],
        STATUSD => &["kubelet-statusd.socket"],
        _ => &[],
    }
}

/// Each unit in each way that it can be struck.
fn every_strike() -> Vec<(&'static str, Way)> {
    let mut all = Vec::new();
    for unit in SERVICES {
        all.extend([(unit, Way::Restart), (unit, Way::Kill), (unit, Way::Stop), (unit, Way::Wedge)]);
    }
    all.extend([(RUNTIME, Way::Restart), (RUNTIME, Way::Kill)]);
    // What has no process of its own; a socket's restart is one of its service too.
    let sockets = SERVICES.into_iter().flat_map(sockets_of).copied();
    all.extend(sockets.chain(["kubelet.target", "kubelet.service"]).map(|unit| (unit, Way::Restart)));
    all
}

/// Each of them in turn; in the short run wedges two at a time, because each takes as long as the watchdog waits.
fn in_turn(short: bool) -> Vec<Vec<(&'static str, Way)>> {
    let (wedges, others): (Vec<_>, Vec<_>) =
        every_strike().into_iter().partition(|(_, way)| short && *way == Way::Wedge);
    let mut turns: Vec<_> = others.into_iter().map(|strike| vec![strike]).collect();
    turns.extend(wedges.chunks(2).map(<[_]>::to_vec));
    turns
}

/// What no strike may change.
#[derive(Debug, PartialEq)]
struct Pods {
    containers: Vec<Fingerprint>,
    addresses: BTreeMap<String, String>,
    mounts: BTreeSet<String>,
}

struct World {
    machine: Machine,
    cluster: Cluster,
    followers: Followers,
    strikes: Vec<Strike>,
    /// When the lease was renewed, as the API server saw it.
    renewals: Vec<i64>,
    seen: u64,
}

impl World {
    fn pods(&self) -> Result<Pods> {
        eventually("the runtime answers", LONG, || pods(&self.machine))
    }

    /// Strikes units at once and waits until all is well again.
    fn strike(&mut self, targets: &[(&'static str, Way)]) -> Result<()> {
        let from = now();
        let spared: Vec<&str> =
            SERVICES.into_iter().filter(|one| !targets.iter().any(|(unit, _)| ends(unit, one))).collect();
        let spared = spared.into_iter().map(|unit| Ok((unit, self.machine.unit(unit)?))).collect::<Result<Vec<_>>>()?;
        let mut before = Vec::new();
        for (unit, way) in targets {
            before.push((*unit, *way, self.machine.unit(unit)?, self.wedges(unit)?));
        }
        for (unit, way) in targets {
            match way {
                Way::Restart => self.machine.check(&["systemctl", "restart", unit]).map(drop)?,
                Way::Kill => self.machine.signal(unit, "KILL")?,
                Way::Wedge => self.machine.signal(unit, "STOP")?,
                Way::Stop => {
                    self.machine.check(&[&["systemctl", "stop", unit], sockets_of(unit)].concat()).map(drop)?
                }
            }
        }
        if targets.iter().any(|(_, way)| *way == Way::Stop) {
            std::thread::sleep(AWAY);
        }
        for (unit, way) in targets.iter().filter(|(_, way)| *way == Way::Stop) {
            let stopped = self.machine.unit(unit)?;
            ensure!(stopped.active == "inactive", "{unit} after {way:?}: {stopped:?}");
            self.machine.check(&["systemctl", "start", unit])?;
        }
        for (unit, way, run, wedges) in before {
            self.machine.wait_another_run(unit, &run).with_context(|| format!("after {way:?}"))?;
            let noticed = self.wedges(unit)?;
            ensure!(way != Way::Wedge || noticed > wedges, "the watchdog did not notice that {unit} was stopped");
        }
        self.machine.wait_healthy()?;
        for (unit, run) in spared {
            let after = self.machine.unit(unit)?;
            ensure!(after == run, "{unit} went down with another: {run:?} became {after:?}");
        }
        let span = Span { from, to: now() };
        self.strikes.extend(targets.iter().map(|(unit, way)| Strike { unit, way: *way, span }));
        self.note_renewals()?;
        always_ready(&self.cluster, self.machine.hostname())?;
        self.followers.check()
    }

    /// The process that reads the journal for statusd is wedged: who asks meanwhile is answered by its successor.
    fn wedge_journal(&mut self, https: &Https) -> Result<()> {
        let ask = || -> Result<()> {
            let answer = https.get("/logs/?query=containerd&tailLines=1")?;
            let said = String::from_utf8_lossy(&answer.body);
            ensure!(answer.status == 200 && said.contains("containerd"), "{}: {said}", answer.status);
            Ok(())
        };
        eventually("the journal is read", LONG, ask)?;
        let before = SERVICES.into_iter().map(|unit| self.machine.unit(unit)).collect::<Result<Vec<_>>>()?;
        let (run, wedges) = (self.machine.unit(JOURNAL)?, self.wedges(JOURNAL)?);
        ensure!(run.active == "active", "{run:?}");
        self.machine.signal(JOURNAL, "STOP")?;
        eventually("the journal is read by a process that is not wedged", LONG, ask)?;
        self.machine.wait_another_run(JOURNAL, &run)?;
        ensure!(self.wedges(JOURNAL)? == wedges + 1, "the watchdog did not notice that {JOURNAL} was stopped");
        let after = SERVICES.into_iter().map(|unit| self.machine.unit(unit)).collect::<Result<Vec<_>>>()?;
        ensure!(after == before, "{before:?} became {after:?}");
        Ok(())
    }

    /// How often the watchdog has found this unit stopped.
    fn wedges(&self, unit: &str) -> Result<usize> {
        let said = self.machine.journal(&["--unit", unit, "--output=cat"])?;
        Ok(said.lines().filter(|line| line.contains("Watchdog timeout")).count())
    }

    fn note_renewals(&mut self) -> Result<()> {
        let (mark, log) = (self.cluster.log()?.mark(), self.cluster.log()?.after(self.seen));
        let renewed = |one: &&bulkhead_testkit::apiserver::request_log::Record| {
            one.resource == "leases" && matches!(one.verb, "update" | "patch" | "create") && one.status < 300
        };
        // One without an answer yet is looked at again next time.
        self.seen =
            log.iter().find(|one| one.status == 0 && one.resource == "leases").map_or(mark, |one| one.number - 1);
        let until = self.seen;
        let fresh = log.iter().filter(|one| one.number <= until).filter(renewed);
        self.renewals.extend(fresh.map(|one| one.time.as_millisecond()));
        Ok(())
    }
}

fn pods(machine: &Machine) -> Result<Pods> {
    let containers = machine.fingerprint()?;
    let cri = machine.cri()?;
    let mut addresses = BTreeMap::new();
    for sandbox in cri.sandboxes()?.into_iter().filter(|sandbox| sandbox.ready) {
        addresses.insert(sandbox.pod, cri.address(&sandbox.id)?.to_string());
    }
    Ok(Pods { containers, addresses, mounts: machine.mounts_below("/var/lib/kubelet")? })
}

/// A pod under two probes, with volumes in memory, that writes a line twice a second.
fn pod(name: &str, node: &str) -> Value {
    let probe = |mut what: Value, period: u32, timeout: u32| {
        what["periodSeconds"] = json!(period);
        what["timeoutSeconds"] = json!(timeout);
        what
    };
    let script = "echo ok > /work/index.html; httpd -p 8080 -h /work; \
                  i=0; trap 'exit 0' TERM; while true; do i=$((i+1)); echo line $i; sleep 0.5; done";
    let settings = json!({"configMap": {"name": "settings"}}).as_object().cloned().unwrap_or_default();
    Pod::busybox(name, script)
        .empty_dir("work", "Memory", Some("1Mi"), "/work")
        .volume("settings", settings, "/settings")
        .container_field("readinessProbe", probe(json!({"httpGet": {"port": 8080, "path": "/"}}), 2, 10))
        .container_field("livenessProbe", probe(json!({"exec": {"command": ["test", "-e", "/settings/color"]}}), 10, 5))
        .spec("nodeName", json!(node))
        .value()
        .clone()
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn any_unit_is_restarted_killed_or_wedged_and_no_pod_notices() -> Result<()> {
    let Some(builder) = systemd_machine()? else { return Ok(()) };
    let mut dice = Dice::from_environment();
    println!("seed {} (set BULKHEAD_SEED to repeat)", dice.seed());
    let machine = Machine::boot(builder.disk(standstill::HANGS, standstill::HANGS_MIB))?;
    let cluster = machine.stand_in(Config::default())?;
    let node = machine.hostname().to_owned();
    install(&machine, &cluster)?;

    let settings = json!({"metadata": {"name": "settings", "namespace": NAMESPACE}, "data": {"color": "green"},
        "apiVersion": "v1", "kind": "ConfigMap"});
    cluster.create(&settings)?;
    let mut names: Vec<String> = (1..number("BULKHEAD_PODS", 10)).map(|index| format!("pod-{index}")).collect();
    for name in &names {
        cluster.create(&pod(name, &node))?;
    }
    machine.write_pod(&Pod::idle("static"))?;
    names.push(format!("static-{node}"));
    for name in &names {
        wait_ready(&cluster, name)?;
    }
    // The machine's own, not that of the one around it, although the unit has a fresh /proc.
    let boot = machine.shell("cat /proc/sys/kernel/random/boot_id")?;
    let told = cluster.get("nodes", "", &node)?["status"]["nodeInfo"]["bootID"].clone();
    ensure!(told == boot.trim(), "the Node's boot id is {told}, and {boot} in the machine");
    let admin = cluster.client_certificate("kubernetes-admin", "system:masters", Duration::from_secs(24 * 3600))?;
    let https = Https::new((machine.address(), 10250).into(), &Credential::Certificate(admin));
    let followers = Followers::start(&https, &names[..FOLLOWERS.min(names.len() - 1)]);
    let seen = cluster.log()?.mark();
    let mut world = World { machine, cluster, followers, strikes: Vec::new(), renewals: Vec::new(), seen };
    let before = world.pods()?;
    ensure!(before.containers.len() == names.len(), "{:#?}", before.containers);
    ensure!(before.mounts.len() > names.len(), "each pod has volumes: {:#?}", before.mounts);

    let minutes = number("BULKHEAD_MINUTES", 0);
    let mut turns = VecDeque::from(in_turn(minutes == 0));
    let mut since = None;
    loop {
        let targets = match turns.pop_front() {
            Some(targets) => targets,
            None if since.get_or_insert_with(Instant::now).elapsed() >= Duration::from_secs(60 * minutes) => break,
            None => {
                std::thread::sleep(Duration::from_millis(dice.below(2000)));
                draw(&mut dice)
            }
        };
        let began = Instant::now();
        world.strike(&targets).with_context(|| format!("{targets:?}"))?;
        let after = world.pods()?;
        ensure!(after == before, "{targets:?}: {before:#?} became {after:#?}");
        println!("{targets:?}: {:.1} s", began.elapsed().as_secs_f32());
    }

    world.wedge_journal(&https)?;
    let World { machine, cluster, followers, strikes, renewals, .. } = world;
    judge_followers(&followers.finish()?, &strikes)?;
    judge_node(&cluster, &node, &strikes, &renewals)?;
    let began = Instant::now();
    standstill::file_system(&machine, &cluster, minutes > 0).context("a file system that hangs")?;
    standstill::api_server(&machine, &cluster, minutes > 0).context("an API server that hangs")?;
    standstill::runtime(&machine, &cluster, minutes > 0).context("a runtime that hangs")?;
    println!("standing still: {:.1} s", began.elapsed().as_secs_f32());
    for name in &names {
        never_stirred(&cluster, name)?;
        let readiness = values_of(&cluster.history("pods", NAMESPACE, name)?, "Ready");
        ensure!(readiness.iter().filter(|value| *value == "True").count() == 1, "{name} was ready {readiness:?}");
    }
    judge_processes(&machine)?;
    let count = |way| strikes.iter().filter(|strike| strike.way == way).count();
    let [restarts, kills, stops, wedges] = [Way::Restart, Way::Kill, Way::Stop, Way::Wedge].map(count);
    println!(
        "{restarts} restarts, {kills} deaths, {stops} stops, {wedges} wedges, all noticed; {} renewals",
        renewals.len()
    );

    // It still does its work, and nothing of it stays.
    cluster.create(&pod("last", &node))?;
    wait_ready(&cluster, "last")?;
    names.retain(|name| !name.starts_with("static-"));
    names.push("last".to_owned());
    for name in &names {
        cluster.delete("pods", NAMESPACE, name, Some(1))?;
    }
    machine.remove_pod("static")?;
    for name in names.iter().chain([&format!("static-{node}")]) {
        cluster.wait_gone("pods", NAMESPACE, name)?;
    }
    nothing_is_left(&machine)?;
    machine.finish()
}

fn install(machine: &Machine, cluster: &Cluster) -> Result<()> {
    machine.install_programs(&build::bin_dir()?)?;
    machine.install_units(&build::workspace_root())?;
    machine.join(cluster, |config| {
        config["nodeLeaseDurationSeconds"] = json!(LEASE);
        config["enableSystemLogHandler"] = json!(true);
        config["enableSystemLogQuery"] = json!(true);
    })?;
    for service in SERVICES.into_iter().chain([JOURNAL, "kubelet-walker.service"]) {
        machine.drop_in(service, "10-short", &format!("[Service]\nWatchdogSec={WATCHDOG}\n"))?;
    }
    machine
        .check(&["systemctl", "start", "kubelet"])
        .map_err(|error| error.context(machine.last_words(&["kubelet*"], 40)))?;
    machine.wait_healthy()
}

/// One unit, or two of different names, each in a way of chance.
fn draw(dice: &mut Dice) -> Vec<(&'static str, Way)> {
    let all = every_strike();
    let mut drawn = vec![all[dice.below(all.len() as u64) as usize]];
    let second = all[dice.below(all.len() as u64) as usize];
    // What restarts several units at once could undo the other strike before it is noticed.
    let alone = |(unit, _): &(&str, Way)| unit.ends_with(".service") && *unit != "kubelet.service";
    if dice.below(3) == 0 && second.0 != drawn[0].0 && alone(&drawn[0]) && alone(&second) {
        drawn.push(second);
    }
    drawn
}

/// No line was lost (each follower has looked at that itself), and nobody's answer broke off but by the process that gives it.
fn judge_followers(all: &[Followed], strikes: &[Strike]) -> Result<()> {
    for followed in all {
        ensure!(followed.lines > 0, "{followed:?}");
        for end in &followed.ends {
            let by: Vec<&Strike> = strikes.iter().filter(|strike| strike.span.holds(end.at)).collect();
            ensure!(by.iter().any(|strike| strike.ends_connections()), "{end:?} of {}: {by:?}", followed.pod);
            // Nobody takes it for the whole log: the container runs on.
            ensure!(!end.clean, "the answer with the log of {} ended as if that were all of it: {by:?}", followed.pod);
        }
        println!("{}: {} lines, {} ends", followed.pod, followed.lines, followed.ends.len());
    }
    Ok(())
}

/// Once the node was ready it stayed so.
fn always_ready(cluster: &Cluster, node: &str) -> Result<()> {
    let mut readiness: Vec<Value> = Vec::new();
    for version in cluster.history("nodes", "", node)? {
        let Ok(mut one) = history::condition(&version, "Ready").cloned() else { continue };
        one["lastHeartbeatTime"] = Value::Null;
        readiness.extend((readiness.last() != Some(&one)).then_some(one));
    }
    let since = readiness.iter().skip_while(|one| one["status"] != "True").count();
    ensure!(since == 1, "the node was ready {readiness:#?}");
    Ok(())
}

/// The node was never anything but ready, and its lease never ran out while statusd could run.
fn judge_node(cluster: &Cluster, node: &str, strikes: &[Strike], renewals: &[i64]) -> Result<()> {
    always_ready(cluster, node)?;
    ensure!(condition(&cluster.get("nodes", "", node)?, "Ready") == "True");
    let excused: Vec<Span> = strikes.iter().filter(|one| one.unit == STATUSD).map(|one| one.span).collect();
    let (gap, at) = longest_gap(renewals, &excused).context("the lease was renewed")?;
    let during: Vec<&Strike> = strikes.iter().filter(|one| one.span.meets(Span { from: at, to: at + gap })).collect();
    ensure!(gap <= LEASE * 1000, "the lease was {gap} ms old: {during:?}");
    println!("the lease was at most {gap} ms old but for a struck statusd");
    Ok(())
}

/// One process of each daemon, one shim for each sandbox.
fn judge_processes(machine: &Machine) -> Result<()> {
    eventually("no process is left over", LONG, || {
        let all = machine.processes()?;
        let programs = |name: &str| -> Vec<i32> {
            let of = |line: &[String]| line.first().is_some_and(|program| program.rsplit('/').next() == Some(name));
            all.iter().filter(|(_, line)| of(line)).map(|(pid, _)| *pid).collect()
        };
        for service in SERVICES {
            let (program, unit) = (service.trim_end_matches(".service"), machine.unit(service)?);
            // `pidof kubelet` finds this one.
            let program = if program == "kubelet-volnetd" { "kubelet" } else { program };
            ensure!(programs(program) == [unit.main_pid], "{program}: {:?}, {unit:?}", programs(program));
        }
        let sandboxes = machine.cri()?.sandboxes()?.len();
        let shims = programs("containerd-shim-runc-v2").len();
        ensure!(shims == sandboxes, "{shims} shims for {sandboxes} sandboxes");
        Ok(())
    })
}

/// The pods are gone, and then the node.
fn nothing_is_left(machine: &Machine) -> Result<()> {
    eventually("nothing of the pods is left", LONG, || {
        let sandboxes = machine.cri()?.sandboxes()?;
        ensure!(sandboxes.is_empty(), "{sandboxes:?}");
        let mounts = machine.mounts_below("/var/lib/kubelet/pods")?;
        ensure!(mounts.is_empty(), "{mounts:?}");
        let cgroups = machine.shell("find /sys/fs/cgroup -type d -path '*kubepods*/pod*'")?;
        ensure!(cgroups.is_empty(), "{cgroups}");
        let folders = machine.shell("ls /var/lib/kubelet/pods")?;
        ensure!(folders.is_empty(), "{folders}");
        let shims = machine.processes()?.into_iter().filter(|(_, line)| line[0].contains("containerd-shim")).count();
        ensure!(shims == 0, "{shims} shims");
        Ok(())
    })?;
    machine.check(&["systemctl", "stop", "kubelet"])?;
    let left = machine.processes()?;
    let left: Vec<_> = left.into_iter().filter(|(_, line)| line[0].contains("kubelet")).collect();
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}
