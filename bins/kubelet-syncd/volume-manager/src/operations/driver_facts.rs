//! What a driver's CSIDriver object says, with upstream's defaults for what it does not say.

use std::time::Duration;

use k8s_openapi::api::storage::v1::CSIDriver;

/// `spec.nodeAllocatableUpdatePeriodSeconds`: how often a driver is asked anew for its limit of volumes; `None`: not at all.
pub fn allocatable_period(driver: &CSIDriver) -> Option<Duration> {
    let seconds = u64::try_from(driver.spec.node_allocatable_update_period_seconds?).ok()?;
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

/// See the fields of CSIDriver's spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverFacts {
    pub attach_required: bool,
    pub pod_info_on_mount: bool,
    pub fs_group_policy: String,
    pub requires_republish: bool,
    pub tokens_in_secrets: bool,
    /// Audience, and seconds for which the token is to be valid.
    pub token_requests: Vec<(String, Option<i64>)>,
    /// In this period the driver is asked anew for its limit of volumes; `None`: it is not.
    pub allocatable_period: Option<Duration>,
    /// The driver mounts with an SELinux label where it is told one.
    pub selinux_mount: bool,
    /// `None`: there is no such object.
    pub lifecycle_modes: Option<Vec<String>>,
}

impl DriverFacts {
    pub fn of(driver: Option<&CSIDriver>) -> Self {
        let spec = driver.map(|driver| &driver.spec);
        let requests = spec.and_then(|spec| spec.token_requests.clone()).unwrap_or_default();
        DriverFacts {
            attach_required: spec.and_then(|spec| spec.attach_required).unwrap_or(true),
            pod_info_on_mount: spec.and_then(|spec| spec.pod_info_on_mount).unwrap_or(false),
            fs_group_policy: spec
                .and_then(|spec| spec.fs_group_policy.clone())
                .unwrap_or_else(|| "ReadWriteOnceWithFSType".to_owned()),
            requires_republish: spec.and_then(|spec| spec.requires_republish).unwrap_or(false),
            tokens_in_secrets: spec.and_then(|spec| spec.service_account_token_in_secrets).unwrap_or(false),
            token_requests: requests.into_iter().map(|r| (r.audience, r.expiration_seconds)).collect(),
            allocatable_period: driver.and_then(allocatable_period),
            selinux_mount: spec.and_then(|spec| spec.se_linux_mount).unwrap_or(false),
            lifecycle_modes: spec.map(|spec| {
                let modes = spec.volume_lifecycle_modes.clone().unwrap_or_default();
                if modes.is_empty() { vec!["Persistent".to_owned()] } else { modes }
            }),
        }
    }

    /// Whether the driver takes volumes of this kind.
    ///
    /// # Errors
    /// It does not, in upstream's words.
    pub fn check_lifecycle(&self, driver: &str, ephemeral: bool) -> Result<(), String> {
        let mode = if ephemeral { "Ephemeral" } else { "Persistent" };
        match &self.lifecycle_modes {
            None if !ephemeral => Ok(()),
            None => Err(format!("volume mode {mode:?} not supported by driver {driver} (no CSIDriver object)")),
            Some(modes) if modes.iter().any(|known| known == mode) => Ok(()),
            Some(modes) => {
                let quoted: Vec<String> = modes.iter().map(|mode| format!("{mode:?}")).collect();
                let only = quoted.join(" ");
                Err(format!("volume mode {mode:?} not supported by driver {driver} (only supports [{only}])"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_and_modes() {
        let none = DriverFacts::of(None);
        assert!(none.attach_required && !none.pod_info_on_mount && !none.requires_republish);
        assert_eq!(none.fs_group_policy, "ReadWriteOnceWithFSType");
        assert_eq!(none.check_lifecycle("d", false), Ok(()));
        assert_eq!(
            none.check_lifecycle("d", true).unwrap_err(),
            "volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)"
        );
        let driver: CSIDriver = serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": {
            "attachRequired": false, "volumeLifecycleModes": ["Persistent"],
            "tokenRequests": [{"audience": "a", "expirationSeconds": 600}, {"audience": ""}]}}))
        .unwrap();
        let facts = DriverFacts::of(Some(&driver));
        assert!(!facts.attach_required);
        assert_eq!(facts.token_requests, [("a".to_owned(), Some(600)), (String::new(), None)]);
        assert_eq!(
            facts.check_lifecycle("d", true).unwrap_err(),
            "volume mode \"Ephemeral\" not supported by driver d (only supports [\"Persistent\"])"
        );
    }
}
