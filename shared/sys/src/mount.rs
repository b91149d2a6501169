//! Mounting on descriptors and unmounting by one name below a descriptor.
//!
//! The target of a mount is a directory that is open already, so no path is resolved twice. For unmounting the kernel
//! wants a path: `/proc/self/fd/<parent>/<name>` with UMOUNT_NOFOLLOW names one entry of an open directory, whatever
//! has become of the way to it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};

use crate::mountinfo::MountInfo;

/// How long a busy mount is given to become free; a scan of it (disk usage) takes less.
const BUSY_RETRY: Duration = Duration::from_millis(100);

/// Why a mount or unmount failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("failed to mount {fs_type}: {step}")]
    Mount { fs_type: &'static str, step: &'static str, source: io::Error },
    #[error("failed to unmount {name}: busy, held by {}", holders_text(.holders))]
    Busy { name: String, holders: Vec<String> },
    #[error("failed to unmount {name}")]
    Unmount { name: String, source: io::Error },
    #[error("failed to make {path} a shared mount")]
    Share { path: PathBuf, source: io::Error },
}

fn holders_text(holders: &[String]) -> String {
    if holders.is_empty() { "an unknown process".to_owned() } else { holders.join(", ") }
}

fn step(fs_type: &'static str, step: &'static str) -> impl Fn(Errno) -> MountError {
    move |errno| MountError::Mount { fs_type, step, source: errno.into() }
}

/// A memory file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tmpfs {
    /// Bytes; None leaves the kernel's default, half of the memory.
    pub size: Option<u64>,
    /// Never swapped out, where the kernel can (6.4).
    pub noswap: bool,
}

/// What was mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TmpfsMounted {
    /// Whether `noswap` is in force.
    pub noswap: bool,
}

/// Mounts a tmpfs on an open directory.
pub fn tmpfs(target: BorrowedFd<'_>, options: &Tmpfs) -> Result<TmpfsMounted, MountError> {
    const FS: &str = "tmpfs";
    let context = rustix::mount::fsopen(FS, FsOpenFlags::FSOPEN_CLOEXEC).map_err(step(FS, "opening the type"))?;
    rustix::mount::fsconfig_set_string(&context, "source", FS).map_err(step(FS, "setting the source"))?;
    if let Some(size) = options.size {
        rustix::mount::fsconfig_set_string(&context, "size", size.to_string().as_str())
            .map_err(step(FS, "setting the size"))?;
    }
    // An older kernel answers EINVAL for an option it does not know.
    let noswap = options.noswap && rustix::mount::fsconfig_set_flag(&context, "noswap").is_ok();
    attach(&context, target, FS)?;
    Ok(TmpfsMounted { noswap })
}

/// Whether the kernel can keep a tmpfs of this process's from being swapped out. Nothing is mounted for it. Needs what a mount
/// needs; without that, and in a user namespace of its own, the answer is no.
pub fn is_noswap_supported() -> bool {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC);
    context.is_ok_and(|context| rustix::mount::fsconfig_set_flag(&context, "noswap").is_ok())
}

/// Whether an open file or directory lives in a tmpfs.
pub fn is_tmpfs(fd: BorrowedFd<'_>) -> io::Result<bool> {
    /// TMPFS_MAGIC of linux/magic.h.
    const MAGIC: u64 = 0x0102_1994;
    Ok(u64::try_from(rustix::fs::fstatfs(fd)?.f_type).is_ok_and(|kind| kind == MAGIC))
}

/// Mounts huge pages of `page_bytes` on an open directory.
pub fn hugetlbfs(target: BorrowedFd<'_>, page_bytes: Option<u64>) -> Result<(), MountError> {
    const FS: &str = "hugetlbfs";
    let context = rustix::mount::fsopen(FS, FsOpenFlags::FSOPEN_CLOEXEC).map_err(step(FS, "opening the type"))?;
    rustix::mount::fsconfig_set_string(&context, "source", "nodev").map_err(step(FS, "setting the source"))?;
    if let Some(bytes) = page_bytes {
        rustix::mount::fsconfig_set_string(&context, "pagesize", bytes.to_string().as_str())
            .map_err(step(FS, "setting the page size"))?;
    }
    attach(&context, target, FS)
}

fn attach(context: &OwnedFd, target: BorrowedFd<'_>, fs: &'static str) -> Result<(), MountError> {
    rustix::mount::fsconfig_create(context).map_err(step(fs, "creating the file system"))?;
    let mount = rustix::mount::fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
        .map_err(step(fs, "creating the mount"))?;
    place(&mount, target).map_err(step(fs, "attaching the mount"))
}

/// Binds what one descriptor stands for on another one (both directories, or both files).
pub fn bind(source: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<(), MountError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = rustix::mount::open_tree(source, "", flags).map_err(step("bind", "cloning the source"))?;
    place(&tree, target).map_err(step("bind", "attaching the mount"))
}

/// `struct mount_attr` of linux/mount.h.
#[repr(C)]
#[derive(Default)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// [`bind`], with `attributes` set on the new mount; its other ones are those of the source's mount.
pub fn bind_with(source: BorrowedFd<'_>, target: BorrowedFd<'_>, attributes: MountAttrFlags) -> Result<(), MountError> {
    if attributes.is_empty() {
        return bind(source, target);
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = rustix::mount::open_tree(source, "", flags).map_err(step("bind", "cloning the source"))?;
    // How access times are written is one value of several bits: mount_setattr(2) wants it cleared where it is set.
    let atime = MountAttrFlags::MOUNT_ATTR_NOATIME | MountAttrFlags::MOUNT_ATTR_STRICTATIME;
    let clear = if attributes.intersects(atime) { MountAttrFlags::MOUNT_ATTR__ATIME.bits().into() } else { 0 };
    // Set before anybody sees the mount; the others of its flags stay.
    let attributes = MountAttributes { set: attributes.bits().into(), clear, ..Default::default() };
    // SAFETY: the path is a C string, the structure is the kernel's first version and its size is given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    if result != 0 {
        let source = io::Error::last_os_error();
        return Err(MountError::Mount { fs_type: "bind", step: "setting its attributes", source });
    }
    place(&tree, target).map_err(step("bind", "attaching the mount"))
}

pub(crate) fn place(mount: &OwnedFd, target: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount, "", target, "", flags)
}

/// Whether `name` in `dir` is a mount point.
pub fn is_mount_point(dir: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags, rustix::fs::Mode::empty()) {
        Ok(child) => Ok(crate::tree::mount_id(child.as_fd())? != crate::tree::mount_id(dir)?),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// What a mount answers that is there and cannot be looked at: its server has lost the file that is mounted, or is dead (upstream
/// `mount_helper_unix.go` of mount-utils, IsCorruptedMnt).
pub fn is_corrupted(error: &io::Error) -> bool {
    use Errno as E;
    let of_corrupted = [E::NOTCONN, E::STALE, E::IO, E::ACCESS, E::HOSTDOWN, E::WOULDBLOCK, E::NODEV];
    Errno::from_io_error(error).is_some_and(|errno| of_corrupted.contains(&errno))
}

/// Unmounts everything that is mounted on `name` in `dir`. Nothing mounted, or nothing there, is success. A corrupted mount is
/// unmounted without a look at it. A busy mount is tried again after 100 ms, then its holder is named. Blocks for that time.
pub fn unmount(dir: BorrowedFd<'_>, name: &str) -> Result<(), MountError> {
    let error = |source: io::Error| MountError::Unmount { name: name.to_owned(), source };
    let path = format!("/proc/self/fd/{}/{name}", dir.as_raw_fd());
    if name.is_empty() || name == "." || name == ".." || name.contains('/') {
        return Err(error(io::ErrorKind::InvalidInput.into()));
    }
    let mut was_busy = false;
    // A pod may have stacked mounts; more than this on one point is a fault of its own.
    for _ in 0..64 {
        let in_doubt = match is_mount_point(dir, name) {
            Ok(true) => false,
            Ok(false) => return Ok(()),
            Err(source) if is_corrupted(&source) => true,
            Err(source) => return Err(error(source)),
        };
        match rustix::mount::unmount(path.as_str(), UnmountFlags::NOFOLLOW) {
            // It was no mount point.
            Err(Errno::INVAL | Errno::NOENT) if in_doubt => return Ok(()),
            // EINVAL: somebody else was quicker.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(Errno::BUSY) if !was_busy => {
                was_busy = true;
                std::thread::sleep(BUSY_RETRY);
            }
            Err(Errno::BUSY) => {
                let holders = match std::fs::canonicalize(&path) {
                    Ok(real) => holders(&real),
                    Err(_) => Vec::new(),
                };
                return Err(MountError::Busy { name: name.to_owned(), holders });
            }
            Err(errno) => return Err(error(errno.into())),
        }
    }
    Err(error(io::Error::from(io::ErrorKind::ResourceBusy)))
}

/// Processes with an open file, working directory or root below `path`: "sleep (1234)". Best effort: other processes
/// can only be looked into as far as our capabilities reach. At most 8.
pub fn holders(path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let Ok(processes) = std::fs::read_dir("/proc") else { return found };
    for process in processes.flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().filter(|name| name.bytes().all(|b| b.is_ascii_digit())) else { continue };
        let base = process.path();
        let below = |link: PathBuf| std::fs::read_link(link).is_ok_and(|target| target.starts_with(path));
        let holds = below(base.join("cwd"))
            || below(base.join("root"))
            || std::fs::read_dir(base.join("fd"))
                .is_ok_and(|mut fds| fds.any(|fd| fd.is_ok_and(|fd| below(fd.path()))));
        if holds {
            let comm = std::fs::read_to_string(base.join("comm")).unwrap_or_default();
            found.push(format!("{} ({pid})", comm.trim()));
            if found.len() == 8 {
                break;
            }
        }
    }
    found
}

/// Makes the mount that holds `path` propagate both ways, as mounts in a pod with Bidirectional propagation need it:
/// nothing to do when it is shared already, else `path` is bound on itself and that mount made shared (upstream
/// `pkg/volume/util/hostutil` MakeRShared). True when something was changed.
pub fn make_rshared(path: &Path) -> Result<bool, MountError> {
    let error = |source: io::Error| MountError::Share { path: path.to_owned(), source };
    let real = std::fs::canonicalize(path).map_err(error)?;
    let mut info = MountInfo::new();
    let (is_shared, is_mount_point) = match info.containing(&real).map_err(error)? {
        Some(mount) => (mount.shared.is_some(), *mount.mount_point == *real),
        None => (false, false),
    };
    if is_shared {
        return Ok(false);
    }
    if !is_mount_point {
        rustix::mount::mount_bind_recursive(&real, &real).map_err(|e| error(e.into()))?;
    }
    rustix::mount::mount_change(&real, MountPropagationFlags::SHARED | MountPropagationFlags::REC)
        .map_err(|e| error(e.into()))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::{base_dir, create_dirs_beneath};

    fn is_root() -> bool {
        rustix::process::getuid().as_raw() == 0
    }

    #[test]
    fn a_mount_that_nobody_serves_is_none() {
        let is = |errno: Errno| is_corrupted(&errno.into());
        assert!([Errno::NOTCONN, Errno::STALE, Errno::IO, Errno::NODEV].into_iter().all(is));
        assert!(![Errno::NOENT, Errno::BUSY, Errno::NOTDIR].into_iter().any(is));
        assert!(!is_corrupted(&io::Error::other("x")));
    }

    #[test]
    fn tmpfs_with_size_then_busy_then_gone() {
        if !is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let base = base_dir(dir.path()).unwrap();
        let target = create_dirs_beneath(base.as_fd(), "vol", 0o777).unwrap();
        let mounted = tmpfs(target.as_fd(), &Tmpfs { size: Some(1 << 20), noswap: true }).unwrap();
        drop(target);
        assert!(is_mount_point(base.as_fd(), "vol").unwrap());
        let on_it = crate::open::dir_beneath(base.as_fd(), "vol").unwrap();
        assert!(is_tmpfs(on_it.as_fd()).unwrap());
        drop(on_it);
        let point = dir.path().canonicalize().unwrap().join("vol");
        let mut info = MountInfo::new();
        let mount = info.containing(&point).unwrap().unwrap();
        assert_eq!((&*mount.fs_type, &*mount.source), ("tmpfs", Path::new("tmpfs")));
        assert!(mount.super_options.contains("size=1024k"), "{}", mount.super_options);
        assert_eq!(mount.super_options.contains("noswap"), mounted.noswap);
        assert_eq!(is_noswap_supported(), mounted.noswap);

        let held = std::fs::File::create(point.join("held")).unwrap();
        match unmount(base.as_fd(), "vol") {
            Err(MountError::Busy { holders, .. }) => {
                assert!(holders.iter().any(|h| h.contains(&std::process::id().to_string())), "{holders:?}");
            }
            other => panic!("{other:?}"),
        }
        drop(held);
        unmount(base.as_fd(), "vol").unwrap();
        unmount(base.as_fd(), "vol").unwrap();
        unmount(base.as_fd(), "never-there").unwrap();
        assert!(unmount(base.as_fd(), "..").is_err());
    }

    #[test]
    fn a_link_is_not_unmounted_through() {
        if !is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let base = base_dir(dir.path()).unwrap();
        let target = create_dirs_beneath(base.as_fd(), "real", 0o777).unwrap();
        tmpfs(target.as_fd(), &Tmpfs::default()).unwrap();
        drop(target);
        std::os::unix::fs::symlink("real", dir.path().join("link")).unwrap();
        unmount(base.as_fd(), "link").unwrap();
        assert!(is_mount_point(base.as_fd(), "real").unwrap());
        unmount(base.as_fd(), "real").unwrap();
    }

    #[test]
    fn root_dir_becomes_shared_once() {
        if !is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("root");
        std::fs::create_dir(&root).unwrap();
        let first = make_rshared(&root).unwrap();
        assert!(!make_rshared(&root).unwrap());
        assert!(MountInfo::new().containing(&root).unwrap().unwrap().shared.is_some());
        if first {
            unmount(base_dir(dir.path()).unwrap().as_fd(), "root").unwrap();
        }
    }

    #[test]
    fn bind_shows_the_same_files() {
        if !is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let base = base_dir(dir.path()).unwrap();
        let source = create_dirs_beneath(base.as_fd(), "a", 0o755).unwrap();
        let target = create_dirs_beneath(base.as_fd(), "b", 0o755).unwrap();
        std::fs::write(dir.path().join("a/f"), "x").unwrap();
        bind(source.as_fd(), target.as_fd()).unwrap();
        assert!(dir.path().join("b/f").exists());
        let read_only = create_dirs_beneath(base.as_fd(), "c", 0o755).unwrap();
        bind_with(source.as_fd(), read_only.as_fd(), MountAttrFlags::MOUNT_ATTR_RDONLY).unwrap();
        drop((source, target, read_only));
        let error = std::fs::write(dir.path().join("c/f"), "y").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
        std::fs::write(dir.path().join("a/f"), "z").unwrap();
        unmount(base.as_fd(), "c").unwrap();
        unmount(base.as_fd(), "b").unwrap();
        assert!(!dir.path().join("b/f").exists());
    }
}
