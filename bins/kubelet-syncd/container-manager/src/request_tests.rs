use super::*;
use crate::pods::{pod, pod_with};

const ON: Gates = Gates {
    cpu_alpha_options: true,
    cpu_beta_options: true,
    pod_level: true,
    no_quota: true,
    extended_by_claims: true,
};
const OFF: Gates = Gates {
    cpu_alpha_options: false,
    cpu_beta_options: true,
    pod_level: false,
    no_quota: true,
    extended_by_claims: false,
};

fn gi(n: u64) -> u64 {
    n << 30
}

#[test]
fn who_may_have_cpus() {
    use Kind::App;
    let table = [
        (vec![("a", App, "2", "1Gi", "")], vec![2], 2),
        (vec![("a", App, "2000m", "1Gi", "")], vec![2], 2),
        (vec![("a", App, "1500m", "1Gi", "")], vec![0], 0),
        (vec![("a", App, "1/2", "1Gi", "")], vec![0], 0),
        (vec![("a", App, "2", "", "")], vec![0], 0),
        (vec![("a", App, "2", "1Gi", ""), ("b", App, "500m", "1Gi", "")], vec![2, 0], 2),
        (vec![("a", App, "2", "1Gi", ""), ("b", App, "", "", "")], vec![0, 0], 0),
    ];
    for (containers, cpus, all) in table {
        let request = PodRequest::of(&pod("u", &containers), OFF);
        assert_eq!(request.containers.iter().map(|c| c.cpus).collect::<Vec<_>>(), cpus, "{containers:?}");
        assert_eq!(request.cpus, all, "{containers:?}");
    }
}

/// Upstream's tables of init containers and sidecars (`TestStaticPolicyPodGuaranteedCPUs`, `Test_getPodRequestedResources`).
#[test]
fn the_most_at_a_time() {
    use Kind::{App, Init, Sidecar};
    let table = [
        (vec![("i", Init, "7", "7Gi", ""), ("a", App, "2", "2Gi", ""), ("b", App, "3", "3Gi", "")], 7),
        (vec![("i", Init, "3", "3Gi", ""), ("a", App, "2", "2Gi", ""), ("b", App, "3", "3Gi", "")], 5),
        (vec![("s", Sidecar, "2", "2Gi", ""), ("i", Init, "5", "5Gi", ""), ("a", App, "3", "3Gi", "")], 7),
        (vec![("i", Init, "5", "5Gi", ""), ("s", Sidecar, "2", "2Gi", ""), ("a", App, "3", "3Gi", "")], 5),
        (vec![("s", Sidecar, "2", "2Gi", ""), ("t", Sidecar, "1", "1Gi", ""), ("a", App, "3", "3Gi", "")], 6),
    ];
    for (containers, most) in table {
        let request = PodRequest::of(&pod("u", &containers), OFF);
        assert_eq!(request.cpus, most, "{containers:?}");
        assert_eq!(request.memory.unwrap()["memory"], gi(u64::from(most)), "{containers:?}");
    }
}

#[test]
fn pods_with_resources_of_their_own() {
    use Kind::App;
    let containers = [("a", App, "2", "1Gi", ""), ("b", App, "", "", ""), ("c", App, "1/2", "1Gi", "")];
    let pod = pod_with("u", ("4", "4Gi"), &containers);
    let request = PodRequest::of(&pod, ON);
    assert!(request.guaranteed && request.managed && request.by_pod());
    assert_eq!((request.cpus, request.memory.clone().unwrap()["memory"]), (4, gi(4)));
    // Only who asks for as much as it is limited to has something for itself.
    assert_eq!(request.containers.iter().map(|c| c.cpus).collect::<Vec<_>>(), [2, 0, 0]);
    assert!(request.containers[1].memory.as_ref().unwrap().is_empty());
    assert!(request.containers[2].memory.as_ref().unwrap().is_empty());
    let request = PodRequest::of(&pod, OFF);
    assert!(!request.managed && !request.by_pod());
    let burstable = PodRequest::of(&pod_with("u", ("2/4", "4Gi"), &containers), ON);
    assert_eq!((burstable.guaranteed, burstable.cpus), (false, 0));
}

/// Upstream's `TestAdmitPodWithDRAResources`.
#[test]
fn who_gives_an_extended_resource() {
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"uid": "u"},
        "spec": {"containers": [
            {"name": "a", "resources": {"limits": {"example.com/r": "1", "example.com/other": "1"}}},
            {"name": "b", "resources": {"limits": {"example.com/r": "1"}}},
        ]},
        "status": {"extendedResourceClaimStatus": {
            "resourceClaimName": "claim",
            "requestMappings": [{"containerName": "a", "resourceName": "example.com/r", "requestName": "r"}],
        }},
    }))
    .unwrap();
    let by_plugins = |gates| -> Vec<Vec<String>> {
        PodRequest::of(&pod, gates).containers.iter().map(|c| c.limits.keys().cloned().collect()).collect()
    };
    assert_eq!(by_plugins(ON), [vec!["example.com/other"], vec!["example.com/r"]]);
    assert_eq!(by_plugins(OFF), [vec!["example.com/other", "example.com/r"], vec!["example.com/r"]]);
}

#[test]
fn amounts_that_are_no_bytes() {
    let request = PodRequest::of(&pod("u", &[("a", Kind::App, "1", "1500m", "")]), OFF);
    assert_eq!(request.containers[0].memory, Err(NoWholeNumber));
    assert_eq!(request.memory, Err(NoWholeNumber));
}
