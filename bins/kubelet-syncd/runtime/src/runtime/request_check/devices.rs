//! Devices: those that the container's `volumeDevices` name, or that a claim or an extended resource brings.

use bulkhead_cri::v1;
use k8s_openapi::api::core::v1::Container;

use super::{Checked, RequestContext, Starting, must};

pub(super) fn container(known: &RequestContext<'_>, starting: &Starting<'_>, asked: &v1::ContainerConfig) -> Checked {
    let brings = brings_devices(starting.container);
    let own = known.folder().join("volumeDevices");
    for device in &asked.devices {
        let of_volume = starting
            .container
            .volume_devices
            .iter()
            .flatten()
            .any(|wanted| wanted.device_path == device.container_path)
            && std::path::Path::new(&device.host_path).starts_with(&own);
        must(of_volume || brings, "devices", &device.host_path, "those of volumeDevices")?;
    }
    let cdi: Vec<&str> = asked.cdi_devices.iter().map(|device| device.name.as_str()).collect();
    must(cdi.is_empty() || brings, "CDI_devices", cdi, "none without a claim or an extended resource")
}

/// The container has something that a plugin or a driver gives it.
fn brings_devices(container: &Container) -> bool {
    let Some(resources) = &container.resources else { return false };
    let extended = |name: &String| name.contains('/') && !name.starts_with("kubernetes.io/");
    resources.claims.as_ref().is_some_and(|claims| !claims.is_empty())
        || resources.limits.iter().flatten().any(|(name, _)| extended(name))
}
