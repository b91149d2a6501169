//! The atomic writer at work: looks at a volume, and takes the steps that [`super::plan`] names.
//!
//! Everything goes through the volume's open directory under rule 2: what a pod may have put there in the meantime (a
//! link, a directory in a name's place) is refused or removed, never followed. Nothing is waited for to be on the disk:
//! after a reboot the content is compared and written again.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use bulkhead_sys::open::{self, OpenError};
use bulkhead_sys::tree::{self, TreeError};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::files::{Content, File, FilePath};
use super::plan::{self, Current, DATA, Entry, NEW_DATA, Step};
use crate::volumes::ownership::{self, Access, OwnershipError};

/// Names at the root of a volume: at most those of its files, the writer's own, and what a pod may have added.
const MAX_NAMES: usize = 200_000;

/// Why the files were not replaced. The former ones are there then, entire.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("failed to list the volume")]
    List(#[source] std::io::Error),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("failed to {doing} {name}")]
    Io { doing: &'static str, name: String, source: std::io::Error },
    #[error(transparent)]
    Remove(#[from] TreeError),
    #[error(transparent)]
    Ownership(#[from] OwnershipError),
}

fn io_error(doing: &'static str, name: &str) -> impl Fn(Errno) -> WriteError {
    move |errno| WriteError::Io { doing, name: name.to_owned(), source: errno.into() }
}

/// Makes the volume hold exactly these files. False: it did already. `names` gives names for a new set of files until
/// one is not taken.
pub fn put(volume: BorrowedFd<'_>, content: &Content, names: impl FnMut() -> String) -> Result<bool, WriteError> {
    let steps = plan(volume, content, names)?;
    for step in &steps {
        if let Err(error) = take(volume, step, content) {
            if let Step::Write(new) = step {
                // Its space may be what was missing. If this fails the next plan has it as a leftover.
                let _ = tree::remove(volume, new);
            }
            return Err(error);
        }
    }
    Ok(!steps.is_empty())
}

/// Looks at the volume and plans.
fn plan(volume: BorrowedFd<'_>, content: &Content, mut names: impl FnMut() -> String) -> Result<Vec<Step>, WriteError> {
    let visible: BTreeSet<&str> = content.visible().into_keys().collect();
    let current = look(volume, content)?;
    // A second's clash of 32 random bits is unlikely once and out of the question eight times.
    let new = (0..8).map(|_| names()).find(|name| !current.root.contains_key(name));
    let taken = || WriteError::List(std::io::ErrorKind::AlreadyExists.into());
    Ok(plan::plan(&current, &visible, &new.ok_or_else(taken)?))
}

fn look(volume: BorrowedFd<'_>, content: &Content) -> Result<Current, WriteError> {
    let mut current = Current::default();
    for entry in tree::list(volume, MAX_NAMES).map_err(WriteError::List)? {
        // A name that is not UTF-8 is none of ours.
        let Some(name) = entry.name.to_str() else { continue };
        let kind = if entry.is_dir {
            Entry::Directory
        } else if entry.is_link {
            match rustix::fs::readlinkat(volume, name, Vec::new()) {
                Ok(target) => Entry::Link(target.to_string_lossy().into_owned()),
                // It has changed under our eyes: as any other name that is not ours.
                Err(_) => Entry::Other,
            }
        } else {
            Entry::Other
        };
        current.root.insert(name.to_owned(), kind);
    }
    current.is_wanted = match current.data() {
        Some(data) => holds(volume, data, content),
        None => false,
    };
    Ok(current)
}

/// Whether a set holds exactly the wanted files. Modes are not compared, as upstream does not. What cannot be looked at
/// is not what is wanted.
fn holds(volume: BorrowedFd<'_>, set: &str, content: &Content) -> bool {
    let Ok(dir) = open::dir_beneath(volume, set) else { return false };
    let directories: BTreeSet<&str> = content.files.keys().flat_map(FilePath::parents).collect();
    let expected = content.files.len() + directories.len();
    let mut found = 0;
    has_nothing_else(&dir, "", content, &directories, &mut found)
        && found == expected
        && content.files.iter().all(|(path, file)| is_same(&dir, path, file))
}

fn has_nothing_else(
    dir: &OwnedFd,
    path: &str,
    content: &Content,
    directories: &BTreeSet<&str>,
    found: &mut usize,
) -> bool {
    let most = content.files.len() + directories.len();
    let Ok(entries) = tree::list(dir.as_fd(), most) else { return false };
    entries.iter().all(|entry| {
        let Some(name) = entry.name.to_str() else { return false };
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
        *found += 1;
        if entry.is_dir {
            directories.contains(path.as_str())
                && open::dir_beneath(dir.as_fd(), name)
                    .is_ok_and(|child| has_nothing_else(&child, &path, content, directories, found))
        } else {
            FilePath::parse("path", &path).is_ok_and(|path| content.files.contains_key(&path))
        }
    })
}

fn is_same(dir: &OwnedFd, path: &FilePath, file: &File) -> bool {
    let Ok(fd) = open::regular_beneath(dir.as_fd(), path.as_str()) else { return false };
    let there = std::fs::File::from(fd);
    if !there.metadata().is_ok_and(|meta| meta.len() == file.data.len() as u64) {
        return false;
    }
    let mut bytes = Vec::with_capacity(file.data.len());
    there.take(file.data.len() as u64 + 1).read_to_end(&mut bytes).is_ok() && bytes == file.data
}

/// Takes one step.
fn take(volume: BorrowedFd<'_>, step: &Step, content: &Content) -> Result<(), WriteError> {
    match step {
        Step::Remove(name) => Ok(tree::remove(volume, name)?),
        Step::Write(name) => write(volume, name, content),
        Step::LinkNew(name) => {
            rustix::fs::symlinkat(name.as_str(), volume, NEW_DATA).map_err(io_error("link", NEW_DATA))
        }
        Step::Publish => rustix::fs::renameat(volume, NEW_DATA, volume, DATA).map_err(io_error("replace", DATA)),
        Step::Show(name) => {
            rustix::fs::symlinkat(plan::link_target(name), volume, name.as_str()).map_err(io_error("link", name))?;
            match content.visible().get(name.as_str()).copied().flatten() {
                Some(user) => {
                    let user = Some(Uid::from_raw(user));
                    rustix::fs::chownat(volume, name.as_str(), user, None, AtFlags::SYMLINK_NOFOLLOW)
                        .map_err(io_error("change the owner of", name))
                }
                None => Ok(()),
            }
        }
        Step::Hide(name) => match rustix::fs::unlinkat(volume, name.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(io_error("remove", name)(errno)),
        },
    }
}

/// Writes a new set of files, with everything that readers shall find: it is not seen before it is complete.
fn write(volume: BorrowedFd<'_>, name: &str, content: &Content) -> Result<(), WriteError> {
    rustix::fs::mkdirat(volume, name, Mode::from_raw_mode(0o755)).map_err(io_error("create", name))?;
    let set = open::dir_beneath(volume, name)?;
    rustix::fs::fchmod(&set, Mode::from_raw_mode(0o755)).map_err(io_error("set the mode of", name))?;
    for (path, file) in &content.files {
        if let Some(parent) = path.parents().last() {
            open::create_dirs_beneath(set.as_fd(), parent, 0o777)?;
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let fd = open::beneath(set.as_fd(), Path::new(path.as_str()), flags, 0o600)?;
        let failed = |doing| move |errno: Errno| io_error(doing, path.as_str())(errno);
        if let Some(user) = file.user {
            let root: Option<Gid> = None;
            rustix::fs::fchown(&fd, Some(Uid::from_raw(user)), root).map_err(failed("changing the owner of"))?;
        }
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(file.mode)).map_err(failed("setting the mode of"))?;
        std::fs::File::from(fd).write_all(&file.data).map_err(|source| WriteError::Io {
            doing: "write",
            name: path.as_str().to_owned(),
            source,
        })?;
    }
    if let Some(group) = content.fs_group {
        ownership::give(set.as_fd(), group, Access::ReadOnly, ownership::PATIENCE)?;
        // The volume's own directory, once: its other names are links, which nobody asks for their group.
        if !ownership::is_given(volume, group, Access::ReadOnly)? {
            ownership::give_one(volume, group, Access::ReadOnly).map_err(io_error("give to its group", "."))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::os::unix::fs::{MetadataExt, symlink};

    fn is_root() -> bool {
        rustix::process::getuid().is_root()
    }

    fn content(files: &[(&str, &str)]) -> Content {
        let file = |data: &str| File { data: data.as_bytes().to_vec(), mode: 0o640, user: None };
        let files = files.iter().map(|(path, data)| (FilePath::parse("path", path).unwrap(), file(data))).collect();
        Content { files, fs_group: None }
    }

    fn numbered() -> impl FnMut() -> String {
        let mut n = 0;
        move || {
            n += 1;
            format!("..2026_01_01_00_00_00.{n}")
        }
    }

    /// What a reader sees who opens the set once, as a program does that reads all of its configuration.
    fn read(dir: &Path) -> Option<BTreeMap<String, String>> {
        fn below(dir: &Path, base: &Path, files: &mut BTreeMap<String, String>) {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    below(&path, base, files);
                } else {
                    let name = path.strip_prefix(base).unwrap().display().to_string();
                    files.insert(name, std::fs::read_to_string(&path).unwrap());
                }
            }
        }
        let set = dir.join(DATA).canonicalize().ok()?;
        let mut files = BTreeMap::new();
        below(&set, &set, &mut files);
        Some(files)
    }

    fn as_read(content: &Content) -> Option<BTreeMap<String, String>> {
        let text = |file: &File| String::from_utf8(file.data.clone()).unwrap();
        Some(content.files.iter().map(|(path, file)| (path.as_str().to_owned(), text(file))).collect())
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The process dies after each step, and in the middle of writing.
    #[test]
    fn a_crash_at_any_step_leaves_old_or_new() {
        let old = content(&[("a", "1"), ("d/x", "1"), ("d/e/y", "1"), ("gone", "1")]);
        let new = content(&[("a", "2"), ("d/x", "2"), ("n/y", "2")]);
        let total = 6; // steps of this change
        for crash_after in 0..=total {
            let dir = tempfile::tempdir().unwrap();
            let volume = open::base_dir(dir.path()).unwrap();
            let mut names_of_sets = numbered();
            assert!(put(volume.as_fd(), &old, &mut names_of_sets).unwrap());
            assert!(!put(volume.as_fd(), &old, &mut names_of_sets).unwrap(), "unchanged content is not written");
            let steps = plan(volume.as_fd(), &new, &mut names_of_sets).unwrap();
            let mut published = false;
            for step in steps.iter().take(crash_after) {
                take(volume.as_fd(), step, &new).unwrap();
                published |= *step == Step::Publish;
                assert_eq!(read(dir.path()), as_read(if published { &new } else { &old }), "after {step:?}");
            }
            if crash_after == 1 {
                // Half of the files, one of them half written.
                let Step::Write(set) = &steps[0] else { panic!("{steps:?}") };
                std::fs::write(dir.path().join(set).join("a"), "").unwrap();
                std::fs::remove_file(dir.path().join(set).join("n/y")).unwrap();
            }
            assert_eq!(put(volume.as_fd(), &new, &mut names_of_sets).unwrap(), crash_after < steps.len());
            assert_eq!(read(dir.path()), as_read(&new));
            let names = names(dir.path());
            assert_eq!((names.len(), &names[1..]), (5, &["..data", "a", "d", "n"].map(String::from)[..]), "{names:?}");
            for name in ["a", "d/x", "n/y"] {
                assert_eq!(std::fs::read_to_string(dir.path().join(name)).unwrap(), "2");
            }
            assert_eq!(steps.len(), total, "{steps:?}");
        }
    }

    #[test]
    fn modes_owners_and_the_group() {
        if !is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("v");
        std::fs::create_dir(&base).unwrap();
        let volume = open::base_dir(&base).unwrap();
        let mut wanted = content(&[("token", "t"), ("d/private", "p")]);
        for (path, file) in &mut wanted.files {
            let private = path.as_str() != "token";
            (file.mode, file.user) = if private { (0o600, None) } else { (0o444, Some(1000)) };
        }
        put(volume.as_fd(), &wanted, numbered()).unwrap();
        let look = |path: &str| {
            let meta = std::fs::symlink_metadata(base.join(path)).unwrap();
            (meta.mode() & 0o7777, meta.uid(), meta.gid())
        };
        assert_eq!(look("..data/token"), (0o444, 1000, 0));
        assert_eq!(look("token").1, 1000, "the link, too");
        assert_eq!(look("..data/d/private"), (0o600, 0, 0));
        assert_eq!(look("..data/d").0, 0o755);
        assert_eq!(look("..data/.").0, 0o755);
        wanted.fs_group = Some(2000);
        assert!(!put(volume.as_fd(), &wanted, numbered()).unwrap(), "the group is given to what is written");
        wanted.files.pop_first();
        put(volume.as_fd(), &wanted, {
            let mut more = numbered();
            move || format!("{}0", more())
        })
        .unwrap();
        assert_eq!(look("..data/token"), (0o444, 1000, 2000));
        assert_eq!(look("..data/."), (0o2755, 0, 2000));
        assert_eq!(look("."), (0o2755, 0, 2000));
    }

    /// What a pod with a way to write there may have planted is removed or left, never followed.
    #[test]
    fn planted_names() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("keep"), "untouched").unwrap();
        let wanted = content(&[("a", "1"), ("d/x", "1"), ("mine", "1")]);
        let plants: [&dyn Fn(&Path); 7] = [
            &|v| symlink(&outside, v.join("..data")).unwrap(),
            &|v| symlink("/etc", v.join("..data_tmp")).unwrap(),
            &|v| std::fs::create_dir_all(v.join("..data/a")).unwrap(),
            &|v| symlink(&outside, v.join("d")).unwrap(),
            &|v| symlink(outside.join("keep"), v.join("a")).unwrap(),
            &|v| symlink(&outside, v.join("..2026_01_01_00_00_00.1")).unwrap(),
            &|v| {
                std::fs::create_dir(v.join("..2020_01_01_00_00_00.7")).unwrap();
                symlink(&outside, v.join("..2020_01_01_00_00_00.7/a")).unwrap();
                symlink("..2020_01_01_00_00_00.7", v.join("..data")).unwrap();
            },
        ];
        for (i, plant) in plants.iter().enumerate() {
            let base = dir.path().join(format!("v{i}"));
            std::fs::create_dir(&base).unwrap();
            std::fs::write(base.join("mine"), "a pod's own").unwrap();
            plant(&base);
            let volume = open::base_dir(&base).unwrap();
            put(volume.as_fd(), &wanted, numbered()).unwrap();
            assert_eq!(read(&base), as_read(&wanted), "{i}");
            assert_eq!(std::fs::read_to_string(base.join("a")).unwrap(), "1", "{i}");
            assert_eq!(std::fs::read_to_string(base.join("d/x")).unwrap(), "1", "{i}");
            assert_eq!(std::fs::read_to_string(base.join("mine")).unwrap(), "a pod's own", "{i}");
            assert!(!put(volume.as_fd(), &wanted, numbered()).unwrap());
        }
        assert_eq!(names(&outside), ["keep"]);
        assert_eq!(std::fs::read_to_string(outside.join("keep")).unwrap(), "untouched");
    }

    /// Contents that somebody changed in place are put right.
    #[test]
    fn what_was_changed_is_not_what_is_wanted() {
        let wanted = content(&[("a", "1"), ("d/x", "1")]);
        let changes: [&dyn Fn(&Path); 5] = [
            &|set| std::fs::write(set.join("a"), "2").unwrap(),
            &|set| std::fs::write(set.join("a"), "11").unwrap(),
            &|set| std::fs::remove_file(set.join("d/x")).unwrap(),
            &|set| std::fs::write(set.join("d/more"), "").unwrap(),
            &|set| std::fs::create_dir(set.join("empty")).unwrap(),
        ];
        for change in changes {
            let dir = tempfile::tempdir().unwrap();
            let volume = open::base_dir(dir.path()).unwrap();
            let mut sets = numbered();
            put(volume.as_fd(), &wanted, &mut sets).unwrap();
            change(&dir.path().join(DATA));
            assert!(put(volume.as_fd(), &wanted, &mut sets).unwrap());
            assert_eq!(read(dir.path()), as_read(&wanted));
        }
        let dir = tempfile::tempdir().unwrap();
        let volume = open::base_dir(dir.path()).unwrap();
        put(volume.as_fd(), &Content::default(), numbered()).unwrap();
        assert_eq!(read(dir.path()), as_read(&Content::default()), "no files are a set, too");
        assert!(!put(volume.as_fd(), &Content::default(), numbered()).unwrap());
    }
}
