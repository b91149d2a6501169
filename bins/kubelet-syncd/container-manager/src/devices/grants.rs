//! What a container gets for all of its devices (upstream `deviceRunContainerOptions`): the first answer that names a thing counts,
//! in the order of the resources' names.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_device_plugin::v1beta1::{ContainerAllocateResponse, DeviceSpec, Mount};
use prost::Message as _;

use super::held::OfContainer;

/// All of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Grants {
    pub envs: BTreeMap<String, String>,
    pub devices: Vec<DeviceSpec>,
    pub mounts: Vec<Mount>,
    pub annotations: BTreeMap<String, String>,
    pub cdi_devices: Vec<String>,
}

/// What plugins have answered for one container.
pub fn grants(of: &OfContainer) -> Grants {
    let mut all = Grants::default();
    let (mut devices, mut mounts, mut cdi) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for response in of.values().filter_map(|allocated| allocated.response.as_deref()) {
        // Only what can be read is kept.
        let Ok(response) = ContainerAllocateResponse::decode(response) else { continue };
        for (name, value) in response.envs {
            all.envs.entry(name).or_insert(value);
        }
        for (name, value) in response.annotations {
            all.annotations.entry(name).or_insert(value);
        }
        all.devices.extend(response.devices.into_iter().filter(|d| devices.insert(d.container_path.clone())));
        all.mounts.extend(response.mounts.into_iter().filter(|m| mounts.insert(m.container_path.clone())));
        let names = response.cdi_devices.into_iter().map(|device| device.name);
        all.cdi_devices.extend(names.filter(|name| cdi.insert(name.clone())));
    }
    all
}
