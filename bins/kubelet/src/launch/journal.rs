//! kubelet-journal, the reader of the journal: a process of its own, where `enableSystemLogQuery` is on. It has a user and a
//! group that read the journal and nothing else.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use bulkhead_config::NodeConfig;
use bulkhead_daemon::Passed;
use bulkhead_daemon::privileges::Program;

use super::helper::Helper;
use super::users;

/// Where journald keeps it, over a restart of the machine and not.
const FOLDERS: [&str; 2] = ["/var/log/journal", "/run/log/journal"];

/// `None` where the configuration does not ask for it, or the machine has not what it takes; then the log query finds files
/// alone.
pub fn prepare(config: &NodeConfig, programs: &Path) -> Option<Helper> {
    let kubelet = &config.kubelet;
    if !kubelet.answers_log_queries() {
        return None;
    }
    let without = |why: String| {
        tracing::warn!("the log query finds files alone, not the journal: {why}");
        None
    };
    let Some(mut user) = users::helper(config.users, Program::Journal, &users::passwd()) else {
        return without("there is no user kubelet-journal".to_owned());
    };
    let group = |folder: &str| std::fs::metadata(folder).ok().map(|folder| folder.gid());
    user.groups = FOLDERS.into_iter().filter_map(group).filter(|gid| *gid != 0).collect();
    user.groups.dedup();
    match Helper::prepare(Program::Journal, Passed::Questions, user, programs, &[]) {
        Ok(helper) => Some(helper),
        Err(error) => without(bulkhead_types::chain(&error)),
    }
}
