//! The process table's privileges, as the launcher gives them, and what it keeps itself.

use bulkhead_sys::Capability;
use bulkhead_types::Process;

/// Capabilities of a daemon. The daemon checks and tightens again by itself.
pub fn of(process: Process) -> &'static [Capability] {
    match process {
        Process::Volnetd => &[
            Capability::CAP_SYS_ADMIN,
            Capability::CAP_CHOWN,
            Capability::CAP_FOWNER,
            Capability::CAP_FSETID,
            Capability::CAP_DAC_OVERRIDE,
            Capability::CAP_KILL,
            Capability::CAP_NET_ADMIN,
            Capability::CAP_SYSLOG,
            Capability::CAP_SYS_RESOURCE,
        ],
        Process::Evictiond => &[Capability::CAP_DAC_READ_SEARCH],
        Process::Syncd | Process::Statusd => &[],
    }
}

/// What the launcher uses after its start: it changes users and bounding sets of new children, and ends old ones.
pub const EFFECTIVE: &[Capability] =
    &[Capability::CAP_SETUID, Capability::CAP_SETGID, Capability::CAP_SETPCAP, Capability::CAP_KILL];

/// Held but not in force: a child can only be given what its parent is permitted.
pub const PASSED_ON: &[Capability] = &[Capability::CAP_DAC_READ_SEARCH];

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
