//! Mounting a file system by its parameters, one by one (fsopen(2), fsconfig(2), fsmount(2)), with what the kernel says about them.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::mount::place;

/// One parameter of a file system: a flag, or a name with its value.
pub type Parameter = (String, Option<String>);

/// Lines that the kernel keeps for a context, and the bytes of each that are read.
const LINES: usize = 16;
const LINE_BYTES: usize = 512;

/// Why nothing was mounted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{step}: {errno}{}{said}", if said.is_empty() { "" } else { ": " })]
pub struct ContextError {
    pub step: String,
    pub errno: Errno,
    /// What the kernel had to say, without its last newline; often empty.
    pub said: String,
}

/// Mounts on an open directory. Blocks for as long as the file system takes to come up, which may be long with one that lies on
/// another machine.
///
/// # Errors
/// The first step that failed; nothing is mounted then. ENODEV of the first: the kernel has no such file system.
pub fn mount(
    target: BorrowedFd<'_>,
    fs_type: &str,
    parameters: &[Parameter],
    attributes: MountAttrFlags,
) -> Result<(), ContextError> {
    let bare = |step: String| move |errno| ContextError { step, errno, said: String::new() };
    let context = rustix::mount::fsopen(fs_type, FsOpenFlags::FSOPEN_CLOEXEC)
        .map_err(bare(format!("opening the file system type {fs_type}")))?;
    let failed = |step: String| {
        let context = &context;
        move |errno| ContextError { step, errno, said: said(context) }
    };
    for (name, value) in parameters {
        let set = match value {
            Some(value) => rustix::mount::fsconfig_set_string(context.as_fd(), name.as_str(), value.as_str()),
            None => rustix::mount::fsconfig_set_flag(context.as_fd(), name.as_str()),
        };
        set.map_err(failed(format!("setting {name}")))?;
    }
    rustix::mount::fsconfig_create(context.as_fd()).map_err(failed("creating the file system".to_owned()))?;
    let mount = rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .map_err(failed("creating the mount".to_owned()))?;
    place(&mount, target).map_err(bare("attaching the mount".to_owned()))
}

/// The kernel's own words: each line begins with a letter for how bad it is.
fn said(context: &OwnedFd) -> String {
    let mut lines = Vec::new();
    let mut buffer = [0; LINE_BYTES];
    while lines.len() < LINES
        && let Ok(read) = rustix::io::read(context, &mut buffer)
        && read > 0
    {
        let line = String::from_utf8_lossy(&buffer[..read]);
        let line = line.trim_end();
        let line = line.strip_prefix("e ").or_else(|| line.strip_prefix("w ")).unwrap_or(line);
        lines.push(line.to_owned());
    }
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::{base_dir, create_dirs_beneath};

    #[test]
    fn a_mount_by_parameters_and_what_the_kernel_says_of_a_bad_one() {
        if rustix::process::getuid().as_raw() != 0 {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let base = base_dir(dir.path()).unwrap();
        let target = create_dirs_beneath(base.as_fd(), "vol", 0o750).unwrap();
        let text = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
        let bad = mount(target.as_fd(), "tmpfs", &[text("bogus", "1")], MountAttrFlags::empty()).unwrap_err();
        assert_eq!((bad.errno, bad.step.as_str()), (Errno::INVAL, "setting bogus"));
        assert!(bad.said.contains("bogus"), "{bad}");
        let none = mount(target.as_fd(), "no-such-fs", &[], MountAttrFlags::empty()).unwrap_err();
        assert_eq!(none.errno, Errno::NODEV);
        let good = [text("size", "1048576"), ("ro".to_owned(), None)];
        mount(target.as_fd(), "tmpfs", &good, MountAttrFlags::MOUNT_ATTR_NOSUID).unwrap();
        let error = std::fs::write(dir.path().join("vol/f"), "x").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        drop(target);
        crate::mount::unmount(base.as_fd(), "vol").unwrap();
    }
}
