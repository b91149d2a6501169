//! A file system of a certain size, to be filled.

use std::path::{Path, PathBuf};

use anyhow::Result;
use bulkhead_testkit::{Lab, machine};

const MIB: u64 = 1 << 20;

/// A file system in a file of this size, mounted for as long as it lives.
#[derive(Debug)]
pub struct Disk {
    at: PathBuf,
}

impl Disk {
    /// # Errors
    /// It cannot be made or mounted.
    pub fn new(lab: &Lab, name: &str, megabytes: u64) -> Result<Self> {
        let image = lab.folder().join(format!("{name}.img"));
        std::fs::File::create(&image)?.set_len(megabytes * MIB)?;
        machine::run("mkfs.ext4", &["-q", "-m", "0", &image.display().to_string()])?;
        let at = lab.folder().join(name);
        std::fs::create_dir_all(&at)?;
        machine::run("mount", &["-o", "loop", &image.display().to_string(), &at.display().to_string()])?;
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
