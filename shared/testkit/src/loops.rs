//! Loop devices, from /sys, by the file that is behind them; and file systems in files.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::machine;

/// Makes an ext4 of this size in a file, which takes room only for what is in it, and mounts it. Its device goes when it is unmounted.
///
/// # Errors
/// The file cannot be made, or not be mounted.
pub fn mount_new(file: &Path, megabytes: u64, at: &Path) -> Result<()> {
    let (file_text, at_text) = (file.display().to_string(), at.display().to_string());
    let made = std::fs::File::create(file).and_then(|made| made.set_len(megabytes << 20));
    made.with_context(|| format!("making {file_text}"))?;
    machine::run("mkfs.ext4", &["-q", "-m", "0", "-E", "lazy_itable_init=1", &file_text])?;
    machine::run("mount", &["-o", "loop,discard,noinit_itable", &file_text, &at_text]).map(drop)
}

/// Loop devices whose file lies below `folder`, with that file. The kernel adds ` (deleted)` to one that is gone.
pub fn below(folder: &Path) -> Vec<(PathBuf, String)> {
    let Ok(entries) = std::fs::read_dir("/sys/block") else { return Vec::new() };
    let mut found: Vec<(PathBuf, String)> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("loop"))
        .filter_map(|entry| {
            let file = std::fs::read_to_string(entry.path().join("loop/backing_file")).ok()?.trim().to_owned();
            Path::new(&file).starts_with(folder).then(|| (Path::new("/dev").join(entry.file_name()), file))
        })
        .collect();
    found.sort();
    found
}

/// Takes their files away from all loop devices of a folder, the newest first: one may stand on another.
pub fn detach_below(folder: &Path) {
    for (device, _) in below(folder).into_iter().rev() {
        let _ = machine::run("losetup", &["--detach", &device.to_string_lossy()]);
    }
}
