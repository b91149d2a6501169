//! From inside: a program with exactly the privileges of each daemon tries what that daemon must not be able to do, and
//! what came of it is compared with a reviewed table (`tests/fixtures/intruder.txt`).

use std::collections::BTreeMap;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use bulkhead_testkit::node::DAEMONS;
use bulkhead_testkit::systemd::{LIBEXEC, Machine};
use bulkhead_testkit::{LONG, Node, Pod, build, cgroups, eventually, processes};
use bulkhead_tests::joined::{Member, pods, secret};
use bulkhead_tests::{journald, lab, systemd_machine};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// Who is stood in for: the daemons, and who enters file systems or runs programs for one of them.
const WHO: [&str; 8] = {
    let [volnetd, syncd, evictiond, statusd] = DAEMONS;
    // kubelet-flexvolume is off unless an operator switches it on, and gives root: SECURITY.md says so, and no table has to.
    let [walker, journal, iptables, disks, _flexvolume] = build::HELPERS;
    [volnetd, syncd, evictiond, statusd, walker, journal, iptables, disks]
};
/// It runs for moments, and is no process to be attacked.
const ON_DEMAND: &str = "kubelet-iptables";
/// It runs where a volume lies on a block device or is a disk, and is no process to be attacked either.
const DISKS: &str = "kubelet-disks";
/// It is off here.
const FLEXVOLUME: &str = "kubelet-flexvolume";
const INTRUDER: &str = env!("CARGO_BIN_EXE_intruder");
/// The reviewed table.
const TABLE: &str = include_str!("../../fixtures/intruder.txt");
/// Errors that say no; another (ENOENT, EINVAL…) says that the act met nothing, and proves nothing.
const REFUSALS: [&str; 9] = [
    "EPERM",
    "EACCES",
    "ENOSYS",
    "EROFS",
    "EAFNOSUPPORT",
    "EPROTONOSUPPORT",
    "PermissionDenied",
    "Unimplemented",
    "Unauthenticated",
];

/// One word of the table for what came of an act.
fn word(act: &str, outcome: &str) -> String {
    let peer = act.starts_with("call-") || act.starts_with("broker-");
    if REFUSALS.contains(&outcome) || outcome.starts_with("killed-by-") {
        "no".to_owned()
    } else if ["allowed", "ETXTBSY"].contains(&outcome) || peer {
        // A peer that finds fault with the message has let its sender in; a program that runs is refused to nobody else.
        "YES".to_owned()
    } else {
        outcome.to_owned()
    }
}

/// Act by act, what came of it.
type Report = BTreeMap<String, String>;

/// The lines of a daemon's intruder, once all of them are there.
fn report(log: &str, daemon: &str) -> Result<Report> {
    let mark = format!("INTRUDER {daemon} ");
    let lines = || log.lines().filter_map(|line| line.split_once(&mark)).map(|(_, rest)| rest);
    let acts = lines().find_map(|line| line.strip_prefix("end ")).context("it has not come to its end")?;
    let report: Report = lines()
        .filter(|line| !["end ", "row ", "handed-folder "].iter().any(|note| line.starts_with(note)))
        .filter_map(|line| line.split_once(' '))
        .map(|(act, outcome)| (act.to_owned(), outcome.trim().to_owned()))
        .collect();
    ensure!(report.len() == acts.trim().parse::<usize>()?, "{acts} acts, {} lines", report.len());
    Ok(report)
}

/// The table in the form of the fixture: one line an act, a word for each daemon.
fn table(reports: &BTreeMap<&str, Report>) -> String {
    let mut acts: Vec<&String> = reports.values().flat_map(BTreeMap::keys).collect();
    acts.sort();
    acts.dedup();
    let mut text = String::new();
    for act in acts {
        let words = WHO.map(|daemon| match reports.get(daemon).and_then(|report| report.get(act)) {
            Some(outcome) => word(act, outcome),
            None => "-".to_owned(),
        });
        let words = words.map(|word| format!("{word:9}")).join(" ");
        text.push_str(&format!("{act:60} {}\n", words.trim_end()));
    }
    text
}

/// Writes everything down in the folder that `$BULKHEAD_INTRUDER_TABLES` names, for whoever reviews a change.
fn keep(way: &str, table: &str, reports: &BTreeMap<&str, Report>) -> Result<()> {
    let Some(folder) = std::env::var_os("BULKHEAD_INTRUDER_TABLES") else { return Ok(()) };
    let full: String = reports.iter().map(|(daemon, report)| format!("{daemon}: {report:#?}\n")).collect();
    Ok(std::fs::write(Path::new(&folder).join(way), format!("{table}\n{full}"))?)
}

/// Whether what happened is what the table's word allows. `?` depends on the machine (a device that is not there, a
/// capability that is withheld, a kernel's version), `no?` does too, but may never be a yes.
fn agrees(word: &str, expected: &str) -> bool {
    match expected {
        "?" => true,
        "no?" => word == "no" || word == "ENOENT",
        _ => word == expected,
    }
}

/// Lines of a table: act, and a word for each daemon.
fn rows(text: &str) -> BTreeMap<String, Vec<String>> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let words = lines.map(|line| line.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>());
    words.filter_map(|words| words.split_first().map(|(act, words)| (act.clone(), words.to_vec()))).collect()
}

/// Compares line by line; every act is in the table, and every act of the table was tried.
fn compare(told: &str, table: &str) -> Result<()> {
    let (told, table) = (rows(told), rows(table));
    let mut wrong = Vec::new();
    for act in told.keys().chain(table.keys().filter(|act| !told.contains_key(*act))) {
        match (told.get(act), table.get(act)) {
            (Some(is), Some(should)) if is.len() == should.len() => {
                for ((daemon, is), should) in WHO.iter().zip(is).zip(should) {
                    if !agrees(is, should) {
                        wrong.push(format!("{daemon}, {act}: {is}, the table says {should}"));
                    }
                }
            }
            (is, should) => wrong.push(format!("{act}: {is:?}, the table says {should:?}")),
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// A folder of programs in which each can be replaced: links, but for the launcher, which looks beside itself.
fn programs(folder: &Path) -> Result<()> {
    let built = match std::env::var_os("BULKHEAD_BIN_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => build::programs("dev")?,
    };
    std::fs::copy(built.join("kubelet"), folder.join("kubelet"))?;
    for program in build::PROGRAMS.into_iter().filter(|program| *program != "kubelet").chain(build::HELPERS) {
        std::os::unix::fs::symlink(built.join(program), folder.join(program))?;
    }
    build::use_programs(folder)
}

/// Puts another program in a daemon's place; what runs is not touched.
fn swap(folder: &Path, daemon: &str, program: &Path) -> Result<()> {
    let draft = folder.join("draft");
    std::os::unix::fs::symlink(program, &draft)?;
    Ok(std::fs::rename(draft, folder.join(daemon))?)
}

/// A pod's first process as the machine counts.
fn process_of(node: &Node, uid: &str) -> Result<i32> {
    for hierarchy in cgroups::hierarchies() {
        let root = hierarchy.join(node.cgroup_root().trim_start_matches('/'));
        for below in cgroups::below(node.cgroup_root()).iter().filter(|path| path.contains(uid)) {
            let procs = std::fs::read_to_string(root.join(below).join("cgroup.procs")).unwrap_or_default();
            if let Some(pid) = procs.lines().find_map(|line| line.parse().ok()) {
                return Ok(pid);
            }
        }
    }
    bail!("no process in the cgroup of pod {uid}")
}

fn cgroup_file(node: &Node, uid: &str) -> Result<PathBuf> {
    for hierarchy in cgroups::hierarchies() {
        let root = hierarchy.join(node.cgroup_root().trim_start_matches('/'));
        for below in cgroups::below(node.cgroup_root()).iter().filter(|path| path.contains(uid)) {
            let file = root.join(below).join("cgroup.procs");
            if file.is_file() {
                return Ok(file);
            }
        }
    }
    bail!("no cgroup of pod {uid}")
}

fn helper(node: &Node, name: &str) -> Result<i32> {
    let launcher = *node.pids().get("kubelet").context("no launcher")?;
    eventually(&format!("{name} runs"), LONG, || journald::helper_of(launcher, name))
}

fn kill(node: &Node, daemon: &str) -> Result<()> {
    if !build::HELPERS.contains(&daemon) {
        return node.kill_daemon(daemon);
    }
    processes::signal(helper(node, daemon)?, Signal::SIGKILL);
    Ok(())
}

/// Has a question asked that nobody answers: whatever is put into its place will be started for it.
fn ask_in_vain(node: &mut Node, folder: &Path) -> Result<()> {
    swap(folder, ON_DEMAND, Path::new("/nowhere"))?;
    // It asks when it starts.
    node.kill_daemon("kubelet-volnetd")?;
    node.wait_healthy()
}

/// A pod that kubelet-disks is asked for.
fn of_a_disk(node: &Node) -> Value {
    let volumes = json!([{"name": "disk", "fc": {"wwids": ["none-of-it"]}}]);
    let mut pod = pods::pod(node, "asks", "sleep 1000", &json!({"volumes": volumes}));
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "disk", "mountPath": "/disk"}]);
    pod
}

/// A link in the scratch folder to a socket in a pod's volume: the volume's path is longer than an address may be.
const POD_SOCKET: &str = "pod-socket";

/// What a pod may have in a volume: a socket to which anybody may connect who finds it.
fn listen_in_a_volume(node: &Node, pod: &Value, scratch: &Path) -> Result<UnixListener> {
    let uid = pod["metadata"]["uid"].as_str().context("no uid")?;
    let volume = node.root_dir().join(format!("pods/{uid}/volumes/kubernetes.io~empty-dir/open"));
    let folder = std::fs::File::open(&volume).with_context(|| format!("{}", volume.display()))?;
    let listener = UnixListener::bind(format!("/proc/self/fd/{}/socket", folder.as_raw_fd()))?;
    std::fs::set_permissions(volume.join("socket"), std::fs::Permissions::from_mode(0o777))?;
    std::os::unix::fs::symlink(volume.join("socket"), scratch.join(POD_SOCKET))?;
    Ok(listener)
}

/// What there is to be attacked.
fn plan(node: &Node, pod: &Value, kubeconfig: &Path, scratch: &Path) -> Result<Value> {
    let uid = pod["metadata"]["uid"].as_str().context("no uid")?;
    let volume = node.root_dir().join(format!("pods/{uid}/volumes/kubernetes.io~secret/kept/word"));
    ensure!(volume.exists(), "{} is not there", volume.display());
    let log = node.log_folder_of(pod).join("main/0.log");
    let key = node.certificates().join("kubelet.key");
    let mut processes: BTreeMap<String, i32> = node
        .pids()
        .into_iter()
        .map(|(name, pid)| (name.strip_prefix("kubelet-").unwrap_or("launcher").to_owned(), pid))
        .collect();
    processes.insert("pod".to_owned(), process_of(node, uid)?);
    for name in build::HELPERS.into_iter().filter(|name| ![ON_DEMAND, DISKS, FLEXVOLUME].contains(name)) {
        processes.insert(name.trim_start_matches("kubelet-").to_owned(), helper(node, name)?);
    }
    Ok(json!({
        "run_dir": node.run_dir(),
        "root_dir": node.root_dir(),
        "read": {
            "shadow": "/etc/shadow",
            "secret-of-a-pod": volume,
            "log-of-a-pod": log,
            "kubeconfig": kubeconfig,
            "serving-key": key,
            "kernel-messages": "/dev/kmsg",
            "memory-of-the-machine": "/dev/mem",
            "slabs-of-the-kernel": "/proc/slabinfo",
            "pages-of-the-machine": "/proc/kpageflags",
        },
        "write": {
            "etc": "/etc/bulkhead-intruder",
            "root-dir": node.root_dir().join("intruder"),
            "secret-of-a-pod": volume,
            "log-of-a-pod": log,
            "manifest": node.manifests().join("intruder.yaml.draft"),
            "kubeconfig": kubeconfig,
            "configuration": node.run_dir().join("config.json"),
            "cgroup-of-a-pod": cgroup_file(node, uid)?,
            "sysrq": "/proc/sysrq-trigger",
            "sysctl-core-pattern": "/proc/sys/kernel/core_pattern",
            "sysctl-modprobe": "/proc/sys/kernel/modprobe",
            "kernel-messages": "/dev/kmsg",
            "memory-of-the-machine": "/dev/mem",
        },
        "processes": processes,
        "runtime_socket": node.lab().containerd().socket(),
        "pod_socket": scratch.join(POD_SOCKET),
        "scratch": scratch,
    }))
}

#[test]
fn with_a_daemon_s_privileges_nothing_else_can_be_had() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
    let scratch = folder.path().join("scratch");
    std::fs::create_dir_all(scratch.join("mounted"))?;
    std::fs::set_permissions(&scratch, std::fs::Permissions::from_mode(0o1777))?;
    programs(folder.path())?;
    let objects = [secret("kept", "Opaque", &json!({"word": "c2VjcmV0"}))];
    // No controller has to attach what a pod asks kubelet-disks for.
    let member = Member::start(&lab, &objects, |node| {
        node.config("enableSystemLogQuery", json!(true)).config("enableControllerAttachDetach", json!(false))
    })?;
    let kubeconfig = member.cluster.kubeconfig_for_node("alpha")?;
    let spec = json!({
        "containers": [{"name": "main", "volumeMounts": [
            {"name": "kept", "mountPath": "/kept"}, {"name": "open", "mountPath": "/open"},
        ]}],
        "volumes": [{"name": "kept", "secret": {"secretName": "kept"}}, {"name": "open", "emptyDir": {}}],
    });
    member.create("guarded", &spec)?;
    let pod = member.wait_ready("guarded")?;

    let mut reports = BTreeMap::new();
    let mut node = member.node;
    let _listener = listen_in_a_volume(&node, &pod, &scratch)?;
    for daemon in WHO {
        let original = std::fs::read_link(folder.path().join(daemon))?;
        if daemon == ON_DEMAND {
            ask_in_vain(&mut node, folder.path())?;
        }
        let plan = plan(&node, &pod, &kubeconfig, &scratch)?;
        std::fs::write(folder.path().join("intruder.json"), plan.to_string())?;
        swap(folder.path(), daemon, Path::new(INTRUDER))?;
        match daemon {
            ON_DEMAND => {}
            DISKS => drop(member.cluster.create(&of_a_disk(&node))?),
            _ => kill(&node, daemon)?,
        }
        let told = eventually(&format!("the intruder in place of {daemon} has tried everything"), LONG, || {
            report(&std::fs::read_to_string(node.log())?, daemon)
        })?;
        reports.insert(daemon, told);
        swap(folder.path(), daemon, &original)?;
        kill(&node, daemon)?;
        node.wait_healthy()?;
        // Health is told of the moment before: the next one is to find all the others.
        eventually("all daemons run", LONG, || {
            let pids = node.pids();
            ensure!(DAEMONS.iter().all(|one| pids.contains_key(*one)), "{pids:?}");
            Ok(())
        })?;
    }
    for (daemon, report) in &reports {
        for (act, outcome) in report {
            ensure!(!outcome.starts_with("dumped-core"), "{daemon}, {act}: {outcome}");
            ensure!(!outcome.starts_with("not-tried"), "{daemon}, {act}: {outcome}");
        }
    }
    member.cluster.delete("pods", "default", "asks", Some(0))?;
    member.cluster.wait_gone("pods", "default", "asks")?;
    let told = table(&reports);
    keep("launcher", &told, &reports)?;
    compare(&told, TABLE)?;
    // The pod has seen nothing of all that.
    let still = eventually("the pod is as it was", LONG, || {
        let shown = member.cluster.get("pods", "default", "guarded")?;
        ensure!(shown["status"]["containerStatuses"][0]["restartCount"] == 0, "{shown}");
        Ok(shown)
    })?;
    ensure!(still["status"]["podIP"] == pod["status"]["podIP"], "{still}");
    node.finish()
}

/// As a unit it is a sandbox more: nothing can be had that the process itself would not have let through, and what the
/// work needs is still there.
#[test]
fn with_a_unit_s_privileges_no_more_can_be_had() -> Result<()> {
    let Some(builder) = systemd_machine()? else { return Ok(()) };
    let machine = Machine::boot(builder)?;
    machine.install_programs(&build::bin_dir()?)?;
    machine.install_program(Path::new(INTRUDER))?;
    machine.install_units(&build::workspace_root())?;
    let mut config = machine.kubelet_config();
    config["enableSystemLogQuery"] = true.into();
    machine.configure_kubelet(&config)?;
    machine.kubelet_arguments(&[])?;
    machine.write_pod(&Pod::idle("guarded").empty_dir("kept", "Memory", None, "/kept"))?;
    machine.check(&["systemctl", "start", "kubelet"])?;
    machine.wait_healthy()?;
    let secret = eventually("the pod has its volume and a process", LONG, || {
        machine.shell("test $(ctr -n k8s.io task ls -q | wc -l) -ge 2")?;
        machine.shell("ls -d /var/lib/kubelet/pods/*/volumes/*/kept").map(|path| format!("{}/word", path.trim()))
    })?;
    machine
        .shell(&format!("echo secret > {secret}; mkdir -m 1777 /var/tmp/scratch; mkdir /var/tmp/scratch/mounted"))?;
    machine.write("/etc/kubernetes/other.conf", b"key", 0o600)?;

    let mut reports = BTreeMap::new();
    for daemon in WHO {
        let service = format!("{daemon}.service");
        machine.write(
            &format!("{LIBEXEC}/intruder.json"),
            unit_plan(&machine, &secret)?.to_string().as_bytes(),
            0o644,
        )?;
        let instead =
            format!("[Service]\nExecStart=\nExecStart={LIBEXEC}/intruder --as {daemon} --run-dir /run/kubelet\n");
        machine.drop_in(&service, "90-intruder", &instead)?;
        machine.check(&["systemctl", "restart", &service])?;
        let told = eventually(&format!("the intruder in place of {service} has tried everything"), LONG, || {
            report(&machine.journal(&[&format!("--unit={service}"), "--output=cat"])?, daemon)
        })?;
        reports.insert(daemon, told);
        machine.shell(&format!("rm /etc/systemd/system/{service}.d/90-intruder.conf"))?;
        machine.check(&["systemctl", "daemon-reload"])?;
        machine.check(&["systemctl", "restart", &service])?;
        machine.wait_healthy()?;
    }
    keep("unit", &table(&reports), &reports)?;
    for (daemon, told) in &reports {
        only_what_the_table_lets(daemon, told)?;
    }
    machine.remove_pod("guarded")?;
    eventually("the pod is gone", LONG, || machine.shell("test -z \"$(ctr -n k8s.io task ls -q)\""))?;
    machine.finish()
}

/// What there is to be attacked in a machine, as it is seen inside.
fn unit_plan(machine: &Machine, secret: &str) -> Result<Value> {
    let number = |script: &str| -> Result<i32> { Ok(machine.shell(script)?.trim().parse()?) };
    let mut processes = BTreeMap::from([("launcher", 1)]);
    for daemon in DAEMONS {
        let name = daemon.trim_start_matches("kubelet-");
        processes.insert(name, number(&format!("systemctl show -P MainPID {daemon}.service"))?);
    }
    for helper in build::HELPERS.into_iter().filter(|name| ![ON_DEMAND, DISKS, FLEXVOLUME].contains(name)) {
        // They end when nobody asks for a minute.
        machine.check(&["systemctl", "start", &format!("{helper}.service")])?;
        let name = helper.trim_start_matches("kubelet-");
        processes.insert(name, number(&format!("systemctl show -P MainPID {helper}.service"))?);
    }
    processes.insert("pod", number("ctr -n k8s.io task ls | tail -n 1 | tr -s ' ' | cut -d ' ' -f 2")?);
    let log = machine.shell("find /var/log/pods -name '0.log' | head -n 1")?;
    let cgroup = machine.shell("find /sys/fs/cgroup -path '*kubepods*' -name cgroup.procs | head -n 1")?;
    Ok(json!({
        "run_dir": "/run/kubelet",
        "root_dir": "/var/lib/kubelet",
        "read": {
            "shadow": "/etc/shadow",
            "secret-of-a-pod": secret,
            "log-of-a-pod": log.trim(),
            "kubeconfig": "/etc/kubernetes/other.conf",
            "serving-key": "/var/lib/kubelet/pki/kubelet.key",
            "kernel-messages": "/dev/kmsg",
            "memory-of-the-machine": "/dev/mem",
            "slabs-of-the-kernel": "/proc/slabinfo",
            "pages-of-the-machine": "/proc/kpageflags",
        },
        "write": {
            "etc": "/etc/bulkhead-intruder",
            "root-dir": "/var/lib/kubelet/intruder",
            "secret-of-a-pod": secret,
            "log-of-a-pod": log.trim(),
            "manifest": "/etc/kubernetes/manifests/intruder.yaml.draft",
            "kubeconfig": "/etc/kubernetes/other.conf",
            "configuration": "/run/kubelet/config.json",
            "cgroup-of-a-pod": cgroup.trim(),
            "sysrq": "/proc/sysrq-trigger",
            "sysctl-core-pattern": "/proc/sys/kernel/core_pattern",
            "sysctl-modprobe": "/proc/sys/kernel/modprobe",
            "kernel-messages": "/dev/kmsg",
            "memory-of-the-machine": "/dev/mem",
        },
        "processes": processes,
        "runtime_socket": "/run/containerd/containerd.sock",
        // It is not there; the launcher's test has one.
        "pod_socket": format!("/var/tmp/scratch/{POD_SOCKET}"),
        "scratch": "/var/tmp/scratch",
    }))
}

/// No act is let through that the table does not let through, and every call that it does is.
fn only_what_the_table_lets(daemon: &str, told: &Report) -> Result<()> {
    let column = WHO.iter().position(|one| *one == daemon).context("a daemon")?;
    let table = rows(TABLE);
    let mut wrong = Vec::new();
    for (act, outcome) in told {
        let word = word(act, outcome);
        let should =
            table.get(act).and_then(|words| words.get(column)).with_context(|| format!("{act} is not in the table"))?;
        let call = act.starts_with("call-") || act.starts_with("broker-");
        if (call && !agrees(&word, should)) || (word == "YES" && !["YES", "?"].contains(&should.as_str())) {
            wrong.push(format!("{daemon} as a unit, {act}: {outcome}, the table says {should}"));
        }
    }
    ensure!(told.len() > 100 && wrong.is_empty(), "{} acts\n{}", told.len(), wrong.join("\n"));
    Ok(())
}
