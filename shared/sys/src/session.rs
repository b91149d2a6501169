//! What is left of a session whose leader has ended: which processes of a cgroup it is, and ending them.
//!
//! A session is named by its leader's pid, and the kernel gives that number to nobody while the session has members. So
//! a living process of that number means that the session meant is over and this is another one; and a member older than
//! the caller's own work means that it was never the caller's. Either is refused, and nothing is killed.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;

use crate::cgroup::{CgroupError, CgroupPath, Hierarchies};
use crate::peer::{is_alive, pin};

/// Unit of times in /proc/<pid>/stat: 1/100 s on every architecture that Linux has today.
const TICK: Duration = Duration::from_millis(10);
/// Looks at the cgroup: a process may start another while it is being ended.
const TRIES: u32 = 8;

/// Why a session is left alone.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error("{0} is no session that could be ended")]
    NoSession(u32),
    #[error("the leader of session {0} lives")]
    LeaderLives(i32),
    #[error("process {pid} of session {session} is older than what was to be ended")]
    Older { pid: i32, session: i32 },
    #[error("session {session} still has {left} processes")]
    Busy { session: i32, left: usize },
}

/// One process as /proc shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: i32,
    session: i32,
    /// Since the machine began, in [`TICK`]s.
    started: u64,
    /// It has ended, but nobody has asked for its end yet.
    ended: bool,
}

/// Ends what is in the cgroup or below it and in this session, if all of it began at `not_before` or later (as
/// [`crate::clock::since_boot`] counts). Blocks for up to a second. Answers how many processes were ended.
///
/// # Errors
/// See [`SessionError`]; nothing was killed unless it is `Busy`, or another read failed after a kill.
pub fn end(
    hierarchies: &Hierarchies,
    cgroup: &CgroupPath,
    session: u32,
    not_before: Duration,
) -> Result<usize, SessionError> {
    let leader = i32::try_from(session).ok().filter(|pid| *pid > 1).ok_or(SessionError::NoSession(session))?;
    let not_before = u64::try_from(not_before.as_millis() / TICK.as_millis()).unwrap_or(u64::MAX);
    let mut killed = BTreeSet::new();
    let mut left = 0;
    for attempt in 0..TRIES {
        // Wherever it is: a process of that number is the leader of nothing that was left behind.
        if read(leader).is_some() {
            return Err(SessionError::LeaderLives(leader));
        }
        let pids = hierarchies.pids(cgroup)?;
        let pinned: Vec<_> = pids.into_iter().filter_map(|pid| Some((pid, pin(pid)?))).collect();
        // Read again: a number that was given anew before it was pinned is in the cgroup no more, or is a member now.
        let inside = hierarchies.pids(cgroup)?;
        let processes: Vec<Process> =
            pinned.iter().filter(|(pid, _)| inside.contains(pid)).filter_map(|(pid, _)| read(*pid)).collect();
        let members = members(&processes, leader, not_before)?;
        left = members.len();
        if members.is_empty() {
            break;
        }
        for (pid, pidfd) in pinned.iter().filter(|(pid, _)| members.contains(pid)) {
            // What was read was of this process only if it is still there.
            if is_alive(pidfd) && rustix::process::pidfd_send_signal(pidfd, Signal::KILL).is_ok() {
                killed.insert(*pid);
            }
        }
        std::thread::sleep(Duration::from_millis(2 << attempt));
    }
    if left > 0 {
        return Err(SessionError::Busy { session: leader, left });
    }
    Ok(killed.len())
}

/// Those of the session that live.
fn members(processes: &[Process], session: i32, not_before: u64) -> Result<BTreeSet<i32>, SessionError> {
    let of_it = || processes.iter().filter(|process| process.session == session && !process.ended);
    if processes.iter().any(|process| process.pid == session) {
        return Err(SessionError::LeaderLives(session));
    }
    if let Some(older) = of_it().find(|process| process.started < not_before) {
        return Err(SessionError::Older { pid: older.pid, session });
    }
    Ok(of_it().map(|process| process.pid).collect())
}

/// None: it is gone.
fn read(pid: i32) -> Option<Process> {
    parse(pid, &std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// proc_pid_stat(5): the name in parentheses may hold anything, so the last one closes it; after it come state, parent,
/// group, session, and 15 fields later the start.
fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let session = fields.nth(2)?.parse().ok()?;
    let started = fields.nth(15)?.parse().ok()?;
    Some(Process { pid, session, started, ended: matches!(state, "Z" | "X") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::since_boot;
    use proptest::prelude::*;

    fn process(pid: i32, session: i32, started: u64) -> Process {
        Process { pid, session, started, ended: false }
    }

    #[test]
    fn a_line_of_the_kernel_s() {
        let line = "16989 (a) S 1 (x) S 16725 16911 16912 0 -1 4194304 5 6 7 8 9 10 11 12 20 0 1 0 1766982 99 1";
        assert_eq!(parse(16989, line.as_bytes()), Some(process(16989, 16912, 1_766_982)));
        assert!(parse(1, line.replace(") S 16725", ") Z 16725").as_bytes()).unwrap().ended);
        for bad in ["", "1 (a", "1 (a) S", "1 (a) S 1 2 x 0 -1 4 5 6 7 8 9 10 11 12 20 0 1 0 5 9", "1 (a) S 1 2 3"] {
            assert_eq!(parse(1, bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn only_what_a_dead_leader_left_behind() {
        let left = [process(20, 10, 100), process(21, 10, 130), process(30, 30, 5), process(31, 30, 120)];
        assert_eq!(members(&left, 10, 100).unwrap(), [20, 21].into());
        assert!(members(&left, 11, 100).unwrap().is_empty());
        assert!(matches!(members(&left, 10, 101), Err(SessionError::Older { pid: 20, .. })), "began before");
        assert!(matches!(members(&left, 30, 0), Err(SessionError::LeaderLives(30))), "the container's own, or reused");
        let ended = [Process { ended: true, ..process(20, 10, 1) }];
        assert!(members(&ended, 10, 100).unwrap().is_empty());
    }

    #[test]
    fn numbers_that_are_no_session() {
        let Ok(hierarchies) = Hierarchies::detect() else { return };
        let cgroup = CgroupPath::parse("/bulkhead-c-test-nothing").unwrap();
        for session in [0, 1, u32::MAX, 1 << 31] {
            assert!(matches!(end(&hierarchies, &cgroup, session, Duration::ZERO), Err(SessionError::NoSession(_))));
        }
        let own = std::process::id();
        assert!(matches!(end(&hierarchies, &cgroup, own, Duration::ZERO), Err(SessionError::LeaderLives(_))));
    }

    /// A real one: two processes in the cgroup, one outside of it, the leader inside and then gone.
    #[test]
    fn what_is_left_in_a_cgroup_of_ours() {
        if !rustix::process::getuid().is_root() {
            return;
        }
        let Ok(hierarchies) = Hierarchies::detect() else { return };
        let cgroup = CgroupPath::parse(&format!("/bulkhead-c-test-session-{}", std::process::id())).unwrap();
        hierarchies.ensure(&cgroup).unwrap();
        let procs = ["pids", "memory"].iter().find_map(|c| hierarchies.file(c, &cgroup, "cgroup.procs")).unwrap();
        let script = "sleep 60 >/dev/null & echo $! >&2; echo $$ > \"$0\"; sleep 60 & sleep 60 & read line";
        let mut leader = std::process::Command::new("setsid")
            .args(["sh", "-c", script, procs.to_str().unwrap()])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let session = leader.id();
        let mut told = String::new();
        let mut lines = std::io::BufReader::new(leader.stderr.take().unwrap());
        std::io::BufRead::read_line(&mut lines, &mut told).unwrap();
        let outside: i32 = told.trim().parse().unwrap();
        while hierarchies.pids(&cgroup).unwrap().len() < 3 {
            std::thread::yield_now();
        }
        assert!(matches!(end(&hierarchies, &cgroup, session, Duration::ZERO), Err(SessionError::LeaderLives(_))));
        drop(leader.stdin.take());
        leader.wait().unwrap();
        let later = since_boot() + Duration::from_secs(60);
        assert!(matches!(end(&hierarchies, &cgroup, session, later), Err(SessionError::Older { .. })));
        assert_eq!(hierarchies.pids(&cgroup).unwrap().len(), 2, "nothing has been killed so far");
        assert_eq!(end(&hierarchies, &cgroup, session, Duration::ZERO).unwrap(), 2);
        assert_eq!(end(&hierarchies, &cgroup, session, Duration::ZERO).unwrap(), 0);
        assert_eq!(read(outside).unwrap().session, session.cast_signed(), "it is in the session, not in the cgroup");
        rustix::process::kill_process(rustix::process::Pid::from_raw(outside).unwrap(), Signal::KILL).unwrap();
        hierarchies.kill_and_remove(&cgroup).unwrap();
    }

    proptest! {
        /// Whoever is killed is in the session, young enough, alive, and not its leader; bytes never panic.
        #[test]
        fn nobody_else(
            all in proptest::collection::vec((2i32..40, 2i32..40, 0u64..20, any::<bool>()), 0..30),
            session in 2i32..40, not_before in 0u64..20, bytes in proptest::collection::vec(any::<u8>(), 0..80)
        ) {
            let _ = parse(1, &bytes);
            let all: Vec<Process> =
                all.into_iter().map(|(pid, session, started, ended)| Process { pid, session, started, ended }).collect();
            if let Ok(members) = members(&all, session, not_before) {
                for pid in members {
                    prop_assert!(pid != session);
                    prop_assert!(all.iter().any(|p| p.pid == pid && p.session == session && p.started >= not_before && !p.ended));
                }
            }
        }
    }
}
