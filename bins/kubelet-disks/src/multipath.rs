//! Devices that join several paths to one disk (upstream `pkg/volume/util` FindMultipathDeviceForDevice and
//! FindSlaveDevicesOnMultipath), and multipathd, which keeps them.
//!
//! Upstream runs `multipath -f`, which asks the kernel itself and needs CAP_SYS_ADMIN; here the daemon is asked to do it.

use std::io::{self, Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where multipathd listens: newer ones have a path.
const PATH: &str = "/run/multipathd.socket";
const ABSTRACT: &[u8] = b"/org/kernel/linux/storage/multipathd";
/// multipathd itself gives a command four seconds, unless it is configured otherwise.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest answer, bytes.
const ANSWER: u64 = 64 * 1024;
/// What the kernel has of a device that multipathd has made begins so.
const UUID: &str = "mpath-";

/// Names in a folder, sorted; none where it cannot be listed.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// A device by its name below `/sys/block`.
fn block(root: &Path, name: &str) -> PathBuf {
    root.join("sys/block").join(name)
}

fn is_multipath(root: &Path, name: &str) -> bool {
    let uuid = std::fs::read_to_string(block(root, name).join("dm/uuid"));
    name.starts_with("dm-") && uuid.is_ok_and(|uuid| uuid.starts_with(UUID))
}

/// The multipath device that has `name` ("sda") as one of its paths, or is it. `root`: where `/sys` is; `/`, but in tests.
pub fn parent(root: &Path, name: &str) -> Option<String> {
    if is_multipath(root, name) {
        return Some(name.to_owned());
    }
    let has = |parent: &String| block(root, parent).join("slaves").join(name).symlink_metadata().is_ok();
    names(&root.join("sys/block")).into_iter().filter(|parent| is_multipath(root, parent)).find(has)
}

/// The paths that it joins.
pub fn paths(root: &Path, name: &str) -> Vec<String> {
    names(&block(root, name).join("slaves"))
}

/// What else of the kernel's is built on the device: not multipath, which is asked for by [`parent`].
pub fn holders(root: &Path, name: &str) -> Vec<String> {
    names(&block(root, name).join("holders"))
}

/// Has multipathd flush the device and forget it. Blocks.
///
/// # Errors
/// It is in use, or nobody answers.
pub fn flush(root: &Path, name: &str) -> io::Result<()> {
    let map = std::fs::read_to_string(block(root, name).join("dm/name"))?;
    match asked(&format!("del map {}", map.trim_end()))?.as_str() {
        "ok" => Ok(()),
        other => Err(io::Error::other(format!("multipathd: {other}"))),
    }
}

fn asked(command: &str) -> io::Result<String> {
    let connected = match UnixStream::connect(PATH) {
        Ok(socket) => Ok(socket),
        Err(_) => UnixStream::connect_addr(&SocketAddr::from_abstract_name(ABSTRACT)?),
    };
    let absent = |error| io::Error::other(format!("multipathd does not answer: {error}"));
    exchange(connected.map_err(absent)?, command)
}

/// A length in the machine's own form, then as many bytes, the last of which is NUL; the same back.
fn exchange(mut socket: UnixStream, command: &str) -> io::Result<String> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let mut message = (command.len() + 1).to_ne_bytes().to_vec();
    message.extend_from_slice(command.as_bytes());
    message.push(0);
    socket.write_all(&message)?;
    let mut length = [0; size_of::<usize>()];
    socket.read_exact(&mut length)?;
    let length = usize::from_ne_bytes(length) as u64;
    if length > ANSWER {
        return Err(io::Error::other("multipathd's answer is too long"));
    }
    let mut answer = Vec::new();
    socket.take(length).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).trim_end_matches(['\0', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_and_its_answer() {
        for (answer, told) in [("ok\n\0", "ok"), ("map or partition in use\n\0", "map or partition in use"), ("", "")] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let daemon = std::thread::spawn(move || {
                let mut length = [0; size_of::<usize>()];
                theirs.read_exact(&mut length).unwrap();
                let mut text = vec![0; usize::from_ne_bytes(length)];
                theirs.read_exact(&mut text).unwrap();
                theirs.write_all(&answer.len().to_ne_bytes()).unwrap();
                theirs.write_all(answer.as_bytes()).unwrap();
                String::from_utf8(text).unwrap()
            });
            assert_eq!(exchange(ours, "del map mpatha").unwrap(), told);
            assert_eq!(daemon.join().unwrap(), "del map mpatha\0");
        }
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&usize::MAX.to_ne_bytes()).unwrap();
        assert!(exchange(ours, "x").is_err());
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(exchange(ours, "x").is_err());
    }
}
