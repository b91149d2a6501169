//! One good and one bad value for every limit.

use super::*;
use crate::cpu_set::CpuSet;
use crate::defaults::{Presence, set_defaults};
use crate::field::{Field, Findings};

fn config(yaml: &str) -> KubeletConfiguration {
    let document = crate::document::parse(yaml).unwrap_or_else(|e| panic!("{yaml}: {e}"));
    let mut findings = Findings::default();
    let mut config = KubeletConfiguration::decode(&document.value, "", &mut findings);
    assert!(findings.errors.is_empty() && findings.unknown.is_empty(), "{yaml}: {findings:?}");
    let gates = FeatureGates::from_map(&config.feature_gates);
    set_defaults(&mut config, Presence::of(&document.value), &gates);
    config
}

fn errors(yaml: &str) -> Vec<String> {
    validate(&config(yaml)).iter().map(ToString::to_string).collect()
}

#[test]
fn defaults_are_valid() {
    assert_eq!(errors("{}"), Vec::<String>::new());
    assert_eq!(validate(&crate::defaults::flag_defaults()), vec![]);
}

#[test]
fn every_limit_has_two_sides() {
    // path that the error must start with, good document, bad document
    let table: &[(&str, &str, &str)] = &[
        ("address", "address: \"::\"", "address: localhost"),
        ("port", "port: 65535", "port: 65536"),
        ("port", "port: 1", "port: -1"),
        ("readOnlyPort", "readOnlyPort: 10255", "readOnlyPort: -1"),
        ("readOnlyPort", "readOnlyPort: 0", "readOnlyPort: 70000"),
        ("healthzPort", "healthzPort: 0", "healthzPort: 65536"),
        ("healthzBindAddress", "healthzBindAddress: localhost", "healthzBindAddress: my host"),
        ("tlsCipherSuites[0]", "tlsCipherSuites: [TLS_AES_128_GCM_SHA256]", "tlsCipherSuites: [TLS_NOPE]"),
        (
            "tlsCipherSuites[1]",
            "tlsCipherSuites: [TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305]",
            "tlsCipherSuites: [TLS_RSA_WITH_RC4_128_SHA, x]",
        ),
        ("tlsCurvePreferences[0]", "tlsCurvePreferences: [23, 4588]", "tlsCurvePreferences: [0]"),
        ("tlsCurvePreferences[0]", "tlsCurvePreferences: [29]", "tlsCurvePreferences: [26]"),
        ("tlsCurvePreferences[1]", "tlsCurvePreferences: [25, 24]", "tlsCurvePreferences: [25, 25]"),
        ("tlsMinVersion", "tlsMinVersion: VersionTLS13", "tlsMinVersion: TLS1.3"),
        (
            "tlsCipherSuites",
            "tlsCipherSuites: [TLS_RSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]",
            "tlsCipherSuites: [TLS_RSA_WITH_AES_128_GCM_SHA256]",
        ),
        ("tlsCurvePreferences", "tlsCurvePreferences: [4588, 29]", "tlsCurvePreferences: [4588, 25]"),
        ("tlsPrivateKeyFile", "{tlsCertFile: /c, tlsPrivateKeyFile: /k}", "{tlsCertFile: /c}"),
        (
            "serverTLSBootstrap",
            "serverTLSBootstrap: true",
            "{serverTLSBootstrap: true, featureGates: {RotateKubeletServerCertificate: false}}",
        ),
        ("authorization.mode", "authorization: {mode: AlwaysAllow}", "authorization: {mode: RBAC}"),
        (
            "enableSystemLogQuery",
            "enableSystemLogQuery: true",
            "{enableSystemLogQuery: true, enableSystemLogHandler: false}",
        ),
        (
            "tracing.samplingRatePerMillion",
            "tracing: {samplingRatePerMillion: 1000000}",
            "tracing: {samplingRatePerMillion: 1000001}",
        ),
        (
            "tracing.endpoint",
            "tracing: {endpoint: \"localhost:4317\"}",
            "tracing: {endpoint: \"http://localhost:4317\"}",
        ),
        ("tracing.endpoint", "tracing: {endpoint: \"dns://8.8.8.8/x\"}", "tracing: {endpoint: \"\"}"),
        (
            "registerWithTaints[0].key",
            "registerWithTaints: [{key: a/b, effect: NoSchedule}]",
            "registerWithTaints: [{key: a/b/c, effect: NoSchedule}]",
        ),
        (
            "registerWithTaints[0].value",
            "registerWithTaints: [{key: a, value: v, effect: NoExecute}]",
            "registerWithTaints: [{key: a, value: a b, effect: NoExecute}]",
        ),
        (
            "registerWithTaints[0].effect",
            "registerWithTaints: [{key: a, effect: PreferNoSchedule}]",
            "registerWithTaints: [{key: a, effect: Never}]",
        ),
        (
            "registerWithTaints[0].timeAdded",
            "registerWithTaints: []",
            "registerWithTaints: [{key: a, effect: NoExecute, timeAdded: \"2020-01-01T00:00:00Z\"}]",
        ),
        ("nodeLeaseDurationSeconds", "nodeLeaseDurationSeconds: 1", "nodeLeaseDurationSeconds: -1"),
        ("nodeStatusMaxImages", "nodeStatusMaxImages: -1", "nodeStatusMaxImages: -2"),
        ("kubeAPIQPS", "kubeAPIQPS: 0", "kubeAPIQPS: -1"),
        ("kubeAPIBurst", "kubeAPIBurst: 1", "kubeAPIBurst: -1"),
        ("eventRecordQPS", "eventRecordQPS: 0", "eventRecordQPS: -1"),
        ("eventBurst", "eventBurst: 1", "eventBurst: -1"),
        (
            "configMapAndSecretChangeDetectionStrategy",
            "configMapAndSecretChangeDetectionStrategy: Cache",
            "configMapAndSecretChangeDetectionStrategy: Poll",
        ),
        (
            "showHiddenMetricsForVersion",
            "showHiddenMetricsForVersion: \"1.35\"",
            "showHiddenMetricsForVersion: \"1.34\"",
        ),
        ("logging.format", "logging: {format: json}", "logging: {format: xml}"),
        ("logging.flushFrequency", "logging: {flushFrequency: 1s}", "logging: {flushFrequency: -1s}"),
        ("logging.verbosity", "logging: {verbosity: 2147483647}", "logging: {verbosity: 2147483648}"),
        (
            "logging.vmodule",
            "logging: {vmodule: [{filePattern: a, verbosity: 1}]}",
            "logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}",
        ),
        (
            "logging.vmodule[0].filePattern",
            "logging: {vmodule: [{filePattern: a*, verbosity: 1}]}",
            "logging: {vmodule: [{filePattern: \"\", verbosity: 1}]}",
        ),
        (
            "logging.vmodule[0].filePattern",
            "logging: {vmodule: []}",
            "logging: {vmodule: [{filePattern: \"a=b\", verbosity: 1}]}",
        ),
        (
            "logging.options.text.splitStream",
            "{logging: {options: {text: {splitStream: true}}}, featureGates: {LoggingAlphaOptions: true}}",
            "logging: {options: {text: {splitStream: true}}}",
        ),
        (
            "logging.options.json.infoBufferSize",
            "{logging: {options: {json: {infoBufferSize: 1Ki}}}, featureGates: {LoggingAlphaOptions: true}}",
            "logging: {options: {json: {infoBufferSize: 1Ki}}}",
        ),
        (
            "containerRuntimeEndpoint",
            "containerRuntimeEndpoint: /run/x.sock",
            "containerRuntimeEndpoint: tcp://1.2.3.4:5",
        ),
        ("imageServiceEndpoint", "imageServiceEndpoint: unix:///run/x.sock", "imageServiceEndpoint: nope"),
        ("maxParallelImagePulls", "maxParallelImagePulls: 1", "maxParallelImagePulls: 0"),
        ("maxParallelImagePulls", "maxParallelImagePulls: 5", "{maxParallelImagePulls: 5, serializeImagePulls: true}"),
        ("registryPullQPS", "registryPullQPS: 0", "registryPullQPS: -1"),
        ("registryBurst", "registryBurst: 1", "registryBurst: -1"),
        (
            "imagePullCredentialsVerificationPolicy",
            "imagePullCredentialsVerificationPolicy: AlwaysVerify",
            "imagePullCredentialsVerificationPolicy: Sometimes",
        ),
        (
            "imagePullCredentialsVerificationPolicy",
            "featureGates: {KubeletEnsureSecretPulledImages: false}",
            "{imagePullCredentialsVerificationPolicy: NeverVerify, featureGates: {KubeletEnsureSecretPulledImages: false}}",
        ),
        (
            "preloadedImagesVerificationAllowlist",
            "{imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages, preloadedImagesVerificationAllowlist: [\"r.io:5000/a/b\", \"r.io/*\"]}",
            "preloadedImagesVerificationAllowlist: [r.io/a]",
        ),
        (
            "preloadedImagesVerificationAllowlist[0]",
            "{}",
            "{imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages, preloadedImagesVerificationAllowlist: [\"r.io/a:1\"]}",
        ),
        (
            "preloadedImagesVerificationAllowlist[0]",
            "{}",
            "{imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages, preloadedImagesVerificationAllowlist: [\"*/a\"]}",
        ),
        ("imageMinimumGCAge", "imageMinimumGCAge: 1s", "imageMinimumGCAge: -1s"),
        ("imageMaximumGCAge", "imageMaximumGCAge: 3m", "imageMaximumGCAge: 2m"),
        ("imageMaximumGCAge", "imageMaximumGCAge: 0s", "imageMaximumGCAge: -1s"),
        ("imageGCHighThresholdPercent", "imageGCHighThresholdPercent: 100", "imageGCHighThresholdPercent: 101"),
        ("imageGCLowThresholdPercent", "imageGCLowThresholdPercent: 0", "imageGCLowThresholdPercent: -1"),
        ("imageGCLowThresholdPercent", "imageGCLowThresholdPercent: 84", "imageGCLowThresholdPercent: 85"),
        ("podLogsDir", "podLogsDir: /var/log/x", "podLogsDir: /var/log/x/"),
        ("podLogsDir", "podLogsDir: /l", "podLogsDir: logs"),
        ("podLogsDir", "podLogsDir: /l", "podLogsDir: /l\u{f6}g"),
        ("containerLogMaxSize", "containerLogMaxSize: \"-1\"", "containerLogMaxSize: big"),
        ("containerLogMaxSize", "containerLogMaxSize: \"0\"", "containerLogMaxSize: \"99999999999999999999\""),
        ("containerLogMaxSize", "containerLogMaxSize: \"1e6\"", "containerLogMaxSize: 100m"),
        ("containerLogMaxFiles", "containerLogMaxFiles: 2", "containerLogMaxFiles: 1"),
        ("containerLogMaxWorkers", "containerLogMaxWorkers: 1", "containerLogMaxWorkers: 0"),
        ("containerLogMonitorInterval", "containerLogMonitorInterval: 3s", "containerLogMonitorInterval: 2s"),
        ("syncFrequency", "syncFrequency: 1ns", "syncFrequency: -1s"),
        ("runOnce", "runOnce: false", "runOnce: true"),
        ("maxPods", "maxPods: 500", "maxPods: -1"),
        ("podsPerCore", "podsPerCore: 0", "podsPerCore: -1"),
        ("hairpinMode", "hairpinMode: none", "hairpinMode: veth"),
        ("iptablesMasqueradeBit", "iptablesMasqueradeBit: 31", "iptablesMasqueradeBit: 32"),
        ("iptablesDropBit", "iptablesDropBit: 0", "iptablesDropBit: -1"),
        (
            "allowedUnsafeSysctls[0]",
            "allowedUnsafeSysctls: [\"net.*\", kernel.sem, \"kernel.sem*\", \"kernel.shm*\", net/ipv4/conf/eth0.1/x]",
            "allowedUnsafeSysctls: [\"net.*.x\"]",
        ),
        (
            "allowedUnsafeSysctls[0]",
            "allowedUnsafeSysctls: [fs.mqueue.msg_max]",
            "allowedUnsafeSysctls: [vm.swappiness]",
        ),
        // Names are whole ones; a star stands for the rest of a prefix that is a name, or begins like one.
        (
            "allowedUnsafeSysctls[0]",
            "allowedUnsafeSysctls: [\"kernel.msg*\", kernel.shm_rmid_forced]",
            "allowedUnsafeSysctls: [\"kernel.shm.*\"]",
        ),
        ("allowedUnsafeSysctls[0]", "allowedUnsafeSysctls: []", "allowedUnsafeSysctls: [\"\"]"),
        (
            "crashLoopBackOff.maxContainerRestartPeriod",
            "crashLoopBackOff: {maxContainerRestartPeriod: 1s}",
            "crashLoopBackOff: {maxContainerRestartPeriod: 999ms}",
        ),
        (
            "crashLoopBackOff.maxContainerRestartPeriod",
            "crashLoopBackOff: {maxContainerRestartPeriod: 5m}",
            "crashLoopBackOff: {maxContainerRestartPeriod: 301s}",
        ),
        (
            "crashLoopBackOff.maxContainerRestartPeriod",
            "featureGates: {KubeletCrashLoopBackOffMax: false}",
            "{crashLoopBackOff: {maxContainerRestartPeriod: 5s}, featureGates: {KubeletCrashLoopBackOffMax: false}}",
        ),
        ("userNamespaces.idsPerPod", "userNamespaces: {idsPerPod: 131072}", "userNamespaces: {idsPerPod: 65537}"),
        (
            "userNamespaces.idsPerPod",
            "userNamespaces: {idsPerPod: 4294901760}",
            "userNamespaces: {idsPerPod: 4294967296}",
        ),
        ("userNamespaces.idsPerPod", "userNamespaces: {}", "userNamespaces: {idsPerPod: 0}"),
        ("shutdownGracePeriod", "shutdownGracePeriod: 1s", "shutdownGracePeriod: 500ms"),
        (
            "shutdownGracePeriodCriticalPods",
            "{shutdownGracePeriod: 3s, shutdownGracePeriodCriticalPods: 3s}",
            "{shutdownGracePeriod: 3s, shutdownGracePeriodCriticalPods: 4s}",
        ),
        (
            "shutdownGracePeriod",
            "shutdownGracePeriod: 0s",
            "{shutdownGracePeriod: 3s, featureGates: {GracefulNodeShutdown: false}}",
        ),
        (
            "shutdownGracePeriodByPodPriority",
            "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 5}]",
            "{shutdownGracePeriod: 3s, shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 5}]}",
        ),
        ("cgroupDriver", "cgroupDriver: systemd", "cgroupDriver: crio"),
        ("systemCgroups", "{systemCgroups: /s, cgroupRoot: /}", "systemCgroups: /s"),
        ("oomScoreAdj", "oomScoreAdj: 1000", "oomScoreAdj: -1001"),
        ("maxOpenFiles", "maxOpenFiles: 1", "maxOpenFiles: -1"),
        ("memorySwap.swapBehavior", "memorySwap: {swapBehavior: NoSwap}", "memorySwap: {swapBehavior: UnlimitedSwap}"),
        ("cpuCFSQuotaPeriod", "cpuCFSQuotaPeriod: 1ms", "cpuCFSQuotaPeriod: 2s"),
        ("cpuCFSQuotaPeriod", "cpuCFSQuotaPeriod: 1s", "cpuCFSQuotaPeriod: 999us"),
        ("enforceNodeAllocatable[0]", "enforceNodeAllocatable: [none]", "enforceNodeAllocatable: [all]"),
        ("enforceNodeAllocatable[1]", "enforceNodeAllocatable: []", "enforceNodeAllocatable: [pods, pods]"),
        ("enforceNodeAllocatable", "enforceNodeAllocatable: [pods]", "enforceNodeAllocatable: [none, pods]"),
        (
            "enforceNodeAllocatable[0]",
            "{enforceNodeAllocatable: [system-reserved], systemReservedCgroup: /s}",
            "enforceNodeAllocatable: [system-reserved]",
        ),
        (
            "enforceNodeAllocatable[0]",
            "{enforceNodeAllocatable: [kube-reserved-compressible], kubeReservedCgroup: /s}",
            "enforceNodeAllocatable: [kube-reserved-compressible]",
        ),
        (
            "enforceNodeAllocatable",
            "{}",
            "{enforceNodeAllocatable: [kube-reserved, kube-reserved-compressible], kubeReservedCgroup: /s}",
        ),
        ("cgroupsPerQOS", "{cgroupsPerQOS: false, enforceNodeAllocatable: []}", "cgroupsPerQOS: false"),
        ("cpuManagerPolicy", "{cpuManagerPolicy: static, kubeReserved: {cpu: 100m}}", "cpuManagerPolicy: static"),
        ("cpuManagerPolicy", "{cpuManagerPolicy: static, reservedSystemCPUs: \"0\"}", "cpuManagerPolicy: dynamic"),
        (
            "cpuManagerPolicyOptions[nope]",
            "{cpuManagerPolicy: static, reservedSystemCPUs: \"0\", cpuManagerPolicyOptions: {full-pcpus-only: \"true\"}}",
            "{cpuManagerPolicy: static, reservedSystemCPUs: \"0\", cpuManagerPolicyOptions: {nope: \"true\"}}",
        ),
        (
            "cpuManagerPolicyOptions[full-pcpus-only]",
            "{}",
            "{cpuManagerPolicy: static, reservedSystemCPUs: \"0\", cpuManagerPolicyOptions: {full-pcpus-only: \"maybe\"}}",
        ),
        (
            "cpuManagerPolicyOptions[align-by-socket]",
            "{cpuManagerPolicy: static, reservedSystemCPUs: \"0\", featureGates: {CPUManagerPolicyAlphaOptions: true}, cpuManagerPolicyOptions: {align-by-socket: \"true\"}}",
            "{cpuManagerPolicy: static, reservedSystemCPUs: \"0\", cpuManagerPolicyOptions: {align-by-socket: \"true\"}}",
        ),
        (
            "cpuManagerPolicyOptions[align-by-socket]",
            "{}",
            "{topologyManagerPolicy: single-numa-node, cpuManagerPolicy: static, reservedSystemCPUs: \"0\", featureGates: {CPUManagerPolicyAlphaOptions: true}, cpuManagerPolicyOptions: {align-by-socket: \"true\"}}",
        ),
        (
            "cpuManagerPolicyOptions[prefer-align-cpus-by-uncorecache]",
            "{}",
            "{cpuManagerPolicy: static, reservedSystemCPUs: \"0\", cpuManagerPolicyOptions: {prefer-align-cpus-by-uncorecache: \"true\", distribute-cpus-across-numa: \"true\"}}",
        ),
        ("cpuManagerPolicyOptions", "{}", "cpuManagerPolicyOptions: {full-pcpus-only: \"true\"}"),
        ("memoryManagerPolicy", "memoryManagerPolicy: Static", "memoryManagerPolicy: BestEffort"),
        ("topologyManagerPolicy", "topologyManagerPolicy: restricted", "topologyManagerPolicy: strict"),
        ("topologyManagerScope", "topologyManagerScope: pod", "topologyManagerScope: node"),
        (
            "topologyManagerPolicyOptions[max-allowable-numa-nodes]",
            "topologyManagerPolicyOptions: {max-allowable-numa-nodes: \"8\"}",
            "topologyManagerPolicyOptions: {max-allowable-numa-nodes: \"7\"}",
        ),
        (
            "topologyManagerPolicyOptions[prefer-closest-numa-nodes]",
            "topologyManagerPolicyOptions: {prefer-closest-numa-nodes: \"true\"}",
            "topologyManagerPolicyOptions: {prefer-closest-numa-nodes: \"x\"}",
        ),
        (
            "topologyManagerPolicyOptions[x]",
            "topologyManagerPolicyOptions: {}",
            "topologyManagerPolicyOptions: {x: \"1\"}",
        ),
        (
            "qosReserved[memory]",
            "{qosReserved: {memory: 50%}, featureGates: {QOSReserved: true}}",
            "qosReserved: {memory: 50%}",
        ),
        ("qosReserved[memory]", "{}", "{qosReserved: {memory: 101%}, featureGates: {QOSReserved: true}}"),
        ("qosReserved[cpu]", "{}", "{qosReserved: {cpu: 1%}, featureGates: {QOSReserved: true}}"),
        ("memoryThrottlingFactor", "memoryThrottlingFactor: 1.0", "memoryThrottlingFactor: 1.1"),
        ("memoryThrottlingFactor", "memoryThrottlingFactor: 0.1", "memoryThrottlingFactor: 0"),
        (
            "memoryReservationPolicy",
            "{memoryReservationPolicy: TieredReservation, featureGates: {MemoryQoS: true}}",
            "memoryReservationPolicy: TieredReservation",
        ),
        ("memoryReservationPolicy", "memoryReservationPolicy: None", "memoryReservationPolicy: Some"),
        (
            "reservedMemory[0].limits[cpu]",
            "reservedMemory: [{numaNode: 0, limits: {memory: 1Gi, hugepages-2Mi: 2Mi}}]",
            "reservedMemory: [{numaNode: 0, limits: {cpu: 1}}]",
        ),
        (
            "reservedMemory[0].limits[memory]",
            "reservedMemory: []",
            "reservedMemory: [{numaNode: 0, limits: {memory: 0}}]",
        ),
        (
            "reservedMemory[1].limits[memory]",
            "reservedMemory: [{numaNode: 0, limits: {memory: 1}}, {numaNode: 1, limits: {memory: 1}}]",
            "reservedMemory: [{numaNode: 0, limits: {memory: 1}}, {numaNode: 0, limits: {memory: 1}}]",
        ),
        (
            "kubeReserved[gpu]",
            "kubeReserved: {cpu: 100m, memory: 1Gi, ephemeral-storage: 1Gi, pid: \"100\"}",
            "kubeReserved: {gpu: \"1\"}",
        ),
        ("systemReserved[cpu]", "systemReserved: {cpu: \"0\"}", "systemReserved: {cpu: \"-1\"}"),
        ("systemReserved[memory]", "systemReserved: {}", "systemReserved: {memory: lots}"),
        ("reservedSystemCPUs", "reservedSystemCPUs: 0-1", "reservedSystemCPUs: first"),
        ("reservedSystemCPUs", "systemReservedCgroup: /s", "{reservedSystemCPUs: 0-1, systemReservedCgroup: /s}"),
        (
            "evictionHard[memory.available]",
            "evictionHard: {memory.available: 5%}",
            "evictionHard: {memory.available: 105%}",
        ),
        (
            "evictionSoftGracePeriod[memory.available]",
            "{evictionSoft: {memory.available: 5%}, evictionSoftGracePeriod: {memory.available: 1m}}",
            "evictionSoft: {memory.available: 5%}",
        ),
        (
            "evictionMinimumReclaim[memory.available]",
            "evictionMinimumReclaim: {memory.available: 0Mi}",
            "evictionMinimumReclaim: {memory.available: -1%}",
        ),
        ("featureGates[Nope]", "featureGates: {EventedPLEG: true}", "featureGates: {Nope: true}"),
        ("featureGates[NodeSwap]", "featureGates: {NodeSwap: true}", "featureGates: {NodeSwap: false}"),
    ];
    for (path, good, bad) in table {
        assert_eq!(errors(good), Vec::<String>::new(), "{good} must be accepted");
        let found = errors(bad);
        assert!(
            found.iter().any(|error| error.starts_with(&format!("{path}: invalid value "))),
            "{bad} must be refused at {path}, found {found:?}"
        );
    }
}

#[test]
fn all_errors_come_at_once() {
    let found = errors("{maxPods: -1, port: 70000, hairpinMode: x, runOnce: true, featureGates: {Nope: true}}");
    assert_eq!(found.len(), 5, "{found:?}");
    assert!(found.contains(&"maxPods: invalid value -1: must be 0 or more".to_owned()));
    assert!(found.contains(&"port: invalid value 70000: must be from 1 to 65535".to_owned()));
}

#[test]
fn the_machine_has_a_say() {
    let v1 = Machine { cgroup_root_exists: true, ..Machine::default() };
    let v2 = Machine { cgroup_v2: true, ..v1.clone() };
    let found = |yaml: &str, machine: &Machine| -> String {
        validate_on(&config(yaml), machine).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(found("{}", &v2), "");
    assert!(found("{}", &v1).contains("failCgroupV1: invalid value true"));
    assert_eq!(found("failCgroupV1: false", &v1), "");
    assert!(found("{failCgroupV1: false, singleProcessOOMKill: false}", &v1).contains("singleProcessOOMKill"));
    assert!(found("{failCgroupV1: false, memorySwap: {swapBehavior: LimitedSwap}}", &v1).contains("cgroup v2"));
    let swapping = Machine { swaps: vec!["/dev/sda2".into()], ..v2.clone() };
    assert!(found("{}", &swapping).contains("/dev/sda2"));
    assert_eq!(found("failSwapOn: false", &swapping), "");
    let rootless = Machine { cgroup_root_exists: false, ..v2.clone() };
    assert!(found("cgroupRoot: /none", &rootless).contains("cgroupRoot: invalid value \"/none\""));
    assert_eq!(found("{}", &rootless), "");
    let small = Machine { online_cpus: CpuSet::parse("0-1").ok(), ..v2 };
    assert_eq!(found("reservedSystemCPUs: 0-1", &small), "");
    assert!(found("reservedSystemCPUs: 0-2", &small).contains("online CPUs 0-1"));
    let full = Machine { memory_bytes: Some(2 << 30), root_dir_bytes: Some(10 << 30), ..small.clone() };
    assert_eq!(
        found(
            "{kubeReserved: {cpu: 1000m, memory: 1Gi}, systemReserved: {cpu: 1000m, memory: 924Mi}, evictionHard: {memory.available: 100Mi, nodefs.available: 10%}}",
            &full
        ),
        ""
    );
    let text = found(
        "{kubeReserved: {memory: 1Gi}, systemReserved: {memory: 925Mi}, evictionHard: {memory.available: 100Mi}}",
        &full,
    );
    let words =
        "Resource \"memory\" has a reservation of 2049Mi but capacity of 2Gi. Expected capacity >= reservation.";
    assert!(text.contains("invalid Node Allocatable configuration.") && text.contains(words), "{text}");
    assert!(found("kubeReserved: {cpu: 2001m}", &full).contains("Resource \"cpu\" has a reservation of 2001m"));
    assert_eq!(found("{kubeReserved: {cpu: 3000m}, reservedSystemCPUs: 0-1}", &full), "");
    let storage = "kubeReserved: {ephemeral-storage: 9Gi}, evictionHard: {nodefs.available: 20%}";
    assert!(found(&format!("{{{storage}}}"), &full).contains("ephemeral-storage"));
    assert_eq!(found(&format!("{{{storage}, localStorageCapacityIsolation: false}}"), &full), "");
    let part = crate::reserved::PARTS[0];
    let unfit = UnfitCgroup { part, cgroup: "/s".into(), why: "gone".into() };
    let text = found("{}", &Machine { unfit_cgroups: vec![unfit], ..full });
    assert_eq!(
        text,
        "systemReservedCgroup: invalid value \"/s\": Failed to enforce System Reserved Cgroup Limits on \"/s\": gone"
    );
    let nodes = "memoryManagerPolicy: Static, reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}, {numaNode: 1, limits: {memory: 1Gi}}]";
    let with = |rest: &str| found(&format!("{{{nodes}, {rest}}}"), &small);
    assert_eq!(with("kubeReserved: {memory: 1Gi}, systemReserved: {memory: 1Gi}"), "");
    assert_eq!(with("kubeReserved: {memory: 1948Mi}, evictionHard: {memory.available: 100Mi}"), "");
    let text = with("kubeReserved: {memory: 1Gi}, evictionHard: {memory.available: 100Mi}");
    assert!(text.starts_with("reservedMemory: invalid value 2Gi") && text.ends_with(": 1124Mi"), "{text}");
    let percent = "kubeReserved: {memory: 1Gi}, evictionHard: {memory.available: 25%}";
    assert_eq!(with(percent), "", "the size of the memory is not known");
    let sized = |bytes| {
        let machine = Machine { memory_bytes: Some(bytes), ..small.clone() };
        found(&format!("{{{nodes}, {percent}}}"), &machine)
    };
    assert_eq!(sized(4 << 30), "");
    assert!(sized(8 << 30).contains("reservedMemory"));
    assert!(found("memoryManagerPolicy: Static", &small).contains("above 0"));
}

#[test]
fn headers_are_not_shown() {
    let config = config("staticPodURLHeader: {Authorization: [\"Bearer t0ken\"]}");
    let shown = format!("{config:?}");
    assert!(shown.contains("Authorization") && !shown.contains("t0ken"), "{shown}");
    let mut findings = Findings::default();
    KubeletConfiguration::decode(&serde_json::json!({"staticPodURLHeader": {"A": "t0ken"}}), "", &mut findings);
    assert_eq!(findings.errors[0].to_string(), "staticPodURLHeader[A]: invalid value (masked): must be a list");
}

#[test]
fn odd_combinations_are_remarked() {
    assert_eq!(remarks(&config("{}")), Vec::<String>::new());
    assert_eq!(remarks(&config("{kubeletCgroups: /a, kubeReservedCgroup: /b}")).len(), 1);
    let mixed = remarks(&config(
        "{tlsCipherSuites: [TLS_RSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256], tlsCurvePreferences: \
         [29, 4588], tlsMinVersion: VersionTLS11}",
    ));
    assert_eq!(mixed.len(), 3, "{mixed:?}");
    assert!(mixed[0].starts_with("tlsCipherSuites[0]: \"TLS_RSA_WITH_AES_128_GCM_SHA256\" is not in the TLS library"));
    assert!(mixed[1].starts_with("tlsCurvePreferences[1]: 4588") && mixed[2].contains("TLS 1.2 is the least"));
    assert_eq!(remarks(&config("featureGates: {NodeSwap: true}")).len(), 1);
}

mod any_document {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(|number| json!(number)),
            "[a-zA-Z0-9./%<=:, -]{0,12}".prop_map(Value::from),
            Just(json!("5m")),
            Just(json!("10%")),
            Just(json!("100Mi")),
        ];
        leaf.prop_recursive(3, 12, 4, |inner| {
            let key = prop_oneof![
                "[a-zA-Z.]{0,10}",
                Just("memory.available".to_owned()),
                Just("enabled".to_owned()),
                Just("webhook".to_owned()),
                Just("limits".to_owned()),
            ];
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::btree_map(key, inner, 0..3)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn a_number_keeps_its_last_digit() {
        let document = serde_json::json!({"memoryThrottlingFactor": 9.156886829234789e235});
        let config = KubeletConfiguration::decode(&document, "", &mut Findings::default());
        let text = serde_json::to_string(&config).unwrap();
        let back: KubeletConfiguration = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&back).unwrap(), text);
    }

    proptest! {
        #[test]
        fn nothing_panics_and_what_decodes_round_trips(
            entries in proptest::collection::vec((0..KubeletConfiguration::FIELDS.len(), value()), 0..6)
        ) {
            let document: Map<String, Value> = entries
                .into_iter()
                .map(|(index, value)| (KubeletConfiguration::FIELDS[index].to_owned(), value))
                .collect();
            let document = Value::Object(document);
            let mut findings = Findings::default();
            let mut config = KubeletConfiguration::decode(&document, "", &mut findings);
            let gates = FeatureGates::from_map(&config.feature_gates);
            set_defaults(&mut config, Presence::of(&document), &gates);
            for error in validate(&config) {
                prop_assert!(!error.path.is_empty() && !error.allowed.is_empty());
            }
            validate_on(&config, &Machine::default());
            remarks(&config);
            if findings.errors.is_empty() {
                let text = serde_json::to_string(&config).unwrap();
                let back: KubeletConfiguration = serde_json::from_str(&text).unwrap();
                prop_assert_eq!(serde_json::to_string(&back).unwrap(), text);
            }
        }
    }
}
