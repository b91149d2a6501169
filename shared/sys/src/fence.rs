//! Landlock: what a process may still open, listen on and signal, whatever capabilities it holds.
//!
//! Applies to the calling thread and those it starts later: call it before any thread exists. Kernels that know fewer
//! rights enforce fewer; what was enforced, and what this kernel cannot do, is reported in words, never assumed.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, CreateRulesetError, LandlockStatus, NetPort,
    PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

/// Newest ABI whose rights there are rules for here: file rights of 5 (kernel 6.10), TCP ports of 4 (6.7), scopes of
/// 6 (6.12). Best effort lowers it to what the kernel knows.
const FILES: ABI = ABI::V5;

/// Everything that is not named here cannot be opened any more. Paths that do not exist are left out and reported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fence {
    /// Listing of directories at and below these, nothing else.
    pub read_dirs: Vec<PathBuf>,
    /// Reading of files and listing of directories at and below these.
    pub read_files: Vec<PathBuf>,
    /// The same, and starting of programs.
    pub run_files: Vec<PathBuf>,
    /// Reading, writing, creating and removing below these: the process's own state. A folder that this process cannot
    /// reach by its path (its state comes as a descriptor) stands for the nearest one above it that can be reached; the
    /// permissions of files, which hold all the same, do the rest.
    pub read_write: Vec<PathBuf>,
    /// Reading and writing of these files, and nothing made or removed: devices.
    pub devices: Vec<PathBuf>,
    /// TCP ports that may be bound; 0 is whichever the kernel picks. None: all.
    pub tcp_bind: Option<Vec<u16>>,
    /// No signal leaves the domain.
    pub keep_signals: bool,
    /// No connection to abstract Unix sockets outside the domain.
    pub keep_abstract_sockets: bool,
}

/// What is in force now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FenceReport {
    pub enforcement: Enforcement,
    /// The rules in words: "read-dir /var/lib/kubelet/pods".
    pub rules: Vec<String>,
    /// Paths that were not there.
    pub missing: Vec<PathBuf>,
    /// What was wanted and this kernel's Landlock cannot do, in words.
    pub unavailable: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforcement {
    Full,
    /// The kernel knows a part of the rights.
    Partial,
    /// The kernel has no Landlock, or it is off.
    None,
}

/// Why the fence could not be put up.
#[derive(Debug, thiserror::Error)]
pub enum FenceError {
    #[error("failed to build the Landlock rules")]
    Rules(#[from] landlock::RulesetError),
}

/// What a rule about a folder lets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    ReadDir,
    ReadFile,
    Run,
    ReadWrite,
    Device,
}

impl Kind {
    const fn word(self) -> &'static str {
        match self {
            Kind::ReadDir => "read-dir",
            Kind::ReadFile => "read-file",
            Kind::Run => "run",
            Kind::ReadWrite => "read-write",
            Kind::Device => "device",
        }
    }

    fn access(self) -> BitFlags<AccessFs> {
        match self {
            Kind::ReadDir => AccessFs::ReadDir.into(),
            Kind::ReadFile => AccessFs::ReadDir | AccessFs::ReadFile,
            Kind::Run => AccessFs::ReadDir | AccessFs::ReadFile | AccessFs::Execute,
            Kind::ReadWrite => {
                AccessFs::from_all(FILES) & !AccessFs::Execute & !AccessFs::MakeChar & !AccessFs::MakeBlock
            }
            Kind::Device => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev | AccessFs::Truncate,
        }
    }
}

impl Fence {
    /// Each rule in words, as [`FenceReport::rules`] has them where all are in force.
    pub fn words(&self) -> Vec<String> {
        let paths = self.paths().map(|(kind, path)| format!("{} {}", kind.word(), path.display()));
        paths.chain(self.beyond_files()).collect()
    }

    fn paths(&self) -> impl Iterator<Item = (Kind, &PathBuf)> {
        [
            (Kind::ReadDir, &self.read_dirs),
            (Kind::ReadFile, &self.read_files),
            (Kind::Run, &self.run_files),
            (Kind::ReadWrite, &self.read_write),
            (Kind::Device, &self.devices),
        ]
        .into_iter()
        .flat_map(|(kind, paths)| paths.iter().map(move |path| (kind, path)))
    }

    fn beyond_files(&self) -> impl Iterator<Item = String> {
        let ports = self.tcp_bind.as_ref().map(|ports| match ports.as_slice() {
            [] => "tcp-bind nothing".to_owned(),
            ports => format!("tcp-bind {}", ports.iter().map(u16::to_string).collect::<Vec<_>>().join(",")),
        });
        let signals = self.keep_signals.then(|| "signals stay inside".to_owned());
        let sockets = self.keep_abstract_sockets.then(|| "abstract sockets stay inside".to_owned());
        [ports, signals, sockets].into_iter().flatten()
    }

    /// Puts the fence up. Also sets no_new_privs, which Landlock requires.
    ///
    /// # Errors
    /// The kernel has Landlock and refuses these rules. A kernel without it is no error, see [`FenceReport`].
    pub fn enforce(&self) -> Result<FenceReport, FenceError> {
        let (mut ruleset, refused) = self.create()?;
        let mut rules = Vec::new();
        let mut missing = Vec::new();
        for (kind, path) in self.paths() {
            let opened = match PathFd::new(path) {
                Ok(fd) => Some((fd, String::new())),
                Err(_) if kind == Kind::ReadWrite => nearest(path),
                Err(_) => None,
            };
            let Some((fd, by)) = opened else {
                missing.push(path.clone());
                continue;
            };
            ruleset = ruleset.add_rule(PathBeneath::new(fd, kind.access()))?;
            rules.push(format!("{} {}{by}", kind.word(), path.display()));
        }
        for port in self.tcp_bind.iter().flatten() {
            ruleset = ruleset.add_rule(NetPort::new(*port, AccessNet::BindTcp))?;
        }
        rules.extend(self.beyond_files());
        let status = ruleset.restrict_self()?;
        let enforcement = match status.ruleset {
            RulesetStatus::FullyEnforced => Enforcement::Full,
            RulesetStatus::PartiallyEnforced => Enforcement::Partial,
            RulesetStatus::NotEnforced => Enforcement::None,
        };
        let unavailable = self.unavailable(&status.landlock, refused);
        if enforcement == Enforcement::None {
            rules.clear();
        }
        rules.retain(|rule| !unavailable.iter().any(|(missed, _)| missed == rule));
        let unavailable = unavailable.into_iter().map(|(_, words)| words).collect();
        Ok(FenceReport { enforcement, rules, missing, unavailable })
    }

    /// The ruleset, without rules, and the scopes that the kernel refuses although its version has them: those of RHEL 9.7 and
    /// CentOS Stream 9 (5.14.0-603 and later) say that they have version 6, and lack the one of signals.
    fn create(&self) -> Result<(RulesetCreated, BitFlags<Scope>), FenceError> {
        let mut wanted = BitFlags::empty();
        wanted.set(Scope::Signal, self.keep_signals);
        wanted.set(Scope::AbstractUnixSocket, self.keep_abstract_sockets);
        for scopes in [wanted, wanted & Scope::AbstractUnixSocket] {
            match self.created(scopes) {
                Err(error) if is_unknown(&error) => {}
                created => return Ok((created?, wanted & !scopes)),
            }
        }
        Ok((self.created(BitFlags::empty())?, wanted))
    }

    fn created(&self, scopes: BitFlags<Scope>) -> Result<RulesetCreated, RulesetError> {
        let mut ruleset =
            Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(AccessFs::from_all(FILES))?;
        if self.tcp_bind.is_some() {
            ruleset = ruleset.handle_access(AccessNet::BindTcp)?;
        }
        if !scopes.is_empty() {
            ruleset = ruleset.scope(scopes)?;
        }
        ruleset.create()
    }

    /// What the kernel's Landlock lacks: the rule's words, and what that means. `refused`: though it is of its version.
    fn unavailable(&self, kernel: &LandlockStatus, refused: BitFlags<Scope>) -> Vec<(String, String)> {
        let (known, words) = match kernel {
            LandlockStatus::Available { effective_abi, .. } => {
                (*effective_abi, format!("Landlock version {} of this kernel", *effective_abi as i32))
            }
            LandlockStatus::NotEnabled => {
                return vec![(
                    String::new(),
                    "Landlock is switched off on this kernel (is it in the lsm= list?)".into(),
                )];
            }
            _ => return vec![(String::new(), "this kernel has no Landlock".into())],
        };
        self.beyond_files()
            .filter_map(|rule| {
                let (since, is_refused, what) = if rule.starts_with("tcp-bind") {
                    (ABI::V4, false, "leaves TCP ports alone (4 would not)")
                } else if rule.starts_with("signals") {
                    (ABI::V6, refused.contains(Scope::Signal), "lets signals out (6 would not)")
                } else {
                    let is_refused = refused.contains(Scope::AbstractUnixSocket);
                    (ABI::V6, is_refused, "lets abstract sockets be reached (6 would not)")
                };
                (is_refused || (known as i32) < since as i32).then(|| (rule, format!("{words} {what}")))
            })
            .collect()
    }
}

/// The kernel does not know what the ruleset is to handle.
fn is_unknown(error: &RulesetError) -> bool {
    let RulesetError::CreateRuleset(CreateRulesetError::CreateRulesetCall { source, .. }) = error else { return false };
    source.kind() == std::io::ErrorKind::InvalidInput
}

/// The nearest folder above `path` that this process can reach, with what to say about it.
fn nearest(path: &Path) -> Option<(PathFd, String)> {
    path.ancestors().skip(1).find_map(|above| Some((PathFd::new(above).ok()?, format!(" (by {})", above.display()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Landlock binds the thread that asks: a thread of its own leaves the other tests free.
    fn fenced(fence: Fence, work: impl FnOnce(FenceReport) + Send + 'static) {
        std::thread::spawn(move || work(fence.enforce().unwrap())).join().unwrap();
    }

    #[test]
    fn what_is_not_named_cannot_be_opened() {
        let dir = tempfile::tempdir().unwrap();
        let pods = dir.path().join("pods");
        let own = dir.path().join("own");
        std::fs::create_dir_all(&pods).unwrap();
        std::fs::create_dir_all(&own).unwrap();
        std::fs::write(pods.join("secret"), "s").unwrap();
        let fence = Fence {
            read_dirs: vec![pods.clone()],
            read_files: vec!["/proc".into(), dir.path().join("absent")],
            read_write: vec![own.clone()],
            devices: vec!["/dev/null".into()],
            ..Fence::default()
        };
        assert_eq!(fence.words().len(), 5);
        fenced(fence, move |report| {
            assert_eq!(report.enforcement, Enforcement::Full);
            assert_eq!(report.missing.len(), 1);
            assert_eq!(report.rules.len(), 4);
            assert_eq!(std::fs::read_dir(&pods).unwrap().count(), 1);
            assert!(std::fs::metadata(pods.join("secret")).is_ok(), "sizes stay readable");
            assert!(std::fs::read(pods.join("secret")).is_err());
            assert!(std::fs::write(pods.join("new"), "x").is_err());
            assert!(std::fs::read("/proc/self/stat").is_ok());
            assert!(std::fs::read("/etc/passwd").is_err());
            assert!(std::process::Command::new("/bin/true").status().is_err());
            std::fs::write("/dev/null", "x").unwrap();
            assert!(std::fs::read("/dev/zero").is_err());
            std::fs::write(own.join("state"), "x").unwrap();
            std::fs::rename(own.join("state"), own.join("state2")).unwrap();
        });
    }

    #[test]
    fn a_state_folder_that_cannot_be_reached_stands_for_one_above() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("not/there/yet");
        let fence = Fence { read_write: vec![own.clone()], ..Fence::default() };
        let above = dir.path().to_owned();
        fenced(fence, move |report| {
            assert_eq!(report.rules, [format!("read-write {} (by {})", own.display(), above.display())]);
            std::fs::create_dir_all(&own).unwrap();
            std::fs::write(own.join("state"), "x").unwrap();
            assert!(std::fs::write("/tmp/beside-every-folder", "x").is_err());
        });
    }

    #[test]
    fn programs_run_where_they_may() {
        let fence = Fence {
            run_files: ["/usr", "/bin", "/lib", "/lib64"].map(PathBuf::from).to_vec(),
            read_files: vec!["/etc".into()],
            devices: vec!["/dev/null".into()],
            ..Fence::default()
        };
        fenced(fence, |_| {
            assert!(std::process::Command::new("/bin/true").status().unwrap().success());
            assert!(!std::process::Command::new("/bin/cat").arg("/proc/stat").status().unwrap().success());
        });
    }

    #[test]
    fn ports_signals_and_abstract_sockets() {
        use std::os::linux::net::SocketAddrExt as _;
        use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
        let name = format!("bulkhead-fence-{}", std::process::id());
        let outside = SocketAddr::from_abstract_name(&name).unwrap();
        let _listener = UnixListener::bind_addr(&outside).unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
        let fence =
            Fence { tcp_bind: Some(vec![free]), keep_signals: true, keep_abstract_sockets: true, ..Fence::default() };
        fenced(fence, move |report| {
            // The words say what is in force: on an older kernel the first part of each pair is missing.
            let says = |rule: &str| report.rules.iter().any(|one| one.starts_with(rule));
            assert_eq!(report.rules.len() + report.unavailable.len(), 3, "{report:?}");
            assert!(std::net::TcpListener::bind(("127.0.0.1", free)).is_ok());
            assert_eq!(std::net::TcpListener::bind("127.0.0.1:0").is_err(), says("tcp-bind"));
            let signalled = rustix::process::kill_process(pid, rustix::process::Signal::URG);
            assert_eq!(signalled.is_err(), says("signals"));
            assert_eq!(UnixStream::connect_addr(&outside).is_err(), says("abstract"));
        });
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_feature_that_the_kernel_lacks_is_named() {
        let fence =
            Fence { tcp_bind: Some(Vec::new()), keep_signals: true, keep_abstract_sockets: true, ..Fence::default() };
        let lacks = |abi| {
            let kernel = LandlockStatus::Available { effective_abi: abi, kernel_abi: None };
            fence.unavailable(&kernel, BitFlags::empty()).into_iter().map(|(_, words)| words).collect::<Vec<_>>()
        };
        assert_eq!(lacks(ABI::V3).len(), 3);
        assert_eq!(
            lacks(ABI::V4),
            [
                "Landlock version 4 of this kernel lets signals out (6 would not)",
                "Landlock version 4 of this kernel lets abstract sockets be reached (6 would not)"
            ]
        );
        assert!(lacks(ABI::V6).is_empty());
        let kernel = LandlockStatus::Available { effective_abi: ABI::V6, kernel_abi: None };
        let refused = fence.unavailable(&kernel, Scope::Signal.into());
        assert_eq!(
            refused[0],
            ("signals stay inside".into(), "Landlock version 6 of this kernel lets signals out (6 would not)".into())
        );
        assert_eq!(refused.len(), 1);
        assert_eq!(fence.unavailable(&LandlockStatus::NotImplemented, BitFlags::empty()).len(), 1);
    }
}
