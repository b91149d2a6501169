//! `--lock-file` and `--exit-on-lock-contention`: one process at a time, and the old one makes way for the new.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify;
use rustix::process::{Signal, getpid, kill_process};

/// The lock was not had, or nobody could watch it.
#[derive(Debug, thiserror::Error)]
#[error("failed to {doing} the lock file {path:?} of --lock-file")]
pub struct LockError {
    doing: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// Held for the life of the process; no child inherits it.
#[derive(Debug)]
pub struct LockFile {
    _file: File,
}

/// Takes the lock and waits for it if it must (upstream `pkg/util/flock`). With `make_way`, this process is told to
/// stop (SIGTERM) as soon as somebody opens or deletes the file.
pub fn acquire(path: &Path, make_way: bool) -> Result<LockFile, LockError> {
    let file = lock(path, None)?;
    if make_way {
        watch(path, &file).map_err(|source| LockError { doing: "watch", path: path.to_owned(), source })?;
    }
    Ok(LockFile { _file: file })
}

/// The locked file. `earlier` is what an earlier start of this node left open: as long as it is the file at `path`, the
/// lock is ours already.
pub fn lock(path: &Path, earlier: Option<File>) -> Result<File, LockError> {
    let failed = |doing| move |source| LockError { doing, path: path.to_owned(), source };
    if let Some(file) = earlier.filter(|file| is_at(file, path)) {
        file.lock().map_err(failed("lock"))?;
        return Ok(file);
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(failed("open"))?;
    file.lock().map_err(failed("lock"))?;
    Ok(file)
}

fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(ours), Ok(there)) = (file.metadata(), std::fs::metadata(path)) else { return false };
    (ours.dev(), ours.ino()) == (there.dev(), there.ino())
}

/// How often is looked where nothing is watched, and how often the kernel is asked for an instance.
const AUDIT: Duration = Duration::from_secs(5);

/// Gives a watch of the file.
type Opener = Box<dyn FnMut() -> io::Result<OwnedFd> + Send>;

fn opener(path: &Path) -> Opener {
    let path = path.to_owned();
    Box::new(move || {
        let notifier = inotify::init(inotify::CreateFlags::CLOEXEC)?;
        inotify::add_watch(&notifier, &path, inotify::WatchFlags::OPEN | inotify::WatchFlags::DELETE_SELF)?;
        Ok(notifier)
    })
}

fn watch(path: &Path, file: &File) -> io::Result<()> {
    let (contended, open) = (Contended::of(path, file)?, opener(path));
    // A thread, because everything else here waits in a runtime that starts later. It gives up all capabilities first:
    // they belong to each thread, and those that the main thread drops would live on here.
    std::thread::Builder::new().name("lock-file".into()).spawn(move || {
        if let Err(error) = bulkhead_sys::process::keep_only(&[]) {
            tracing::error!(error = &error as &dyn std::error::Error, "failed to watch the lock file");
            return;
        }
        wait_for_contention(open, &contended, AUDIT);
        tracing::info!("somebody else wants the lock file, stopping");
        if let Err(error) = kill_process(getpid(), Signal::TERM) {
            tracing::error!(%error, "could not stop for the lock file");
        }
    })?;
    Ok(())
}

/// The kernel gives root's processes so many inotify instances together, and pods of root's may have used them up: then
/// whoever *waits* for the lock is found by looking, and the kernel is asked again.
fn wait_for_contention(mut open: Opener, contended: &Contended, audit: Duration) {
    let mut complained = false;
    loop {
        let error = match open() {
            Ok(notifier) => return wait_for_event(&notifier),
            Err(error) => error,
        };
        // Also when it cannot be looked for: better to make way than to hold what others wait for.
        if contended.now().unwrap_or(true) {
            return;
        }
        if !std::mem::replace(&mut complained, true) {
            tracing::warn!(%error, every = ?audit, "failed to watch the lock file, polling it instead");
        }
        std::thread::sleep(audit);
    }
}

fn wait_for_event(notifier: &OwnedFd) {
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut reader = inotify::Reader::new(notifier, &mut buffer);
    loop {
        match reader.next() {
            Err(rustix::io::Errno::INTR) => {}
            // An error ends the watch, and with it the lock: better to make way.
            Ok(_) | Err(_) => return,
        }
    }
}

/// Tells by a look whether somebody else wants the file: waits for its lock, or has deleted it.
#[derive(Debug)]
struct Contended {
    path: PathBuf,
    /// Device and inode.
    file: (u64, u64),
}

impl Contended {
    fn of(path: &Path, file: &File) -> io::Result<Self> {
        let meta = file.metadata()?;
        Ok(Contended { path: path.to_owned(), file: (meta.dev(), meta.ino()) })
    }

    fn now(&self) -> io::Result<bool> {
        let still = std::fs::metadata(&self.path).is_ok_and(|there| (there.dev(), there.ino()) == self.file);
        Ok(!still || is_waited_for(&std::fs::read_to_string("/proc/locks")?, std::process::id(), self.file.1))
    }
}

/// Whether /proc/locks has somebody wait for the lock that this process holds on the inode (proc_locks(5)): a line
/// `1: FLOCK  ADVISORY  WRITE 10 08:01:42 0 EOF` with `1: -> FLOCK  ADVISORY  WRITE 11 08:01:42 0 EOF` after it. The device is
/// not compared: overlays and btrfs show another one here than stat(2) does.
fn is_waited_for(locks: &str, holder: u32, inode: u64) -> bool {
    let (holder, inode) = (holder.to_string(), format!(":{inode}"));
    let mut ours = false;
    for line in locks.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, "->", ..] if ours => return true,
            [_, "->", ..] => {}
            [_, kind, _, _, pid, file, ..] => ours = kind == "FLOCK" && pid == holder && file.ends_with(&inode),
            _ => ours = false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = acquire(&path, false).unwrap();
        let second = File::open(&path).unwrap();
        assert!(matches!(second.try_lock(), Err(std::fs::TryLockError::WouldBlock)));
        drop(held);
        second.try_lock().unwrap();
        // What an earlier start left is used while it is that file, and not when the path was given to another.
        assert!(is_at(&lock(&path, Some(second.try_clone().unwrap())).unwrap(), &path));
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        assert!(is_at(&lock(&path, Some(second)).unwrap(), &path));
        let missing = acquire(&folder.path().join("no/lock"), false).unwrap_err();
        assert!(missing.to_string().contains("--lock-file"));
    }

    /// As when a pod of root's has taken all inotify instances. Nothing here waits for a time: each state is an event.
    #[test]
    fn without_an_inotify_instance_who_waits_is_found_by_looking() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = acquire(&path, false).unwrap();
        let contended = Contended::of(&path, &held._file).unwrap();
        assert!(!contended.now().unwrap(), "no other process asks for it");
        let (looks, looked) = std::sync::mpsc::channel();
        let none: Opener = Box::new(move || {
            let _ = looks.send(());
            Err(rustix::io::Errno::MFILE.into())
        });
        let watcher = std::thread::spawn(move || wait_for_contention(none, &contended, Duration::from_millis(10)));
        for _ in 0..3 {
            looked.recv().unwrap();
        }
        assert!(!watcher.is_finished());
        // flock(1) of util-linux waits for it as another kubelet does.
        let mut rival = std::process::Command::new("flock").arg(&path).arg("true").spawn().unwrap();
        watcher.join().unwrap();
        drop(held);
        assert!(rival.wait().unwrap().success(), "it was the rival that waited");

        let held = acquire(&path, false).unwrap();
        let contended = Contended::of(&path, &held._file).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(contended.now().unwrap(), "deleted");
    }

    /// The kernel gives an instance later: from then on an open is enough, as it is from the start otherwise.
    #[test]
    fn the_watch_returns() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = acquire(&path, false).unwrap();
        let contended = Contended::of(&path, &held._file).unwrap();
        let (watched, is_watched) = std::sync::mpsc::channel();
        let (mut refusals, file) = (2, path.clone());
        let open: Opener = Box::new(move || {
            if refusals > 0 {
                refusals -= 1;
                return Err(rustix::io::Errno::MFILE.into());
            }
            let notifier = inotify::init(inotify::CreateFlags::CLOEXEC)?;
            inotify::add_watch(&notifier, &file, inotify::WatchFlags::OPEN)?;
            let _ = watched.send(());
            Ok(notifier)
        });
        let watcher = std::thread::spawn(move || wait_for_contention(open, &contended, Duration::from_millis(10)));
        is_watched.recv().unwrap();
        drop(File::open(&path).unwrap());
        watcher.join().unwrap();
    }

    /// The kernel's own refusal, and its change of mind: in a user namespace with a limit of its own, so that no other process
    /// of root's notices.
    #[test]
    fn the_kernel_refuses_an_instance_and_gives_one_later() {
        const INSIDE: &str = "BULKHEAD_TEST_IN_A_USER_NAMESPACE";
        const LIMIT: &str = "/proc/sys/user/max_inotify_instances";
        if std::env::var_os(INSIDE).is_none() {
            let (_, module) = module_path!().split_once("::").unwrap();
            let this = format!("{module}::the_kernel_refuses_an_instance_and_gives_one_later");
            let output = std::process::Command::new("unshare")
                .args(["--user", "--map-root-user"])
                .arg(std::env::current_exe().unwrap())
                .args(["--exact", &this, "--nocapture"])
                .env(INSIDE, "")
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
            assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
            return;
        }
        std::fs::write(LIMIT, "0").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let refused = opener(&path)().unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::MFILE.raw_os_error()));
        let begin = |held: &LockFile| {
            let contended = Contended::of(&path, &held._file).unwrap();
            let (told, news) = std::sync::mpsc::channel();
            let mut open = opener(&path);
            let open: Opener = Box::new(move || {
                let outcome = open();
                let _ = told.send(outcome.is_ok());
                outcome
            });
            (std::thread::spawn(move || wait_for_contention(open, &contended, Duration::from_millis(10))), news)
        };

        let held = acquire(&path, false).unwrap();
        let (watcher, asked) = begin(&held);
        assert!((0..3).all(|_| !asked.recv().unwrap()));
        let mut rival = std::process::Command::new("flock").arg(&path).arg("true").spawn().unwrap();
        watcher.join().unwrap();
        drop(held);
        assert!(rival.wait().unwrap().success());

        let held = acquire(&path, false).unwrap();
        let (watcher, asked) = begin(&held);
        assert!(!asked.recv().unwrap());
        std::fs::write(LIMIT, "1").unwrap();
        while !asked.recv().unwrap() {}
        drop(File::open(&path).unwrap());
        watcher.join().unwrap();
    }

    #[test]
    fn who_waits_in_proc_locks() {
        let line = |id: u32, waits: &str, pid: u32, inode: u32| {
            format!("{id}: {waits}FLOCK  ADVISORY  WRITE {pid} 08:01:{inode} 0 EOF\n")
        };
        let waits = [line(1, "", 10, 42), line(1, "-> ", 11, 42), line(2, "", 10, 142)].concat();
        assert!(is_waited_for(&waits, 10, 42));
        assert!(!is_waited_for(&waits, 10, 142), "nobody waits for that one");
        assert!(!is_waited_for(&waits, 10, 2), "42 ends in 2, and is another file");
        assert!(!is_waited_for(&waits, 11, 42), "somebody else's");
        assert!(!is_waited_for("", 10, 42) && !is_waited_for("nonsense\n", 10, 42));
    }
}
