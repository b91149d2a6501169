//! The three rules for opening files on behalf of somebody else.
//!
//! 1. [`operator`]: paths that the operator wrote (configuration, runtime endpoint, manifests). Ordinary resolution
//!    with links, but every component, every link and the final object must be root's and not writable by others, so
//!    that nobody else can steer where the path leads.
//! 2. [`beneath`]: paths built from ids below a directory that is open already: no link, no way out. Mount points are
//!    crossed, because volumes are mounts.
//! 3. [`Volume`]: what a pod names inside of a volume. Links inside the volume are followed (the keys of a configMap are
//!    links), also absolute ones that name the volume by its path on the host; what leads out is refused by the kernel.
//!
//! A directory with the sticky bit that root owns (`/tmp`) is accepted as a component under rule 1 though anyone may
//! write there: others can neither rename nor remove what root owns in it, and what they put there themselves is not
//! root's and refused. (Foreign hard links to root's files are kept out by `fs.protected_hardlinks`.)

mod volume;

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

pub use volume::Volume;

/// As the kernel's own limit (MAXSYMLINKS).
const MAX_LINKS: usize = 40;

/// Tries of openat2 when a rename in the path raced with it (EAGAIN).
const MAX_RACES: usize = 16;

/// Why a path was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{path} is not an absolute path")]
    NotAbsolute { path: PathBuf },
    #[error("{component}, on the way to {path}, {why}")]
    Untrusted { path: PathBuf, component: PathBuf, why: &'static str },
    #[error("{path} is not {wanted}")]
    WrongType { path: PathBuf, wanted: &'static str },
    #[error("{path} leads through more than 40 links")]
    TooManyLinks { path: PathBuf },
    #[error("failed to {doing} {path}")]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
}

impl OpenError {
    /// The error number of the cause, where there is one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            OpenError::Io { source, .. } => source.raw_os_error().map(Errno::from_raw_os_error),
            _ => None,
        }
    }

    /// Whether it is all about something that does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self.errno(), Some(Errno::NOENT | Errno::NOTDIR))
    }
}

fn io_error(doing: &'static str, path: &Path) -> impl Fn(Errno) -> OpenError {
    move |errno| OpenError::Io { doing, path: path.to_owned(), source: errno.into() }
}

// === Rule 1 ===

/// What an operator path must lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// Opened for reading.
    RegularFile,
    /// Opened for listing.
    Directory,
    /// A handle for [`connect`] (O_PATH). Root's; its mode says who may connect, not who may replace it.
    Socket,
}

/// Rule 1.
pub fn operator(path: &Path, wanted: FileKind) -> Result<OwnedFd, OpenError> {
    let (handle, stat) = resolve_trusted(path)?;
    let file_type = FileType::from_raw_mode(stat.st_mode);
    match wanted {
        FileKind::Socket if file_type == FileType::Socket => Ok(handle),
        FileKind::RegularFile if file_type == FileType::RegularFile => {
            reopen(&handle, path, OFlags::RDONLY | OFlags::NONBLOCK)
        }
        FileKind::Directory if file_type == FileType::Directory => {
            reopen(&handle, path, OFlags::RDONLY | OFlags::DIRECTORY)
        }
        _ => Err(OpenError::WrongType {
            path: path.to_owned(),
            wanted: match wanted {
                FileKind::RegularFile => "a regular file",
                FileKind::Directory => "a directory",
                FileKind::Socket => "a socket",
            },
        }),
    }
}

/// What an operator path leads to under rule 1: a handle (O_PATH) and its metadata.
pub fn resolve_trusted(path: &Path) -> Result<(OwnedFd, Stat), OpenError> {
    if !path.is_absolute() {
        return Err(OpenError::NotAbsolute { path: path.to_owned() });
    }
    let mut todo: VecDeque<OsString> = VecDeque::new();
    let mut links = 0;
    let root = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(io_error("open", Path::new("/")))?;
    // The chain of directories from the root to where we are, for "..".
    let mut chain: Vec<(PathBuf, OwnedFd)> = vec![(PathBuf::from("/"), root)];
    let mut last: Option<(PathBuf, OwnedFd, Stat)> = None;
    push_components(&mut todo, path.as_os_str());

    while let Some(name) = todo.pop_front() {
        if name == ".." {
            if chain.len() > 1 {
                chain.pop();
            }
            last = None;
            continue;
        }
        let (here, dir) = chain.last().expect("the root is never popped");
        let component = here.join(&name);
        let handle = rustix::fs::openat(dir, &name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| io_error("open", &component)(errno))?;
        let stat = rustix::fs::fstat(&handle).map_err(|errno| io_error("examine", &component)(errno))?;
        let file_type = FileType::from_raw_mode(stat.st_mode);
        let untrusted = |why| OpenError::Untrusted { path: path.to_owned(), component: component.clone(), why };
        if stat.st_uid != 0 {
            return Err(untrusted("does not belong to root"));
        }
        match file_type {
            FileType::Symlink => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(OpenError::TooManyLinks { path: path.to_owned() });
                }
                let target = rustix::fs::readlinkat(&handle, "", Vec::new())
                    .map_err(|errno| io_error("read the link", &component)(errno))?;
                let target = OsString::from_vec(target.into_bytes());
                if Path::new(&target).is_absolute() {
                    chain.truncate(1);
                }
                push_components(&mut todo, &target);
                last = None;
            }
            FileType::Directory => {
                let is_component = !todo.is_empty();
                let sticky = stat.st_mode & 0o1000 != 0;
                if others_may_write(&stat) && !(is_component && sticky) {
                    return Err(untrusted("may be written by others than root"));
                }
                chain.push((component, handle));
                last = None;
            }
            _ if !todo.is_empty() => return Err(io_error("go through", &component)(Errno::NOTDIR)),
            _ => {
                if file_type != FileType::Socket && others_may_write(&stat) {
                    return Err(untrusted("may be written by others than root"));
                }
                last = Some((component, handle, stat));
            }
        }
    }
    match last {
        Some((_, handle, stat)) => Ok((handle, stat)),
        None => {
            let (here, handle) = chain.pop().expect("the root is never popped");
            let stat = rustix::fs::fstat(&handle).map_err(|errno| io_error("examine", &here)(errno))?;
            // Reached through ".." or "/": not examined as the final object yet.
            if stat.st_uid != 0 || others_may_write(&stat) {
                let why = "may be written by others than root";
                return Err(OpenError::Untrusted { path: path.to_owned(), component: here, why });
            }
            Ok((handle, stat))
        }
    }
}

/// Connects to a Unix stream socket found under rule 1. Non-blocking and close-on-exec; a Unix connect completes at
/// once or fails (`WouldBlock`: the server's backlog is full).
pub fn connect(path: &Path) -> Result<OwnedFd, OpenError> {
    connect_to(&operator(path, FileKind::Socket)?, path)
}

/// Connects to the Unix stream socket that a handle (O_PATH) stands for, as [`connect`]; `path` is for errors.
pub fn connect_to(handle: &OwnedFd, path: &Path) -> Result<OwnedFd, OpenError> {
    // Through our own handle: the very socket that was examined, and short enough for sun_path.
    let through = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let connect = || -> rustix::io::Result<OwnedFd> {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(through.as_str())?)?;
        Ok(socket)
    };
    connect().map_err(io_error("connect to", path))
}

fn push_components(todo: &mut VecDeque<OsString>, path: &OsStr) {
    for name in path.as_bytes().split(|b| *b == b'/').rev().filter(|name| !name.is_empty() && *name != b".") {
        todo.push_front(OsStr::from_bytes(name).to_owned());
    }
}

/// Whether somebody else than root may write it. Group root is root's own.
pub fn others_may_write(stat: &Stat) -> bool {
    stat.st_mode & 0o002 != 0 || (stat.st_mode & 0o020 != 0 && stat.st_gid != 0)
}

/// Opens what an O_PATH handle stands for, through /proc so that it is the very same object.
fn reopen(handle: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd, OpenError> {
    let through = format!("/proc/self/fd/{}", handle.as_raw_fd());
    rustix::fs::open(through, flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty()).map_err(io_error("open", path))
}

// === Rule 2 ===

/// Rule 2. `relative` is built from ids; `dir` is the directory it is below. With `O_CREAT` it is a regular file that is opened:
/// nobody waits for a FIFO that stands under its name, and nothing is written into a device.
pub fn beneath(
    dir: BorrowedFd<'_>,
    relative: impl AsRef<Path>,
    flags: OFlags,
    mode: u32,
) -> Result<OwnedFd, OpenError> {
    let relative = relative.as_ref();
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    if !flags.contains(OFlags::CREATE) {
        return openat2(dir, relative, flags, mode, resolve);
    }
    let file = openat2(dir, relative, flags | OFlags::NONBLOCK, mode, resolve)?;
    is_regular(&file, relative)?;
    Ok(file)
}

fn is_regular(file: &OwnedFd, path: &Path) -> Result<(), OpenError> {
    let stat = rustix::fs::fstat(file).map_err(io_error("examine", path))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        _ => Err(OpenError::WrongType { path: path.to_owned(), wanted: "a regular file" }),
    }
}

/// Rule 2 without going into another mount, which fails with EXDEV: a file system that does not answer holds nobody.
pub fn beneath_same_mount(
    dir: BorrowedFd<'_>,
    relative: impl AsRef<Path>,
    flags: OFlags,
) -> Result<OwnedFd, OpenError> {
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    openat2(dir, relative.as_ref(), flags, 0, resolve)
}

/// Rule 2 for a regular file that its writer may not be trusted with: no FIFO blocks us, nothing but a regular file
/// is returned. Opened for reading.
pub fn regular_beneath(dir: BorrowedFd<'_>, relative: impl AsRef<Path>) -> Result<OwnedFd, OpenError> {
    let relative = relative.as_ref();
    // First a handle, which opens no device; then the type; then the thing itself.
    let handle = beneath(dir, relative, OFlags::PATH | OFlags::NOFOLLOW, 0)?;
    is_regular(&handle, relative)?;
    reopen(&handle, relative, OFlags::RDONLY | OFlags::NONBLOCK)
}

/// Rule 2 for a directory, opened for listing and as a base for more.
pub fn dir_beneath(dir: BorrowedFd<'_>, relative: impl AsRef<Path>) -> Result<OwnedFd, OpenError> {
    beneath(dir, relative, OFlags::RDONLY | OFlags::DIRECTORY, 0)
}

/// Rule 2: the directory `relative`, made with its missing parents (all with this mode, less the umask).
pub fn create_dirs_beneath(dir: BorrowedFd<'_>, relative: impl AsRef<Path>, mode: u32) -> Result<OwnedFd, OpenError> {
    let relative = relative.as_ref();
    let mut here = dir.try_clone_to_owned().map_err(|source| OpenError::Io {
        doing: "open",
        path: relative.to_owned(),
        source,
    })?;
    for name in relative.components() {
        let name = Path::new(name.as_os_str());
        match rustix::fs::mkdirat(&here, name, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(io_error("create the directory", relative)(errno)),
        }
        here = dir_beneath(here.as_fd(), name)?;
    }
    Ok(here)
}

/// The base directory for rule 2: one of our own, by path. Its own components are the operator's.
pub fn base_dir(path: &Path) -> Result<OwnedFd, OpenError> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(io_error("open the directory", path))
}

/// Whether a folder that somebody else may have made first is this process's user's: no link to one, and written by nobody else.
///
/// # Errors
/// It is not there, or cannot be examined.
pub fn is_own_folder(path: &Path) -> io::Result<bool> {
    let stat = rustix::fs::lstat(path)?;
    let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    Ok(is_folder && stat.st_uid == rustix::process::geteuid().as_raw() && !others_may_write(&stat))
}

/// Metadata of one name in a directory, links not followed; None when it is not there.
pub fn lstat_at(dir: BorrowedFd<'_>, name: impl AsRef<Path>) -> Result<Option<Stat>, OpenError> {
    let name = name.as_ref();
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(io_error("examine", name)(errno)),
    }
}

fn openat2(
    dir: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: u32,
    resolve: ResolveFlags,
) -> Result<OwnedFd, OpenError> {
    let mut tries = 0;
    loop {
        let flags = flags | OFlags::CLOEXEC;
        match rustix::fs::openat2(dir, path, flags, Mode::from_raw_mode(mode), resolve) {
            Ok(fd) => return Ok(fd),
            Err(Errno::AGAIN | Errno::INTR) if tries < MAX_RACES => tries += 1,
            Err(errno) => return Err(io_error("open", path)(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn is_root() -> bool {
        rustix::process::getuid().as_raw() == 0
    }

    fn chmod(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn operator_paths_follow_roots_links_only() {
        if !is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap(); // below /tmp: a sticky component
        let base = dir.path().canonicalize().unwrap();
        let file = base.join("real/f");
        std::fs::create_dir(base.join("real")).unwrap();
        std::fs::write(&file, "x").unwrap();
        chmod(&file, 0o644);
        symlink("real/../real", base.join("link")).unwrap();
        symlink(base.join("link/f"), base.join("absolute")).unwrap();
        symlink("loop", base.join("loop")).unwrap();
        for good in ["real/f", "link/f", "absolute", "./real/./f", "real/../link/f"] {
            operator(&base.join(good), FileKind::RegularFile).unwrap();
        }
        operator(&base.join("link"), FileKind::Directory).unwrap();
        assert!(matches!(operator(&base.join("loop"), FileKind::RegularFile), Err(OpenError::TooManyLinks { .. })));
        assert!(matches!(operator(Path::new("etc"), FileKind::Directory), Err(OpenError::NotAbsolute { .. })));
        assert!(matches!(operator(&file, FileKind::Directory), Err(OpenError::WrongType { .. })));
        assert!(operator(&base.join("real/f/g"), FileKind::RegularFile).unwrap_err().is_not_found());
        assert!(operator(&base.join("none"), FileKind::RegularFile).unwrap_err().is_not_found());

        // Somebody else's link, a directory others may write, a file others may write, somebody else's file.
        std::os::unix::fs::lchown(base.join("absolute"), Some(1), None).unwrap();
        chmod(&base.join("real"), 0o757);
        for bad in ["absolute", "real/f", "link/f"] {
            let err = operator(&base.join(bad), FileKind::RegularFile).unwrap_err();
            assert!(matches!(err, OpenError::Untrusted { .. }), "{bad}: {err}");
        }
        chmod(&base.join("real"), 0o755);
        chmod(&file, 0o646);
        assert!(operator(&file, FileKind::RegularFile).is_err());
        chmod(&file, 0o664); // group root
        operator(&file, FileKind::RegularFile).unwrap();
        std::os::unix::fs::chown(&file, None, Some(5)).unwrap();
        assert!(operator(&file, FileKind::RegularFile).is_err());
        // The sticky directory itself is no trusted final object.
        assert!(operator(Path::new("/tmp"), FileKind::Directory).is_err());
    }

    #[test]
    fn a_root_only_socket_is_connected() {
        if !is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runtime.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        chmod(&path, 0o660);
        let socket = connect(&path).unwrap();
        listener.accept().unwrap();
        drop((socket, listener));
        assert_eq!(connect(&path).unwrap_err().errno(), Some(Errno::CONNREFUSED));
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(matches!(connect(&dir.path().join("file")), Err(OpenError::WrongType { .. })));
    }

    #[test]
    fn a_folder_that_somebody_else_may_have_made_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("own")).unwrap();
        std::fs::create_dir(at("open")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        chmod(&at("open"), 0o777);
        symlink("own", at("link")).unwrap();
        assert!(is_own_folder(&at("own")).unwrap());
        for other in ["open", "file", "link"] {
            assert!(!is_own_folder(&at(other)).unwrap(), "{other}");
        }
        assert!(is_own_folder(&at("none")).is_err());
        if is_root() {
            std::os::unix::fs::chown(at("own"), Some(60000), None).unwrap();
            assert!(!is_own_folder(&at("own")).unwrap());
        }
    }

    #[test]
    fn beneath_refuses_links_and_ways_out() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/f"), "x").unwrap();
        symlink("a", dir.path().join("l")).unwrap();
        symlink("/etc/passwd", dir.path().join("a/p")).unwrap();
        let base = base_dir(dir.path()).unwrap();
        let read = |path: &str| regular_beneath(base.as_fd(), path);
        assert!(read("a/f").is_ok());
        for bad in ["l/f", "a/p", "../x", "/etc/passwd", "a/../../etc/passwd", "a"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        rustix::fs::mknodat(&base, "fifo", FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert!(matches!(read("fifo"), Err(OpenError::WrongType { .. })), "and it does not block");
        let write = || beneath(base.as_fd(), "fifo", OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC, 0o600);
        assert_eq!(write().unwrap_err().errno(), Some(Errno::NXIO), "nobody reads it, and nobody waits for a reader");
        let reader = rustix::fs::openat(&base, "fifo", OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
        assert!(matches!(write(), Err(OpenError::WrongType { .. })), "it is not written to");
        drop(reader);
        create_dirs_beneath(base.as_fd(), "a/b/c", 0o750).unwrap();
        create_dirs_beneath(base.as_fd(), "a/b/c", 0o750).unwrap();
        assert!(create_dirs_beneath(base.as_fd(), "l/x", 0o750).is_err());
        assert!(create_dirs_beneath(base.as_fd(), "../x", 0o750).is_err());
    }
}
