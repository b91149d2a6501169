//! Each handler by a table, their order, and what must hold for all pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Taint};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use bulkhead_types::Quantity;
use kubelet_model::pod::resources::Amounts;

const GIB: i64 = 1 << 30;

fn pod(name: &str, spec: Value) -> Arc<Pod> {
    let mut spec = spec;
    if spec.get("containers").is_none() {
        spec["containers"] = json!([{"name": "main"}]);
    }
    let pod = json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": spec});
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn wanting(name: &str, requests: Value) -> Arc<Pod> {
    pod(name, json!({"containers": [{"name": "main", "resources": {"requests": requests}}]}))
}

fn critical(pod: &Arc<Pod>) -> Arc<Pod> {
    let mut pod = Pod::clone(pod);
    pod.spec.as_mut().unwrap().priority = Some(2_000_000_000);
    Arc::new(pod)
}

fn is_static(pod: &Arc<Pod>) -> Arc<Pod> {
    let mut pod = Pod::clone(pod);
    pod.metadata.annotations = Some([("kubernetes.io/config.source".to_owned(), "file".to_owned())].into());
    Arc::new(pod)
}

fn node() -> NodeInfo {
    let own: Amounts = [
        ("cpu".to_owned(), Quantity::from_i64(2)),
        ("memory".to_owned(), Quantity::from_bytes(4 * GIB)),
        ("pods".to_owned(), Quantity::from_i64(4)),
    ]
    .into();
    let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
    NodeInfo::of("node-a", &labels, None, own)
}

fn settings() -> Settings {
    Settings {
        sysctls: Allowlist::new(Some((6, 1)), &[]),
        features: Features {
            pod_level_resources: true,
            declared: true,
            restart_all_containers: true,
            user_namespaces_host_network: false,
            comparing_tolerations: false,
            extended_by_claims: true,
        },
        apparmor: false,
    }
}

fn decide(pod: &Arc<Pod>, others: &[Arc<Pod>]) -> Decision {
    admit(pod, others, &node(), &settings(), Context::default())
}

/// `reason: message`, or how it was let in.
fn text(decision: &Decision) -> String {
    match decision {
        Decision::Admit => "admitted".to_owned(),
        Decision::Preempt { victims, resource } => {
            format!("{resource}: {}", victims.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        }
        Decision::Reject(r) | Decision::RejectByLabels(r) => format!("{}: {}", r.reason, r.message),
    }
}

fn run(spec: Value) -> String {
    text(&decide(&pod("p", spec), &[]))
}

#[test]
fn room() {
    let out = |requests, others: &[Arc<Pod>]| text(&decide(&wanting("p", requests), others));
    let half = wanting("half", json!({"cpu": "1500m", "memory": "1Gi", "ephemeral-storage": "1Gi"}));
    assert_eq!(out(json!({"cpu": "2"}), &[]), "admitted");
    assert_eq!(
        out(json!({"cpu": "1000"}), &[]),
        "OutOfcpu: Node didn't have enough resource: cpu, requested: 1000000, used: 0, capacity: 2000"
    );
    assert_eq!(
        out(json!({"cpu": "501m", "memory": "4Gi"}), std::slice::from_ref(&half)),
        "OutOfcpu: Node didn't have enough resource: cpu, requested: 501, used: 1500, capacity: 2000"
    );
    assert_eq!(
        out(json!({"memory": "4Gi"}), std::slice::from_ref(&half)),
        "OutOfmemory: Node didn't have enough resource: memory, requested: 4294967296, used: 1073741824, capacity: 4294967296"
    );
    // A pod that was granted less than it still has.
    let node = NodeInfo { held: [("cpu".to_owned(), Quantity::from_milli(300))].into(), ..node() };
    let held = |cpu: &str| {
        let pod = wanting("p", json!({"cpu": cpu}));
        text(&admit(&pod, std::slice::from_ref(&half), &node, &settings(), Context::default()))
    };
    assert_eq!(held("200m"), "admitted");
    assert_eq!(
        held("201m"),
        "OutOfcpu: Node didn't have enough resource: cpu, requested: 201, used: 1800, capacity: 2000"
    );
    let four: Vec<_> = (0..4).map(|i| pod(&format!("o{i}"), json!({}))).collect();
    assert_eq!(
        out(json!({"cpu": "9"}), &four),
        "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 4, capacity: 4"
    );
    assert_eq!(
        out(json!({"hugepages-2Mi": "4Mi"}), &[]),
        "OutOfhugepages-2Mi: Node didn't have enough resource: hugepages-2Mi, requested: 4194304, used: 0, capacity: 0"
    );
    // Not the node's to give: cluster-level, or not known.
    assert_eq!(out(json!({"example.com/thing": "3", "ephemeral-storage": "1Ti"}), &[half]), "admitted");
}

#[test]
fn what_the_node_object_says_of_amounts() {
    let object: Node = serde_json::from_value(json!({"metadata": {"labels": {"kubernetes.io/os": "plan9"}},
        "spec": {"taints": [{"key": "k", "effect": "NoExecute"}]},
        "status": {"allocatable": {"cpu": "64", "example.com/thing": "2", "ephemeral-storage": "1Gi"},
                   "features": {"supplementalGroupsPolicy": false}}}))
    .unwrap();
    let own: Amounts = [("cpu".to_owned(), Quantity::from_i64(2))].into();
    let node = NodeInfo::of("n", &BTreeMap::new(), Some(&object), own);
    assert_eq!(["cpu", "example.com/thing"].map(|r| node.capacity(r)), [Some(2000), Some(2)]);
    assert_eq!((&*node.labels["kubernetes.io/os"], &*node.labels["kubernetes.io/hostname"]), ("linux", "n"));
    let out = |pod: &Pod| text(&admit(pod, &[], &node, &settings(), Context::default()));
    assert_eq!(
        out(&is_static(&wanting("p", json!({"ephemeral-storage": "2Gi"})))),
        "UnexpectedAdmissionError: Unexpected error while attempting to recover from admission failure: preemption: \
         error finding a set of pods to preempt: no set of running pods found to reclaim resources: \
         [(res: ephemeral-storage, q: 1073741824), ]"
    );
    let mut tolerant = Pod::clone(&wanting("p", json!({"example.com/thing": "3"})));
    let tolerations = json!([{"operator": "Exists"}]);
    tolerant.spec.as_mut().unwrap().tolerations = serde_json::from_value(tolerations).unwrap();
    assert_eq!(
        out(&tolerant),
        "OutOfexample.com/thing: Node didn't have enough resource: example.com/thing, requested: 3, used: 0, capacity: 2"
    );
    // Where the scheduler has made a claim for it, a driver gives it.
    let implicit = "deviceclass.resource.kubernetes.io/gpu";
    let mut claimed = Pod::clone(&wanting("p", json!({"example.com/thing": "3", implicit: "1"})));
    claimed.spec.as_mut().unwrap().tolerations = tolerant.spec.as_ref().unwrap().tolerations.clone();
    let without = claimed.clone();
    let mapping = |resource: &str| json!({"containerName": "main", "resourceName": resource, "requestName": "r"});
    let made = json!({"resourceClaimName": "c", "requestMappings": [mapping("example.com/thing"), mapping(implicit)]});
    claimed.status = Some(serde_json::from_value(json!({"extendedResourceClaimStatus": made})).unwrap());
    assert_eq!(out(&claimed), "admitted");
    let mut no_gate = settings();
    no_gate.features.extended_by_claims = false;
    let refused =
        format!("OutOf{implicit}: Node didn't have enough resource: {implicit}, requested: 1, used: 0, capacity: 0");
    assert_eq!(text(&admit(&claimed, &[], &node, &no_gate, Context::default())), refused);
    assert_eq!(out(&without), refused);
    let strict = json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}});
    assert_eq!(
        out(&pod("p", strict)),
        "SupplementalGroupsPolicyNotSupported: SupplementalGroupsPolicy=Strict is not supported in this node"
    );
}

#[test]
fn the_right_node() {
    const AFFINITY: &str =
        "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    let terms = |terms: Value| {
        let required = json!({"nodeSelectorTerms": terms});
        run(json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}))
    };
    assert_eq!(run(json!({"nodeSelector": {"zone": "a", "kubernetes.io/os": "linux"}})), "admitted");
    assert_eq!(run(json!({"nodeSelector": {"zone": "b"}})), AFFINITY);
    assert!(matches!(decide(&pod("p", json!({"nodeSelector": {"zone": "b"}})), &[]), Decision::RejectByLabels(_)));
    // Labels are not all that is wrong.
    let both = pod("p", json!({"nodeSelector": {"zone": "b"}, "nodeName": "node-b"}));
    assert!(matches!(decide(&both, &[]), Decision::Reject(r) if r.reason == "NodeAffinity"));
    assert_eq!(
        run(json!({"nodeName": "node-b"})),
        "NodeName: Predicate NodeName failed: node(s) didn't match the requested node name"
    );
    let named = |name| json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]);
    assert_eq!(terms(named("node-a")), "admitted");
    assert_eq!(terms(named("node-b")), AFFINITY);
    assert_eq!(terms(json!([])), AFFINITY);
    assert_eq!(terms(json!([{}])), AFFINITY);
    let in_zone = |zone| json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]});
    assert_eq!(terms(json!([in_zone("b"), in_zone("a")])), "admitted");
}

#[test]
fn host_ports() {
    const TAKEN: &str =
        "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    let with = |name: &str, port: Value| pod(name, json!({"containers": [{"name": "c", "ports": [port]}]}));
    let base = json!({"containerPort": 80, "hostPort": 8080, "protocol": "TCP"});
    let other = with("o", base.clone());
    for (port, out) in [
        (base, TAKEN),
        (json!({"containerPort": 80, "hostPort": 8080}), TAKEN),
        (json!({"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1"}), TAKEN),
        (json!({"containerPort": 80, "hostPort": 8080, "hostIP": "0.0.0.0"}), TAKEN),
        (json!({"containerPort": 80, "hostPort": 8080, "protocol": "UDP"}), "admitted"),
        (json!({"containerPort": 80, "hostPort": 8081}), "admitted"),
        (json!({"containerPort": 8080}), "admitted"),
    ] {
        assert_eq!(text(&decide(&with("p", port.clone()), std::slice::from_ref(&other))), out, "{port}");
    }
    let at = |ip: &str| json!({"containerPort": 80, "hostPort": 1, "hostIP": ip});
    assert_eq!(text(&decide(&with("p", at("10.0.0.1")), &[with("o", at("10.0.0.2"))])), "admitted");
}

#[test]
fn taints_and_tolerations() {
    let mut node = node();
    let taint = |effect: &str| Taint {
        key: "gpu".to_owned(),
        value: Some("5".to_owned()),
        effect: effect.to_owned(),
        ..Taint::default()
    };
    node.taints = vec![taint("NoSchedule"), taint("NoExecute")];
    let mut settings = settings();
    settings.features.comparing_tolerations = true;
    let out = |pod: &Pod| text(&admit(pod, &[], &node, &settings, Context::default()));
    const HURT: &str =
        "TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
    for (toleration, result) in [
        (json!({"operator": "Exists"}), "admitted"),
        (json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}), "admitted"),
        (json!({"key": "gpu", "value": "5"}), "admitted"),
        (json!({"key": "gpu", "operator": "Gt", "value": "4"}), "admitted"),
        (json!({"key": "gpu", "operator": "Lt", "value": "4"}), HURT),
        (json!({"key": "gpu", "operator": "Equal", "value": "6"}), HURT),
        (json!({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}), HURT),
        (json!({"key": "cpu", "operator": "Exists"}), HURT),
    ] {
        assert_eq!(out(&pod("p", json!({"tolerations": [toleration]}))), result, "{toleration}");
    }
    assert_eq!(out(&is_static(&pod("p", json!({})))), "admitted");
}

#[test]
fn sysctls() {
    let allowed = ["kernel.msg*".to_owned(), "net.core.somaxconn".to_owned(), "vm.swappiness".to_owned()];
    let list = Allowlist::new(Some((6, 1)), &allowed);
    let out = |name: &str, spec: Value| {
        let mut spec = spec;
        spec["securityContext"] = json!({"sysctls": [{"name": name, "value": "1"}]});
        sysctls::check(&pod("p", spec), &list).map(|r| format!("{}: {}", r.reason, r.message))
    };
    for name in ["kernel.shm_rmid_forced", "net/ipv4/tcp_syncookies", "kernel.msgmax", "net.core.somaxconn"] {
        assert_eq!(out(name, json!({})), None, "{name}");
    }
    assert_eq!(
        out("kernel.shm_rmid_forced", json!({"hostIPC": true})).unwrap(),
        "SysctlForbidden: forbidden sysctl: \"kernel.shm_rmid_forced\" not allowed with host IPC enabled"
    );
    assert_eq!(
        out("net/ipv4/tcp_rmem", json!({"hostNetwork": true})).unwrap(),
        "SysctlForbidden: forbidden sysctl: \"net.ipv4.tcp_rmem\" not allowed with host Net enabled"
    );
    assert_eq!(
        out("vm.swappiness", json!({})).unwrap(),
        "SysctlForbidden: forbidden sysctl: \"vm.swappiness\" not allowlisted"
    );
    assert_eq!(
        run(json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}})),
        "SysctlForbidden: forbidden sysctl: \"kernel.msgmax\" not allowlisted"
    );
    let old = Allowlist::new(Some((4, 6)), &[]);
    let set = |name: &str| pod("p", json!({"securityContext": {"sysctls": [{"name": name, "value": "1"}]}}));
    assert!(sysctls::check(&set("net.ipv4.tcp_fin_timeout"), &old).is_none());
    assert!(sysctls::check(&set("net.ipv4.tcp_wmem"), &old).is_some());
    assert!(sysctls::check(&set("net.ipv4.tcp_keepalive_time"), &Allowlist::new(None, &[])).is_some());
    assert_eq!(sysctls::kernel_version("6.1.0-18-amd64\n"), Some((6, 1)));
    assert_eq!(sysctls::kernel_version("linux"), None);
}

#[test]
fn what_pods_are_made_for() {
    assert_eq!(run(json!({"os": {"name": "linux"}})), "admitted");
    assert_eq!(
        run(json!({"os": {"name": "windows"}})),
        "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS"
    );
    let mut labelled = Pod::clone(&pod("p", json!({})));
    labelled.metadata.labels = Some([("kubernetes.io/os".to_owned(), "windows".to_owned())].into());
    assert_eq!(
        text(&decide(&Arc::new(labelled), &[])),
        "PodOSSelectorNodeLabelDoesNotMatch: Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"
    );
    assert_eq!(
        run(json!({"hostNetwork": true, "hostUsers": false})),
        "PodFeatureUnsupported: Pod requires node features that are not available: UserNamespacesHostNetworkSupport"
    );
    let mut off = settings();
    off.features.pod_level_resources = false;
    let level = pod("p", json!({"resources": {"requests": {"cpu": "1"}}}));
    assert_eq!(
        text(&admit(&level, &[], &node(), &off, Context::default())),
        "PodLevelResourcesNotSupported: PodLevelResources feature gate is disabled"
    );
}

#[test]
fn apparmor_is_asked_of_new_pods() {
    let profile = |kind: &str| pod("p", json!({"securityContext": {"appArmorProfile": {"type": kind}}}));
    let out =
        |pod: &Pod, apparmor| text(&admit(pod, &[], &node(), &Settings { apparmor, ..settings() }, Context::default()));
    const OFF: &str = "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host";
    assert_eq!(out(&profile("RuntimeDefault"), false), OFF);
    assert_eq!(out(&profile("RuntimeDefault"), true), "admitted");
    assert_eq!(out(&profile("Unconfined"), false), "admitted");
    let nameless = |name: &str| {
        format!(
            "AppArmor: Cannot enforce AppArmor: invalid empty AppArmor profile name: \
             \"&AppArmorProfile{{Type:Localhost,LocalhostProfile:{name},}}\""
        )
    };
    assert_eq!(out(&profile("Localhost"), true), nameless("nil"));
    // A file's annotations have not become fields.
    let annotated = |value: &str| {
        let mut pod = Pod::clone(&pod("p", json!({})));
        let key = "container.apparmor.security.beta.kubernetes.io/main".to_owned();
        pod.metadata.annotations = Some([(key, value.to_owned())].into());
        pod
    };
    assert_eq!(out(&annotated("localhost/x"), false), OFF);
    assert_eq!(out(&annotated("localhost/x"), true), "admitted");
    assert_eq!(out(&annotated("localhost/ "), true), nameless("* "));
    assert_eq!(out(&annotated("unconfined"), false), "admitted");
    let mut running = Pod::clone(&profile("RuntimeDefault"));
    running.status = serde_json::from_value(json!({"phase": "Running"})).unwrap();
    assert_eq!(out(&running, false), "admitted");
}

#[test]
fn pressure_spares_who_is_critical() {
    let out = |pod: &Pod, memory, disk| {
        let pressure = Pressure { memory, disk, pids: false };
        text(&admit(pod, &[], &node(), &settings(), Context { pressure, shutting_down: false }))
    };
    let best_effort = pod("p", json!({}));
    let burstable = wanting("p", json!({"cpu": "1"}));
    assert_eq!(out(&best_effort, true, false), "Evicted: The node had condition: [MemoryPressure]. ");
    assert_eq!(out(&burstable, true, false), "admitted");
    assert_eq!(out(&burstable, true, true), "Evicted: The node had condition: [MemoryPressure DiskPressure]. ");
    assert_eq!(out(&critical(&best_effort), true, true), "admitted");
    let tolerant = json!({"tolerations": [{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists"}]});
    assert_eq!(out(&pod("p", tolerant), true, false), "admitted");
    let down = Context { shutting_down: true, ..Context::default() };
    assert_eq!(
        text(&admit(&burstable, &[], &node(), &settings(), down)),
        "NodeShutdown: Pod was rejected as the node is shutting down."
    );
}

#[test]
fn critical_pods_make_room() {
    let guaranteed = |name: &str, cpu: &str| {
        let list = json!({"cpu": cpu, "memory": "1Mi"});
        pod(name, json!({"containers": [{"name": "c", "resources": {"limits": list, "requests": list}}]}))
    };
    let wanted = critical(&wanting("p", json!({"cpu": "1"})));
    let small = wanting("small", json!({"cpu": "200m"}));
    let fit = wanting("fit", json!({"cpu": "700m"}));
    let big = wanting("big", json!({"cpu": "1100m"}));
    // 300m are missing: the nearest that covers it all; of equals the one that asks for less.
    assert_eq!(text(&decide(&wanted, &[small.clone(), big])), "cpu: big");
    let equal = [wanting("more", json!({"cpu": "900m"})), wanting("less", json!({"cpu": "800m"}))];
    assert_eq!(text(&decide(&wanted, &equal)), "cpu: less");
    // Guaranteed pods go only when the others do not suffice.
    let strong = guaranteed("strong", "1");
    assert_eq!(text(&decide(&wanted, &[strong.clone(), fit])), "cpu: fit");
    let huge = guaranteed("huge", "1700m");
    assert_eq!(text(&decide(&wanted, &[huge.clone(), small.clone()])), "cpu: huge");
    let everything = critical(&wanting("p", json!({"cpu": "2"})));
    assert_eq!(text(&decide(&everything, &[huge, small])), "cpu: small huge");
    // One is one for the number of pods: a best-effort one.
    let mut four: Vec<_> = (0..3).map(|i| wanting(&format!("o{i}"), json!({"cpu": "1m"}))).collect();
    four.push(pod("idle", json!({})));
    assert_eq!(text(&decide(&critical(&pod("p", json!({}))), &four)), "pods: idle");
    // Critical ones stay, unless priority says otherwise.
    let held = critical(&strong);
    assert!(
        text(&decide(&critical(&wanting("p", json!({"cpu": "2"}))), &[held])).starts_with("UnexpectedAdmissionError")
    );
    // Other obstacles are not overcome that way.
    let mut elsewhere = Pod::clone(&critical(&wanting("p", json!({"cpu": "9"}))));
    elsewhere.spec.as_mut().unwrap().node_name = Some("node-b".to_owned());
    assert!(matches!(decide(&Arc::new(elsewhere), &[]), Decision::Reject(r) if r.reason == "NodeName"));
}

#[test]
fn the_first_handler_speaks() {
    let mut wrong = Pod::clone(&pod(
        "p",
        json!({"os": {"name": "windows"}, "nodeName": "node-b", "nodeSelector": {"zone": "b"},
        "securityContext": {"sysctls": [{"name": "vm.x", "value": "1"}]},
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "9"}}}]}),
    ));
    let mut reasons = Vec::new();
    for heal in [
        (|_| {}) as fn(&mut Pod),
        |p| p.spec.as_mut().unwrap().security_context = None,
        |p| p.spec.as_mut().unwrap().os = None,
        |p| p.spec.as_mut().unwrap().containers[0].resources = None,
        |p| p.spec.as_mut().unwrap().node_selector = None,
        |p| p.spec.as_mut().unwrap().node_name = None,
    ] {
        heal(&mut wrong);
        reasons.push(text(&decide(&Arc::new(wrong.clone()), &[])).split(':').next().unwrap().to_owned());
    }
    assert_eq!(reasons, ["SysctlForbidden", "PodOSNotSupported", "OutOfcpu", "NodeAffinity", "NodeName", "admitted"]);
}

fn any_pod(name: String) -> impl Strategy<Value = Arc<Pod>> {
    (0_u32..3000, 0_u32..5000, prop::option::of(1_i32..4), prop::option::of(0_i32..3), any::<bool>()).prop_map(
        move |(cpu, memory, port, priority, is_static_pod)| {
            let port = port.map(|p| json!([{"containerPort": 1, "hostPort": p}])).unwrap_or(json!([]));
            let requests = json!({"cpu": format!("{cpu}m"), "memory": format!("{memory}Mi")});
            let container = json!({"name": "c", "ports": port, "resources": {"requests": requests}});
            let spec = json!({"priority": priority.map(|p| p * 1_000_000_000), "containers": [container]});
            let pod = pod(&name, spec);
            if is_static_pod { is_static(&pod) } else { pod }
        },
    )
}

fn some_pods() -> impl Strategy<Value = (Arc<Pod>, Vec<Arc<Pod>>)> {
    let others = (0_usize..6).prop_flat_map(|n| (0..n).map(|i| any_pod(format!("o{i}"))).collect::<Vec<_>>());
    (any_pod("p".to_owned()), others)
}

proptest! {
    /// Who does not fit beside some pods does not fit beside more.
    #[test]
    fn more_pods_never_help((one, others) in some_pods()) {
        let is_refused = |others: &[Arc<Pod>]| !general_filter(&one, others, &node(), &settings()).is_empty();
        for n in 0..others.len() {
            prop_assert!(!is_refused(&others[..n]) || is_refused(&others[..=n]));
        }
    }

    /// Victims are pods of the node, each once, never such as may not be pushed off, and with them gone the pod fits.
    #[test]
    fn preemption_suffices((one, others) in some_pods()) {
        if let Decision::Preempt { victims, .. } = decide(&one, &others) {
            prop_assert!(!victims.is_empty());
            let gone = |pod: &Arc<Pod>| victims.iter().filter(|v| pod.metadata.uid.as_deref() == Some(v.as_str())).count();
            prop_assert!(others.iter().all(|o| gone(o) <= 1));
            prop_assert_eq!(others.iter().map(gone).sum::<usize>(), victims.len());
            let rest: Vec<_> = others.iter().filter(|o| gone(o) == 0).cloned().collect();
            prop_assert_eq!(decide(&one, &rest), Decision::Admit);
        }
    }

    /// Whatever a spec holds, there is an answer.
    #[test]
    fn never_panics(cpu in ".{0,12}", name in ".{0,20}", operator in "(In|NotIn|Gt|Lt|Exists|.{0,5})", values in prop::collection::vec(".{0,8}", 0..3)) {
        let terms = json!([{"matchExpressions": [{"key": "zone", "operator": operator, "values": values}]}]);
        let spec = json!({"nodeName": name, "securityContext": {"sysctls": [{"name": name, "value": ""}]},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}},
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "9223372036854775807", "pods": "3"}}}]});
        let pod = pod("p", spec);
        let others = vec![pod.clone(); 3];
        decide(&pod, &others);
        decide(&critical(&pod), &others);
    }
}

#[test]
fn reasons_as_the_metric_has_them() {
    for (reason, label) in [
        ("TopologyAffinityError", "TopologyAffinityError"),
        ("OutOfcpu", "OutOfcpu"),
        ("OutOfexample.com/gpu", "OutOfExtendedResources"),
        ("TaintToleration", "Other"),
    ] {
        assert_eq!(metric_label(reason), label);
    }
}
