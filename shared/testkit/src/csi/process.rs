//! A program that ends with its owner, and what it says.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;

use crate::containerd::tail;
use crate::processes;
use crate::wait::{SHORT, insist};

#[derive(Debug)]
pub(crate) struct Process {
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    /// Starts it; what it says is added to `log`.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(program: &Path, arguments: Vec<String>, log: PathBuf) -> Result<Self> {
        let mut process = Self { program: program.to_owned(), arguments, log, child: None };
        process.again()?;
        Ok(process)
    }

    /// Starts it once more, with the same arguments.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn again(&mut self) -> Result<()> {
        let said = File::options().create(true).append(true).open(&self.log);
        let said = said.with_context(|| format!("opening {}", self.log.display()))?;
        // The death of the thread that starts it ends it, too: a test that panics in another way than by unwinding.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said)
            .spawn()
            .with_context(|| format!("starting {}", self.program.display()))?;
        self.child = Some(child);
        Ok(())
    }

    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    /// # Errors
    /// It has ended: the end of its log.
    pub(crate) fn alive(&mut self) -> Result<()> {
        let ended = match &mut self.child {
            None => bail!("{} does not run", self.program.display()),
            Some(child) => child.try_wait().context("looking after a driver")?,
        };
        match ended {
            None => Ok(()),
            Some(status) => {
                bail!("{} has ended: {status}: {}", self.program.display(), tail(&self.log, 20))
            }
        }
    }

    /// SIGKILL, and waits for the end.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// # Errors
    /// It does not run.
    pub(crate) fn pid(&self) -> Result<i32> {
        let child = self.child.as_ref().with_context(|| format!("{} does not run", self.program.display()))?;
        Ok(child.id() as i32)
    }

    /// # Errors
    /// It does not run.
    pub(crate) fn cpu_nanoseconds(&self) -> Result<u64> {
        processes::cpu_nanoseconds(self.pid()?)
    }

    /// Waits until it has ended by itself.
    ///
    /// # Errors
    /// It still runs.
    pub(crate) fn wait_end(&mut self) -> Result<()> {
        let Some(child) = &mut self.child else { return Ok(()) };
        insist("the driver ends", SHORT, || child.try_wait()?.context("it runs"))?;
        self.child = None;
        Ok(())
    }

    /// SIGTERM, and waits for the end; SIGKILL where it does not obey.
    pub(crate) fn stop(&mut self) {
        if let Some(child) = &self.child {
            processes::signal(child.id() as i32, Signal::SIGTERM);
        }
        if self.wait_end().is_err() {
            self.kill();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
