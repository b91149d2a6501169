//! Each step of a pod's and of a mirror pod's life as one decision.

use serde_json::{Value, json};

use super::*;

fn uid(text: &str) -> PodUid {
    PodUid::parse(text).unwrap()
}

fn desired(status: Value) -> Desired {
    Desired {
        uid: uid("u"),
        namespace: "d".into(),
        name: "p".into(),
        is_static: false,
        live: true,
        finished: false,
        phase: Box::default(),
        status: status.to_string().into_bytes().into(),
        static_pod: Box::default(),
        may_delete: false,
        containers_may_run: true,
        trace_parent: Box::default(),
    }
}

fn copy(status: Value) -> ApiCopy {
    ApiCopy {
        uid: uid("u"),
        version: "5".into(),
        deleting: false,
        mirror_hash: String::new(),
        status: status.to_string().into_bytes().into(),
    }
}

fn around<'a>(api: Option<&'a ApiCopy>, owner: Option<&'a Owner>) -> Context<'a> {
    Context { api, owner, namesake: false, is_only_one: true, deletion_pending: false, now: Timestamp::UNIX_EPOCH }
}

fn for_api(desired: &Desired, api: &ApiCopy) -> Decision {
    decide(desired, around(Some(api), None))
}

fn body(decision: &Decision) -> Value {
    match decision {
        Decision::Patch { body, .. } | Decision::CreateMirror { body } => serde_json::from_slice(body).unwrap(),
        other => panic!("no body: {other:?}"),
    }
}

#[test]
fn a_change_is_a_patch_with_the_uid_and_no_change_is_nothing() {
    let wanted = desired(json!({"phase": "Running"}));
    let decision = for_api(&wanted, &copy(json!({"phase": "Pending"})));
    assert_eq!(body(&decision), json!({"metadata": {"uid": "u"}, "status": {"phase": "Running"}}));
    assert!(matches!(decision, Decision::Patch { urgency: Urgency::Now, .. }));
    assert_eq!(for_api(&wanted, &copy(json!({"phase": "Running"}))), Decision::Nothing);
    assert_eq!(decide(&wanted, around(None, None)), Decision::Nothing);
}

/// Conditions that come and go in a pod's life, beside one of somebody else that its readiness waits for.
#[test]
fn a_condition_that_is_over_is_taken_away_and_others_stay() {
    let of = |kind: &str, status: &str| json!({"type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"});
    for kind in ["PodResizePending", "PodResizeInProgress", "AllContainersRestarting"] {
        let (gate, ready) = (of("example.com/gate", "False"), of("Ready", "True"));
        let api = copy(json!({"phase": "Running", "conditions": [of(kind, "True"), gate, ready]}));
        let over =
            for_api(&desired(json!({"phase": "Running", "conditions": [ready, of("example.com/gate", "True")]})), &api);
        assert_eq!(
            body(&over)["status"],
            json!({
                "$setElementOrder/conditions": [{"type": "example.com/gate"}, {"type": "Ready"}],
                "conditions": [{"$patch": "delete", "type": kind}],
            })
        );
        assert!(matches!(over, Decision::Patch { urgency: Urgency::Now, .. }), "somebody waits for it");
        // And back again, with what it says.
        let gone = copy(json!({"phase": "Running", "conditions": [gate, ready]}));
        let mut told = of(kind, "True");
        told["reason"] = json!("Deferred");
        let back = body(&for_api(&desired(json!({"phase": "Running", "conditions": [told, ready]})), &gone));
        assert_eq!(back["status"]["conditions"][0]["reason"], "Deferred");
        assert_eq!(back["status"]["conditions"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn what_a_resize_gave_is_written_and_what_is_no_more_goes() {
    let container = |cpu: &str| {
        json!({"name": "a", "allocatedResources": {"cpu": cpu}, "resources": {"requests": {"cpu": cpu}},
            "state": {"running": {}}, "lastState": {}})
    };
    let api = copy(json!({"phase": "Running", "resize": "Deferred", "containerStatuses": [container("1")],
        "ephemeralContainerStatuses": [container("1")], "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}));
    let wanted = desired(json!({"phase": "Running", "containerStatuses": [container("1500m")],
        "ephemeralContainerStatuses": [container("1")], "resources": {"limits": {"cpu": "1"}}}));
    let decision = for_api(&wanted, &api);
    assert_eq!(
        body(&decision)["status"],
        json!({"resize": null, "containerStatuses": [container("1500m")], "resources": {"limits": {"memory": null}}})
    );
    assert!(matches!(decision, Decision::Patch { urgency: Urgency::Now, .. }));
}

#[test]
fn who_has_the_name_now_is_not_written_to() {
    let wanted = desired(json!({"phase": "Running"}));
    let successor = ApiCopy { uid: uid("v"), ..copy(json!({})) };
    assert_eq!(for_api(&wanted, &successor), Decision::Nothing);
    let mirror = ApiCopy { mirror_hash: "h".into(), ..copy(json!({})) };
    assert_eq!(for_api(&wanted, &mirror), Decision::Nothing);
}

#[test]
fn a_status_that_is_not_known_yet_is_not_sent() {
    let mut wanted = desired(json!({}));
    wanted.status = Box::default();
    assert_eq!(for_api(&wanted, &copy(json!({"phase": "Running"}))), Decision::Nothing);
}

#[test]
fn the_end_first_the_deletion_second() {
    let mut wanted = desired(json!({"phase": "Failed"}));
    let mut api = ApiCopy { deleting: true, ..copy(json!({"phase": "Running"})) };
    wanted.may_delete = true;
    wanted.containers_may_run = false;
    assert_eq!(body(&for_api(&wanted, &api))["status"], json!({"phase": "Failed"}));
    api.status = br#"{"phase":"Failed"}"#[..].into();
    assert_eq!(for_api(&wanted, &api), Decision::DeletePod);
    assert_eq!(for_api(&wanted, &ApiCopy { deleting: false, ..api.clone() }), Decision::Nothing);
    wanted.may_delete = false;
    assert_eq!(for_api(&wanted, &api), Decision::Nothing);
    // Not ended by the server's word: it stays.
    wanted.may_delete = true;
    wanted.status = br#"{"phase":"Running"}"#[..].into();
    assert_eq!(for_api(&wanted, &ApiCopy { status: br#"{"phase":"Running"}"#[..].into(), ..api }), Decision::Nothing);
}

#[test]
fn what_nobody_acts_upon_is_told_of_an_object_that_stays_alone() {
    let with = |sandbox: &str, reason: &str| {
        let condition = json!({"type": "PodReadyToStartContainers", "status": sandbox});
        json!({"phase": "Failed", "reason": reason, "conditions": [condition]})
    };
    let wanted = |status, may_delete| Desired { may_delete, containers_may_run: false, ..desired(status) };
    let api = ApiCopy { deleting: true, ..copy(with("True", "a")) };
    let told = |decision: &Decision| matches!(decision, Decision::Patch { .. });
    assert_eq!(for_api(&wanted(with("False", "a"), true), &api), Decision::DeletePod);
    assert!(told(&for_api(&wanted(with("False", "a"), false), &api)), "something of it is left");
    assert!(told(&for_api(&wanted(with("False", "b"), true), &api)), "a reason is read");
    // The server has taken the DELETE, and a finalizer holds the object.
    let held = Context { deletion_pending: true, ..around(Some(&api), None) };
    assert!(told(&decide(&wanted(with("False", "a"), true), held)));
}

#[test]
fn a_change_that_no_controller_waits_for_is_minor() {
    let condition = |kind: &str, status: &str, generation: i64| json!({"type": kind, "status": status, "observedGeneration": generation});
    let old = json!({"phase": "Running", "observedGeneration": 1,
        "conditions": [condition("PodReadyToStartContainers", "False", 1), condition("Ready", "True", 1)]});
    let with = |sandbox: &str, ready: &str, generation: i64, phase: &str| {
        let conditions =
            [condition("PodReadyToStartContainers", sandbox, generation), condition("Ready", ready, generation)];
        desired(json!({"phase": phase, "observedGeneration": generation, "conditions": conditions}))
    };
    for (wanted, expected) in [
        (with("True", "True", 1, "Running"), Urgency::Minor),
        (with("False", "True", 2, "Running"), Urgency::Minor),
        (with("False", "False", 1, "Running"), Urgency::Now),
        (with("True", "True", 2, "Pending"), Urgency::Now),
    ] {
        match for_api(&wanted, &copy(old.clone())) {
            Decision::Patch { urgency, .. } => assert_eq!(urgency, expected),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_order_alone_is_not_written() {
    let (a, b) = (json!({"type": "Ready", "status": "True"}), json!({"type": "PodScheduled", "status": "True"}));
    let wanted = desired(json!({"conditions": [a, b]}));
    assert_eq!(for_api(&wanted, &copy(json!({"conditions": [b, a]}))), Decision::Nothing);
}

fn static_pod() -> Desired {
    let pod = json!({"metadata": {"name": "p", "namespace": "d", "annotations": {"kubernetes.io/config.hash": "h"}}});
    Desired {
        uid: uid("h"),
        is_static: true,
        static_pod: pod.to_string().into_bytes().into(),
        ..desired(json!({"phase": "Running"}))
    }
}

#[test]
fn a_mirror_pod_is_made_renewed_and_written() {
    let owner = Owner { name: "n".into(), uid: "nu".into() };
    let wanted = static_pod();
    assert_eq!(
        body(&decide(&wanted, around(None, Some(&owner))))["metadata"]["annotations"]["kubernetes.io/config.mirror"],
        "h"
    );
    assert_eq!(decide(&wanted, around(None, None)), Decision::Nothing, "the node is not known");

    let mirror = ApiCopy { uid: uid("m"), mirror_hash: "h".into(), ..copy(json!({"phase": "Pending"})) };
    assert_eq!(body(&for_api(&wanted, &mirror)), json!({"metadata": {"uid": "m"}, "status": {"phase": "Running"}}));
    for old in [ApiCopy { mirror_hash: "other".into(), ..mirror.clone() }, ApiCopy { deleting: true, ..mirror.clone() }]
    {
        assert_eq!(for_api(&wanted, &old), Decision::DeleteMirror);
        let later = Context { namesake: true, ..around(Some(&old), Some(&owner)) };
        assert_eq!(decide(&wanted, later), Decision::Nothing, "still its predecessor's");
    }
    let foreign = ApiCopy { mirror_hash: String::new(), ..mirror };
    assert_eq!(for_api(&wanted, &foreign), Decision::Nothing, "never delete what is no mirror pod");
}

#[test]
fn a_terminating_static_pod_gets_no_new_mirror_and_its_last_status_is_sent() {
    let owner = Owner { name: "n".into(), uid: "nu".into() };
    let leaving = Desired { live: false, containers_may_run: false, may_delete: true, ..static_pod() };
    assert_eq!(decide(&leaving, around(None, Some(&owner))), Decision::Nothing);
    let deleted = ApiCopy { mirror_hash: "h".into(), deleting: true, ..copy(json!({"phase": "Failed"})) };
    assert_eq!(
        decide(&leaving, around(Some(&deleted), Some(&owner))),
        Decision::Nothing,
        "no final DELETE of a mirror pod"
    );
    let mirror = ApiCopy { mirror_hash: "h".into(), ..copy(json!({"phase": "Pending"})) };
    assert!(matches!(decide(&leaving, around(Some(&mirror), None)), Decision::Patch { .. }));
}

#[test]
fn a_static_pod_that_has_ended_leaves_no_mirror_of_its_predecessor() {
    let owner = Owner { name: "n".into(), uid: "nu".into() };
    let over = Desired { live: false, finished: true, containers_may_run: false, ..static_pod() };
    let old = ApiCopy { mirror_hash: "other".into(), ..copy(json!({"phase": "Running"})) };
    let alone = Context { is_only_one: true, ..around(Some(&old), Some(&owner)) };
    assert_eq!(decide(&over, alone), Decision::DeleteMirror);
    assert_eq!(decide(&over, Context { is_only_one: false, ..alone }), Decision::Nothing, "it may be the other one's");
    let ending = Desired { finished: false, ..over.clone() };
    assert_eq!(decide(&ending, alone), Decision::Nothing);
    assert_eq!(decide(&over, Context { api: None, ..alone }), Decision::Nothing, "and gets none of its own any more");
}

#[test]
fn what_cannot_be_read_is_refused() {
    let mut wanted = desired(json!([]));
    assert_eq!(for_api(&wanted, &copy(json!({}))), Decision::Refused(Refusal::Status));
    wanted.status = b"{}"[..].into();
    assert_eq!(for_api(&wanted, &copy(json!([]))), Decision::Refused(Refusal::Copy));
    let mut wanted = static_pod();
    wanted.static_pod = b"[]"[..].into();
    assert_eq!(decide(&wanted, around(None, None)), Decision::Refused(Refusal::Mirror(MirrorError::NotAPod)));
}

#[test]
fn the_bodies_that_upstream_sent() {
    // The life of one recorded pod: before, what was computed, and the body that was sent.
    let order = json!([{"type": "PodReadyToStartContainers"}, {"type": "Ready"}, {"type": "PodScheduled"}]);
    let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "lastTransitionTime": "2026-11-21T01:19:29Z", "observedGeneration": 1});
    let scheduled = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-21T01:19:29Z"});
    let waiting = json!([{"image": "i", "imageID": "", "lastState": {}, "name": "one", "ready": false, "restartCount": 0, "started": false,
        "state": {"waiting": {"reason": "ContainerCreating"}}}]);
    let mut unready = condition("Ready", "False");
    unready["reason"] = json!("ContainersNotReady");
    let computed = json!({"phase": "Pending", "observedGeneration": 1, "startTime": "2026-11-21T01:19:29Z", "qosClass": "BestEffort",
        "hostIP": "10.240.0.2", "hostIPs": [{"ip": "10.240.0.2"}], "resources": {}, "containerStatuses": waiting,
        "conditions": [condition("PodReadyToStartContainers", "False"), unready, condition("PodScheduled", "True")]});
    let api = copy(json!({"phase": "Pending", "qosClass": "BestEffort", "conditions": [scheduled]}));
    let mut expected = computed.clone();
    let status = expected.as_object_mut().unwrap();
    status.remove("phase");
    status.remove("qosClass");
    expected["$setElementOrder/conditions"] = order.clone();
    for i in 0..2 {
        expected["conditions"][i]["lastProbeTime"] = Value::Null;
    }
    expected["conditions"][2] = json!({"observedGeneration": 1, "type": "PodScheduled"});
    assert_eq!(body(&for_api(&desired(computed.clone()), &api))["status"], expected);

    let mut noticed = computed.clone();
    noticed["observedGeneration"] = json!(2);
    for i in 0..3 {
        noticed["conditions"][i]["observedGeneration"] = json!(2);
    }
    let expected = json!({"$setElementOrder/conditions": order, "observedGeneration": 2, "conditions": [
        {"observedGeneration": 2, "type": "PodReadyToStartContainers"}, {"observedGeneration": 2, "type": "Ready"},
        {"observedGeneration": 2, "type": "PodScheduled"}]});
    assert_eq!(body(&for_api(&desired(noticed), &copy(computed)))["status"], expected);
}
