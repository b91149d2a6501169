//! One question after the other from the socket; each is a program that writes into the pipe that came along.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::common::JournalQuery;
use bulkhead_ipc::journal::Questions;
use bulkhead_sys::spawn::Spec;
use tokio::sync::Semaphore;

use crate::argv;

/// Upstream's, for one run of journalctl.
const DEADLINE: Duration = Duration::from_secs(30);
/// Runs of journalctl at once; more wait in the socket.
pub const RUNS_MAX: usize = 4;
/// Where distributions have it. Not looked for elsewhere: who could put something there would be run.
pub const JOURNALCTL: [&str; 2] = ["/usr/bin/journalctl", "/bin/journalctl"];

/// Serves until the other end is closed. `programs`: journalctl's places, the first that is there is run.
pub async fn serve(socket: OwnedFd, programs: [&'static str; 2]) -> io::Result<()> {
    let questions = Questions::new(socket)?;
    let runs = Arc::new(Semaphore::new(RUNS_MAX));
    loop {
        let Ok(run) = runs.clone().acquire_owned().await else { return Ok(()) };
        let Some((query, pipe)) = questions.next().await? else { return Ok(()) };
        tokio::spawn(async move {
            answer(&query, pipe, programs).await;
            drop(run);
        });
    }
}

/// Runs journalctl for one question and waits for its end.
pub async fn answer(query: &JournalQuery, pipe: OwnedFd, programs: [&'static str; 2]) {
    let arguments = match argv::arguments(query) {
        Ok(arguments) => arguments,
        Err(error) => return eprintln!("kubelet-journal: a question is refused: {error}"),
    };
    let mut child = match start(arguments, &pipe, programs) {
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

fn start(arguments: Vec<String>, pipe: &OwnedFd, programs: [&'static str; 2]) -> io::Result<tokio::process::Child> {
    let program = programs.into_iter().find(|program| Path::new(program).is_file());
    let mut spec = Spec::new(program.ok_or(io::ErrorKind::NotFound)?);
    spec.args = arguments.into_iter().map(Into::into).collect();
    spec.no_new_privs = true;
    spec.die_with_parent = true;
    let (mut command, slots) = spec.prepare()?.into_parts();
    // What it complains of is part of the answer, as upstream has it.
    command.stdout(Stdio::from(pipe.try_clone()?)).stderr(Stdio::from(pipe.try_clone()?));
    let child = tokio::process::Command::from(command).kill_on_drop(true).spawn();
    drop(slots);
    child
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use std::fs::File;
    use std::io::{PipeReader, Read as _};
    use std::os::fd::AsFd as _;

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

    #[tokio::test]
    async fn a_question_is_a_program_that_writes_into_the_askers_pipe() {
        let (asker, questions) = bulkhead_sys::scm::pair().unwrap();
        let serving = tokio::spawn(serve(questions, ["/nowhere", "/bin/echo"]));
        let good = ask(&asker, &units(&["kubelet", "$(id)"]));
        assert_eq!(text(good).await, "", "refused: its pipe ends");
        assert_eq!(text(ask(&asker, b"\xff\xff no message")).await, "");
        let said = text(ask(&asker, &units(&["kubelet"]))).await;
        assert_eq!(said, "--utc --no-pager --output=short-precise --unit=kubelet\n");
        // More at once than run at once, and one whose reader has gone.
        drop(ask(&asker, &units(&["gone"])));
        let many: Vec<PipeReader> = (0..3 * RUNS_MAX).map(|_| ask(&asker, &units(&["u"]))).collect();
        for answer in many {
            assert!(text(answer).await.ends_with("--unit=u\n"));
        }
        drop(asker);
        serving.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_machine_without_journalctl_says_so() {
        let (asker, questions) = bulkhead_sys::scm::pair().unwrap();
        let serving = tokio::spawn(serve(questions, ["/nowhere", "/nowhere/else"]));
        assert_eq!(text(ask(&asker, &units(&["u"]))).await, "\nerror: journal output not available\n");
        // A descriptor that nobody can write into is the asker's own mistake.
        bulkhead_sys::scm::send(&asker, &units(&["u"]), &[File::open("/dev/null").unwrap().as_fd()]).unwrap();
        drop(asker);
        serving.await.unwrap().unwrap();
    }
}
