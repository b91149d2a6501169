//! A tree of /sys for iscsiadm to look at. Before it has iscsid end a session it reads the handle of the session's transport, which the
//! kernel shows to CAP_SYS_ADMIN alone (`drivers/scsi/scsi_transport_iscsi.c`, show_transport_handle), and then does nothing with it.
//! kubelet-disks has no such capability, so all of its tree is /sys, but for the handles, which are 1. iscsiadm takes the tree that
//! `SYSFS_PATH` names.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};

use crate::multipath::names;

/// The folder of iscsiadm's own lock, which it may write.
const PLACE: &str = "run/lock/iscsi";
/// Where iscsiadm's records are, if there is one.
const RECORDS: [&str; 2] = ["etc/iscsi", "var/lib/iscsi"];
const TRANSPORTS: &str = "iscsi_transport";
const HANDLE: &str = "handle";

/// The variable by which iscsiadm takes the tree.
pub const VARIABLE: &str = "SYSFS_PATH";

/// Makes the folder of iscsiadm's lock, which iscsiadm would make itself in a folder that it may not write. To be called before
/// the fence is put up, which has a rule for it.
///
/// # Errors
/// There is no folder for locks, it is not to be written, or somebody else was first there: on Debian anybody may write in it.
pub fn make_place(root: &Path) -> io::Result<()> {
    if !RECORDS.iter().any(|records| root.join(records).is_dir()) {
        return Ok(());
    }
    match folder(&root.join(PLACE)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => place(root).map(drop),
        made => made,
    }
}

/// The folder, if it is root's. Once it is, nobody else can put another one there.
fn place(root: &Path) -> io::Result<PathBuf> {
    let place = root.join(PLACE);
    if bulkhead_sys::open::is_own_folder(&place)? {
        return Ok(place);
    }
    let why = format!("/{PLACE} is not a folder of root's alone: whoever made it may not be trusted, remove it");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// A tree, which goes with this.
#[derive(Debug)]
pub struct Tree(PathBuf);

impl Tree {
    /// Makes it of what is below `root` now.
    ///
    /// # Errors
    /// The folder of locks is full, not to be written, or not root's.
    pub fn make(root: &Path) -> io::Result<Self> {
        let tree = Tree(place(root)?.join(format!("kubelet-disks-{}", std::process::id())));
        // One of an earlier process of this number.
        let _ = std::fs::remove_dir_all(&tree.0);
        let sys = root.join("sys");
        let class = tree.0.join("class");
        folder(&tree.0)?;
        folder(&class)?;
        link_all(&sys, &tree.0, "class")?;
        link_all(&sys.join("class"), &class, TRANSPORTS)?;
        folder(&class.join(TRANSPORTS))?;
        for transport in names(&sys.join("class").join(TRANSPORTS)) {
            let (from, to) =
                (sys.join("class").join(TRANSPORTS).join(&transport), class.join(TRANSPORTS).join(&transport));
            folder(&to)?;
            for name in names(&from).into_iter().filter(|name| from.join(name).is_file() && name != HANDLE) {
                // A link would be read as the name of what it leads to.
                if let Ok(value) = std::fs::read(from.join(&name)) {
                    std::fs::write(to.join(name), value)?;
                }
            }
            std::fs::write(to.join(HANDLE), "1\n")?;
        }
        Ok(tree)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn folder(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().mode(0o700).create(path)
}

fn link_all(from: &Path, to: &Path, but: &str) -> io::Result<()> {
    names(from).into_iter().filter(|name| name != but).try_for_each(|name| symlink(from.join(&name), to.join(&name)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn all_is_there_and_handles_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let transport = root.join("sys/class/iscsi_transport/tcp");
        for path in [
            "run/lock",
            "etc/iscsi",
            "sys/devices/platform/host2/session1",
            "sys/class/iscsi_session",
            "sys/class/iscsi_transport/tcp",
        ] {
            std::fs::create_dir_all(root.join(path)).unwrap();
        }
        symlink("../../devices/platform/host2/session1", root.join("sys/class/iscsi_session/session1")).unwrap();
        std::fs::write(transport.join("caps"), "0x39\n").unwrap();
        std::fs::write(transport.join(HANDLE), "4096\n").unwrap();
        assert!(Tree::make(root).is_err(), "there is no folder of locks");
        make_place(root).unwrap();
        make_place(root).unwrap();
        let tree = Tree::make(root).unwrap();
        let at = tree.path().to_owned();
        let read = |name: &str| std::fs::read_to_string(at.join("class/iscsi_transport/tcp").join(name)).unwrap();
        assert_eq!((read("caps").as_str(), read(HANDLE).as_str()), ("0x39\n", "1\n"));
        let link = std::fs::read_link(at.join("class/iscsi_session/session1")).unwrap();
        assert!(at.join("class/iscsi_session").join(link).is_dir() && at.join("devices/platform/host2").is_dir());
        drop(tree);
        assert!(!at.exists() && transport.join(HANDLE).exists());
        // What iscsiadm reads of the kernel is nobody else's to write.
        let lock = root.join("run/lock/iscsi");
        std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(Tree::make(root).unwrap_err().to_string().contains("not a folder of root's alone"));
        assert!(make_place(root).is_err());
        std::fs::remove_dir(&lock).unwrap();
        symlink("/tmp", &lock).unwrap();
        assert!(Tree::make(root).is_err() && make_place(root).is_err(), "nor is it anywhere else");
        let none = root.join("nowhere");
        assert!(Tree::make(&none).is_err() && make_place(&none).is_ok() && !none.exists());
    }
}
