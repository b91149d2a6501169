//! A file system of a certain size, to be filled.

use std::path::{Path, PathBuf};

use anyhow::Result;
use bulkhead_testkit::{Lab, loops, machine};

/// A file system in a file of this size, mounted for as long as it lives.
#[derive(Debug)]
pub struct Disk {
    at: PathBuf,
}

impl Disk {
    /// # Errors
    /// It cannot be made or mounted.
    pub fn new(lab: &Lab, name: &str, megabytes: u64) -> Result<Self> {
        Self::make(lab, name, megabytes, &[])
    }

    /// One that has room for about so many files.
    ///
    /// # Errors
    /// As [`Disk::new`].
    pub fn with_inodes(lab: &Lab, name: &str, megabytes: u64, inodes: u64) -> Result<Self> {
        Self::make(lab, name, megabytes, &["-N", &inodes.to_string()])
    }

    fn make(lab: &Lab, name: &str, megabytes: u64, arguments: &[&str]) -> Result<Self> {
        let image = lab.folder().join(format!("{name}.img"));
        let at = lab.folder().join(name);
        std::fs::create_dir_all(&at)?;
        loops::mount_new_with(&image, megabytes, arguments, &at)?;
        Ok(Disk { at })
    }

    pub fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = machine::run("umount", &[&self.at.display().to_string()]);
    }
}
