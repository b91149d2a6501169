//! kubelet-walker: enters pods' folders and file systems for kubelet-evictiond.

use std::path::Path;

use bulkhead_config::NodeConfig;
use bulkhead_daemon::Passed;
use bulkhead_daemon::privileges::Program;
use bulkhead_sys::Capability;
use bulkhead_sys::spawn::User;

use super::helper::Helper;
use super::users;

/// `None` where the machine has not what it takes; then nothing is known of disks.
pub fn prepare(config: &NodeConfig, programs: &Path, granted: &[Capability]) -> Option<Helper> {
    let without = |why: String| {
        tracing::warn!("usage of disks, volumes and logs is not measured: {why}");
        None
    };
    let Some(user) = users::helper(config.users, Program::Walker, &users::passwd()) else {
        return without("there is no user kubelet-walker".to_owned());
    };
    // Where the machine withholds its capability it measures what everybody may look at, and reads its configuration as the daemons do.
    let may_search = granted.contains(&Capability::CAP_DAC_READ_SEARCH);
    let user = if may_search { user } else { User { gid: config.users.gid, ..user } };
    match Helper::prepare(Program::Walker, Passed::Requests, user, programs, granted) {
        Ok(helper) => Some(helper.with_configuration(config)),
        Err(error) => without(bulkhead_types::chain(&error)),
    }
}
