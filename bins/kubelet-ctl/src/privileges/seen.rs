//! Which processes are this node's, and what can be seen of each: by /proc, and by their own word.
//!
//! A process is found by its name and the socket folder on its command line, not by what it says: one that says nothing,
//! or something else, is found all the same. The launcher and the journal's reader serve no socket and carry no folder on
//! their command lines; they are found as relatives of the daemons.

use std::path::Path;

use bulkhead_config::NodeConfig;
use bulkhead_ipc::common::process_client::ProcessClient;
use bulkhead_ipc::common::{PrivilegesReply, PrivilegesRequest};
use bulkhead_privileges::Program;
use bulkhead_sys::process::PrivilegeReport;
use bulkhead_types::Process as Daemon;

use super::facts::Context;
use crate::connect::{connect, request, within};
use crate::instance::Instance;

/// All of a node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) context: Context,
    pub(super) processes: Vec<Process>,
}

/// One process, as far as it can be seen.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) program: Program,
    /// Every process that claims to be it; there should be one.
    pub(super) pids: Vec<u32>,
    pub(super) kernel: Option<PrivilegeReport>,
    /// Filters of the process that started it.
    pub(super) filters_above: Option<u32>,
    pub(super) says: Option<PrivilegesReply>,
    /// Why it says nothing.
    pub(super) silence: Option<String>,
}

impl Process {
    pub(super) fn pid(&self) -> Option<u32> {
        self.pids.first().copied()
    }
}

/// A line of the process list.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Running {
    pid: u32,
    parent: u32,
    /// What the kernel calls it: the program's name or one that it has chosen, 15 letters at most.
    name: String,
    words: Vec<String>,
}

/// Looks at everything once.
pub(super) async fn look(instance: &Instance) -> Node {
    let config = NodeConfig::load(&instance.run_dir.join("config.json")).ok();
    let running = running(Path::new("/proc"));
    let of = |daemon: Daemon| daemons(&running, daemon.name(), &instance.run_dir);
    let mut processes = Vec::new();
    let mut parents = Vec::new();
    for daemon in Daemon::ALL {
        let found = of(daemon);
        parents.extend(found.iter().map(|one| one.parent));
        let asked = async {
            let connected = connect(instance, daemon).await?;
            let mut client = ProcessClient::new(connected.channel);
            within(daemon, instance, client.privileges(request(PrivilegesRequest {}))).await
        };
        let (says, silence) = match asked.await {
            Ok(reply) => (Some(reply.into_inner()), None),
            Err(trouble) => (None, Some(trouble.to_string())),
        };
        let mut pids: Vec<u32> = found.iter().map(|one| one.pid).collect();
        // The one that answers first; others that bear its name are shown each for itself.
        let answers = says.as_ref().map(|says| says.pid);
        pids.sort_by_key(|pid| (Some(*pid) != answers, *pid));
        let others: Vec<u32> = pids.iter().skip(1).copied().collect();
        processes.push(process(Program::Daemon(daemon), pids, says, silence));
        let silence = || Some("another process of this name".to_owned());
        processes.extend(others.into_iter().map(|pid| process(Program::Daemon(daemon), vec![pid], None, silence())));
    }
    let launcher: Vec<u32> = running
        .iter()
        .filter(|one| parents.contains(&one.pid) && is_named(one, "kubelet"))
        .map(|one| one.pid)
        .collect();
    let by_launcher = !launcher.is_empty();
    let helper = |program: Program| -> Vec<u32> {
        running
            .iter()
            .filter(|one| is_named(one, program.name()))
            .filter(|one| if by_launcher { launcher.contains(&one.parent) } else { one.parent == 1 })
            .map(|one| one.pid)
            .collect()
    };
    let (walker, reader) = (helper(Program::Walker), helper(Program::Journal));
    if by_launcher {
        processes.insert(0, process(Program::Launcher, launcher.clone(), None, None));
    }
    // As units they are started with the first question: that there is none is no difference.
    if !walker.is_empty() || by_launcher {
        processes.push(process(Program::Walker, walker, None, None));
    }
    if !reader.is_empty() || (by_launcher && config.as_ref().is_some_and(reads_the_journal)) {
        processes.push(process(Program::Journal, reader, None, None));
    }
    for program in [Program::Iptables, Program::Disks, Program::Flexvolume] {
        let seen = process(program, helper(program), None, None);
        // They run for seconds at a time: one that is gone before it is seen has ended as it should.
        if seen.kernel.is_some() {
            processes.push(seen);
        }
    }
    let above = if by_launcher { processes.first().and_then(|launcher| launcher.kernel.clone()) } else { None };
    let granted = above.or_else(|| PrivilegeReport::of(1).ok()).map(|report| report.bounding);
    Node { context: Context { config, granted, by_launcher }, processes }
}

fn process(program: Program, pids: Vec<u32>, says: Option<PrivilegesReply>, silence: Option<String>) -> Process {
    let kernel = pids.first().and_then(|pid| PrivilegeReport::of(*pid).ok());
    let parent = kernel.as_ref().and_then(|report| PrivilegeReport::of(report.parent).ok());
    Process { program, pids, kernel, filters_above: parent.and_then(|parent| parent.seccomp_filters), says, silence }
}

/// The configuration turns the log query on. Whether the machine has a journal and a user for it, only the launcher knows.
fn reads_the_journal(config: &NodeConfig) -> bool {
    config.kubelet.answers_log_queries()
}

/// Every process whose command line can be read.
fn running(proc: &Path) -> Vec<Running> {
    let entries = std::fs::read_dir(proc).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
            let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let (name, parent) = (field("Name:")?.to_owned(), field("PPid:")?.parse().ok()?);
            let words = line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
            Some(Running { pid, parent, name, words: words.filter(|word| !word.is_empty()).collect() })
        })
        .collect()
}

fn is_named(process: &Running, name: &str) -> bool {
    process.words.first().is_some_and(|program| Path::new(program).file_name().is_some_and(|file| file == name))
}

/// kubelet-volnetd's unit starts it under this name, which it has the kernel show, too. The command of that name has no `--run-dir`.
const SHOWN_AS: &str = "kubelet";

/// `<name> --run-dir <folder>`.
fn daemons(running: &[Running], name: &str, run_dir: &Path) -> Vec<Running> {
    let told = |process: &&Running| {
        process.words.windows(2).any(|pair| pair[0] == "--run-dir" && Path::new(&pair[1]) == run_dir)
    };
    let of_unit =
        |process: &Running| name == "kubelet-volnetd" && process.name == SHOWN_AS && is_named(process, SHOWN_AS);
    let named = |process: &&Running| is_named(process, name) || process.name == name || of_unit(process);
    running.iter().filter(named).filter(told).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_by_name_and_folder() {
        let process = |pid, words: &[&str]| Running {
            pid,
            parent: 1,
            name: "x".to_owned(),
            words: words.iter().map(|word| (*word).to_owned()).collect(),
        };
        let all = [
            process(1, &["/usr/libexec/bulkhead/kubelet-syncd", "--run-dir", "/run/kubelet"]),
            process(2, &["/usr/libexec/bulkhead/kubelet-syncd", "--run-dir", "/run/kubelet-0a1b2c3d"]),
            process(3, &["vi", "kubelet-syncd", "--run-dir", "/run/kubelet"]),
            process(4, &["kubelet-syncd"]),
        ];
        let found = daemons(&all, "kubelet-syncd", Path::new("/run/kubelet"));
        assert_eq!(found.iter().map(|one| one.pid).collect::<Vec<_>>(), [1]);
        assert!(daemons(&all, "kubelet-statusd", Path::new("/run/kubelet")).is_empty());
        let called =
            |name: &str| Running { name: name.to_owned(), ..process(5, &["kubelet", "--run-dir", "/run/kubelet"]) };
        let worker = Running { words: vec!["kubelet-volnetd: worker".to_owned()], ..called("kubelet-volnetd") };
        let launcher = Running { words: vec!["kubelet".to_owned()], ..called("kubelet") };
        let of_folder = |name: &str, all: &[Running]| daemons(all, name, Path::new("/run/kubelet"));
        // A version before has the name of its program.
        for shown in ["kubelet", "kubelet-volnetd"] {
            let units = [launcher.clone(), called(shown), worker.clone()];
            assert_eq!(of_folder("kubelet-volnetd", &units), [called(shown)]);
            assert!(of_folder("kubelet-syncd", &units).is_empty());
        }
    }

    #[test]
    fn this_process_is_in_the_list() {
        let all = running(Path::new("/proc"));
        let me = all.iter().find(|one| one.pid == std::process::id()).unwrap();
        assert!(me.parent > 0 && !me.words.is_empty() && !me.name.is_empty());
    }
}
