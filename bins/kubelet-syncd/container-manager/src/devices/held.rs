//! Who has which device (upstream `pod_devices.go`), and the checkpoint's form of it.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_device_plugin::v1beta1::ContainerAllocateResponse;
use prost::{DecodeError, Message as _};

use crate::checkpoint::devices::{self as file, PodDevices};
use crate::topology::NumaMask;

/// What was taken of the plugin's devices, and what it is for that is not settled: the plugin has not answered yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub affinity: Option<NumaMask>,
    /// Devices of init containers that have ended by then, which are taken first.
    pub reusable: BTreeSet<String>,
    pub required: usize,
    /// The plugin has been asked which it prefers.
    pub asked: bool,
}

/// What a container has of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocated {
    pub devices: BTreeSet<String>,
    /// The same by NUMA node, -1 for none: as it was when the plugin answered.
    pub by_node: BTreeMap<i64, Vec<String>>,
    /// The plugin's ContainerAllocateResponse as it stands on the wire. None: not asked yet.
    pub response: Option<Vec<u8>>,
    pub choice: Option<Choice>,
}

/// Resource to what a container has of it.
pub type OfContainer = BTreeMap<String, Allocated>;

/// The plugin's answer that stands in an entry of the checkpoint, as it stood on the wire; without one it is empty. That
/// it is base64 was settled when the checkpoint was read.
///
/// # Errors
/// It is no ContainerAllocateResponse.
pub fn response(entry: &PodDevices) -> Result<Vec<u8>, DecodeError> {
    let response = entry.alloc_resp.as_deref().and_then(file::from_base64).unwrap_or_default();
    ContainerAllocateResponse::decode(response.as_slice())?;
    Ok(response)
}

/// By pod uid and container name.
#[derive(Debug, Clone, Default)]
pub struct Held {
    pods: BTreeMap<String, BTreeMap<String, OfContainer>>,
}

impl Held {
    pub fn of_container(&self, uid: &str, container: &str) -> Option<&OfContainer> {
        self.pods.get(uid)?.get(container)
    }

    pub fn of(&self, uid: &str, container: &str, resource: &str) -> Option<&Allocated> {
        self.of_container(uid, container)?.get(resource)
    }

    pub fn of_mut(&mut self, uid: &str, container: &str, resource: &str) -> Option<&mut Allocated> {
        self.pods.get_mut(uid)?.get_mut(container)?.get_mut(resource)
    }

    pub fn insert(&mut self, uid: &str, container: &str, resource: &str, allocated: Allocated) {
        let of_container = self.pods.entry(uid.to_owned()).or_default().entry(container.to_owned()).or_default();
        of_container.insert(resource.to_owned(), allocated);
    }

    /// Everything of a pod, by container.
    pub fn of_pod(&self, uid: &str) -> impl Iterator<Item = (&String, &OfContainer)> {
        self.pods.get(uid).into_iter().flatten()
    }

    pub fn has_pod(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    pub fn uids(&self) -> impl Iterator<Item = &String> {
        self.pods.keys()
    }

    /// All devices of a resource that somebody has or is to have. `but`: a pod's uid, and names of its containers; what those alone
    /// have does not count.
    pub fn in_use(&self, resource: &str, but: Option<(&str, &[&str])>) -> BTreeSet<String> {
        let of = |(uid, containers): (&String, &BTreeMap<String, OfContainer>)| {
            let is_apart = |name: &str| but.is_some_and(|(of, names)| of == uid.as_str() && names.contains(&name));
            let counts = containers.iter().filter(|(name, _)| !is_apart(name.as_str()));
            counts.filter_map(|(_, of)| of.get(resource)).flat_map(|a| a.devices.iter().cloned()).collect::<Vec<_>>()
        };
        self.pods.iter().flat_map(of).collect()
    }

    /// Somebody has something of it.
    pub fn has_resource(&self, resource: &str) -> bool {
        self.pods.values().flat_map(BTreeMap::values).any(|of| of.contains_key(resource))
    }

    /// Takes back what `keep` (pod uid, container, what it has of a resource) says no to. Answers whether anything was.
    pub fn retain(&mut self, keep: impl Fn(&str, &str, &Allocated) -> bool) -> bool {
        let mut taken = false;
        for (uid, containers) in &mut self.pods {
            for (name, of) in containers.iter_mut() {
                let before = of.len();
                of.retain(|_, allocated| keep(uid, name, allocated));
                taken |= of.len() != before;
            }
            containers.retain(|_, of| !of.is_empty());
        }
        self.pods.retain(|_, containers| !containers.is_empty());
        taken
    }

    /// As it stands in the checkpoint: what plugins have answered.
    pub fn to_file(&self) -> Vec<PodDevices> {
        let mut entries = Vec::new();
        for (uid, containers) in &self.pods {
            for (container, of) in containers {
                for (resource, allocated) in of {
                    let Some(response) = &allocated.response else { continue };
                    entries.push(PodDevices {
                        uid: uid.clone(),
                        container_name: container.clone(),
                        resource_name: resource.clone(),
                        device_ids: Some(allocated.by_node.clone()),
                        alloc_resp: Some(file::to_base64(response)),
                    });
                }
            }
        }
        entries
    }

    /// What stands in the checkpoint. An entry whose answer cannot be read counts for nothing, and its plugin is asked again.
    pub fn from_file(entries: &[PodDevices]) -> Self {
        let mut held = Held::default();
        for entry in entries {
            let Ok(response) = response(entry) else { continue };
            let by_node = entry.device_ids.clone().unwrap_or_default();
            let devices = by_node.values().flatten().cloned().collect();
            let allocated = Allocated { devices, by_node, response: Some(response), choice: None };
            held.insert(&entry.uid, &entry.container_name, &entry.resource_name, allocated);
        }
        held
    }
}
