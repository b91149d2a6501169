//! Sums, QoS classes and numbers against upstream's recorded and published values.

use super::*;
use crate::node_facts::HostFacts;

fn pod(spec: serde_json::Value) -> Pod {
    serde_json::from_value(serde_json::json!({"metadata": {"name": "p", "uid": "u"}, "spec": spec})).unwrap()
}

fn one(resources: serde_json::Value) -> Pod {
    pod(serde_json::json!({"containers": [{"name": "c", "resources": resources}]}))
}

fn facts() -> NodeFacts {
    NodeFacts::new(HostFacts {
        swap_controller: true,
        memory_capacity: 24 << 30,
        hugepage_sizes: vec!["2MB".into(), "1GB".into()],
        ..HostFacts::default()
    })
}

#[test]
fn qos_classes() {
    let guaranteed =
        serde_json::json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1Gi"}});
    let half = serde_json::json!({"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}});
    for (spec, class) in [
        (serde_json::json!({"containers": [{"name": "c"}]}), QosClass::BestEffort),
        (serde_json::json!({"containers": [{"name": "c", "resources": guaranteed}]}), QosClass::Guaranteed),
        (serde_json::json!({"containers": [{"name": "c", "resources": half}]}), QosClass::Burstable),
        (
            serde_json::json!({"containers": [{"name": "c", "resources": guaranteed}, {"name": "d"}]}),
            QosClass::Burstable,
        ),
        (
            serde_json::json!({"initContainers": [{"name": "i"}], "containers": [{"name": "c", "resources": guaranteed}]}),
            QosClass::Burstable,
        ),
        (serde_json::json!({"resources": guaranteed, "containers": [{"name": "c"}]}), QosClass::Guaranteed),
        (
            serde_json::json!({"resources": {"requests": {"cpu": "1"}}, "containers": [{"name": "c", "resources": guaranteed}]}),
            QosClass::Burstable,
        ),
        (
            serde_json::json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "0"}}}]}),
            QosClass::BestEffort,
        ),
        (
            serde_json::json!({"containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}}]}),
            QosClass::BestEffort,
        ),
    ] {
        assert_eq!(qos_class(&pod(spec.clone())), class, "{spec}");
    }
}

#[test]
fn conversions() {
    for (milli, shares) in [(0, 2), (1, 2), (10, 10), (250, 256), (1000, 1024), (10_000_000, 262_144), (-5, 2)] {
        assert_eq!(milli_cpu_to_shares(milli), shares, "{milli}");
    }
    for (milli, quota) in [(0, 0), (1, 1000), (250, 25_000), (2000, 200_000)] {
        assert_eq!(milli_cpu_to_quota(milli, 100_000), quota, "{milli}");
    }
}

#[test]
fn container_values_as_recorded() {
    let guaranteed = one(
        serde_json::json!({"limits": {"cpu": "250m", "memory": "64Mi"}, "requests": {"cpu": "250m", "memory": "64Mi"}}),
    );
    let r = container_resources(&guaranteed, &containers(&guaranteed)[0], &facts());
    assert_eq!((r.cpu_period, r.cpu_quota, r.cpu_shares), (100_000, 25_000, 256));
    assert_eq!(
        (r.memory_limit_in_bytes, r.memory_swap_limit_in_bytes, r.oom_score_adj),
        (67_108_864, 67_108_864, -997)
    );
    assert_eq!(
        r.hugepage_limits.iter().map(|h| (h.page_size.as_str(), h.limit)).collect::<Vec<_>>(),
        [("2MB", 0), ("1GB", 0)]
    );
    let s = sandbox_resources(&guaranteed, &facts(), false);
    assert_eq!((s.cpu_period, s.cpu_quota, s.cpu_shares, s.memory_limit_in_bytes), (100_000, 25_000, 256, 67_108_864));
    // With CPUs that nobody else has. The overhead keeps its quota, as upstream.
    assert_eq!(sandbox_resources(&guaranteed, &facts(), true), v1::LinuxContainerResources { cpu_quota: -1, ..s });

    let best_effort = one(serde_json::json!({}));
    let r = container_resources(&best_effort, &containers(&best_effort)[0], &facts());
    assert_eq!((r.cpu_quota, r.cpu_shares, r.memory_limit_in_bytes, r.oom_score_adj), (0, 2, 0, 1000));
    assert_eq!(overhead_resources(&best_effort, &facts()), v1::LinuxContainerResources::default());

    let memory_only = one(serde_json::json!({"limits": {"memory": "16Mi"}, "requests": {"memory": "16Mi"}}));
    let r = container_resources(&memory_only, &containers(&memory_only)[0], &facts());
    assert_eq!((r.cpu_shares, r.memory_limit_in_bytes, r.oom_score_adj), (2, 16 << 20, 999));
}

#[test]
fn oom_scores() {
    let capacity = 1000u64 << 20;
    let score = |memory: &str| {
        let p = one(serde_json::json!({"requests": {"memory": memory}}));
        oom_score_adj(&p, &containers(&p)[0], capacity)
    };
    assert_eq!((score("500Mi"), score("999Mi"), score("2000Mi"), score("1")), (500, 3, 3, 999));
    let mut critical = one(serde_json::json!({"requests": {"cpu": "10m"}}));
    critical.metadata.annotations = Some([("kubernetes.io/config.source".to_owned(), "file".to_owned())].into());
    critical.spec.as_mut().unwrap().priority_class_name = Some("system-node-critical".to_owned());
    assert_eq!(oom_score_adj(&critical, &containers(&critical)[0], capacity), -997);
    let sidecar = pod(serde_json::json!({
        "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": {"requests": {"memory": "10Mi"}}}],
        "containers": [{"name": "c", "resources": {"requests": {"memory": "400Mi"}}}],
    }));
    assert_eq!(oom_score_adj(&sidecar, &init_containers(&sidecar)[0], capacity), 600);
    let level = pod(serde_json::json!({"resources": {"requests": {"memory": "500Mi"}},
        "containers": [{"name": "a", "resources": {"requests": {"memory": "100Mi"}}}, {"name": "b"}]}));
    assert_eq!(oom_score_adj(&level, &containers(&level)[0], capacity), 700);
    // Those that have done their work by then have their share, too.
    let level =
        pod(serde_json::json!({"resources": {"requests": {"memory": "500Mi"}}, "initContainers": [{"name": "i"}],
        "containers": [{"name": "a", "resources": {"requests": {"memory": "100Mi"}}}, {"name": "b"}, {"name": "c"}]}));
    assert_eq!(oom_score_adj(&level, &containers(&level)[0], capacity), 800);
}

#[test]
fn pod_cgroups() {
    let mut facts = facts();
    facts.pod_pids_limit = Some(64);
    let burstable = one(serde_json::json!({"requests": {"cpu": "10m"}}));
    let r = pod_cgroup_resources(&burstable, &facts, false);
    assert_eq!((r.cpu_shares, r.cpu_quota_us, r.memory_limit_bytes, r.pids_limit), (Some(10), None, None, Some(64)));
    assert_eq!(r.hugepage_limits, BTreeMap::from([("1GB".to_owned(), 0), ("2MB".to_owned(), 0)]));

    let two = pod(serde_json::json!({"containers": [
        {"name": "a", "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1", "memory": "1Gi"}}},
        {"name": "b", "resources": {"limits": {"memory": "1Gi", "hugepages-2Mi": "4Mi"}, "requests": {"hugepages-2Mi": "4Mi"}}},
    ]}));
    let r = pod_cgroup_resources(&two, &facts, false);
    assert_eq!((r.cpu_quota_us, r.memory_limit_bytes), (None, Some(2 << 30)), "only memory is limited everywhere");
    assert_eq!(r.hugepage_limits["2MB"], 4 << 20);

    let best_effort = one(serde_json::json!({}));
    let r = pod_cgroup_resources(&best_effort, &facts, false);
    assert_eq!((r.cpu_shares, r.cpu_quota_us, r.cpu_period_us), (Some(2), None, None));
    facts.cpu_cfs_quota = false;
    let guaranteed =
        one(serde_json::json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}));
    assert_eq!(pod_cgroup_resources(&guaranteed, &facts, false).cpu_quota_us, Some(-1));
    assert_eq!(burstable_cpu_shares([&burstable, &best_effort, &guaranteed, &two]), 112);
}

/// A container's limits of CPU and memory, with a limit of each kind or without.
#[test]
fn limits_of_a_pod_with_sidecars() {
    let both = serde_json::json!({"cpu": "1", "memory": "1Gi"});
    let cpu = serde_json::json!({"cpu": "1"});
    let memory = serde_json::json!({"memory": "1Gi"});
    let none = serde_json::json!({});
    let zero = serde_json::json!({"cpu": "0", "memory": "0"});
    let (init, sidecar, app) = ("Init", "Always", "App");
    let table = [
        // What an init container without limits may use is what the sidecars before it may.
        (vec![(sidecar, &both), (init, &none), (app, &both)], (Some(200_000), Some(2 << 30))),
        (vec![(sidecar, &both), (init, &zero), (app, &both)], (Some(200_000), Some(2 << 30))),
        (vec![(sidecar, &both), (sidecar, &none), (app, &both)], (Some(200_000), Some(2 << 30))),
        (vec![(init, &none), (sidecar, &both), (app, &both)], (None, None)),
        (vec![(sidecar, &none), (sidecar, &both), (app, &both)], (None, None)),
        // Those that have ended leave nothing behind.
        (vec![(init, &both), (init, &none), (app, &both)], (None, None)),
        (vec![(init, &both), (sidecar, &none), (app, &both)], (None, None)),
        // A sidecar's limits bound no container beside it.
        (vec![(sidecar, &both), (app, &none)], (None, None)),
        (vec![(sidecar, &cpu), (init, &memory), (init, &cpu), (app, &both)], (Some(200_000), None)),
        (vec![(sidecar, &cpu), (sidecar, &memory), (init, &none), (app, &both)], (Some(200_000), None)),
        (vec![(sidecar, &both), (init, &none), (app, &memory)], (None, Some(2 << 30))),
    ];
    for (list, expected) in table {
        let of = |is: fn(&str) -> bool| -> Vec<serde_json::Value> {
            let of = list.iter().enumerate().filter(|(_, (kind, _))| is(kind));
            let container = |(at, (kind, limits)): (usize, &(&str, &serde_json::Value))| {
                let mut c = serde_json::json!({"name": format!("c{at}"), "resources": {"limits": limits, "requests": {"cpu": "1m"}}});
                if *kind == "Always" {
                    c["restartPolicy"] = "Always".into();
                }
                c
            };
            of.map(container).collect()
        };
        let pod = pod(serde_json::json!({"initContainers": of(|k| k != "App"), "containers": of(|k| k == "App")}));
        let r = pod_cgroup_resources(&pod, &facts(), false);
        assert_eq!((r.cpu_quota_us, r.memory_limit_bytes), expected, "{list:?}");
        assert_eq!(r.cpu_period_us, r.cpu_quota_us.map(|_| 100_000), "{list:?}");
    }
}

#[test]
fn init_containers_count_at_their_peak() {
    let p = pod(serde_json::json!({
        "overhead": {"cpu": "50m", "memory": "1Mi"},
        "initContainers": [
            {"name": "first", "resources": {"requests": {"cpu": "2"}}},
            {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "300m"}}},
            {"name": "second", "resources": {"requests": {"cpu": "1900m"}}},
        ],
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "4"}}}],
    }));
    assert_eq!(pod_requests(&p, false)["cpu"].milli_value(), 2200);
    assert_eq!(pod_requests(&p, true)["cpu"].milli_value(), 2250);
    let limits = pod_limits(&p, true);
    assert_eq!((limits["cpu"].milli_value(), limits.get("memory")), (4050, None));
    let unlimited = pod(serde_json::json!({
        "overhead": {"cpu": "50m", "memory": "1Mi"},
        "containers": [{"name": "c", "resources": {"limits": {"cpu": "0", "memory": "1Mi"}}}],
    }));
    let limits = pod_limits(&unlimited, true);
    assert_eq!((limits["cpu"].milli_value(), limits["memory"].value()), (0, 2 << 20));
}

#[test]
fn swap_on_cgroup_v2() {
    let mut facts = facts();
    facts.host.cgroup_v2 = true;
    facts.host.swap_capacity = 12 << 30;
    facts.swap_behavior = SwapBehavior::LimitedSwap;
    let burstable = one(serde_json::json!({"requests": {"memory": "6Gi"}}));
    let r = container_resources(&burstable, &containers(&burstable)[0], &facts);
    assert_eq!(r.unified["memory.swap.max"], (3u64 << 30).to_string());
    let best_effort = one(serde_json::json!({}));
    let r = container_resources(&best_effort, &containers(&best_effort)[0], &facts);
    assert_eq!((r.unified["memory.swap.max"].as_str(), r.memory_swap_limit_in_bytes), ("0", 0));
}
