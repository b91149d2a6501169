//! The requests that upstream was recorded sending, built from the same pods.

use std::collections::BTreeMap;

use super::*;
use crate::runtime::dns::ResolvConf;
use crate::runtime::env::{Inputs, environment};
use crate::runtime::env_files::EnvFiles;
use crate::runtime::sandbox_config::sandbox_plan;
use kubelet_model::node_facts::HostFacts;
use kubelet_model::objects::Services;
use kubelet_model::objects::named_objects::NamedObjects;
use kubelet_model::pod::spec::containers;

const UID: &str = "45bbbc9d-d0f2-4f05-b523-456180a33b77";
const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
const IMAGE_REF: &str = "sha256:4ea977a6837f0b238472be5bcbf66f06c2e6e92bb59281ee12523322b5f55a9b";

fn facts() -> NodeFacts {
    let mut facts = NodeFacts::new(HostFacts {
        swap_controller: true,
        memory_capacity: 24 << 30,
        hugepage_sizes: vec!["2MB".into(), "1GB".into()],
        ..HostFacts::default()
    });
    facts.cluster_dns = vec!["10.96.0.10".into()];
    facts.cluster_domain = "cluster.local".into();
    facts
}

/// A pod named `basic` whose spec and only container are changed as given.
fn pod(spec: serde_json::Value, container: serde_json::Value) -> Pod {
    let mut pod = serde_json::json!({
        "metadata": {"name": "basic", "namespace": "golden", "uid": UID, "labels": {"app": "basic", "x": "y"},
                     "annotations": {"kubernetes.io/config.source": "file", "note": "n"}},
        "spec": {"terminationGracePeriodSeconds": 2, "dnsPolicy": "ClusterFirst", "securityContext": {},
                 "enableServiceLinks": true, "containers": [{
            "name": "main", "image": IMAGE, "command": ["sh", "-c", "sleep 3600"],
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}]},
    });
    let merge = |into: &mut serde_json::Value, from: serde_json::Value| {
        for (key, value) in from.as_object().unwrap() {
            into[key] = value.clone();
        }
    };
    merge(&mut pod["spec"]["containers"][0], container);
    merge(&mut pod["spec"], spec);
    serde_json::from_value(pod).unwrap()
}

fn sandbox_with(pod: &Pod, facts: &NodeFacts) -> v1::PodSandboxConfig {
    let identity = PodIdentity::of(pod).unwrap();
    let host = ResolvConf { nameservers: vec!["10.255.255.53".into()], ..ResolvConf::default() };
    sandbox_plan(pod, &identity, 0, "/kubepods/besteffort/podX", &host, facts, PodRuntime::default()).unwrap().config
}

fn try_container(
    pod: &Pod,
    index: usize,
    change: impl Fn(&mut Instance<'_>),
) -> Result<v1::ContainerConfig, ContainerConfigError> {
    let identity = PodIdentity::of(pod).unwrap();
    let user = ImageUser { uid: Some(0), username: String::new() };
    let volume = |plugin, read_only| MountedVolume {
        host_path: format!("/pods/volumes/kubernetes.io~{plugin}/v").into(),
        read_only,
        managed: true,
        root: VolumeRoot::Plugin("kubernetes.io/x"),
        folder: None,
        gid: None,
    };
    let host = MountedVolume {
        host_path: "/host".into(),
        read_only: false,
        managed: false,
        root: VolumeRoot::HostPath,
        folder: None,
        gid: None,
    };
    let volumes = BTreeMap::from([
        ("v".to_owned(), volume("empty-dir", false)),
        ("config".to_owned(), volume("configmap", true)),
        ("host".to_owned(), host),
    ]);
    let ips = ["10.88.3.78".parse().unwrap()];
    let objects = NamedObjects::default();
    let inputs = Inputs { pod_ips: &ips, services: Services::default(), objects: &objects, files: &EnvFiles::new() };
    let environment = environment(pod, &containers(pod)[index], inputs, &facts())?;
    let mut instance = Instance {
        restart_count: 0,
        image_ref: IMAGE_REF,
        image_user: &user,
        volumes: &volumes,
        environment: &environment,
        sub_paths: &BTreeMap::new(),
        options: &RunContainerOptions::default(),
        images: &BTreeMap::new(),
        etc_hosts: Some(Path::new("/pods/etc-hosts")),
        termination_file: Some(Path::new("/pods/containers/main/13d0088e")),
        target: None,
        runtime: &PodRuntime::default(),
    };
    change(&mut instance);
    container_config(pod, &identity, &containers(pod)[index], &instance, &facts())
}

fn container(pod: &Pod) -> v1::ContainerConfig {
    try_container(pod, 0, |_| {}).unwrap()
}

fn map<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

fn strings<const N: usize>(list: [&str; N]) -> Vec<String> {
    list.map(str::to_owned).to_vec()
}

fn basic_namespaces() -> Option<v1::NamespaceOption> {
    Some(v1::NamespaceOption {
        pid: v1::NamespaceMode::Container.into(),
        userns_options: Some(v1::UserNamespace { mode: v1::NamespaceMode::Node.into(), ..Default::default() }),
        ..Default::default()
    })
}

fn basic_sandbox() -> v1::PodSandboxConfig {
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: "basic".into(),
            uid: UID.into(),
            namespace: "golden".into(),
            attempt: 0,
        }),
        hostname: "basic".into(),
        log_directory: format!("/var/log/pods/golden_basic_{UID}"),
        dns_config: Some(v1::DnsConfig {
            servers: strings(["10.96.0.10"]),
            searches: strings(["golden.svc.cluster.local", "svc.cluster.local", "cluster.local"]),
            options: strings(["ndots:5"]),
        }),
        labels: map([
            ("app", "basic"),
            ("x", "y"),
            ("io.kubernetes.pod.namespace", "golden"),
            ("io.kubernetes.pod.name", "basic"),
            ("io.kubernetes.pod.uid", UID),
        ]),
        annotations: map([("kubernetes.io/config.source", "file"), ("note", "n")]),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: "/kubepods/besteffort/podX".into(),
            security_context: Some(v1::LinuxSandboxSecurityContext {
                namespace_options: basic_namespaces(),
                seccomp: Some(v1::SecurityProfile::default()),
                ..Default::default()
            }),
            overhead: Some(v1::LinuxContainerResources::default()),
            resources: Some(v1::LinuxContainerResources { cpu_period: 100_000, cpu_shares: 2, ..Default::default() }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn basic_container() -> v1::ContainerConfig {
    let mount = |container_path: &str, host_path: &str| v1::Mount {
        container_path: container_path.into(),
        host_path: host_path.into(),
        ..Default::default()
    };
    let page = |page_size: &str| v1::HugepageLimit { page_size: page_size.into(), limit: 0 };
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: "main".into(), attempt: 0 }),
        image: Some(v1::ImageSpec {
            image: IMAGE_REF.into(),
            user_specified_image: IMAGE.into(),
            ..Default::default()
        }),
        command: strings(["sh", "-c", "sleep 3600"]),
        mounts: vec![
            mount("/etc/hosts", "/pods/etc-hosts"),
            mount("/dev/termination-log", "/pods/containers/main/13d0088e"),
        ],
        labels: map([
            ("io.kubernetes.container.name", "main"),
            ("io.kubernetes.pod.name", "basic"),
            ("io.kubernetes.pod.namespace", "golden"),
            ("io.kubernetes.pod.uid", UID),
        ]),
        annotations: map([
            ("io.kubernetes.container.terminationMessagePath", "/dev/termination-log"),
            ("io.kubernetes.pod.terminationGracePeriod", "2"),
            ("io.kubernetes.container.restartCount", "0"),
            ("io.kubernetes.container.hash", "a785d335"),
            ("io.kubernetes.container.terminationMessagePolicy", "File"),
        ]),
        log_path: "main/0.log".into(),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(v1::LinuxContainerResources {
                cpu_period: 100_000,
                cpu_shares: 2,
                oom_score_adj: 1000,
                hugepage_limits: vec![page("2MB"), page("1GB")],
                ..Default::default()
            }),
            security_context: Some(v1::LinuxContainerSecurityContext {
                namespace_options: basic_namespaces(),
                run_as_user: Some(v1::Int64Value { value: 0 }),
                masked_paths: strings([
                    "/proc/asound",
                    "/proc/acpi",
                    "/proc/interrupts",
                    "/proc/kcore",
                    "/proc/keys",
                    "/proc/latency_stats",
                    "/proc/timer_list",
                    "/proc/timer_stats",
                    "/proc/sched_debug",
                    "/proc/scsi",
                    "/sys/firmware",
                    "/sys/devices/virtual/powercap",
                ]),
                readonly_paths: strings(["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]),
                seccomp: Some(v1::SecurityProfile {
                    profile_type: v1::security_profile::ProfileType::Unconfined.into(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
        }),
        ..Default::default()
    }
}

fn none() -> serde_json::Value {
    serde_json::json!({})
}

/// Checks both requests of a pod against the basic ones, changed as `sandbox` and `main` say.
fn check(
    spec: serde_json::Value,
    of_container: serde_json::Value,
    sandbox: impl Fn(&mut v1::PodSandboxConfig),
    main: impl Fn(&mut v1::ContainerConfig),
) {
    let p = pod(spec, of_container);
    let (mut expected_sandbox, mut expected_container) = (basic_sandbox(), basic_container());
    sandbox(&mut expected_sandbox);
    main(&mut expected_container);
    assert_eq!(sandbox_with(&p, &facts()), expected_sandbox);
    assert_eq!(container(&p), expected_container);
}

fn linux(config: &mut v1::PodSandboxConfig) -> &mut v1::LinuxPodSandboxConfig {
    config.linux.as_mut().unwrap()
}

fn sandbox_security(config: &mut v1::PodSandboxConfig) -> &mut v1::LinuxSandboxSecurityContext {
    linux(config).security_context.as_mut().unwrap()
}

fn security(config: &mut v1::ContainerConfig) -> &mut v1::LinuxContainerSecurityContext {
    config.linux.as_mut().unwrap().security_context.as_mut().unwrap()
}

fn resources(config: &mut v1::ContainerConfig) -> &mut v1::LinuxContainerResources {
    config.linux.as_mut().unwrap().resources.as_mut().unwrap()
}

#[test]
fn plain() {
    check(none(), none(), |_| {}, |_| {});
}

#[test]
fn guaranteed() {
    let amounts = serde_json::json!({"cpu": "250m", "memory": "64Mi"});
    check(
        none(),
        serde_json::json!({"resources": {"limits": amounts, "requests": amounts}}),
        |s| {
            let r = linux(s).resources.as_mut().unwrap();
            (r.cpu_quota, r.cpu_shares, r.memory_limit_in_bytes) = (25_000, 256, 67_108_864);
        },
        |c| {
            let r = resources(c);
            (r.cpu_quota, r.cpu_shares, r.memory_limit_in_bytes) = (25_000, 256, 67_108_864);
            (r.memory_swap_limit_in_bytes, r.oom_score_adj) = (67_108_864, -997);
        },
    );
}

#[test]
fn host_network() {
    let node = i32::from(v1::NamespaceMode::Node);
    check(
        serde_json::json!({"hostNetwork": true}),
        none(),
        |s| {
            s.hostname.clear();
            s.dns_config = Some(v1::DnsConfig { servers: strings(["10.255.255.53"]), ..Default::default() });
            sandbox_security(s).namespace_options.as_mut().unwrap().network = node;
        },
        |c| security(c).namespace_options.as_mut().unwrap().network = node,
    );
}

#[test]
fn host_pid_and_ipc() {
    let node = i32::from(v1::NamespaceMode::Node);
    let change = move |n: &mut v1::NamespaceOption| (n.pid, n.ipc) = (node, node);
    check(
        serde_json::json!({"hostPID": true, "hostIPC": true}),
        none(),
        |s| change(sandbox_security(s).namespace_options.as_mut().unwrap()),
        |c| change(security(c).namespace_options.as_mut().unwrap()),
    );
}

#[test]
fn host_ports() {
    let text = r#"[{"name":"http","hostPort":18080,"containerPort":80,"protocol":"TCP"},{"hostPort":18053,"containerPort":53,"protocol":"UDP"}]"#;
    let ports: serde_json::Value = serde_json::from_str(text).unwrap();
    check(
        none(),
        serde_json::json!({"ports": ports}),
        |s| {
            s.port_mappings = vec![
                v1::PortMapping { container_port: 80, host_port: 18080, ..Default::default() },
                v1::PortMapping {
                    protocol: v1::Protocol::Udp.into(),
                    container_port: 53,
                    host_port: 18053,
                    ..Default::default()
                },
            ];
        },
        |c| {
            c.annotations.insert("io.kubernetes.container.ports".into(), text.into());
        },
    );
    let twice = serde_json::json!([{"containerPort": 80}, {"containerPort": 80}, {"name": "a", "containerPort": 1}, {"name": "a", "containerPort": 2}]);
    assert_eq!(sandbox_with(&pod(none(), serde_json::json!({"ports": twice})), &facts()).port_mappings.len(), 2);
}

#[test]
fn privileged() {
    check(
        none(),
        serde_json::json!({"securityContext": {"privileged": true}}),
        |s| sandbox_security(s).privileged = true,
        |c| security(c).privileged = true,
    );
}

#[test]
fn run_as() {
    check(
        serde_json::json!({"securityContext": {"runAsUser": 1001, "runAsGroup": 2002, "supplementalGroups": [4004], "fsGroup": 3003}}),
        none(),
        |s| {
            let c = sandbox_security(s);
            c.run_as_user = Some(v1::Int64Value { value: 1001 });
            c.run_as_group = Some(v1::Int64Value { value: 2002 });
            c.supplemental_groups = vec![3003, 4004];
        },
        |c| {
            let c = security(c);
            c.run_as_user = Some(v1::Int64Value { value: 1001 });
            c.run_as_group = Some(v1::Int64Value { value: 2002 });
            c.supplemental_groups = vec![3003, 4004];
        },
    );
}

#[test]
fn read_only_root() {
    check(
        none(),
        serde_json::json!({"securityContext": {"readOnlyRootFilesystem": true}}),
        |_| {},
        |c| security(c).readonly_rootfs = true,
    );
}

#[test]
fn full_name() {
    check(
        serde_json::json!({"hostname": "my-host", "subdomain": "sub", "setHostnameAsFQDN": true}),
        none(),
        |s| s.hostname = "my-host.sub.golden.svc.cluster.local".into(),
        |_| {},
    );
}

#[test]
fn terminal_and_stdin() {
    check(
        none(),
        serde_json::json!({"stdin": true, "stdinOnce": true, "tty": true, "workingDir": "/tmp"}),
        |_| {},
        |c| {
            (c.stdin, c.stdin_once, c.tty) = (true, true, true);
            c.working_dir = "/tmp".into();
        },
    );
    check(none(), serde_json::json!({"stdin": true}), |_| {}, |c| c.stdin = true);
}

#[test]
fn seccomp_and_sysctls() {
    check(
        serde_json::json!({"securityContext": {"seccompProfile": {"type": "RuntimeDefault"},
            "sysctls": [{"name": "net.ipv4.ip_local_port_range", "value": "20000 30000"}]}}),
        none(),
        |s| linux(s).sysctls = map([("net.ipv4.ip_local_port_range", "20000 30000")]),
        |c| security(c).seccomp = Some(v1::SecurityProfile::default()),
    );
}

#[test]
fn static_and_node_critical() {
    check(
        serde_json::json!({"priorityClassName": "system-node-critical"}),
        serde_json::json!({"resources": {"requests": {"cpu": "10m"}}}),
        |s| linux(s).resources.as_mut().unwrap().cpu_shares = 10,
        |c| (resources(c).cpu_shares, resources(c).oom_score_adj) = (10, -997),
    );
}

#[test]
fn out_of_memory() {
    let amounts = serde_json::json!({"memory": "16Mi"});
    check(
        none(),
        serde_json::json!({"resources": {"limits": amounts, "requests": amounts}}),
        |s| linux(s).resources.as_mut().unwrap().memory_limit_in_bytes = 16 << 20,
        |c| {
            let r = resources(c);
            (r.memory_limit_in_bytes, r.memory_swap_limit_in_bytes, r.oom_score_adj) = (16 << 20, 16 << 20, 999);
        },
    );
}

#[test]
fn volumes_come_first() {
    let p = pod(
        none(),
        serde_json::json!({"volumeMounts": [
        {"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": "r", "readOnly": true, "mountPropagation": "HostToContainer"}]}),
    );
    let mounts = container(&p).mounts;
    let seen: Vec<_> = mounts.iter().map(|m| (m.container_path.as_str(), m.readonly, m.propagation)).collect();
    assert_eq!(seen, [("/v", false, 0), ("/r", true, 1), ("/etc/hosts", false, 0), ("/dev/termination-log", false, 0)]);
    assert_eq!(mounts[0].host_path, "/pods/volumes/kubernetes.io~empty-dir/v");
    let own_hosts = pod(none(), serde_json::json!({"volumeMounts": [{"name": "v", "mountPath": "/etc/hosts"}]}));
    assert_eq!(container(&own_hosts).mounts.len(), 2);
    let no_message = pod(none(), serde_json::json!({"terminationMessagePath": ""}));
    assert_eq!(container(&no_message).mounts.len(), 1);
}

#[test]
fn restarts_are_numbered() {
    let c = try_container(&pod(none(), none()), 0, |i| i.restart_count = 2).unwrap();
    assert_eq!(c.metadata.unwrap().attempt, 2);
    assert_eq!(c.log_path, "main/2.log");
    assert_eq!(c.annotations["io.kubernetes.container.restartCount"], "2");
}

#[test]
fn refusals_name_the_cause() {
    let refused = |spec, c| try_container(&pod(spec, c), 0, |_| {}).unwrap_err().to_string();
    let mount = |extra: serde_json::Value| {
        let mut m = serde_json::json!({"name": "v", "mountPath": "/v"});
        for (k, v) in extra.as_object().unwrap() {
            m[k] = v.clone();
        }
        serde_json::json!({"volumeMounts": [m]})
    };
    assert_eq!(
        refused(none(), mount(serde_json::json!({"subPath": "a"}))),
        "failed to prepare subPath for volumeMount \"v\" of container \"main\""
    );
    assert_eq!(refused(none(), mount(serde_json::json!({"subPathExpr": "$(NONE)"}))), "missing value for NONE");
    assert!(refused(none(), mount(serde_json::json!({"name": "gone"}))).contains("cannot find volume \"gone\""));
    assert!(refused(none(), mount(serde_json::json!({"mountPropagation": "X"}))).contains("MountPropagation"));
    assert!(
        refused(none(), mount(serde_json::json!({"readOnly": true, "recursiveReadOnly": "Enabled"})))
            .contains("not supported by the runtime")
    );
    let only_where_possible = mount(serde_json::json!({"readOnly": true, "recursiveReadOnly": "IfPossible"}));
    assert!(!container(&pod(none(), only_where_possible)).mounts[0].recursive_read_only);
    let device = |name: &str, path: &str| serde_json::json!({"volumeDevices": [{"name": name, "devicePath": path}]});
    assert_eq!(refused(none(), device("gone", "/d")), "cannot find volume \"gone\" to pass into container \"main\"");
    assert_eq!(
        refused(none(), device("v", "must/be/absolute")),
        "error DevicePath `must/be/absolute` must be an absolute path"
    );
    assert!(
        refused(none(), serde_json::json!({"securityContext": {"runAsNonRoot": true}})).contains("will run as root")
    );
}

#[test]
fn parts_of_volumes_and_volumes_that_are_read_only() {
    let p = pod(
        none(),
        serde_json::json!({"env": [{"name": "A", "value": "one"}], "volumeMounts": [
            {"name": "v", "mountPath": "/v"},
            {"name": "v", "mountPath": "/part", "subPath": "a"},
            {"name": "config", "mountPath": "/config"},
            {"name": "config", "mountPath": "/file", "subPathExpr": "$(A)", "readOnly": true},
            {"name": "host", "mountPath": "/h"}]}),
    );
    let resolved = BTreeMap::from([(1, PathBuf::from("/pods/volume-subpaths/v/main/1")), (3, "/sub/3".into())]);
    let config = try_container(&p, 0, |i| i.sub_paths = Box::leak(Box::new(resolved.clone()))).unwrap();
    let mount = |container_path: &str, host_path: &str, readonly| v1::Mount {
        container_path: container_path.into(),
        host_path: host_path.into(),
        readonly,
        ..Default::default()
    };
    let expected = [
        mount("/v", "/pods/volumes/kubernetes.io~empty-dir/v", false),
        mount("/part", "/pods/volume-subpaths/v/main/1", false),
        mount("/config", "/pods/volumes/kubernetes.io~configmap/v", true),
        mount("/file", "/sub/3", true),
        mount("/h", "/host", false),
        mount("/etc/hosts", "/pods/etc-hosts", false),
        mount("/dev/termination-log", "/pods/containers/main/13d0088e", false),
    ];
    assert_eq!(config.mounts, expected);
    assert_eq!(config.envs, [v1::KeyValue { key: "A".into(), value: b"one".to_vec() }]);
}

#[test]
fn groups_of_volumes() {
    let volume = |gid| MountedVolume {
        host_path: "/v".into(),
        read_only: false,
        managed: true,
        root: VolumeRoot::Plugin("kubernetes.io/csi"),
        folder: None,
        gid,
    };
    let gids = [Some(9), None, Some(7), Some(9), Some(4)];
    let volumes = gids.iter().enumerate().map(|(index, gid)| (index.to_string(), volume(*gid))).collect();
    let none = || serde_json::json!({});
    let pod = |groups| pod(serde_json::json!({"securityContext": groups}), none());
    // fsGroup is no reason to leave it out, as upstream.
    assert_eq!(volume_groups(&pod(serde_json::json!({"fsGroup": 9, "supplementalGroups": [4]})), &volumes), [7, 9]);
    assert_eq!(volume_groups(&pod(none()), &volumes), [4, 7, 9]);

    let own = pod(serde_json::json!({"fsGroup": 2, "supplementalGroups": [3]}));
    let runtime = PodRuntime { volume_groups: vec![7, 9], ..PodRuntime::default() };
    let runtime: &'static PodRuntime = Box::leak(Box::new(runtime));
    let groups = |pod| {
        let config = try_container(pod, 0, |instance| instance.runtime = runtime).unwrap();
        config.linux.unwrap().security_context.unwrap().supplemental_groups
    };
    // Where they stand tells the container's from the sandbox's, as upstream.
    assert_eq!(groups(&own), [2, 3, 7, 9]);
    assert_eq!(groups(&pod(none())), [7, 9]);
    let (identity, host) = (PodIdentity::of(&own).unwrap(), ResolvConf::default());
    let plan = sandbox_plan(&own, &identity, 0, "/kubepods/podX", &host, &facts(), runtime.clone()).unwrap();
    assert_eq!(plan.config.linux.unwrap().security_context.unwrap().supplemental_groups, [2, 7, 9, 3]);
}

#[test]
fn a_path_of_the_host_behind_a_claim() {
    let volume = |root| MountedVolume {
        host_path: "/dev/x".into(),
        read_only: false,
        managed: false,
        root,
        folder: Some("pv".into()),
        gid: None,
    };
    let mut pod = pod(serde_json::json!({}), serde_json::json!({}));
    let claim = |name: &str| serde_json::json!({"name": name, "persistentVolumeClaim": {"claimName": "c"}});
    let all = serde_json::json!([claim("claimed"), claim("bound"), {"name": "own", "hostPath": {"path": "/dev/x"}}]);
    pod.spec.as_mut().unwrap().volumes = serde_json::from_value(all).unwrap();
    let volumes = [
        ("claimed", VolumeRoot::HostPath),
        ("bound", VolumeRoot::Plugin("kubernetes.io/local-volume")),
        ("own", VolumeRoot::HostPath),
    ];
    let volumes = volumes.map(|(name, root)| (name.to_owned(), volume(root))).into();
    // What the pod names itself is compared with the pod.
    assert_eq!(claimed_paths(&pod, &volumes), BTreeMap::from([("claimed".to_owned(), PathBuf::from("/dev/x"))]));
}
