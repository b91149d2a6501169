//! kubelet-flexvolume: calls FlexVolume drivers for kubelet-volnetd, where `--flexvolume` asks for it. It runs only while something is
//! asked.

use std::path::Path;

use bulkhead_config::NodeConfig;
use bulkhead_daemon::Passed;
use bulkhead_daemon::privileges::Program;
use bulkhead_sys::Capability;
use bulkhead_sys::spawn::User;

use super::helper::Helper;

/// Drivers are root's programs.
const ROOT: User = User { uid: 0, gid: 0, groups: Vec::new() };

/// `None` where nobody asks for it, or its program is missing: such volumes cannot be had then.
pub fn prepare(config: &NodeConfig, programs: &Path, granted: &[Capability]) -> Option<Helper> {
    if !config.flags.flexvolume {
        return None;
    }
    match Helper::prepare(Program::Flexvolume, Passed::Questions, ROOT, programs, granted) {
        Ok(helper) => Some(helper.with_configuration(config).on_demand()),
        Err(error) => {
            tracing::warn!("FlexVolume drivers cannot be called: {}", bulkhead_types::chain(&error));
            None
        }
    }
}
