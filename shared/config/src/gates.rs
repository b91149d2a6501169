//! Feature gates of the node at 1.36: names, stage, default, and which can no longer be changed.
//!
//! The table is the node's part of upstream's (`pkg/features/kube_features.go`). Upstream's kubelet also knows the gates
//! of the other components, for one registry serves all: those are accepted here and change nothing.

use std::collections::BTreeMap;

/// How far a feature has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Alpha,
    Beta,
    Ga,
    Deprecated,
}

impl Stage {
    const fn as_str(self) -> &'static str {
        match self {
            Stage::Alpha => "ALPHA",
            Stage::Beta => "BETA",
            Stage::Ga => "GA",
            Stage::Deprecated => "DEPRECATED",
        }
    }
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Gate {
    pub name: &'static str,
    pub stage: Stage,
    pub default: bool,
    /// Setting it to anything but its default is refused.
    pub locked: bool,
}

const fn gate(name: &'static str, stage: Stage, default: bool) -> Gate {
    Gate { name, stage, default, locked: false }
}

const fn locked(name: &'static str, stage: Stage, default: bool) -> Gate {
    Gate { name, stage, default, locked: true }
}

/// Sorted by name.
pub const GATES: &[Gate] = &[
    gate("AllowDNSOnlyNodeCSR", Stage::Deprecated, false),
    gate("AllowInsecureKubeletCertificateSigningRequests", Stage::Deprecated, false),
    locked("AllowOverwriteTerminationGracePeriodSeconds", Stage::Deprecated, false),
    gate("CPUManagerPolicyAlphaOptions", Stage::Alpha, false),
    gate("CPUManagerPolicyBetaOptions", Stage::Beta, true),
    locked("CPUManagerPolicyOptions", Stage::Ga, true),
    gate("CRIListStreaming", Stage::Alpha, false),
    locked("CSIServiceAccountTokenSecrets", Stage::Ga, true),
    gate("CSIVolumeHealth", Stage::Alpha, false),
    gate("ChangeContainerStatusOnKubeletRestart", Stage::Deprecated, false),
    gate("ClusterTrustBundle", Stage::Beta, false),
    gate("ClusterTrustBundleProjection", Stage::Beta, false),
    gate("ComponentFlagz", Stage::Beta, true),
    gate("ComponentStatusz", Stage::Beta, true),
    gate("ContainerCheckpoint", Stage::Beta, true),
    gate("ContainerRestartRules", Stage::Beta, true),
    gate("ContainerStopSignals", Stage::Alpha, false),
    gate("ContextualLogging", Stage::Beta, true),
    gate("CustomCPUCFSQuotaPeriod", Stage::Ga, true),
    locked("DRAAdminAccess", Stage::Ga, true),
    gate("DRAConsumableCapacity", Stage::Beta, true),
    gate("DRADeviceBindingConditions", Stage::Beta, true),
    gate("DRADeviceTaintRules", Stage::Beta, false),
    gate("DRADeviceTaints", Stage::Beta, true),
    gate("DRAExtendedResource", Stage::Beta, true),
    gate("DRAListTypeAttributes", Stage::Alpha, false),
    gate("DRANodeAllocatableResources", Stage::Alpha, false),
    gate("DRAPartitionableDevices", Stage::Beta, true),
    gate("DRAPrioritizedList", Stage::Ga, true),
    gate("DRAResourceClaimDeviceStatus", Stage::Beta, true),
    gate("DRAResourceClaimGranularStatusAuthorization", Stage::Beta, true),
    gate("DRAResourcePoolStatus", Stage::Alpha, false),
    gate("DRAWorkloadResourceClaims", Stage::Alpha, false),
    gate("DisableCPUQuotaWithExclusiveCPUs", Stage::Deprecated, true),
    locked("DisableNodeKubeProxyVersion", Stage::Deprecated, true),
    locked("DynamicResourceAllocation", Stage::Ga, true),
    gate("EnvFiles", Stage::Beta, true),
    gate("EventedPLEG", Stage::Alpha, false),
    locked("ExecProbeTimeout", Stage::Ga, true),
    gate("ExtendWebSocketsToKubelet", Stage::Beta, true),
    locked("GitRepoVolumeDriver", Stage::Deprecated, false),
    gate("GracefulNodeShutdown", Stage::Beta, true),
    gate("GracefulNodeShutdownBasedOnPodPriority", Stage::Beta, true),
    gate("HostnameOverride", Stage::Beta, true),
    locked("ImageMaximumGCAge", Stage::Ga, true),
    locked("ImageVolume", Stage::Ga, true),
    gate("ImageVolumeWithDigest", Stage::Alpha, false),
    gate("InPlacePodLevelResourcesVerticalScaling", Stage::Beta, true),
    locked("InPlacePodVerticalScaling", Stage::Ga, true),
    gate("InPlacePodVerticalScalingExclusiveCPUs", Stage::Alpha, false),
    gate("InPlacePodVerticalScalingExclusiveMemory", Stage::Alpha, false),
    gate("InPlacePodVerticalScalingInitContainers", Stage::Beta, true),
    locked("KubeletCgroupDriverFromCRI", Stage::Ga, true),
    gate("KubeletCrashLoopBackOffMax", Stage::Beta, true),
    gate("KubeletEnsureSecretPulledImages", Stage::Beta, true),
    locked("KubeletFineGrainedAuthz", Stage::Ga, true),
    gate("KubeletInUserNamespace", Stage::Alpha, false),
    locked("KubeletPSI", Stage::Ga, true),
    locked("KubeletPodResourcesDynamicResources", Stage::Ga, true),
    locked("KubeletPodResourcesGet", Stage::Ga, true),
    gate("KubeletPodResourcesListUseActivePods", Stage::Deprecated, true),
    gate("KubeletRegistrationGetOnExistsOnly", Stage::Deprecated, false),
    gate("KubeletSeparateDiskGC", Stage::Beta, true),
    gate("KubeletServiceAccountTokenForCredentialProviders", Stage::Beta, true),
    locked("KubeletTracing", Stage::Ga, true),
    gate("LocalStorageCapacityIsolationFSQuotaMonitoring", Stage::Beta, false),
    gate("LoggingAlphaOptions", Stage::Alpha, false),
    gate("LoggingBetaOptions", Stage::Beta, true),
    gate("MemoryQoS", Stage::Alpha, false),
    locked("MutableCSINodeAllocatableCount", Stage::Ga, true),
    gate("NativeHistograms", Stage::Alpha, false),
    gate("NodeDeclaredFeatures", Stage::Beta, true),
    locked("NodeLogQuery", Stage::Ga, true),
    locked("NodeSwap", Stage::Ga, true),
    gate("PLEGOnDemandRelist", Stage::Beta, true),
    gate("PodAndContainerStatsFromCRI", Stage::Alpha, false),
    gate("PodCertificateRequest", Stage::Beta, false),
    gate("PodLevelResourceManagers", Stage::Alpha, false),
    gate("PodLevelResources", Stage::Beta, true),
    locked("PodLifecycleSleepAction", Stage::Ga, true),
    locked("PodLifecycleSleepActionAllowZero", Stage::Ga, true),
    gate("PodLogsQuerySplitStreams", Stage::Alpha, false),
    locked("PodObservedGenerationTracking", Stage::Ga, true),
    gate("PodReadyToStartContainersCondition", Stage::Beta, true),
    gate("PodsAPI", Stage::Alpha, false),
    gate("PortForwardWebsockets", Stage::Beta, true),
    gate("PreventStaticPodAPIReferences", Stage::Beta, true),
    locked("ProcMountType", Stage::Ga, true),
    gate("QOSReserved", Stage::Alpha, false),
    locked("RecoverVolumeExpansionFailure", Stage::Ga, true),
    locked("RecursiveReadOnlyMounts", Stage::Ga, true),
    gate("ReduceDefaultCrashLoopBackOffDecay", Stage::Alpha, false),
    locked("RelaxedDNSSearchValidation", Stage::Ga, true),
    locked("RelaxedEnvironmentVariableValidation", Stage::Ga, true),
    gate("ReloadKubeletClientCAFile", Stage::Beta, true),
    gate("ReloadKubeletServerCertificateFile", Stage::Beta, true),
    gate("ResourceHealthStatus", Stage::Beta, true),
    gate("ResourceHealthStatusMessage", Stage::Beta, true),
    gate("RestartAllContainersOnContainerExits", Stage::Beta, true),
    gate("RotateKubeletServerCertificate", Stage::Beta, true),
    gate("RuntimeClassInImageCriApi", Stage::Alpha, false),
    locked("SELinuxChangePolicy", Stage::Ga, true),
    gate("SELinuxMount", Stage::Beta, false),
    locked("SELinuxMountReadWriteOncePod", Stage::Ga, true),
    locked("ServiceAccountTokenJTI", Stage::Ga, true),
    locked("ServiceAccountTokenNodeBinding", Stage::Ga, true),
    locked("ServiceAccountTokenPodNodeInfo", Stage::Ga, true),
    locked("SidecarContainers", Stage::Ga, true),
    locked("SupplementalGroupsPolicy", Stage::Ga, true),
    locked("SystemdWatchdog", Stage::Ga, true),
    gate("TaintTolerationComparisonOperators", Stage::Alpha, false),
    gate("TopologyManagerPolicyAlphaOptions", Stage::Alpha, false),
    gate("TopologyManagerPolicyBetaOptions", Stage::Beta, true),
    locked("TopologyManagerPolicyOptions", Stage::Ga, true),
    gate("TranslateStreamCloseWebsocketRequests", Stage::Beta, true),
    gate("UserNamespacesHostNetworkSupport", Stage::Alpha, false),
    locked("UserNamespacesSupport", Stage::Ga, true),
];

/// Gates that only other components look at (1.36). Setting one is no error on a node, and no act either.
const GATES_OF_OTHER_COMPONENTS: &[&str] = &[
    "APIResponseCompression",
    "APIServerIdentity",
    "APIServerTracing",
    "APIServingWithRoutine",
    "AggregatedDiscoveryRemoveBetaType",
    "AllowParsingUserUIDFromCertAuth",
    "AllowUnsafeMalformedObjectDeletion",
    "AnonymousAuthConfigurableEndpoints",
    "AnyVolumeDataSource",
    "AuthorizeNodeWithSelectors",
    "AuthorizeWithSelectors",
    "BtreeWatchCache",
    "CBORServingAndStorage",
    "CRDValidationRatcheting",
    "CSIMigrationPortworx",
    "CSIVolumeHealthMonitor",
    "ClientsAllowCBOR",
    "ClientsPreferCBOR",
    "CloudControllerManagerWatchBasedRoutesReconciliation",
    "ConcurrentWatchObjectDecode",
    "ConsistentListFromCache",
    "ConstrainedImpersonation",
    "CoordinatedLeaderElection",
    "CrossNamespaceVolumeDataSource",
    "DeclarativeValidation",
    "DeclarativeValidationTakeover",
    "DeploymentReplicaSetTerminatingReplicas",
    "DetectCacheInconsistency",
    "ExternalServiceAccountTokenSigner",
    "GangScheduling",
    "GenericWorkload",
    "HPAConfigurableTolerance",
    "HPAScaleToZero",
    "InOrderInformers",
    "InformerResourceVersion",
    "JobBackoffLimitPerIndex",
    "JobManagedBy",
    "JobPodReplacementPolicy",
    "JobSuccessPolicy",
    "KMSv1",
    "ListFromCacheSnapshot",
    "MatchLabelKeysInPodAffinity",
    "MatchLabelKeysInPodTopologySpread",
    "MaxUnavailableStatefulSet",
    "MultiCIDRServiceAllocator",
    "MutablePVNodeAffinity",
    "MutatingAdmissionPolicy",
    "NFTablesProxyMode",
    "NodeInclusionPolicyInPodTopologySpread",
    "NominatedNodeNameForExpectation",
    "OpenAPIEnums",
    "OpportunisticBatching",
    "OrderedNamespaceDeletion",
    "PersistentVolumeClaimUnusedSinceTime",
    "PodDeletionCost",
    "PodTopologyLabelsAdmission",
    "PreferSameTrafficDistribution",
    "RelaxedServiceNameValidation",
    "RemoteRequestHeaderUID",
    "ResilientWatchCacheInitialization",
    "RetryGenerateName",
    "SELinuxMountReadWriteOncePodOnly",
    "SchedulerAsyncAPICalls",
    "SchedulerAsyncPreemption",
    "SchedulerPopFromBackoffQ",
    "SchedulerQueueingHints",
    "SeparateCacheWatchRPC",
    "ServiceAccountNodeAudienceRestriction",
    "ServiceTrafficDistribution",
    "SizeBasedListCostEstimate",
    "StatefulSetSemanticRevisionComparison",
    "StorageCapacityScoring",
    "StorageVersionAPI",
    "StorageVersionHash",
    "StorageVersionMigrator",
    "StreamingCollectionEncodingToJSON",
    "StreamingCollectionEncodingToProtobuf",
    "StrictCostEnforcementForVAP",
    "StrictCostEnforcementForWebhooks",
    "StrictIPCIDRValidation",
    "StructuredAuthenticationConfiguration",
    "StructuredAuthenticationConfigurationEgressSelector",
    "StructuredAuthenticationConfigurationJWKSMetrics",
    "StructuredAuthorizationConfiguration",
    "TokenRequestServiceAccountUIDValidation",
    "TopologyAwareHints",
    "UnauthenticatedHTTP2DOSMitigation",
    "UnknownVersionInteroperabilityProxy",
    "VolumeAttributesClass",
    "WatchCacheInitializationPostStartHook",
    "WatchFromStorageWithoutResourceVersion",
    "WatchList",
    "WatchListClient",
    "WinDSR",
    "WinOverlay",
    "WindowsCPUAndMemoryAffinity",
    "WindowsGracefulNodeShutdown",
    "WindowsHostNetwork",
];

/// A gate that does nothing without others; asking for it while one of them is off is a contradiction.
const DEPENDENCIES: &[(&str, &[&str])] = &[
    ("GracefulNodeShutdownBasedOnPodPriority", &["GracefulNodeShutdown"]),
    ("ImageVolumeWithDigest", &["ImageVolume"]),
    ("InPlacePodLevelResourcesVerticalScaling", &["PodLevelResources", "InPlacePodVerticalScaling"]),
    ("PodLevelResourceManagers", &["PodLevelResources"]),
    ("RestartAllContainersOnContainerExits", &["ContainerRestartRules"]),
    ("UserNamespacesHostNetworkSupport", &["UserNamespacesSupport"]),
];

fn find(name: &str) -> Option<&'static Gate> {
    GATES.binary_search_by(|gate| gate.name.cmp(name)).ok().and_then(|index| GATES.get(index))
}

/// Why a gate setting is refused; upstream's words (`component-base/featuregate`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    #[error("unrecognized feature gate: {0}")]
    Unknown(String),
    #[error("cannot set feature gate {name} to {value}, feature is locked to {}", !value)]
    Locked { name: String, value: bool },
    #[error("feature gate {name} is enabled but depends on disabled feature gate {needs}")]
    Dependency { name: String, needs: String },
}

/// Which gates are on: the table, overlaid with what was set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeatureGates {
    set: BTreeMap<String, bool>,
}

impl FeatureGates {
    /// Takes settings that were checked before, or that are to be looked up while checking.
    pub fn from_map(set: &BTreeMap<String, bool>) -> Self {
        FeatureGates { set: set.clone() }
    }

    /// Every gate of the node with upstream's name for its stage in metrics, and whether it is on. Sorted by name.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, bool)> {
        let whole = [("AllAlpha", Stage::Alpha), ("AllBeta", Stage::Beta)];
        let gates = whole.into_iter().chain(GATES.iter().map(|gate| (gate.name, gate.stage)));
        gates.map(|(name, stage)| {
            // General availability has no name there.
            let label = if stage == Stage::Ga { "" } else { stage.as_str() };
            (name, label, self.enabled(name))
        })
    }

    /// An unknown name is off.
    pub fn enabled(&self, name: &str) -> bool {
        let Some(gate) = find(name) else {
            return self.set.get(name).copied().unwrap_or(false);
        };
        if gate.locked {
            return gate.default;
        }
        if let Some(value) = self.set.get(name) {
            return *value;
        }
        let meta = match gate.stage {
            Stage::Alpha => self.set.get("AllAlpha"),
            Stage::Beta => self.set.get("AllBeta"),
            Stage::Ga | Stage::Deprecated => None,
        };
        meta.copied().unwrap_or(gate.default)
    }
}

/// Checks settings; gives every error, or the warnings that explicit settings of settled gates deserve.
pub fn check(set: &BTreeMap<String, bool>) -> Result<Vec<String>, Vec<GateError>> {
    let mut errors = Vec::new();
    let mut warnings = Vec::new();
    for (name, value) in set {
        if matches!(name.as_str(), "AllAlpha" | "AllBeta") {
            continue;
        }
        let Some(gate) = find(name) else {
            if GATES_OF_OTHER_COMPONENTS.binary_search(&name.as_str()).is_err() {
                errors.push(GateError::Unknown(name.clone()));
            }
            continue;
        };
        if gate.locked && *value != gate.default {
            errors.push(GateError::Locked { name: name.clone(), value: *value });
        } else if gate.stage == Stage::Ga {
            warnings.push(format!("Setting GA feature gate {name}={value}. It will be removed in a future release."));
        } else if gate.stage == Stage::Deprecated {
            warnings.push(format!(
                "Setting deprecated feature gate {name}={value}. It will be removed in a future release."
            ));
        }
    }
    let gates = FeatureGates::from_map(set);
    for (name, needs) in DEPENDENCIES {
        if set.get(*name) == Some(&true) {
            for needed in needs.iter().filter(|needed| !gates.enabled(needed)) {
                errors.push(GateError::Dependency { name: (*name).to_owned(), needs: (*needed).to_owned() });
            }
        }
    }
    if errors.is_empty() { Ok(warnings) } else { Err(errors) }
}

/// Lines for `--help`: gates that can still be changed, with stage and default.
pub fn help_lines() -> Vec<String> {
    let mut lines = vec![
        "AllAlpha=true|false (ALPHA - default=false)".to_owned(),
        "AllBeta=true|false (BETA - default=false)".to_owned(),
    ];
    let open = GATES.iter().filter(|gate| matches!(gate.stage, Stage::Alpha | Stage::Beta));
    lines.extend(
        open.map(|gate| format!("{}=true|false ({} - default={})", gate.name, gate.stage.as_str(), gate.default)),
    );
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, bool)]) -> BTreeMap<String, bool> {
        entries.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn tables_are_sorted_and_disjoint() {
        assert!(GATES.windows(2).all(|pair| pair[0].name < pair[1].name));
        assert!(GATES_OF_OTHER_COMPONENTS.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(GATES_OF_OTHER_COMPONENTS.iter().all(|name| find(name).is_none()));
        for (name, needs) in DEPENDENCIES {
            assert!(find(name).is_some() && needs.iter().all(|needed| find(needed).is_some()), "{name}");
        }
    }

    #[test]
    fn checks() {
        assert_eq!(check(&map(&[("EventedPLEG", true), ("AllBeta", false)])), Ok(vec![]));
        assert_eq!(check(&map(&[("Nope", true)])), Err(vec![GateError::Unknown("Nope".into())]));
        let refused = check(&map(&[("NodeSwap", false)])).unwrap_err();
        assert_eq!(refused[0].to_string(), "cannot set feature gate NodeSwap to false, feature is locked to true");
        assert_eq!(check(&map(&[("NodeSwap", true)])).unwrap().len(), 1);
        assert_eq!(check(&map(&[("APIServerTracing", true)])), Ok(vec![]));
        assert!(
            check(&map(&[("GracefulNodeShutdownBasedOnPodPriority", true), ("GracefulNodeShutdown", false)])).is_err()
        );
        assert!(check(&map(&[("GracefulNodeShutdown", false)])).is_ok());
    }

    #[test]
    fn defaults_and_overlays() {
        let gates = FeatureGates::from_map(&map(&[("AllAlpha", true), ("EventedPLEG", false), ("AllBeta", false)]));
        assert!(!gates.enabled("EventedPLEG"));
        assert!(gates.enabled("MemoryQoS"));
        assert!(!gates.enabled("KubeletTracing") || FeatureGates::default().enabled("KubeletTracing"));
        assert!(!gates.enabled("GracefulNodeShutdown"));
        assert!(FeatureGates::default().enabled("GracefulNodeShutdown"));
        assert!(!FeatureGates::default().enabled("NoSuchGate"));
    }
}
