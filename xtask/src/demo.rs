//! The tour: a node from nothing, a pod on it, a look inside, and nothing left afterwards.

use std::io::IsTerminal;
use std::net::IpAddr;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use bulkhead_testkit::wait::{self, LONG, SHORT, eventually};
use bulkhead_testkit::{Lab, Node, Pod, build, machine};

use crate::interrupt;

const PORT: u16 = 8080;
const GREETING: &str = "Hello from a pod that four small processes run";

/// Shows everything that `show` has to show; with `once` it ends by itself, else on Ctrl-C.
///
/// # Errors
/// The step that failed and why; what was built up until then is gone again.
pub fn run(profile: &str, once: bool, show: fn(&mut Tour, &Lab) -> Result<Node>) -> Result<()> {
    if !machine::is_root() {
        bail!("the demo needs root (it makes network namespaces, cgroups and mounts): run it as root or with sudo");
    }
    let signals = interrupt::listen()?;
    let mut tour = Tour::new();

    tour.step("Machine: what a node needs from Debian");
    let missing = machine::missing_packages();
    machine::ensure_installed(&|line| tour.say(line))?;
    if !Path::new("/usr/bin/curl").exists() {
        machine::install(&["curl"], &|line| tour.say(line))?;
    }
    tour.say(if missing.is_empty() {
        "containerd, runc, CNI plugins, busybox, ip, iptables: all here"
    } else {
        "installed"
    });

    if std::env::var_os("BULKHEAD_BIN_DIR").is_none() {
        tour.step(&format!("Build: kubelet, its four daemons, kubelet-ctl ({profile} profile)"));
        build::use_programs(&build::programs(profile)?)?;
    } else {
        tour.step("Build: nothing, the programs are given by BULKHEAD_BIN_DIR");
    }
    tour.say(&format!("programs in {}", build::bin_dir()?.display()));

    tour.step("Runtime: a private containerd in a network namespace of its own");
    let lab = Lab::start_beside()?;
    tour.say(&format!("namespace {}, folder {}", lab.netns().name(), lab.folder().display()));
    tour.say(&format!("containerd at {} (images made from this machine's busybox)", lab.containerd().endpoint()));

    let shown = show(&mut tour, &lab).and_then(|node| {
        if !once {
            println!("\nThe node runs until you press Ctrl-C.");
            let signal = signals.recv().context("the signal thread ended")?;
            println!();
            tour.say(&format!("{signal}: taking everything down"));
        }
        Ok(node)
    });
    let cut_short = shown.is_err() && wait::interrupted();
    // From here on a second Ctrl-C must not cut the clean-up short.
    wait::resume();
    tour.step("The end: the pod, the node, the runtime");
    if shown.is_err() {
        tour.say("taking down what was built up");
    }
    let node = if cut_short { shown.context("interrupted; everything is taken down")? } else { shown? };
    node.finish().context("taking the node down")?;
    tour.say("pod stopped; no mount, cgroup, address, shim or process of the node is left");
    let folder = lab.folder();
    drop(lab);
    if folder.exists() {
        bail!("{} could not be removed", folder.display());
    }
    tour.say("containerd, network namespace and folder removed");
    Ok(())
}

/// The tour of a node by itself.
///
/// # Errors
/// The step that failed and why.
pub fn show(tour: &mut Tour, lab: &Lab) -> Result<Node> {
    tour.step("Node: the kubelet, nothing but upstream's flags");
    let began = Instant::now();
    let node = lab.node("demo").start()?;
    tour.say(&node.command_line()?.join(" "));
    tour.say(&format!("healthy after {:.2} s; its log is {}", began.elapsed().as_secs_f64(), node.log().display()));

    tour.step("Pod: a manifest in the static pod folder");
    let script = format!(
        "mkdir -p /tmp/www && echo '{GREETING}' > /tmp/www/index.html && echo \"$HOSTNAME is up: {GREETING}\"; \
         httpd -f -p {PORT} -h /tmp/www & trap 'exit 0' TERM; wait"
    );
    let began = Instant::now();
    node.write(&Pod::busybox("hello", &script))?;
    tour.say(&format!("wrote {}", node.manifests().join("hello.yaml").display()));
    let log = node.wait_for_log("hello", "main", GREETING)?;
    tour.say(&format!("running after {:.2} s; its log, {}:", began.elapsed().as_secs_f64(), log.display()));
    for line in std::fs::read_to_string(&log)?.lines() {
        tour.quote(line);
    }

    let (address, page) = eventually("the pod answers", SHORT, || {
        let addresses = lab.containerd().addresses();
        let (address, _) = addresses.first().context("no pod has an address yet")?;
        let address: IpAddr = address.parse()?;
        let (status, page) = node.http_get(address, PORT, "/")?;
        if status != 200 {
            bail!("status {status}");
        }
        Ok((address, page))
    })?;
    tour.say(&format!("GET http://{address}:{PORT}/ answers:"));
    tour.quote(page.trim());

    tour.step("Processes: who they are and what they may do (kubelet-ctl privileges)");
    print_indented(&eventually("kubelet-ctl shows the privileges", LONG, || node.ctl(&["privileges"]))?);
    println!("\n   kubelet-ctl pods:");
    print_indented(&eventually("kubelet-ctl shows the pod", LONG, || {
        let pods = node.ctl(&["pods"])?;
        if pods.contains("Running") { Ok(pods) } else { bail!("{pods}") }
    })?);

    tour.step("The node's HTTPS server: its log, a command in it, what is measured");
    let server = format!("https://{}:10250", lab.netns().address());
    let pod = format!("default/{}/main", node.pod_name("hello"));
    for (arguments, keep) in [
        (vec![format!("{server}/containerLogs/{pod}")], ""),
        (vec!["-X".to_owned(), "POST".to_owned(), format!("{server}/run/{pod}?cmd=id")], ""),
        (vec![format!("{server}/metrics/resource")], "container_memory_working_set_bytes{"),
    ] {
        tour.say(&format!(
            "curl -sk {}{}",
            arguments.join(" "),
            if keep.is_empty() { "" } else { " (of it one series)" }
        ));
        let said = eventually("the node answers", SHORT, || {
            let words = ["-sSfk"].into_iter().chain(arguments.iter().map(String::as_str)).collect::<Vec<_>>();
            let said = machine::run("curl", &words)?;
            if said.contains(keep) { Ok(said) } else { bail!("{said}") }
        })?;
        said.lines().filter(|line| line.starts_with(keep)).for_each(|line| tour.quote(line));
    }

    tour.step("Look inside yourself");
    let ctl = build::bin_dir()?.join("kubelet-ctl").display().to_string();
    let of_node = format!("--root-dir {}", node.root_dir().display());
    let run = node.run_dir().display();
    for (what, command) in [
        ("why is a pod where it is", format!("{ctl} pod {} {of_node}", node.pod_name("hello"))),
        ("is it well", format!("{ctl} health {of_node}")),
        ("the pod from this machine", format!("curl http://{address}:{PORT}/")),
        ("the node's own server", format!("curl -sk {server}/pods")),
        ("healthz", format!("nsenter --net={} curl -s http://127.0.0.1:10248/healthz", lab.netns().path().display())),
        (
            "the same without our tools",
            format!("grpcurl -plaintext -authority localhost -unix {run}/kubelet-syncd.sock list"),
        ),
        (
            "",
            format!(
                "grpcurl -plaintext -authority localhost -unix {run}/kubelet-syncd.sock kubelet.syncd.v1.Pods/List"
            ),
        ),
        ("kill a daemon; the pod stays", format!("kill -9 {}", node.pids().get("kubelet-syncd").copied().unwrap_or(0))),
        ("another pod", format!("cp your-pod.yaml {}/  (image {})", node.manifests().display(), node.image())),
    ] {
        println!("   {what:<30} {command}");
    }
    Ok(node)
}

/// Another program's output, set off.
pub fn print_indented(text: &str) {
    for line in text.trim_end().lines() {
        println!("   {line}");
    }
}

/// Numbered steps with the time they took.
#[derive(Debug)]
pub struct Tour {
    step: u32,
    begun: Instant,
    bold: bool,
}

impl Tour {
    fn new() -> Self {
        Self { step: 0, begun: Instant::now(), bold: std::io::stdout().is_terminal() }
    }

    pub fn step(&mut self, title: &str) {
        self.step += 1;
        let (on, off) = if self.bold { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        println!("\n{on}[{}] {title}{off}   ({:.1} s)", self.step, self.begun.elapsed().as_secs_f64());
    }

    pub fn say(&self, line: &str) {
        println!("   {line}");
    }

    pub fn quote(&self, line: &str) {
        println!("   | {line}");
    }
}
