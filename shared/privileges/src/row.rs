//! The table: one row for each process.

use bulkhead_config::{Feature, NodeConfig};
use bulkhead_sys::Capability;
use bulkhead_sys::seccomp::{Deny, Family};
use bulkhead_types::Process;

use crate::fences;

/// Every process that is started on a node, the four daemons and those around them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Program {
    /// `kubelet`, where it starts the daemons itself.
    Launcher,
    Daemon(Process),
    /// Enters file systems for kubelet-evictiond.
    Walker,
    /// The journal's reader, where the log query is on.
    Journal,
    /// Runs iptables for kubelet-volnetd.
    Iptables,
    /// Prepares block devices for kubelet-volnetd.
    Disks,
    /// Calls FlexVolume drivers for kubelet-volnetd, where the operator has switched it on.
    Flexvolume,
}

/// Whose process it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    Root,
    /// Of its own, as the configuration names it.
    Own(Process),
    /// Of its own; no daemon's and not known to them.
    Helper,
}

/// What is left of the bounding set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bounding {
    /// The row's capabilities.
    Row,
    /// Whatever the machine gives: children take theirs from it.
    Untouched,
}

/// When a process may start programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunsPrograms {
    Never,
    /// Where the operator named programs that give credentials for the API server (decision 14).
    ForTheApiServer,
    /// The same, or programs that give credentials for images.
    ForTheApiServerOrImages,
    /// It is what the process is for.
    Always,
}

/// One service and who may call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Serves {
    /// Its socket in words, for people.
    pub socket: &'static str,
    pub peers: &'static [&'static str],
}

/// What one process may do. What is not said here is the same for all: not dumpable, no core files, every descriptor
/// closed on exec, nothing inheritable or ambient but what [`Row::ambient`] says.
#[derive(Debug)]
pub struct Row {
    pub program: Program,
    pub user: User,
    /// A member of the daemons' group, which the sockets' folder belongs to.
    pub in_daemons_group: bool,
    /// Permitted and in force.
    pub capabilities: &'static [Capability],
    /// Permitted and not in force: a child can only be given what its parent is permitted.
    pub passed_on: &'static [Capability],
    pub bounding: Bounding,
    pub no_new_privs: bool,
    /// Families that `socket` and `socketpair` still make (none: they make nothing), but for [`Family::Vsock`], which the
    /// configuration decides. Descriptors of other families may be passed.
    families: &'static [Family],
    /// Groups of system calls that are denied, but for [`Deny::Exec`], which [`Self::runs_programs`] decides.
    denied: &'static [Deny],
    pub runs_programs: RunsPrograms,
    pub serves: &'static [Serves],
    /// The most memory, bytes: `MemoryMax=` of its unit, RLIMIT_DATA where the launcher starts it (decision 53). What it is
    /// made of stands in SPECIFICATION.md. Of volnetd it is RLIMIT_DATA in both: its cgroup counts what lies in volumes.
    pub memory_bytes: u64,
    /// Its own oom_score_adj, where oomScoreAdj of the configuration would protect it better: what may go without harm goes
    /// before the pods.
    pub oom_score_adj: Option<i32>,
}

const MIB: u64 = 1 << 20;

/// Hard limit of core files in bytes, for every process.
pub const CORE_LIMIT: u64 = 0;

/// What a process without privileges has no use for.
const EVERYTHING: &[Deny] = Deny::UNPRIVILEGED;

/// volnetd and FlexVolume drivers mount, so that stays; nothing else does.
const ALL_BUT_MOUNTS: &[Deny] = &[
    Deny::OpenByHandle,
    Deny::Fanotify,
    Deny::IoUring,
    Deny::Trace,
    Deny::Keys,
    Deny::BpfPerf,
    Deny::Machine,
    Deny::Root,
    Deny::Namespaces,
    Deny::Nodes,
    Deny::Userfault,
    Deny::Personality,
    Deny::Terminal,
    Deny::RawIo,
];

/// What children need before they have filters of their own stays as well: the descriptor by which pages are mapped one at a time
/// (decision 90).
const LAUNCHERS: &[Deny] = &[
    Deny::OpenByHandle,
    Deny::Fanotify,
    Deny::IoUring,
    Deny::Trace,
    Deny::Keys,
    Deny::BpfPerf,
    Deny::Machine,
    Deny::Root,
    Deny::Namespaces,
    Deny::Nodes,
    Deny::Personality,
    Deny::Terminal,
    Deny::RawIo,
];

const LAUNCHER: Row = Row {
    program: Program::Launcher,
    user: User::Root,
    in_daemons_group: false,
    // It changes users and bounding sets of new children, and ends old ones (decision 3).
    capabilities: &[Capability::CAP_SETUID, Capability::CAP_SETGID, Capability::CAP_SETPCAP, Capability::CAP_KILL],
    passed_on: &[
        Capability::CAP_DAC_READ_SEARCH,
        Capability::CAP_NET_ADMIN,
        Capability::CAP_NET_RAW,
        Capability::CAP_SYS_RESOURCE,
    ],
    bounding: Bounding::Untouched,
    // With the flag, volnetd's exec could gain nothing over a launcher that has given up most of root's power.
    no_new_privs: false,
    // Filters are inherited: what any child may, it may.
    families: &[Family::Unix, Family::Inet, Family::Inet6, Family::Netfilter],
    denied: LAUNCHERS,
    runs_programs: RunsPrograms::Always,
    serves: &[],
    memory_bytes: 512 * MIB,
    oom_score_adj: None,
};

const VOLNETD: Row = Row {
    program: Program::Daemon(Process::Volnetd),
    user: User::Root,
    in_daemons_group: true,
    capabilities: &[
        Capability::CAP_SYS_ADMIN,    // mount, umount
        Capability::CAP_CHOWN,        // private state folders, fsGroup, owners of files in volumes
        Capability::CAP_FOWNER,       // chmod and unlink of what a pod's user owns
        Capability::CAP_FSETID,       // keeps setgid when a volume is given to its group
        Capability::CAP_DAC_OVERRIDE, // reads and removes what a pod's user made private
        Capability::CAP_KILL,         // what is left in a pod's cgroup, or by a command in a container
    ],
    passed_on: &[],
    bounding: Bounding::Row,
    no_new_privs: true,
    families: &[Family::Unix],
    denied: ALL_BUT_MOUNTS,
    runs_programs: RunsPrograms::Never,
    serves: &[
        Serves { socket: "kubelet-volnetd.sock", peers: &["kubelet-syncd", "kubelet-statusd", "operator"] },
        Serves { socket: "kubelet-volnetd.fd.sock", peers: &["kubelet-syncd", "kubelet-evictiond", "kubelet-statusd"] },
    ],
    memory_bytes: 1024 * MIB,
    oom_score_adj: None,
};

const SYNCD: Row = Row {
    program: Program::Daemon(Process::Syncd),
    user: User::Own(Process::Syncd),
    in_daemons_group: true,
    capabilities: &[],
    passed_on: &[],
    bounding: Bounding::Row,
    no_new_privs: true,
    families: &[Family::Unix, Family::Inet, Family::Inet6],
    denied: EVERYTHING,
    runs_programs: RunsPrograms::ForTheApiServerOrImages,
    serves: &[
        Serves { socket: "kubelet-syncd.sock", peers: &["kubelet-evictiond", "kubelet-statusd", "operator"] },
        // Bound by kubelet-volnetd, which keeps a copy and answers nobody there.
        Serves { socket: "pod-resources/kubelet.sock", peers: &["whoever may enter its folder, which is root's"] },
        // The same, with the gate PodsAPI.
        Serves { socket: "pods-api/pods-api.sock", peers: &["whoever may enter its folder, which is root's"] },
    ],
    memory_bytes: 1536 * MIB,
    oom_score_adj: None,
};

const EVICTIOND: Row = Row {
    program: Program::Daemon(Process::Evictiond),
    user: User::Own(Process::Evictiond),
    in_daemons_group: true,
    capabilities: &[],
    passed_on: &[],
    bounding: Bounding::Row,
    no_new_privs: true,
    families: &[Family::Unix],
    denied: EVERYTHING,
    runs_programs: RunsPrograms::Never,
    serves: &[Serves { socket: "kubelet-evictiond.sock", peers: &["kubelet-statusd", "operator"] }],
    memory_bytes: 256 * MIB,
    oom_score_adj: None,
};

const STATUSD: Row = Row {
    program: Program::Daemon(Process::Statusd),
    user: User::Own(Process::Statusd),
    in_daemons_group: true,
    capabilities: &[],
    passed_on: &[],
    bounding: Bounding::Row,
    no_new_privs: true,
    families: &[Family::Unix, Family::Inet, Family::Inet6],
    denied: EVERYTHING,
    runs_programs: RunsPrograms::ForTheApiServer,
    serves: &[
        Serves { socket: "kubelet-statusd.sock", peers: &["operator"] },
        Serves { socket: "HTTPS, healthz, the read-only port", peers: &["the network"] },
    ],
    memory_bytes: 1024 * MIB,
    // Strangers reach it, and a restart of it is noticed by no pod.
    oom_score_adj: Some(0),
};

const WALKER: Row = Row {
    program: Program::Walker,
    user: User::Helper,
    in_daemons_group: false,
    // Sizes below pods' folders are behind directories that only root may search; the filter keeps this to listing, the fence to
    // these folders.
    capabilities: &[Capability::CAP_DAC_READ_SEARCH],
    passed_on: &[],
    bounding: Bounding::Row,
    no_new_privs: true,
    // Its sockets are made before it has its filter, and passed.
    families: &[],
    // With the capability OpenByHandle opens any inode, in which Landlock has no say; Files is what is left of the fence on a kernel
    // without Landlock; and pods' sockets lie where it walks (decision 93).
    denied: &Deny::ALL,
    runs_programs: RunsPrograms::Never,
    serves: &[Serves { socket: "workers", peers: &["kubelet-evictiond"] }],
    memory_bytes: 256 * MIB,
    oom_score_adj: Some(0),
};

const JOURNAL: Row = Row {
    program: Program::Journal,
    user: User::Helper,
    in_daemons_group: false,
    capabilities: &[],
    passed_on: &[],
    bounding: Bounding::Row,
    no_new_privs: true,
    families: &[Family::Unix],
    denied: EVERYTHING,
    runs_programs: RunsPrograms::Always,
    serves: &[Serves { socket: "questions", peers: &["kubelet-statusd"] }],
    memory_bytes: 256 * MIB,
    oom_score_adj: None,
};

const IPTABLES: Row = Row {
    program: Program::Iptables,
    user: User::Helper,
    in_daemons_group: false,
    capabilities: &[
        Capability::CAP_NET_ADMIN, // tables of both variants
        Capability::CAP_NET_RAW,   // the legacy variant asks the kernel over a raw socket
    ],
    passed_on: &[],
    bounding: Bounding::Row,
    no_new_privs: true,
    families: &[Family::Unix, Family::InetRaw, Family::Inet6Raw, Family::Netfilter],
    denied: EVERYTHING,
    runs_programs: RunsPrograms::Always,
    serves: &[Serves { socket: "questions", peers: &["kubelet-volnetd"] }],
    memory_bytes: 128 * MIB,
    oom_score_adj: Some(0),
};

const DISKS: Row = Row {
    program: Program::Disks,
    // Block devices are root's; who writes to them is root in all but name.
    user: User::Root,
    in_daemons_group: false,
    capabilities: &[
        Capability::CAP_SYS_RESOURCE, // growth of an ext4 that is mounted
    ],
    passed_on: &[],
    bounding: Bounding::Row,
    no_new_privs: true,
    families: &[Family::Unix],
    denied: EVERYTHING,
    runs_programs: RunsPrograms::Always,
    serves: &[Serves { socket: "questions", peers: &["kubelet-volnetd"] }],
    // e2fsck has a bit for each block, inode and folder of a file system.
    memory_bytes: 2048 * MIB,
    oom_score_adj: Some(0),
};

const FLEXVOLUME: Row = Row {
    program: Program::Flexvolume,
    // Drivers are root's programs, and mount.
    user: User::Root,
    in_daemons_group: false,
    // What mount helpers and servers of FUSE file systems need, of programs that nobody knows (decision 91).
    capabilities: &[
        Capability::CAP_SYS_ADMIN,    // mount, umount
        Capability::CAP_DAC_OVERRIDE, // folders and files of whatever user
        Capability::CAP_CHOWN,        // a volume is given to the group that the pod names
        Capability::CAP_FOWNER,       // its mode, too
        Capability::CAP_FSETID,       // and keeps setgid
        Capability::CAP_SETUID,       // servers give root up
        Capability::CAP_SETGID,       // and its groups
        Capability::CAP_SETPCAP,      // mount.cifs gives up its bounding set
        Capability::CAP_KILL,         // such a server is ended with its volume
    ],
    passed_on: &[],
    bounding: Bounding::Row,
    no_new_privs: true,
    families: &[Family::Unix, Family::Inet, Family::Inet6],
    denied: ALL_BUT_MOUNTS,
    runs_programs: RunsPrograms::Always,
    serves: &[Serves { socket: "questions", peers: &["kubelet-volnetd"] }],
    // Drivers, and servers of file systems that they leave running.
    memory_bytes: 1024 * MIB,
    oom_score_adj: Some(0),
};

impl Program {
    /// All ten, the launcher first.
    pub const ALL: [Program; 10] = [
        Program::Launcher,
        Program::Daemon(Process::Volnetd),
        Program::Daemon(Process::Syncd),
        Program::Daemon(Process::Evictiond),
        Program::Daemon(Process::Statusd),
        Program::Walker,
        Program::Journal,
        Program::Iptables,
        Program::Disks,
        Program::Flexvolume,
    ];

    /// Works for one of the daemons, and serves nobody else.
    pub const fn is_helper(self) -> bool {
        matches!(self, Program::Walker | Program::Journal | Program::Iptables | Program::Disks | Program::Flexvolume)
    }

    /// File name of the program.
    pub const fn name(self) -> &'static str {
        match self {
            Program::Launcher => "kubelet",
            Program::Daemon(process) => process.name(),
            Program::Walker => "kubelet-walker",
            Program::Journal => "kubelet-journal",
            Program::Iptables => "kubelet-iptables",
            Program::Disks => "kubelet-disks",
            Program::Flexvolume => "kubelet-flexvolume",
        }
    }

    /// Its row of the table.
    pub const fn row(self) -> &'static Row {
        match self {
            Program::Launcher => &LAUNCHER,
            Program::Daemon(Process::Volnetd) => &VOLNETD,
            Program::Daemon(Process::Syncd) => &SYNCD,
            Program::Daemon(Process::Evictiond) => &EVICTIOND,
            Program::Daemon(Process::Statusd) => &STATUSD,
            Program::Walker => &WALKER,
            Program::Journal => &JOURNAL,
            Program::Iptables => &IPTABLES,
            Program::Disks => &DISKS,
            Program::Flexvolume => &FLEXVOLUME,
        }
    }
}

impl Row {
    /// Whether the process may start programs under this configuration; helpers and the launcher have none.
    pub fn may_run_programs(&self, config: Option<&NodeConfig>) -> bool {
        let api = |config: &NodeConfig| {
            let statusd = self.user == User::Own(Process::Statusd);
            config.kubeconfig_runs_program || (statusd && config.bootstrap_runs_program)
        };
        match self.runs_programs {
            RunsPrograms::Never => false,
            RunsPrograms::Always => true,
            RunsPrograms::ForTheApiServer => config.is_some_and(api),
            RunsPrograms::ForTheApiServerOrImages => {
                config.is_some_and(|config| api(config) || config.credential_providers.is_some())
            }
        }
    }

    /// Groups of system calls that its filter denies under this configuration.
    pub fn denied(&self, config: Option<&NodeConfig>) -> Vec<Deny> {
        let mut denied: Vec<Deny> = self.denied.iter().copied().filter(|deny| *deny != Deny::Exec).collect();
        if !self.may_run_programs(config) {
            denied.push(Deny::Exec);
        }
        denied.sort();
        denied
    }

    /// Address families for which it may make sockets. Where the daemons answer the machine's host, they listen on vsock.
    pub fn families(&self, config: Option<&NodeConfig>) -> Vec<Family> {
        let vsock = !self.program.is_helper() && config.is_some_and(|config| config.flags.vsock_port != 0);
        self.families.iter().copied().chain(vsock.then_some(Family::Vsock)).collect()
    }

    /// What the programs that it runs have too: inheritable and ambient.
    pub fn ambient(&self) -> &'static [Capability] {
        let passes_on = self.program.is_helper() && self.runs_programs == RunsPrograms::Always;
        if passes_on && !self.programs_give_root_up() { self.capabilities } else { &[] }
    }

    /// Its programs get its capabilities by root's exec and lose them with a change of their user: so nothing is ambient, no securebits
    /// are locked, and the launcher, which has given most up, leaves no_new_privs to it.
    pub fn programs_give_root_up(&self) -> bool {
        self.program.is_helper() && self.capabilities.contains(&Capability::CAP_SETUID)
    }

    /// Everything in its permitted set.
    pub fn permitted(&self) -> Vec<Capability> {
        [self.capabilities, self.passed_on].concat()
    }

    /// Of those below, the ones that kubelet-volnetd binds for another process: both have them once they were asked for, and a
    /// kubelet-volnetd that was restarted since has none.
    pub fn passed_listeners(&self, config: &NodeConfig) -> Vec<String> {
        match self.program {
            Program::Daemon(Process::Volnetd | Process::Syncd) => {
                let pods = config.feature_gates().enabled(Feature::PodsAPI).then(|| config.paths.pods_api_socket());
                let sockets = [config.paths.pod_resources_socket()].into_iter().chain(pods);
                sockets.map(|path| format!("unix:{}", path.display())).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Listening sockets that it should have and no others, as `PrivilegeReport::sockets` writes them. TCP by port
    /// alone: "tcp:10250".
    pub fn listeners(&self, config: &NodeConfig) -> Vec<String> {
        let Program::Daemon(process) = self.program else { return Vec::new() };
        let unix = |path: std::path::PathBuf| format!("unix:{}", path.display());
        let mut listeners = vec![unix(config.paths.socket(process))];
        if process == Process::Volnetd {
            listeners.push(unix(config.paths.broker_socket()));
        }
        listeners.extend(self.passed_listeners(config));
        // The socket of device plugins is bound by the one and served by the other.
        if matches!(process, Process::Volnetd | Process::Syncd) {
            listeners.push(unix(config.paths.root_dir.join("device-plugins/kubelet.sock")));
        }
        if process == Process::Statusd {
            listeners.extend(fences::statusd_ports(config).into_iter().map(|port| format!("tcp:{port}")));
        }
        listeners
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_launcher_is_denied_what_every_child_is_denied_but_for_what_they_need_at_their_start() {
        let children = || Program::ALL.into_iter().filter(|program| *program != Program::Launcher).map(Program::row);
        let common: BTreeSet<Deny> = Deny::ALL
            .into_iter()
            .filter(|deny| {
                ![Deny::Exec, Deny::Userfault].contains(deny) && children().all(|row| row.denied.contains(deny))
            })
            .collect();
        assert_eq!(LAUNCHER.denied(None).into_iter().collect::<BTreeSet<_>>(), common);
        for row in children() {
            assert!(
                row.families.iter().all(|family| LAUNCHER.families.iter().any(|own| own.includes(*family))),
                "{}",
                row.program.name()
            );
        }
    }

    #[test]
    fn what_children_get_the_launcher_may_pass_on() {
        for row in Program::ALL.map(Program::row) {
            let mut config = NodeConfig::for_tests(std::path::Path::new("/t"));
            assert!(!row.families(Some(&config)).contains(&Family::Vsock));
            config.flags.vsock_port = 1024;
            let vsock = row.families(Some(&config)).contains(&Family::Vsock);
            assert_eq!(vsock, !row.program.is_helper());
            if row.user != User::Root {
                let permitted = LAUNCHER.permitted();
                assert!(row.capabilities.iter().all(|cap| permitted.contains(cap)), "{}", row.program.name());
            }
            assert_eq!(row.program.row().program, row.program);
        }
    }

    #[test]
    fn only_rows_that_must_start_programs_and_none_opens_by_handle() {
        for row in Program::ALL.map(Program::row) {
            let denied = row.denied(None);
            assert!(denied.contains(&Deny::OpenByHandle) && denied.contains(&Deny::Trace));
            let runs = row.runs_programs == RunsPrograms::Always;
            let named = [Program::Launcher, Program::Journal, Program::Iptables, Program::Disks, Program::Flexvolume];
            assert_eq!(named.contains(&row.program), runs, "{}", row.program.name());
            assert_eq!(denied.contains(&Deny::Exec), !runs, "{}", row.program.name());
            assert_eq!(
                denied.contains(&Deny::Mount),
                !matches!(row.program, Program::Launcher | Program::Daemon(Process::Volnetd) | Program::Flexvolume),
                "{}",
                row.program.name()
            );
        }
    }
}
