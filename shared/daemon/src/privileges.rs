//! Making a process what its row of the privilege map says, before any thread exists.
//!
//! One function for every process and for whoever wants to see what is left to one: user checked, no core files, no
//! dumps, capabilities, no_new_privs, fence, filter, in the order in which each step still can be done.

use bulkhead_config::NodeConfig;
use bulkhead_privileges::{Fencing, Row, RunsPrograms, User};
pub use bulkhead_privileges::{METADATA_ADDRESSES, Program, XTABLES_LOCK};
pub use bulkhead_sys::Capability;
use bulkhead_sys::fence::FenceReport;
use bulkhead_sys::{process, seccomp};
use rustix::process::geteuid;

/// What is in force now, for `Process.Privileges` and the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// Landlock rules in words; empty where there is no fence.
    pub landlock: Vec<String>,
    /// Rules whose folder is not there, and what this kernel's Landlock cannot do.
    pub landlock_left_out: Vec<String>,
    /// Folders that the fence should name and that were not there.
    pub missing_folders: Vec<std::path::PathBuf>,
    /// Names of the groups of calls that the filter denies.
    pub denied: Vec<String>,
    /// Families for which sockets can be made.
    pub families: Vec<String>,
    /// What could not be had: the work goes on, an operator is told.
    pub warnings: Vec<String>,
}

/// Drops the calling process to the whole row. Call before a second thread exists: only this one and those it starts later
/// are bound. `config` is needed for daemons.
///
/// # Errors
/// Running as root where the table says otherwise or the other way round, or a kernel that refuses to drop.
pub fn apply(program: Program, config: Option<&NodeConfig>) -> std::io::Result<Applied> {
    let row = program.row();
    match (row.user, geteuid().is_root()) {
        (User::Root, true) | (User::Own(_) | User::Helper, false) => {}
        (User::Root, false) => return Err(std::io::Error::other("must run as root")),
        (User::Own(_) | User::Helper, true) => {
            return Err(std::io::Error::other("must not run as root: start it through `kubelet` or its unit"));
        }
    }
    hide_memory()?;
    let mut applied = Applied::default();
    applied.warnings.extend(keep_descriptors());
    let keep = match row.ambient() {
        _ if row.programs_give_root_up() => process::keep_for_roots_programs,
        [] => process::keep_only,
        _ => process::keep_and_pass_on,
    };
    for missing in keep(row.capabilities).map_err(std::io::Error::other)? {
        applied.warnings.push(format!("{missing} is not to be had on this machine"));
    }
    process::set_no_new_privs().map_err(std::io::Error::other)?;
    // Helpers that are for running programs are gone in moments: their units deny what this takes.
    if row.runs_programs != RunsPrograms::Always {
        map_pages_singly();
    }
    restrict(row, config, &mut applied)?;
    Ok(applied)
}

/// The part of [`apply`] that takes no user and no capability: fence and filter of the calling thread and all it starts.
///
/// # Errors
/// As [`apply`].
pub fn restrict(row: &Row, config: Option<&NodeConfig>, applied: &mut Applied) -> std::io::Result<()> {
    fence(row, config, applied)?;
    let (denied, families) = (row.denied(config), row.families(config));
    seccomp::restrict(&denied, Some(&families)).map_err(std::io::Error::other)?;
    applied.denied = denied.iter().map(ToString::to_string).collect();
    applied.families = families.iter().map(ToString::to_string).collect();
    Ok(())
}

/// No dump, no tracer of the same user, no core file: memory here holds credentials.
///
/// # Errors
/// The kernel refuses.
pub fn hide_memory() -> std::io::Result<()> {
    process::set_not_dumpable().map_err(std::io::Error::other)?;
    process::forbid_core_dumps().map_err(std::io::Error::other)
}

/// Before the filter, which denies what it takes (decision 90). A kernel before Linux 6.7 goes on to map pages with their neighbours:
/// that costs memory, and nobody has to know.
fn map_pages_singly() {
    let _ = bulkhead_sys::program::map_pages_singly();
}

/// Nothing that is open here goes to a program that is started from here; answers what could not be had.
fn keep_descriptors() -> Option<String> {
    process::close_all_on_exec().err().map(|error| format!("descriptors may be kept over exec: {error}"))
}

/// The launcher's own filter and memory, while it still holds what loading one without no_new_privs takes. Its capabilities
/// it gives up later. Answers what could not be had.
///
/// # Errors
/// The kernel refuses to hide memory.
pub fn apply_to_launcher(config: &NodeConfig) -> std::io::Result<Vec<String>> {
    let row = Program::Launcher.row();
    hide_memory()?;
    let mut warnings: Vec<String> = keep_descriptors().into_iter().collect();
    map_pages_singly();
    let loaded = seccomp::restrict_with_privilege(&row.denied(Some(config)), Some(&row.families(Some(config))));
    if let Err(error) = loaded {
        // A machine that withholds CAP_SYS_ADMIN runs no volnetd that mounts either; that is told when it starts.
        warnings.push(format!("the launcher has no filter of its own: {}", bulkhead_types::chain(&error)));
    }
    Ok(warnings)
}

fn fence(row: &Row, config: Option<&NodeConfig>, applied: &mut Applied) -> std::io::Result<()> {
    let fence = match row.fencing(config) {
        Fencing::Fence { fence } => fence,
        Fencing::None(why) => {
            applied.landlock_left_out.push(format!("no fence: {why}"));
            return Ok(());
        }
    };
    let FenceReport { rules, missing, unavailable, .. } = fence.enforce().map_err(std::io::Error::other)?;
    applied.landlock = rules;
    applied.landlock_left_out = missing.iter().map(|path| format!("not there: {}", path.display())).collect();
    applied.landlock_left_out.extend(unavailable);
    applied.missing_folders = missing;
    Ok(())
}
