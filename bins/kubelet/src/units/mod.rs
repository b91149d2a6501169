//! Unit mode: `kubelet` as `kubelet.service`, where systemd starts and supervises the daemons and not this program.
//!
//! It checks all that the launcher checks, claims, leaves the configuration in `/run/kubelet` and ends. What must be held
//! for the node's life (the claims, `--lock-file`) are locks on open files; systemd keeps those ([`kept`]).

mod environment;
pub mod kept;
mod metadata;

use std::path::{Path, PathBuf};

use bulkhead_config::{NodeConfig, Users};
use bulkhead_daemon::privileges::{Program, XTABLES_LOCK};

use crate::hidden_processes::{self, HiddenProcesses};
use crate::launch::claims::{Holder, Registry, Subject};
use crate::launch::{ClaimError, folder, users};
use crate::lock_file::{self, LockError};
use crate::xtables_lock;
use kept::{KeepError, KeptLocks};

/// Says who supervises. Set by kubelet.service, so that a drop-in with another command line (kubeadm's) leaves it as it is.
const SUPERVISOR: &str = "BULKHEAD_SUPERVISOR";
/// Where units and their sockets are, whatever the root directory is: their paths are fixed.
const RUN_DIR: &str = "/run/kubelet";
/// The claims are held by systemd, whose pid this is.
const HOLDER: u32 = 1;
/// What the units say (`OOMScoreAdjust=`, `LimitNOFILE=`): defaults of the configuration.
const OOM_SCORE_ADJ: i32 = -999;
const MAX_OPEN_FILES: i64 = 1_000_000;

/// Who starts the daemons and keeps them running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Supervisor {
    /// This program.
    Launcher,
    /// systemd, with the units.
    Units,
}

/// Why the units were not given their configuration.
#[derive(Debug, thiserror::Error)]
pub enum UnitsError {
    #[error(transparent)]
    HiddenProcesses(#[from] HiddenProcesses),
    #[error("{SUPERVISOR}={0:?}: \"systemd\" is the only value; without it `kubelet` starts its daemons itself")]
    UnknownSupervisor(String),
    #[error(
        "{SUPERVISOR}=systemd is for kubelet.service: there is no NOTIFY_SOCKET, so nobody would keep this node's claims. \
         Use `systemctl start kubelet`, or run `kubelet` without that variable"
    )]
    NotAUnit,
    #[error(
        "--exit-on-lock-contention needs a process that watches the lock file, and with units none stays behind: run \
         `kubelet` without {SUPERVISOR}=systemd, or without that flag"
    )]
    LockContention,
    #[error(
        "the users kubelet-syncd, kubelet-evictiond and kubelet-statusd or their group kubelet-daemons are missing, as whom \
         the units run: make them with `systemd-sysusers bulkhead.conf`"
    )]
    NoUsers,
    #[error("failed to give up the privileges that writing a configuration does not take")]
    Privileges(#[source] std::io::Error),
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Keep(#[from] KeepError),
    #[error(transparent)]
    Folder(#[from] folder::FolderError),
    #[error("failed to write the configuration for the daemons")]
    Config(#[from] bulkhead_config::NodeConfigError),
    #[error("failed to write the daemons' environment to {}", path.display())]
    Environment { path: PathBuf, source: std::io::Error },
}

/// Who supervises, by the value of the variable.
///
/// # Errors
/// A value that nobody knows: better no node than one that is supervised twice, or by nobody.
pub fn supervisor() -> Result<Supervisor, UnitsError> {
    supervisor_of(std::env::var_os(SUPERVISOR).map(|value| value.to_string_lossy().into_owned()))
}

fn supervisor_of(value: Option<String>) -> Result<Supervisor, UnitsError> {
    match value.as_deref() {
        None | Some("") => Ok(Supervisor::Launcher),
        Some("systemd") => Ok(Supervisor::Units),
        Some(other) => Err(UnitsError::UnknownSupervisor(other.to_owned())),
    }
}

/// Refuses what units cannot do, before anything leaves a trace, and puts the sockets where they are.
///
/// # Errors
/// [`UnitsError::NotAUnit`], [`UnitsError::LockContention`].
pub fn prepare(config: &mut NodeConfig) -> Result<(), UnitsError> {
    if config.flags.exit_on_lock_contention {
        return Err(UnitsError::LockContention);
    }
    if std::env::var_os("NOTIFY_SOCKET").is_none_or(|path| path.is_empty()) {
        return Err(UnitsError::NotAUnit);
    }
    config.paths.run_dir = PathBuf::from(RUN_DIR);
    Ok(())
}

/// Settings of the configuration that the units' own rule, each with what to write into a drop-in. Pure.
fn overruled(config: &NodeConfig) -> Vec<String> {
    let mut overruled = Vec::new();
    let score = config.kubelet.oom_score_adj();
    if score != OOM_SCORE_ADJ {
        overruled.push(format!("oomScoreAdj: {score} (OOMScoreAdjust={score})"));
    }
    let files = config.kubelet.max_open_files;
    if files != MAX_OPEN_FILES {
        overruled.push(format!("maxOpenFiles: {files} (LimitNOFILE={files})"));
    }
    if let Some(port) = config.flags.vsock_port_of(bulkhead_types::Process::ALL[0]) {
        overruled.push(format!("--vsock-port: {port} (ListenStream=vsock::{port} in a .socket unit of each process)"));
    }
    if config.flags.flexvolume {
        overruled.push("--flexvolume (systemctl enable --now kubelet-flexvolume.socket)".to_owned());
    }
    overruled
}

/// What is left of root's power: files of whatever owner that the operator names, and the group of what is written. In this
/// process and not in kubelet.service, because an administrator's drop-in may have that unit run commands of its own first.
fn confine() -> std::io::Result<()> {
    use bulkhead_sys::Capability::{CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER};
    use bulkhead_sys::seccomp::{Deny, Family, restrict};
    bulkhead_daemon::privileges::hide_memory()?;
    bulkhead_sys::process::keep_only(&[CAP_DAC_OVERRIDE, CAP_CHOWN, CAP_FOWNER]).map_err(std::io::Error::other)?;
    restrict(Deny::UNPRIVILEGED, Some(&[Family::Unix])).map_err(std::io::Error::other)
}

/// Claims, has systemd keep the claims, writes the configuration and the environment. The daemons start when this program
/// has ended.
///
/// # Errors
/// Another node holds a claim, users are missing, or the folder cannot be written.
pub fn render(config: &mut NodeConfig) -> Result<(), UnitsError> {
    confine().map_err(UnitsError::Privileges)?;
    let overruled = overruled(config);
    if !overruled.is_empty() {
        tracing::warn!(
            settings = overruled.join(", "),
            "with units these are the units' to say: the configuration's values do nothing, a drop-in with what is in brackets does"
        );
    }
    config.users = named_users()?;
    hidden_processes::check(config.users.gid)?;
    if let Some(user) = users::helper(config.users, Program::Iptables, &users::passwd()) {
        xtables_lock::share(Path::new(XTABLES_LOCK), user.gid);
    }
    let mut kept = KeptLocks::take()?;
    if !config.flags.lock_file.is_empty() {
        let path = Path::new(&config.flags.lock_file);
        let file = lock_file::lock(path, kept.adopt(kept::LOCK_FILE))?;
        kept.keep(kept::LOCK_FILE, file)?;
    }
    let holder = Holder { pid: HOLDER, ..Holder::me(&config.paths.root_dir, config.node_name.as_str()) };
    let registry = Registry::open(Path::new("/run/kubelet.claims"))?;
    for subject in
        [Subject::RootDir(&config.paths.root_dir), Subject::CgroupRoot(&config.cgroup_root), Subject::NamedUsers]
    {
        let name = format!("claim-{}", subject.file());
        let claim = registry.claim_with(subject, &holder, kept.adopt(&name))?;
        kept.keep(&name, claim.into_file())?;
    }
    // Those of a root directory that this node had before.
    kept.let_go_of_the_rest()?;

    folder::prepare(config)?;
    config.save(&config.paths.rendered_config())?;
    let path = config.paths.run_dir.join("environment");
    let text = environment::render(|name| std::env::var_os(name));
    environment::write(&path, &text).map_err(|source| UnitsError::Environment { path, source })?;
    let node = format!("Node {}, root directory {}", config.node_name.as_str(), config.paths.root_dir.display());
    metadata::open_where_needed(config);
    kept.finish(&node)?;
    tracing::info!(run_dir = RUN_DIR, "the configuration is written, the units take over");
    Ok(())
}

fn named_users() -> Result<Users, UnitsError> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    users::named(&read("/etc/passwd"), &read("/etc/group")).ok_or(UnitsError::NoUsers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_supervises() {
        let of = |value: &str| supervisor_of(Some(value.to_owned()));
        assert_eq!(supervisor_of(None).unwrap(), Supervisor::Launcher);
        assert_eq!(of("").unwrap(), Supervisor::Launcher);
        assert_eq!(of("systemd").unwrap(), Supervisor::Units);
        assert!(of("Systemd").unwrap_err().to_string().contains("\"Systemd\""));
    }

    #[test]
    fn a_setting_that_a_unit_overrules_is_named_with_its_directive() {
        let mut config = NodeConfig::for_tests(Path::new("/t"));
        config.kubelet.oom_score_adj = None;
        assert!(overruled(&config).is_empty(), "{:?}", overruled(&config));
        config.kubelet.oom_score_adj = Some(-900);
        config.kubelet.max_open_files = 5000;
        assert_eq!(
            overruled(&config),
            ["oomScoreAdj: -900 (OOMScoreAdjust=-900)", "maxOpenFiles: 5000 (LimitNOFILE=5000)"]
        );
        config.flags.vsock_port = 10240;
        assert!(overruled(&config)[2].contains("ListenStream=vsock::10240"));
        config.flags.flexvolume = true;
        assert!(overruled(&config)[3].contains("kubelet-flexvolume.socket"));
    }

    #[test]
    fn the_units_have_the_configurations_defaults() {
        let unit = include_str!("../../../../systemd/kubelet-syncd.service");
        assert!(unit.lines().any(|line| line == format!("OOMScoreAdjust={OOM_SCORE_ADJ}")));
        assert!(unit.lines().any(|line| line == format!("LimitNOFILE={MAX_OPEN_FILES}")));
    }
}
