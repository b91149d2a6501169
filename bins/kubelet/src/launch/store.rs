//! What a daemon has the launcher keep for it over its restarts: kubelet-statusd its listening ports, so that a client
//! that connects in between waits instead of being refused; kubelet-volnetd its inotify instance, because there may be
//! no other to be had, and the socket at which device plugins register, which do so again when they see a new one. The
//! protocol is that of systemd's file descriptor store (sd_notify(3)).

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use bulkhead_daemon::Passed;

use super::notify::Notification;

/// More than statusd has ports; as in its unit (`FileDescriptorStoreMax=`).
const MAX: usize = 8;
/// A name as systemd takes it.
const NAME_MAX: usize = 64;

/// Kept descriptors by name.
#[derive(Debug, Default)]
pub struct Store {
    by_name: BTreeMap<String, OwnedFd>,
}

impl Store {
    /// Does what a notification asks for. Descriptors that nobody is to keep are closed.
    pub fn heed(&mut self, said: &Notification, fds: Vec<OwnedFd>) {
        let Some(name) = said.fd_name.as_deref().filter(|name| is_name(name)) else { return };
        if said.fd_store_remove {
            self.by_name.remove(name);
        }
        if !said.fd_store {
            return;
        }
        for fd in fds.into_iter().take(1) {
            if self.by_name.len() >= MAX && !self.by_name.contains_key(name) {
                tracing::warn!(name, "too many descriptors to keep, dropping one");
                return;
            }
            self.by_name.insert(name.to_owned(), fd);
        }
    }

    /// Closes everything; whether there was something.
    pub fn clear(&mut self) -> bool {
        !std::mem::take(&mut self.by_name).is_empty()
    }

    /// Copies, to be passed to a new child.
    ///
    /// # Errors
    /// No more descriptors are to be had.
    pub fn copies(&self) -> std::io::Result<Vec<(String, OwnedFd)>> {
        self.by_name.iter().map(|(name, fd)| Ok((name.clone(), fd.try_clone()?))).collect()
    }
}

/// Whether it is a name, and none that the launcher gives itself.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    !name.is_empty()
        && name.len() <= NAME_MAX
        && name.chars().all(plain)
        && Passed::ALL.iter().all(|ours| ours.name() != name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::notify;

    fn fd() -> Vec<OwnedFd> {
        vec![std::fs::File::open("/dev/null").unwrap().into()]
    }

    fn names(store: &Store) -> Vec<String> {
        store.copies().unwrap().into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn a_port_is_kept_replaced_and_let_go() {
        let mut store = Store::default();
        store.heed(&notify::parse(b"FDSTORE=1\nFDNAME=tcp-main\n"), fd());
        store.heed(&notify::parse(b"FDSTORE=1\nFDNAME=tcp-main\n"), fd());
        store.heed(&notify::parse(b"FDSTORE=1\nFDNAME=tcp-healthz\n"), fd());
        store.heed(&notify::parse(b"FDSTORE=1\nFDNAME=nothing-with-it\n"), Vec::new());
        assert_eq!(names(&store), ["tcp-healthz", "tcp-main"]);
        store.heed(&notify::parse(b"FDSTOREREMOVE=1\nFDNAME=tcp-main\n"), Vec::new());
        assert_eq!(names(&store), ["tcp-healthz"]);
        assert!(store.clear() && !store.clear() && names(&store).is_empty());
    }

    #[test]
    fn neither_others_names_nor_more_than_there_may_be() {
        let mut store = Store::default();
        let long = "n".repeat(65);
        for name in Passed::ALL.map(Passed::name).into_iter().chain(["", "a:b", "x y", &long]) {
            store.heed(&notify::parse(format!("FDSTORE=1\nFDNAME={name}\n").as_bytes()), fd());
        }
        store.heed(&notify::parse(b"FDSTORE=1\n"), fd());
        assert!(names(&store).is_empty());
        for n in 0..2 * MAX {
            store.heed(&notify::parse(format!("FDSTORE=1\nFDNAME=port-{n}\n").as_bytes()), fd());
        }
        assert_eq!(names(&store).len(), MAX);
    }
}
