//! Log folders and the links to logs. The runtime writes the files; what is rotated is in [`super::rotation`].

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_sys::{open, tree};
use bulkhead_types::{ContainerId, ContainerName, PodUid};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::FileError;
use crate::node::Node;
use crate::validate::PodLog;

const MAX_ENTRIES: usize = 200_000;

/// ext4's limit for a file name, less ".log" (upstream `logSymlink`).
const MAX_LINK_STEM: usize = 255 - 4;

/// Creates the pod's log folder, and the container's; answers the pod's and the highest log index of the container.
pub fn prepare(
    node: &Node,
    pod: &PodLog,
    container: Option<&ContainerName>,
) -> Result<(PathBuf, Option<u32>), FileError> {
    let pod_path = node.settings.paths.pod_logs_dir.join(pod.dir_name());
    let open_error = |source| FileError::Open { doing: "create", path: pod_path.clone(), source };
    let base = logs_dir(node)?;
    let pod_dir = open::create_dirs_beneath(base.as_fd(), pod.dir_name(), 0o755).map_err(open_error)?;
    let mut highest = None;
    if let Some(container) = container {
        let dir = open::create_dirs_beneath(pod_dir.as_fd(), container.as_str(), 0o755).map_err(open_error)?;
        let entries = list(&dir, &pod_path)?;
        highest = entries.iter().filter_map(|entry| log_index(entry.name.to_str()?)).max();
    }
    Ok((pod_path, highest))
}

/// `<n>` of `<n>.log…`.
fn log_index(name: &str) -> Option<u32> {
    let (index, rest) = name.split_once('.')?;
    let is_log = rest == "log" || rest.starts_with("log.");
    // "+1" and "01" are not what a runtime writes.
    let index_ok = index == "0" || (!index.starts_with('0') && index.bytes().all(|b| b.is_ascii_digit()));
    if is_log && index_ok { index.parse().ok() } else { None }
}

/// `<pod>_<namespace>_<container>-<id>.log`, cut to what ext4 takes.
fn link_name(pod: &PodLog, container: &ContainerName, id: &ContainerId) -> String {
    let mut stem = format!("{}_{}_{container}-{id}", pod.name, pod.namespace);
    // All of it is ASCII, by the types.
    stem.truncate(MAX_LINK_STEM);
    stem + ".log"
}

/// Makes the link in `/var/log/containers` point at the log file, whether or not that exists already. Where the folder that it is to
/// be in is gone, so is the pod, and no link is left: who asks may have been told of the container before its end.
pub fn link(
    node: &Node,
    pod: &PodLog,
    container: &ContainerName,
    restart: u32,
    id: &ContainerId,
) -> Result<PathBuf, FileError> {
    let name = link_name(pod, container, id);
    let path = node.settings.container_links_dir.join(&name);
    let error = |errno: Errno| FileError::Io { doing: "link", path: path.clone(), source: errno.into() };
    let target =
        node.settings.paths.pod_logs_dir.join(pod.dir_name()).join(container.as_str()).join(format!("{restart}.log"));
    let dir = links_dir(node)?;
    match rustix::fs::readlinkat(&dir, name.as_str(), Vec::new()) {
        Ok(now) if now.to_bytes() == std::os::unix::ffi::OsStrExt::as_bytes(target.as_os_str()) => return Ok(path),
        Ok(_) => rustix::fs::unlinkat(&dir, name.as_str(), AtFlags::empty()).map_err(error)?,
        Err(Errno::NOENT) => {}
        // Not a link: somebody else's file stays.
        Err(errno) => return Err(error(errno)),
    }
    rustix::fs::symlinkat(&target, &dir, name.as_str()).map_err(error)?;
    // After the link: a folder that goes from now on is followed by a look for links that lead nowhere.
    let base = logs_dir(node)?;
    let folder = open::dir_beneath(base.as_fd(), Path::new(&pod.dir_name()).join(container.as_str()));
    if folder.is_err_and(|error| error.is_not_found()) {
        unlink(&dir, &node.settings.container_links_dir, std::ffi::OsStr::new(&name))?;
    }
    Ok(path)
}

/// Removes `<restart>.log` and what was rotated from it, and the link.
pub fn remove(
    node: &Node,
    pod: &PodLog,
    container: &ContainerName,
    restart: u32,
    id: &ContainerId,
) -> Result<(), FileError> {
    let path = node.settings.paths.pod_logs_dir.join(pod.dir_name()).join(container.as_str());
    let base = logs_dir(node)?;
    match open::dir_beneath(base.as_fd(), Path::new(&pod.dir_name()).join(container.as_str())) {
        Ok(dir) => {
            for entry in list(&dir, &path)? {
                if entry.name.to_str().and_then(log_index) == Some(restart) && !entry.is_dir {
                    unlink(&dir, &path, &entry.name)?;
                }
            }
        }
        Err(err) if err.is_not_found() => {}
        Err(source) => return Err(FileError::Open { doing: "open", path, source }),
    }
    let links = links_dir(node)?;
    let name = link_name(pod, container, id);
    if rustix::fs::readlinkat(&links, name.as_str(), Vec::new()).is_ok() {
        unlink(&links, &node.settings.container_links_dir, std::ffi::OsStr::new(&name))?;
    }
    Ok(())
}

/// Removes log folders of pods that are not named, and links into our log folder that lead nowhere for good. Answers what went.
pub fn prune(node: &Node, known: &HashSet<PodUid>) -> Result<Vec<String>, FileError> {
    let mut removed = Vec::new();
    let base_path = &node.settings.paths.pod_logs_dir;
    let base = logs_dir(node)?;
    for entry in list(&base, base_path)? {
        let Some(uid) = entry.name.to_str().filter(|_| entry.is_dir).and_then(uid_of_log_dir) else { continue };
        if known.contains(&uid) {
            continue;
        }
        let path = base_path.join(&entry.name);
        tree::remove(base.as_fd(), &entry.name).map_err(|source| FileError::Remove { path: path.clone(), source })?;
        removed.push(path.display().to_string());
    }
    let links = links_dir(node)?;
    for entry in list(&links, &node.settings.container_links_dir)? {
        if !entry.is_link {
            continue;
        }
        let path = node.settings.container_links_dir.join(&entry.name);
        let Ok(target) = std::fs::read_link(&path) else { continue };
        // Another node on this machine has its own log folder and looks after its own links.
        let Ok(log) = target.strip_prefix(base_path) else { continue };
        // Looked for once more at the end: what the listing missed has been opened anew meanwhile.
        if !target.exists() && leaves_nothing(&base, log) && !target.exists() {
            unlink(&links, &node.settings.container_links_dir, &entry.name)?;
            removed.push(path.display().to_string());
        }
    }
    Ok(removed)
}

/// Whether of a log that is not there nothing is left either: not its folder, or nothing that was rotated from it. Between the
/// rename and the runtime's opening anew there is no file under the log's name, and the link stays (kubernetes#52172; upstream's
/// `kuberuntime_gc.go`, evictPodLogsDirectories, asks the runtime whether the container has ended). What was rotated goes with its
/// container or its pod, and the link with it.
fn leaves_nothing(base: &OwnedFd, log: &Path) -> bool {
    let (Some(folder), Some(name)) = (log.parent(), log.file_name()) else { return true };
    let Some(number) = name.to_str().and_then(log_index) else { return true };
    let Ok(dir) = open::dir_beneath(base.as_fd(), folder) else { return true };
    let is_of_it = |entry: &tree::Entry| !entry.is_dir && entry.name.to_str().and_then(log_index) == Some(number);
    // What cannot be listed may have something.
    list(&dir, folder).is_ok_and(|entries| !entries.iter().any(is_of_it))
}

/// `<namespace>_<name>_<uid>`, or a plain uid as old kubelets had it.
fn uid_of_log_dir(name: &str) -> Option<PodUid> {
    let parts: Vec<&str> = name.splitn(3, '_').collect();
    match parts[..] {
        [namespace, pod, uid] => {
            bulkhead_types::Namespace::parse(namespace).ok()?;
            bulkhead_types::PodName::parse(pod).ok()?;
            PodUid::parse(uid).ok()
        }
        // Anything else in the folder is not ours to judge, unless it looks like nothing but a uid.
        [uid] if is_uid(uid) => PodUid::parse(uid).ok(),
        _ => None,
    }
}

fn is_uid(text: &str) -> bool {
    let hex = text.bytes().filter(|b| *b != b'-').all(|b| b.is_ascii_hexdigit());
    hex && (text.len() == 32 || (text.len() == 36 && text.bytes().filter(|b| *b == b'-').count() == 4))
}

pub(super) fn logs_dir(node: &Node) -> Result<OwnedFd, FileError> {
    let path = &node.settings.paths.pod_logs_dir;
    open::base_dir(path).map_err(|source| FileError::Open { doing: "open", path: path.clone(), source })
}

fn links_dir(node: &Node) -> Result<OwnedFd, FileError> {
    let path = &node.settings.container_links_dir;
    open::base_dir(path).map_err(|source| FileError::Open { doing: "open", path: path.clone(), source })
}

pub(super) fn list(dir: &OwnedFd, path: &Path) -> Result<Vec<tree::Entry>, FileError> {
    tree::list(dir.as_fd(), MAX_ENTRIES).map_err(|source| FileError::Io {
        doing: "list",
        path: path.to_owned(),
        source,
    })
}

pub(super) fn unlink(dir: &OwnedFd, path: &Path, name: &std::ffi::OsStr) -> Result<(), FileError> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(FileError::Io { doing: "remove", path: path.join(name), source: errno.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes() {
        for (name, index) in [
            ("0.log", Some(0)),
            ("12.log", Some(12)),
            ("3.log.20260101-000000", Some(3)),
            ("3.log.20260101-000000.gz", Some(3)),
            ("3.logs", None),
            ("x.log", None),
            ("01.log", None),
            ("+1.log", None),
            ("99999999999.log", None),
            (".log", None),
        ] {
            assert_eq!(log_index(name), index, "{name}");
        }
    }

    #[test]
    fn link_names_fit() {
        let pod = PodLog {
            namespace: bulkhead_types::Namespace::parse(&"n".repeat(63)).unwrap(),
            name: bulkhead_types::PodName::parse(&"p".repeat(253)).unwrap(),
            uid: PodUid::parse("u").unwrap(),
        };
        let container = ContainerName::parse("c").unwrap();
        let id = ContainerId::parse(&"f".repeat(64)).unwrap();
        assert_eq!(link_name(&pod, &container, &id).len(), 255);
    }

    #[test]
    fn a_log_that_was_rotated_leaves_something() {
        let dir = tempfile::tempdir().unwrap();
        let base = open::base_dir(dir.path()).unwrap();
        let gone = |log: &str| leaves_nothing(&base, Path::new(log));
        assert!(gone("ns_p_u/c/0.log"), "no folder");
        let folder = dir.path().join("ns_p_u/c");
        std::fs::create_dir_all(&folder).unwrap();
        assert!(gone("ns_p_u/c/0.log"), "an empty folder");
        std::fs::write(folder.join("1.log.20260101-000000"), "").unwrap();
        assert!(gone("ns_p_u/c/0.log"), "another instance's");
        assert!(!gone("ns_p_u/c/1.log"));
        std::fs::rename(folder.join("1.log.20260101-000000"), folder.join("1.log.20260101-000000.gz")).unwrap();
        assert!(!gone("ns_p_u/c/1.log"));
        for strange in ["", "ns_p_u", "ns_p_u/c/x", "../1.log", "ns_p_u/c/../../../1.log"] {
            assert!(gone(strange), "{strange}");
        }
    }

    #[test]
    fn only_folders_of_pods_are_ours() {
        let uid = |name| uid_of_log_dir(name).map(|u| u.to_string());
        assert_eq!(uid("default_web_u_1").as_deref(), Some("u_1"));
        assert_eq!(uid("0123456789abcdef0123456789abcdef").as_deref(), Some("0123456789abcdef0123456789abcdef"));
        for name in ["lost+found", "my-backup", "Default_web_u", "a_b", "_x_u"] {
            assert_eq!(uid(name), None, "{name}");
        }
    }
}
