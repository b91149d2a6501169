//! Which plugins the next start looks for, as they do not register again by themselves while the socket stays: where each listens is
//! written down.

use std::collections::BTreeMap;

use super::DevicePlugins;

/// Where a plugin has registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegisteredBy {
    /// `kubelet.sock` in device-plugins: it does not register again after a restart of this process.
    KubeletSocket,
    /// `plugins_registry`, where it is found at each start.
    PluginsRegistry,
}

/// Which plugins there were, for the next start.
pub trait EndpointStore: Send + Sync + std::fmt::Debug {
    /// Resource to absolute path of its plugin's socket. Asked from the start on until it answers. What cannot be understood has been
    /// set aside, and is empty.
    ///
    /// # Errors
    /// It cannot be read, or what cannot be understood could not be set aside (the disk is full): nothing is to be written over it.
    fn load(&self) -> std::io::Result<BTreeMap<String, String>>;
    /// # Errors
    /// It could not be written, and the store is as it was.
    fn save(&self, endpoints: &BTreeMap<String, String>) -> std::io::Result<()>;
}

/// Which plugins the next start looks for. The truth while this process lives; the store is its copy.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    pub(super) of: BTreeMap<String, String>,
    /// The store has been read: until then nothing is written over what it has.
    is_read: bool,
    /// That it cannot be read has been said.
    is_warned: bool,
    /// What it has is older than this, as it could not be written (the disk was full).
    pub(super) is_behind: bool,
}

impl Endpoints {
    /// Reads the store, if that was not to be had before. What has registered meanwhile counts more. False: not yet.
    pub(super) fn read(&mut self, store: &dyn EndpointStore) -> bool {
        if !self.is_read {
            match store.load() {
                Ok(found) => {
                    let is_news = !self.of.is_empty();
                    for (resource, endpoint) in found {
                        if !self.of.values().any(|of| *of == endpoint) {
                            self.of.entry(resource).or_insert(endpoint);
                        }
                    }
                    self.is_read = true;
                    if is_news {
                        self.write(store);
                    }
                }
                Err(error) if self.is_warned => {
                    tracing::debug!(%error, "plugins of an earlier start are still not known");
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to load device plugin endpoints: trying again");
                    self.is_warned = true;
                }
            }
        }
        self.is_read
    }

    pub(super) fn save(&mut self, store: &dyn EndpointStore) {
        if self.read(store) {
            self.write(store);
        }
    }

    fn write(&mut self, store: &dyn EndpointStore) {
        let written = store.save(&self.of);
        if let Some(error) = written.as_ref().err().filter(|_| !self.is_behind) {
            tracing::warn!(%error, "failed to save device plugin endpoints");
        }
        self.is_behind = written.is_err();
    }

    /// Writes what could not be written before. True: nothing is left.
    pub(super) fn catch_up(&mut self, store: &dyn EndpointStore) -> bool {
        if self.is_behind {
            self.write(store);
        }
        !self.is_behind
    }
}

/// Which plugins the next start looks for: those of before, which this process may have lost by its own restart, and those that are
/// `connected` (resource, endpoint, who registered it) in their places. A socket is that of one plugin: a resource that had it before
/// `newest` came is nobody's.
pub(super) fn kept<'a>(
    before: BTreeMap<String, String>,
    connected: impl Iterator<Item = (&'a str, &'a str, RegisteredBy)>,
    newest: &str,
) -> BTreeMap<String, String> {
    let mut kept = before;
    for (resource, endpoint, registered_by) in connected {
        match registered_by {
            RegisteredBy::KubeletSocket => kept.insert(resource.to_owned(), endpoint.to_owned()),
            RegisteredBy::PluginsRegistry => kept.remove(resource),
        };
    }
    if let Some(endpoint) = kept.get(newest).cloned() {
        kept.retain(|resource, of| resource == newest || *of != endpoint);
    }
    kept
}

impl DevicePlugins {
    /// A plugin has come for `newest`, in the place of those that are `dropped`: nobody looks for their plugins any more.
    pub(super) fn save_endpoints(&self, newest: &str, dropped: &[String]) {
        let plugins = self.plugins.lock();
        let connected = plugins.iter().map(|(resource, c)| (resource.as_str(), c.endpoint.as_str(), c.registered_by));
        let mut endpoints = self.kept.lock();
        endpoints.read(&*self.store);
        endpoints.of.retain(|resource, _| !dropped.contains(resource));
        endpoints.of = kept(std::mem::take(&mut endpoints.of), connected, newest);
        self.save_kept(&mut endpoints);
    }

    /// At once, or as soon as it can be written.
    fn save_kept(&self, endpoints: &mut Endpoints) {
        endpoints.save(&*self.store);
        if endpoints.is_behind {
            self.dirty.notify_one();
        }
    }

    /// The next start does not look for the resource's plugin.
    pub(super) fn forget_endpoint(&self, resource: &str) {
        let mut endpoints = self.kept.lock();
        if endpoints.of.remove(resource).is_some() {
            self.save_kept(&mut endpoints);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(resource, endpoint)| ((*resource).to_owned(), (*endpoint).to_owned())).collect()
    }

    #[test]
    fn who_is_looked_for_at_the_next_start() {
        use RegisteredBy::{KubeletSocket, PluginsRegistry};
        type Row = (
            &'static [(&'static str, &'static str, RegisteredBy)],
            &'static str,
            &'static [(&'static str, &'static str)],
        );
        let rows: &[Row] = &[
            (
                &[("x/c", "/3.sock", KubeletSocket)],
                "x/c",
                &[("x/a", "/1.sock"), ("x/b", "/2.sock"), ("x/c", "/3.sock")],
            ),
            (&[("x/a", "/4.sock", KubeletSocket)], "x/a", &[("x/a", "/4.sock"), ("x/b", "/2.sock")]),
            // A new version serves another resource at the same socket.
            (&[("x/c", "/1.sock", KubeletSocket)], "x/c", &[("x/b", "/2.sock"), ("x/c", "/1.sock")]),
            // A plugin of plugins_registry is found there.
            (&[("x/a", "/r.sock", PluginsRegistry)], "x/a", &[("x/b", "/2.sock")]),
            (
                &[("x/b", "/r.sock", PluginsRegistry), ("x/c", "/3.sock", KubeletSocket)],
                "x/c",
                &[("x/a", "/1.sock"), ("x/c", "/3.sock")],
            ),
        ];
        for (connected, newest, expected) in rows {
            let before = map(&[("x/a", "/1.sock"), ("x/b", "/2.sock")]);
            assert_eq!(kept(before, connected.iter().copied(), newest), map(expected), "{connected:?}");
        }
    }
}
