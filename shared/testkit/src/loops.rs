//! Loop devices, from /sys, by the file that is behind them; and file systems in files.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::machine;

/// Makes an ext4 of this size in a file, which takes room only for what is in it, and mounts it. Its device goes when it is unmounted.
///
/// # Errors
/// The file cannot be made, or not be mounted.
pub fn mount_new(file: &Path, megabytes: u64, at: &Path) -> Result<()> {
    mount_new_with(file, megabytes, &[], at)
}

/// The same with more arguments of mkfs.ext4.
///
/// # Errors
/// As [`mount_new`].
pub fn mount_new_with(file: &Path, megabytes: u64, arguments: &[&str], at: &Path) -> Result<()> {
    let (file_text, at_text) = (file.display().to_string(), at.display().to_string());
    let made = std::fs::File::create(file).and_then(|made| made.set_len(megabytes << 20));
    made.with_context(|| format!("making {file_text}"))?;
    let usual = ["-q", "-m", "0", "-E", "lazy_itable_init=1"];
    machine::run("mkfs.ext4", &[&usual, arguments, &[&file_text]].concat())?;
    machine::run("mount", &["-o", "loop,discard,noinit_itable", &file_text, &at_text]).map(drop)
}

/// Loop devices whose file is `folder` or lies below it, with that file. The kernel adds ` (deleted)` to one that is gone.
pub fn below(folder: &Path) -> Vec<(PathBuf, String)> {
    let Ok(entries) = std::fs::read_dir("/sys/block") else { return Vec::new() };
    let mut found: Vec<(PathBuf, String)> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("loop"))
        .filter_map(|entry| Some((Path::new("/dev").join(entry.file_name()), file_below(&entry.path(), folder)?)))
        .collect();
    found.sort();
    found
}

/// The file of a device in /sys/block, if it is `folder` or lies below it.
fn file_below(block: &Path, folder: &Path) -> Option<String> {
    let file = std::fs::read_to_string(block.join("loop/backing_file")).ok()?.trim().to_owned();
    Path::new(file.strip_suffix(" (deleted)").unwrap_or(&file)).starts_with(folder).then_some(file)
}

/// Takes their files away from all loop devices of a folder or a file, the newest first: one may stand on another.
pub fn detach_below(folder: &Path) {
    for (device, _) in below(folder).into_iter().rev() {
        // While it is open nobody frees it, and its number does not become another file's.
        let Ok(_open) = std::fs::File::open(&device) else { continue };
        let block = Path::new("/sys/block").join(device.file_name().unwrap_or_default());
        if file_below(&block, folder).is_some() {
            let _ = machine::run("losetup", &["--detach", &device.to_string_lossy()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_known_by_its_file_also_when_that_is_gone() {
        let block = tempfile::tempdir().unwrap();
        std::fs::create_dir(block.path().join("loop")).unwrap();
        assert_eq!(file_below(block.path(), Path::new("/a")), None, "it is free");
        for (shown, folder, is) in [
            ("/a/b.img\n", "/a", true),
            ("/a/b.img\n", "/a/b.img", true),
            ("/a/b.img (deleted)\n", "/a/b.img", true),
            ("/a/b.img.2\n", "/a/b.img", false),
            ("/ab/b.img\n", "/a", false),
        ] {
            std::fs::write(block.path().join("loop/backing_file"), shown).unwrap();
            assert_eq!(file_below(block.path(), Path::new(folder)).is_some(), is, "{shown:?} {folder}");
        }
    }
}
