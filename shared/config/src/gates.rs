//! Feature gates of the node at 1.36: names, stage, default, and which can no longer be changed.
//!
//! The first table has the gates that something on the node looks at: the node's part of upstream's
//! (`pkg/features/kube_features.go`), and some of its libraries'. Upstream's kubelet also knows all others of the components and of the
//! libraries, for one registry serves all: those are the second table.

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

/// Writes the table, and the name of each row as a variant of [`Feature`].
macro_rules! gates {
    ($($kind:ident $name:ident $stage:ident $default:literal,)*) => {
        /// A gated feature of the node, as the code asks for it: a name that is in no row does not compile.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Feature {
            $($name,)*
        }

        impl Feature {
            /// As configurations write it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Feature::$name => stringify!($name),)*
                }
            }
        }

        /// Sorted by name.
        pub const GATES: &[Gate] = &[$($kind(stringify!($name), Stage::$stage, $default),)*];
    };
}

gates! {
    gate AllowDNSOnlyNodeCSR Deprecated false,
    gate AllowInsecureKubeletCertificateSigningRequests Deprecated false,
    locked AllowOverwriteTerminationGracePeriodSeconds Deprecated false,
    gate AllowParsingUserUIDFromCertAuth Beta true,
    gate CPUManagerPolicyAlphaOptions Alpha false,
    gate CPUManagerPolicyBetaOptions Beta true,
    locked CPUManagerPolicyOptions Ga true,
    gate CRIListStreaming Alpha false,
    locked CSIServiceAccountTokenSecrets Ga true,
    gate CSIVolumeHealth Alpha false,
    gate ChangeContainerStatusOnKubeletRestart Deprecated false,
    gate ClusterTrustBundle Beta false,
    gate ClusterTrustBundleProjection Beta false,
    gate ComponentFlagz Beta true,
    gate ComponentStatusz Beta true,
    gate ContainerCheckpoint Beta true,
    gate ContainerRestartRules Beta true,
    gate ContainerStopSignals Alpha false,
    gate ContextualLogging Beta true,
    gate CustomCPUCFSQuotaPeriod Ga true,
    locked DRAAdminAccess Ga true,
    gate DRAConsumableCapacity Beta true,
    gate DRADeviceBindingConditions Beta true,
    gate DRADeviceTaintRules Beta false,
    gate DRADeviceTaints Beta true,
    gate DRAExtendedResource Beta true,
    gate DRAListTypeAttributes Alpha false,
    gate DRANodeAllocatableResources Alpha false,
    gate DRAPartitionableDevices Beta true,
    gate DRAPrioritizedList Ga true,
    gate DRAResourceClaimDeviceStatus Beta true,
    gate DRAResourceClaimGranularStatusAuthorization Beta true,
    gate DRAResourcePoolStatus Alpha false,
    gate DRAWorkloadResourceClaims Alpha false,
    gate DisableCPUQuotaWithExclusiveCPUs Deprecated true,
    locked DisableNodeKubeProxyVersion Deprecated true,
    locked DynamicResourceAllocation Ga true,
    gate EnvFiles Beta true,
    gate EventedPLEG Alpha false,
    locked ExecProbeTimeout Ga true,
    gate ExtendWebSocketsToKubelet Beta true,
    locked GitRepoVolumeDriver Deprecated false,
    gate GracefulNodeShutdown Beta true,
    gate GracefulNodeShutdownBasedOnPodPriority Beta true,
    gate HostnameOverride Beta true,
    locked ImageMaximumGCAge Ga true,
    locked ImageVolume Ga true,
    gate ImageVolumeWithDigest Alpha false,
    gate InPlacePodLevelResourcesVerticalScaling Beta true,
    locked InPlacePodVerticalScaling Ga true,
    gate InPlacePodVerticalScalingExclusiveCPUs Alpha false,
    gate InPlacePodVerticalScalingExclusiveMemory Alpha false,
    gate InPlacePodVerticalScalingInitContainers Beta true,
    locked KubeletCgroupDriverFromCRI Ga true,
    gate KubeletCrashLoopBackOffMax Beta true,
    gate KubeletEnsureSecretPulledImages Beta true,
    locked KubeletFineGrainedAuthz Ga true,
    gate KubeletInUserNamespace Alpha false,
    locked KubeletPSI Ga true,
    locked KubeletPodResourcesDynamicResources Ga true,
    locked KubeletPodResourcesGet Ga true,
    gate KubeletPodResourcesListUseActivePods Deprecated true,
    gate KubeletRegistrationGetOnExistsOnly Deprecated false,
    gate KubeletSeparateDiskGC Beta true,
    gate KubeletServiceAccountTokenForCredentialProviders Beta true,
    locked KubeletTracing Ga true,
    gate LocalStorageCapacityIsolationFSQuotaMonitoring Beta false,
    gate LoggingAlphaOptions Alpha false,
    gate LoggingBetaOptions Beta true,
    gate MemoryQoS Alpha false,
    locked MutableCSINodeAllocatableCount Ga true,
    gate NativeHistograms Alpha false,
    gate NodeDeclaredFeatures Beta true,
    locked NodeLogQuery Ga true,
    locked NodeSwap Ga true,
    gate PLEGOnDemandRelist Beta true,
    gate PodAndContainerStatsFromCRI Alpha false,
    gate PodCertificateRequest Beta false,
    gate PodLevelResourceManagers Alpha false,
    gate PodLevelResources Beta true,
    locked PodLifecycleSleepAction Ga true,
    locked PodLifecycleSleepActionAllowZero Ga true,
    gate PodLogsQuerySplitStreams Alpha false,
    locked PodObservedGenerationTracking Ga true,
    gate PodReadyToStartContainersCondition Beta true,
    gate PodsAPI Alpha false,
    gate PortForwardWebsockets Beta true,
    gate PreventStaticPodAPIReferences Beta true,
    locked ProcMountType Ga true,
    gate QOSReserved Alpha false,
    locked RecoverVolumeExpansionFailure Ga true,
    locked RecursiveReadOnlyMounts Ga true,
    gate ReduceDefaultCrashLoopBackOffDecay Alpha false,
    locked RelaxedDNSSearchValidation Ga true,
    locked RelaxedEnvironmentVariableValidation Ga true,
    gate ReloadKubeletClientCAFile Beta true,
    gate ReloadKubeletServerCertificateFile Beta true,
    gate ResourceHealthStatus Beta true,
    gate ResourceHealthStatusMessage Beta true,
    gate RestartAllContainersOnContainerExits Beta true,
    gate RotateKubeletServerCertificate Beta true,
    gate RuntimeClassInImageCriApi Alpha false,
    locked SELinuxChangePolicy Ga true,
    gate SELinuxMount Beta false,
    locked SELinuxMountReadWriteOncePod Ga true,
    locked ServiceAccountTokenJTI Ga true,
    locked ServiceAccountTokenNodeBinding Ga true,
    locked ServiceAccountTokenPodNodeInfo Ga true,
    locked SidecarContainers Ga true,
    gate StrictIPCIDRValidation Beta true,
    locked SupplementalGroupsPolicy Ga true,
    locked SystemdWatchdog Ga true,
    gate TaintTolerationComparisonOperators Alpha false,
    gate TopologyManagerPolicyAlphaOptions Alpha false,
    gate TopologyManagerPolicyBetaOptions Beta true,
    locked TopologyManagerPolicyOptions Ga true,
    gate TranslateStreamCloseWebsocketRequests Beta true,
    gate UserNamespacesHostNetworkSupport Alpha false,
    locked UserNamespacesSupport Ga true,
    gate WatchListClient Beta true,
}

impl std::fmt::Display for Feature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Gates that only other components look at (1.36), sorted by name. A cluster has one list of gates for all components:
/// setting one is no error on a node and no act either, but what they depend on is checked here as everywhere.
const GATES_OF_OTHER_COMPONENTS: &[Gate] = &[
    gate("APIResponseCompression", Stage::Beta, true),
    gate("APIServerIdentity", Stage::Beta, true),
    locked("APIServerTracing", Stage::Ga, true),
    gate("APIServingWithRoutine", Stage::Alpha, false),
    locked("AggregatedDiscoveryRemoveBetaType", Stage::Deprecated, true),
    gate("AllowServiceExternalIPs", Stage::Ga, true),
    gate("AllowUnsafeMalformedObjectDeletion", Stage::Alpha, false),
    locked("AnonymousAuthConfigurableEndpoints", Stage::Ga, true),
    locked("AnyVolumeDataSource", Stage::Ga, true),
    gate("AtomicFIFO", Stage::Beta, true),
    locked("AuthorizeNodeWithSelectors", Stage::Ga, true),
    gate("AuthorizePodWebsocketUpgradeCreatePermission", Stage::Beta, true),
    locked("AuthorizeWithSelectors", Stage::Ga, true),
    locked("BtreeWatchCache", Stage::Ga, true),
    gate("CBORServingAndStorage", Stage::Alpha, false),
    gate("CRDObservedGenerationTracking", Stage::Beta, true),
    locked("CRDValidationRatcheting", Stage::Ga, true),
    gate("ClearingNominatedNodeNameAfterBinding", Stage::Beta, true),
    gate("ClientsAllowCARotation", Stage::Beta, true),
    gate("ClientsAllowCBOR", Stage::Alpha, false),
    gate("ClientsAllowTLSCacheGC", Stage::Beta, true),
    gate("ClientsPreferCBOR", Stage::Alpha, false),
    gate("CloudControllerManagerWatchBasedRoutesReconciliation", Stage::Alpha, false),
    gate("CloudControllerManagerWebhook", Stage::Alpha, false),
    gate("ConcurrentWatchObjectDecode", Stage::Beta, false),
    locked("ConsistentListFromCache", Stage::Ga, true),
    gate("ConstrainedImpersonation", Stage::Beta, true),
    gate("ControllerManagerReleaseLeaderElectionLockOnExit", Stage::Alpha, false),
    gate("CoordinatedLeaderElection", Stage::Beta, false),
    gate("CrossNamespaceVolumeDataSource", Stage::Alpha, false),
    locked("CustomResourceFieldSelectors", Stage::Ga, true),
    gate("DRASchedulerFilterTimeout", Stage::Beta, true),
    locked("DeclarativeValidation", Stage::Ga, true),
    gate("DeclarativeValidationBeta", Stage::Beta, true),
    gate("DeclarativeValidationTakeover", Stage::Deprecated, false),
    gate("DeploymentReplicaSetTerminatingReplicas", Stage::Beta, true),
    gate("DetectCacheInconsistency", Stage::Beta, true),
    locked("DisableAllocatorDualWrite", Stage::Ga, true),
    locked("ExternalServiceAccountTokenSigner", Stage::Ga, true),
    gate("GangScheduling", Stage::Alpha, false),
    gate("GenericWorkload", Stage::Alpha, false),
    gate("HPAConfigurableTolerance", Stage::Beta, true),
    gate("HPAScaleToZero", Stage::Alpha, false),
    locked("InOrderInformers", Stage::Ga, true),
    gate("InOrderInformersBatchProcess", Stage::Beta, true),
    gate("InformerResourceVersion", Stage::Ga, true),
    locked("JobBackoffLimitPerIndex", Stage::Ga, true),
    locked("JobManagedBy", Stage::Ga, true),
    locked("JobPodReplacementPolicy", Stage::Ga, true),
    locked("JobSuccessPolicy", Stage::Ga, true),
    gate("KMSv1", Stage::Deprecated, false),
    gate("ListFromCacheSnapshot", Stage::Beta, true),
    locked("LogarithmicScaleDown", Stage::Ga, true),
    gate("ManifestBasedAdmissionControlConfig", Stage::Alpha, false),
    locked("MatchLabelKeysInPodAffinity", Stage::Ga, true),
    gate("MatchLabelKeysInPodTopologySpread", Stage::Beta, true),
    gate("MatchLabelKeysInPodTopologySpreadSelectorMerge", Stage::Beta, true),
    gate("MaxUnavailableStatefulSet", Stage::Beta, false),
    locked("MultiCIDRServiceAllocator", Stage::Ga, true),
    gate("MutablePVNodeAffinity", Stage::Alpha, false),
    gate("MutablePodResourcesForSuspendedJobs", Stage::Beta, true),
    gate("MutableSchedulingDirectivesForSuspendedJobs", Stage::Beta, true),
    gate("MutatingAdmissionPolicy", Stage::Ga, true),
    locked("NFTablesProxyMode", Stage::Ga, true),
    locked("NodeInclusionPolicyInPodTopologySpread", Stage::Ga, true),
    gate("NominatedNodeNameForExpectation", Stage::Beta, true),
    gate("OpenAPIEnums", Stage::Beta, true),
    gate("OpportunisticBatching", Stage::Beta, true),
    locked("OrderedNamespaceDeletion", Stage::Ga, true),
    gate("PersistentVolumeClaimUnusedSinceTime", Stage::Alpha, false),
    gate("PodDeletionCost", Stage::Beta, true),
    locked("PodSchedulingReadiness", Stage::Ga, true),
    gate("PodTopologyLabelsAdmission", Stage::Beta, true),
    locked("PreferSameTrafficDistribution", Stage::Ga, true),
    gate("RelaxedServiceNameValidation", Stage::Beta, true),
    gate("RemoteRequestHeaderUID", Stage::Beta, true),
    locked("ResilientWatchCacheInitialization", Stage::Ga, true),
    locked("RetryGenerateName", Stage::Ga, true),
    gate("SchedulerAsyncAPICalls", Stage::Beta, false),
    gate("SchedulerAsyncPreemption", Stage::Beta, true),
    gate("SchedulerPopFromBackoffQ", Stage::Beta, true),
    locked("SchedulerQueueingHints", Stage::Ga, true),
    locked("SeparateCacheWatchRPC", Stage::Deprecated, false),
    locked("SeparateTaintEvictionController", Stage::Ga, true),
    gate("ServiceAccountNodeAudienceRestriction", Stage::Beta, true),
    locked("ServiceAccountTokenNodeBindingValidation", Stage::Ga, true),
    gate("ServiceCIDRStatusFieldWiping", Stage::Deprecated, true),
    gate("ShardedListAndWatch", Stage::Alpha, false),
    gate("SizeBasedListCostEstimate", Stage::Beta, true),
    gate("StaleControllerConsistencyDaemonSet", Stage::Beta, true),
    gate("StaleControllerConsistencyJob", Stage::Beta, true),
    gate("StaleControllerConsistencyReplicaSet", Stage::Beta, true),
    gate("StaleControllerConsistencyStatefulSet", Stage::Beta, true),
    gate("StatefulSetSemanticRevisionComparison", Stage::Beta, true),
    gate("StorageCapacityScoring", Stage::Alpha, false),
    gate("StorageNamespaceIndex", Stage::Deprecated, true),
    gate("StorageVersionAPI", Stage::Alpha, false),
    gate("StorageVersionHash", Stage::Beta, true),
    gate("StorageVersionMigrator", Stage::Beta, false),
    locked("StreamingCollectionEncodingToJSON", Stage::Ga, true),
    locked("StreamingCollectionEncodingToProtobuf", Stage::Ga, true),
    locked("StructuredAuthenticationConfiguration", Stage::Ga, true),
    gate("StructuredAuthenticationConfigurationEgressSelector", Stage::Beta, true),
    gate("StructuredAuthenticationConfigurationJWKSMetrics", Stage::Beta, true),
    gate("TokenRequestServiceAccountUIDValidation", Stage::Beta, true),
    gate("TopologyAwareWorkloadScheduling", Stage::Alpha, false),
    gate("UnauthenticatedHTTP2DOSMitigation", Stage::Beta, true),
    gate("UnknownVersionInteroperabilityProxy", Stage::Beta, true),
    gate("UnlockWhileProcessingFIFO", Stage::Beta, true),
    locked("VolumeAttributesClass", Stage::Ga, true),
    gate("VolumeLimitScaling", Stage::Alpha, false),
    gate("WatchCacheInitializationPostStartHook", Stage::Beta, true),
    gate("WatchList", Stage::Beta, true),
    locked("WinDSR", Stage::Ga, true),
    locked("WinOverlay", Stage::Ga, true),
    gate("WindowsCPUAndMemoryAffinity", Stage::Alpha, false),
    gate("WindowsGracefulNodeShutdown", Stage::Beta, true),
    gate("WindowsHostNetwork", Stage::Deprecated, false),
    gate("WorkloadAwarePreemption", Stage::Alpha, false),
    gate("WorkloadWithJob", Stage::Alpha, false),
];

/// What a gate needs to be on when it is on itself, by default or because it was set (upstream
/// `defaultKubernetesFeatureGateDependencies`). Sorted by name.
const DEPENDENCIES: &[(&str, &[&str])] = &[
    ("AuthorizeNodeWithSelectors", &["AuthorizeWithSelectors"]),
    ("ClusterTrustBundleProjection", &["ClusterTrustBundle"]),
    ("DRAAdminAccess", &["DynamicResourceAllocation"]),
    ("DRAConsumableCapacity", &["DynamicResourceAllocation"]),
    ("DRADeviceBindingConditions", &["DynamicResourceAllocation", "DRAResourceClaimDeviceStatus"]),
    ("DRADeviceTaintRules", &["DRADeviceTaints"]),
    ("DRADeviceTaints", &["DynamicResourceAllocation"]),
    ("DRAExtendedResource", &["DynamicResourceAllocation"]),
    ("DRAListTypeAttributes", &["DynamicResourceAllocation"]),
    ("DRANodeAllocatableResources", &["DynamicResourceAllocation"]),
    ("DRAPartitionableDevices", &["DynamicResourceAllocation"]),
    ("DRAPrioritizedList", &["DynamicResourceAllocation"]),
    ("DRAResourceClaimGranularStatusAuthorization", &["DynamicResourceAllocation", "DRAResourceClaimDeviceStatus"]),
    ("DRAResourcePoolStatus", &["DynamicResourceAllocation"]),
    ("DRASchedulerFilterTimeout", &["DynamicResourceAllocation"]),
    ("DRAWorkloadResourceClaims", &["DynamicResourceAllocation", "GenericWorkload"]),
    ("DeclarativeValidationBeta", &["DeclarativeValidation"]),
    ("DeclarativeValidationTakeover", &["DeclarativeValidation"]),
    ("DisableAllocatorDualWrite", &["MultiCIDRServiceAllocator"]),
    ("ExtendWebSocketsToKubelet", &["NodeDeclaredFeatures"]),
    ("GangScheduling", &["GenericWorkload"]),
    ("GracefulNodeShutdownBasedOnPodPriority", &["GracefulNodeShutdown"]),
    ("ImageVolumeWithDigest", &["ImageVolume"]),
    (
        "InPlacePodLevelResourcesVerticalScaling",
        &["InPlacePodVerticalScaling", "PodLevelResources", "NodeDeclaredFeatures"],
    ),
    ("InPlacePodVerticalScalingExclusiveCPUs", &["InPlacePodVerticalScaling"]),
    ("InPlacePodVerticalScalingExclusiveMemory", &["InPlacePodVerticalScaling"]),
    ("InPlacePodVerticalScalingInitContainers", &["InPlacePodVerticalScaling", "NodeDeclaredFeatures"]),
    ("MatchLabelKeysInPodTopologySpreadSelectorMerge", &["MatchLabelKeysInPodTopologySpread"]),
    ("PodCertificateRequest", &["AuthorizeNodeWithSelectors"]),
    ("PodLevelResourceManagers", &["PodLevelResources"]),
    ("PodLifecycleSleepActionAllowZero", &["PodLifecycleSleepAction"]),
    ("ProcMountType", &["UserNamespacesSupport"]),
    ("ResourceHealthStatus", &["DynamicResourceAllocation"]),
    ("ResourceHealthStatusMessage", &["ResourceHealthStatus"]),
    ("RestartAllContainersOnContainerExits", &["ContainerRestartRules", "NodeDeclaredFeatures"]),
    ("ServiceAccountTokenNodeBinding", &["ServiceAccountTokenNodeBindingValidation"]),
    ("StaleControllerConsistencyDaemonSet", &["AtomicFIFO"]),
    ("StaleControllerConsistencyJob", &["AtomicFIFO"]),
    ("StaleControllerConsistencyReplicaSet", &["AtomicFIFO"]),
    ("StaleControllerConsistencyStatefulSet", &["AtomicFIFO"]),
    ("StorageVersionAPI", &["APIServerIdentity"]),
    ("StructuredAuthenticationConfigurationEgressSelector", &["StructuredAuthenticationConfiguration"]),
    ("StructuredAuthenticationConfigurationJWKSMetrics", &["StructuredAuthenticationConfiguration"]),
    ("TopologyAwareWorkloadScheduling", &["GenericWorkload"]),
    ("UnknownVersionInteroperabilityProxy", &["APIServerIdentity"]),
    ("UserNamespacesHostNetworkSupport", &["UserNamespacesSupport", "NodeDeclaredFeatures"]),
    ("WindowsGracefulNodeShutdown", &["GracefulNodeShutdown"]),
    ("WorkloadAwarePreemption", &["GangScheduling"]),
    ("WorkloadWithJob", &["GenericWorkload"]),
];

/// All gates that one may set, of the node and of others.
fn every() -> impl Iterator<Item = &'static Gate> {
    GATES.iter().chain(GATES_OF_OTHER_COMPONENTS)
}

fn find(name: &str) -> Option<&'static Gate> {
    [GATES, GATES_OF_OTHER_COMPONENTS]
        .into_iter()
        .find_map(|table| table.binary_search_by(|gate| gate.name.cmp(name)).ok().and_then(|index| table.get(index)))
}

/// Why a gate setting is refused; upstream's words (`component-base/featuregate`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    #[error("unrecognized feature gate: {0}")]
    Unknown(String),
    #[error("cannot set feature gate {name} to {value}, feature is locked to {}", !value)]
    Locked { name: String, value: bool },
    #[error("{name} is enabled, but depends on features that are disabled: [{}]", needs.join(" "))]
    Dependency { name: &'static str, needs: Vec<&'static str> },
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

    /// Every gate with upstream's name for its stage in metrics, and whether it is on: those that switch all of a stage,
    /// the node's, those of others.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, bool)> {
        let whole = [("AllAlpha", Stage::Alpha), ("AllBeta", Stage::Beta)];
        let gates = whole.into_iter().chain(every().map(|gate| (gate.name, gate.stage)));
        gates.map(|(name, stage)| {
            // General availability has no name there.
            let label = if stage == Stage::Ga { "" } else { stage.as_str() };
            (name, label, self.enabled_by_name(name))
        })
    }

    pub fn enabled(&self, feature: Feature) -> bool {
        self.enabled_by_name(feature.name())
    }

    /// Also of a gate of others. An unknown name is off.
    pub fn enabled_by_name(&self, name: &str) -> bool {
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
            errors.push(GateError::Unknown(name.clone()));
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
    if errors.is_empty() {
        // Only among settings that stand: a gate that may not be switched at all is one error and not five.
        let gates = FeatureGates::from_map(set);
        for (name, needs) in DEPENDENCIES.iter().filter(|(name, _)| gates.enabled_by_name(name)) {
            let needs: Vec<_> = needs.iter().copied().filter(|needed| !gates.enabled_by_name(needed)).collect();
            if !needs.is_empty() {
                errors.push(GateError::Dependency { name, needs });
            }
        }
    }
    if errors.is_empty() { Ok(warnings) } else { Err(errors) }
}

/// Lines for `--help`: gates that can still be changed, with stage and default. Sorted by name.
pub fn help_lines() -> Vec<String> {
    let whole = [("AllAlpha", Stage::Alpha, false), ("AllBeta", Stage::Beta, false)];
    let gates = whole.into_iter().chain(every().map(|gate| (gate.name, gate.stage, gate.default)));
    let mut lines: Vec<String> = gates
        .filter(|(_, stage, _)| matches!(stage, Stage::Alpha | Stage::Beta))
        .map(|(name, stage, default)| format!("{name}=true|false ({} - default={default})", stage.as_str()))
        .collect();
    lines.sort();
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
        assert!(GATES_OF_OTHER_COMPONENTS.windows(2).all(|pair| pair[0].name < pair[1].name));
        assert!(GATES_OF_OTHER_COMPONENTS.iter().all(|gate| !GATES.iter().any(|of_node| of_node.name == gate.name)));
        assert_eq!(every().count(), 240, "as many as upstream's kubelet knows");
        assert!(DEPENDENCIES.windows(2).all(|pair| pair[0].0 < pair[1].0));
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
        assert_eq!(check(&map(&[("SchedulerAsyncAPICalls", true)])), Ok(vec![]));
    }

    #[test]
    fn what_a_cluster_sets_for_all_its_components_is_taken() {
        for name in ["WorkloadWithJob", "ClientsAllowCARotation", "PodSchedulingReadiness", "DRASchedulerFilterTimeout"]
        {
            let with_it = map(&[(name, true), ("GenericWorkload", true)]);
            assert!(check(&with_it).is_ok(), "{name}: {:?}", check(&with_it));
        }
        // What 1.36 has no more, or never had.
        for name in
            ["TopologyAwareHints", "ServiceTrafficDistribution", "CSIMigrationPortworx", "CSIVolumeHealthMonitor"]
        {
            assert_eq!(check(&map(&[(name, true)])), Err(vec![GateError::Unknown(name.into())]));
        }
        let locked = check(&map(&[("PodSchedulingReadiness", false)])).unwrap_err();
        assert_eq!(locked, [GateError::Locked { name: "PodSchedulingReadiness".into(), value: false }]);
    }

    #[test]
    fn what_is_on_by_default_needs_its_gates_too() {
        let refused = |entries: &[(&str, bool)]| -> Vec<String> {
            check(&map(entries)).err().into_iter().flatten().map(|error| error.to_string()).collect()
        };
        assert_eq!(
            refused(&[("NodeDeclaredFeatures", false)]),
            [
                "ExtendWebSocketsToKubelet",
                "InPlacePodLevelResourcesVerticalScaling",
                "InPlacePodVerticalScalingInitContainers",
                "RestartAllContainersOnContainerExits"
            ]
            .map(|name| format!(
                "{name} is enabled, but depends on features that are disabled: [NodeDeclaredFeatures]"
            ))
        );
        for (alone, together) in [
            (("GracefulNodeShutdown", false), ("AllBeta", false)),
            (("ContainerRestartRules", false), ("RestartAllContainersOnContainerExits", false)),
            (("PodLevelResources", false), ("InPlacePodLevelResourcesVerticalScaling", false)),
            (("ClusterTrustBundleProjection", true), ("ClusterTrustBundle", true)),
            (("ResourceHealthStatus", false), ("ResourceHealthStatusMessage", false)),
            (("WorkloadWithJob", true), ("GenericWorkload", true)),
        ] {
            assert!(!refused(&[alone]).is_empty(), "{alone:?}");
            assert!(refused(&[alone, together]).is_empty(), "{alone:?} {:?}", refused(&[alone, together]));
        }
        let both = [("DRAWorkloadResourceClaims", true), ("NodeSwap", false)];
        assert_eq!(refused(&both), ["cannot set feature gate NodeSwap to false, feature is locked to true"]);
        assert!(refused(&[("AllAlpha", true)]).is_empty() && refused(&[("AllBeta", false)]).is_empty());
        assert!(!refused(&[("AllAlpha", true), ("AllBeta", false)]).is_empty());
    }

    #[test]
    fn defaults_and_overlays() {
        let gates = FeatureGates::from_map(&map(&[("AllAlpha", true), ("EventedPLEG", false), ("AllBeta", false)]));
        assert!(!gates.enabled(Feature::EventedPLEG));
        assert!(gates.enabled(Feature::MemoryQoS));
        assert!(!gates.enabled(Feature::KubeletTracing) || FeatureGates::default().enabled(Feature::KubeletTracing));
        assert!(!gates.enabled(Feature::GracefulNodeShutdown));
        assert!(FeatureGates::default().enabled(Feature::GracefulNodeShutdown));
        assert!(!FeatureGates::default().enabled_by_name("NoSuchGate"));
    }
}
