//! The drivers that are registered now: the plugin manager writes, whoever calls a driver reads.

use std::collections::BTreeMap;

use tokio::sync::watch;

use super::version::Version;

/// A driver that can be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// Absolute path of its socket, as it told it.
    pub endpoint: String,
    /// The highest of its versions that counts.
    pub version: Version,
}

/// By name. Clones are the same.
#[derive(Debug, Clone)]
pub struct Drivers(std::sync::Arc<watch::Sender<BTreeMap<String, Driver>>>);

impl Default for Drivers {
    fn default() -> Self {
        Drivers(std::sync::Arc::new(watch::channel(BTreeMap::new()).0))
    }
}

impl Drivers {
    /// The driver of this name.
    pub fn get(&self, name: &str) -> Option<Driver> {
        self.0.borrow().get(name).cloned()
    }

    /// All of them as they are now, and word of every change.
    pub fn subscribe(&self) -> watch::Receiver<BTreeMap<String, Driver>> {
        self.0.subscribe()
    }

    /// It can be called from now on.
    pub fn set(&self, name: &str, driver: Driver) {
        self.0.send_if_modified(|all| all.insert(name.to_owned(), driver.clone()).as_ref() != Some(&driver));
    }

    /// It cannot be called any more.
    pub fn remove(&self, name: &str) {
        self.0.send_if_modified(|all| all.remove(name).is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_once() {
        let drivers = Drivers::default();
        let mut seen = drivers.subscribe();
        let driver = Driver { endpoint: "/p/csi.sock".into(), version: Version::parse("1.0.0").unwrap() };
        drivers.set("d", driver.clone());
        assert!(seen.has_changed().unwrap());
        assert_eq!(seen.borrow_and_update().get("d"), Some(&driver));
        drivers.set("d", driver.clone());
        drivers.remove("other");
        assert!(!seen.has_changed().unwrap());
        drivers.remove("d");
        assert!(seen.has_changed().unwrap() && drivers.get("d").is_none());
    }
}
