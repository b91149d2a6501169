//! Security contexts of small pods, and what is refused.

use super::*;
use kubelet_model::node_facts::HostFacts;

fn pod(pod_context: serde_json::Value, container_context: serde_json::Value) -> Pod {
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"securityContext": pod_context, "containers": [{"name": "c", "securityContext": container_context}]},
    }))
    .unwrap()
}

fn facts() -> NodeFacts {
    NodeFacts::new(HostFacts::default())
}

fn build(pod: &Pod, image: &ImageUser, facts: &NodeFacts) -> Result<v1::LinuxContainerSecurityContext, SecurityError> {
    container_security_context(pod, &containers(pod)[0], image, None, None, facts)
}

#[test]
fn default_context_is_the_recorded_one() {
    let p = pod(serde_json::json!({}), serde_json::Value::Null);
    let c = build(&p, &ImageUser { uid: Some(0), username: String::new() }, &facts()).unwrap();
    assert_eq!(c.run_as_user, Some(v1::Int64Value { value: 0 }));
    assert_eq!(c.masked_paths.len(), 12);
    assert_eq!(c.readonly_paths.len(), 5);
    assert_eq!(c.seccomp.unwrap().profile_type, i32::from(v1::security_profile::ProfileType::Unconfined));
    let namespaces = c.namespace_options.unwrap();
    assert_eq!((namespaces.network, namespaces.pid, namespaces.ipc), (0, 1, 0));
    assert_eq!(namespaces.userns_options.unwrap().mode, i32::from(v1::NamespaceMode::Node));
    assert!(c.capabilities.is_none() && c.apparmor.is_none() && !c.no_new_privs);
    let s = sandbox_security_context(&p, None, &[]).unwrap();
    assert_eq!(s.seccomp.unwrap().profile_type, 0);
    assert!(s.run_as_user.is_none() && !s.privileged);
}

#[test]
fn pod_values_apply_where_the_container_has_none() {
    let p = pod(
        serde_json::json!({"runAsUser": 1001, "runAsGroup": 2002, "fsGroup": 3003, "supplementalGroups": [4004],
            "supplementalGroupsPolicy": "Strict", "seLinuxOptions": {"level": "s0"}}),
        serde_json::json!({"runAsUser": 7, "allowPrivilegeEscalation": false, "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]},
            "procMount": "Unmasked", "readOnlyRootFilesystem": true}),
    );
    let c = build(&p, &ImageUser::default(), &facts()).unwrap();
    assert_eq!((c.run_as_user.unwrap().value, c.run_as_group.unwrap().value), (7, 2002));
    assert_eq!(c.supplemental_groups, [3003, 4004]);
    assert_eq!(c.supplemental_groups_policy, i32::from(v1::SupplementalGroupsPolicy::Strict));
    assert!(c.no_new_privs && c.readonly_rootfs && c.masked_paths.is_empty() && c.readonly_paths.is_empty());
    let caps = c.capabilities.unwrap();
    assert_eq!((caps.add_capabilities, caps.drop_capabilities), (vec!["NET_ADMIN".to_owned()], vec!["ALL".to_owned()]));
    let s = sandbox_security_context(&p, None, &[9]).unwrap();
    assert_eq!((s.run_as_user.unwrap().value, s.supplemental_groups), (1001, vec![3003, 9, 4004]));
    assert_eq!(s.selinux_options.unwrap().level, "s0");
}

#[test]
fn seccomp_and_apparmor() {
    use v1::security_profile::ProfileType;
    let check = |pod_context, container_context, facts: &NodeFacts| {
        let c = build(&pod(pod_context, container_context), &ImageUser::default(), facts).unwrap();
        let s = c.seccomp.unwrap();
        (s.profile_type, s.localhost_ref)
    };
    let none = || serde_json::json!({});
    let of = |t: &str| serde_json::json!({"seccompProfile": {"type": t}});
    let mut with_default = facts();
    with_default.seccomp_default = true;
    assert_eq!(check(none(), none(), &with_default).0, i32::from(ProfileType::RuntimeDefault));
    assert_eq!(check(of("RuntimeDefault"), none(), &facts()).0, i32::from(ProfileType::RuntimeDefault));
    assert_eq!(check(of("RuntimeDefault"), of("Unconfined"), &facts()).0, i32::from(ProfileType::Unconfined));
    let local = serde_json::json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "profiles/a.json"}});
    let expected = (i32::from(ProfileType::Localhost), "/var/lib/kubelet/seccomp/profiles/a.json".to_owned());
    assert_eq!(check(local, none(), &facts()), expected);
    for bad in ["../../etc/shadow", "/etc/shadow", "a/../../b"] {
        let p = pod(serde_json::json!({"seccompProfile": {"type": "Localhost", "localhostProfile": bad}}), none());
        assert!(matches!(build(&p, &ImageUser::default(), &facts()), Err(SecurityError::SeccompProfileEscapes(_))));
    }
    let p = pod(none(), serde_json::json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "k8s-x"}}));
    let c = build(&p, &ImageUser::default(), &facts()).unwrap();
    assert_eq!(c.apparmor.unwrap().localhost_ref, "k8s-x");
}

#[test]
fn non_root_is_verified() {
    let verify = |context: serde_json::Value, image: ImageUser| {
        let p = pod(serde_json::json!({"runAsNonRoot": true}), context);
        verify_run_as_non_root(&p, &PodIdentity::of(&p).unwrap(), &containers(&p)[0], &image).map_err(|e| e.to_string())
    };
    let uid = |n| ImageUser { uid: Some(n), username: String::new() };
    assert_eq!(verify(serde_json::json!({}), uid(5)), Ok(()));
    assert_eq!(verify(serde_json::json!({"runAsUser": 5}), uid(0)), Ok(()));
    assert_eq!(verify(serde_json::json!({"runAsNonRoot": false}), uid(0)), Ok(()));
    assert_eq!(
        verify(serde_json::json!({}), uid(0)).unwrap_err(),
        "container has runAsNonRoot and image will run as root (pod: \"p_n(u)\", container: c)"
    );
    assert_eq!(
        verify(serde_json::json!({"runAsUser": 0}), uid(5)).unwrap_err(),
        "container's runAsUser breaks non-root policy (pod: \"p_n(u)\", container: c)"
    );
    assert_eq!(
        verify(serde_json::json!({}), ImageUser { uid: None, username: "www".into() }).unwrap_err(),
        "container has runAsNonRoot and image has non-numeric user (www), cannot verify user is non-root (pod: \"p_n(u)\", container: c)"
    );
}

#[test]
fn namespaces_follow_the_pod() {
    let of = |spec: serde_json::Value| -> Pod {
        serde_json::from_value(serde_json::json!({"metadata": {}, "spec": spec})).unwrap()
    };
    let modes = |p: &Pod| {
        let n = namespace_options(p, None);
        (n.network, n.pid, n.ipc)
    };
    let (node, of_pod, own) = (2, 0, 1);
    assert_eq!(modes(&of(serde_json::json!({"containers": []}))), (of_pod, own, of_pod));
    assert_eq!(modes(&of(serde_json::json!({"containers": [], "hostNetwork": true}))), (node, own, of_pod));
    assert_eq!(
        modes(&of(serde_json::json!({"containers": [], "hostPID": true, "hostIPC": true}))),
        (of_pod, node, node)
    );
    assert_eq!(
        modes(&of(serde_json::json!({"containers": [], "shareProcessNamespace": true}))),
        (of_pod, of_pod, of_pod)
    );
    let block = IdBlock { first: 131_072, length: 65_536 };
    let users = namespace_options(&of(serde_json::json!({"containers": []})), Some(block)).userns_options.unwrap();
    let ids = vec![v1::IdMapping { host_id: 131_072, container_id: 0, length: 65_536 }];
    assert_eq!((users.mode, &users.uids, &users.gids), (of_pod, &ids, &ids));
    let p = pod(serde_json::json!({}), serde_json::json!({}));
    let c = container_security_context(&p, &containers(&p)[0], &ImageUser::default(), Some("abc"), None, &facts());
    let c = c.unwrap();
    let n = c.namespace_options.unwrap();
    assert_eq!((n.pid, n.target_id.as_str()), (i32::from(v1::NamespaceMode::Target), "abc"));
}

#[test]
fn thermal_paths_and_sysctls() {
    let mut facts = facts();
    facts.host.thermal_throttle_cpus = vec![0, 3];
    let p = pod(
        serde_json::json!({"sysctls": [{"name": "net/ipv4/conf/eth0.1/x", "value": "1"}, {"name": "kernel.shm_rmid_forced", "value": "0"}]}),
        serde_json::json!({}),
    );
    let c = build(&p, &ImageUser::default(), &facts).unwrap();
    assert_eq!(
        c.masked_paths[12..],
        ["/sys/devices/system/cpu/cpu0/thermal_throttle", "/sys/devices/system/cpu/cpu3/thermal_throttle"]
    );
    let sysctls = sandbox_sysctls(&p);
    assert_eq!(sysctls["net.ipv4.conf.eth0/1.x"], "1");
    assert_eq!(sysctls["kernel.shm_rmid_forced"], "0");
}
