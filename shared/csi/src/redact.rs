//! `Debug` for the messages that carry secrets: it names the keys, and no value. A volume's context counts as one: tokens lie in it.

use std::collections::BTreeMap;
use std::fmt;

use crate::v1;

/// Shows keys alone.
struct Keys<'a>(&'a BTreeMap<String, String>);

impl fmt::Debug for Keys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl fmt::Debug for v1::NodeStageVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeStageVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("staging_target_path", &self.staging_target_path)
            .field("volume_capability", &self.volume_capability)
            .field("publish_context", &Keys(&self.publish_context))
            .field("secrets", &Keys(&self.secrets))
            .field("volume_context", &Keys(&self.volume_context))
            .finish()
    }
}

impl fmt::Debug for v1::NodePublishVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodePublishVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("staging_target_path", &self.staging_target_path)
            .field("target_path", &self.target_path)
            .field("volume_capability", &self.volume_capability)
            .field("readonly", &self.readonly)
            .field("publish_context", &Keys(&self.publish_context))
            .field("secrets", &Keys(&self.secrets))
            .field("volume_context", &Keys(&self.volume_context))
            .finish()
    }
}

impl fmt::Debug for v1::NodeExpandVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeExpandVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("volume_path", &self.volume_path)
            .field("capacity_range", &self.capacity_range)
            .field("staging_target_path", &self.staging_target_path)
            .field("volume_capability", &self.volume_capability)
            .field("secrets", &Keys(&self.secrets))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_is_printed() {
        let secret = || BTreeMap::from([("user".to_owned(), "hunter2".to_owned())]);
        let stage = v1::NodeStageVolumeRequest {
            publish_context: secret(),
            secrets: secret(),
            volume_context: secret(),
            volume_id: "v".into(),
            ..Default::default()
        };
        let publish = v1::NodePublishVolumeRequest {
            publish_context: secret(),
            secrets: secret(),
            volume_context: secret(),
            ..Default::default()
        };
        let expand = v1::NodeExpandVolumeRequest { secrets: secret(), ..Default::default() };
        for printed in [format!("{stage:?}"), format!("{publish:?}"), format!("{expand:?}")] {
            assert!(printed.contains("user") && !printed.contains("hunter2"), "{printed}");
        }
    }
}
