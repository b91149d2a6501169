//! A node that is asked for much at once: one member of a cluster whose pods write a line a second each, then a probe for each pod
//! every second, very many followers of logs over the HTTPS API, and scrapers that all come at the same moment; each alone, and all
//! together. Beside each load stands what a bare loop needs for the same.

pub mod mix;
mod streams;
mod targets;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use bulkhead_testkit::apiserver::identity::MASTERS;
use bulkhead_testkit::cluster::client::Credential;
use bulkhead_testkit::https::Https;
use bulkhead_testkit::{Cluster, Lab, Node, Pod, Release};
use bulkhead_tests::scrape::{Format, Scrape};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use self::mix::{Histogram, Kind};
use self::streams::Followers;
use self::targets::{Lasted, Targets};
use crate::cluster::{NAMESPACE, all, condition};
use crate::measure::{self, Idle, MEMORY_SETTLES, SETTLE};
use crate::server::{self, SCRAPED};

const NODE: &str = "bench";
const NODE_PORT: u16 = 10250;
/// Pods that may run besides those: some end slowly.
const SPARE: usize = 10;
const HOUR: Duration = Duration::from_secs(3600);
/// Scrapers come as often; statistics are older by then than they may be.
const SCRAPES_EVERY: Duration = Duration::from_secs(15);
/// How often the kernel's files are read for the floor.
const READINGS: u32 = 5;
/// What of a scrape reads the kernel's files.
const MEASURING: usize = SCRAPED.len() - 1;
/// As long as the lines of many logs are.
const LINE: &str = "a line of a log as long as many lines of many logs are, seventy-nine characters";
/// What one line is for who follows it.
pub const LINE_BYTES: u64 = LINE.len() as u64 + 1;

/// How much of everything.
#[derive(Debug, Clone)]
pub struct Plan {
    /// With a probe a second each.
    pub pods: usize,
    /// How many of these probes are commands.
    pub execs: usize,
    pub followers: usize,
    /// Scrapes at once.
    pub scrapers: usize,
    pub watched: Duration,
}

/// What goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Load {
    Nothing,
    Probes,
    Followers,
    Scrapes,
    Everything,
}

impl Load {
    pub fn follows(self) -> bool {
        matches!(self, Load::Followers | Load::Everything)
    }

    pub fn scrapes(self) -> bool {
        matches!(self, Load::Scrapes | Load::Everything)
    }
}

/// How long scrapes took, by path.
pub type Scrapes = BTreeMap<&'static str, Vec<Duration>>;

/// The node under one load.
#[derive(Debug, Clone, Default)]
pub struct Of {
    pub idle: Idle,
    pub runtime_ns: u64,
    /// Probes of the kinds whose servers are ours.
    pub probes: Lasted,
    pub execs: Histogram,
    pub scrapes: Scrapes,
    /// What all followers together were given.
    pub followed_bytes: u64,
}

/// What bare loops needed.
#[derive(Debug, Clone, Default)]
pub struct Floors {
    /// Seconds that the loops of probes and followers went on for.
    pub seconds: f64,
    pub probes_ns: u64,
    /// Of the runtime meanwhile, what it used without them included.
    pub probes_runtime_ns: u64,
    pub probes: Lasted,
    pub followers_ns: u64,
    pub followed_bytes: u64,
    /// GET /healthz, as many at once as there are scrapers.
    pub nothing: Vec<Duration>,
    /// Reading the kernel's files of all pods once.
    pub files_ns: u64,
}

impl Floors {
    /// For each round of scrapes: the files once for each scrape that measures.
    pub fn scrapes_ns(&self, scrapers: usize, rounds: usize) -> u64 {
        self.files_ns * (MEASURING * scrapers * rounds) as u64
    }
}

#[derive(Debug, Clone, Default)]
pub struct Measurements {
    pub loads: BTreeMap<Load, Of>,
    pub floors: Floors,
}

fn progress(text: &str) {
    eprintln!("bench: busy: {text}");
}

struct Bench<'a> {
    plan: &'a Plan,
    lab: &'a Lab,
    cluster: &'a Cluster,
    node: &'a Node,
    https: Https,
    targets: Targets,
    mix: Vec<Kind>,
}

/// Runs everything.
///
/// # Errors
/// A pod did not start or end, a probe, stream or scrape failed, or a process ended meanwhile.
pub fn run(plan: &Plan) -> Result<Measurements> {
    more_files()?;
    let lab = measure::lab(Release::from_environment()?)?;
    let cluster = lab.stock_cluster()?;
    let node = measure::member(&lab, NODE, &cluster)?.config("maxPods", json!(plan.pods + SPARE)).start()?;
    cluster.wait_for("nodes", "", NODE, "the node is ready", |node| condition(node, "Ready"))?;
    let admin = Credential::Certificate(cluster.client_certificate("bench", MASTERS, HOUR)?);
    let https = Https::new(SocketAddr::new(lab.netns().address().into(), NODE_PORT), &admin);
    let (targets, mix) = (Targets::start(&lab)?, mix::mix(plan.pods, plan.execs));
    let bench = Bench { plan, lab: &lab, cluster: &cluster, node: &node, https, targets, mix };
    let mut measured = Measurements::default();

    // The same pods first without and then with probes: what is measured is the probes.
    let names = bench.start(false)?;
    for load in [Load::Nothing, Load::Followers, Load::Scrapes] {
        measured.loads.insert(load, bench.under(load, &names)?);
    }
    measured.floors = bench.floors(&names)?;
    bench.end(&names)?;
    let names = bench.start(true)?;
    for load in [Load::Probes, Load::Everything] {
        measured.loads.insert(load, bench.under(load, &names)?);
    }
    bench.end(&names)?;
    drop(bench);
    node.finish().context("the node's end")?;
    Ok(measured)
}

/// Each follower takes two descriptors here.
fn more_files() -> Result<()> {
    let now = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum }).context("open files")
}

/// A line a second and no further process: what a pod itself does is not measured.
fn script() -> String {
    format!("trap 'exit 0' TERM; mkfifo /nothing; exec 3<>/nothing; while :; do echo '{LINE}'; read -t 1 x <&3; done")
}

impl Bench<'_> {
    fn start(&self, probed: bool) -> Result<Vec<String>> {
        progress(&format!("{} pods, {}", self.mix.len(), if probed { "each with a probe" } else { "without probes" }));
        let prefix = if probed { "" } else { "plain-" };
        let kinds: BTreeMap<String, Kind> = self
            .mix
            .iter()
            .enumerate()
            .map(|(index, kind)| (format!("{prefix}{}-{index}", kind.name()), *kind))
            .collect();
        let names: Vec<String> = kinds.keys().cloned().collect();
        let ask = |name: &str| {
            let kind = kinds.get(name).context("a pod without a kind")?;
            self.cluster.create(&self.pod(name, *kind, probed)).map(drop)
        };
        all(self.cluster, &names, "all pods run", ask, |_, pod| pod["status"]["phase"] == "Running")?;
        std::thread::sleep(MEMORY_SETTLES);
        Ok(names)
    }

    fn end(&self, names: &[String]) -> Result<()> {
        progress("the pods' end");
        names.iter().try_for_each(|name| self.cluster.delete("pods", NAMESPACE, name, Some(1)).map(drop))?;
        names.iter().try_for_each(|name| self.cluster.wait_gone("pods", NAMESPACE, name))
    }

    fn pod(&self, name: &str, kind: Kind, probed: bool) -> Value {
        let mut pod = Pod::busybox(name, &script()).spec("nodeName", json!(NODE)).value().clone();
        pod["metadata"]["namespace"] = json!(NAMESPACE);
        if kind == Kind::Grpc {
            pod["spec"]["hostNetwork"] = json!(true);
        }
        if probed {
            pod["spec"]["containers"][0]["readinessProbe"] = probe(kind, self.targets.addresses.get(&kind));
        }
        pod
    }

    fn under(&self, load: Load, names: &[String]) -> Result<Of> {
        let (plan, runtime) = (self.plan, self.lab.containerd());
        progress(&format!("{load:?} for {} s", plan.watched.as_secs()));
        let followers = match load.follows() {
            true => Some(Followers::start(&self.https, names, plan.followers)?),
            false => None,
        };
        std::thread::sleep(SETTLE);
        let followed = || followers.as_ref().map_or(0, Followers::bytes);
        let (execs, bytes, runtime_ns) = (self.execs()?, followed(), measure::runtime_cpu(runtime));
        self.targets.take();
        let (idle, scrapes) = std::thread::scope(|scope| {
            let scraper = scope.spawn(|| if load.scrapes() { self.scrape() } else { Ok(Scrapes::new()) });
            let idle = measure::idle(plan.watched, || measure::alive(self.node));
            (idle, scraper.join())
        });
        let of = Of {
            idle: idle?,
            runtime_ns: measure::runtime_cpu(runtime).saturating_sub(runtime_ns),
            probes: self.targets.take(),
            scrapes: scrapes.map_err(|_| anyhow!("scraping panicked"))??,
            followed_bytes: followed() - bytes,
            execs: self.execs()?.since(&execs),
        };
        followers.as_ref().map_or(Ok(()), Followers::check)?;
        Ok(of)
    }

    /// Probes by command, as the node counts them.
    fn execs(&self) -> Result<Histogram> {
        let answer = self.https.get("/metrics/probes")?;
        ensure!(answer.status == 200, "/metrics/probes: {}", answer.status);
        let text = String::from_utf8(answer.body.to_vec())?;
        // Where nothing is probed there is nothing to tell.
        if text.is_empty() {
            Ok(Histogram::default())
        } else {
            Histogram::of(&Scrape::read(&text, Format::Prometheus)?, "exec-")
        }
    }

    /// All scrapers at once, one path after the other, again and again.
    fn scrape(&self) -> Result<Scrapes> {
        let (begin, mut scrapes) = (Instant::now(), Scrapes::new());
        for round in 0..rounds(self.plan.watched) {
            let due = begin + SCRAPES_EVERY * round as u32;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            for path in SCRAPED {
                scrapes.entry(path).or_default().extend(at_once(&self.https, path, self.plan.scrapers)?);
            }
        }
        Ok(scrapes)
    }

    fn floors(&self, names: &[String]) -> Result<Floors> {
        let (time, runtime) = (self.plan.watched, self.lab.containerd());
        progress("the floor of probes");
        let mut containers = Vec::new();
        for name in names.iter().filter(|name| name.starts_with("plain-exec-")) {
            let found = self.node.cri()?.containers()?.into_iter().find(|one| one.pod == *name);
            containers.push(found.with_context(|| format!("no container of {name}"))?.id);
        }
        self.targets.take();
        let (before, begin) = (measure::runtime_cpu(runtime), Instant::now());
        let probes = targets::floor(self.lab, &self.targets, &self.mix, &containers, time)?;
        let mut floors = Floors { seconds: begin.elapsed().as_secs_f64(), ..Floors::default() };
        floors.probes_runtime_ns = measure::runtime_cpu(runtime).saturating_sub(before);
        (floors.probes_ns, floors.probes) = (probes.cpu_ns, self.targets.take());
        floors.probes.insert(Kind::Exec, probes.execs);

        progress("the floor of followers");
        let files = names.iter().map(|name| self.log(name)).collect::<Result<Vec<_>>>()?;
        (floors.followers_ns, floors.followed_bytes) = streams::floor(&files, self.plan.followers, time)?;

        progress("the floor of scrapes");
        for _ in 0..rounds(time) {
            floors.nothing.extend(at_once(&self.https, "/healthz", self.plan.scrapers)?);
        }
        // One thread that does nothing but read: its time is a processor's.
        let readings = (0..READINGS).map(|_| server::files(self.node)).sum::<Result<Duration>>()?;
        floors.files_ns = (readings / READINGS).as_nanos() as u64;
        Ok(floors)
    }

    fn log(&self, name: &str) -> Result<PathBuf> {
        let prefix = format!("{NAMESPACE}_{name}_");
        let folders = std::fs::read_dir(self.node.pod_logs())?.flatten();
        let folder = folders
            .map(|entry| entry.path())
            .find(|path| path.file_name().is_some_and(|folder| folder.to_string_lossy().starts_with(&prefix)));
        Ok(folder.with_context(|| format!("no log of {name}"))?.join("main/0.log"))
    }
}

/// How often scrapers come in that time.
pub fn rounds(time: Duration) -> usize {
    time.as_secs().div_ceil(SCRAPES_EVERY.as_secs()).max(1) as usize
}

/// Once a second; `at`: whom it asks, where that is not a command. A probe that fails is late, and no pod is to be restarted for it.
fn probe(kind: Kind, at: Option<&SocketAddr>) -> Value {
    let (host, port) = at.map_or_else(Default::default, |at| (at.ip().to_string(), at.port()));
    let mut probe = match kind {
        Kind::Exec => json!({"exec": {"command": ["true"]}}),
        Kind::Http => json!({"httpGet": {"host": host, "port": port, "path": "/healthz"}}),
        Kind::Tcp => json!({"tcpSocket": {"host": host, "port": port}}),
        Kind::Grpc => json!({"grpc": {"port": port}}),
    };
    (probe["periodSeconds"], probe["timeoutSeconds"]) = (json!(1), json!(10));
    probe
}

fn at_once(https: &Https, path: &str, scrapers: usize) -> Result<Vec<Duration>> {
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..scrapers).map(|_| scope.spawn(|| server::timed(https, path))).collect();
        all.into_iter().map(|one| Ok(one.join().map_err(|_| anyhow!("a scraper panicked"))??.0)).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrapers_come_at_least_once() {
        for (seconds, expected) in [(5, 1), (15, 1), (16, 2), (60, 4)] {
            assert_eq!(rounds(Duration::from_secs(seconds)), expected, "{seconds}");
        }
    }

    #[test]
    fn a_probe_asks_what_is_meant() {
        let at: SocketAddr = "198.18.1.1:80".parse().unwrap();
        for (kind, field, expected) in [
            (Kind::Exec, "exec", json!({"command": ["true"]})),
            (Kind::Http, "httpGet", json!({"host": "198.18.1.1", "port": 80, "path": "/healthz"})),
            (Kind::Tcp, "tcpSocket", json!({"host": "198.18.1.1", "port": 80})),
            (Kind::Grpc, "grpc", json!({"port": 80})),
        ] {
            let probe = probe(kind, Some(&at));
            assert_eq!((&probe[field], &probe["periodSeconds"]), (&expected, &json!(1)));
        }
    }
}
