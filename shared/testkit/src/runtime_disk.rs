//! A runtime whose images lie on a disk of their own, which can be filled, and images of a given size.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::sys::statvfs::statvfs;

use crate::image::{self, Image, Tar};
use crate::{Lab, loops, machine};

/// Where that fills it.
const FILLER: &str = "filler";

/// The disk that a lab's runtime has its root folder on. It goes with the lab.
#[derive(Debug)]
pub struct RuntimeDisk {
    root: PathBuf,
}

impl RuntimeDisk {
    /// Moves the runtime's root folder to a file system of this size, and starts the runtime again.
    ///
    /// # Errors
    /// The file system cannot be made, or the runtime does not come up on it.
    pub fn lay(lab: &Lab, megabytes: u64) -> Result<Self> {
        let root = lab.folder().join("containerd/root");
        let file = lab.folder().join("runtime.img");
        lab.containerd().stop()?;
        let before = lab.folder().join("containerd/before");
        std::fs::rename(&root, &before)?;
        std::fs::create_dir(&root)?;
        loops::mount_new(&file, megabytes, &root)?;
        machine::run("cp", &["--archive", &format!("{}/.", before.display()), &root.display().to_string()])?;
        std::fs::remove_dir_all(&before)?;
        lab.containerd().spawn()?;
        Ok(Self { root })
    }

    /// Bytes: of the whole, and those that are free.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn usage(&self) -> Result<(u64, u64)> {
        let found = statvfs(&self.root).with_context(|| self.root.display().to_string())?;
        Ok((found.blocks() * found.fragment_size(), found.blocks_available() * found.fragment_size()))
    }

    /// Fills it until so many percent of it are used, by something that is no image. What filled it before is gone.
    ///
    /// # Errors
    /// More is used already, or it cannot be written.
    pub fn fill_to(&self, percent: f64) -> Result<()> {
        self.free()?;
        let (capacity, available) = self.usage()?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let left = (capacity as f64 * (100.0 - percent) / 100.0) as u64;
        let bytes = available.checked_sub(left).with_context(|| format!("{available} of {capacity} bytes are free"))?;
        machine::run("fallocate", &["--length", &bytes.to_string(), &self.filler().display().to_string()])?;
        Ok(())
    }

    /// What filled it goes.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn free(&self) -> Result<()> {
        match std::fs::remove_file(self.filler()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn filler(&self) -> PathBuf {
        self.root.join(FILLER)
    }

    /// The folder of the runtime.
    pub fn path(&self) -> &Path {
        &self.root
    }
}

/// Gives a lab's runtime busybox under another name, with a file of this size in it that no other image has.
///
/// # Errors
/// The archive cannot be written, or the runtime does not take it.
pub fn import_sized(lab: &Lab, name: &'static str, megabytes: usize) -> Result<()> {
    let busybox = image::busybox_layer()?;
    let mut filler = Tar::new(Vec::new());
    let content: Vec<u8> = name.bytes().cycle().take(megabytes << 20).collect();
    filler.file("filler", 0o644, &content)?;
    let filler = filler.finish_into()?;
    let layers = [busybox.as_slice(), filler.as_slice()];
    let image = Image { name, layers: &layers, entrypoint: &[], command: &["/bin/sh"], environment: &[], user: "" };
    image::import(lab, &[image])
}

/// Names of the images that the lab's runtime has.
///
/// # Errors
/// The runtime does not answer.
pub fn image_names(lab: &Lab) -> Result<Vec<String>> {
    let listed = lab.containerd().ctr(&["images", "ls", "--quiet"])?;
    Ok(listed.lines().filter(|line| !line.starts_with("sha256:")).map(str::to_owned).collect())
}
