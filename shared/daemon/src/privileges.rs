//! What a daemon may hold, and making it so before any thread exists.

pub use bulkhead_sys::Capability;

/// The row of the process table that a daemon must end up with.
#[derive(Debug, Clone, Copy)]
pub struct Intended {
    /// Capabilities kept; everything else is dropped.
    pub capabilities: &'static [Capability],
    /// True for every process but volnetd.
    pub unprivileged_user: bool,
}

/// Drops to the row. Answers what could not be had: the work goes on, an operator is told.
///
/// # Errors
/// Running as root where the table says otherwise, or a kernel that refuses to drop.
pub(crate) fn apply(intended: &Intended) -> std::io::Result<Vec<String>> {
    let mut warnings = Vec::new();
    if intended.unprivileged_user && rustix::process::geteuid().is_root() {
        return Err(std::io::Error::other("must not run as root: start it through `kubelet` or its unit"));
    }
    if !intended.unprivileged_user && !rustix::process::geteuid().is_root() {
        return Err(std::io::Error::other("must run as root"));
    }
    for missing in bulkhead_sys::process::keep_only(intended.capabilities).map_err(std::io::Error::other)? {
        warnings.push(format!("{missing} is not to be had on this machine"));
    }
    bulkhead_sys::process::set_no_new_privs().map_err(std::io::Error::other)?;
    Ok(warnings)
}
