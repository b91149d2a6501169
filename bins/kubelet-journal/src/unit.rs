//! As a unit of systemd: a connection for each question, accepted from the socket that systemd holds. The process ends when
//! nobody asks for a while, and the next question starts it again.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::common::JournalQuery;
use bulkhead_ipc::journal::Questions;
use bulkhead_sys::peer::{self, PeerIdentity};
use tokio::io::Interest;
use tokio::sync::Semaphore;

use crate::serve::{RUNS_MAX, answer};

/// Without a question for so long, it ends.
const IDLE: Duration = Duration::from_secs(60);
/// From a connection to its question, which is sent with it.
const QUESTION: Duration = Duration::from_secs(5);
/// Where the journal has what `kubelet` says: upstream is one unit, this node agent is five.
const UNITS: [&str; 5] = ["kubelet", "kubelet-syncd", "kubelet-volnetd", "kubelet-evictiond", "kubelet-statusd"];

/// Serves until nobody asks any more. `programs`: see [`crate::serve::serve`].
pub async fn serve(listener: OwnedFd, programs: [&'static str; 2]) -> io::Result<()> {
    rustix::io::ioctl_fionbio(&listener, true)?;
    let ours = peer::own_cgroups()?;
    notify(&[sd_notify::NotifyState::Ready]);
    tokio::select! {
        served = accept(listener, programs, IDLE, move |peer| is_statusd(peer, &ours)) => served,
        never = beat() => never,
    }
}

/// Of the main loop's own thread: one that is stuck beats no more.
async fn beat() -> io::Result<()> {
    let Some(interval) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    let mut tick = tokio::time::interval((interval / 2).max(Duration::from_millis(1)));
    loop {
        tick.tick().await;
        notify(&[sd_notify::NotifyState::Watchdog]);
    }
}

fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        eprintln!("kubelet-journal: systemd could not be notified: {error}");
    }
}

async fn accept(
    listener: OwnedFd,
    programs: [&'static str; 2],
    idle: Duration,
    may_ask: impl Fn(&PeerIdentity) -> bool,
) -> io::Result<()> {
    let listener = bulkhead_sys::async_fd::register(listener)?;
    let runs = Arc::new(Semaphore::new(RUNS_MAX));
    loop {
        let Ok(run) = runs.clone().acquire_owned().await else { return Ok(()) };
        let next = listener.async_io(Interest::READABLE, |listener| bulkhead_sys::scm::accept(listener));
        let connection = match quiet(next, idle).await {
            Some(connection) => connection?,
            // This run's permit is the one that is missing.
            None if runs.available_permits() == RUNS_MAX - 1 => return Ok(()),
            None => continue,
        };
        match peer::identify(&connection) {
            Ok(peer) if may_ask(&peer) => {}
            Ok(peer) => {
                eprintln!("kubelet-journal: process {} of user {} may not ask", peer.pid, peer.uid);
                continue;
            }
            Err(error) => {
                eprintln!("kubelet-journal: {}", bulkhead_types::chain(&error));
                continue;
            }
        }
        tokio::spawn(async move {
            let question = async { Questions::new(connection)?.next().await };
            if let Ok(Ok(Some((query, pipe)))) = tokio::time::timeout(QUESTION, question).await {
                answer(&with_all_units(query), pipe, programs).await;
            }
            drop(run);
        });
    }
}

async fn quiet<T>(next: impl Future<Output = T>, idle: Duration) -> Option<T> {
    tokio::time::timeout(idle, next).await.ok()
}

/// The daemon's unit is the neighbour of our own, in every hierarchy in which both are units. A pod may have the daemon's
/// user, and the socket's group if it is given the folder, but never its cgroup.
fn is_statusd(peer: &PeerIdentity, ours: &[String]) -> bool {
    let neighbours = ours
        .iter()
        .filter_map(|path| Some(format!("{}kubelet-statusd.service", path.strip_suffix("kubelet-journal.service")?)));
    peer.same_user_namespace && neighbours.into_iter().any(|path| peer.cgroups.contains(&path))
}

/// Who asks for `kubelet` means the node agent.
fn with_all_units(mut query: JournalQuery) -> JournalQuery {
    if query.units.iter().any(|unit| unit == UNITS[0]) {
        for unit in UNITS {
            if !query.units.iter().any(|asked| asked == unit) {
                query.units.push(unit.to_owned());
            }
        }
    }
    query
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_ipc::journal::JournalReader;
    use tokio::io::AsyncReadExt as _;

    fn asks(units: &[&str]) -> JournalQuery {
        JournalQuery { units: units.iter().map(|unit| (*unit).to_owned()).collect(), ..JournalQuery::default() }
    }

    async fn answer_to(reader: &JournalReader, units: &[&str]) -> String {
        let mut text = String::new();
        reader.ask(&asks(units)).await.unwrap().read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn questions_are_answered_and_with_none_for_a_while_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = bulkhead_sys::scm::listen(&path, 0o600).unwrap();
        let reader = JournalReader::at(&path);
        let serving = tokio::spawn(accept(listener, ["/nowhere", "/bin/echo"], Duration::from_millis(200), |_| true));
        // One that says nothing takes its run's place for a while, and no more.
        let silent = bulkhead_sys::scm::connect(&path).unwrap();
        assert!(answer_to(&reader, &["containerd"]).await.ends_with(" --unit=containerd\n"));
        assert!(answer_to(&reader, &["kubelet"]).await.contains(" --unit=kubelet --unit=kubelet-syncd "));
        drop(silent);
        serving.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn who_may_not_ask_gets_no_answer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = bulkhead_sys::scm::listen(&path, 0o600).unwrap();
        let serving = tokio::spawn(accept(listener, ["/nowhere", "/bin/echo"], Duration::from_millis(200), |_| false));
        assert_eq!(answer_to(&JournalReader::at(&path), &["containerd"]).await, "");
        serving.await.unwrap().unwrap();
    }

    #[test]
    fn the_neighbours_unit_may_ask_and_no_other() {
        let paths = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
        let ours = paths(&["/", "/kubelet.slice/kubelet-journal.service"]);
        let peer = |cgroup: &str, same_user_namespace| PeerIdentity {
            pid: 1,
            uid: 990,
            gid: 990,
            same_user_namespace,
            cgroups: paths(&["/", cgroup]),
        };
        assert!(is_statusd(&peer("/kubelet.slice/kubelet-statusd.service", true), &ours));
        assert!(!is_statusd(&peer("/kubelet.slice/kubelet-statusd.service", false), &ours));
        for other in [
            "/kubelet.slice/kubelet-syncd.service",
            "/kubepods.slice/kubelet-statusd.service",
            "/kubelet.slice/kubelet-statusd.service/below",
            "/",
        ] {
            assert!(!is_statusd(&peer(other, true), &ours), "{other}");
        }
        assert!(!is_statusd(&peer("/kubelet.slice/kubelet-statusd.service", true), &paths(&["/"])), "we are no unit");
    }

    #[test]
    fn the_node_agent_is_all_its_units() {
        assert_eq!(with_all_units(asks(&["containerd"])), asks(&["containerd"]));
        let all = with_all_units(asks(&["containerd", "kubelet", "kubelet-syncd"]));
        assert_eq!(all.units.len(), 1 + UNITS.len());
    }
}
