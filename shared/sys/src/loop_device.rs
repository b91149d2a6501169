//! Loop devices over files of our own: while one is there, its file stays open, and the kernel gives the device that the file
//! stands for to nobody else (upstream `pkg/volume/util/volumepathhandler`, which starts losetup for it).
//!
//! A device is found by the path of its file, as the kernel shows it; the kernel shows it for whoever reads.

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Of linux/loop.h.
const LOOP_SET_FD: libc::c_ulong = 0x4C00;
const LOOP_CLR_FD: libc::c_ulong = 0x4C01;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;

/// Others take free devices too: how often a next one is looked for.
const TRIES: usize = 32;

/// A path and what may follow it.
const MAX_SHOWN: u64 = 8192;

/// Why a loop device was not made or taken away.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    #[error("failed to look for loop devices")]
    Find(#[source] io::Error),
    #[error("failed to {doing} {device}")]
    Device { doing: &'static str, device: PathBuf, source: io::Error },
    #[error("no loop device is free, or others are quicker each time")]
    NoneFree,
}

/// Numbers of the loop devices whose file the kernel shows under this path, also one that was removed since.
///
/// # Errors
/// /sys cannot be read. A kernel without loop devices has none.
pub fn of_file(path: &Path) -> Result<Vec<u32>, LoopError> {
    let mut found = Vec::new();
    let devices = match std::fs::read_dir("/sys/block") {
        Ok(devices) => devices,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(LoopError::Find(error)),
    };
    for device in devices.flatten() {
        let name = device.file_name();
        let Some(number) = name.to_str().and_then(|name| name.strip_prefix("loop")?.parse().ok()) else { continue };
        if is_over(number, path) {
            found.push(number);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Whether the kernel shows this path as the file of the device.
fn is_over(number: u32, path: &Path) -> bool {
    // A device that is free has no such file, and one that was just freed cannot be read.
    let mut shown = Vec::new();
    let read = std::fs::File::open(format!("/sys/block/loop{number}/loop/backing_file"))
        .and_then(|file| file.take(MAX_SHOWN).read_to_end(&mut shown));
    read.is_ok() && is_file(&shown, path)
}

/// Whether what the kernel shows is this file. Pure.
fn is_file(shown: &[u8], path: &Path) -> bool {
    let shown = shown.strip_suffix(b"\n").unwrap_or(shown);
    let path = path.as_os_str().as_bytes();
    shown == path || shown.strip_suffix(b" (deleted)").is_some_and(|shown| shown == path)
}

fn ioctl(fd: BorrowedFd<'_>, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<libc::c_int> {
    // SAFETY: the three requests above take a number and no pointer; the descriptors are open.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn open(device: &Path) -> Result<OwnedFd, LoopError> {
    rustix::fs::open(device, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
        .map_err(|errno| LoopError::Device { doing: "open", device: device.to_owned(), source: errno.into() })
}

/// Makes a loop device over an open file or block device, of which `path` is the path. One that is there already will do.
/// Gives its number.
///
/// # Errors
/// There are no loop devices, or none is free.
pub fn attach(file: BorrowedFd<'_>, path: &Path) -> Result<u32, LoopError> {
    if let Some(number) = of_file(path)?.first() {
        return Ok(*number);
    }
    let control = Path::new("/dev/loop-control");
    let asked = open(control)?;
    for _ in 0..TRIES {
        let free = ioctl(asked.as_fd(), LOOP_CTL_GET_FREE, 0).map_err(|source| LoopError::Device {
            doing: "find a free device with",
            device: control.to_owned(),
            source,
        })?;
        let number = u32::try_from(free).map_err(|_| LoopError::NoneFree)?;
        let device = PathBuf::from(format!("/dev/loop{number}"));
        let opened = open(&device)?;
        // A descriptor is a small number that is not negative.
        match ioctl(opened.as_fd(), LOOP_SET_FD, file.as_raw_fd() as libc::c_ulong) {
            Ok(_) => return Ok(number),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(source) => return Err(LoopError::Device { doing: "set the file of", device, source }),
        }
    }
    Err(LoopError::NoneFree)
}

/// Frees the loop devices over this file; none is success.
///
/// # Errors
/// A device cannot be opened or freed.
pub fn detach(path: &Path) -> Result<(), LoopError> {
    for number in of_file(path)? {
        let device = PathBuf::from(format!("/dev/loop{number}"));
        let opened = open(&device)?;
        // Somebody else may have freed it since it was found, and it may be over another file now. While it is open that cannot be.
        if !is_over(number, path) {
            continue;
        }
        match ioctl(opened.as_fd(), LOOP_CLR_FD, 0) {
            Ok(_) => {}
            // Somebody else was quicker.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => {}
            Err(source) => return Err(LoopError::Device { doing: "free", device, source }),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_file_is_told_from_others() {
        let path = Path::new("/r/dev/u");
        for (shown, is) in [
            ("/r/dev/u\n", true),
            ("/r/dev/u", true),
            ("/r/dev/u (deleted)\n", true),
            ("/r/dev/u2\n", false),
            ("/r/dev\n", false),
            ("\n", false),
            ("", false),
        ] {
            assert_eq!(is_file(shown.as_bytes(), path), is, "{shown:?}");
        }
        assert!(is_file(b"/r/a\nb\n", Path::new("/r/a\nb")));
    }

    #[test]
    fn one_device_a_file_and_free_again() {
        if !rustix::process::getuid().is_root() || !Path::new("/dev/loop-control").exists() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join("file");
        let file = std::fs::File::create_new(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let number = attach(file.as_fd(), &path).unwrap();
        assert_eq!(attach(file.as_fd(), &path).unwrap(), number);
        assert_eq!(of_file(&path).unwrap(), [number]);
        detach(&path).unwrap();
        // Whoever looks at new devices may have it open for a moment.
        let started = Instant::now();
        while !of_file(&path).unwrap().is_empty() {
            assert!(started.elapsed() < Duration::from_secs(10), "loop{number} is not freed");
            std::thread::sleep(Duration::from_millis(20));
        }
        detach(&path).unwrap();
    }
}
