//! Mounts below a folder, from mountinfo, and getting rid of them.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::machine;

/// The kernel's number of loop devices, as mountinfo begins that of a mount.
const LOOP: &str = "7:";

/// Mount points at and below `folder`, the deepest last.
pub fn below(folder: &Path) -> Vec<PathBuf> {
    all_below(folder).into_iter().map(|(path, _)| path).collect()
}

/// The same with the numbers of their devices.
fn all_below(folder: &Path) -> Vec<(PathBuf, String)> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut found: Vec<(PathBuf, String)> = text
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(2);
            let device = fields.next()?.to_owned();
            Some((PathBuf::from(unescape(fields.nth(1)?)), device))
        })
        .filter(|(path, _)| path.starts_with(folder))
        .collect();
    found.sort();
    found
}

/// Binds a folder at another path.
///
/// # Errors
/// The kernel's.
pub fn bind(folder: &Path, at: &Path) -> Result<()> {
    mount(Some(folder), at, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .with_context(|| format!("binding {} at {}", folder.display(), at.display()))
}

/// Lets file systems of loop devices at and below `folder` go on that somebody has frozen and left behind: whoever waits for one of
/// them cannot be ended before.
pub fn thaw_below(folder: &Path) {
    for (path, _) in all_below(folder).into_iter().filter(|(_, device)| device.starts_with(LOOP)) {
        // One that is not frozen is refused.
        let _ = machine::run("fsfreeze", &["--unfreeze", &path.display().to_string()]);
    }
}

/// Detaches every mount at and below `folder`.
pub fn detach_below(folder: &Path) {
    for path in below(folder).into_iter().rev() {
        let _ = umount2(&path, MntFlags::MNT_DETACH);
    }
}

/// mountinfo writes space, tab, newline and backslash as three octal digits.
fn unescape(field: &str) -> String {
    let mut out = Vec::with_capacity(field.len());
    let bytes = field.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let digits = bytes.get(at + 1..at + 4).and_then(|raw| std::str::from_utf8(raw).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(value) if bytes[at] == b'\\' => {
                out.push(value);
                at += 4;
            }
            _ => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octal_escapes_are_undone() {
        assert_eq!(unescape(r"/a\040b"), "/a b");
        assert_eq!(unescape(r"/a\134b"), r"/a\b");
        assert_eq!(unescape("/plain/100"), "/plain/100");
    }

    #[test]
    fn a_frozen_file_system_goes_on() {
        if !machine::is_root() || !Path::new("/dev/loop-control").exists() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().canonicalize().unwrap().join("at");
        std::fs::create_dir(&at).unwrap();
        crate::loops::mount_new(&folder.path().join("image"), 16, &at).unwrap();
        let freeze = || machine::run("fsfreeze", &["--freeze", &at.display().to_string()]);
        freeze().unwrap();
        let (refused, file) = (freeze(), at.join("file"));
        thaw_below(folder.path());
        let written = std::fs::write(file, "goes on");
        detach_below(folder.path());
        assert!(refused.is_err(), "it was not frozen");
        written.unwrap();
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(below(Path::new("/proc")).contains(&PathBuf::from("/proc")));
    }
}
