//! The root folder of a containerd that has the laboratory's images: made once for each version of containerd, and copied for
//! each lab. An import takes half a second of processor each time, a copy a few hundredths.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;

use crate::containerd::Containerd;
use crate::netns::NetNs;
use crate::release::Programs;
use crate::{cache, debian, image, machine, processes};

const NAME: &str = "containerd-root-";

/// Lays the folder at `root`, which is not there yet.
///
/// # Errors
/// It could not be made: containerd does not come up or does not take the images. It cannot be copied.
pub(crate) fn lay(root: &Path, netns: &NetNs, programs: &Programs) -> Result<()> {
    let prepared = prepared(netns, programs)?;
    // With extended attributes: overlayfs keeps in them what is hidden.
    machine::run("cp", &["--archive", "--reflink=auto", &prepared.to_string_lossy(), &root.to_string_lossy()])
        .context("copying the root folder of a containerd")?;
    Ok(())
}

fn prepared(netns: &NetNs, programs: &Programs) -> Result<PathBuf> {
    let archive = image::archive()?;
    let parts = [programs.versions(), archive.display().to_string(), include_str!("containerd.rs").to_owned()];
    let name = format!("{NAME}{}", debian::digest(&parts));
    let folder = cache::folder(&name, |draft, _| {
        cache::remove_old(NAME);
        // Of one who was killed while making it; nobody else makes it now.
        for pid in processes::with_argument_below(draft) {
            processes::signal(pid, Signal::SIGKILL);
        }
        let containerd = Containerd::create(draft.to_owned(), netns, programs.clone())?;
        let made = containerd
            .spawn()
            .and_then(|()| containerd.import(&archive, &image::names().collect::<Vec<_>>()))
            .and_then(|()| containerd.stop());
        containerd.tear_down();
        made
    })?;
    Ok(folder.join("root"))
}
