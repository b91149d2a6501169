//! kubelet-disks: prepares block devices for kubelet-volnetd. It runs only while something is asked.

use std::path::Path;

use bulkhead_daemon::Passed;
use bulkhead_daemon::privileges::Program;
use bulkhead_sys::Capability;
use bulkhead_sys::spawn::User;

use super::helper::Helper;

/// Block devices are root's, and no group of theirs is the same everywhere.
const ROOT: User = User { uid: 0, gid: 0, groups: Vec::new() };

/// `None` where its program is missing: volumes on block devices cannot be had then.
pub fn prepare(programs: &Path, granted: &[Capability]) -> Option<Helper> {
    match Helper::prepare(Program::Disks, Passed::Questions, ROOT, programs, granted) {
        Ok(helper) => Some(helper.on_demand()),
        Err(error) => {
            tracing::warn!("block devices cannot be prepared: {}", bulkhead_types::chain(&error));
            None
        }
    }
}
