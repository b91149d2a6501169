//! The lock of the legacy variant of iptables, which is a file of root's: kubelet-iptables is not root, and opens it as a member
//! of the file's group.

use std::fs::File;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Its group may open it.
const SHARED: u32 = 0o040;

/// Makes the file where it is not there, as its first user would, and lets this group open it. What fails is told: the nf_tables
/// variant needs no lock.
pub fn share(path: &Path, gid: u32) {
    if let Err(error) = try_share(path, gid) {
        tracing::warn!(%error, path = %path.display(), "kubelet-iptables may not take the lock of the legacy variant of iptables");
    }
}

fn try_share(path: &Path, gid: u32) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
    let is = file.metadata()?;
    if !is.is_file() || is.uid() != 0 {
        return Err(std::io::Error::other("it is no file of root's"));
    }
    if is.gid() == gid && is.mode() & SHARED != 0 {
        return Ok(());
    }
    if is.gid() != gid {
        fchown(&file, None, Some(gid))?;
    }
    file.set_permissions(std::fs::Permissions::from_mode(is.mode() & 0o7777 | SHARED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_may_open_it_and_what_else_it_is_stays() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("xtables.lock");
        let seen = || std::fs::metadata(&path).map(|is| (is.uid(), is.gid(), is.mode() & 0o7777)).unwrap();
        share(&path, 61194);
        assert_eq!(seen(), (0, 61194, 0o640));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o604)).unwrap();
        share(&path, 61195);
        assert_eq!(seen(), (0, 61195, 0o644));
        std::os::unix::fs::chown(&path, Some(61196), None).unwrap();
        assert!(try_share(&path, 61197).is_err());
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(try_share(&path, 61197).is_err(), "no link is followed");
    }
}
