//! What the kernel says of a process's privileges: of this one, or of another as far as /proc shows it to us.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::process::DumpableBehavior;

use super::{PrivilegeError, short_name};

/// Privileges of one process. `None`: not to be seen by whoever asks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PrivilegeReport {
    pub pid: u32,
    pub parent: u32,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// Capability names without the prefix, in the kernel's order.
    pub effective: Vec<String>,
    pub permitted: Vec<String>,
    pub inheritable: Vec<String>,
    pub bounding: Vec<String>,
    pub ambient: Vec<String>,
    pub no_new_privs: bool,
    /// Only the process itself can ask.
    pub securebits: Option<u32>,
    /// Of another process: told by the owner of its files in /proc, which says nothing about root's.
    pub dumpable: Option<bool>,
    /// 0 off, 1 strict, 2 filter.
    pub seccomp_mode: u32,
    /// Filters one upon another; None on kernels before 5.9.
    pub seccomp_filters: Option<u32>,
    /// Hard limit of core files in bytes; `u64::MAX` is no limit.
    pub core_limit: Option<u64>,
    pub oom_score_adj: Option<i32>,
    /// Open sockets: "unix:/run/kubelet/kubelet-syncd.sock (listening)", "tcp:127.0.0.1:10248 (listening)", …
    pub sockets: Option<Vec<String>>,
    /// Descriptors above standard error that a program started from there would get.
    pub kept_over_exec: Option<Vec<u32>>,
}

impl PrivilegeReport {
    /// Of this process. The capability sets are those of the calling thread.
    ///
    /// # Errors
    /// /proc is not there.
    pub fn read() -> Result<Self, PrivilegeError> {
        let status =
            std::fs::read_to_string("/proc/thread-self/status").map_err(|e| PrivilegeError::Proc("status", e))?;
        let mut report = Self::parse_status(&status);
        report.pid = std::process::id();
        report.dumpable = Some(!matches!(rustix::process::dumpable_behavior(), Ok(DumpableBehavior::NotDumpable)));
        report.securebits = rustix::thread::capabilities_secure_bits().ok().map(|bits| bits.bits());
        report.add_files(Path::new("/proc/self"));
        Ok(report)
    }

    /// Of another process, its main thread.
    ///
    /// # Errors
    /// There is no such process, it has ended, or it is hidden.
    pub fn of(pid: u32) -> io::Result<Self> {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let mut report = Self::parse_status(&status_of_running(&folder)?);
        if report.uid != 0 {
            let owner = std::fs::metadata(folder.join("environ")).ok().map(|file| file.uid());
            report.dumpable = owner.map(|owner| owner != 0);
        }
        report.add_files(&folder);
        // What was read is one process's only if it is still there.
        status_of_running(&folder)?;
        Ok(report)
    }

    fn add_files(&mut self, folder: &Path) {
        let text = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
        self.core_limit = text("limits").and_then(|limits| core_limit(&limits));
        self.oom_score_adj = text("oom_score_adj").and_then(|score| score.trim().parse().ok());
        self.sockets = open_sockets(folder).ok();
        self.kept_over_exec = kept_over_exec(folder).ok();
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
                "Pid" => report.pid = value.parse().unwrap_or(0),
                "PPid" => report.parent = value.parse().unwrap_or(0),
                "Uid" => report.uid = effective_id(value),
                "Gid" => report.gid = effective_id(value),
                "Groups" => report.groups = value.split_whitespace().filter_map(|id| id.parse().ok()).collect(),
                "CapInh" => report.inheritable = names(value),
                "CapEff" => report.effective = names(value),
                "CapPrm" => report.permitted = names(value),
                "CapBnd" => report.bounding = names(value),
                "CapAmb" => report.ambient = names(value),
                "NoNewPrivs" => report.no_new_privs = value == "1",
                "Seccomp" => report.seccomp_mode = value.parse().unwrap_or(0),
                "Seccomp_filters" => report.seccomp_filters = value.parse().ok(),
                _ => {}
            }
        }
        report
    }
}

/// What the kernel says of a process that has not ended: one whose parent has not asked for its end yet has lost its files, and
/// keeps its ids.
fn status_of_running(folder: &Path) -> io::Result<String> {
    let status = std::fs::read_to_string(folder.join("status"))?;
    let has_ended = status.lines().filter_map(|line| line.strip_prefix("State:")).any(|state| {
        let state = state.trim_start();
        state.starts_with('Z') || state.starts_with('X')
    });
    if has_ended { Err(io::Error::new(io::ErrorKind::NotFound, "the process has ended")) } else { Ok(status) }
}

/// The hard limit's column of `Max core file size`.
fn core_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max core file size"))?;
    let hard = line.split_whitespace().nth(1)?;
    if hard == "unlimited" { Some(u64::MAX) } else { hard.parse().ok() }
}

/// Numbers of descriptors without close-on-exec, from `flags:` (octal) in fdinfo.
fn kept_over_exec(folder: &Path) -> io::Result<Vec<u32>> {
    let mut kept = Vec::new();
    for entry in std::fs::read_dir(folder.join("fdinfo"))? {
        let entry = entry?;
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // Closed meanwhile.
        let Ok(info) = std::fs::read_to_string(entry.path()) else { continue };
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap_or("0");
        let flags = i64::from_str_radix(flags.trim(), 8).unwrap_or(0);
        if number > 2 && flags & i64::from(libc::O_CLOEXEC) == 0 {
            kept.push(number);
        }
    }
    kept.sort_unstable();
    Ok(kept)
}

/// Names of the bits of a hexadecimal mask. A bit that this build has no name for is shown by its number.
fn names(mask: &str) -> Vec<String> {
    let mask = u64::from_str_radix(mask, 16).unwrap_or(0);
    let known: HashMap<u8, caps::Capability> = caps::all().into_iter().map(|cap| (cap.index(), cap)).collect();
    (0u8..64)
        .filter(|bit| mask & (1 << bit) != 0)
        .map(|bit| known.get(&bit).map_or_else(|| bit.to_string(), |cap| short_name(*cap)))
        .collect()
}

/// Sockets among a process's descriptors, named from the tables of its own network namespace.
fn open_sockets(folder: &Path) -> io::Result<Vec<String>> {
    let mut inodes = Vec::new();
    for entry in std::fs::read_dir(folder.join("fd"))? {
        let Ok(target) = std::fs::read_link(entry?.path()) else { continue };
        let target = target.to_string_lossy();
        if let Some(inode) = target.strip_prefix("socket:[").and_then(|t| t.strip_suffix(']')) {
            inodes.push(inode.to_owned());
        }
    }
    let mut by_inode = HashMap::new();
    if let Ok(text) = std::fs::read_to_string(folder.join("net/unix")) {
        by_inode.extend(text.lines().skip(1).filter_map(unix_socket));
    }
    for (file, family) in [("tcp", "tcp"), ("tcp6", "tcp6"), ("udp", "udp"), ("udp6", "udp6")] {
        if let Ok(text) = std::fs::read_to_string(folder.join("net").join(file)) {
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
             CapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\nPPid:\t7\n",
        );
        assert_eq!((report.uid, report.gid), (60706, 2));
        assert_eq!(report.groups, [5, 6]);
        assert_eq!(report.permitted, ["DAC_OVERRIDE", "SYS_ADMIN"]);
        assert!(report.effective.is_empty() && report.no_new_privs);
        assert_eq!((report.seccomp_mode, report.seccomp_filters, report.parent), (2, Some(3), 7));
    }

    #[test]
    fn sockets_are_named() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let expected = format!("tcp:{} (listening)", listener.local_addr().unwrap());
        let report = PrivilegeReport::read().unwrap();
        assert!(report.sockets.as_ref().unwrap().contains(&expected), "{:?}", report.sockets);
        assert_eq!(
            inet_socket("tcp6", " 0: 00000000000000000000000001000000:2808 0:0 0A 0:0 0:0 0 0 0 77 1").unwrap(),
            ("77".to_owned(), "tcp6:[::1]:10248 (listening)".to_owned())
        );
    }

    #[test]
    fn another_process_is_read_as_this_one_is() {
        let mine = PrivilegeReport::read().unwrap();
        let seen = PrivilegeReport::of(std::process::id()).unwrap();
        assert_eq!((seen.uid, &seen.effective, &seen.bounding), (mine.uid, &mine.effective, &mine.bounding));
        assert_eq!((seen.oom_score_adj, seen.core_limit), (mine.oom_score_adj, mine.core_limit));
        assert_eq!(seen.securebits, None);
        assert!(PrivilegeReport::of(u32::MAX).is_err());
    }

    #[test]
    fn a_process_that_has_ended_is_not_read() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let folder = PathBuf::from(format!("/proc/{}", child.id()));
        let ended = || std::fs::read_to_string(folder.join("status")).unwrap().contains("State:\tZ");
        let started = std::time::Instant::now();
        while !ended() {
            assert!(started.elapsed() < std::time::Duration::from_secs(10), "it runs on");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(PrivilegeReport::of(child.id()).is_err());
        child.wait().unwrap();
    }

    #[test]
    fn limits_are_read() {
        let limits = "Limit    Soft Limit   Hard Limit   Units\nMax core file size        0                    unlimited            bytes     \n";
        assert_eq!(core_limit(limits), Some(u64::MAX));
        assert_eq!(core_limit(&limits.replace("unlimited", "0")), Some(0));
        assert_eq!(core_limit(""), None);
    }

    #[test]
    fn a_descriptor_that_exec_would_keep_is_found() {
        use std::os::fd::AsRawFd as _;
        let file = std::fs::File::open("/dev/null").unwrap();
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        let kept = PrivilegeReport::read().unwrap().kept_over_exec.unwrap();
        assert!(kept.contains(&file.as_raw_fd().cast_unsigned()), "{kept:?}");
    }
}
