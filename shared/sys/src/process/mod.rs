//! Privileges of this process: reading them as the kernel shows them, and giving them up.
//!
//! Capabilities, filters and securebits belong to a thread; a new thread inherits from the one that makes it. So all
//! of this is called before the runtime starts its threads.

pub mod report;

use std::io;

use caps::{CapSet, Capability, CapsHashSet};
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};
use rustix::thread::CapabilitiesSecureBits as SecureBits;

pub use report::PrivilegeReport;

/// Why privileges could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    #[error("failed to {doing} the {set:?} capability set")]
    Capabilities { doing: &'static str, set: CapSet, source: caps::errors::CapsError },
    #[error("{0}")]
    Prctl(&'static str, #[source] io::Error),
    #[error("failed to read /proc/self/{0}")]
    Proc(&'static str, #[source] io::Error),
}

/// No core dump, no ptrace, no /proc/<pid>/{mem,fd,environ} for processes of the same uid: a pod may run with it.
pub fn set_not_dumpable() -> Result<(), PrivilegeError> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|e| PrivilegeError::Prctl("setting PR_SET_DUMPABLE to 0", e.into()))
}

/// No core file: memory here holds credentials. Inherited. A machine whose pattern names a program is not held by a limit of 0
/// (core(5)); who is not dumpable is safe from that one too.
pub fn forbid_core_dumps() -> Result<(), PrivilegeError> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none)
        .map_err(|e| PrivilegeError::Prctl("setting RLIMIT_CORE to 0", e.into()))
}

/// Marks every descriptor above standard error close-on-exec, those too that whoever started us left open.
///
/// # Errors
/// A kernel before 5.11.
pub fn close_all_on_exec() -> io::Result<()> {
    // SAFETY: marks descriptors and closes none, so nothing that owns one is affected.
    let marked = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if marked < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Securebits of a process that is not root: being or becoming uid 0 gives nothing, and no ambient capability is raised.
pub fn locked_securebits() -> SecureBits {
    locked_securebits_of_root() | SecureBits::NO_ROOT | SecureBits::NO_ROOT_LOCKED
}

/// Those of a root process, whose next exec has to take its capabilities from the bounding set.
pub fn locked_securebits_of_root() -> SecureBits {
    SecureBits::NO_SETUID_FIXUP
        | SecureBits::NO_SETUID_FIXUP_LOCKED
        | SecureBits::KEEP_CAPS_LOCKED
        | SecureBits::NO_CAP_AMBIENT_RAISE
        | SecureBits::NO_CAP_AMBIENT_RAISE_LOCKED
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
    reduce(wanted, false, true)
}

/// As [`keep_only`], for a process whose programs need them as well: what of them is ambient stays so, and inheritable.
pub fn keep_and_pass_on(wanted: &[Capability]) -> Result<Vec<Capability>, PrivilegeError> {
    reduce(wanted, true, true)
}

/// [`keep_only`] for a process of root's whose programs are root's as anywhere: they get these capabilities by their exec, and one that
/// gives root up by a change of its user loses them, because no securebits are locked.
///
/// # Errors
/// As [`keep_only`].
pub fn keep_for_roots_programs(wanted: &[Capability]) -> Result<Vec<Capability>, PrivilegeError> {
    reduce(wanted, false, false)
}

fn reduce(wanted: &[Capability], pass_on: bool, lock: bool) -> Result<Vec<Capability>, PrivilegeError> {
    let set_error = |doing, set| move |source| PrivilegeError::Capabilities { doing, set, source };
    let permitted = caps::read(None, CapSet::Permitted).map_err(set_error("read", CapSet::Permitted))?;
    let keep: CapsHashSet = wanted.iter().copied().filter(|cap| permitted.contains(cap)).collect();
    let missing = wanted.iter().copied().filter(|cap| !permitted.contains(cap)).collect();

    // The bounding set and the securebits go first: they need SETPCAP, which is lost below. Without it they are the
    // supervisor's to set.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP).unwrap_or(false) {
        // Already locked otherwise is no error: `kubelet-ctl privileges` shows what they are.
        if lock {
            let _ = rustix::thread::set_capabilities_secure_bits(locked_securebits());
        }
        let bounding = caps::read(None, CapSet::Bounding).map_err(set_error("read", CapSet::Bounding))?;
        for cap in bounding.difference(&keep) {
            caps::drop(None, CapSet::Bounding, *cap).map_err(set_error("reduce", CapSet::Bounding))?;
        }
    }
    // An ambient capability that stays would only matter at exec, which no daemon does. Ambient must go before
    // inheritable; kernels without ambient sets (none that we support) would answer EINVAL.
    let passed_on = if pass_on { keep.clone() } else { CapsHashSet::new() };
    if pass_on {
        for cap in caps::read(None, CapSet::Ambient).map_err(set_error("read", CapSet::Ambient))?.difference(&keep) {
            caps::drop(None, CapSet::Ambient, *cap).map_err(set_error("reduce", CapSet::Ambient))?;
        }
    } else {
        caps::clear(None, CapSet::Ambient).map_err(set_error("clear", CapSet::Ambient))?;
    }
    // A unit's filter may refuse capset to a process that has nothing to give up: then nothing is asked for.
    for (set, keep) in [(CapSet::Effective, &keep), (CapSet::Permitted, &keep), (CapSet::Inheritable, &passed_on)] {
        if caps::read(None, set).map_err(set_error("read", set))? != *keep {
            caps::set(None, set, keep).map_err(set_error("reduce", set))?;
        }
    }
    Ok(missing)
}

/// Capabilities that are permitted to this thread now.
pub fn permitted() -> Result<Vec<Capability>, PrivilegeError> {
    let set = caps::read(None, CapSet::Permitted).map_err(|source| PrivilegeError::Capabilities {
        doing: "read",
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
    let have = caps::read(None, CapSet::Permitted).map_err(set_error("read", CapSet::Permitted))?;
    let effective: CapsHashSet = effective.iter().copied().filter(|cap| have.contains(cap)).collect();
    let mut permitted = effective.clone();
    permitted.extend(kept.iter().copied().filter(|cap| have.contains(cap)));
    caps::clear(None, CapSet::Ambient).map_err(set_error("clear", CapSet::Ambient))?;
    caps::set(None, CapSet::Effective, &effective).map_err(set_error("reduce", CapSet::Effective))?;
    caps::set(None, CapSet::Permitted, &permitted).map_err(set_error("reduce", CapSet::Permitted))?;
    caps::clear(None, CapSet::Inheritable).map_err(set_error("clear", CapSet::Inheritable))
}

/// "SYS_ADMIN", without the prefix.
pub fn short_name(cap: Capability) -> String {
    cap.to_string().trim_start_matches("CAP_").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(report.securebits, Some(0xef), "{report:?}");
            assert_eq!(keep_only(&[Capability::CAP_SYS_ADMIN]).unwrap(), [Capability::CAP_SYS_ADMIN]);
            assert!(permitted().unwrap().is_empty());
        })
        .join()
        .unwrap();
    }
}
