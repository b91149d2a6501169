//! A log gets a new file: kubelet-volnetd gives the old one another name, the runtime opens a new one. In between the container
//! writes on into the old one, so at no point is anything lost; what may be left is that there is no current file.
//!
//! ```text
//!   rename -> Reopen -> done
//!               | no              -> rename back
//!               | nobody knows    -> a new file is there? done. Else Reopen again -> done
//!                                                                  | no, or nobody knows -> rename back
//! ```
//!
//! Never is the runtime asked for a new file while a current one is there: some replace it then. Never does a rename replace one.

use std::time::Duration;

use bulkhead_cri::CriError;
use kubelet_edges::volnetd::VolnetdError;

/// The runtime's answer is waited for no longer; it opens a file.
const REOPEN_PATIENCE: Duration = Duration::from_secs(8);
/// Until a runtime that did not answer is asked for its new file, and again.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// The log of one container, as those who do the work have it.
pub trait LogEdges: Send + Sync {
    /// Gives the current file the name of a rotated one; answers its stamp.
    fn rename(&self) -> impl Future<Output = Result<String, VolnetdError>> + Send;
    /// Gives it its name back. False: there is a current file.
    fn rename_back(&self, stamp: &str) -> impl Future<Output = Result<bool, VolnetdError>> + Send;
    /// Whether there is a current file.
    fn is_there(&self) -> impl Future<Output = Result<bool, VolnetdError>> + Send;
    /// Has the runtime open a current file.
    fn reopen(&self) -> impl Future<Output = Result<(), CriError>> + Send;
}

/// Why a log has no new file.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file is where it was, or the next pass finds out.
    #[error(transparent)]
    Files(#[from] VolnetdError),
    #[error("failed to reopen container log: {0}")]
    Reopen(CriError),
}

/// Answers the stamp of the rotated file.
///
/// # Errors
/// See [`LogError`].
pub async fn rotate(log: &impl LogEdges) -> Result<String, LogError> {
    // Of a rename that nobody answered nothing is known, and so the runtime is asked for nothing: the next pass sees.
    let stamp = log.rename().await?;
    let Err(mut error) = reopen(log).await else { return Ok(stamp) };
    if error.is_unknown_outcome() {
        tokio::time::sleep(SECOND_LOOK).await;
        match log.is_there().await {
            Ok(true) => return Ok(stamp),
            Ok(false) => match reopen(log).await {
                Ok(()) => return Ok(stamp),
                Err(second) => error = second,
            },
            Err(unknown) => tracing::debug!(%unknown, "whether the log has a new file is not known"),
        }
    }
    match log.rename_back(&stamp).await {
        Ok(true) => Err(LogError::Reopen(error)),
        // It has opened one, whatever became of the answer.
        Ok(false) if error.is_unknown_outcome() => Ok(stamp),
        Ok(false) => Err(LogError::Reopen(error)),
        Err(unknown) => {
            tracing::warn!(%unknown, stamp, "Failed to rename the rotated log back; the next pass has a log opened");
            Err(LogError::Reopen(error))
        }
    }
}

/// There is no current file, as far as the caller knows: has one opened.
///
/// # Errors
/// See [`LogError`].
pub async fn reopen_missing(log: &impl LogEdges) -> Result<(), LogError> {
    if log.is_there().await? {
        return Ok(());
    }
    reopen(log).await.map_err(LogError::Reopen)
}

async fn reopen(log: &impl LogEdges) -> Result<(), CriError> {
    let late = |_| CriError {
        code: bulkhead_cri::Code::DeadlineExceeded,
        method: "reopen_container_log",
        message: "context deadline exceeded".to_owned(),
    };
    tokio::time::timeout(REOPEN_PATIENCE, log.reopen()).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    use bulkhead_cri::Code;
    use parking_lot::Mutex;

    /// What the runtime does when it is asked for a file.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Runtime {
        Opens,
        Refuses,
        /// The connection breaks.
        Breaks,
        OpensAndBreaks,
        Hangs,
    }
    use Runtime::{Breaks, Hangs, Opens, OpensAndBreaks, Refuses};

    #[derive(Debug, Default)]
    struct State {
        /// What the current file holds, if it is there: 1 for the old one, 2 for a new one.
        current: Option<u8>,
        rotated: Option<u8>,
        asked: usize,
    }

    struct Log {
        runtime: Vec<Runtime>,
        volnetd_goes_after_rename: bool,
        state: Mutex<State>,
    }

    fn away() -> VolnetdError {
        VolnetdError::Away { verb: "test", source: tonic::Status::unavailable("away") }
    }

    impl LogEdges for Log {
        async fn rename(&self) -> Result<String, VolnetdError> {
            let mut state = self.state.lock();
            assert_eq!(state.rotated, None);
            state.rotated = state.current.take();
            Ok("s".to_owned())
        }

        async fn rename_back(&self, stamp: &str) -> Result<bool, VolnetdError> {
            assert_eq!(stamp, "s");
            if self.volnetd_goes_after_rename {
                return Err(away());
            }
            let mut state = self.state.lock();
            if state.current.is_some() {
                return Ok(false);
            }
            state.current = state.rotated.take();
            Ok(true)
        }

        async fn is_there(&self) -> Result<bool, VolnetdError> {
            if self.volnetd_goes_after_rename {
                return Err(away());
            }
            Ok(self.state.lock().current.is_some())
        }

        async fn reopen(&self) -> Result<(), CriError> {
            let does = {
                let mut state = self.state.lock();
                assert_eq!(state.current, None, "a runtime may replace what is there");
                let does = self.runtime[state.asked.min(self.runtime.len() - 1)];
                state.asked += 1;
                if matches!(does, Opens | OpensAndBreaks) {
                    state.current = Some(2);
                }
                does
            };
            let error = |code| Err(CriError { code, method: "reopen_container_log", message: String::new() });
            match does {
                Opens => Ok(()),
                Refuses => error(Code::Unknown),
                Breaks | OpensAndBreaks => error(Code::Unavailable),
                Hangs => std::future::pending().await,
            }
        }
    }

    fn log(runtime: &[Runtime], volnetd_goes_after_rename: bool) -> Log {
        let state = Mutex::new(State { current: Some(1), ..State::default() });
        Log { runtime: runtime.to_vec(), volnetd_goes_after_rename, state }
    }

    #[tokio::test(start_paused = true)]
    async fn whatever_the_runtime_answers_the_old_file_is_there_once() {
        for (runtime, done, current, asked) in [
            (&[Opens][..], true, 2, 1),
            (&[Refuses], false, 1, 1),
            (&[OpensAndBreaks], true, 2, 1),
            (&[Breaks, Opens], true, 2, 2),
            (&[Breaks, Refuses], false, 1, 2),
            (&[Breaks, Breaks], false, 1, 2),
            (&[Breaks, OpensAndBreaks], true, 2, 2),
            (&[Hangs, Hangs], false, 1, 2),
            (&[Hangs, Opens], true, 2, 2),
        ] {
            let log = log(runtime, false);
            let result = rotate(&log).await;
            let state = log.state.into_inner();
            assert_eq!(result.is_ok(), done, "{runtime:?}: {result:?}");
            assert_eq!((state.current, state.asked), (Some(current), asked), "{runtime:?}");
            assert_eq!(state.rotated, (current == 2).then_some(1), "{runtime:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_volnetd_nothing_is_asked_twice() {
        for runtime in [Refuses, Breaks, Hangs, OpensAndBreaks] {
            let log = log(&[runtime], true);
            rotate(&log).await.unwrap_err();
            let state = log.state.into_inner();
            assert_eq!((state.rotated, state.asked), (Some(1), 1), "{runtime:?}");
        }
    }

    #[tokio::test]
    async fn a_missing_file_is_opened_and_one_that_is_there_left_alone() {
        let log = log(&[Opens], false);
        reopen_missing(&log).await.unwrap();
        assert_eq!(log.state.lock().current, Some(1));
        log.rename().await.unwrap();
        reopen_missing(&log).await.unwrap();
        reopen_missing(&log).await.unwrap();
        let state = log.state.into_inner();
        assert_eq!((state.current, state.rotated, state.asked), (Some(2), Some(1), 1));
    }
}
