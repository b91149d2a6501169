//! The units in a machine with a real systemd: how they come up and go down, what survives which restart, who waits and who
//! is refused. What strikes of every kind do to pods is tests/independence.rs; what the files say is tests/units.rs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail, ensure};
use bulkhead_testkit::cluster::client::Credential;
use bulkhead_testkit::https::Https;
use bulkhead_testkit::systemd::{LIBEXEC, Machine, SERVICES};
use bulkhead_testkit::{LONG, Pod, SHORT, build, eventually, processes};
use bulkhead_tests::systemd_machine;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const HEALTHZ: u16 = 10248;
const MOVED_HEALTHZ: u16 = 10348;
const MAIN: u16 = 10250;
const STATUSD: &str = "kubelet-statusd.service";
const EVICTIOND: &str = "kubelet-evictiond.service";
const SOCKETS: [&str; 9] = [
    "kubelet-volnetd.sock",
    "kubelet-volnetd.fd.sock",
    "kubelet-syncd.sock",
    "kubelet-evictiond.sock",
    "kubelet-statusd.sock",
    "kubelet-walker.sock",
    "kubelet-journal.sock",
    "kubelet-iptables.sock",
    "kubelet-disks.sock",
];

#[test]
fn the_units_come_up_stay_and_go_as_one_kubelet() -> Result<()> {
    let Some(builder) = systemd_machine()? else { return Ok(()) };
    let machine = Machine::boot(builder)?;
    machine.install_programs(&build::bin_dir()?)?;
    machine.install_units(&build::workspace_root())?;
    machine.kubelet_arguments(&[])?;
    machine.check(&["systemctl", "enable", "kubelet"])?;

    without_a_configuration(&machine)?;
    configure(&machine, HEALTHZ)?;
    machine.check(&["systemctl", "restart", "kubelet"])?;
    machine.wait_healthy()?;
    machine.check(&["systemctl", "is-enabled", "kubelet"])?;
    privileges_are_as_promised(&machine)?;
    the_environment_is_the_renderers(&machine)?;

    machine.write_pod(&Pod::idle("keeper").empty_dir("memory", "Memory", None, "/memory"))?;
    running(&machine, 1)?;
    mounts_of_pods_are_seen_and_not_held(&machine)?;
    clients_wait_while_the_daemon_is_away(&machine)?;
    the_journal_is_read_for_authorised_users(&machine)?;
    chains_of_iptables_are_kept(&machine)?;
    plugins_register_again_with_the_whole_kubelet_alone(&machine)?;
    a_second_node_is_refused(&machine)?;
    ports_follow_the_configuration(&machine)?;
    stopped_is_stopped(&machine)?;
    // A machine that goes down waits for those that are in no hurry: a minute and a half, for pods.
    machine.remove_pod("keeper")?;
    running(&machine, 0)?;
    machine.finish()
}

fn configure(machine: &Machine, healthz: u16) -> Result<()> {
    let mut config = machine.kubelet_config();
    config["healthzPort"] = healthz.into();
    config["enableSystemLogQuery"] = true.into();
    config["enableSystemLogHandler"] = true.into();
    config["oomScoreAdj"] = (-998).into();
    machine.configure_kubelet(&config)
}

/// As before `kubeadm init`: it fails at once, again and again, nothing listens, and none of it is final.
fn without_a_configuration(machine: &Machine) -> Result<()> {
    let started = machine.run(&["systemctl", "start", "kubelet"])?;
    ensure!(!started.status.success(), "a start without a configuration succeeded");
    // What kubeadm takes for active.
    let state = machine.run(&["systemctl", "is-active", "kubelet"])?;
    ensure!(String::from_utf8_lossy(&state.stdout).trim() == "activating", "{state:?}");
    let unit = machine.unit("kubelet.service")?;
    ensure!(unit.sub == "auto-restart", "{unit:?}");
    eventually("it is tried again by itself", LONG, || {
        ensure!(machine.unit("kubelet.service")?.restarts >= 1, "not yet");
        Ok(())
    })?;
    // Between two tries.
    eventually("nothing runs", LONG, || nothing_runs(machine))?;
    let said = machine.journal(&["--unit=kubelet", "--output=cat"])?;
    ensure!(said.contains("/var/lib/kubelet/config.yaml"), "the reason is not in the journal: {said}");
    Ok(())
}

fn privileges_are_as_promised(machine: &Machine) -> Result<()> {
    for (service, tenths) in [
        ("kubelet-volnetd.service", 50),
        ("kubelet-syncd.service", 15),
        (EVICTIOND, 15),
        (STATUSD, 15),
        ("kubelet-walker.service", 15),
        ("kubelet-journal.service", 15),
        ("kubelet-iptables.service", 20),
        ("kubelet-disks.service", 20),
        ("kubelet-flexvolume.service", 55),
    ] {
        machine.check(&["systemd-analyze", "security", &format!("--threshold={tenths}"), service])?;
    }
    for service in SERVICES {
        let smaps = machine.check(&["cat", &format!("/proc/{}/smaps", machine.unit(service)?.main_pid)])?;
        let singly = processes::maps_pages_singly(&smaps, service.trim_end_matches(".service"))?;
        ensure!(singly != Some(false), "{service} keeps its process from having pages mapped singly");
    }
    // Who looks for the kubelet's process finds the one whose mounts the pods see, and no worker of it.
    let kubelet = machine.check(&["pidof", "kubelet"])?;
    let volnetd = machine.unit("kubelet-volnetd.service")?.main_pid;
    ensure!(kubelet.trim() == volnetd.to_string(), "pidof kubelet: {kubelet}, kubelet-volnetd: {volnetd}");
    let shown = machine.check(&["cat", &format!("/proc/{volnetd}/comm")])?;
    ensure!(shown.trim() == "kubelet", "{shown}");
    // The process table, by the processes' own word and the kernel's.
    eventually("all is as in the map", SHORT, || machine.check(&["kubelet-ctl", "privileges"]).map(drop))?;
    let said = machine.journal(&["--unit=kubelet", "--output=cat"])?;
    ensure!(said.contains("OOMScoreAdjust=-998"), "a setting that the units overrule is told: {said}");
    Ok(())
}

/// kubelet.service's proxy is the daemons' proxy, and nothing else of its environment is theirs.
fn the_environment_is_the_renderers(machine: &Machine) -> Result<()> {
    machine.drop_in(
        "kubelet.service",
        "20-proxy",
        "[Service]\nEnvironment=\"NO_PROXY=a b\\\"c\" \"KUBELET_EXTRA_ARGS=secret\"\n",
    )?;
    machine.check(&["systemctl", "restart", "kubelet"])?;
    machine.wait_healthy()?;
    for service in SERVICES {
        let pid = machine.unit(service)?.main_pid;
        let environment = machine.check(&["cat", &format!("/proc/{pid}/environ")])?;
        let all: Vec<&str> = environment.split('\0').collect();
        ensure!(all.contains(&"NO_PROXY=a b\"c"), "{service}: {all:?}");
        ensure!(!environment.contains("KUBELET_EXTRA_ARGS"), "{service}: {all:?}");
    }
    Ok(())
}

/// The mount namespace of a daemon follows the machine's: what is mounted for a pod comes, and goes with it.
fn mounts_of_pods_are_seen_and_not_held(machine: &Machine) -> Result<()> {
    machine.write_pod(&Pod::idle("mounter").empty_dir("memory", "Memory", None, "/memory"))?;
    running(machine, 2)?;
    let volumes = |pid: i32| -> Result<usize> {
        let mounts = machine.check(&["cat", &format!("/proc/{pid}/mountinfo")])?;
        Ok(mounts.lines().filter(|line| line.contains("kubernetes.io~empty-dir/memory ")).count())
    };
    let daemons = ["kubelet-syncd.service", EVICTIOND, STATUSD];
    for daemon in daemons {
        let (ours, machines) = (volumes(machine.unit(daemon)?.main_pid)?, volumes(1)?);
        ensure!(machines == 2 && ours == 2, "{daemon} sees {ours} of {machines}");
    }
    machine.remove_pod("mounter")?;
    running(machine, 1)?;
    eventually("its volume goes everywhere", LONG, || {
        ensure!(volumes(1)? == 1, "the machine still has it");
        for daemon in daemons {
            ensure!(volumes(machine.unit(daemon)?.main_pid)? == 1, "{daemon} still has it");
        }
        let pods = machine.check(&["ls", "/var/lib/kubelet/pods"])?;
        ensure!(pods.lines().count() == 1, "a folder of a pod is left: {pods}");
        Ok(())
    })
}

/// Ports outlive the process that listens: whoever connects in between has its answer a moment later.
fn clients_wait_while_the_daemon_is_away(machine: &Machine) -> Result<()> {
    let stop = AtomicBool::new(false);
    let https = https(machine, MAIN);
    let answered = std::thread::scope(|scope| -> Result<(u32, u32)> {
        let plain = scope.spawn(|| -> Result<u32> {
            let mut answered = 0;
            while !stop.load(Ordering::Relaxed) {
                let (status, _) = machine.netns().http_get(LOOPBACK, HEALTHZ, "/healthz/ping")?;
                ensure!(status == 200, "after {answered}: {status}");
                answered += 1;
            }
            Ok(answered)
        });
        let secure = scope.spawn(|| -> Result<u32> {
            // A connection that had been accepted when the process was killed is lost with it: only that a new one is
            // refused is ruled out.
            let mut answered = 0;
            while !stop.load(Ordering::Relaxed) {
                match https.get("/healthz/ping") {
                    Ok(_) => answered += 1,
                    Err(error) if format!("{error:#}").contains("refused") => return Err(error),
                    Err(_) => {}
                }
            }
            Ok(answered)
        });
        let outcome = (|| -> Result<()> {
            for _ in 0..3 {
                machine.check(&["systemctl", "restart", STATUSD])?;
                machine.wait_healthy()?;
            }
            let before = machine.unit(STATUSD)?;
            machine.check(&["systemctl", "kill", "--signal=KILL", STATUSD])?;
            machine.wait_another_run(STATUSD, &before)?;
            machine.wait_healthy()
        })();
        stop.store(true, Ordering::Relaxed);
        let (plain, secure) = (plain.join(), secure.join());
        outcome?;
        let panicked = |_| anyhow::anyhow!("a client panicked");
        // One plain request may be under way when the process is killed; what it must not be is refused.
        let plain = match plain.map_err(panicked)? {
            Err(error) if !format!("{error:#}").contains("refused") => 1,
            other => other?,
        };
        Ok((plain, secure.map_err(panicked)??))
    })?;
    ensure!(answered.0 > 0 && answered.1 > 0, "{answered:?}");
    Ok(())
}

/// The log query, by a process that starts when somebody asks, and that answers nobody but statusd.
fn the_journal_is_read_for_authorised_users(machine: &Machine) -> Result<()> {
    ensure!(machine.unit("kubelet-journal.service")?.active == "inactive", "it runs though nobody asked");
    let https = https(machine, MAIN);
    let text = |query: &str| -> Result<String> {
        Ok(String::from_utf8_lossy(&https.get(&format!("/logs/?{query}"))?.body).into_owned())
    };
    let all = text("query=kubelet")?;
    for said_by in ["kubelet[", "kubelet-syncd[", "kubelet-volnetd[", "kubelet-evictiond[", "kubelet-statusd["] {
        ensure!(all.contains(said_by), "nothing of {said_by}: {all}");
    }
    let last = text("query=containerd&tailLines=2")?;
    ensure!(last.lines().count() == 2, "{last}");
    let unit = machine.unit("kubelet-journal.service")?;
    ensure!(unit.active == "active", "{unit:?}");
    // Killed: the next question starts it again.
    machine.signal("kubelet-journal.service", "KILL")?;
    eventually("the journal is read again", LONG, || {
        let said = text("query=containerd&tailLines=1")?;
        ensure!(said.contains("containerd"), "{said}");
        Ok(())
    })
}

/// Made by a process that is gone again, and made again after a flush when kubelet-volnetd looks: at its start at the latest.
fn chains_of_iptables_are_kept(machine: &Machine) -> Result<()> {
    let kept = || -> Result<()> {
        let firewall = machine.check(&["iptables", "-S", "KUBE-FIREWALL"])?;
        ensure!(firewall.contains("block incoming localnet connections"), "{firewall}");
        for program in ["iptables", "ip6tables"] {
            for chain in ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"] {
                machine.check(&[program, "-t", "mangle", "-S", chain])?;
            }
        }
        Ok(())
    };
    eventually("the chains are there", LONG, kept)?;
    eventually("who made them is gone", LONG, || {
        let unit = machine.unit("kubelet-iptables.service")?;
        ensure!(unit.active == "inactive" && unit.main_pid == 0, "{unit:?}");
        Ok(())
    })?;
    for table in ["mangle", "nat", "filter"] {
        machine.check(&["sh", "-c", &format!("iptables -t {table} -F && iptables -t {table} -X")])?;
    }
    ensure!(kept().is_err(), "a flush takes them away");
    machine.check(&["systemctl", "restart", "kubelet-volnetd"])?;
    machine.wait_healthy()?;
    eventually("the chains are there again", LONG, kept)
}

/// A new socket says to a device plugin that all of the kubelet was started anew. That one process was is nothing to it, though
/// systemd keeps the socket in both cases.
fn plugins_register_again_with_the_whole_kubelet_alone(machine: &Machine) -> Result<()> {
    machine.install_program(&build::bin_dir()?.join("device_plugin"))?;
    machine.write("/var/lib/plugin/told.json", br#"{"devices": [{"id": "a"}]}"#, 0o644)?;
    let arguments = "--resource=example.com/device --root=/var/lib/kubelet --state=/var/lib/plugin";
    machine.shell(&format!("systemd-run --quiet --unit=plugin {LIBEXEC}/device_plugin {arguments}"))?;
    let registered = |times: usize| {
        eventually(&format!("the plugin has registered {times} times"), LONG, || {
            let calls = machine.check(&["cat", "/var/lib/plugin/calls.jsonl"])?;
            ensure!(calls.lines().filter(|line| line.contains(r#""call":"Register""#)).count() == times, "{calls}");
            Ok(())
        })
    };
    // The number of a file that is gone may be given again.
    let socket = || machine.check(&["stat", "--format=%i %z", "/var/lib/kubelet/device-plugins/kubelet.sock"]);
    registered(1)?;
    let bound = socket()?;
    for service in ["kubelet-volnetd.service", "kubelet-syncd.service"] {
        let before = machine.unit(service)?;
        machine.signal(service, "KILL")?;
        machine.wait_another_run(service, &before)?;
        machine.wait_healthy()?;
    }
    ensure!(socket()? == bound, "another socket");
    registered(1)?;
    machine.check(&["systemctl", "restart", "kubelet"])?;
    machine.wait_healthy()?;
    registered(2)?;
    ensure!(socket()? != bound, "the same socket");
    machine.check(&["systemctl", "stop", "plugin"]).map(drop)
}

/// The claims are held though the process that took them is long gone, and over its restart.
fn a_second_node_is_refused(machine: &Machine) -> Result<()> {
    for _ in 0..2 {
        let second =
            machine.run(&["kubelet", "--config=/var/lib/kubelet/config.yaml", "--root-dir=/var/lib/second"])?;
        let said = String::from_utf8_lossy(&second.stderr);
        ensure!(!second.status.success() && said.contains("is in use by another node"), "{said}");
        machine.check(&["systemctl", "restart", "kubelet"])?;
        machine.wait_healthy()?;
    }
    Ok(())
}

fn ports_follow_the_configuration(machine: &Machine) -> Result<()> {
    configure(machine, MOVED_HEALTHZ)?;
    machine.check(&["systemctl", "restart", "kubelet"])?;
    eventually("the new port answers", LONG, || {
        let (status, body) = machine.netns().http_get(LOOPBACK, MOVED_HEALTHZ, "/healthz")?;
        ensure!(status == 200, "{body}");
        Ok(())
    })?;
    ensure!(!listens(machine, HEALTHZ)?, "the old port is still open");
    ensure!(listens(machine, MAIN)?, "the port that stayed is gone");
    Ok(())
}

/// What `kubeadm reset` relies on: nothing runs, nothing listens, nothing comes back; and the pods stay. And back again.
fn stopped_is_stopped(machine: &Machine) -> Result<()> {
    let before = machine.fingerprint()?;
    machine.check(&["systemctl", "stop", "kubelet"])?;
    let state = machine.run(&["systemctl", "is-active", "kubelet"])?;
    ensure!(String::from_utf8_lossy(&state.stdout).trim() == "inactive", "{state:?}");
    nothing_runs(machine)?;
    // Somebody who still knows the sockets wakes nobody.
    for socket in SOCKETS {
        let path = machine.live_root()?.join("run/kubelet").join(socket);
        ensure!(std::os::unix::net::UnixStream::connect(&path).is_err(), "{socket} still answers");
    }
    nothing_runs(machine)?;
    for claim in ["root-*", "uid-named"] {
        machine.check(&["sh", "-c", &format!("flock --nonblock /run/kubelet.claims/{claim} true")])?;
    }
    let failed = machine.check(&["systemctl", "--failed", "--no-legend", "--plain"])?;
    ensure!(!failed.contains("kubelet"), "{failed}");
    ensure!(machine.fingerprint()? == before, "stopping the node agent touched a pod");

    configure(machine, HEALTHZ)?;
    machine.check(&["systemctl", "start", "kubelet"])?;
    machine.wait_healthy()?;
    // Over the whole group too.
    let run = machine.unit(STATUSD)?;
    machine.check(&["systemctl", "restart", "kubelet.target"])?;
    machine.wait_another_run(STATUSD, &run)?;
    machine.wait_healthy()?;
    ensure!(machine.fingerprint()? == before, "starting the node agent touched a pod");
    Ok(())
}

fn nothing_runs(machine: &Machine) -> Result<()> {
    for service in SERVICES.into_iter().chain([
        "kubelet-walker.service",
        "kubelet-journal.service",
        "kubelet-iptables.service",
        "kubelet-disks.service",
        "kubelet-flexvolume.service",
    ]) {
        let unit = machine.unit(service)?;
        ensure!(unit.active == "inactive" && unit.main_pid == 0, "{service}: {unit:?}");
    }
    for (pid, line) in machine.processes()? {
        let program = line.first().map_or("", String::as_str);
        ensure!(!program.starts_with(LIBEXEC) && program != "/usr/bin/kubelet", "process {pid} is left: {line:?}");
    }
    for port in [MAIN, HEALTHZ, MOVED_HEALTHZ] {
        ensure!(!listens(machine, port)?, "somebody listens on {port}");
    }
    let run = machine.live_root()?.join("run/kubelet");
    let left: Vec<_> = std::fs::read_dir(&run)
        .with_context(|| format!("reading {}", run.display()))?
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    ensure!(left.is_empty(), "left in /run/kubelet: {left:?}");
    Ok(())
}

fn listens(machine: &Machine, port: u16) -> Result<bool> {
    let all = machine.check(&["ss", "--listening", "--tcp", "--numeric", "--no-header"])?;
    Ok(all.lines().any(|line| line.split_whitespace().nth(3).is_some_and(|at| at.ends_with(&format!(":{port}")))))
}

fn running(machine: &Machine, containers: usize) -> Result<()> {
    eventually("the pods run", LONG, || {
        let now = machine.fingerprint()?;
        if now.len() != containers {
            bail!("{} containers run", now.len());
        }
        Ok(())
    })
    .map_err(|error| error.context(machine.last_words(&["kubelet*"], 40)))
}

fn https(machine: &Machine, port: u16) -> Https {
    let path: &Path = &machine.netns().path();
    Https::new(SocketAddr::new(LOOPBACK, port), &Credential::Nothing).within(path)
}
