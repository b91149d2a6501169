//! Devices: those that the container's `volumeDevices` name, and exactly those of the allocation record.

use bulkhead_cri::v1;

use super::{Checked, RequestContext, Starting, must};

pub(super) fn container(known: &RequestContext<'_>, starting: &Starting<'_>, asked: &v1::ContainerConfig) -> Checked {
    let own = known.folder().join("volumeDevices");
    for device in &asked.devices {
        let of_volume = starting
            .container
            .volume_devices
            .iter()
            .flatten()
            .any(|wanted| wanted.device_path == device.container_path)
            && std::path::Path::new(&device.host_path).starts_with(&own);
        must(
            of_volume || starting.options.devices.contains(device),
            "devices",
            &device.host_path,
            "those of volumeDevices, and those that were allocated",
        )?;
    }
    let cdi: Vec<&str> = asked.cdi_devices.iter().map(|device| device.name.as_str()).collect();
    must(cdi == starting.options.cdi_devices, "CDI_devices", cdi, format!("{:?}", starting.options.cdi_devices))
}
