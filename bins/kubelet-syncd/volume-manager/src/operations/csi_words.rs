//! What an event says where a call of a CSI driver was not made or failed, in upstream's words (`pkg/volume/csi`): those of
//! `csi_attacher.go` and `csi_mounter.go` for a volume with a file system, those of `csi_block.go` for a block volume.

/// What the driver is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Stage,
    Publish,
    Unpublish,
    Unstage,
}

impl Act {
    /// Where no driver of the name is registered; why stands behind it. `block`: the volume has no file system.
    pub fn no_client(self, block: bool) -> &'static str {
        match (self, block) {
            (Act::Stage, false) => "attacher.MountDevice failed to create newCsiDriverClient",
            (Act::Stage, true) => "blockMapper.SetUpDevice failed to get CSI client",
            (Act::Publish, false) => "mounter.SetUpAt failed to get CSI client",
            (Act::Publish, true) => "blockMapper.MapPodDevice failed to get CSI client",
            (Act::Unpublish, false) => "Unmounter.TearDownAt failed to get CSI client",
            (Act::Unpublish, true) => "blockMapper.UnmapPodDevice failed to get CSI client",
            (Act::Unstage, false) => "attacher.UnmountDevice failed to create newCsiDriverClient",
            (Act::Unstage, true) => "blockMapper.TearDownDevice failed to get CSI client",
        }
    }

    /// Where the driver has answered an error. None: it is said as it is.
    pub fn refused(self, block: bool) -> Option<&'static str> {
        match (self, block) {
            (Act::Unpublish, false) => Some("Unmounter.TearDownAt failed"),
            (Act::Unpublish, true) => Some("blockMapper.unpublishVolumeForBlock failed"),
            (Act::Unstage, true) => Some("blockMapper.unstageVolumeForBlock failed"),
            (Act::Unstage, false) => Some("attacher.UnmountDevice failed"),
            (Act::Stage | Act::Publish, _) => None,
        }
    }

    /// Where the driver was asked what it can do, and has answered an error. None: it is said as it is.
    pub fn unable(self, block: bool) -> Option<&'static str> {
        match (self, block) {
            (Act::Stage, false) | (Act::Unpublish, _) => None,
            (Act::Stage, true) => {
                Some("blockMapper.stageVolumeForBlock failed to check STAGE_UNSTAGE_VOLUME capability")
            }
            (Act::Publish, _) => {
                Some("mounter.SetUpAt failed to determine if the node service has VOLUME_MOUNT_GROUP capability")
            }
            (Act::Unstage, false) => Some("attacher.UnmountDevice failed to check whether STAGE_UNSTAGE_VOLUME set"),
            (Act::Unstage, true) => {
                Some("blockMapper.unstageVolumeForBlock failed to check STAGE_UNSTAGE_VOLUME capability")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_volume_is_mapped_and_not_mounted() {
        for (act, mounted, mapped) in [
            (Act::Stage, "attacher.MountDevice failed ", "blockMapper.SetUpDevice failed "),
            (Act::Publish, "mounter.SetUpAt failed ", "blockMapper.MapPodDevice failed "),
            (Act::Unpublish, "Unmounter.TearDownAt failed ", "blockMapper.UnmapPodDevice failed "),
            (Act::Unstage, "attacher.UnmountDevice failed ", "blockMapper.TearDownDevice failed "),
        ] {
            assert!(act.no_client(false).starts_with(mounted), "{act:?}");
            assert_eq!(act.no_client(true), format!("{mapped}to get CSI client"), "{act:?}");
        }
    }

    #[test]
    fn what_a_driver_refuses() {
        let refused = [Act::Stage, Act::Publish, Act::Unpublish, Act::Unstage].map(|act| act.refused(false));
        let unmounted = [Some("Unmounter.TearDownAt failed"), Some("attacher.UnmountDevice failed")];
        assert_eq!(refused, [None, None, unmounted[0], unmounted[1]]);
        let unpublished = "blockMapper.unpublishVolumeForBlock failed";
        let unstaged = "blockMapper.unstageVolumeForBlock failed";
        let refused = [Act::Stage, Act::Publish, Act::Unpublish, Act::Unstage].map(|act| act.refused(true));
        assert_eq!(refused, [None, None, Some(unpublished), Some(unstaged)]);
    }

    #[test]
    fn what_a_driver_cannot_say() {
        let check = "failed to check STAGE_UNSTAGE_VOLUME capability";
        for (act, block, expected) in [
            (Act::Stage, false, None),
            (Act::Stage, true, Some(format!("blockMapper.stageVolumeForBlock {check}"))),
            (
                Act::Publish,
                false,
                Some(
                    "mounter.SetUpAt failed to determine if the node service has VOLUME_MOUNT_GROUP capability".into(),
                ),
            ),
            (
                Act::Unstage,
                false,
                Some("attacher.UnmountDevice failed to check whether STAGE_UNSTAGE_VOLUME set".into()),
            ),
            (Act::Unstage, true, Some(format!("blockMapper.unstageVolumeForBlock {check}"))),
        ] {
            assert_eq!(act.unable(block), expected.as_deref(), "{act:?}, block: {block}");
        }
    }
}
