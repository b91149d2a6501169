//! All registered plugins. A driver may have several for a while, when one takes over from another.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::plugin::{Calls, Plugin, Service};

/// Why a driver cannot be asked; upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    #[error("DRA driver name is empty")]
    NoName,
    #[error("DRA driver {0} is not registered")]
    NotRegistered(String),
    #[error("endpoint {endpoint} already registered for DRA driver plugin {driver}")]
    EndpointTaken { driver: String, endpoint: String },
}

/// Clones are the same.
#[derive(Debug, Clone)]
pub struct Plugins {
    /// Of each driver in the order in which they came.
    by_driver: Arc<Mutex<BTreeMap<String, Vec<Arc<Plugin>>>>>,
    changed: Arc<watch::Sender<u64>>,
    calls: Calls,
}

impl Plugins {
    pub fn new(calls: Calls) -> Self {
        Plugins { by_driver: Arc::default(), changed: Arc::new(watch::channel(0).0), calls }
    }

    /// A plugin has registered; it is connected to from here on. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Another one of this driver has that endpoint.
    pub fn add(&self, driver: &str, endpoint: &str, service: Service) -> Result<Arc<Plugin>, DriverError> {
        let plugin = {
            let mut all = self.by_driver.lock();
            let of_driver = all.entry(driver.to_owned()).or_default();
            if of_driver.iter().any(|plugin| plugin.endpoint() == endpoint) {
                return Err(DriverError::EndpointTaken { driver: driver.to_owned(), endpoint: endpoint.to_owned() });
            }
            let changed = self.changed.clone();
            let plugin = Arc::new(Plugin::new(&self.calls, driver, endpoint, service, move || tell(&changed)));
            of_driver.push(plugin.clone());
            plugin
        };
        tell(&self.changed);
        Ok(plugin)
    }

    /// It is registered no more.
    pub fn remove(&self, driver: &str, endpoint: &str) {
        let removed = {
            let mut all = self.by_driver.lock();
            let Some(of_driver) = all.get_mut(driver) else { return };
            let removed: Vec<_> = of_driver.extract_if(.., |plugin| plugin.endpoint() == endpoint).collect();
            if of_driver.is_empty() {
                all.remove(driver);
            }
            removed
        };
        for plugin in removed {
            plugin.gone().cancel();
        }
        tell(&self.changed);
    }

    /// Who is asked for a driver: the newest plugin that is connected, else the newest.
    ///
    /// # Errors
    /// It has none.
    pub fn get(&self, driver: &str) -> Result<Arc<Plugin>, DriverError> {
        if driver.is_empty() {
            return Err(DriverError::NoName);
        }
        let all = self.by_driver.lock();
        let of_driver = all.get(driver).map(Vec::as_slice).unwrap_or_default();
        let connected = of_driver.iter().rev().find(|plugin| plugin.is_connected());
        let plugin = connected.or(of_driver.last()).cloned();
        plugin.ok_or_else(|| DriverError::NotRegistered(driver.to_owned()))
    }

    /// Every driver that has a plugin, and whether one of them is connected.
    pub fn usable(&self) -> BTreeMap<String, bool> {
        let all = self.by_driver.lock();
        let usable = |plugins: &Vec<Arc<Plugin>>| plugins.iter().any(|plugin| plugin.is_connected());
        all.iter().map(|(driver, plugins)| (driver.clone(), usable(plugins))).collect()
    }

    /// Word of every change of what [`Plugins::usable`] answers.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

fn tell(changed: &watch::Sender<u64>) {
    changed.send_modify(|count| *count = count.wrapping_add(1));
}
