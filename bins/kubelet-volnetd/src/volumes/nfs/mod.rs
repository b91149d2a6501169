//! Exports of NFS servers (upstream `pkg/volume/nfs`). The kernel connects: no program is run, no name is resolved, and the unit's
//! filters, which are for sockets of its processes, do not concern it.
//!
//! Whoever enters such a mount waits for the server. So whether a volume is mounted the list of mounts says, and before one is
//! taken away the server is asked something: as long as it does not answer, mount and folder stay, and what the pod wrote is
//! not lost unseen.

pub mod negotiation;
pub mod options;

use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_sys::fs_context::{self, ContextError};
use bulkhead_sys::mountinfo::MountInfo;
use bulkhead_sys::open;
use bulkhead_types::{PodUid, VolumeName, escape_qualified_name};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;
use serde::{Deserialize, Serialize};

use self::negotiation::{negotiate, words};
use self::options::{InvalidOption, Options};
use super::{NFS, SetUp, VolumeError, pod_dir};
use crate::node::Settings;
use crate::validate::{self, InvalidRequest};

/// The kernel's own patience with a server that does not answer is three minutes for each address that is tried, by version 4 and
/// then by version 3; a worker in it is not given up before.
pub const LONGEST_MOUNT: Duration = Duration::from_secs(3600);
/// Addresses of a server that are tried.
const MAX_ADDRESSES: usize = 8;
const MAX_PATH: usize = 1024;

/// What the volume is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nfs {
    pub volume: VolumeName,
    /// As it was written, an IPv6 address in brackets.
    pub server: String,
    /// At least one.
    pub addresses: Vec<IpAddr>,
    /// Absolute.
    pub path: String,
    pub options: Options,
}

impl Nfs {
    /// As mountinfo and upstream's messages have it.
    pub fn source(&self) -> String {
        format!("{}:{}", self.server, self.path)
    }
}

/// Why it is not mounted, as upstream's event tells it.
#[derive(Debug, thiserror::Error)]
#[error("mount failed: {why}\nMounting arguments: -t nfs{} {source_text} {}", flag(.options), .target.display())]
pub struct NfsError {
    pub why: NfsReason,
    pub source_text: String,
    pub target: PathBuf,
    /// Joined by commas.
    pub options: String,
}

/// See [`NfsError`].
#[derive(Debug, thiserror::Error)]
pub enum NfsReason {
    #[error(transparent)]
    Option(InvalidOption),
    #[error("{0}")]
    Refused(String),
}

fn flag(options: &str) -> String {
    if options.is_empty() { String::new() } else { format!(" -o {options}") }
}

impl NfsError {
    /// The server has not answered so far, and may yet.
    pub fn no_answer(settings: &Settings, pod: &PodUid, nfs: &Nfs) -> Self {
        let target = settings.told(&settings.paths.volume(pod, NFS, &nfs.volume));
        let why = words(Errno::TIMEDOUT, "", &nfs.source(), &target.display().to_string());
        NfsError::of(NfsReason::Refused(why), nfs, target)
    }

    fn of(why: NfsReason, nfs: &Nfs, target: PathBuf) -> Self {
        NfsError { why, source_text: nfs.source(), target, options: nfs.options.shown.clone() }
    }
}

/// The server as it is written before the colon of a source.
///
/// # Errors
/// It could not be told from the path, or is no name.
pub fn server(text: &str) -> Result<String, InvalidRequest> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if bare.parse::<std::net::Ipv6Addr>().is_ok() {
        return Ok(format!("[{bare}]"));
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !text.is_empty() && text.len() <= 253 && text.chars().all(is_name) {
        return Ok(text.to_owned());
    }
    Err(validate::bad("server", text, "a host's name of at most 253 characters, or an address"))
}

/// What the server's name stands for.
///
/// # Errors
/// None, too many, or one that is no address.
pub fn addresses(texts: &[String]) -> Result<Vec<IpAddr>, InvalidRequest> {
    if texts.len() > MAX_ADDRESSES {
        return Err(InvalidRequest::TooMany { field: "addresses", count: texts.len(), max: MAX_ADDRESSES });
    }
    let parse = |text: &String| text.parse().map_err(|_| validate::bad("addresses", text, "an IPv4 or IPv6 address"));
    let addresses: Vec<IpAddr> = texts.iter().map(parse).collect::<Result<_, _>>()?;
    if addresses.is_empty() { Err(InvalidRequest::Missing { field: "addresses" }) } else { Ok(addresses) }
}

/// The export. What "." and ".." mean in it is the server's business.
///
/// # Errors
/// Relative, or of a length that the protocol has no room for.
pub fn path(text: &str) -> Result<String, InvalidRequest> {
    let ok = text.starts_with('/') && text.len() <= MAX_PATH && !text.chars().any(char::is_control);
    if ok { Ok(text.to_owned()) } else { Err(validate::bad("path", text, "an absolute path of at most 1024 bytes")) }
}

/// Mounts the export, or does nothing if something is mounted there. Without `may_mount` it stops before. What is mounted is not
/// entered.
pub fn set_up(settings: &Settings, pod: &PodUid, nfs: &Nfs, may_mount: bool) -> Result<SetUp, VolumeError> {
    let volume = &nfs.volume;
    let open_error = |source| VolumeError::Open { pod: pod.clone(), volume: volume.clone(), source };
    let pod_dir = pod_dir(settings, pod)?;
    let target = settings.paths.volume(pod, NFS, volume);
    if is_mounted(&target)? {
        return Ok(SetUp::Done(target));
    }
    let folder = Path::new("volumes").join(escape_qualified_name(NFS));
    let parent = open::create_dirs_beneath(pod_dir.as_fd(), &folder, 0o750).map_err(open_error)?;
    if !may_mount {
        return Ok(SetUp::NeedsMount);
    }
    let dir = open::create_dirs_beneath(parent.as_fd(), volume.as_str(), 0o750).map_err(open_error)?;
    let mounted = mount(dir.as_fd(), nfs, &settings.told(&target));
    drop(dir);
    match mounted {
        Ok(()) => Ok(SetUp::Done(target)),
        Err(why) => {
            // As upstream: what could not be mounted leaves no folder.
            let _ = rustix::fs::unlinkat(&parent, volume.as_str(), AtFlags::REMOVEDIR);
            tracing::warn!(%pod, %volume, source = nfs.source(), "{why}");
            Err(NfsError::of(why, nfs, settings.told(&target)).into())
        }
    }
}

fn is_mounted(target: &Path) -> Result<bool, VolumeError> {
    let mut info = MountInfo::new();
    Ok(info.read().map_err(VolumeError::Mounts)?.any(|mount| *mount.mount_point == *target))
}

fn mount(dir: BorrowedFd<'_>, nfs: &Nfs, target: &Path) -> Result<(), NfsReason> {
    let family = nfs.options.family;
    let is_usable = |address: &IpAddr| family.is_none_or(|family| family.has(*address));
    let usable: Vec<IpAddr> = nfs.addresses.iter().copied().filter(is_usable).collect();
    negotiate(&usable, &nfs.options.versions, |address, version| one(dir, nfs, address, version))
        .map_err(|last| refused(last, nfs, target))
}

fn refused(last: Option<ContextError>, nfs: &Nfs, target: &Path) -> NfsReason {
    let (errno, said) = match last {
        Some(error) => (error.errno, error.said),
        None => (Errno::PROTONOSUPPORT, "no address of the server is of the transport's family".to_owned()),
    };
    NfsReason::Refused(words(errno, &said, &nfs.source(), &target.display().to_string()))
}

/// One attempt.
fn one(dir: BorrowedFd<'_>, nfs: &Nfs, address: IpAddr, version: negotiation::Version) -> Result<(), ContextError> {
    let text = |name: &str, value: String| (name.to_owned(), Some(value));
    let mut parameters =
        vec![text("source", nfs.source()), text("addr", address.to_string()), text("vers", version.to_string())];
    parameters.extend(nfs.options.parameters.iter().cloned());
    let attributes = MountAttrFlags::from_bits_retain(nfs.options.attributes);
    fs_context::mount(dir, "nfs", &parameters, attributes)
}

/// Whether a mount is one of these.
pub fn is_nfs(fs_type: &str) -> bool {
    matches!(fs_type, "nfs" | "nfs4")
}

/// Waits until the server of what is mounted on `name` answers. Whatever it answers, it is there: and if the mount gives up
/// (`soft`), so does this.
pub fn wait_for_server(parent: BorrowedFd<'_>, name: &str) {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
    if let Err(errno) = rustix::fs::statx(parent, name, flags, StatxFlags::BASIC_STATS) {
        tracing::info!(name, %errno, "NFS server of a removed volume answered with an error");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_as_a_source_has_them() {
        for (text, wanted) in [
            ("nfs.example.com", Some("nfs.example.com")),
            ("10.0.0.1", Some("10.0.0.1")),
            ("fd00::1", Some("[fd00::1]")),
            ("[fd00::1]", Some("[fd00::1]")),
            ("under_score-1", Some("under_score-1")),
            ("", None),
            ("a b", None),
            ("a:/b", None),
            ("a,b", None),
            ("[a]", None),
            ("fe80::1%eth0", None),
        ] {
            assert_eq!(server(text).ok().as_deref(), wanted, "{text}");
        }
        assert!(server(&"a".repeat(254)).is_err());
        assert!(path("/").is_ok() && path("/a b/../c").is_ok());
        assert!(path("a").is_err() && path("").is_err() && path("/a\nb").is_err() && path(&"/a".repeat(600)).is_err());
        let text = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(addresses(&text(&["::1", "10.0.0.1"])).unwrap().len(), 2);
        assert!(addresses(&[]).is_err() && addresses(&text(&["host"])).is_err());
        assert!(addresses(&text(&["::1"; 9])).is_err());
    }

    #[test]
    fn the_message_is_upstreams_but_for_the_program() {
        let nfs = Nfs {
            volume: VolumeName::parse("v").unwrap(),
            server: "s".into(),
            addresses: Vec::new(),
            path: "/p".into(),
            options: Options::parse(&["vers=3,hard".to_owned()], true).unwrap(),
        };
        let target = PathBuf::from("/r/v");
        let why = refused(None, &nfs, &target);
        assert_eq!(
            NfsError::of(why, &nfs, target).to_string(),
            "mount failed: requested NFS version or transport protocol is not supported: no address of the server is of the \
             transport's family\nMounting arguments: -t nfs -o hard,ro,vers=3 s:/p /r/v"
        );
    }
}
