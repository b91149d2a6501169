//! Whether a process holds what its row of the privilege map says and nothing else, by what the kernel shows of it.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use bulkhead_config::NodeConfig;
use bulkhead_privileges::{Bounding, Program, User};
use bulkhead_sys::Capability;
use bulkhead_testkit::processes::status_line;
use bulkhead_testkit::{LONG, Node, eventually};

use crate::journald::helper_of;

/// Where the launcher takes users from; what it says is another test's question.
const USERS: std::ops::Range<u32> = 60_706..61_184;
/// Of the line `Seccomp`: a filter.
const FILTER: &str = "2";

/// Numbers of the capabilities in a set (`CapEff`) of a process.
///
/// # Errors
/// The process is gone.
pub fn capabilities(pid: i32, set: &str) -> Result<BTreeSet<u8>> {
    let mask = u64::from_str_radix(&status_line(pid, set)?, 16)?;
    Ok((0..64).filter(|bit| mask >> bit & 1 == 1).collect())
}

/// Those of the map that this machine gives at all.
///
/// # Errors
/// /proc is not there.
pub fn to_be_had(of_map: &[Capability]) -> Result<BTreeSet<u8>> {
    let machine = capabilities(std::process::id().cast_signed(), "CapPrm")?;
    Ok(of_map.iter().map(Capability::index).filter(|one| machine.contains(one)).collect())
}

/// The user of a process, which it cannot change.
///
/// # Errors
/// The process is gone, or has several.
pub fn user(pid: i32) -> Result<u32> {
    let line = status_line(pid, "Uid")?;
    let all: BTreeSet<&str> = line.split_ascii_whitespace().collect();
    ensure!(all.len() == 1, "process {pid} has users: {line}");
    Ok(all.first().context("no user")?.parse()?)
}

/// The rendered configuration of a node.
///
/// # Errors
/// It cannot be read.
pub fn config(node: &Node) -> Result<NodeConfig> {
    NodeConfig::load(&node.run_dir().join("config.json")).context("reading the rendered configuration")
}

/// User, group of the daemons, all five sets of capabilities, no_new_privs and filter of one process.
///
/// # Errors
/// What is not as in the row.
pub fn is_as_mapped(config: &NodeConfig, program: Program, pid: i32) -> Result<()> {
    let (name, row) = (program.name(), program.row());
    let (uid, users) = (user(pid)?, config.users);
    match row.user {
        User::Root => ensure!(uid == 0, "{name} runs as {uid}"),
        User::Own(daemon) => ensure!(uid == users.uid(daemon), "{name} runs as {uid}"),
        User::Helper => {
            ensure!(![users.syncd, users.evictiond, users.statusd].contains(&uid), "{name} runs as a daemon's {uid}");
        }
    }
    ensure!(row.user == User::Root || USERS.contains(&uid), "{name} runs as {uid}");
    let groups = status_line(pid, "Groups")?;
    let is_member = groups.split_ascii_whitespace().any(|group| group == users.gid.to_string());
    ensure!(is_member == row.in_daemons_group, "{name} is in groups {groups}");
    let bounding = match row.bounding {
        Bounding::Row => to_be_had(row.capabilities)?,
        Bounding::Untouched => capabilities(std::process::id().cast_signed(), "CapBnd")?,
    };
    for (set, wanted) in [
        ("CapEff", to_be_had(row.capabilities)?),
        ("CapPrm", to_be_had(&row.permitted())?),
        ("CapInh", to_be_had(row.ambient())?),
        ("CapAmb", to_be_had(row.ambient())?),
        ("CapBnd", bounding),
    ] {
        let found = capabilities(pid, set)?;
        ensure!(found == wanted, "{set} of {name} has {found:?}, the map {wanted:?}");
    }
    let gains_nothing = status_line(pid, "NoNewPrivs")? == "1";
    ensure!(gains_nothing == row.no_new_privs, "{name} has no_new_privs: {gains_nothing}");
    let mode = status_line(pid, "Seccomp")?;
    ensure!(mode == FILTER, "{name} has seccomp mode {mode}");
    Ok(())
}

/// Waits until a helper runs, and is as mapped: it has its starter's privileges until it has applied its own.
///
/// # Errors
/// It does not run, or what is not as in its row.
pub fn helper_is_as_mapped(node: &Node, program: Program) -> Result<i32> {
    let (config, launcher) = (config(node)?, node.pids()["kubelet"]);
    eventually(&format!("{} runs and is as the map says", program.name()), LONG, || {
        let pid = helper_of(launcher, program.name())?;
        is_as_mapped(&config, program, pid)?;
        Ok(pid)
    })
}
