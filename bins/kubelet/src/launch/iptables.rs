//! kubelet-iptables: keeps chains of iptables for kubelet-volnetd, unless `makeIPTablesUtilChains` is off. It runs only while
//! something is asked.

use std::path::Path;

use bulkhead_config::NodeConfig;
use bulkhead_daemon::Passed;
use bulkhead_daemon::privileges::{Program, XTABLES_LOCK};
use bulkhead_sys::Capability;

use super::helper::Helper;
use super::users;
use crate::xtables_lock;

/// `None` where the configuration does not want it, or the machine has not what it takes.
pub fn prepare(config: &NodeConfig, programs: &Path, granted: &[Capability]) -> Option<Helper> {
    if !config.kubelet.make_iptables_util_chains() {
        return None;
    }
    let without = |why: String| {
        tracing::warn!("chains of iptables are not kept: {why}");
        None
    };
    let Some(user) = users::helper(config.users, Program::Iptables, &users::passwd()) else {
        return without("there is no user kubelet-iptables".to_owned());
    };
    xtables_lock::share(Path::new(XTABLES_LOCK), user.gid);
    match Helper::prepare(Program::Iptables, Passed::Questions, user, programs, granted) {
        Ok(helper) => Some(helper.on_demand()),
        Err(error) => without(bulkhead_types::chain(&error)),
    }
}
