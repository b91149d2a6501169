//! What a probe's command leaves behind when its time is up, and that it ends.
//!
//! The runtime ends the process that it started and none that this one began. runc makes each command the leader of a
//! session, in which its children stay unless they leave it on purpose, and containerd tells of the leader's end by its
//! pid. Which end is that of which call is not told, so it is counted: of the commands in one container that SIGKILL
//! ended since a call's time was up there may be no more than there are calls of ours whose time is up. With one more,
//! none is touched: it may be somebody's own session. volnetd looks once more: nothing older than the call is killed.
//!
//! Only a command that has used half of its time is watched: almost none has.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_cri::{CONTAINERD_NAMESPACE, CriClient, CriError, ExecEnd};
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::volnetd::EndSessionRequest;
use bulkhead_sys::clock::since_boot;
use bulkhead_types::{ContainerId, PodUid};
use futures_util::StreamExt as _;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use kubelet_edges::volnetd::Volnetd;

/// The exit code of a process that SIGKILL ended.
const KILLED: i32 = 128 + 9;
/// After its time a command's end is told within this, or never; and after the call's answer within that.
const TOLD: Duration = Duration::from_secs(5);
const TOLD_AFTER_ANSWER: Duration = Duration::from_secs(1);
/// After the first end another may be told of, by which it shows that they are not all ours.
const TOGETHER: Duration = Duration::from_millis(100);
/// More ends than this are not ours.
const ENDS_MAX: usize = 64;

/// Calls whose time is up and whose leftovers are being looked for, in each container.
type Calls = Arc<Mutex<HashMap<ContainerId, usize>>>;

/// Ends what commands leave behind.
#[derive(Debug, Clone)]
pub struct Leftovers {
    volnetd: Volnetd,
    calls: Calls,
}

/// One call whose time is up.
struct Late {
    calls: Calls,
    container: ContainerId,
}

fn lock(calls: &Calls) -> MutexGuard<'_, HashMap<ContainerId, usize>> {
    // No method panics between two writes.
    calls.lock()
}

impl Late {
    fn new(calls: &Calls, container: &ContainerId) -> Self {
        *lock(calls).entry(container.clone()).or_insert(0) += 1;
        Late { calls: calls.clone(), container: container.clone() }
    }

    fn in_container(&self) -> usize {
        lock(&self.calls).get(&self.container).copied().unwrap_or(0)
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        let mut calls = lock(&self.calls);
        if let Some(count) = calls.get_mut(&self.container) {
            *count -= 1;
            if *count == 0 {
                calls.remove(&self.container);
            }
        }
    }
}

/// Sessions that are ours to end, of those whose leaders were killed while `calls` calls were late.
fn ours(killed: &[u32], calls: usize) -> &[u32] {
    if killed.len() <= calls { killed } else { &[] }
}

impl Leftovers {
    pub fn new(volnetd: Volnetd) -> Self {
        Leftovers { volnetd, calls: Calls::default() }
    }

    /// Follows a call that runs a command for at most `timeout`, and ends what is left once that is over. Answers as soon
    /// as the call does, if its time is not up by then. None: it has not answered yet, but whatever could be ended was.
    pub async fn follow<T>(
        &self,
        cri: &CriClient,
        (pod, container): (&PodUid, &ContainerId),
        timeout: Duration,
        mut call: Pin<&mut impl Future<Output = Result<T, CriError>>>,
    ) -> Option<Result<T, CriError>> {
        let (began, not_before) = (Instant::now(), since_boot());
        if let Ok(answer) = tokio::time::timeout_at(began + timeout / 2, &mut call).await {
            return Some(answer);
        }
        let (mut ends, mut whole) = (cri.exec_ends(CONTAINERD_NAMESPACE, container.as_str()), true);
        let mut answer = None;
        let time_up = began + timeout;
        loop {
            tokio::select! {
                biased;
                result = &mut call => {
                    answer = Some(result);
                    break;
                }
                () = tokio::time::sleep_until(time_up) => break,
                // An end that is told now is somebody's: ours comes later. A stream that broke might miss it.
                told = ends.next(), if whole => whole = matches!(told, Some(Ok(_))),
            }
        }
        let is_late = |answer: &Result<T, CriError>| matches!(answer, Err(error) if error.is_deadline_exceeded());
        if !whole || answer.as_ref().is_some_and(|answer| !is_late(answer)) {
            return answer;
        }
        let late = Late::new(&self.calls, container);
        let mut killed = Vec::new();
        let mut until = if answer.is_some() { Instant::now() + TOLD_AFTER_ANSWER } else { time_up + TOLD };
        loop {
            tokio::select! {
                biased;
                result = &mut call, if answer.is_none() => {
                    if !is_late(&result) {
                        return Some(result);
                    }
                    answer = Some(result);
                    until = until.min(Instant::now() + TOLD_AFTER_ANSWER);
                }
                told = ends.next() => {
                    let Some(Ok(end)) = told else {
                        return answer;
                    };
                    if note(&mut killed, end) {
                        until = until.min(Instant::now() + TOGETHER);
                    }
                }
                () = tokio::time::sleep_until(until) => break,
            }
        }
        let sessions = ours(&killed, late.in_container());
        if sessions.len() < killed.len() {
            tracing::debug!(%pod, %container, "several commands were killed: whose they are is not known, what they began stays");
        }
        for session in sessions {
            self.end(pod, container, *session, not_before).await;
        }
        answer
    }

    async fn end(&self, pod: &PodUid, container: &ContainerId, session: u32, not_before: Duration) {
        let ended = match self.volnetd.guard("end_session") {
            Ok(guard) => {
                let request = EndSessionRequest {
                    pod_uid: pod.to_string(),
                    container_id: container.to_string(),
                    session,
                    not_before: u64::try_from(not_before.as_nanos()).unwrap_or(u64::MAX),
                    guard: Some(guard),
                };
                self.volnetd.end_session(&CallContext::for_pod(pod), request).await.map(|reply| reply.ended)
            }
            Err(error) => Err(error),
        };
        match ended {
            Ok(0) => {}
            Ok(ended) => tracing::debug!(%pod, %container, session, ended, "ended what a probe's command had begun"),
            Err(error) => tracing::debug!(%pod, %container, session, %error, "what a probe's command began stays"),
        }
    }
}

/// Takes note of an end. True: it may be that of a command whose time is up.
fn note(killed: &mut Vec<u32>, end: ExecEnd) -> bool {
    let counts = end.exit_code == KILLED && killed.len() < ENDS_MAX;
    if counts {
        killed.push(end.pid);
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_as_many_as_calls_are_late() {
        let mut killed = Vec::new();
        assert!(!note(&mut killed, ExecEnd { pid: 5, exit_code: 0 }), "it ended by itself");
        assert!(ours(&killed, 1).is_empty());
        assert!(note(&mut killed, ExecEnd { pid: 6, exit_code: KILLED }));
        assert_eq!(ours(&killed, 1), [6]);
        assert!(note(&mut killed, ExecEnd { pid: 7, exit_code: KILLED }));
        assert!(ours(&killed, 1).is_empty(), "one of them is somebody else's");
        assert_eq!(ours(&killed, 2), [6, 7]);
        for pid in 8..1000 {
            note(&mut killed, ExecEnd { pid, exit_code: KILLED });
        }
        assert_eq!(killed.len(), ENDS_MAX);
    }

    #[test]
    fn calls_are_counted_while_they_are_late() {
        let calls = Calls::default();
        let (one, other) = (ContainerId::parse("a").unwrap(), ContainerId::parse("b").unwrap());
        let first = Late::new(&calls, &one);
        let second = Late::new(&calls, &one);
        let third = Late::new(&calls, &other);
        assert_eq!((first.in_container(), third.in_container()), (2, 1));
        drop(first);
        assert_eq!(second.in_container(), 1);
        drop((second, third));
        assert!(lock(&calls).is_empty());
    }
}
