//! Commands inside a machine, as a person on its console would run them: in all its namespaces, beside its PID 1 in the
//! cgroups, with an environment of its own.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail};

use super::Machine;
use crate::cgroups;

/// What a login gives a person, and `systemctl` without a pager.
const ENVIRONMENT: &[&str] = &[
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME=/root",
    "USER=root",
    "LANG=C.UTF-8",
    "TERM=dumb",
    "SYSTEMD_PAGER=",
    "SYSTEMD_COLORS=0",
];

/// Joins the cgroups that come first, then becomes what follows the `--`.
const ENTER: &str = r#"while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; exec "$@""#;

impl Machine {
    /// A command inside the machine: its program and arguments. Standard input is empty; the caller may set all three.
    ///
    /// # Errors
    /// The machine does not run.
    pub fn command(&self, line: &[&str]) -> Result<Command> {
        let leader = self.leader()?;
        let mut command = Command::new("/bin/sh");
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").process_group(0).stdin(Stdio::null());
        command.args(["-c", ENTER, "sh"]).args(cgroups::member_files_of(leader)?).arg("--");
        command.arg("nsenter").arg(format!("--target={leader}"));
        command.args(["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--"]);
        command.args(["/usr/bin/env", "-i"]).args(ENVIRONMENT).args(line);
        Ok(command)
    }

    /// Runs a command to its end: exit status, standard output and standard error.
    ///
    /// # Errors
    /// The machine does not run.
    pub fn run(&self, line: &[&str]) -> Result<Output> {
        self.command(line)?.output().with_context(|| format!("running {line:?} in the machine"))
    }

    /// Runs a command that has to succeed; gives its standard output.
    ///
    /// # Errors
    /// It ended with another code than 0: what it wrote.
    pub fn check(&self, line: &[&str]) -> Result<String> {
        let output = self.run(line)?;
        let text = |raw: &[u8]| String::from_utf8_lossy(raw).into_owned();
        if !output.status.success() {
            bail!("{line:?}: {}: {}{}", output.status, text(&output.stderr), text(&output.stdout));
        }
        Ok(text(&output.stdout))
    }

    /// A script for /bin/sh that has to succeed; gives its standard output.
    ///
    /// # Errors
    /// As [`Machine::check`].
    pub fn shell(&self, script: &str) -> Result<String> {
        self.check(&["/bin/sh", "-ec", script])
    }
}
