//! Mounts below a folder, from mountinfo, and getting rid of them.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// Mount points at and below `folder`, the deepest last.
pub fn below(folder: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut found: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| Some(PathBuf::from(unescape(line.split(' ').nth(4)?))))
        .filter(|path| path.starts_with(folder))
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
    fn the_root_is_mounted() {
        assert!(below(Path::new("/proc")).contains(&PathBuf::from("/proc")));
    }
}
