//! A program of the machine: found in fixed places, started without an environment, ended when it takes too long.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bulkhead_sys::spawn::Spec;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};

/// Most of what a program says that is kept, bytes; the rest of it is read and dropped.
const OUTPUT_MAX: usize = 16 * 1024;

/// Where a program may lie. It is not looked for elsewhere: who could put something there would be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    pub name: &'static str,
    /// Folders, the first that has it first.
    pub folders: &'static [&'static str],
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// `None`: by a signal.
    pub code: Option<i32>,
    /// What it wrote to standard output and standard error, at most 16 KiB.
    pub output: String,
}

impl Program {
    /// Its path, if the machine has it.
    pub fn find(&self) -> Option<PathBuf> {
        self.folders.iter().map(|folder| Path::new(folder).join(self.name)).find(|path| path.is_file())
    }

    /// Starts it; it ends with its [`Child`] and with this thread.
    ///
    /// # Errors
    /// It is not there ([`io::ErrorKind::NotFound`]), or the kernel does not start it.
    pub fn start(
        &self,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
        output: Stdio,
        errors: Stdio,
    ) -> io::Result<Child> {
        self.start_in(Vec::new(), arguments, output, errors)
    }

    fn start_in(
        &self,
        environment: Vec<(OsString, OsString)>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
        output: Stdio,
        errors: Stdio,
    ) -> io::Result<Child> {
        let mut spec = Spec::new(self.find().ok_or(io::ErrorKind::NotFound)?);
        spec.args = arguments.into_iter().map(Into::into).collect();
        spec.env = environment;
        spec.no_new_privs = true;
        spec.die_with_parent = true;
        let (mut command, slots) = spec.prepare()?.into_parts();
        command.stdout(output).stderr(errors);
        let child = Command::from(command).kill_on_drop(true).spawn();
        drop(slots);
        child
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// As [`Self::start`]; [`io::ErrorKind::TimedOut`] when it takes longer than `deadline`, and is killed.
    pub async fn run(&self, arguments: &[&str], deadline: Duration) -> io::Result<Ended> {
        self.run_in(Vec::new(), arguments, deadline).await
    }

    /// The same with an environment.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub async fn run_in(
        &self,
        environment: Vec<(OsString, OsString)>,
        arguments: &[&str],
        deadline: Duration,
    ) -> io::Result<Ended> {
        let (said, writes) = io::pipe()?;
        let mut child = self.start_in(environment, arguments, writes.try_clone()?.into(), writes.into())?;
        let mut said = tokio::net::unix::pipe::Receiver::from_owned_fd(said.into())?;
        let work = async {
            let mut output = Vec::new();
            let mut buffer = [0; 4096];
            loop {
                let read = said.read(&mut buffer).await?;
                if read == 0 {
                    break;
                }
                let room = OUTPUT_MAX.saturating_sub(output.len()).min(read);
                output.extend_from_slice(&buffer[..room]);
            }
            let code = child.wait().await?.code();
            Ok(Ended { code, output: String::from_utf8_lossy(&output).trim_end().to_owned() })
        };
        let ended = tokio::time::timeout(deadline, work).await;
        ended.unwrap_or_else(|_| {
            Err(io::Error::new(io::ErrorKind::TimedOut, format!("{} took longer than {deadline:?}", self.name)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHELL: Program = Program { name: "sh", folders: &["/nowhere", "/bin"] };

    #[tokio::test]
    async fn both_outputs_and_the_code_are_told() {
        let ended = SHELL.run(&["-c", "echo out; echo err >&2; env; exit 3"], Duration::from_secs(10)).await.unwrap();
        assert_eq!(ended.code, Some(3));
        assert!(ended.output.starts_with("out\nerr"), "{}", ended.output);
        assert!(!ended.output.contains("CARGO"), "nothing of our environment: {}", ended.output);
    }

    #[tokio::test]
    async fn it_has_the_environment_that_it_is_given() {
        let environment = vec![("A".into(), "b c".into())];
        let ended = SHELL.run_in(environment, &["-c", "echo $A"], Duration::from_secs(10)).await.unwrap();
        assert_eq!(ended.output, "b c");
    }

    #[tokio::test]
    async fn what_takes_too_long_is_killed_and_what_says_too_much_is_cut() {
        let late = SHELL.run(&["-c", "sleep 60"], Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        let script = "i=0; while [ $i -lt 4000 ]; do echo 0123456789; i=$((i+1)); done";
        let ended = SHELL.run(&["-c", script], Duration::from_secs(10)).await.unwrap();
        assert_eq!((ended.code, ended.output.len()), (Some(0), OUTPUT_MAX));
        let killed = SHELL.run(&["-c", "kill -9 $$"], Duration::from_secs(10)).await.unwrap();
        assert_eq!(killed.code, None);
    }

    #[tokio::test]
    async fn a_program_that_is_nowhere_is_not_found() {
        let program = Program { name: "sh", folders: &["/nowhere"] };
        assert_eq!(program.find(), None);
        assert_eq!(program.run(&[], Duration::from_secs(1)).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
