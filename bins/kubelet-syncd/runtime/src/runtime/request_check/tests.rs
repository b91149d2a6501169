//! What the builders make of any pod passes; what grants more does not, by a list of mistakes and by past ones of upstream.

use std::collections::BTreeSet;

use bulkhead_cri::v1;
use bulkhead_cri::v1::security_profile::ProfileType;
use proptest::option::of as maybe;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::mutations::MISTAKES;
use super::setup::{CGROUP, PODS, Setup, UID, merge, pod};
use super::*;
use crate::runtime::fake_runtime::{simple, status, world};
use crate::runtime::userns::IdBlock;

/// A pod in which every mistake of the list can be made.
fn plain() -> Setup {
    let spec = json!({
        "securityContext": {
            "runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 3000, "supplementalGroupsPolicy": "Strict",
            "seccompProfile": {"type": "RuntimeDefault"}, "seLinuxOptions": {"type": "container_t"},
            "sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]},
        "hostUsers": false,
        "volumes": [{"name": "empty", "emptyDir": {}}, {"name": "config", "configMap": {"name": "c"}},
                    {"name": "host", "hostPath": {"path": "/host/path"}},
                    {"name": "image", "image": {"reference": "files:1"}}],
    });
    let main = json!({
        "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                            "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}},
        "resources": {"limits": {"memory": "64Mi"}, "requests": {"cpu": "100m"}},
        "ports": [{"containerPort": 80, "hostPort": 8080, "hostIP": "127.0.0.1"}],
        "volumeMounts": [{"name": "empty", "mountPath": "/v/empty"}, {"name": "empty", "mountPath": "/v/part", "subPath": "a/b"},
            {"name": "config", "mountPath": "/v/config"}, {"name": "host", "mountPath": "/v/host"},
            {"name": "host", "mountPath": "/v/deep", "readOnly": true, "recursiveReadOnly": "Enabled"},
            {"name": "image", "mountPath": "/v/image", "subPath": "x"}],
    });
    Setup::of(pod(spec, main))
}

#[test]
fn every_mistake_is_refused_by_its_field() {
    let setups = [plain(), {
        let mut limited = plain();
        let container = &mut limited.pod.spec.as_mut().unwrap().containers[0];
        container.resources = serde_json::from_value(json!({"limits": {"cpu": "500m"}})).unwrap();
        limited
    }];
    let mut seen = BTreeSet::new();
    for setup in &setups {
        let right = setup.requests().unwrap();
        assert_eq!(setup.check(&right), Ok(()));
        for mistake in MISTAKES {
            let mut wrong = right.clone();
            if (mistake.change)(setup, &mut wrong) {
                let refusal = setup.check(&wrong).expect_err(mistake.name);
                assert_eq!(refusal.field, mistake.field, "{}: {refusal}", mistake.name);
                seen.insert(mistake.name);
            }
        }
    }
    let unseen: Vec<_> = MISTAKES.iter().map(|m| m.name).filter(|name| !seen.contains(name)).collect();
    assert!(unseen.is_empty(), "no pod to make these mistakes in: {unseen:?}");
}

#[test]
fn a_claim_of_a_host_path_shows_that_path_alone() {
    let mut setup = plain();
    let spec = setup.pod.spec.as_mut().unwrap();
    let claim = json!({"name": "claimed", "persistentVolumeClaim": {"claimName": "c"}});
    spec.volumes.as_mut().unwrap().push(serde_json::from_value(claim).unwrap());
    let mount = json!({"name": "claimed", "mountPath": "/v/claimed"});
    spec.containers[0].volume_mounts.as_mut().unwrap().push(serde_json::from_value(mount).unwrap());
    setup.runtime.claimed_paths.insert("claimed".to_owned(), "/srv/claimed".into());
    let right = setup.requests().unwrap();
    assert_eq!(setup.check(&right), Ok(()));
    type Change = fn(&mut v1::Mount);
    let changes: [(Change, &str); 3] = [
        (|mount| mount.host_path = "/srv".into(), "mounts.host_path"),
        (|mount| mount.host_path = "/srv/claimed/../other".into(), "mounts.host_path"),
        (|mount| mount.selinux_relabel = true, "mounts.selinux_relabel"),
    ];
    for (change, field) in changes {
        let mut wrong = right.clone();
        change(wrong.container.mounts.iter_mut().find(|mount| mount.container_path == "/v/claimed").unwrap());
        assert_eq!(setup.check(&wrong).unwrap_err().field, field);
    }
}

/// A volume's folder has another name than the pod's where something else names the volume; which part of it is shown to whom does not
/// depend on that.
#[test]
fn a_part_of_a_volume_by_its_folder() {
    let of_kind = |source: Value| {
        let mut volume = json!({"name": "disk"});
        merge(&mut volume, source);
        let mut setup = plain();
        let spec = setup.pod.spec.as_mut().unwrap();
        spec.volumes.as_mut().unwrap().push(serde_json::from_value(volume).unwrap());
        let mount = json!({"name": "disk", "mountPath": "/v/disk", "subPath": "a"});
        spec.containers[0].volume_mounts.as_mut().unwrap().push(serde_json::from_value(mount).unwrap());
        // The setup knows of nowhere else where such a volume could be.
        setup.runtime.claimed_paths.insert("disk".to_owned(), "/srv/disk".into());
        setup
    };
    let kinds = [
        (json!({"persistentVolumeClaim": {"claimName": "c"}}), true),
        (json!({"ephemeral": {}}), true),
        (json!({"gcePersistentDisk": {"pdName": "disk-1"}}), true),
        (json!({"awsElasticBlockStore": {"volumeID": "vol-17"}}), true),
        (json!({"vsphereVolume": {"volumePath": "[ds] disk.vmdk"}}), true),
        (json!({"csi": {"driver": "d"}}), false),
        (json!({"emptyDir": {}}), false),
    ];
    for (kind, any_name) in kinds {
        let setup = of_kind(kind.clone());
        let right = setup.requests().unwrap();
        let own = |path: &str| format!("{PODS}/{UID}/volume-subpaths/{path}");
        let index = setup.container().volume_mounts.unwrap().len() - 1;
        for (path, fits) in [
            (own(&format!("disk/main/{index}")), true),
            (own(&format!("pd.csi.storage.gke.io-disk-1/main/{index}")), any_name),
            (own(&format!("disk/other/{index}")), false),
            (own(&format!("disk/main/{}", index + 1)), false),
            (own(&format!("../main/{index}")), false),
            (own(&format!("a/b/main/{index}")), false),
            (own(""), false),
            ("/srv/disk".to_owned(), false),
        ] {
            let mut asked = right.clone();
            let mounts = &mut asked.container.mounts;
            mounts.iter_mut().find(|mount| mount.container_path == "/v/disk").unwrap().host_path.clone_from(&path);
            assert_eq!(setup.check(&asked).is_ok(), fits, "{path} of {kind}");
        }
    }
}

#[test]
fn what_is_refused_says_what_and_why() {
    let setup = plain();
    let mut requests = setup.requests().unwrap();
    requests.container.linux.as_mut().unwrap().security_context.as_mut().unwrap().privileged = true;
    assert_eq!(
        setup.check(&requests).unwrap_err().to_string(),
        "refused to ask the runtime for more than the pod's spec allows: privileged is true, allowed: false"
    );
}

#[test]
fn less_than_the_spec_is_no_mistake() {
    let everything = json!({"hostNetwork": true, "hostPID": true, "hostIPC": true});
    let main = json!({"securityContext": {"privileged": true, "procMount": "Unmasked", "seccompProfile": {"type": "Unconfined"},
        "appArmorProfile": {"type": "Unconfined"}, "capabilities": {"add": ["ALL"]}}});
    let setup = Setup::of(pod(everything, main));
    let mut requests = setup.requests().unwrap();
    assert_eq!(setup.check(&requests), Ok(()));
    let context = requests.container.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    *context = v1::LinuxContainerSecurityContext {
        run_as_user: Some(v1::Int64Value { value: 0 }),
        no_new_privs: true,
        readonly_rootfs: true,
        seccomp: Some(v1::SecurityProfile::default()),
        capabilities: Some(v1::Capability { drop_capabilities: vec!["ALL".into()], ..Default::default() }),
        namespace_options: Some(v1::NamespaceOption { pid: v1::NamespaceMode::Container.into(), ..Default::default() }),
        ..Default::default()
    };
    assert_eq!(setup.check(&requests), Ok(()));
}

#[test]
fn variables_that_a_spec_may_have() {
    let main = json!({
        "env": [{"name": "PLAIN", "value": "1"}, {"name": "EMPTY"}, {"name": "MADE", "value": "$(PLAIN)s"},
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "envFrom": [{"prefix": "ALL_", "configMapRef": {"name": "c"}}]});
    let of = |links: bool| Setup::of(pod(json!({"enableServiceLinks": links}), main.clone()));
    let (linked, alone) = (of(true), of(false));
    let table = [
        ("PLAIN", "1", true, true),
        ("PLAIN", "2", false, false),
        ("EMPTY", "", true, true),
        ("EMPTY", "1", false, false),
        ("MADE", "anything", true, true),
        ("NAME", "anything", true, true),
        ("ALL_OF_IT", "anything", true, true),
        ("OTHER", "1", false, false),
        ("WEB_SERVICE_HOST", "10.0.0.1", true, false),
        ("WEB_PORT_80_TCP_ADDR", "10.0.0.1", true, false),
        ("KUBERNETES_SERVICE_PORT_HTTPS", "443", true, true),
        ("web_SERVICE_HOST", "10.0.0.1", false, false),
    ];
    for (name, value, with_links, without) in table {
        for (setup, fits) in [(&linked, with_links), (&alone, without)] {
            let mut requests = setup.requests().unwrap();
            requests.container.envs.truncate(setup.options.envs.len());
            requests.container.envs.push(v1::KeyValue { key: name.into(), value: value.into() });
            let said = setup.check(&requests);
            assert_eq!(said.is_ok(), fits, "{name}={value}: {said:?}");
        }
    }
    // A value may be a secret, and is told to nobody.
    let mut requests = linked.requests().unwrap();
    requests.container.envs[0].value = b"all".to_vec();
    let refusal = linked.check(&requests).unwrap_err().to_string();
    assert!(refusal.contains("[\"G\"]") && !refusal.contains("all\""), "{refusal}");
}

/// CVE-2019-11245: the first start of a container ran as the image's user, the second one, with the image there already,
/// as root.
#[test]
fn a_restart_keeps_the_users_of_images() {
    let of_image = |uid, username: &str| {
        let image_user = ImageUser { uid, username: username.to_owned() };
        Setup { image_user, ..Setup::of(pod(json!({}), json!({}))) }
    };
    let as_root = |setup: &Setup, user: Option<i64>| {
        let mut requests = setup.requests().unwrap();
        assert_eq!(setup.check(&requests), Ok(()));
        let context = requests.container.linux.as_mut().unwrap().security_context.as_mut().unwrap();
        context.run_as_user = user.map(|value| v1::Int64Value { value });
        context.run_as_username.clear();
        setup.check(&requests)
    };
    for user in [Some(0), None] {
        assert_eq!(as_root(&of_image(Some(1000), ""), user).unwrap_err().field, "run_as_user");
        assert!(as_root(&of_image(None, "www"), user).is_err());
    }
    // With runAsNonRoot it is refused whatever was believed about the image.
    let mut must_not = Setup::of(pod(json!({"securityContext": {"runAsNonRoot": true}}), json!({})));
    must_not.image_user = ImageUser { uid: Some(1000), username: String::new() };
    let mut requests = must_not.requests().unwrap();
    assert_eq!(must_not.check(&requests), Ok(()));
    for user in [None, Some(v1::Int64Value { value: 0 })] {
        requests.container.linux.as_mut().unwrap().security_context.as_mut().unwrap().run_as_user = user;
        must_not.image_user = ImageUser::default();
        assert_eq!(must_not.check(&requests).unwrap_err().field, "run_as_user");
    }
}

/// CVE-2023-2431: a seccomp profile of type Localhost without a name ran the container unconfined.
#[test]
fn a_profile_without_a_name_is_not_no_profile() {
    for (name, place) in [(json!(null), 0), (json!(""), 0), (json!(null), 1), (json!(""), 1), (json!("../x"), 1)] {
        let profile = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": name}});
        let (spec, main) = match place {
            0 => (json!({"securityContext": profile}), json!({})),
            _ => (json!({}), json!({"securityContext": profile})),
        };
        let setup = Setup::of(pod(spec, main));
        assert!(setup.requests().is_none(), "the builder refuses it, too");
        // What a request would be if it did not.
        let mut requests = Setup::of(pod(json!({}), json!({}))).requests().unwrap();
        for (kind, name) in [
            (ProfileType::Unconfined, ""),
            (ProfileType::Localhost, ""),
            (ProfileType::Localhost, "/var/lib/kubelet/seccomp"),
            (ProfileType::RuntimeDefault, ""),
        ] {
            let asked = v1::SecurityProfile { profile_type: kind.into(), localhost_ref: name.to_owned() };
            requests.container.linux.as_mut().unwrap().security_context.as_mut().unwrap().seccomp = Some(asked);
            assert_eq!(setup.check(&requests).unwrap_err().field, "seccomp");
        }
        requests.container.linux.as_mut().unwrap().security_context.as_mut().unwrap().seccomp = None;
        assert_eq!(setup.check(&requests).unwrap_err().field, "seccomp");
    }
}

#[test]
fn a_debugger_sees_the_processes_of_its_target_alone() {
    let debugger = json!([{"name": "debug", "image": "i", "targetContainerName": "main", "env": [{"name": "A", "value": "x"}]},
            {"name": "other", "image": "i", "env": [{"name": "A", "value": "x"}]}]);
    let mut setup = Setup::of(pod(json!({"ephemeralContainers": debugger}), json!({})));
    setup.name = "debug".into();
    setup.target = Some("0123".into());
    let right = setup.requests().unwrap();
    assert_eq!(setup.check(&right), Ok(()));
    let mut wrong = right.clone();
    let context = wrong.container.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    context.namespace_options.as_mut().unwrap().target_id = "4567".into();
    assert_eq!(setup.check(&wrong).unwrap_err().field, "target_id");
    setup.name = "other".into();
    let other = setup.requests().unwrap();
    assert_eq!(setup.check(&other).unwrap_err().field, "target_id");
}

#[test]
fn cgroups_of_both_drivers() {
    let setup = plain();
    let uid = CGROUP.rsplit_once("pod").unwrap().1;
    let identity = PodIdentity::of(&setup.pod).unwrap();
    let slice =
        format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice", uid.replace('-', "_"));
    for (made, asked, fits) in [
        (CGROUP, CGROUP, true),
        (&*slice, &*slice, true),
        (CGROUP, "/kubepods", false),
        ("/kubepods", "/kubepods", false),
        ("/kubepods/podother", "/kubepods/podother", false),
        (&*slice, CGROUP, false),
        ("", "", true),
        ("", CGROUP, false),
        ("", "/", false),
        (CGROUP, "", false),
    ] {
        let (facts, runtime) = (&setup.facts, &setup.runtime);
        let known = RequestContext { pod: &setup.pod, identity: &identity, facts, cgroup_parent: made, runtime };
        let mut config = setup.requests().unwrap().sandbox;
        config.linux.as_mut().unwrap().cgroup_parent = asked.to_owned();
        assert_eq!(sandbox(&known, &config, "").is_ok(), fits, "{asked}");
    }
}

#[tokio::test]
async fn a_refused_request_is_not_sent() {
    let mut w = world();
    // As if what writes the pod's files had them in another place than they have to be.
    w.facts.pods_dir = "/elsewhere".into();
    let refused = counter().unwrap();
    w.manager = w.manager.with_refusals(refused.clone());
    let result = w.sync(&simple(&["a"]), &status(vec![])).await;
    let error = result.actions[0].error.clone().unwrap();
    let text = error.message.as_str();
    assert_eq!(error.reason, "CreateContainerConfigError");
    assert!(
        text.starts_with("refused to ask the runtime for more than the pod's spec allows: mounts.host_path"),
        "{text}"
    );
    assert_eq!(w.fake.events(), [format!("event Warning Failed spec.containers{{a}} Error: {text}")]);
    assert_eq!(w.fake.cri(), ["ImageStatus i"]);
    assert_eq!(refused.with_label_values(&["CreateContainer", "mounts.host_path"]).get(), 1);
}

/// A key that is there or not.
fn field<T: Into<Value> + Clone + std::fmt::Debug + 'static>(
    key: &'static str,
    values: Vec<T>,
) -> impl Strategy<Value = Value> {
    maybe(select(values)).prop_map(move |value| value.map_or_else(|| json!({}), |value| json!({key: value.into()})))
}

fn object(parts: Vec<BoxedStrategy<Value>>) -> BoxedStrategy<Value> {
    let merged = parts.prop_map(|parts| {
        let mut whole = json!({});
        parts.into_iter().for_each(|part| merge(&mut whole, part));
        whole
    });
    merged.boxed()
}

fn profiles() -> Vec<Value> {
    let kinds = ["RuntimeDefault", "Unconfined", "Localhost"];
    let mut all: Vec<Value> = kinds.map(|kind| json!({"type": kind})).to_vec();
    all.push(json!({"type": "Localhost", "localhostProfile": "profiles/./strict.json"}));
    all
}

fn user_fields() -> Vec<BoxedStrategy<Value>> {
    vec![
        field("runAsUser", vec![0, 1, 1000]).boxed(),
        field("runAsGroup", vec![0, 7]).boxed(),
        field("runAsNonRoot", vec![true, false]).boxed(),
        field("seccompProfile", profiles()).boxed(),
        field("appArmorProfile", profiles()).boxed(),
        field("seLinuxOptions", vec![json!({"level": "s0:c1"}), json!({"user": "u", "type": "t"})]).boxed(),
    ]
}

fn pod_context() -> BoxedStrategy<Value> {
    let mut parts = user_fields();
    parts.push(field("fsGroup", vec![0, 9]).boxed());
    parts.push(field("supplementalGroups", vec![json!([1, 2]), json!([])]).boxed());
    parts.push(field("supplementalGroupsPolicy", vec!["Merge", "Strict"]).boxed());
    let sysctls =
        json!([{"name": "net/ipv4/conf/eth0.1/x", "value": "1"}, {"name": "kernel.shm_rmid_forced", "value": "0"}]);
    parts.push(field("sysctls", vec![sysctls]).boxed());
    object(parts)
}

fn container_context() -> BoxedStrategy<Value> {
    let mut parts = user_fields();
    let flags = vec![true, false];
    parts.push(field("privileged", flags.clone()).boxed());
    parts.push(field("allowPrivilegeEscalation", flags.clone()).boxed());
    parts.push(field("readOnlyRootFilesystem", flags).boxed());
    parts.push(field("procMount", vec!["Default", "Unmasked"]).boxed());
    let lists = [
        json!({}),
        json!({"add": ["NET_ADMIN", "CAP_SYS_TIME"]}),
        json!({"add": ["ALL"], "drop": ["MKNOD"]}),
        json!({"drop": ["ALL"]}),
    ];
    parts.push(field("capabilities", lists.to_vec()).boxed());
    object(parts)
}

fn resources() -> BoxedStrategy<Value> {
    let limits = object(vec![
        field("cpu", vec!["1m", "500m", "2"]).boxed(),
        field("memory", vec!["1", "64Mi", "1500M", "0"]).boxed(),
        field("hugepages-2Mi", vec!["4Mi"]).boxed(),
        field("hugepages-1Gi", vec!["1Gi"]).boxed(),
    ]);
    let requests = object(vec![field("cpu", vec!["100m"]).boxed(), field("memory", vec!["32Mi", "64Mi"]).boxed()]);
    (limits, requests).prop_map(|(limits, requests)| json!({"limits": limits, "requests": requests})).boxed()
}

fn mounts() -> BoxedStrategy<Value> {
    let one = object(vec![
        select(vec!["empty", "config", "secret", "projected", "downward", "image", "host"])
            .prop_map(|n| json!({"name": n}))
            .boxed(),
        field("readOnly", vec![true, false]).boxed(),
        field("subPath", vec!["", "a/b"]).boxed(),
        field("subPathExpr", vec!["", "$(A)/c"]).boxed(),
        field("mountPropagation", vec!["None", "HostToContainer", "Bidirectional"]).boxed(),
        field("recursiveReadOnly", vec!["Disabled", "IfPossible", "Enabled"]).boxed(),
    ]);
    let paths = ["/v/a", "v/b", "/etc/hosts", "/dev/termination-log"];
    proptest::collection::vec(one, 0..4)
        .prop_map(move |mut list| {
            list.iter_mut().zip(paths).for_each(|(mount, path)| mount["mountPath"] = json!(path));
            json!(list)
        })
        .boxed()
}

fn any_pod() -> impl Strategy<Value = Setup> {
    let flag = |key: &'static str| field(key, vec![true, false]).boxed();
    let spec = object(vec![
        flag("hostNetwork"),
        flag("hostPID"),
        flag("hostIPC"),
        flag("shareProcessNamespace"),
        flag("hostUsers"),
        pod_context().prop_map(|context| json!({"securityContext": context})).boxed(),
        maybe(resources()).prop_map(|r| r.map_or_else(|| json!({}), |r| json!({"resources": r}))).boxed(),
        field("priorityClassName", vec!["system-node-critical"]).boxed(),
        field("initContainers", vec![json!([{"name": "init", "securityContext": {"privileged": true}}])]).boxed(),
    ]);
    let main = object(vec![
        container_context().prop_map(|context| json!({"securityContext": context})).boxed(),
        resources().prop_map(|resources| json!({"resources": resources})).boxed(),
        mounts().prop_map(|mounts| json!({"volumeMounts": mounts})).boxed(),
        field("terminationMessagePath", vec!["", "relative/log"]).boxed(),
        field("ports", vec![json!([{"containerPort": 80, "hostPort": 8080, "hostIP": "::1", "protocol": "UDP"}])])
            .boxed(),
    ]);
    let facts = (any::<[bool; 5]>(), 0u32..3);
    let image = select(vec![(Some(0), ""), (Some(1000), ""), (None, ""), (None, "www")]);
    let annotation = maybe(select(vec!["runtime/default", "unconfined", "localhost/strict", "nonsense"]));
    (spec, main, facts, image, annotation).prop_map(|(mut spec, main, (flags, cpus), (uid, username), annotation)| {
        let kinds = json!([{"name": "empty", "emptyDir": {}}, {"name": "config", "configMap": {"name": "c"}},
            {"name": "secret", "secret": {"secretName": "s"}}, {"name": "projected", "projected": {"sources": []}},
            {"name": "downward", "downwardAPI": {}}, {"name": "image", "image": {"reference": "files:1"}}, {"name": "host", "hostPath": {"path": "/host/path"}}]);
        spec["volumes"] = kinds;
        let mut pod = pod(spec, main);
        if let Some(value) = annotation {
            let key = "container.apparmor.security.beta.kubernetes.io/main".to_owned();
            pod.metadata.annotations.get_or_insert_default().insert(key, value.to_owned());
        }
        let mut setup = Setup::of(pod);
        let [seccomp, v2, swap, selinux, quota] = flags;
        setup.facts.seccomp_default = seccomp;
        setup.facts.cpu_cfs_quota = quota;
        setup.facts.host.cgroup_v2 = v2;
        setup.facts.host.swap_controller = swap;
        setup.facts.host.swap_capacity = 1 << 30;
        setup.facts.host.selinux_enabled = selinux;
        setup.facts.host.hugepage_sizes = vec!["2MB".into(), "1GB".into()];
        setup.facts.host.thermal_throttle_cpus = (0..cpus).collect();
        setup.facts.swap_behavior = kubelet_model::node_facts::SwapBehavior::LimitedSwap;
        setup.runtime.features.recursive_read_only_mounts = seccomp;
        setup.image_user = ImageUser { uid, username: username.to_owned() };
        setup
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn what_the_builders_make_is_right(setup in any_pod()) {
        if let Some(requests) = setup.requests() {
            prop_assert_eq!(setup.check(&requests), Ok(()));
        }
    }

    #[test]
    fn no_mistake_passes(setup in any_pod(), mistake in select(MISTAKES.iter().collect::<Vec<_>>())) {
        if let Some(mut requests) = setup.requests()
            && (mistake.change)(&setup, &mut requests)
        {
            prop_assert!(setup.check(&requests).is_err(), "{}", mistake.name);
        }
    }

    #[test]
    fn nobody_gets_the_users_of_another(setup in any_pod(), first in select(vec![0u32, 65_536, 196_608])) {
        let mut other = setup.clone();
        other.runtime.users = Some(IdBlock { first, length: 65_536 });
        if let Some(requests) = other.requests() {
            prop_assert!(setup.check(&requests).is_err());
        }
    }
}
