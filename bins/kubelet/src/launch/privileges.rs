//! The privilege map as the launcher uses it: what it gives, and what it keeps itself.

use bulkhead_daemon::privileges::Program;
use bulkhead_sys::Capability;
use bulkhead_types::Process;

/// Capabilities of a daemon. The daemon checks and tightens again by itself.
pub fn of(process: Process) -> &'static [Capability] {
    Program::Daemon(process).row().capabilities
}

/// Gives up what the launcher does not use after its start (decision 3).
///
/// # Errors
/// The kernel refuses to drop.
pub fn keep_own() -> Result<(), bulkhead_sys::process::PrivilegeError> {
    let row = Program::Launcher.row();
    bulkhead_sys::process::hold(row.capabilities, row.passed_on)
}

/// `wanted` without what this machine withholds; what is missing is named once by the caller.
pub fn available(wanted: &[Capability], have: &[Capability]) -> (Vec<Capability>, Vec<Capability>) {
    wanted.iter().copied().partition(|cap| have.contains(cap))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_withheld_is_named() {
        let have = [Capability::CAP_CHOWN];
        let (given, missing) = available(&[Capability::CAP_CHOWN, Capability::CAP_SYS_RESOURCE], &have);
        assert_eq!((given, missing), (vec![Capability::CAP_CHOWN], vec![Capability::CAP_SYS_RESOURCE]));
    }
}
