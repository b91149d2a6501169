//! The kernel's list of mounts, /proc/self/mountinfo: what is mounted is what stands here.
//!
//! The file is read whole into a buffer that is kept (hundreds of lines on a busy node) and parsed in place.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// More than this is not read: 64 MiB would be some 400 000 mounts.
const MAX_BYTES: u64 = 64 << 20;

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount<'a> {
    pub id: u64,
    pub parent: u64,
    /// "major:minor".
    pub device: &'a str,
    /// Root of the mount inside its file system.
    pub root: Cow<'a, Path>,
    pub mount_point: Cow<'a, Path>,
    pub options: &'a str,
    /// Peer group, when shared.
    pub shared: Option<u64>,
    /// A server of FUSE names its part, in any bytes: what is no text is replaced, as in the options.
    pub fs_type: Cow<'a, str>,
    pub source: Cow<'a, Path>,
    /// Paths stand in some (`lowerdir`).
    pub super_options: Cow<'a, str>,
}

/// Reads the list again and again into the same buffer.
#[derive(Debug, Default)]
pub struct MountInfo {
    buffer: Vec<u8>,
}

impl MountInfo {
    pub fn new() -> Self {
        Self::default()
    }

    /// The mounts of this process's namespace now. Lines that cannot be parsed are left out.
    pub fn read(&mut self) -> io::Result<impl Iterator<Item = Mount<'_>>> {
        self.buffer.clear();
        std::fs::File::open("/proc/self/mountinfo")?.take(MAX_BYTES).read_to_end(&mut self.buffer)?;
        Ok(parse(&self.buffer))
    }

    /// The innermost mount that `path` is on, by text: `path` must be absolute and free of links.
    pub fn containing(&mut self, path: &Path) -> io::Result<Option<Mount<'_>>> {
        // Of several mounts on one point the last one listed lies on top.
        Ok(self
            .read()?
            .filter(|mount| path.starts_with(&mount.mount_point))
            .max_by_key(|mount| mount.mount_point.components().count()))
    }
}

/// The innermost of these mounts that `path` is on, by text. Of several mounts on one point the last one listed lies on top.
pub fn innermost<'a, 'b: 'a>(mounts: impl Iterator<Item = &'a Mount<'b>>, path: &Path) -> Option<&'a Mount<'b>> {
    mounts
        .filter(|mount| path.starts_with(&mount.mount_point))
        .max_by_key(|mount| mount.mount_point.components().count())
}

/// Parses the text of a mountinfo file.
pub fn parse(text: &[u8]) -> impl Iterator<Item = Mount<'_>> {
    text.split(|b| *b == b'\n').filter_map(parse_line)
}

/// `36 35 98:0 /root /point rw,noatime shared:1 master:2 - ext3 /dev/sda1 rw,errors=continue`
fn parse_line(line: &[u8]) -> Option<Mount<'_>> {
    let mut fields = line.split(|b| *b == b' ');
    let mut next = || fields.next();
    let id = number(next()?)?;
    let parent = number(next()?)?;
    let device = text(next()?)?;
    let root = path(next()?);
    let mount_point = path(next()?);
    let options = text(next()?)?;
    let mut shared = None;
    loop {
        let optional = next()?;
        if optional == b"-" {
            break;
        }
        if let Some(group) = optional.strip_prefix(b"shared:") {
            shared = number(group);
        }
    }
    let fs_type = String::from_utf8_lossy(next()?);
    let source = path(next()?);
    let super_options = String::from_utf8_lossy(next().unwrap_or_default());
    Some(Mount { id, parent, device, root, mount_point, options, shared, fs_type, source, super_options })
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

fn number(bytes: &[u8]) -> Option<u64> {
    text(bytes)?.parse().ok()
}

fn path(bytes: &[u8]) -> Cow<'_, Path> {
    match unescape(bytes) {
        Cow::Borrowed(bytes) => Cow::Borrowed(Path::new(OsStr::from_bytes(bytes))),
        Cow::Owned(bytes) => Cow::Owned(std::ffi::OsString::from_vec(bytes).into()),
    }
}

/// The kernel writes space, tab, newline, backslash and '#' as a backslash and three octal digits.
fn unescape(bytes: &[u8]) -> Cow<'_, [u8]> {
    if !bytes.contains(&b'\\') {
        return Cow::Borrowed(bytes);
    }
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, tail)) = rest.split_first() {
        if *first == b'\\'
            && let [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] = tail
        {
            out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
            rest = after;
            continue;
        }
        out.push(*first);
        rest = tail;
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_with_everything() {
        let mount =
            parse_line(b"36 35 98:0 /mnt1 /a\\040b/c rw,noatime master:1 shared:7 - tmpfs tmp\\134fs rw,size=1k")
                .unwrap();
        assert_eq!((mount.id, mount.parent, mount.shared), (36, 35, Some(7)));
        assert_eq!(&*mount.mount_point, Path::new("/a b/c"));
        assert_eq!(&*mount.source, Path::new("tmp\\fs"));
        assert_eq!((&*mount.fs_type, &*mount.super_options), ("tmpfs", "rw,size=1k"));
        assert_eq!(parse_line(b"36 35 98:0 / / rw - ext4 /dev/vda rw").unwrap().shared, None);
        for bad in [&b""[..], b"36", b"x 35 98:0 / / rw - ext4 /dev/vda rw", b"36 35 98:0 / / rw shared:1"] {
            assert_eq!(parse_line(bad), None);
        }
    }

    /// Whoever mounts it decides on these bytes: a line that were left out would hide the mount from what unmounts it.
    #[test]
    fn a_line_with_bytes_that_are_no_text() {
        let mount = parse_line(b"36 35 0:50 / /a rw - overlay overlay rw,lowerdir=/\xff/x,seclabel").unwrap();
        assert_eq!((&*mount.mount_point, &*mount.fs_type), (Path::new("/a"), "overlay"));
        assert_eq!(mount.super_options, "rw,lowerdir=/\u{fffd}/x,seclabel");
        let mount = parse_line(b"36 35 0:51 /\xfe /\xff rw - fuse.\xff \xff rw").unwrap();
        assert_eq!(mount.mount_point.as_os_str().as_bytes(), b"/\xff");
        assert!(mount.fs_type.starts_with("fuse."));
    }

    #[test]
    fn the_real_file_has_a_root() {
        let mut info = MountInfo::new();
        assert!(info.read().unwrap().any(|mount| &*mount.mount_point == Path::new("/")));
        assert_eq!(&*info.containing(Path::new("/proc/self")).unwrap().unwrap().mount_point, Path::new("/proc"));
        assert_eq!(&*info.containing(Path::new("/proc")).unwrap().unwrap().mount_point, Path::new("/proc"));
    }

    fn escape(bytes: &[u8]) -> Vec<u8> {
        bytes
            .iter()
            .flat_map(|b| match b {
                b' ' | b'\t' | b'\n' | b'\\' | b'#' => format!("\\{b:03o}").into_bytes(),
                b => vec![*b],
            })
            .collect()
    }

    proptest! {
        #[test]
        fn any_path_comes_back(path in proptest::collection::vec(1u8..=255, 1..80)) {
            let mut line = b"1 2 0:5 / /".to_vec();
            line.extend(escape(&path));
            line.extend(b" rw - tmpfs tmpfs rw");
            let mount = parse_line(&line).unwrap();
            prop_assert_eq!(mount.mount_point.as_os_str().as_bytes()[1..].to_vec(), path);
        }

        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes).count();
        }
    }
}
