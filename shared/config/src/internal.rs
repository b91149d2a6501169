//! What no operator sets, and tests of whole nodes shorten or make up: the launcher takes it from the environment variable
//! [`VARIABLE`], as JSON, and says so loudly. Under units there is none.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The launcher's own variable. No daemon is given it: they read the rendered configuration.
pub const VARIABLE: &str = "BULKHEAD_INTERNAL";

/// Upstream's values unless something else is said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Internal {
    /// How long a call of a CSI driver may take, in seconds (upstream `csiTimeout`).
    pub csi_timeout_seconds: u64,
    /// How long a call of a device plugin may take at most, in seconds; the bounds of each call hold as well.
    pub device_plugin_timeout_seconds: u64,
    /// How long a pod waits for its volumes, and for their end, before it is said, in seconds (upstream
    /// `podAttachAndMountTimeout`).
    pub pod_volumes_timeout_seconds: u64,
    /// Where kubelet-syncd looks for SELinux: `sys/fs/selinux` and `etc/selinux` below it.
    pub selinux_root: PathBuf,
}

impl Default for Internal {
    fn default() -> Self {
        Internal {
            csi_timeout_seconds: 120,
            device_plugin_timeout_seconds: 120,
            pod_volumes_timeout_seconds: 123,
            selinux_root: PathBuf::from("/"),
        }
    }
}

/// The variable holds something else.
#[derive(Debug, thiserror::Error)]
#[error("{VARIABLE} cannot be decoded")]
pub struct NotInternal(#[source] serde_json::Error);

impl Internal {
    /// Of the variable's value.
    ///
    /// # Errors
    /// It is no JSON object of these fields.
    pub fn parse(text: &str) -> Result<Self, NotInternal> {
        serde_json::from_str(text).map_err(NotInternal)
    }

    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub const fn csi_timeout(&self) -> Duration {
        Duration::from_secs(self.csi_timeout_seconds)
    }

    pub const fn device_plugin_timeout(&self) -> Duration {
        Duration::from_secs(self.device_plugin_timeout_seconds)
    }

    pub const fn pod_volumes_timeout(&self) -> Duration {
        Duration::from_secs(self.pod_volumes_timeout_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_upstreams() {
        let parsed = Internal::parse(r#"{"csiTimeoutSeconds": 3}"#).unwrap();
        assert_eq!(parsed, Internal { csi_timeout_seconds: 3, ..Internal::default() });
        assert!(!parsed.is_default() && Internal::parse("{}").unwrap().is_default());
        assert_eq!(Internal::default().pod_volumes_timeout(), Duration::from_secs(123));
        assert!(Internal::parse(r#"{"csiTimeout": 3}"#).is_err() && Internal::parse("").is_err());
    }
}
