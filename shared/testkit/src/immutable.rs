//! Files that nobody may change or remove, root neither.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::skip::Lack;

/// What is lacking where [`Immutable::make`] gives nothing.
pub const LACK: Lack = Lack::Program("chattr, with a file system that heeds it,");

/// Such a file, until this is dropped.
#[derive(Debug)]
pub struct Immutable(PathBuf);

impl Immutable {
    /// Makes it of a file; `None`: its file system has no such attribute.
    ///
    /// # Errors
    /// There is no chattr.
    pub fn make(path: &Path) -> Result<Option<Self>> {
        Ok(set(path, "+i")?.then(|| Self(path.to_owned())))
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        let _ = set(&self.0, "-i");
    }
}

fn set(path: &Path, attribute: &str) -> Result<bool> {
    let output = Command::new("chattr").arg(attribute).arg(path).output().context("chattr (e2fsprogs)")?;
    Ok(output.status.success())
}
