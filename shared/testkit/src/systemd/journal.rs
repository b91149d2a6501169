//! What the machine's units said, read from outside: also when nothing inside answers any more.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::Machine;

impl Machine {
    /// The journal of this boot and the ones before, filtered by more arguments of journalctl (`--unit=x`, `--lines=20`,
    /// `--output=json`).
    ///
    /// # Errors
    /// What journalctl said.
    pub fn journal(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new("journalctl")
            .arg("--directory")
            .arg(self.root().join("var/log/journal"))
            .args(["--no-pager", "--quiet"])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .context("starting journalctl")?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "journalctl {arguments:?}: {}: {}", output.status, complaint.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The last lines of these units' journals (`kubelet*`), and what systemd said of them, for an error message.
    pub fn last_words(&self, units: &[&str], lines: usize) -> String {
        let mut all = String::new();
        for unit in units {
            let said = self
                .journal(&["--unit", unit, "--output=short-precise", "--lines", &lines.to_string()])
                .unwrap_or_else(|error| format!("{error:#}"));
            all.push_str(&format!("--- the journal of {unit} ends:\n{}\n", said.trim_end()));
        }
        all
    }
}
