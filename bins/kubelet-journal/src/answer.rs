//! A question is a program that writes into the pipe that came along.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bulkhead_helper::Program;
use bulkhead_ipc::common::JournalQuery;

use crate::argv;

/// Upstream's, for one run of journalctl.
const DEADLINE: Duration = Duration::from_secs(30);
/// Where distributions have it.
pub const JOURNALCTL: Program = Program { name: "journalctl", folders: &["/usr/bin", "/bin"] };

/// Runs journalctl for one question and waits for its end.
pub async fn answer(query: JournalQuery, pipe: OwnedFd, program: Program) {
    let arguments = match argv::arguments(&query) {
        Ok(arguments) => arguments,
        Err(error) => return eprintln!("kubelet-journal: a question is refused: {error}"),
    };
    // What it complains of is part of the answer, as upstream has it.
    let both = || -> io::Result<_> { Ok((pipe.try_clone()?, pipe.try_clone()?)) };
    let started = both().and_then(|(output, errors)| program.start(arguments, output.into(), errors.into()));
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            eprintln!("kubelet-journal: journalctl could not be started: {error}");
            // It has what the pipe holds; a pipe that is full already has a reader that is not interested.
            let _ = rustix::io::write(&pipe, b"\nerror: journal output not available\n");
            return;
        }
    };
    // From here on the program alone has the pipe: its end is the answer's.
    drop(pipe);
    if tokio::time::timeout(DEADLINE, child.wait()).await.is_err() {
        // An error means that it has just ended.
        let _ = child.kill().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_helper::{Door, Limits, serve};
    use prost::Message as _;
    use std::fs::File;
    use std::io::{PipeReader, Read as _};
    use std::os::fd::AsFd as _;

    const LIMITS: Limits = Limits { at_once: 4, idle: None };

    fn ask(socket: &OwnedFd, question: &[u8]) -> PipeReader {
        let (answer, pipe) = io::pipe().unwrap();
        bulkhead_sys::scm::send(socket, question, &[pipe.as_fd()]).unwrap();
        answer
    }

    async fn text(mut answer: PipeReader) -> String {
        let read = tokio::task::spawn_blocking(move || {
            let mut text = String::new();
            answer.read_to_string(&mut text).map(|_| text)
        });
        read.await.unwrap().unwrap()
    }

    fn units(names: &[&str]) -> Vec<u8> {
        let units = names.iter().map(|name| (*name).to_owned()).collect();
        JournalQuery { units, ..JournalQuery::default() }.encode_to_vec()
    }

    /// Serves with this program until `asking` is over.
    async fn served(program: Program, asking: impl AsyncFnOnce(OwnedFd)) {
        let (asker, questions) = bulkhead_sys::scm::pair().unwrap();
        let serving =
            serve(Door::Passed(questions), LIMITS, |_| Ok(()), move |query, pipe| answer(query, pipe, program));
        let (served, ()) = tokio::join!(serving, asking(asker));
        served.unwrap();
    }

    #[tokio::test]
    async fn a_question_is_a_program_that_writes_into_the_askers_pipe() {
        let echo = Program { name: "echo", folders: &["/nowhere", "/bin"] };
        served(echo, async |asker| {
            let good = ask(&asker, &units(&["kubelet", "$(id)"]));
            assert_eq!(text(good).await, "", "refused: its pipe ends");
            assert_eq!(text(ask(&asker, b"\xff\xff no message")).await, "");
            let said = text(ask(&asker, &units(&["kubelet"]))).await;
            assert_eq!(said, "--utc --no-pager --output=short-precise --unit=kubelet\n");
            // More at once than run at once, and one whose reader has gone.
            drop(ask(&asker, &units(&["gone"])));
            let many: Vec<PipeReader> = (0..3 * LIMITS.at_once).map(|_| ask(&asker, &units(&["u"]))).collect();
            for answer in many {
                assert!(text(answer).await.ends_with("--unit=u\n"));
            }
        })
        .await;
    }

    #[tokio::test]
    async fn a_machine_without_journalctl_says_so() {
        served(Program { name: "journalctl", folders: &["/nowhere", "/nowhere/else"] }, async |asker| {
            assert_eq!(text(ask(&asker, &units(&["u"]))).await, "\nerror: journal output not available\n");
            // A descriptor that nobody can write into is the asker's own mistake.
            bulkhead_sys::scm::send(&asker, &units(&["u"]), &[File::open("/dev/null").unwrap().as_fd()]).unwrap();
        })
        .await;
    }
}
