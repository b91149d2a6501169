//! Privileges of this process: reading them as the kernel shows them, and giving them up.
//!
//! Capabilities, filters and securebits belong to a thread; a new thread inherits from the one that makes it. So all
//! of this is called before the runtime starts its threads.

use std::collections::HashMap;
use std::io;

use caps::{CapSet, Capability, CapsHashSet};
use rustix::process::{DumpableBehavior, Signal};

/// Why privileges could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    #[error("{doing} the {set:?} capability set")]
    Capabilities { doing: &'static str, set: CapSet, source: caps::errors::CapsError },
    #[error("{0}")]
    Prctl(&'static str, #[source] io::Error),
    #[error("reading /proc/self/{0}")]
    Proc(&'static str, #[source] io::Error),
}

/// No core dump, no ptrace, no /proc/<pid>/{mem,fd,environ} for processes of the same uid: a pod may run with it.
pub fn set_not_dumpable() -> Result<(), PrivilegeError> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|e| PrivilegeError::Prctl("setting PR_SET_DUMPABLE to 0", e.into()))
}

/// Processor time that this process has used, all threads; zero where the kernel does not tell.
pub fn cpu_time() -> std::time::Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec to where it is told, and nothing else.
    if unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) } != 0 {
        return std::time::Duration::ZERO;
    }
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    std::time::Duration::new(seconds.unwrap_or_default(), nanoseconds.unwrap_or_default())
}

/// No program started from here can gain privileges by being setuid or having file capabilities.
pub fn set_no_new_privs() -> Result<(), PrivilegeError> {
    rustix::thread::set_no_new_privs(true).map_err(|e| PrivilegeError::Prctl("setting PR_SET_NO_NEW_PRIVS", e.into()))
}

/// SIGKILL when the parent thread ends. The kernel clears this at a uid change: set it afterwards.
pub fn die_with_parent() -> Result<(), PrivilegeError> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|e| PrivilegeError::Prctl("setting PR_SET_PDEATHSIG", e.into()))
}

/// Reduces permitted and effective to `wanted`, clears inheritable and ambient, and drops the rest of the bounding
/// set where SETPCAP allows it. Returns those of `wanted` that this process did not have.
pub fn keep_only(wanted: &[Capability]) -> Result<Vec<Capability>, PrivilegeError> {
    let set_error = |doing, set| move |source| PrivilegeError::Capabilities { doing, set, source };
    let permitted = caps::read(None, CapSet::Permitted).map_err(set_error("reading", CapSet::Permitted))?;
    let keep: CapsHashSet = wanted.iter().copied().filter(|cap| permitted.contains(cap)).collect();
    let missing = wanted.iter().copied().filter(|cap| !permitted.contains(cap)).collect();

    // The bounding set goes first: it needs SETPCAP, which is lost below.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP).unwrap_or(false) {
        let bounding = caps::read(None, CapSet::Bounding).map_err(set_error("reading", CapSet::Bounding))?;
        for cap in bounding.difference(&keep) {
            caps::drop(None, CapSet::Bounding, *cap).map_err(set_error("reducing", CapSet::Bounding))?;
        }
    }
    // An ambient capability that stays would only matter at exec, which no daemon does. Ambient must go before
    // inheritable; kernels without ambient sets (none that we support) would answer EINVAL.
    caps::clear(None, CapSet::Ambient).map_err(set_error("clearing", CapSet::Ambient))?;
    // A unit's filter may refuse capset to a process that has nothing to give up: then nothing is asked for.
    for (set, keep) in
        [(CapSet::Effective, &keep), (CapSet::Permitted, &keep), (CapSet::Inheritable, &CapsHashSet::new())]
    {
        if caps::read(None, set).map_err(set_error("reading", set))? != *keep {
            caps::set(None, set, keep).map_err(set_error("reducing", set))?;
        }
    }
    Ok(missing)
}

/// Capabilities that are permitted to this thread now.
pub fn permitted() -> Result<Vec<Capability>, PrivilegeError> {
    let set = caps::read(None, CapSet::Permitted).map_err(|source| PrivilegeError::Capabilities {
        doing: "reading",
        set: CapSet::Permitted,
        source,
    })?;
    let mut list: Vec<_> = set.into_iter().collect();
    list.sort_by_key(Capability::index);
    Ok(list)
}

/// Reduces effective to `effective` and permitted to that and `kept`, and leaves the bounding set alone: for a process
/// that starts others with more than it has in force itself. What is not there is left out.
pub fn hold(effective: &[Capability], kept: &[Capability]) -> Result<(), PrivilegeError> {
    let set_error = |doing, set| move |source| PrivilegeError::Capabilities { doing, set, source };
    let have = caps::read(None, CapSet::Permitted).map_err(set_error("reading", CapSet::Permitted))?;
    let effective: CapsHashSet = effective.iter().copied().filter(|cap| have.contains(cap)).collect();
    let mut permitted = effective.clone();
    permitted.extend(kept.iter().copied().filter(|cap| have.contains(cap)));
    caps::clear(None, CapSet::Ambient).map_err(set_error("clearing", CapSet::Ambient))?;
    caps::set(None, CapSet::Effective, &effective).map_err(set_error("reducing", CapSet::Effective))?;
    caps::set(None, CapSet::Permitted, &permitted).map_err(set_error("reducing", CapSet::Permitted))?;
    caps::clear(None, CapSet::Inheritable).map_err(set_error("clearing", CapSet::Inheritable))
}

/// "SYS_ADMIN", without the prefix.
pub fn short_name(cap: Capability) -> String {
    cap.to_string().trim_start_matches("CAP_").to_owned()
}

/// What the kernel says of this process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PrivilegeReport {
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// Capability names without the prefix, in the kernel's order.
    pub effective: Vec<String>,
    pub permitted: Vec<String>,
    pub bounding: Vec<String>,
    pub ambient: Vec<String>,
    pub no_new_privs: bool,
    pub dumpable: bool,
    /// 0 off, 1 strict, 2 filter.
    pub seccomp_mode: u32,
    /// Open sockets: "unix:/run/kubelet/kubelet-syncd.sock (listening)", "tcp:127.0.0.1:10248 (listening)", …
    pub sockets: Vec<String>,
}

impl PrivilegeReport {
    /// Reads /proc/self. The capability sets are those of the calling thread.
    pub fn read() -> Result<Self, PrivilegeError> {
        let status =
            std::fs::read_to_string("/proc/thread-self/status").map_err(|e| PrivilegeError::Proc("status", e))?;
        let mut report = Self::parse_status(&status);
        report.pid = std::process::id();
        report.dumpable = !matches!(rustix::process::dumpable_behavior(), Ok(DumpableBehavior::NotDumpable));
        report.sockets = open_sockets().map_err(|e| PrivilegeError::Proc("fd", e))?;
        Ok(report)
    }

    fn parse_status(status: &str) -> Self {
        let mut report = PrivilegeReport::default();
        // Four ids each: real, effective, saved, file system. The effective one decides.
        let effective_id =
            |value: &str| value.split_whitespace().nth(1).and_then(|id| id.parse().ok()).unwrap_or(u32::MAX);
        for line in status.lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            match key {
                "Uid" => report.uid = effective_id(value),
                "Gid" => report.gid = effective_id(value),
                "Groups" => report.groups = value.split_whitespace().filter_map(|id| id.parse().ok()).collect(),
                "CapEff" => report.effective = names(value),
                "CapPrm" => report.permitted = names(value),
                "CapBnd" => report.bounding = names(value),
                "CapAmb" => report.ambient = names(value),
                "NoNewPrivs" => report.no_new_privs = value == "1",
                "Seccomp" => report.seccomp_mode = value.parse().unwrap_or(0),
                _ => {}
            }
        }
        report
    }
}

/// Names of the bits of a hexadecimal mask. A bit that this build has no name for is shown by its number.
fn names(mask: &str) -> Vec<String> {
    let mask = u64::from_str_radix(mask, 16).unwrap_or(0);
    let known: HashMap<u8, Capability> = caps::all().into_iter().map(|cap| (cap.index(), cap)).collect();
    (0u8..64)
        .filter(|bit| mask & (1 << bit) != 0)
        .map(|bit| known.get(&bit).map_or_else(|| bit.to_string(), |cap| short_name(*cap)))
        .collect()
}

/// Sockets among our descriptors, named from /proc/self/net.
fn open_sockets() -> io::Result<Vec<String>> {
    let mut inodes = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Ok(target) = std::fs::read_link(entry?.path()) else { continue };
        let target = target.to_string_lossy();
        if let Some(inode) = target.strip_prefix("socket:[").and_then(|t| t.strip_suffix(']')) {
            inodes.push(inode.to_owned());
        }
    }
    let mut by_inode = HashMap::new();
    if let Ok(text) = std::fs::read_to_string("/proc/self/net/unix") {
        by_inode.extend(text.lines().skip(1).filter_map(unix_socket));
    }
    for (file, family) in [("tcp", "tcp"), ("tcp6", "tcp6"), ("udp", "udp"), ("udp6", "udp6")] {
        if let Ok(text) = std::fs::read_to_string(format!("/proc/self/net/{file}")) {
            by_inode.extend(text.lines().skip(1).filter_map(|line| inet_socket(family, line)));
        }
    }
    let mut sockets: Vec<String> =
        inodes.into_iter().map(|inode| by_inode.remove(&inode).unwrap_or_else(|| "other".to_owned())).collect();
    sockets.sort();
    Ok(sockets)
}

/// `Num: RefCount Protocol Flags Type St Inode Path`; flag 0x10000 is "accepts connections".
fn unix_socket(line: &str) -> Option<(String, String)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let inode = (*fields.get(6)?).to_owned();
    let path = fields.get(7).copied().unwrap_or("(unnamed)");
    let listening = u32::from_str_radix(fields.get(3)?, 16).ok()? & 0x1_0000 != 0;
    Some((inode, format!("unix:{path}{}", if listening { " (listening)" } else { "" })))
}

/// `sl local_address rem_address st …`, the inode in the tenth field; state 0A is LISTEN.
fn inet_socket(family: &str, line: &str) -> Option<(String, String)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let inode = (*fields.get(9)?).to_owned();
    let (address, port) = fields.get(1)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // Each 32-bit word is printed in host order.
    let word = |at: usize| u32::from_str_radix(address.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let address = if address.len() == 8 {
        std::net::Ipv4Addr::from(word(0)?).to_string()
    } else {
        let mut bytes = [0; 16];
        for (i, chunk) in bytes.chunks_mut(4).enumerate() {
            chunk.copy_from_slice(&word(i * 8)?);
        }
        format!("[{}]", std::net::Ipv6Addr::from(bytes))
    };
    let listening = *fields.get(3)? == "0A";
    Some((inode, format!("{family}:{address}:{port}{}", if listening { " (listening)" } else { "" })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_read() {
        let report = PrivilegeReport::parse_status(
            "Name:\tx\nUid:\t0\t60706\t60706\t60706\nGid:\t1\t2\t2\t2\nGroups:\t5 6 \nCapPrm:\t0000000000200002\n\
             CapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n",
        );
        assert_eq!((report.uid, report.gid), (60706, 2));
        assert_eq!(report.groups, [5, 6]);
        assert_eq!(report.permitted, ["DAC_OVERRIDE", "SYS_ADMIN"]);
        assert!(report.effective.is_empty() && report.no_new_privs);
        assert_eq!(report.seccomp_mode, 2);
    }

    #[test]
    fn sockets_are_named() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let expected = format!("tcp:{} (listening)", listener.local_addr().unwrap());
        let report = PrivilegeReport::read().unwrap();
        assert!(report.sockets.contains(&expected), "{:?}", report.sockets);
        assert_eq!(
            inet_socket("tcp6", " 0: 00000000000000000000000001000000:2808 0:0 0A 0:0 0:0 0 0 0 77 1").unwrap(),
            ("77".to_owned(), "tcp6:[::1]:10248 (listening)".to_owned())
        );
    }

    #[test]
    fn capabilities_are_reduced_and_the_missing_named() {
        if rustix::process::getuid().as_raw() != 0 {
            return;
        }
        std::thread::spawn(|| {
            let missing = keep_only(&[Capability::CAP_KILL, Capability::CAP_CHOWN]).unwrap();
            assert!(missing.is_empty());
            let report = PrivilegeReport::read().unwrap();
            assert_eq!(report.effective, ["CHOWN", "KILL"]);
            assert_eq!(report.permitted, report.effective);
            assert_eq!(report.bounding, report.effective);
            assert_eq!(keep_only(&[Capability::CAP_SYS_ADMIN]).unwrap(), [Capability::CAP_SYS_ADMIN]);
            assert!(permitted().unwrap().is_empty());
        })
        .join()
        .unwrap();
    }
}
