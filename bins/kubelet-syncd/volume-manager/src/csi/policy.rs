//! The access mode that a driver is told, and whether a volume is given to the pod's fsGroup (upstream
//! `pkg/volume/csi/csi_client.go`, `csi_mounter.go`).

use bulkhead_csi::v1::NodeServiceCapability;
use bulkhead_csi::v1::node_service_capability::Type;
use bulkhead_csi::v1::node_service_capability::rpc::Type as Rpc;
use bulkhead_csi::v1::volume_capability::access_mode::Mode;

/// What a driver's node service can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// STAGE_UNSTAGE_VOLUME.
    pub stage: bool,
    /// SINGLE_NODE_MULTI_WRITER.
    pub single_node_multi_writer: bool,
    /// EXPAND_VOLUME.
    pub expand: bool,
    /// VOLUME_MOUNT_GROUP.
    pub mount_group: bool,
    /// GET_VOLUME_STATS.
    pub stats: bool,
    /// VOLUME_CONDITION.
    pub condition: bool,
}

impl Capabilities {
    /// Of NodeGetCapabilities' answer. What is not known is left out.
    pub fn of(all: &[NodeServiceCapability]) -> Self {
        let mut found = Capabilities::default();
        for capability in all {
            let Some(Type::Rpc(rpc)) = &capability.r#type else { continue };
            match Rpc::try_from(rpc.r#type) {
                Ok(Rpc::StageUnstageVolume) => found.stage = true,
                Ok(Rpc::SingleNodeMultiWriter) => found.single_node_multi_writer = true,
                Ok(Rpc::ExpandVolume) => found.expand = true,
                Ok(Rpc::VolumeMountGroup) => found.mount_group = true,
                Ok(Rpc::GetVolumeStats) => found.stats = true,
                Ok(Rpc::VolumeCondition) => found.condition = true,
                _ => {}
            }
        }
        found
    }
}

/// The API's access mode as the driver knows it. One that is not known is `UNKNOWN`.
pub fn access_mode(mode: &str, single_node_multi_writer: bool) -> Mode {
    match (mode, single_node_multi_writer) {
        ("ReadWriteOnce", true) => Mode::SingleNodeMultiWriter,
        ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
        ("ReadWriteOnce" | "ReadWriteOncePod", false) => Mode::SingleNodeWriter,
        ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
        _ => Mode::Unknown,
    }
}

/// Whether the files of a volume are given to fsGroup. `access_modes`: the PersistentVolume's; `None` for an inline volume.
pub fn gives_to_fs_group(policy: &str, read_only: bool, fs_type: &str, access_modes: Option<&[String]>) -> bool {
    if read_only || policy == "None" {
        return false;
    }
    if policy == "File" {
        return true;
    }
    let once = |modes: &[String]| modes.iter().any(|mode| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod");
    !fs_type.is_empty() && access_modes.is_none_or(once)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes() {
        for (mode, plain, multi) in [
            ("ReadWriteOnce", Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter),
            ("ReadWriteOncePod", Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter),
            ("ReadOnlyMany", Mode::MultiNodeReaderOnly, Mode::MultiNodeReaderOnly),
            ("ReadWriteMany", Mode::MultiNodeMultiWriter, Mode::MultiNodeMultiWriter),
            ("Other", Mode::Unknown, Mode::Unknown),
        ] {
            assert_eq!((access_mode(mode, false), access_mode(mode, true)), (plain, multi), "{mode}");
        }
    }

    #[test]
    fn groups() {
        let modes = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        let (once, many) = (modes(&["ReadWriteOnce"]), modes(&["ReadWriteMany"]));
        for (policy, read_only, fs_type, modes, expected) in [
            ("None", false, "ext4", Some(&once), false),
            ("File", false, "", Some(&many), true),
            ("File", true, "", Some(&once), false),
            ("ReadWriteOnceWithFSType", false, "ext4", Some(&once), true),
            ("ReadWriteOnceWithFSType", false, "", Some(&once), false),
            ("ReadWriteOnceWithFSType", false, "ext4", Some(&many), false),
            ("ReadWriteOnceWithFSType", false, "ext4", None, true),
        ] {
            let modes = modes.map(Vec::as_slice);
            assert_eq!(gives_to_fs_group(policy, read_only, fs_type, modes), expected, "{policy} {fs_type} {modes:?}");
        }
    }
}
