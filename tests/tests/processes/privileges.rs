//! The process table, as the kernel sees it: who each process is, what it may do, and who may talk to it.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_config::NodeConfig;
use bulkhead_privileges::{Bounding, Program, Row};
use bulkhead_sys::process::short_name;
use bulkhead_testkit::processes::maps_pages_singly;
use bulkhead_testkit::{LONG, Node, Pod, SHORT, cgroups, eventually};
use bulkhead_tests::lab;
use bulkhead_tests::privileges::{config, helper_is_as_mapped, is_as_mapped, to_be_had, user};
use serde_json::{Value, json};

#[test]
fn every_process_holds_what_the_table_says_and_nothing_else() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").config("enableSystemLogQuery", json!(true)).start()?;
    node.write(&Pod::idle("one"))?;
    node.wait_running("one", 1)?;
    let (pids, config) = (node.pids(), config(&node)?);
    let mut users = BTreeSet::new();

    for program in Program::ALL {
        let name = program.name();
        let pid = match program {
            Program::Launcher | Program::Daemon(_) => {
                let pid = *pids.get(name).with_context(|| format!("{name} does not run"))?;
                is_as_mapped(&config, program, pid)?;
                is_alone_with_its_memory(name, pid)?;
                pid
            }
            // The last of them is there for a moment each minute, when it looks whether somebody has flushed the rules.
            Program::Walker | Program::Journal | Program::Iptables => helper_is_as_mapped(&node, program)?,
            // Those run where there is a device or a driver: storage/local_devices.rs and storage/flexvolume.rs.
            Program::Disks | Program::Flexvolume => continue,
        };
        if let Program::Daemon(_) = program {
            says_what_the_kernel_shows(&node, &config, program.row(), pid)?;
        }
        let uid = user(pid)?;
        ensure!(uid == 0 || users.insert(uid), "{name} shares its user");
    }

    let socket = std::fs::metadata(lab.containerd().socket())?;
    ensure!((socket.uid(), socket.gid(), socket.mode() & 0o7777) == (0, 0, 0o660), "containerd's socket was changed");
    let folder = std::fs::metadata(node.run_dir())?;
    ensure!(folder.uid() == 0 && folder.mode() & 0o7777 == 0o750, "{:o}", folder.mode());
    node.finish()
}

/// Who has its user, or a look at /proc, gets nothing of its memory, and a pod of the same user takes none of its processes.
fn is_alone_with_its_memory(name: &str, pid: i32) -> Result<()> {
    // The kernel gives /proc/<pid> of a process that is not dumpable to root.
    let owner = std::fs::metadata(format!("/proc/{pid}/environ"))?.uid();
    ensure!(owner == 0, "{name} is dumpable: its /proc files belong to {owner}");
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    ensure!(maps_pages_singly(&smaps, name)? != Some(false), "{name} has pages mapped by the dozen");
    // A pod may run as the user of a daemon, and the kernel counts a user's processes over the whole machine.
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let processes = limits.lines().find_map(|line| line.strip_prefix("Max processes ")).context("no such limit")?;
    let words: Vec<&str> = processes.split_whitespace().collect();
    ensure!(words[0] == words[1], "{name} has no more processes than {}", words[0]);
    Ok(())
}

/// The daemon's own word: the same sets by their names, and the filter of its row.
fn says_what_the_kernel_shows(node: &Node, config: &NodeConfig, row: &Row, pid: i32) -> Result<()> {
    let name = row.program.name();
    let says = node.agent()?.privileges(name)?;
    ensure!(i64::from(says.pid) == i64::from(pid) && says.uid == user(pid)?, "{says:?}");
    ensure!(!says.dumpable && says.no_new_privs == row.no_new_privs && says.seccomp_mode == 2, "{name}: {says:?}");
    let names = |of_map: &[bulkhead_sys::Capability]| -> Result<BTreeSet<String>> {
        let there = to_be_had(of_map)?;
        Ok(of_map.iter().filter(|one| there.contains(&one.index())).map(|one| short_name(*one)).collect())
    };
    ensure!(row.bounding == Bounding::Row, "a daemon gives no privileges on");
    for (what, says, map) in [
        ("effective", &says.effective, names(row.capabilities)?),
        ("permitted", &says.permitted, names(&row.permitted())?),
        ("bounding", &says.bounding, names(row.capabilities)?),
        ("inheritable", &says.inheritable, names(row.ambient())?),
        ("ambient", &says.ambient, names(row.ambient())?),
    ] {
        ensure!(says.iter().cloned().collect::<BTreeSet<_>>() == map, "{what} of {name}: {says:?}, the map {map:?}");
    }
    let words = |all: Vec<String>| all.into_iter().collect::<BTreeSet<_>>();
    let denied = words(row.denied(Some(config)).iter().map(ToString::to_string).collect());
    let families = words(row.families(Some(config)).iter().map(ToString::to_string).collect());
    ensure!(words(says.denied.clone()) == denied, "{name} denies {:?}, the map {denied:?}", says.denied);
    ensure!(words(says.families.clone()) == families, "{name} has {:?}, the map {families:?}", says.families);
    Ok(())
}

/// What `kubelet-ctl privileges` finds: its exit code, and the processes with what is wrong with each.
type Compared = (Option<i32>, Vec<(String, String)>);

fn compared(node: &Node) -> Result<Compared> {
    let output = node.ctl_command(&["privileges", "--output", "json"])?.output()?;
    let all: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{output:?}: {}", String::from_utf8_lossy(&output.stderr)))?;
    let facts = all.iter().flat_map(|process| {
        let name = process["process"].as_str().unwrap_or_default();
        let facts = process["facts"].as_array().cloned().unwrap_or_default();
        facts
            .into_iter()
            .filter(|fact| ["differs", "unknown"].contains(&fact["verdict"].as_str().unwrap_or_default()))
            .map(move |fact| (name.to_owned(), format!("{}: {} / {}", fact["what"], fact["map"], fact["reality"])))
    });
    Ok((output.status.code(), facts.collect()))
}

#[test]
fn kubelet_ctl_compares_map_and_reality() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    // Sockets that one process binds and another serves are there a moment after both are ready.
    eventually("all is as in the map", SHORT, || {
        let (code, wrong) = compared(&node)?;
        ensure!(code == Some(0) && wrong.is_empty(), "exit code {code:?}: {wrong:#?}");
        Ok(())
    })?;

    // Somebody without rights sees little, and is not told that all is well.
    let ctl = node.ctl_command(&["privileges"])?;
    let stranger = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(ctl.get_program())
        .args(ctl.get_args())
        .output()?;
    ensure!(!stranger.status.success(), "{stranger:?}");

    // A process of a daemon's name with one capability too many.
    let script = format!("exec -a kubelet-evictiond sh -c 'read line' sh --run-dir {}", node.run_dir().display());
    let mut impostor = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=+net_raw", "--ambient-caps=+net_raw"])
        .args(["bash", "-c", &script])
        .stdin(std::process::Stdio::piped())
        .spawn()?;
    let noticed = eventually("the impostor is noticed", SHORT, || {
        let (code, wrong) = compared(&node)?;
        ensure!(code == Some(4), "exit code {code:?}: {wrong:?}");
        ensure!(wrong.iter().all(|(process, _)| process == "kubelet-evictiond"), "{wrong:?}");
        ensure!(wrong.iter().any(|(_, fact)| fact.contains("too many: NET_RAW")), "{wrong:?}");
        Ok(())
    });
    impostor.kill()?;
    impostor.wait()?;
    noticed?;

    // One that is wedged is not known to be well.
    let statusd = node.pids()["kubelet-statusd"];
    bulkhead_testkit::processes::signal(statusd, nix::sys::signal::Signal::SIGSTOP);
    let wedged = eventually("the wedged one is told", SHORT, || {
        let (code, wrong) = compared(&node)?;
        ensure!(code == Some(3), "exit code {code:?}: {wrong:?}");
        ensure!(wrong.iter().all(|(process, _)| process == "kubelet-statusd"), "{wrong:?}");
        Ok(())
    });
    bulkhead_testkit::processes::signal(statusd, nix::sys::signal::Signal::SIGCONT);
    wedged?;
    eventually("all is as in the map again", SHORT, || {
        let (code, wrong) = compared(&node)?;
        ensure!(code == Some(0), "exit code {code:?}: {wrong:?}");
        Ok(())
    })?;
    node.finish()
}

#[test]
fn evictiond_is_fenced_in_though_it_holds_nothing() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    let says = node.agent()?.privileges("kubelet-evictiond")?;
    ensure!(!says.landlock.is_empty(), "no Landlock rules are in force: {says:?}");
    ensure!(says.seccomp_mode == 2, "no filter is in force: {says:?}");
    node.finish()
}

/// How a peer is dressed up.
struct Dress<'a> {
    uid: u32,
    groups: &'a str,
    cgroup: Option<&'a str>,
    user_namespace: bool,
}

fn call(dress: &Dress<'_>, socket: &Path, pod: &str, method: &str) -> Result<String> {
    let peer = env!("CARGO_BIN_EXE_peer");
    let socket = socket.display();
    let mut script = String::new();
    if let Some(cgroup) = dress.cgroup {
        for hierarchy in cgroups::hierarchies() {
            let procs = hierarchy.join(cgroup.trim_start_matches('/')).join("cgroup.procs");
            script.push_str(&format!("[ -e {0} ] && echo $$ > {0}; ", procs.display()));
        }
    }
    let uid = dress.uid;
    script.push_str(&format!("exec setpriv --reuid={uid} --regid={uid} --groups={} ", dress.groups));
    if dress.user_namespace {
        script.push_str("unshare --user ");
    }
    script.push_str(&format!("{peer} {socket} {method} {pod}"));
    let output = Command::new("sh").args(["-c", &script]).output()?;
    ensure!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[test]
fn a_peer_needs_the_right_user_outside_pods_and_in_our_user_namespace() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    node.write(&Pod::idle("one"))?;
    let running = node.wait_running("one", 1)?;
    let pids = node.pids();
    let uid = running.sandbox.uid.as_str();
    let syncd = user(pids["kubelet-syncd"])?;
    let statusd = user(pids["kubelet-statusd"])?;
    let base = std::fs::metadata(node.run_dir())?.gid();
    let group = base.to_string();
    let volnetd = node.run_dir().join("kubelet-volnetd.sock");
    let dress = |uid: u32| Dress { uid, groups: &group, cgroup: None, user_namespace: false };

    ensure!(call(&dress(syncd), &volnetd, uid, "hello")?.starts_with("Ok"), "the sync daemon's own user may call");
    ensure!(call(&dress(syncd), &volnetd, uid, "prepare-pod")?.starts_with("Ok"));
    let refused = |dress: &Dress<'_>, method: &str, who: &str| -> Result<()> {
        let answer = call(dress, &volnetd, uid, method)?;
        ensure!(answer.starts_with("PermissionDenied"), "{who}: {answer}");
        Ok(())
    };
    refused(&dress(statusd), "prepare-pod", "a daemon whose verb it is not")?;
    refused(&dress(65_534), "hello", "a stranger in the group")?;
    refused(&Dress { user_namespace: true, ..dress(syncd) }, "hello", "the right user in another user namespace")?;
    let inside = pod_cgroup(&node, &running.sandbox.uid)?;
    refused(&Dress { cgroup: Some(&inside), ..dress(syncd) }, "hello", "the right user in a pod's cgroup")?;
    let answer = call(&Dress { groups: "65534", ..dress(syncd) }, &volnetd, uid, "hello")?;
    ensure!(answer.starts_with("no connection: PermissionDenied"), "without the group: {answer}");
    node.finish()
}

/// The runtime puts containers anywhere then, so that a cgroup which could be one is no peer's.
#[test]
fn without_cgroups_of_pods_a_peer_in_a_container_s_cgroup_is_refused() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let builder = lab.node("alpha").config("cgroupsPerQOS", json!(false)).config("enforceNodeAllocatable", json!([]));
    let node = builder.start()?;
    let syncd = user(node.pids()["kubelet-syncd"])?;
    let group = std::fs::metadata(node.run_dir())?.gid().to_string();
    let volnetd = node.run_dir().join("kubelet-volnetd.sock");
    let container = format!("{}/k8s.io-container", lab.cgroup());
    cgroups::create(&container)?;
    let dress = Dress { uid: syncd, groups: &group, cgroup: None, user_namespace: false };
    let hello = |dress: &Dress<'_>| call(dress, &volnetd, "none", "hello");
    ensure!(hello(&dress)?.starts_with("Ok"), "outside of containers the sync daemon's own user may call");
    let answer = hello(&Dress { cgroup: Some(&container), ..dress })?;
    ensure!(answer.starts_with("PermissionDenied"), "{answer}");
    // The daemons are each other's peers all the same.
    ensure!(node.ctl(&["health"])?.contains("healthy"));
    node.finish()
}

/// Upstream names no cgroup to the runtime then (podContainerManagerNoop).
#[test]
fn without_cgroups_of_pods_a_pod_runs_in_a_cgroup_of_the_runtime_s_choice() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let builder = lab.node("alpha").config("cgroupsPerQOS", json!(false)).config("enforceNodeAllocatable", json!([]));
    let node = builder.start()?;
    node.write(&Pod::idle("one"))?;
    let running = node.wait_running("one", 1)?;
    let (main, cri) = (&running.main().id, node.cri()?);
    let cgroup = std::fs::read_to_string(format!("/proc/{}/cgroup", cri.pid(main)?))?;
    ensure!(cgroup.contains(main.as_str()), "{cgroup}");
    ensure!(!cgroup.contains(&format!("pod{}", running.sandbox.uid)), "{cgroup}");
    eventually("what it uses is the sum of its containers'", LONG, || {
        let stats: Value = serde_json::from_str(&node.ctl(&["stats", "-o", "json"])?)?;
        let name = node.pod_name("one");
        let pod = stats["pods"].as_array().and_then(|pods| pods.iter().find(|one| one["name"] == name.as_str()));
        ensure!(pod.is_some_and(|pod| pod["memoryWorkingSetBytes"].is_u64()), "{stats}");
        Ok(())
    })?;
    // It is looked after like any other: a container that ends is started again, and with its manifest all of it goes.
    cri.stop_container(main)?;
    ensure!(node.wait_running("one", 1)?.main().id != *main, "the container that was stopped runs on");
    node.remove("one")?;
    node.wait_gone("one")?;
    node.finish()
}

/// Decision 55.
#[test]
fn a_host_pid_pod_of_a_daemons_user_ends_it_and_no_pod_notices() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    node.write(&Pod::idle("neighbour"))?;
    let neighbour = node.wait_running("neighbour", 1)?;
    let before = node.pids();
    let (syncd, volnetd) = (before["kubelet-syncd"], before["kubelet-volnetd"]);
    let uid = user(syncd)?;
    let script = format!(
        "kill -9 {volnetd} 2>&1; cat /proc/{syncd}/environ /proc/{syncd}/maps 2>&1; echo tried; kill -9 {syncd}; sleep 1000"
    );
    let pod = Pod::busybox("killer", &script)
        .spec("hostPID", json!(true))
        .spec("securityContext", json!({"runAsUser": uid, "runAsGroup": uid}));
    node.write(&pod)?;
    let log = std::fs::read_to_string(node.wait_for_log("killer", "main", "tried")?)?;
    ensure!(log.matches("ermission denied").count() + log.matches("not permitted").count() >= 3, "{log}");
    eventually("kubelet-syncd is another process", LONG, || {
        let now = node.pids();
        ensure!(now.get("kubelet-syncd").is_some_and(|pid| *pid != syncd), "{now:?}");
        ensure!(now.get("kubelet-volnetd") == Some(&volnetd), "{now:?}");
        node.is_healthy()
    })?;
    ensure!(node.wait_running("neighbour", 1)?.main().id == neighbour.main().id, "the neighbour was started again");
    node.finish()
}

fn pod_cgroup(node: &Node, uid: &str) -> Result<String> {
    let below = cgroups::below(node.cgroup_root());
    let relative = below.iter().find(|path| path.ends_with(&format!("pod{uid}"))).context("the pod has no cgroup")?;
    Ok(format!("{}/{relative}", node.cgroup_root()))
}

#[test]
fn a_pod_under_a_daemon_s_user_reaches_no_socket() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    let syncd = user(node.pids()["kubelet-syncd"])?;
    let run_dir = node.run_dir().display().to_string();
    let script = "id -u; ls /sockets 2>&1; cat /sockets/config.json 2>&1; echo end of the attempt; sleep 1000";
    let pod = Pod::busybox("impostor", script)
        .spec("securityContext", json!({"runAsUser": syncd, "runAsGroup": syncd}))
        .host_path("sockets", &run_dir, "Directory", "/sockets");
    node.write(&pod)?;
    let log = std::fs::read_to_string(node.wait_for_log("impostor", "main", "end of the attempt")?)?;
    ensure!(log.contains(&format!(" F {syncd}\n")), "it does run as that user: {log}");
    ensure!(log.matches("Permission denied").count() == 2 && !log.contains(".sock\n"), "{log}");
    node.finish()
}
