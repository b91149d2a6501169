//! How large the devices of block volumes are, where upstream tells it (`pkg/volume/metrics_block.go`): of local volumes and of iSCSI
//! disks. Upstream opens the device; here the kernel says it, of the loop device that holds it for its pod (kubelet-volnetd,
//! `volumes/block_map.rs`), and this process opens nothing.

use std::path::{Path, PathBuf};

use bulkhead_types::PodUid;

use crate::spec::{Source, VolumeSpec};

/// Where the kernel shows block devices.
const BLOCK: &str = "/sys/block";
/// Of what /sys/block says of a device's size, whatever sectors the device has.
const SECTOR_BYTES: u64 = 512;

/// Below the root directory: where kubelet-volnetd binds the device for the pod. `None`: it is no block volume, or one of which upstream
/// tells no size.
pub fn bound(spec: &VolumeSpec, pod: &PodUid) -> Option<PathBuf> {
    let map = match &spec.source {
        Source::Local { .. } if spec.block => format!("plugins/kubernetes.io~local-volume/volumeDevices/{}", spec.name),
        Source::Iscsi(_) if spec.block => {
            let place = spec.place()?;
            format!("plugins/{}/volumeDevices/{}", place.plugin, place.name)
        }
        _ => return None,
    };
    Some(Path::new(&map).join(pod.as_str()))
}

/// Devices that loop devices hold.
#[derive(Debug, Default)]
pub struct HeldDevices(Vec<Held>);

#[derive(Debug)]
struct Held {
    /// Where it was opened.
    path: PathBuf,
    bytes: i64,
}

impl HeldDevices {
    /// Blocking: some small reads for each loop device.
    pub fn read() -> Self {
        HeldDevices::shown_in(Path::new(BLOCK))
    }

    fn shown_in(block: &Path) -> Self {
        let devices = std::fs::read_dir(block).into_iter().flatten().flatten();
        HeldDevices(devices.filter_map(|device| held(&device.path())).collect())
    }

    /// The size of the device that is bound there, below the root directory: by its end, as that directory may be a link.
    pub fn bytes(&self, bound: &Path) -> Option<i64> {
        self.0.iter().find(|held| held.path.ends_with(bound)).map(|held| held.bytes)
    }
}

/// `None`: it is no loop device, or one that holds nothing.
fn held(device: &Path) -> Option<Held> {
    let path = std::fs::read_to_string(device.join("loop/backing_file")).ok()?;
    let sectors: u64 = std::fs::read_to_string(device.join("size")).ok()?.trim().parse().ok()?;
    let bytes = i64::try_from(sectors.checked_mul(SECTOR_BYTES)?).ok()?;
    Some(Held { path: path.strip_suffix('\n').unwrap_or(&path).into(), bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{FcSource, IscsiSource};

    #[test]
    fn devices_are_bound_where_upstream_maps_them() {
        let pod = PodUid::parse("4bb0ec72-4ebc-4585-a543-8b341daf7e02").unwrap();
        let local = Source::Local { path: "/dev/sdb".into(), fs_type: String::new() };
        let iscsi = IscsiSource {
            portals: vec!["10.0.0.1".into()],
            iqn: "iqn.2003-01.test:disk".into(),
            lun: 1,
            interface: "default".into(),
            ..IscsiSource::default()
        };
        let of = |source: Source, block| {
            let spec = VolumeSpec { block, ..VolumeSpec::inline("pv".into(), source) };
            bound(&spec, &pod).map(|path| path.display().to_string())
        };
        let local_map = format!("plugins/kubernetes.io~local-volume/volumeDevices/pv/{pod}");
        assert_eq!(of(local.clone(), true), Some(local_map));
        assert_eq!(of(local, false), None, "its file system is measured");
        let disk = "iface-default/10.0.0.1:3260-iqn.2003-01.test:disk-lun-1";
        let iscsi_map = format!("plugins/kubernetes.io/iscsi/volumeDevices/{disk}/{pod}");
        assert_eq!(of(Source::Iscsi(iscsi), true), Some(iscsi_map));
        assert_eq!(of(Source::Fc(FcSource::default()), true), None, "upstream's mapper tells nothing");
    }

    #[test]
    fn sizes_are_those_of_the_loop_devices() {
        let block = tempfile::tempdir().unwrap();
        let device = |name: &str, file: Option<&str>, size: &str| {
            let folder = block.path().join(name);
            std::fs::create_dir_all(folder.join("loop")).unwrap();
            std::fs::write(folder.join("size"), size).unwrap();
            if let Some(file) = file {
                std::fs::write(folder.join("loop/backing_file"), file).unwrap();
            }
        };
        device("sda", None, "4096\n");
        device("loop0", None, "0\n");
        device("loop1", Some("/srv/kubelet/plugins/volumeDevices/pv/u1\n"), "2049\n");
        device("loop2", Some("/srv/kubelet/plugins/volumeDevices/pv/u2\n"), "many\n");
        let held = HeldDevices::shown_in(block.path());
        let bytes = |bound: &str| held.bytes(Path::new(bound));
        assert_eq!(bytes("plugins/volumeDevices/pv/u1"), Some(2049 * 512));
        assert_eq!(bytes("plugins/volumeDevices/pv/u2"), None, "what cannot be read is no size");
        assert_eq!(bytes("plugins/volumeDevices/pv/u"), None);
        assert_eq!(HeldDevices::shown_in(Path::new("/nowhere")).bytes(Path::new("u1")), None);
    }
}
