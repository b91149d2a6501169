//! Which version of the protocol and which address is tried next, and how a failure is worded: mount.nfs's part, which the kernel
//! does not do. Pure.

use std::fmt;
use std::net::IpAddr;

use bulkhead_sys::fs_context::ContextError;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    pub major: u32,
    /// Of version 3 there is none: 0.
    pub minor: u32,
}

impl Version {
    pub const V3: Version = Version { major: 3, minor: 0 };
    /// In the order in which they are tried.
    pub const ALL: [Version; 4] =
        [Version { major: 4, minor: 2 }, Version { major: 4, minor: 1 }, Version { major: 4, minor: 0 }, Version::V3];
}

/// As the kernel takes it (`vers=`).
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.major {
            4 => write!(f, "4.{}", self.minor),
            major => write!(f, "{major}"),
        }
    }
}

/// What is tried after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The version at this place of the list.
    Version(usize),
    /// The server's next address, with the first version again.
    Address,
    Nothing,
}

/// After the version at `tried` has failed.
pub fn next(versions: &[Version], tried: usize, errno: Errno) -> Next {
    let is_new = versions.get(tried).is_some_and(|version| version.major == 4);
    let later = |wanted: fn(&Version) -> bool| {
        (tried + 1..versions.len()).find(|place| wanted(&versions[*place])).map_or(Next::Nothing, Next::Version)
    };
    match errno {
        // The one or the other side does not have it.
        Errno::PROTONOSUPPORT | Errno::OPNOTSUPP | Errno::INVAL => later(|_| true),
        // Servers that export nothing by version 4.
        Errno::NOENT | Errno::PERM if is_new => later(|version| version.major == 3),
        Errno::CONNREFUSED
        | Errno::CONNRESET
        | Errno::TIMEDOUT
        | Errno::HOSTUNREACH
        | Errno::HOSTDOWN
        | Errno::NETUNREACH
        | Errno::NETDOWN
        | Errno::NOTCONN
        | Errno::ADDRNOTAVAIL
        | Errno::AFNOSUPPORT => Next::Address,
        _ => Next::Nothing,
    }
}

/// Tries addresses and versions in their order.
///
/// # Errors
/// The last attempt's; None where there is no address.
pub fn negotiate(
    addresses: &[IpAddr],
    versions: &[Version],
    mut attempt: impl FnMut(IpAddr, Version) -> Result<(), ContextError>,
) -> Result<(), Option<ContextError>> {
    let mut last = None;
    for address in addresses {
        let mut tried = 0;
        while let Some(version) = versions.get(tried) {
            let Err(error) = attempt(*address, *version) else { return Ok(()) };
            tracing::debug!(%address, %version, %error, "an export is not mounted this way");
            let next = next(versions, tried, error.errno);
            last = Some((*version, error));
            match next {
                Next::Version(place) => tried = place,
                Next::Address => break,
                Next::Nothing => return Err(last.map(|(_, error)| error)),
            }
        }
    }
    let Some((version, error)) = last else { return Err(None) };
    if version != Version::V3 && versions.contains(&Version::V3) && is_elsewhere(error.errno) {
        return negotiate(addresses, &[Version::V3], attempt);
    }
    Err(Some(error))
}

/// Whether a server of version 3 alone may answer nevertheless: rpcbind knows its port, which need not be version 4's (mount.nfs's
/// `nfs_autonegotiate`, which asks rpcbind as well whether version 4 has come up meanwhile; no program but the kernel asks it here).
fn is_elsewhere(errno: Errno) -> bool {
    matches!(errno, Errno::CONNREFUSED | Errno::TIMEDOUT | Errno::HOSTUNREACH)
}

/// A failure in mount.nfs's words. `said`: what the kernel had to say.
pub fn words(errno: Errno, said: &str, source: &str, target: &str) -> String {
    let more = if said.is_empty() { String::new() } else { format!(": {said}") };
    match errno {
        Errno::ACCESS | Errno::PERM => format!("access denied by server while mounting {source}"),
        Errno::INVAL => format!("an incorrect mount option was specified{more}"),
        Errno::PROTONOSUPPORT | Errno::OPNOTSUPP => {
            format!("requested NFS version or transport protocol is not supported{more}")
        }
        Errno::NOENT => format!("mounting {source} failed, reason given by server: No such file or directory"),
        Errno::NOTDIR => format!("mount spec {source} or point {target} is not a directory"),
        Errno::BUSY => format!("{target} is busy or already mounted or sharecache fail"),
        Errno::NODEV => "unknown filesystem type 'nfs'".to_owned(),
        Errno::IO => format!("mount system call failed{more}"),
        other => {
            let text = std::io::Error::from(other).to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            format!("{text} for {source} on {target}{more}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_tried_next() {
        let all = &Version::ALL[..];
        for (versions, tried, errno, wanted) in [
            (all, 0, Errno::PROTONOSUPPORT, Next::Version(1)),
            (all, 1, Errno::INVAL, Next::Version(2)),
            (all, 2, Errno::PROTONOSUPPORT, Next::Version(3)),
            (all, 3, Errno::PROTONOSUPPORT, Next::Nothing),
            (all, 0, Errno::NOENT, Next::Version(3)),
            (all, 0, Errno::PERM, Next::Version(3)),
            (all, 3, Errno::NOENT, Next::Nothing),
            (&all[..3], 0, Errno::NOENT, Next::Nothing),
            (all, 0, Errno::ACCESS, Next::Nothing),
            (all, 0, Errno::NODEV, Next::Nothing),
            (all, 0, Errno::CONNREFUSED, Next::Address),
            (all, 3, Errno::TIMEDOUT, Next::Address),
            (&all[3..], 0, Errno::INVAL, Next::Nothing),
            (&[], 0, Errno::INVAL, Next::Nothing),
        ] {
            assert_eq!(next(versions, tried, errno), wanted, "{versions:?} {tried} {errno}");
        }
        assert_eq!(Version::ALL.map(|version| version.to_string()), ["4.2", "4.1", "4.0", "3"]);
    }

    #[test]
    fn what_does_not_listen_for_version_4_is_asked_for_version_3() {
        let attempts = |addresses: &[&str], versions: &[Version], answer: &dyn Fn(&str, u32) -> Option<Errno>| {
            let addresses: Vec<IpAddr> = addresses.iter().map(|one| one.parse().unwrap()).collect();
            let mut made = Vec::new();
            let result = negotiate(&addresses, versions, |address, version| {
                made.push(format!("{address} {version}"));
                let errno = answer(&address.to_string(), version.major);
                errno.map_or(Ok(()), |errno| Err(ContextError { step: String::new(), errno, said: String::new() }))
            });
            (made.join(", "), result.map_err(|error| error.map(|error| error.errno)))
        };
        let all = &Version::ALL[..];
        let refused = Some(Errno::CONNREFUSED);
        let of_3 = |_: &str, major: u32| refused.filter(|_| major == 4);
        assert_eq!(attempts(&["::1"], all, &of_3), ("::1 4.2, ::1 3".to_owned(), Ok(())));
        assert_eq!(
            attempts(&["::1"], &all[..3], &of_3),
            ("::1 4.2".to_owned(), Err(refused)),
            "version 4 is asked for"
        );
        let away = |_: &str, _: u32| Some(Errno::TIMEDOUT);
        let made = "::1 4.2, 10.0.0.1 4.2, ::1 3, 10.0.0.1 3".to_owned();
        assert_eq!(attempts(&["::1", "10.0.0.1"], all, &away), (made, Err(Some(Errno::TIMEDOUT))));
        let denied = |_: &str, major: u32| Some(if major == 4 { Errno::HOSTUNREACH } else { Errno::ACCESS });
        assert_eq!(attempts(&["::1"], all, &denied), ("::1 4.2, ::1 3".to_owned(), Err(Some(Errno::ACCESS))));
        let no_route = |_: &str, _: u32| Some(Errno::NETUNREACH);
        assert_eq!(attempts(&["::1"], all, &no_route), ("::1 4.2".to_owned(), Err(Some(Errno::NETUNREACH))));
        let of_one = |address: &str, _: u32| refused.filter(|_| address == "::1");
        assert_eq!(attempts(&["::1", "10.0.0.1"], all, &of_one), ("::1 4.2, 10.0.0.1 4.2".to_owned(), Ok(())));
        assert_eq!(attempts(&[], all, &away), (String::new(), Err(None)));
    }

    #[test]
    fn words_are_mount_nfss() {
        let words = |errno| words(errno, "", "s:/p", "/t");
        assert_eq!(words(Errno::ACCESS), "access denied by server while mounting s:/p");
        assert_eq!(words(Errno::TIMEDOUT), "Connection timed out for s:/p on /t");
        assert_eq!(words(Errno::CONNREFUSED), "Connection refused for s:/p on /t");
        assert_eq!(words(Errno::NODEV), "unknown filesystem type 'nfs'");
        assert_eq!(
            super::words(Errno::INVAL, "NFS: x", "s:/p", "/t"),
            "an incorrect mount option was specified: NFS: x"
        );
    }
}
