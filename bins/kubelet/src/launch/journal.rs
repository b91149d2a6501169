//! The reader of the journal: a fifth process, where `enableSystemLogQuery` is on. It has a user and a group that read the
//! journal and nothing else; its questions come over a socket pair, of which kubelet-statusd gets the other end.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bulkhead_config::{NodeConfig, Users};
use bulkhead_sys::spawn::{Spec, User};
use tokio_util::sync::CancellationToken;

use super::restart::RestartBackOff;
use super::users;

/// The program, beside `kubelet` itself.
const PROGRAM: &str = "kubelet-journal";
/// Where journald keeps it, over a restart of the machine and not.
const FOLDERS: [&str; 2] = ["/var/log/journal", "/run/log/journal"];

/// Both ends of the pair, for the launcher's life: a restart on either side loses no question.
#[derive(Debug)]
pub struct Reader {
    program: PathBuf,
    user: User,
    questions: OwnedFd,
    asker: OwnedFd,
}

impl Reader {
    /// `None` where the configuration does not ask for it, or the machine has not what it takes; then the log query finds
    /// files alone.
    pub fn prepare(config: &NodeConfig, programs: &Path) -> Option<Self> {
        if config.kubelet.enable_system_log_query != Some(true)
            || config.kubelet.enable_debugging_handlers == Some(false)
        {
            return None;
        }
        let without = |why: &str| {
            tracing::warn!("the log query finds files alone, not the journal: {why}");
            None
        };
        let program = programs.join(PROGRAM);
        if !program.is_file() {
            return without(&format!("{} is missing", program.display()));
        }
        let Some(user) = user_of(config.users) else {
            return without("there is no user kubelet-journal");
        };
        let (questions, asker) = match bulkhead_sys::scm::pair() {
            Ok(pair) => pair,
            Err(error) => return without(&format!("no socket: {error}")),
        };
        Some(Reader { program, user, questions, asker })
    }

    /// The end for kubelet-statusd.
    pub fn asker(&self) -> &OwnedFd {
        &self.asker
    }

    /// Runs the process, and starts it again when it ends, until `stop`.
    pub async fn run(&self, stop: CancellationToken) {
        let mut back_off = RestartBackOff::new();
        loop {
            let started = Instant::now();
            match self.start() {
                Ok(mut child) => {
                    tracing::info!(process = PROGRAM, pid = child.id(), "started");
                    tokio::select! {
                        status = child.wait() => tracing::warn!(process = PROGRAM, ?status, "ended, will be started again"),
                        () = stop.cancelled() => {
                            // It keeps nothing.
                            let _ = child.kill().await;
                            return;
                        }
                    }
                }
                Err(error) => tracing::warn!(process = PROGRAM, %error, "could not be started"),
            }
            tokio::select! {
                () = tokio::time::sleep(back_off.after(started.elapsed())) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    fn start(&self) -> std::io::Result<tokio::process::Child> {
        let mut spec = Spec::new(&self.program);
        spec.fds = vec![("questions".to_owned(), self.questions.try_clone()?)];
        spec.user = Some(self.user.clone());
        spec.bounding = Some(Vec::new());
        spec.no_new_privs = true;
        spec.lock_securebits = true;
        spec.die_with_parent = true;
        spec.max_data_bytes = Some(bulkhead_daemon::privileges::Program::Journal.row().memory_bytes);
        let (command, slots) = spec.prepare()?.into_parts();
        let child = tokio::process::Command::from(command).spawn();
        drop(slots);
        child
    }
}

/// A user that is nobody else's, with the group that journald's folders belong to.
fn user_of(users: Users) -> Option<User> {
    let (uid, gid) = users::journal(users, &std::fs::read_to_string("/etc/passwd").unwrap_or_default())?;
    let group = |folder: &str| std::fs::metadata(folder).ok().map(|folder| folder.gid());
    let mut groups: Vec<u32> = FOLDERS.into_iter().filter_map(group).filter(|gid| *gid != 0).collect();
    groups.dedup();
    Some(User { uid, gid, groups })
}
