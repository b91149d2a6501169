//! Loop devices, from /sys, by the file that is behind them.

use std::path::{Path, PathBuf};

use crate::machine;

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
