//! Starts a child with exactly the user, groups, capabilities and descriptors that its table row names.
//!
//! Everything is set between fork and exec, in an order where each step still has the privilege it needs and none is
//! left over afterwards: descriptors, limits, bounding set (SETPCAP), groups, gid, uid, capability sets, ambient set,
//! death signal (a uid change clears it), no_new_privs. An error in any step fails the spawn and the program never runs.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use caps::Capability;

/// First number of passed descriptors, as in systemd's protocol.
const FIRST_FD: RawFd = 3;

/// More than any daemon gets.
const MAX_FDS: usize = 16;

/// A child to be.
#[derive(Debug)]
pub struct Spec {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// The whole environment, besides LISTEN_FDS, LISTEN_FDNAMES and BULKHEAD_LISTEN=1, which are added when `fds` is
    /// not empty. (LISTEN_PID would have to be formatted after the fork.)
    pub env: Vec<(OsString, OsString)>,
    /// Passed as 3, 4, … under these names. All other descriptors above 2 are closed.
    pub fds: Vec<(String, OwnedFd)>,
    /// None: user, group and groups stay as they are.
    pub user: Option<User>,
    /// What stays in the bounding set; None leaves it alone.
    pub bounding: Option<Vec<Capability>>,
    /// Permitted, effective, inheritable and ambient in the child after a uid change. Empty: none at all.
    pub ambient: Vec<Capability>,
    pub no_new_privs: bool,
    /// Locked in the child: see [`crate::process::locked_securebits`].
    pub lock_securebits: bool,
    /// SIGKILL to the child when the thread that spawned it ends.
    pub die_with_parent: bool,
    /// In a process group of its own, so that Ctrl-C on the terminal reaches the launcher alone.
    pub own_process_group: bool,
    /// RLIMIT_NOFILE, soft and hard.
    pub max_open_files: Option<u64>,
    /// RLIMIT_DATA, soft and hard: bytes of private memory that is written, more of which is not given.
    pub max_data_bytes: Option<u64>,
    /// Set where the parent's is lower; a parent that is no better protected passes its own on.
    pub oom_score_adj: Option<i32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// Keeps the numbers of passed descriptors free until the child has been started.
#[derive(Debug)]
pub struct Prepared {
    command: Command,
    /// Occupies the low descriptor numbers, so that std's error pipe cannot get one that the child reuses.
    _slots: Vec<OwnedFd>,
}

impl Spec {
    /// A child without arguments, environment or descriptors that keeps the caller's privileges.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Spec {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            fds: Vec::new(),
            user: None,
            bounding: None,
            ambient: Vec::new(),
            no_new_privs: false,
            lock_securebits: false,
            die_with_parent: false,
            own_process_group: false,
            max_open_files: None,
            max_data_bytes: None,
            oom_score_adj: None,
        }
    }

    /// Builds the command. Standard input is /dev/null, output and errors are inherited unless changed with
    /// [`Prepared::command_mut`]. Call from one thread at a time: the guard of descriptor numbers is per process.
    pub fn prepare(self) -> io::Result<Prepared> {
        if self.fds.len() > MAX_FDS || self.fds.iter().any(|(name, _)| name.contains(':') || name.is_empty()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "too many descriptors, or one without a plain name",
            ));
        }
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_clear().envs(self.env.iter().map(|(k, v)| (k, v))).stdin(Stdio::null());
        if !self.fds.is_empty() {
            let names: Vec<&str> = self.fds.iter().map(|(name, _)| name.as_str()).collect();
            command
                .env("LISTEN_FDS", names.len().to_string())
                .env("LISTEN_FDNAMES", names.join(":"))
                .env("BULKHEAD_LISTEN", "1");
        }
        if self.own_process_group {
            command.process_group(0);
        }
        let end = FIRST_FD + RawFd::try_from(self.fds.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let slots = occupy_below(end)?;
        let child = ChildSteps {
            fds: self.fds.into_iter().map(|(_, fd)| fd).collect(),
            end,
            user: self.user,
            bounding: self.bounding.map(|keep| mask(&keep)),
            ambient: mask(&self.ambient),
            no_new_privs: self.no_new_privs,
            lock_securebits: self.lock_securebits,
            parent: self.die_with_parent.then(rustix::process::getpid),
            max_open_files: self.max_open_files,
            max_data_bytes: self.max_data_bytes,
            oom_score_adj: self.oom_score_adj.filter(|score| own_oom_score().is_none_or(|own| own < *score)).map(text),
        };
        // SAFETY: between fork and exec of a possibly multi-threaded process only async-signal-safe work is allowed.
        // `ChildSteps::apply` makes raw system calls on data that was allocated before the fork; it neither allocates,
        // locks, nor panics (`io::Error::last_os_error` holds an integer).
        unsafe { command.pre_exec(move || child.apply()) };
        Ok(Prepared { command, _slots: slots })
    }

    /// [`Self::prepare`] and start. The caller reaps the child.
    pub fn spawn(self) -> io::Result<Child> {
        self.prepare()?.command.spawn()
    }
}

impl Prepared {
    /// For redirecting output.
    pub fn command_mut(&mut self) -> &mut Command {
        &mut self.command
    }

    /// Gives the command to an async runtime's wrapper, which must be spawned while the second value is alive.
    pub fn into_parts(self) -> (Command, Vec<OwnedFd>) {
        (self.command, self._slots)
    }

    pub fn spawn(mut self) -> io::Result<Child> {
        self.command.spawn()
    }
}

/// Descriptors of /dev/null until every number below `end` is taken.
fn occupy_below(end: RawFd) -> io::Result<Vec<OwnedFd>> {
    let mut slots = Vec::new();
    loop {
        let fd: OwnedFd = std::fs::File::open("/dev/null")?.into();
        if fd.as_raw_fd() >= end {
            return Ok(slots);
        }
        slots.push(fd);
    }
}

/// Of this process.
fn own_oom_score() -> Option<i32> {
    std::fs::read_to_string("/proc/self/oom_score_adj").ok()?.trim().parse().ok()
}

fn text(score: i32) -> Vec<u8> {
    score.to_string().into_bytes()
}

fn mask(caps: &[Capability]) -> u64 {
    caps.iter().fold(0, |mask, cap| mask | cap.bitmask())
}

/// What the forked child does before exec. Plain data, allocated before the fork.
struct ChildSteps {
    fds: Vec<OwnedFd>,
    end: RawFd,
    user: Option<User>,
    bounding: Option<u64>,
    ambient: u64,
    no_new_privs: bool,
    lock_securebits: bool,
    parent: Option<rustix::process::Pid>,
    max_open_files: Option<u64>,
    max_data_bytes: Option<u64>,
    oom_score_adj: Option<Vec<u8>>,
}

impl ChildSteps {
    fn apply(&self) -> io::Result<()> {
        self.place_descriptors()?;
        for (resource, max) in [(libc::RLIMIT_NOFILE, self.max_open_files), (libc::RLIMIT_DATA, self.max_data_bytes)] {
            let Some(max) = max else { continue };
            let limit = libc::rlimit { rlim_cur: max, rlim_max: max };
            // SAFETY: `limit` is a valid rlimit for the duration of the call.
            check(unsafe { libc::setrlimit(resource, &raw const limit) })?;
        }
        if let Some(score) = &self.oom_score_adj {
            // Raising it takes no privilege; where there is no /proc the parent's stays.
            if let Ok(file) =
                rustix::fs::open(c"/proc/self/oom_score_adj", rustix::fs::OFlags::WRONLY, rustix::fs::Mode::empty())
            {
                let _ = rustix::io::write(&file, score);
            }
        }
        if let Some(keep) = self.bounding {
            for cap in 0..64 {
                // SAFETY: prctl with integer arguments touches no memory.
                let present = unsafe { libc::prctl(libc::PR_CAPBSET_READ, cap, 0, 0, 0) };
                if present == 1 && keep & (1 << cap) == 0 {
                    // SAFETY: as above.
                    check(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, cap, 0, 0, 0) })?;
                }
            }
        }
        if let Some(user) = &self.user {
            // Keeps the permitted set over the uid change; exec clears the flag again.
            // SAFETY: prctl with integer arguments touches no memory.
            check(unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0) })?;
            // SAFETY: the pointer and length are those of a live vector of gid_t (u32). The raw calls change this
            // thread alone, and after a fork it is the only one; libc's wrappers would signal other threads.
            check_long(unsafe { libc::syscall(libc::SYS_setgroups, user.groups.len(), user.groups.as_ptr()) })?;
            // SAFETY: integer arguments only, as above.
            check_long(unsafe { libc::syscall(libc::SYS_setresgid, user.gid, user.gid, user.gid) })?;
            // SAFETY: integer arguments only, as above.
            check_long(unsafe { libc::syscall(libc::SYS_setresuid, user.uid, user.uid, user.uid) })?;
            if user.uid != 0 {
                self.set_capabilities()?;
            }
        }
        if self.lock_securebits && self.user.as_ref().is_none_or(|user| user.uid == 0) {
            // Refused where somebody locked other bits before us; which they are, the process reports.
            let _ = rustix::thread::set_capabilities_secure_bits(crate::process::locked_securebits_of_root());
        }
        if let Some(parent) = self.parent {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            // The parent may have gone before the signal was set.
            if rustix::process::getppid() != Some(parent) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        if self.no_new_privs {
            rustix::thread::set_no_new_privs(true)?;
        }
        Ok(())
    }

    /// Moves every descriptor out of the way first: one of them may sit on another one's number.
    fn place_descriptors(&self) -> io::Result<()> {
        let mut high = [-1; MAX_FDS];
        for (slot, fd) in high.iter_mut().zip(&self.fds) {
            // SAFETY: F_DUPFD_CLOEXEC on a descriptor that this struct owns; returns a new number or -1.
            *slot = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, self.end) };
            check(*slot)?;
        }
        for (number, source) in (FIRST_FD..self.end).zip(high) {
            // SAFETY: whatever `number` held is the parent's placeholder or a descriptor that exec would close; this
            // process image is about to be replaced and std's error pipe has a number at or above `end`.
            check(unsafe { libc::dup2(source, number) })?;
        }
        // SAFETY: marks descriptors close-on-exec; closes nothing now, so std's pipe still works.
        check_long(unsafe {
            libc::syscall(libc::SYS_close_range, self.end, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
        })
    }

    /// The row's capabilities in every set, so that exec keeps them, and the securebits locked behind them.
    fn set_capabilities(&self) -> io::Result<()> {
        // Securebits take SETPCAP, which therefore goes last. A launcher without it leaves them as they are.
        let lock = self.lock_securebits
            && set_capability_words(self.ambient | Capability::CAP_SETPCAP.bitmask(), self.ambient).is_ok();
        if !lock {
            set_capability_words(self.ambient, self.ambient)?;
        }
        for cap in (0..64).filter(|cap| self.ambient & (1 << cap) != 0) {
            // SAFETY: prctl with integer arguments touches no memory.
            check(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, cap, 0, 0) })?;
        }
        if lock {
            // Refused where somebody locked other bits before us; which they are, the process reports.
            let _ = rustix::thread::set_capabilities_secure_bits(crate::process::locked_securebits());
            set_capability_words(self.ambient, self.ambient)?;
        }
        Ok(())
    }
}

/// capset(2): permitted and effective, and inheritable.
fn set_capability_words(held: u64, inheritable: u64) -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    // _LINUX_CAPABILITY_VERSION_3: two words for each set, the lower first.
    let header = Header { version: 0x2008_0522, pid: 0 };
    let word = |shift: u32| {
        // Truncation picks the 32 bits of this word.
        let bits = (held >> shift) as u32;
        Data { effective: bits, permitted: bits, inheritable: (inheritable >> shift) as u32 }
    };
    let data = [word(0), word(32)];
    // SAFETY: header and data have the layout of version 3 (capset(2)) and live through the call.
    check_long(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn check_long(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Spec {
        let mut spec = Spec::new("/bin/sh");
        spec.args = vec!["-c".into(), script.into()];
        spec.env = vec![("PATH".into(), "/usr/bin:/bin".into())];
        spec
    }

    fn output(spec: Spec) -> String {
        let mut prepared = spec.prepare().unwrap();
        prepared.command_mut().stdout(Stdio::piped());
        let out = prepared.spawn().unwrap().wait_with_output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    }

    #[test]
    fn descriptors_arrive_in_order_and_nothing_else() {
        let stray = std::fs::File::open("/dev/zero").unwrap();
        rustix::io::fcntl_setfd(&stray, rustix::io::FdFlags::empty()).unwrap();
        let mut spec =
            shell("cat <&3; cat <&4; echo $LISTEN_FDS $LISTEN_FDNAMES; readlink /proc/$$/fd/* | grep -c zero");
        spec.args[1].push("; true");
        for (name, text) in [("grpc", "one "), ("death", "two ")] {
            spec.fds.push((name.to_owned(), crate::memfd::sealed(name, text.as_bytes()).unwrap()));
            let mut file = std::fs::File::from(spec.fds.last().unwrap().1.try_clone().unwrap());
            io::Seek::rewind(&mut file).unwrap();
        }
        assert_eq!(output(spec), "one two 2 grpc:death\n0\n");
    }

    #[test]
    fn a_daemon_has_its_user_and_no_capability() {
        if rustix::process::getuid().as_raw() != 0 {
            return;
        }
        let mut spec = shell("cat /proc/self/status; echo ppid $PPID");
        spec.user = Some(User { uid: 60711, gid: 60712, groups: vec![60713] });
        spec.bounding = Some(vec![Capability::CAP_DAC_READ_SEARCH]);
        spec.ambient = vec![Capability::CAP_DAC_READ_SEARCH];
        spec.no_new_privs = true;
        spec.lock_securebits = true;
        spec.die_with_parent = true;
        spec.max_open_files = Some(512);
        let status = output(spec);
        for line in [
            "Uid:\t60711\t60711\t60711\t60711",
            "Gid:\t60712\t60712\t60712\t60712",
            "Groups:\t60713",
            "CapPrm:\t0000000000000004",
            "CapEff:\t0000000000000004",
            "CapBnd:\t0000000000000004",
            "CapAmb:\t0000000000000004",
            "NoNewPrivs:\t1",
        ] {
            assert!(status.contains(line), "{line} in {status}");
        }
    }

    #[test]
    fn a_child_has_its_memory_and_its_own_oom_score() {
        let mut spec = shell(
            "ulimit -d; ulimit -Hd; cat /proc/self/oom_score_adj; dd if=/dev/zero of=/dev/null bs=1M count=1 && echo some",
        );
        spec.max_data_bytes = Some(64 << 20);
        spec.oom_score_adj = Some(900);
        assert_eq!(output(spec), "65536\n65536\n900\nsome\n");
        // It tries to have more.
        let mut spec = shell("dd if=/dev/zero of=/dev/null bs=256M count=1 || echo refused");
        spec.max_data_bytes = Some(64 << 20);
        assert_eq!(output(spec), "refused\n");
        let mut spec = shell("cat /proc/self/oom_score_adj");
        spec.oom_score_adj = Some(-1000);
        assert_eq!(output(spec).trim().parse().ok(), own_oom_score(), "never lower than the parent's");
    }

    #[test]
    fn root_keeps_the_bounding_set_only() {
        if rustix::process::getuid().as_raw() != 0 {
            return;
        }
        let mut spec = shell("cat /proc/self/status");
        spec.bounding = Some(vec![Capability::CAP_CHOWN, Capability::CAP_KILL]);
        let status = output(spec);
        assert!(status.contains("CapEff:\t0000000000000021"), "{status}");
    }

    #[test]
    fn a_failing_step_fails_the_spawn() {
        let mut spec = shell("echo ran");
        spec.fds = vec![("a:b".to_owned(), crate::memfd::sealed("x", b"x").unwrap())];
        assert!(spec.spawn().is_err());
        let spec = Spec::new("/no/such/program");
        assert_eq!(spec.spawn().unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
