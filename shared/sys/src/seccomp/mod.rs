//! System call filters: a list of what is denied (EPERM), everything else allowed.
//!
//! A deny list, because the daemons are built on a large runtime whose calls differ from version to version; what
//! matters is that the calls which would widen a hole are gone. Filters bind the calling thread and those it starts
//! later. The 32-bit ABI is killed by the architecture check and x32 by the bit in its numbers, because both reach calls
//! past a list of the 64-bit numbers. clone3 hides its flags in memory, where a filter cannot look: with namespaces denied
//! it answers ENOSYS, and the C library takes clone.
//!
//! Speed: the kernel (5.11 and later) keeps a bitmap of calls that a filter allows whatever their arguments are, and runs
//! no filter for them. Only socket, socketpair, clone, ioctl and personality are looked at, and of whoever does no more than look
//! (`Deny::Files`) open and openat.

mod groups;

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, sock_filter,
};

use groups::When;
pub use groups::{Deny, Family};

/// Why a filter could not be built or loaded.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    #[error("no system call filter for the architecture {0}")]
    Architecture(&'static str),
    #[error("failed to build the system call filter")]
    Build(#[from] seccompiler::BackendError),
    #[error("failed to load the system call filter")]
    Load(#[from] seccompiler::Error),
    #[error("failed to load the system call filter without no_new_privs, which takes CAP_SYS_ADMIN")]
    Privileged(#[source] io::Error),
}

/// Loads the filter for this thread and all it starts. `families`: None leaves `socket` alone. Sets no_new_privs.
///
/// # Errors
/// The kernel takes no filter.
pub fn restrict(deny: &[Deny], families: Option<&[Family]>) -> Result<(), SeccompError> {
    Ok(seccompiler::apply_filter(&program(deny, families)?)?)
}

/// Loads the filter and leaves no_new_privs alone: for a process that still starts others with more than it holds itself.
///
/// # Errors
/// No CAP_SYS_ADMIN in force, or the kernel takes no filter.
pub fn restrict_with_privilege(deny: &[Deny], families: Option<&[Family]>) -> Result<(), SeccompError> {
    let program = program(deny, families)?;
    // `sock_filter` has the kernel's layout (it is `#[repr(C)]`); a program has some hundred instructions.
    let length =
        u16::try_from(program.len()).map_err(|_| SeccompError::Privileged(io::ErrorKind::InvalidInput.into()))?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: the kernel copies `len` instructions from `filter`, which outlives the call, and writes nothing.
    let loaded = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    if loaded == 0 { Ok(()) } else { Err(SeccompError::Privileged(io::Error::last_os_error())) }
}

/// The filter's instructions.
fn program(deny: &[Deny], families: Option<&[Family]>) -> Result<BpfProgram, SeccompError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for (call, when) in deny.iter().flat_map(|group| group.rules()) {
        // Two groups may look at the same call's arguments.
        rules.entry(call).or_default().extend(conditions(when)?);
    }
    if let Some(families) = families {
        let values: Vec<u64> = families.iter().map(|family| family.raw()).collect();
        for call in [libc::SYS_socket, libc::SYS_socketpair] {
            let mut denied = if values.is_empty() { Vec::new() } else { vec![none_of(0, &values)?] };
            for conditions in families.iter().flat_map(|family| family.but_for()) {
                denied.push(all_of(&conditions)?);
            }
            rules.insert(call, denied);
        }
    }
    let arch =
        TargetArch::try_from(std::env::consts::ARCH).map_err(|_| SeccompError::Architecture(std::env::consts::ARCH))?;
    let denied = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let list: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, denied, arch)?.try_into()?;
    let mut program = preamble(deny.contains(&Deny::Namespaces));
    program.extend(list);
    Ok(program)
}

/// The rules of one call; none means that it is always denied.
fn conditions(when: When) -> Result<Vec<SeccompRule>, SeccompError> {
    let one = |argument, op, value| -> Result<SeccompRule, SeccompError> {
        Ok(SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value)?])?)
    };
    match when {
        When::Always => Ok(Vec::new()),
        When::AnyBit { argument, bits } => {
            bits.iter().map(|bit| one(argument, SeccompCmpOp::MaskedEq(*bit), *bit)).collect()
        }
        When::NoBit { argument, bit } => Ok(vec![one(argument, SeccompCmpOp::MaskedEq(bit), 0)?]),
        When::OneOf { argument, values } => {
            values.iter().map(|value| one(argument, SeccompCmpOp::Eq, *value)).collect()
        }
        When::NoneOf { argument, values } => Ok(vec![none_of(argument, values)?]),
    }
}

/// Denied when each argument is, under its mask, this value, or without a mask another one.
fn all_of(conditions: &[(u8, Option<u64>, u64)]) -> Result<SeccompRule, SeccompError> {
    let conditions = conditions.iter().map(|(argument, mask, value)| {
        let op = mask.map_or(SeccompCmpOp::Ne, SeccompCmpOp::MaskedEq);
        SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, op, *value)
    });
    Ok(SeccompRule::new(conditions.collect::<Result<Vec<_>, _>>()?)?)
}

/// Denied when the argument differs from each value: conditions of one rule are joined by "and".
fn none_of(argument: u8, values: &[u64]) -> Result<SeccompRule, SeccompError> {
    let conditions = values
        .iter()
        .map(|value| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, *value))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(SeccompRule::new(conditions)?)
}

/// What comes before the list: x32 is killed, clone3 unknown. Falls through into the list, which checks the architecture
/// first; these numbers are only looked at for our own.
fn preamble(no_clone3: bool) -> BpfProgram {
    // Offsets of `struct seccomp_data` (linux/seccomp.h), codes of linux/bpf_common.h, AUDIT_ARCH_* of linux/audit.h.
    const NUMBER: u32 = 0;
    const ARCHITECTURE: u32 = 4;
    const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const IF_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    const KILL_PROCESS: u32 = 0x8000_0000;
    const ERRNO: u32 = 0x0005_0000;
    const OURS: u32 = if cfg!(target_arch = "x86_64") { 0xC000_003E } else { 0xC000_00B7 };
    const X32: u32 = 0x4000_0000;
    /// Which a tracer sets to skip a call; it is no call.
    const SKIPPED: u32 = u32::MAX;
    let step = |code, k, jt, jf| sock_filter { code, jt, jf, k };
    let mut body = vec![step(LOAD, NUMBER, 0, 0)];
    if cfg!(target_arch = "x86_64") {
        body.push(step(IF_EQUAL, SKIPPED, 2, 0));
        body.push(step(IF_AT_LEAST, X32, 0, 1));
        body.push(step(RETURN, KILL_PROCESS, 0, 0));
    }
    if no_clone3 {
        let clone3 = u32::try_from(libc::SYS_clone3).unwrap_or(SKIPPED);
        body.push(step(IF_EQUAL, clone3, 0, 1));
        body.push(step(RETURN, ERRNO | libc::ENOSYS.cast_unsigned(), 0, 0));
    }
    let past = u8::try_from(body.len()).unwrap_or(u8::MAX);
    let mut all = vec![step(LOAD, ARCHITECTURE, 0, 0), step(IF_EQUAL, OURS, 0, past)];
    all.append(&mut body);
    all
}

#[cfg(test)]
mod tests;
