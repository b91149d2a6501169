//! A program that gives credentials, for the API server or for images: how it is asked, how long it may take, and how
//! much of what it says is taken.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

/// How long a program may take. It may have to ask a cloud's service.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// Largest answer, bytes.
pub const MAX_ANSWER_BYTES: u64 = 1 << 20;
/// How much of its complaints is kept, bytes.
const MAX_COMPLAINT_BYTES: u64 = 2048;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("it cannot be started")]
    Start(#[source] std::io::Error),
    #[error("it did not finish within {} s", DEADLINE.as_secs())]
    Deadline,
    #[error("its answer cannot be read")]
    Read(#[source] std::io::Error),
    /// `complaint`: what it wrote to standard error, on one line; empty when that is nothing.
    #[error("it ended with {status}{}", after_colon(.complaint))]
    Failed { status: ExitStatus, complaint: String },
    #[error("its answer has more than {MAX_ANSWER_BYTES} bytes")]
    TooLarge,
}

fn after_colon(complaint: &str) -> String {
    if complaint.is_empty() { String::new() } else { format!(": {complaint}") }
}

/// Starts the program, writes `question` to its standard input and gives what it writes to its standard output. It is
/// killed when the future is dropped.
///
/// # Errors
/// See [`ProgramError`].
pub async fn ask(command: &mut Command, question: &[u8]) -> Result<Vec<u8>, ProgramError> {
    let stdin = if question.is_empty() { Stdio::null() } else { Stdio::piped() };
    let mut child = command
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(ProgramError::Start)?;
    let (input, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        if let Some(mut input) = input {
            // A program that does not want the question closes the pipe: no failure.
            let _ = input.write_all(question).await;
        }
    };
    let finished = async {
        let ((), answer, complaint, status) =
            tokio::join!(write, read(out, MAX_ANSWER_BYTES + 1), read(err, MAX_COMPLAINT_BYTES), child.wait());
        Ok::<_, std::io::Error>((answer?, complaint.unwrap_or_default(), status?))
    };
    let finished = tokio::time::timeout(DEADLINE, finished).await.map_err(|_| ProgramError::Deadline)?;
    let (answer, complaint, status) = finished.map_err(ProgramError::Read)?;
    if !status.success() {
        let text = String::from_utf8_lossy(&complaint);
        let complaint = text.split_whitespace().collect::<Vec<_>>().join(" ");
        return Err(ProgramError::Failed { status, complaint });
    }
    if answer.len() as u64 > MAX_ANSWER_BYTES {
        return Err(ProgramError::TooLarge);
    }
    Ok(answer)
}

/// Keeps the first `limit` bytes and reads on to the end, so that the program is not held up by a full pipe.
async fn read(pipe: Option<impl AsyncRead + Unpin>, limit: u64) -> std::io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    if let Some(mut pipe) = pipe {
        (&mut pipe).take(limit).read_to_end(&mut kept).await?;
        tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await?;
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn shell(script: &str, question: &[u8]) -> Result<Vec<u8>, ProgramError> {
        ask(Command::new("/bin/sh").args(["-c", script]), question).await
    }

    #[tokio::test]
    async fn questions_and_answers() {
        assert_eq!(shell("cat", b"who").await.unwrap(), b"who");
        assert_eq!(shell("cat; echo there", b"").await.unwrap(), b"there\n");
        let unread = vec![b'x'; 1 << 20];
        assert_eq!(shell("exec <&-; echo deaf", &unread).await.unwrap(), b"deaf\n");
    }

    #[tokio::test]
    async fn failures() {
        let told = |error: ProgramError| error.to_string();
        assert_eq!(
            told(shell("echo no; echo it is >&2; echo so >&2; exit 3", b"").await.unwrap_err()),
            "it ended with exit status: 3: it is so"
        );
        assert_eq!(told(shell("exit 1", b"").await.unwrap_err()), "it ended with exit status: 1");
        let large = "head -c 3000000 /dev/zero; head -c 100000 /dev/zero >&2";
        assert!(matches!(shell(large, b"").await.unwrap_err(), ProgramError::TooLarge));
        assert!(matches!(ask(&mut Command::new("/not/there"), b"").await.unwrap_err(), ProgramError::Start(_)));
    }
}
