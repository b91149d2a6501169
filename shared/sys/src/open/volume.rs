//! Rule 3: what a path names inside of a volume that somebody else writes to while we look.
//!
//! The kernel resolves, below the volume's root: links inside are followed, nothing leads out. Upstream resolves on the
//! host and then checks where it came out (`pkg/volume/util/subpath`), so that an absolute link may lead back into the
//! volume where it names the volume's own path. Those are resolved here, by their text alone: nothing outside of the
//! volume is looked at, and what comes out is opened under rule 2, which follows no link at all. So are those that the kernel follows
//! for their owner alone (proc_sys_fs(5), protected_symlinks): a pod's user has links in volumes that are sticky and for all to write.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::{MAX_LINKS, OpenError, beneath, io_error, openat2, push_components, reopen};

/// Names looked at for one path with absolute links in it: as many as a path of the greatest length has.
const MAX_STEPS: usize = 4096;

/// A volume.
#[derive(Debug, Clone, Copy)]
pub struct Volume<'a> {
    pub root: BorrowedFd<'a>,
    /// A path on the host that leads to the root, as links inside may name it; its real path may always be named.
    pub host_path: Option<&'a Path>,
}

impl Volume<'_> {
    /// A handle (O_PATH) to what `path` names; `path` is relative.
    pub fn handle(&self, path: impl AsRef<Path>) -> Result<OwnedFd, OpenError> {
        let path = path.as_ref();
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        match openat2(self.root, path, OFlags::PATH, 0, resolve) {
            Err(error) if matches!(error.errno(), Some(Errno::XDEV | Errno::ACCESS)) && stays_below(path) => {
                let plain = self.plain(path)?;
                beneath(self.root, Path::new(".").join(plain), OFlags::PATH, 0)
            }
            other => other,
        }
    }

    /// The same with directories made where they are missing. Links that are there already are followed as
    /// [`Volume::handle`] has it; in what is made none is, so a link that somebody puts in the way meanwhile is an error.
    /// Each that is made gets `mode` exactly, with its bits for setuid, setgid and sticky (upstream doSafeMakeDir).
    pub fn handle_or_create(&self, path: impl AsRef<Path>, mode: u32) -> Result<OwnedFd, OpenError> {
        let path = path.as_ref();
        let names: Vec<&OsStr> = path.components().map(|part| part.as_os_str()).collect();
        let mut exists = names.len();
        let mut here = loop {
            let prefix: PathBuf = std::iter::once(OsStr::new(".")).chain(names[..exists].iter().copied()).collect();
            match self.handle(&prefix) {
                Ok(here) => break here,
                Err(error) if error.errno() == Some(Errno::NOENT) && exists > 0 => exists -= 1,
                Err(error) => return Err(error),
            }
        };
        for name in names.iter().skip(exists) {
            let name = Path::new(name);
            // mkdir(2) leaves out what the umask has, and gives no setuid or setgid bit: the rest comes with chmod.
            let made = match rustix::fs::mkdirat(&here, name, Mode::from_raw_mode(mode & 0o777)) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(errno) => return Err(io_error("create the directory", path)(errno)),
            };
            here = beneath(here.as_fd(), name, OFlags::PATH | OFlags::DIRECTORY, 0)?;
            if made {
                // Through the handle: of whatever is there by now it is a directory inside the volume.
                rustix::fs::chmod(format!("/proc/self/fd/{}", here.as_raw_fd()), Mode::from_raw_mode(mode))
                    .map_err(io_error("set the mode of", path))?;
            }
        }
        Ok(here)
    }

    /// A regular file, opened for reading. Links are followed as if the volume were all that there is: an absolute one
    /// begins at its root, and `..` ends there (upstream resolves these paths by `securejoin`). Nothing but a regular
    /// file is opened, and no FIFO is waited for.
    pub fn regular_file(&self, path: impl AsRef<Path>) -> Result<OwnedFd, OpenError> {
        let path = path.as_ref();
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let handle = openat2(self.root, path, OFlags::PATH, 0, resolve)?;
        let stat = rustix::fs::fstat(&handle).map_err(io_error("examine", path))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(OpenError::WrongType { path: path.to_owned(), wanted: "a regular file" });
        }
        reopen(&handle, path, OFlags::RDONLY | OFlags::NONBLOCK)
    }

    /// A regular file, opened for reading, or a directory, opened for listing. Links are followed as [`Volume::handle`]
    /// has it; what leads out is an error (EXDEV), and of other kinds nothing is opened.
    pub fn file_or_directory(&self, path: impl AsRef<Path>) -> Result<OwnedFd, OpenError> {
        let path = path.as_ref();
        let handle = self.handle(path)?;
        let stat = rustix::fs::fstat(&handle).map_err(io_error("examine", path))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => reopen(&handle, path, OFlags::RDONLY | OFlags::NONBLOCK),
            FileType::Directory => reopen(&handle, path, OFlags::RDONLY | OFlags::DIRECTORY),
            _ => Err(OpenError::WrongType { path: path.to_owned(), wanted: "a regular file or a directory" }),
        }
    }

    /// The path below the root without a link in it. Of what is outside of the volume only the names are known: a link
    /// that leads out and comes back by those is followed, by others' links it is not.
    fn plain(&self, path: &Path) -> Result<PathBuf, OpenError> {
        let real = rustix::fs::readlink(format!("/proc/self/fd/{}", self.root.as_raw_fd()), Vec::new())
            .map_err(io_error("find the volume's own path for", path))?;
        let real = PathBuf::from(OsString::from_vec(real.into_bytes()));
        let homes = [Some(real.as_path()), self.host_path];
        let mut here = real.clone();
        let mut todo = VecDeque::new();
        push_components(&mut todo, path.as_os_str());
        let (mut links, mut steps) = (0, 0);
        while let Some(name) = todo.pop_front() {
            steps += 1;
            if steps > MAX_STEPS {
                return Err(OpenError::TooManyLinks { path: path.to_owned() });
            }
            if name == ".." {
                here.pop();
                continue;
            }
            here.push(&name);
            let inside = match here.strip_prefix(&real) {
                Ok(inside) if !inside.as_os_str().is_empty() => inside,
                _ => continue,
            };
            let handle = beneath(self.root, inside, OFlags::PATH | OFlags::NOFOLLOW, 0)?;
            let stat = rustix::fs::fstat(&handle).map_err(io_error("examine", path))?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(OpenError::TooManyLinks { path: path.to_owned() });
            }
            let target = rustix::fs::readlinkat(&handle, "", Vec::new()).map_err(io_error("read a link in", path))?;
            let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
            here.pop();
            if target.is_absolute() {
                let home = homes.iter().flatten().find_map(|home| target.strip_prefix(home).ok());
                here = if home.is_some() { real.clone() } else { PathBuf::from("/") };
                push_components(&mut todo, home.unwrap_or(&target).as_os_str());
            } else {
                push_components(&mut todo, target.as_os_str());
            }
        }
        match here.strip_prefix(&real) {
            Ok(inside) => Ok(inside.to_owned()),
            Err(_) => Err(io_error("resolve", path)(Errno::XDEV)),
        }
    }
}

/// Whether it is by a link, if at all, that a path leads out.
fn stays_below(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

#[cfg(test)]
mod tests {
    use super::super::base_dir;
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn volume<'a>(root: &'a OwnedFd, host_path: Option<&'a Path>) -> Volume<'a> {
        Volume { root: root.as_fd(), host_path }
    }

    fn inode(fd: &OwnedFd) -> u64 {
        rustix::fs::fstat(fd).unwrap().st_ino
    }

    /// As a projected volume has it for a pod with a user and a group of its own.
    #[test]
    fn links_of_others_in_a_sticky_directory_are_followed() {
        if !rustix::process::getuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("..data")).unwrap();
        std::fs::write(dir.path().join("..data/token"), "x").unwrap();
        symlink("..data/token", dir.path().join("token")).unwrap();
        std::os::unix::fs::lchown(dir.path().join("token"), Some(1000), None).unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o3777)).unwrap();
        let protects = std::fs::read_to_string("/proc/sys/fs/protected_symlinks").unwrap().trim() == "1";
        let by_path = std::fs::read(dir.path().join("token")).map_err(|error| error.kind());
        assert_eq!(by_path.is_err(), protects, "{by_path:?}");
        let base = base_dir(dir.path()).unwrap();
        let token = std::fs::metadata(dir.path().join("..data/token")).unwrap().ino();
        assert_eq!(inode(&volume(&base, None).handle("token").unwrap()), token);
    }

    #[test]
    fn links_inside_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("..data")).unwrap();
        std::fs::write(dir.path().join("..data/key"), "x").unwrap();
        symlink("..data/key", dir.path().join("key")).unwrap();
        symlink("/etc", dir.path().join("out")).unwrap();
        symlink("../..", dir.path().join("up")).unwrap();
        let base = base_dir(dir.path()).unwrap();
        let volume = volume(&base, None);
        assert!(volume.handle("key").is_ok());
        let own = format!("../{}/key", dir.path().file_name().unwrap().to_string_lossy());
        for bad in ["out/passwd", "up/etc", "../x", "/etc", "/key", &own] {
            assert!(volume.handle(bad).is_err(), "{bad}");
            assert!(volume.handle_or_create(bad, 0o777).is_err(), "{bad}");
        }
    }

    #[test]
    fn missing_directories_are_made_inside() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("v");
        std::fs::create_dir_all(root.join("real")).unwrap();
        symlink("real", root.join("link")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        symlink("../outside", root.join("out")).unwrap();
        std::fs::create_dir(dir.path().join("outside")).unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        let base = base_dir(&root).unwrap();
        let volume = volume(&base, None);
        for _ in 0..2 {
            volume.handle_or_create("link/a/b", 0o3777).unwrap();
        }
        let mode = |path: &str| std::fs::metadata(root.join(path)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("real/a"), mode("real/a/b")), (0o3777, 0o3777), "past the umask, each");
        assert_ne!(mode("real"), 0o3777, "what was there keeps its own");
        for same in ["", "."] {
            assert_eq!(inode(&volume.handle_or_create(same, 0o777).unwrap()), inode(&base));
        }
        assert!(volume.handle_or_create("file", 0o777).is_ok());
        for bad in ["dangling", "dangling/x", "out/x", "file/x", "real/../../outside/x"] {
            assert!(volume.handle_or_create(bad, 0o777).is_err(), "{bad}");
        }
        assert_eq!(std::fs::read_dir(dir.path().join("outside")).unwrap().count(), 0);
        assert!(!root.join("nowhere").exists());
    }

    #[test]
    fn absolute_links_back_into_the_volume_are_followed_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap();
        let (root, alias) = (home.join("v"), home.join("alias"));
        std::fs::create_dir_all(root.join("releases/1/sub")).unwrap();
        std::fs::create_dir_all(home.join("outside/sub")).unwrap();
        symlink("v", &alias).unwrap();
        symlink(root.join("releases/1"), root.join("current")).unwrap();
        symlink(alias.join("current"), root.join("by-alias")).unwrap();
        symlink(&root, root.join("itself")).unwrap();
        symlink("../v/releases", root.join("out-and-back")).unwrap();
        symlink(home.join("outside/../v/releases"), root.join("around")).unwrap();
        symlink(home.join("outside"), root.join("out")).unwrap();
        symlink(root.join("../outside"), root.join("out-again")).unwrap();
        symlink(home.join("v2"), root.join("neighbour")).unwrap();
        symlink(root.join("missing"), root.join("dangling")).unwrap();
        symlink(root.join("loop"), root.join("loop")).unwrap();
        symlink("/proc/self/root", root.join("magic")).unwrap();
        symlink(home.join("link-outside/releases"), root.join("by-a-link-outside")).unwrap();
        symlink("v", home.join("link-outside")).unwrap();
        std::fs::create_dir(home.join("v2")).unwrap();

        let base = base_dir(&root).unwrap();
        let volume = volume(&base, Some(&alias));
        let sub = std::fs::metadata(root.join("releases/1/sub")).unwrap().ino();
        for good in [
            "current/sub",
            "by-alias/sub",
            "itself/itself/current/sub",
            "out-and-back/1/sub",
            "around/1/sub",
            "releases/1/sub",
        ] {
            assert_eq!(inode(&volume.handle(good).unwrap()), sub, "{good}");
            assert_eq!(inode(&volume.handle_or_create(good, 0o755).unwrap()), sub, "{good}");
        }
        volume.handle_or_create("current/new/er", 0o700).unwrap();
        assert!(root.join("releases/1/new/er").is_dir());
        let without = Volume { host_path: None, ..volume };
        assert!(without.handle("by-alias/sub").is_err());
        for bad in [
            "out",
            "out/sub",
            "out-again/sub",
            "neighbour",
            "dangling",
            "loop",
            "magic",
            "magic/etc",
            "by-a-link-outside",
        ] {
            assert!(volume.handle(bad).is_err(), "{bad}");
            assert!(volume.handle_or_create(bad, 0o777).is_err(), "{bad}");
            assert!(volume.handle_or_create(Path::new(bad).join("new"), 0o777).is_err(), "{bad}/new");
        }
        assert_eq!(std::fs::read_dir(home.join("outside")).unwrap().count(), 1);
        assert!(!root.join("missing").exists());
    }

    #[test]
    fn a_file_or_a_directory_that_stays_inside() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("v");
        std::fs::create_dir_all(root.join("pods/p")).unwrap();
        std::fs::write(root.join("pods/p/0.log"), "inside").unwrap();
        std::fs::write(dir.path().join("secret"), "outside").unwrap();
        symlink("pods/p/0.log", root.join("link")).unwrap();
        symlink(root.join("pods"), root.join("absolute")).unwrap();
        symlink("../secret", root.join("out")).unwrap();
        symlink("/etc/passwd", root.join("away")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, root.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let base = base_dir(&root).unwrap();
        let volume = volume(&base, Some(&root));
        for good in ["link", "absolute/p/0.log", "pods/p/0.log"] {
            let file = std::fs::File::from(volume.file_or_directory(good).unwrap());
            assert_eq!(std::io::read_to_string(file).unwrap(), "inside", "{good}");
        }
        for good in ["pods", "absolute", "absolute/p"] {
            assert!(rustix::fs::Dir::read_from(volume.file_or_directory(good).unwrap()).unwrap().count() > 2, "{good}");
        }
        for bad in ["out", "away", "fifo", "none", "link/x"] {
            assert!(volume.file_or_directory(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_regular_file_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("v");
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::fs::write(root.join("etc/env"), "inside").unwrap();
        std::fs::write(dir.path().join("secret"), "outside").unwrap();
        symlink("etc/env", root.join("link")).unwrap();
        symlink("/etc/env", root.join("absolute")).unwrap();
        symlink("../../../../etc/env", root.join("up")).unwrap();
        symlink(dir.path().join("secret"), root.join("out")).unwrap();
        symlink("../secret", root.join("out-up")).unwrap();
        symlink("/proc/self/fd/0", root.join("magic")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, root.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let base = base_dir(&root).unwrap();
        let volume = volume(&base, None);
        for good in ["etc/env", "link", "absolute", "up", "/etc/env", "etc/../../etc/env"] {
            let file = std::fs::File::from(volume.regular_file(good).unwrap());
            assert_eq!(std::io::read_to_string(file).unwrap(), "inside", "{good}");
        }
        for bad in ["out", "out-up", "magic", "fifo", "etc", "none", "etc/env/x"] {
            assert!(volume.regular_file(bad).is_err(), "{bad}");
        }
    }
}
