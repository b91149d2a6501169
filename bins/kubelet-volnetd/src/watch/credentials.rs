//! Changes of kubeconfigs and of the files that they name, and of files that are known from the start.
//!
//! Directories are watched and names in them meant, because files are replaced by renaming: a link that is swapped
//! (`kubelet-client-current.pem`), a token behind `..data`, a kubeconfig that appears. Every link on the way to a file is
//! a name that is meant, and so is the first component that is missing. A slow look finds what no event told (a
//! directory further up that was renamed).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use bulkhead_sys::inotify::{Change, Event, WatchId};
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::{Follower, RETRY};
use crate::kubeconfig;

/// The slow look.
const AUDIT: Duration = Duration::from_secs(60);

/// As the kernel's own limit (MAXSYMLINKS).
const MAX_LINKS: usize = 40;

/// What is followed.
#[derive(Debug, Clone, Default)]
pub(super) struct Subject {
    /// They, and what they name.
    pub(super) kubeconfigs: Vec<PathBuf>,
    pub(super) files: Vec<PathBuf>,
}

/// What to watch: directories, and the names in them that are meant.
type Names = BTreeMap<PathBuf, BTreeSet<OsString>>;

/// What is on the disk: device, inode, size, and the times of change in nanoseconds.
type Print = (u64, u64, u64, i128, i128);

/// One look at the disk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Observation {
    names: Names,
    /// Tells whether a file is another one or has other contents.
    prints: BTreeMap<PathBuf, Option<Print>>,
}

/// Tells `sender` of every change, for life.
pub(super) async fn follow(mut follower: Follower, subject: Subject, sender: broadcast::Sender<()>) {
    let mut seen = look(&subject).await;
    loop {
        let mut watches = BTreeMap::new();
        let mut all = true;
        for (dir, names) in &seen.names {
            match follower.watch_dir(dir).await {
                // Two ways to one directory are one watch.
                Ok(watch) => {
                    let counted: &mut (usize, BTreeSet<OsString>) = watches.entry(watch).or_default();
                    counted.0 += 1;
                    counted.1.extend(names.iter().cloned());
                }
                Err(error) => {
                    tracing::debug!(path = %dir.display(), %error, "cannot watch for credentials, trying again");
                    all = false;
                }
            }
        }
        // What changed between the look and the watches is seen now; what changes from here on is an event.
        let now = look(&subject).await;
        let settled = now.names == seen.names;
        seen = now;
        if settled {
            let _ = sender.send(());
            seen = until_moved(&mut follower, &watches, &subject, seen, all, &sender).await;
        }
        for (watch, (count, _)) in watches {
            for _ in 0..count {
                follower.unwatch(watch).await;
            }
        }
    }
}

/// Tells changes until other directories or names have to be watched; gives the look that says which.
async fn until_moved(
    follower: &mut Follower,
    watches: &BTreeMap<WatchId, (usize, BTreeSet<OsString>)>,
    subject: &Subject,
    mut seen: Observation,
    all_watched: bool,
    sender: &broadcast::Sender<()>,
) -> Observation {
    let patience = if all_watched { AUDIT } else { RETRY };
    let mut audit = Instant::now() + patience;
    loop {
        let told = match tokio::time::timeout_at(audit, follower.next()).await {
            Ok(event) if !is_meant(&event, watches) => continue,
            Ok(_) => true,
            Err(_) => false,
        };
        audit = Instant::now() + patience;
        // A replacement is several events: one look after the last of those that are here.
        while follower.is_behind() {
            follower.next().await;
        }
        let now = look(subject).await;
        if now.names != seen.names || !all_watched {
            return now;
        }
        if told || now.prints != seen.prints {
            let _ = sender.send(());
        }
        seen = now;
    }
}

fn is_meant(event: &Event, watches: &BTreeMap<WatchId, (usize, BTreeSet<OsString>)>) -> bool {
    if event.change == Change::Overflow {
        return true;
    }
    let Some((_, names)) = event.watch.and_then(|watch| watches.get(&watch)) else { return false };
    // Without a name it is about the directory: gone, or its mode or owner, which decide whether we trust it.
    event.name.is_empty() || names.contains(&event.name)
}

async fn look(subject: &Subject) -> Observation {
    let subject = subject.clone();
    tokio::task::spawn_blocking(move || look_now(&subject)).await.unwrap_or_default()
}

fn look_now(subject: &Subject) -> Observation {
    let mut look = Observation::default();
    let mut files = subject.files.clone();
    for path in &subject.kubeconfigs {
        let named = kubeconfig::read(path).unwrap_or_else(|error| {
            tracing::debug!(error = bulkhead_types::chain(&error), "no files are named by the kubeconfig");
            Default::default()
        });
        files.push(path.clone());
        files.extend(named.iter().map(Path::to_owned));
    }
    for file in &files {
        note(file, &mut look.names);
        let print = std::fs::metadata(file).ok().map(|meta| {
            let time = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
            let (ctime, mtime) = (time(meta.ctime(), meta.ctime_nsec()), time(meta.mtime(), meta.mtime_nsec()));
            (meta.dev(), meta.ino(), meta.size(), ctime, mtime)
        });
        look.prints.insert(file.to_owned(), print);
    }
    look
}

/// Adds the directories and names that decide what `path` leads to.
fn note(path: &Path, names: &mut Names) {
    let mut add = |dir: &Path, name: &std::ffi::OsStr| {
        names.entry(dir.to_owned()).or_default().insert(name.to_owned());
    };
    let mut todo = components(path);
    let (mut here, mut links) = (PathBuf::from("/"), 0);
    while let Some(name) = todo.pop_front() {
        if name == ".." {
            here.pop();
            continue;
        }
        let next = here.join(&name);
        match std::fs::symlink_metadata(&next) {
            Ok(meta) if meta.is_symlink() => {
                add(&here, &name);
                links += 1;
                let Ok(target) = std::fs::read_link(&next) else { return };
                if links > MAX_LINKS {
                    return;
                }
                if target.is_absolute() {
                    here = PathBuf::from("/");
                }
                for component in components(&target).into_iter().rev() {
                    todo.push_front(component);
                }
            }
            Ok(meta) if meta.is_dir() && !todo.is_empty() => here = next,
            // The file itself, or what is missing (or in the way) until it comes.
            Ok(_) | Err(_) => return add(&here, &name),
        }
    }
}

fn components(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        .map(|part| std::ffi::OsStr::from_bytes(part.as_os_str().as_bytes()).to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn of_kubeconfig(path: &Path) -> Subject {
        Subject { kubeconfigs: vec![path.to_owned()], ..Subject::default() }
    }

    fn watch(subject: Subject) -> super::super::Watches {
        let Subject { kubeconfigs, files: serving, .. } = subject;
        super::super::tests::start(super::super::Followed { kubeconfigs, serving, ..Default::default() })
    }

    async fn changed(receiver: &mut broadcast::Receiver<()>) {
        match tokio::time::timeout(Duration::from_secs(10), receiver.recv()).await.expect("a change") {
            Ok(()) | Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Acts until the change is seen and nothing more comes: the watches may still be on their way to the last state.
    async fn each_time(receiver: &mut broadcast::Receiver<()>, mut act: impl FnMut()) {
        while receiver.try_recv().is_ok() {}
        act();
        changed(receiver).await;
    }

    #[test]
    fn every_link_and_the_first_missing_name() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(base.join("v/..1")).unwrap();
        std::fs::write(base.join("v/..1/token"), "x").unwrap();
        symlink("..1", base.join("v/..data")).unwrap();
        symlink("..data/token", base.join("v/token")).unwrap();
        let names = |path: &str| {
            let mut names = Names::new();
            note(&base.join(path), &mut names);
            let text = |p: &Path| p.strip_prefix(&base).unwrap().display().to_string();
            let mut all: Vec<String> = Vec::new();
            for (dir, names) in &names {
                all.extend(names.iter().map(|n| format!("{}:{}", text(dir), n.display())));
            }
            all
        };
        assert_eq!(names("v/token"), ["v:..data", "v:token", "v/..1:token"]);
        assert_eq!(names("v/none/deep"), ["v:none"]);
        assert_eq!(names("v/../w"), [":w"]);
        symlink("loop", base.join("loop")).unwrap();
        assert_eq!(names("loop"), [":loop"]);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_kubeconfig_that_comes_and_a_certificate_that_is_swapped() {
        if !rustix::process::getuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let path = base.join("etc/kubelet.conf");
        let watches = watch(of_kubeconfig(&path));
        let mut changes = watches.credentials();
        changed(&mut changes).await;
        std::fs::create_dir(base.join("pki")).unwrap();
        let text = |ca: &str| {
            format!(
                "current-context: a\ncontexts: [{{name: a, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: \
                 {{client-key: {}/pki/current.pem}}}}]\nclusters: [{{name: c, cluster: {{certificate-authority: {ca}}}}}]\n",
                base.display()
            )
        };
        each_time(&mut changes, || {
            std::fs::create_dir(base.join("etc")).unwrap();
            std::fs::write(&path, text("ca.crt")).unwrap();
        })
        .await;
        // Both files are missing; the look at the new kubeconfig may follow the first answer.
        let wait_for = |want: &'static [&'static str]| {
            let base = base.clone();
            let path = path.clone();
            async move {
                let names = look(&of_kubeconfig(&path)).await.names;
                want.iter().all(|dir| names.contains_key(&base.join(dir)))
            }
        };
        assert!(wait_for(&["etc", "pki"]).await);
        let swap = |n: u32| {
            let name = format!("dated-{n}.pem");
            std::fs::write(base.join("pki").join(&name), "x").unwrap();
            let _ = std::fs::remove_file(base.join("pki/updated.pem"));
            symlink(&name, base.join("pki/updated.pem")).unwrap();
            std::fs::rename(base.join("pki/updated.pem"), base.join("pki/current.pem")).unwrap();
        };
        for n in 0..5 {
            each_time(&mut changes, || swap(n)).await;
        }
        each_time(&mut changes, || std::fs::write(base.join("etc/ca.crt"), "x").unwrap()).await;
        each_time(&mut changes, || std::fs::write(&path, text("../other/ca.crt")).unwrap()).await;
        each_time(&mut changes, || {
            std::fs::create_dir(base.join("other")).unwrap();
            std::fs::write(base.join("other/ca.crt"), "x").unwrap();
        })
        .await;
        each_time(&mut changes, || std::fs::remove_file(&path).unwrap()).await;
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_pair_that_comes_and_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let files = ["pki/kubelet.crt", "pki/kubelet.key", "ca.crt"].map(|name| base.join(name));
        let watches = watch(Subject { files: files.to_vec(), ..Subject::default() });
        let mut changes = watches.serving();
        changed(&mut changes).await;
        let mut others = watches.credentials();
        each_time(&mut changes, || {
            std::fs::create_dir(base.join("pki")).unwrap();
            std::fs::write(&files[0], "a").unwrap();
        })
        .await;
        each_time(&mut changes, || std::fs::write(&files[1], "b").unwrap()).await;
        each_time(&mut changes, || {
            std::fs::write(base.join("new"), "c").unwrap();
            std::fs::rename(base.join("new"), &files[2]).unwrap();
        })
        .await;
        each_time(&mut changes, || std::fs::remove_file(&files[0]).unwrap()).await;
        assert!(others.try_recv().is_err(), "the kubeconfig's followers hear nothing of it");
    }
}
