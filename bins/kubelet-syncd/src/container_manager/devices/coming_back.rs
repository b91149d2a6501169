//! What becomes of the plugins of an earlier start: what a try that failed means for the next one, when nobody need try any more, and
//! which plugins the next start is to look for.

use std::collections::BTreeMap;
use std::io::ErrorKind;

use tonic::Code;

/// How a try to bring a plugin back failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// There are as many resources as are taken.
    NoPlace,
    /// No connection.
    Unreached(ErrorKind),
    /// It did not say what it can.
    NoOptions(Code),
    /// It went before it had told its devices.
    NoList,
}

/// What follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// It may answer by and by, and has no reason to register: it is tried again after a pause.
    Again,
    /// Nothing comes of it in this life.
    End,
    /// It has ended: who comes in its place binds anew, and registers.
    Forget,
}

pub(super) fn after(failure: Failure) -> Next {
    match failure {
        Failure::Unreached(ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Next::Forget,
        // Where no socket of a plugin can be, or nothing that speaks of devices.
        Failure::Unreached(ErrorKind::InvalidInput) | Failure::NoOptions(Code::Unimplemented) | Failure::NoPlace => {
            Next::End
        }
        // It is stopped, the way through kubelet-volnetd is closed, or a folder on the way is not root's alone just then; what broke off
        // shows at the next try what it was.
        Failure::Unreached(_) | Failure::NoOptions(_) | Failure::NoList => Next::Again,
    }
}

/// Nobody is to look for the plugin of an earlier start any more: it is not among those that are `kept`, as another one has its socket
/// or its resource, or it is connected for another resource. `connected`: resources with the endpoints of their plugins.
pub(super) fn is_over<'a>(
    resource: &str,
    endpoint: &str,
    kept: &BTreeMap<String, String>,
    mut connected: impl Iterator<Item = (&'a str, &'a str)>,
) -> bool {
    kept.get(resource).is_none_or(|kept| kept != endpoint)
        || connected.any(|(other, of)| other != resource && of == endpoint)
}

/// Which plugins the next start looks for: those of before, which this process may have lost by its own restart, and those that are
/// `connected` (resource, endpoint, whether it registered by the socket) in their places. A socket is that of one plugin: a resource
/// that had it before `newest` came is nobody's.
pub(super) fn kept<'a>(
    before: BTreeMap<String, String>,
    connected: impl Iterator<Item = (&'a str, &'a str, bool)>,
    newest: &str,
) -> BTreeMap<String, String> {
    let mut kept = before;
    for (resource, endpoint, by_socket) in connected {
        if by_socket {
            kept.insert(resource.to_owned(), endpoint.to_owned());
        } else {
            kept.remove(resource);
        }
    }
    if let Some(endpoint) = kept.get(newest).cloned() {
        kept.retain(|resource, of| resource == newest || *of != endpoint);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(resource, endpoint)| ((*resource).to_owned(), (*endpoint).to_owned())).collect()
    }

    #[test]
    fn what_a_failed_try_means() {
        for (failure, next) in [
            (Failure::Unreached(ErrorKind::NotFound), Next::Forget),
            (Failure::Unreached(ErrorKind::ConnectionRefused), Next::Forget),
            (Failure::Unreached(ErrorKind::WouldBlock), Next::Again),
            (Failure::Unreached(ErrorKind::TimedOut), Next::Again),
            (Failure::Unreached(ErrorKind::Other), Next::Again),
            (Failure::Unreached(ErrorKind::PermissionDenied), Next::Again),
            (Failure::Unreached(ErrorKind::InvalidInput), Next::End),
            (Failure::NoOptions(Code::DeadlineExceeded), Next::Again),
            (Failure::NoOptions(Code::Unavailable), Next::Again),
            (Failure::NoOptions(Code::Internal), Next::Again),
            (Failure::NoOptions(Code::Unimplemented), Next::End),
            (Failure::NoList, Next::Again),
            (Failure::NoPlace, Next::End),
        ] {
            assert_eq!(after(failure), next, "{failure:?}");
        }
    }

    #[test]
    fn when_nobody_looks_for_it_any_more() {
        type Row = (&'static str, &'static str, &'static [(&'static str, &'static str)], bool);
        let rows: &[Row] = &[
            ("x/a", "/a.sock", &[("x/b", "/b.sock")], false),
            // Its own last try.
            ("x/a", "/a.sock", &[("x/a", "/a.sock")], false),
            ("x/a", "/a.sock", &[("x/c", "/a.sock")], true),
            ("x/a", "/old.sock", &[], true),
            ("x/c", "/c.sock", &[], true),
        ];
        let kept = map(&[("x/a", "/a.sock"), ("x/b", "/b.sock")]);
        for (resource, endpoint, connected, over) in rows {
            assert_eq!(is_over(resource, endpoint, &kept, connected.iter().copied()), *over, "{resource} {endpoint}");
        }
    }

    #[test]
    fn who_is_looked_for_at_the_next_start() {
        type Row =
            (&'static [(&'static str, &'static str, bool)], &'static str, &'static [(&'static str, &'static str)]);
        let rows: &[Row] = &[
            (&[("x/c", "/3.sock", true)], "x/c", &[("x/a", "/1.sock"), ("x/b", "/2.sock"), ("x/c", "/3.sock")]),
            (&[("x/a", "/4.sock", true)], "x/a", &[("x/a", "/4.sock"), ("x/b", "/2.sock")]),
            // A new version serves another resource at the same socket.
            (&[("x/c", "/1.sock", true)], "x/c", &[("x/b", "/2.sock"), ("x/c", "/1.sock")]),
            // A plugin of plugins_registry is found there.
            (&[("x/a", "/r.sock", false)], "x/a", &[("x/b", "/2.sock")]),
            (&[("x/b", "/r.sock", false), ("x/c", "/3.sock", true)], "x/c", &[("x/a", "/1.sock"), ("x/c", "/3.sock")]),
        ];
        for (connected, newest, expected) in rows {
            let before = map(&[("x/a", "/1.sock"), ("x/b", "/2.sock")]);
            assert_eq!(kept(before, connected.iter().copied(), newest), map(expected), "{connected:?}");
        }
    }
}
