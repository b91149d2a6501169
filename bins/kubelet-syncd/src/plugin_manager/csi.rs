//! CSI drivers: which are registered, and as what (upstream `RegistrationHandler` in `pkg/volume/csi/csi_plugin.go`, and
//! `nodeinfomanager`).

use std::collections::BTreeMap;

use bulkhead_csi::v1;
use bulkhead_ipc::syncd::CsiDriverEntry;
use kubelet_edges::csi::{CsiNode, Driver, Drivers, Version};
use parking_lot::Mutex;

use super::info::PluginInfo;
use crate::storage_writes::StorageWrites;

/// A name that the API server takes, and that is a folder of volumes' paths.
const MAX_NAME: usize = 63;
/// As the API server bounds `spec.drivers[].nodeID`.
const MAX_NODE_ID: usize = 256;
/// Drivers of one node; all of them are one message.
const MAX_DRIVERS: usize = 128;
/// Labels that one driver may give the node.
const MAX_SEGMENTS: usize = 64;
/// Prefix and name of a label's key, and its value; the API server judges the letters.
const MAX_KEY: usize = 317;
const MAX_VALUE: usize = 63;

/// What a standalone kubelet of upstream's says: it looks for a client of the API server four times.
const NO_SERVER: &str = "error updating Node object with CSI driver node info: error updating node: timed out waiting for \
                         the condition; caused by: error getting kube client";

/// Which socket registered a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    socket: String,
    version: Version,
}

/// See the module.
#[derive(Debug)]
pub struct CsiHandler<C> {
    drivers: Drivers,
    client: C,
    writes: StorageWrites,
    standalone: bool,
    owners: Mutex<BTreeMap<String, Owner>>,
}

impl<C: CsiNode> CsiHandler<C> {
    pub fn new(drivers: Drivers, client: C, writes: StorageWrites, standalone: bool) -> Self {
        CsiHandler { drivers, client, writes, standalone, owners: Mutex::default() }
    }

    /// Whether this plugin may be registered.
    ///
    /// # Errors
    /// In upstream's words.
    pub fn validate(&self, info: &PluginInfo) -> Result<(), String> {
        self.checked("ValidatePlugin", info).map(drop).map_err(|error| {
            format!("validation failed for CSI Driver {} at endpoint {}: {error}", info.name, info.endpoint)
        })
    }

    fn checked(&self, caller: &str, info: &PluginInfo) -> Result<Version, String> {
        let owners = self.owners.lock();
        if owners.len() >= MAX_DRIVERS && !owners.contains_key(&info.name) {
            return Err(format!("{MAX_DRIVERS} CSI drivers are registered, no more are taken"));
        }
        version_to_register(caller, info, owners.get(&info.name).map(|owner| owner.version))
    }

    /// Makes the driver known: its calls can be made from here on, and the API server is told of it.
    ///
    /// # Errors
    /// In upstream's words; the driver is unregistered again.
    pub async fn register(&self, socket: &str, info: &PluginInfo) -> Result<(), String> {
        let version = self.checked("RegisterPlugin", info)?;
        let owner = Owner { socket: socket.to_owned(), version };
        self.owners.lock().insert(info.name.clone(), owner);
        self.drivers.set(&info.name, Driver { endpoint: info.endpoint.clone(), version });
        let outcome = self.install(&info.name).await;
        if outcome.is_err() {
            self.deregister(socket, &info.name);
        }
        outcome
    }

    async fn install(&self, name: &str) -> Result<(), String> {
        let node =
            self.client.node_get_info(name, v1::NodeGetInfoRequest {}).await.map_err(|error| error.to_string())?;
        let entry = entry(name, node)?;
        if self.standalone {
            return Err(NO_SERVER.to_owned());
        }
        self.writes.add_driver(entry).await.map_err(|error| error.to_string())
    }

    /// Forgets the driver, if it is this socket that registered it.
    pub fn deregister(&self, socket: &str, name: &str) {
        {
            let mut owners = self.owners.lock();
            if owners.get(name).is_none_or(|owner| owner.socket != socket) {
                return;
            }
            owners.remove(name);
        }
        self.drivers.remove(name);
        if !self.standalone {
            self.writes.remove_driver(name);
        }
    }
}

/// Asks a registered driver anew what it says of the node, and has that written (upstream `updateCSIDriver`): its limit may be
/// another one by now. One that goes meanwhile is not written again.
///
/// # Errors
/// In upstream's words. What was written before stays.
pub async fn refresh<C: CsiNode>(client: &C, writes: &StorageWrites, name: &str) -> Result<(), String> {
    let asked = client.node_get_info(name, v1::NodeGetInfoRequest {}).await;
    let node = asked.map_err(|error| format!("failed to get NodeGetInfo from driver {name:?}: {error}"))?;
    let entry = entry(name, node).map_err(|error| format!("failed to update driver {name:?}: {error}"))?;
    writes.update_driver(entry).await.map_err(|error| format!("failed to update driver {name:?}: {error}"))
}

/// The version by which a driver is registered. Pure.
fn version_to_register(caller: &str, info: &PluginInfo, registered: Option<Version>) -> Result<Version, String> {
    let (name, versions) = (&info.name, &info.versions);
    let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let letters = name.as_bytes();
    if letters.len() > MAX_NAME || !letters.iter().copied().all(good) || !ends(letters.first()) || !ends(letters.last())
    {
        return Err(format!(
            "kubernetes.io/csi: {caller} for CSI driver {name:?} failed. A driver's name has at most {MAX_NAME} letters, digits, '-' and \
             '.', and begins and ends with a letter or digit"
        ));
    }
    if versions.is_empty() {
        return Err(format!(
            "kubernetes.io/csi: {caller} for CSI driver {name:?} failed. Plugin returned an empty list for supported versions"
        ));
    }
    let version = Version::highest_supported(versions).map_err(|error| {
        format!(
            "kubernetes.io/csi: {caller} for CSI driver {name:?} failed. None of the versions specified {versions:?} are supported. \
             err={error}"
        )
    })?;
    match registered {
        Some(registered) if registered >= version => Err(format!(
            "kubernetes.io/csi: {caller} for CSI driver {name:?} failed. Another driver with the same name is already registered with \
             a higher supported version: \"{registered}\""
        )),
        _ => Ok(version),
    }
}

/// The CSINode's entry, of what a driver says of the node. Pure.
fn entry(name: &str, node: v1::NodeGetInfoResponse) -> Result<CsiDriverEntry, String> {
    if node.node_id.is_empty() {
        return Err("error adding CSI driver node info: driverNodeID must not be empty".to_owned());
    }
    if node.node_id.len() > MAX_NODE_ID {
        let length = node.node_id.len();
        return Err(format!(
            "error adding CSI driver node info: driverNodeID has {length} bytes, at most {MAX_NODE_ID} are allowed"
        ));
    }
    let topology = node.accessible_topology.unwrap_or_default().segments;
    if topology.len() > MAX_SEGMENTS {
        let count = topology.len();
        return Err(format!(
            "error adding CSI driver node info: topology has {count} segments, at most {MAX_SEGMENTS} are allowed"
        ));
    }
    if let Some((key, _)) = topology.iter().find(|(key, value)| key.len() > MAX_KEY || value.len() > MAX_VALUE) {
        let key: String = key.chars().take(MAX_KEY).collect();
        return Err(format!(
            "error adding CSI driver node info: topology segment {key:?} is no label: a key has at most {MAX_KEY} bytes, a value {MAX_VALUE}"
        ));
    }
    // As upstream: no limit is no count, and one that does not fit is the largest that does.
    let allocatable_count = i32::try_from(node.max_volumes_per_node.max(0)).unwrap_or(i32::MAX);
    let topology = topology.into_iter().collect();
    Ok(CsiDriverEntry { name: name.to_owned(), node_id: node.node_id, topology, allocatable_count })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, versions: &[&str]) -> PluginInfo {
        PluginInfo {
            kind: "CSIPlugin".into(),
            name: name.into(),
            endpoint: "/e".into(),
            versions: versions.iter().map(|version| (*version).to_owned()).collect(),
        }
    }

    #[test]
    fn which_versions_are_registered() {
        let version = |text: &str| Version::parse(text).unwrap();
        for (versions, registered, want) in [
            (&["1.0.0"][..], None, Ok("1.0.0")),
            (&["1.1.0", "2.0.0"], Some("1.0.0"), Ok("1.1.0")),
            (&["1.0.0"], Some("1.0.0"), Err("already registered with a higher supported version: \"1.0.0\"")),
            (&["1.0.0"], Some("1.2.0"), Err("already registered with a higher supported version: \"1.2.0\"")),
            (&[], None, Err("Plugin returned an empty list for supported versions")),
            (&["2.0.0"], None, Err("None of the versions specified [\"2.0.0\"] are supported. err=")),
            (&["0.3.0"], None, Err("highest supported version reported by driver is 0.3.0, must be v1.x")),
        ] {
            let got = version_to_register("ValidatePlugin", &info("d", versions), registered.map(version));
            match (got, want) {
                (Ok(got), Ok(want)) => assert_eq!(got.to_string(), want),
                (Err(got), Err(want)) => assert!(got.contains(want), "{versions:?}: {got}"),
                (got, _) => panic!("{versions:?}: {got:?}"),
            }
        }
        for bad in ["", "a/b", "../x", "-a", "a.", "n\n", &"n".repeat(64)] {
            assert!(version_to_register("RegisterPlugin", &info(bad, &["1.0"]), None).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_a_driver_says_of_the_node() {
        let answer = |node_id: &str, max, segments: &[(&str, &str)]| v1::NodeGetInfoResponse {
            node_id: node_id.into(),
            max_volumes_per_node: max,
            accessible_topology: Some(v1::Topology {
                segments: segments.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            }),
        };
        let good = entry("d", answer("n", 1 << 40, &[("t/zone", "a")])).unwrap();
        assert_eq!((good.allocatable_count, good.topology.get("t/zone").map(String::as_str)), (i32::MAX, Some("a")));
        assert_eq!(entry("d", answer("n", -5, &[])).unwrap().allocatable_count, 0);
        let empty = entry("d", answer("", 0, &[])).unwrap_err();
        assert_eq!(empty, "error adding CSI driver node info: driverNodeID must not be empty");
        assert!(entry("d", answer(&"n".repeat(257), 0, &[])).is_err());
        assert!(entry("d", answer("n", 0, &[("k", &"v".repeat(64))])).is_err());
    }
}
