//! What an operator can ask for and this version does not do yet. The launcher names whatever is set in one warning;
//! who brings a feature deletes its row here.

use crate::FeatureGates;
use crate::defaults::flag_defaults;
use crate::kubelet::KubeletConfiguration;
use crate::kubelet_flags::KubeletFlags;

/// Flags: name, and whether it is set.
#[expect(clippy::type_complexity, reason = "a table of names and predicates")]
const FLAGS: &[(&str, fn(&KubeletFlags) -> bool)] = &[
    ("--experimental-mounter-path", |f| !f.experimental_mounter_path.is_empty()),
    ("--housekeeping-interval", |f| f.housekeeping_interval != KubeletFlags::default().housekeeping_interval),
    ("--max-housekeeping-interval", |f| {
        f.max_housekeeping_interval != KubeletFlags::default().max_housekeeping_interval
    }),
];

/// Fields by JSON path. A field counts as set when its effective value is neither the built-in default, nor what a
/// configuration file gets when it does not name the field.
const FIELDS: &[&str] = &[
    "enableContentionProfiling",
    "kubeletCgroups",
    "systemCgroups",
    "showHiddenMetricsForVersion",
    "logging.vmodule",
    "logging.options",
];

/// Feature gates of the node that something looks at; every other one is named when it is not what it is by default.
const GATES: &[&str] = &[
    "AllowDNSOnlyNodeCSR",
    "AllowParsingUserUIDFromCertAuth",
    "CPUManagerPolicyAlphaOptions",
    "CPUManagerPolicyBetaOptions",
    "CRIListStreaming",
    "CSIVolumeHealth",
    "ClusterTrustBundle",
    "ClusterTrustBundleProjection",
    "ComponentFlagz",
    "ComponentStatusz",
    "ContainerCheckpoint",
    "ContainerStopSignals",
    "DRAExtendedResource",
    "DRAWorkloadResourceClaims",
    "DisableCPUQuotaWithExclusiveCPUs",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "EnvFiles",
    "ExtendWebSocketsToKubelet",
    "GracefulNodeShutdown",
    "GracefulNodeShutdownBasedOnPodPriority",
    "HostnameOverride",
    "ImageVolumeWithDigest",
    "KubeletCrashLoopBackOffMax",
    "KubeletEnsureSecretPulledImages",
    "KubeletPodResourcesListUseActivePods",
    "KubeletRegistrationGetOnExistsOnly",
    "KubeletSeparateDiskGC",
    "MemoryQoS",
    "NodeDeclaredFeatures",
    "PodAndContainerStatsFromCRI",
    "PodCertificateRequest",
    "PodLevelResourceManagers",
    "PodLevelResources",
    "PodLogsQuerySplitStreams",
    "PodsAPI",
    "QOSReserved",
    "ReduceDefaultCrashLoopBackOffDecay",
    "ResourceHealthStatus",
    "ResourceHealthStatusMessage",
    "RestartAllContainersOnContainerExits",
    "RotateKubeletServerCertificate",
    "SELinuxMount",
    "StrictIPCIDRValidation",
    "TaintTolerationComparisonOperators",
    // No option has these stages, with upstream neither.
    "TopologyManagerPolicyAlphaOptions",
    "TopologyManagerPolicyBetaOptions",
    "WatchListClient",
];

/// Names of what is set but does nothing yet, in the order of the tables.
pub fn named(flags: &KubeletFlags, config: &KubeletConfiguration) -> Vec<String> {
    let mut names: Vec<String> =
        FLAGS.iter().filter(|(_, is_set)| is_set(flags)).map(|(name, _)| (*name).to_owned()).collect();
    let json = |config: &KubeletConfiguration| serde_json::to_value(config).unwrap_or_default();
    let mut file_defaults = KubeletConfiguration::default();
    crate::defaults::set_defaults(&mut file_defaults, crate::defaults::Presence::default(), &FeatureGates::default());
    let mut injected = file_defaults.clone();
    injected.eviction_hard = crate::defaults::default_eviction_hard();
    let unset = [json(&flag_defaults()), json(&file_defaults), json(&injected)];
    let effective = json(config);
    for path in FIELDS {
        let pointer = format!("/{}", path.replace('.', "/"));
        let value = effective.pointer(&pointer);
        if !unset.iter().any(|defaults| defaults.pointer(&pointer) == value) {
            names.push((*path).to_owned());
        }
    }
    let (defaults, gates) = (FeatureGates::default(), FeatureGates::from_map(&config.feature_gates));
    for gate in crate::gates::GATES.iter().filter(|gate| !GATES.contains(&gate.name)) {
        if gates.enabled_by_name(gate.name) != defaults.enabled_by_name(gate.name) {
            // Nobody wrote the name of one that was switched with all of its stage.
            let by = if config.feature_gates.contains_key(gate.name) { "" } else { " by its stage" };
            names.push(format!("featureGates[{}]{by}", gate.name));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_silent_and_every_row_can_speak() {
        assert_eq!(named(&KubeletFlags::default(), &flag_defaults()), Vec::<String>::new());
        for path in FIELDS {
            let head = path.split('.').next().unwrap();
            assert!(KubeletConfiguration::FIELDS.contains(&head), "{path} is no field");
        }
    }

    #[test]
    fn what_is_set_is_named() {
        let flags = KubeletFlags { experimental_mounter_path: "/mounter".into(), ..KubeletFlags::default() };
        let mut config = flag_defaults();
        config.cpu_manager_policy = "static".into();
        config.kubelet_cgroups = "/kubelet".into();
        config.feature_gates.insert("EventedPLEG".into(), true);
        config.feature_gates.insert("NodeSwap".into(), true);
        config.feature_gates.insert("RestartAllContainersOnContainerExits".into(), false);
        config.feature_gates.insert("AllowParsingUserUIDFromCertAuth".into(), false);
        config.feature_gates.insert("StrictIPCIDRValidation".into(), false);
        config.feature_gates.insert("WatchListClient".into(), false);
        // Works; and what another component looks at does nothing with upstream either.
        config.feature_gates.insert("ContainerStopSignals".into(), true);
        config.feature_gates.insert("GenericWorkload".into(), true);
        assert_eq!(
            named(&flags, &config),
            ["--experimental-mounter-path", "kubeletCgroups", "featureGates[EventedPLEG]"]
        );
    }

    #[test]
    fn gates_that_a_stage_switches_on_are_named() {
        let mut config = flag_defaults();
        config.feature_gates.insert("AllAlpha".into(), true);
        let named = named(&KubeletFlags::default(), &config);
        assert!(named.contains(&"featureGates[EventedPLEG] by its stage".to_owned()), "{named:?}");
        for other in [
            "CRIListStreaming",
            "MemoryQoS",
            "ContainerStopSignals",
            "StorageVersionAPI",
            "AllAlpha",
            "ContextualLogging",
        ] {
            assert!(!named.iter().any(|name| name.contains(&format!("[{other}]"))), "{other}: {named:?}");
        }
        // A gate of the stage that is set back.
        config.feature_gates.insert("EventedPLEG".into(), false);
        assert!(!super::named(&KubeletFlags::default(), &config).iter().any(|name| name.contains("EventedPLEG")));
    }
}
