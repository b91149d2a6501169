//! Folders with a Debian in them, made by mmdebstrap.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use crate::image;

/// Short and the same for the same texts, in any order that is the same: part of the name of what is made of them.
pub(crate) fn digest(parts: &[String]) -> String {
    image::hex(&Sha256::digest(parts.join(" ").as_bytes())[..8])
}

/// What mmdebstrap is to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Debootstrap<'a> {
    pub suite: &'a str,
    /// `minbase`: a system that boots. `extract`: the packages and what they depend on, unpacked and not configured.
    pub variant: &'a str,
    pub packages: &'a [String],
    /// More of its arguments.
    pub more: &'a [String],
}

impl Debootstrap<'_> {
    /// Runs it; `say` gets a line for each of its steps.
    ///
    /// # Errors
    /// It failed: the end of what it said is in the message.
    pub(crate) fn run(&self, target: &Path, say: &dyn Fn(&str)) -> Result<()> {
        let mut child = Command::new("mmdebstrap")
            .arg(format!("--variant={}", self.variant))
            // As the invoking root: the modes without it need helpers that a test machine may not have.
            .arg("--mode=root")
            .arg("--format=directory")
            .arg("--aptopt=Acquire::Languages \"none\"")
            .arg(format!("--include={}", self.packages.join(",")))
            .args(self.more)
            .arg(self.suite)
            .arg(target)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting mmdebstrap")?;
        let mut said = Vec::new();
        if let Some(stderr) = child.stderr.take() {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if let Some(step) = line.strip_prefix("I: ") {
                    say(&format!("mmdebstrap: {step}"));
                }
                said.push(line);
            }
        }
        let status = child.wait().context("waiting for mmdebstrap")?;
        if !status.success() {
            bail!("mmdebstrap of {}: {status}\n{}", self.suite, said[said.len().saturating_sub(30)..].join("\n"));
        }
        Ok(())
    }
}
