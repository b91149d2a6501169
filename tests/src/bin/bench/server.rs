//! What the HTTPS server costs: a log read through it beside `cat`, a command beside the same one straight at the runtime's
//! streaming server, and scrapes beside a request that asks for nothing.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::cluster::client::Credential;
use bulkhead_testkit::https::Https;
use bulkhead_testkit::{IDLE, LONG, Lab, Node, Pod, eventually};
use bulkhead_tests::channels;
use serde_json::json;

use crate::measure::{self, Pair, Usage, usage};

/// How often a log is read each way.
const READINGS: usize = 5;
/// Statistics that are younger are not measured anew.
const SAMPLE_LIFE: Duration = Duration::from_secs(11);
const LINE: &str = "a line of a log as long as many lines of many logs are, seventy-nine characters";

/// What a scraper asks for.
pub const SCRAPED: [&str; 4] = ["/metrics", "/metrics/cadvisor", "/metrics/resource", "/stats/summary"];

/// How much of everything.
#[derive(Debug, Clone)]
pub struct Plan {
    pub pods: usize,
    pub log_mib: usize,
    pub execs: usize,
    /// Scrapes of each path.
    pub rounds: usize,
}

/// What one kind of scrape takes.
#[derive(Debug, Clone, Default)]
pub struct Scrape {
    pub bytes: usize,
    pub took: Vec<Duration>,
    /// Of all processes, for each scrape.
    pub cpu_ns: Vec<u64>,
    /// By process, for all of them together.
    pub by_process: BTreeMap<String, Usage>,
}

#[derive(Debug, Clone, Default)]
pub struct Measurements {
    /// Bytes of the log file.
    pub log_bytes: u64,
    pub log: Pair,
    /// Of kubelet-statusd, for one reading.
    pub log_cpu_ns: u64,
    pub exec: Pair,
    /// GET /healthz on the same server, with its TLS handshake.
    pub nothing: Vec<Duration>,
    pub scrapes: BTreeMap<&'static str, Scrape>,
    /// Reading once, in one thread, the kernel's files of all pods that statistics come from.
    pub files: Duration,
}

/// Runs everything.
///
/// # Errors
/// Anything that keeps a figure from being one.
pub fn run(plan: &Plan) -> Result<Measurements> {
    let lab = Lab::start_alone()?;
    let node = lab
        .node("bench")
        .config("authentication", json!({"anonymous": {"enabled": true}, "webhook": {"enabled": false}}))
        .config("authorization", json!({"mode": "AlwaysAllow"}))
        .start()?;
    let https = Https::new(SocketAddr::new(lab.netns().address().into(), 10250), &Credential::Nothing);
    let mut measured = Measurements::default();
    log(plan, &node, &https, &mut measured)?;
    exec(plan, &lab, &node, &https, &mut measured)?;
    scrapes(plan, &node, &https, &mut measured)?;
    node.finish().context("the node's end")?;
    Ok(measured)
}

fn progress(text: &str) {
    eprintln!("bench: server: {text}");
}

fn log(plan: &Plan, node: &Node, https: &Https, measured: &mut Measurements) -> Result<()> {
    progress(&format!("a log of {} MiB", plan.log_mib));
    let script = format!("yes '{LINE}' | head -c {}; echo; echo written; {IDLE}", plan.log_mib << 20);
    node.write(&Pod::busybox("writer", &script))?;
    node.wait_running("writer", 1)?;
    let file = eventually("the log is written", LONG, || {
        let folder = node.log_folders("writer").pop().context("no folder")?;
        let file = folder.join("main/0.log");
        let written = Command::new("tail").args(["-n", "1"]).arg(&file).output()?.stdout;
        ensure!(String::from_utf8_lossy(&written).ends_with(" F written\n"));
        Ok(file)
    })?;
    measured.log_bytes = std::fs::metadata(&file)?.len();
    let before = usage(node)?;
    for _ in 0..READINGS {
        measured.log.floor.push(cat(&file)?);
        let begin = Instant::now();
        let mut answer = https.open("GET", "/containerLogs/default/writer-bench/main", &[])?;
        ensure!(answer.status == 200, "{}", answer.status);
        let bytes = read_all(&mut answer)?;
        measured.log.node.push(begin.elapsed());
        ensure!(bytes > (plan.log_mib << 20), "only {bytes} bytes of the log came");
    }
    let used = measure::since(&before, &usage(node)?);
    measured.log_cpu_ns = used.get("kubelet-statusd").map_or(0, |used| used.cpu_ns) / READINGS as u64;
    node.remove("writer")?;
    node.wait_gone("writer")
}

fn cat(file: &Path) -> Result<Duration> {
    let begin = Instant::now();
    let mut child = Command::new("cat").arg(file).stdout(Stdio::piped()).spawn().context("starting cat")?;
    read_all(child.stdout.as_mut().context("no output")?)?;
    ensure!(child.wait()?.success(), "cat failed");
    Ok(begin.elapsed())
}

fn read_all(from: &mut impl std::io::Read) -> Result<usize> {
    let mut buffer = vec![0; 64 << 10];
    let mut sum = 0;
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(sum),
            count => sum += count,
        }
    }
}

fn exec(plan: &Plan, lab: &Lab, node: &Node, https: &Https, measured: &mut Measurements) -> Result<()> {
    progress(&format!("{} pairs of commands", plan.execs));
    node.write(&Pod::idle("web"))?;
    let container = node.wait_running("web", 1)?.main().id.clone();
    let cri = lab.cri()?;
    for _ in 0..plan.execs {
        let begin = Instant::now();
        let url = cri.exec_url(&container, &["true"])?;
        let (address, path) = place(&url)?;
        let direct = Https::plain(address).within(&lab.netns().path());
        ensure!(channels::open(&direct, &path)?.messages.to_end()?.exit_code()? == 0);
        measured.exec.floor.push(begin.elapsed());

        let begin = Instant::now();
        let path = "/exec/default/web-bench/main?output=1&command=true";
        ensure!(channels::open(https, path)?.messages.to_end()?.exit_code()? == 0);
        measured.exec.node.push(begin.elapsed());
    }
    node.remove("web")?;
    node.wait_gone("web")
}

/// `http://address:port/path`.
fn place(url: &str) -> Result<(SocketAddr, String)> {
    let rest = url.strip_prefix("http://").with_context(|| url.to_owned())?;
    let (address, path) = rest.split_once('/').with_context(|| url.to_owned())?;
    Ok((address.parse()?, format!("/{path}")))
}

fn scrapes(plan: &Plan, node: &Node, https: &Https, measured: &mut Measurements) -> Result<()> {
    progress(&format!("scrapes with {} pods", plan.pods));
    let names: Vec<String> = (0..plan.pods).map(|index| format!("pod-{index}")).collect();
    names.iter().try_for_each(|name| node.write(&Pod::idle(name)))?;
    for name in &names {
        node.wait_running(name, 1)?;
    }
    for path in SCRAPED {
        for _ in 0..plan.rounds {
            std::thread::sleep(SAMPLE_LIFE);
            measured.nothing.push(timed(https, "/healthz")?.0);
            let before = usage(node)?;
            let (took, bytes) = timed(https, path)?;
            let used = measure::since(&before, &usage(node)?);
            let scrape = measured.scrapes.entry(path).or_default();
            scrape.bytes = bytes;
            scrape.took.push(took);
            scrape.cpu_ns.push(used.values().map(|used| used.cpu_ns).sum());
            for (name, used) in used {
                scrape.by_process.entry(name).or_default().cpu_ns += used.cpu_ns;
            }
        }
    }
    measured.files = files(node)?;
    names.iter().try_for_each(|name| node.remove(name))?;
    for name in &names {
        node.wait_gone(name)?;
    }
    Ok(())
}

/// How long a GET takes, and how many bytes it brings.
///
/// # Errors
/// No answer, or a refusal.
pub fn timed(https: &Https, path: &str) -> Result<(Duration, usize)> {
    let begin = Instant::now();
    let answer = https.get(path)?;
    ensure!(answer.status == 200, "{path}: {}", answer.status);
    Ok((begin.elapsed(), answer.body.len()))
}

/// The files of memory, CPU and tasks below each pod's cgroup, all read once in one thread.
///
/// # Errors
/// One cannot be read.
pub fn files(node: &Node) -> Result<Duration> {
    let mut all = Vec::new();
    for (controller, file) in [("cpuacct", "cpuacct.usage"), ("memory", "memory.stat"), ("pids", "pids.current")] {
        let root = Path::new("/sys/fs/cgroup").join(controller).join(node.cgroup_root().trim_start_matches('/'));
        below(&root, file, &mut all);
    }
    let begin = Instant::now();
    let mut buffer = Vec::new();
    for file in &all {
        buffer.clear();
        std::fs::File::open(file)?.read_to_end(&mut buffer)?;
    }
    Ok(begin.elapsed())
}

fn below(folder: &Path, name: &str, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    found.extend(Some(folder.join(name)).filter(|file| file.exists()));
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        below(&entry.path(), name, found);
    }
}
