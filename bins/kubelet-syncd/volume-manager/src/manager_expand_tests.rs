//! Volumes that have become larger than their claims say.

use super::*;

/// As a resizer leaves it that can recover from failures.
fn pending(to: &str) -> serde_json::Map<String, serde_json::Value> {
    let status = json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": to},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"}});
    status.as_object().unwrap().clone()
}

fn grow(outside: &Outside, volume: &'static str, status: serde_json::Map<String, serde_json::Value>) {
    *outside.growth.lock() = Growth { volume, status, requests: volume, expands: true, secret: false };
}

fn since(outside: &Outside, call: &str) -> Vec<String> {
    let log = outside.log();
    let from = log.iter().rposition(|line| line == call).map_or(0, |at| at + 1);
    log[from..].to_vec()
}

/// A pod has the volume, which is as large as its claim.
async fn mounted() -> (Arc<Outside>, Arc<VolumeManager>) {
    let outside = Outside::new();
    grow(&outside, "1Gi", pending("1Gi"));
    outside.growth.lock().status.remove("allocatedResourceStatuses");
    let manager = outside.manager();
    mount_pod(&manager, "a").await;
    (outside, manager)
}

const EXPANDED: [&str; 4] =
    ["claim [] [NodeResizeInProgress] false []", "NodeGetCapabilities", "to 2147483648", "NodeExpandVolume"];
const DONE: &str = "claim [2Gi] [] true []";
const SUCCESS: &str = "FileSystemResizeSuccessful MountVolume.NodeExpandVolume succeeded for volume \"pv\" n";

/// The pod's event and the claim's.
fn both(event: &str) -> [String; 2] {
    [event.to_owned(), format!("PersistentVolumeClaim c: {event}")]
}

#[tokio::test(start_paused = true)]
async fn before_the_pod_has_it() {
    let outside = Outside::new();
    grow(&outside, "2Gi", pending("2Gi"));
    let manager = outside.manager();
    mount_pod(&manager, "a").await;
    let mut expected = EXPANDED.to_vec();
    expected.extend([DONE, "CommitPublish"]);
    assert_eq!(since(&outside, "NodePublishVolume"), expected);
    assert_eq!(outside.events(), both(SUCCESS));
    // Nothing is left to do.
    manager.add_pod(&uid("a"), &pod_of("a", "c")).await;
    tokio::time::sleep(LONG).await;
    assert_eq!(since(&outside, "CommitPublish"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn while_the_pod_runs() {
    let (outside, manager) = mounted().await;
    grow(&outside, "2Gi", pending("2Gi"));
    manager.add_pod(&uid("a"), &pod_of("a", "c")).await;
    tokio::time::sleep(LONG).await;
    let mut expected = EXPANDED.to_vec();
    expected.push(DONE);
    assert_eq!(since(&outside, "CommitPublish"), expected);
    assert_eq!(outside.events(), both(SUCCESS));
}

/// What a failure leaves: the calls of one try, the claim's last status, the events.
struct Case {
    status: Status,
    claim: &'static str,
    online: &'static [&'static str],
    /// Nothing: the pod has its volume in the end without another word.
    offline: &'static [&'static str],
    tries: usize,
}

fn cases() -> [Case; 4] {
    [
        Case {
            status: Status::out_of_range("too large"),
            claim: "claim [] [NodeResizeInfeasible] false [failed to expand pvc with Expander.NodeExpand failed to expand the volume rpc error: code = OutOfRange desc = too large]",
            online: &[
                "VolumeResizeFailed NodeExpandVolume.NodeExpandVolume failed for volume \"pv\" : Expander.NodeExpand failed to expand the volume rpc error: code = OutOfRange desc = too large",
            ],
            offline: &[
                "FailedMount MountVolume.Setup failed while expanding volume for volume \"pv\" : Expander.NodeExpand failed to expand the volume rpc error: code = OutOfRange desc = too large",
            ],
            tries: 1,
        },
        Case {
            status: Status::failed_precondition("in use"),
            claim: "claim [] [NodeResizeInProgress] false [failed to expand pvc with Expander.NodeExpand failed to expand the volume : rpc error: code = FailedPrecondition desc = in use]",
            online: &[],
            offline: &[],
            tries: 1,
        },
        Case {
            status: Status::internal("broken"),
            claim: "claim [] [NodeResizeInProgress] false [failed to expand pvc with Expander.NodeExpand failed to expand the volume : rpc error: code = Internal desc = broken]",
            online: &[
                "VolumeResizeFailed NodeExpandVolume.NodeExpandVolume failed for volume \"pv\" : Expander.NodeExpand failed to expand the volume : rpc error: code = Internal desc = broken",
            ],
            offline: &[
                "FailedMount MountVolume.Setup failed while expanding volume for volume \"pv\" : Expander.NodeExpand failed to expand the volume : rpc error: code = Internal desc = broken",
            ],
            tries: 2,
        },
        Case {
            // It may have worked, and the claim says all the same that it has failed.
            status: Status::aborted("again"),
            claim: "claim [] [NodeResizeInProgress] false [failed to expand pvc with Expander.NodeExpand failed to expand the volume : rpc error: code = Aborted desc = again]",
            online: &[
                "VolumeResizeFailed NodeExpandVolume.NodeExpandVolume failed for volume \"pv\" : Expander.NodeExpand failed to expand the volume : rpc error: code = Aborted desc = again",
            ],
            offline: &[
                "FailedMount MountVolume.Setup failed while expanding volume for volume \"pv\" : Expander.NodeExpand failed to expand the volume : rpc error: code = Aborted desc = again",
            ],
            tries: 2,
        },
    ]
}

fn errors(outside: &Outside) -> Vec<String> {
    outside.log().into_iter().filter(|line| line.starts_with("claim") && !line.ends_with("[]")).collect()
}

fn expansions(outside: &Outside) -> usize {
    outside.log().iter().filter(|line| *line == "NodeExpandVolume").count()
}

#[tokio::test(start_paused = true)]
async fn failures_while_it_is_mounted() {
    for case in cases() {
        let outside = Outside::new();
        grow(&outside, "2Gi", pending("2Gi"));
        outside.will("NodeExpandVolume", Does::Fail(case.status.clone()));
        let manager = outside.manager();
        mount_pod(&manager, "a").await;
        assert_eq!(expansions(&outside), case.tries, "{:?}", case.status);
        assert_eq!(errors(&outside).concat(), case.claim);
        let mut expected: Vec<String> = case.offline.iter().map(ToString::to_string).collect();
        if case.tries == 2 {
            expected.extend(both(SUCCESS));
        }
        assert_eq!(outside.events(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn failures_while_the_pod_runs() {
    for case in cases() {
        let (outside, manager) = mounted().await;
        grow(&outside, "2Gi", pending("2Gi"));
        outside.will("NodeExpandVolume", Does::Fail(case.status.clone()));
        manager.add_pod(&uid("a"), &pod_of("a", "c")).await;
        tokio::time::sleep(LONG).await;
        assert_eq!(expansions(&outside), case.tries, "{:?}", case.status);
        assert_eq!(errors(&outside).concat(), case.claim);
        let mut expected: Vec<String> = case.online.iter().map(ToString::to_string).collect();
        if case.tries == 2 {
            expected.extend(both(SUCCESS));
        }
        assert_eq!(outside.events(), expected);
        // What is infeasible is tried again when the controller says so; what is in use, with the next mount.
        manager.add_pod(&uid("a"), &pod_of("a", "c")).await;
        tokio::time::sleep(LONG).await;
        assert_eq!(expansions(&outside), case.tries, "{:?}", case.status);
        outside.growth.lock().status.clone_from(&pending("2Gi"));
        manager.add_pod(&uid("a"), &pod_of("a", "c")).await;
        tokio::time::sleep(LONG).await;
        let again = case.status.code() == tonic::Code::OutOfRange;
        assert_eq!(expansions(&outside), case.tries + usize::from(again), "{:?}", case.status);
    }
}

/// Neither that the driver cannot say what it can do nor that its secret is missing lets the claim wait without a word.
#[tokio::test(start_paused = true)]
async fn what_keeps_the_driver_from_being_asked_is_told_to_the_claim() {
    let (broken, absent) = (Does::Fail(Status::internal("broken")), Does::NotRegistered);
    let can =
        "Expander.NodeExpand failed to check if node supports expansion : rpc error: code = Internal desc = broken";
    let secret = "expander.NodeExpand failed to get NodeExpandSecretRef kube-system/s: kubernetes.io/csi: failed to find the secret \
                  s in the namespace kube-system with error: secrets \"s\" not found";
    let unregistered = "driver name d not found in the list of registered CSI drivers";
    let told = |why: &str| vec![format!("claim [] [NodeResizeInProgress] false [failed to expand pvc with {why}]")];
    for (does, has_secret, why, claim) in [
        (Some(broken), false, can, told(can)),
        (None, true, secret, told(secret)),
        // It may come back in a moment.
        (Some(absent), false, unregistered, vec![]),
    ] {
        let (outside, manager) = mounted().await;
        grow(&outside, "2Gi", pending("2Gi"));
        outside.growth.lock().secret = has_secret;
        does.into_iter().for_each(|does| outside.will("NodeGetCapabilities", does));
        manager.add_pod(&uid("a"), &pod_of("a", "c")).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(errors(&outside), claim);
        let event = format!("VolumeResizeFailed NodeExpandVolume.NodeExpandVolume failed for volume \"pv\" : {why}");
        assert_eq!(outside.events(), [event]);
    }
}

/// What somebody has asked less of meanwhile, and fails again, is the controller's.
#[tokio::test(start_paused = true)]
async fn a_size_that_nobody_wants_any_more() {
    for (status, code) in
        [(Status::internal("broken"), "Internal"), (Status::resource_exhausted("broken"), "ResourceExhausted")]
    {
        let outside = Outside::new();
        grow(&outside, "3Gi", pending("3Gi"));
        outside.growth.lock().requests = "2Gi";
        outside.will("NodeExpandVolume", Does::Fail(status.clone()));
        outside.will("NodeExpandVolume", Does::Fail(status));
        let manager = outside.manager();
        mount_pod(&manager, "a").await;
        let error = format!(
            "[failed to expand pvc with Expander.NodeExpand failed to expand the volume : rpc error: code = {code} desc = broken]"
        );
        assert_eq!(
            errors(&outside),
            [
                format!("claim [] [NodeResizeInProgress] false {error}"),
                format!("claim [] [NodeResizeInfeasible] false {error}")
            ]
        );
    }
}

/// A resizer that knows nothing of allocatedResources.
#[tokio::test(start_paused = true)]
async fn resizers_of_old() {
    let outside = Outside::new();
    let old = || json!({"capacity": {"storage": "1Gi"}}).as_object().unwrap().clone();
    grow(&outside, "2Gi", old());
    let manager = outside.manager();
    mount_pod(&manager, "a").await;
    let expected = ["NodeGetCapabilities", "to 2147483648", "NodeExpandVolume", DONE, "CommitPublish"];
    assert_eq!(since(&outside, "NodePublishVolume"), expected);
    // A driver that has no part in it.
    let outside = Outside::new();
    grow(&outside, "2Gi", old());
    outside.growth.lock().expands = false;
    let manager = outside.manager();
    mount_pod(&manager, "a").await;
    assert_eq!(since(&outside, "NodePublishVolume"), ["NodeGetCapabilities", "CommitPublish"]);
    assert!(outside.events().is_empty());
}

/// A claim may be given less than its volume has: nobody goes on looking at it until the pod's next sync.
#[tokio::test(start_paused = true)]
async fn a_claim_that_has_less_than_its_volume_is_looked_at_once_a_sync() {
    let (outside, manager) = mounted().await;
    let less = json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "1Gi"}});
    grow(&outside, "2Gi", less.as_object().unwrap().clone());
    outside.reads.lock().clear();
    manager.add_pod(&uid("a"), &pod_of("a", "c")).await;
    tokio::time::sleep(LONG).await;
    let claims = outside.reads.lock().iter().filter(|read| **read == "claim").count();
    assert!(claims <= 2, "{claims}: with the sync, and for the expansion");
    assert_eq!(since(&outside, "CommitPublish"), Vec::<String>::new());
}

/// The controller has done all of it: neither is the driver called nor the claim written, whatever the driver can do.
#[tokio::test(start_paused = true)]
async fn what_needs_no_node_is_left_alone() {
    for expands in [true, false] {
        let (outside, manager) = mounted().await;
        let done = json!({"capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"}});
        grow(&outside, "2Gi", done.as_object().unwrap().clone());
        outside.growth.lock().expands = expands;
        for _ in 0..2 {
            manager.add_pod(&uid("a"), &pod_of("a", "c")).await;
            tokio::time::sleep(LONG).await;
        }
        assert_eq!(since(&outside, "CommitPublish"), Vec::<String>::new(), "the driver expands: {expands}");
        assert_eq!(outside.events(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn who_only_reads_has_it_as_it_is() {
    let outside = Outside::new();
    grow(&outside, "2Gi", pending("2Gi"));
    let manager = outside.manager();
    let mut pod = (*pod_of("a", "c")).clone();
    pod.spec.as_mut().unwrap().volumes.as_mut().unwrap()[0].persistent_volume_claim.as_mut().unwrap().read_only =
        Some(true);
    manager.add_pod(&uid("a"), &Arc::new(pod)).await;
    manager.folders_ready(&uid("a"));
    manager.wait_for_attach_and_mount(&uid("a"), LONG).await.unwrap();
    assert_eq!(since(&outside, "NodePublishVolume"), ["CommitPublish"]);
    let says =
        "FileSystemResizeFailed MountVolume.NodeExpandVolume failed for volume \"pv\" requested read-only file system";
    assert_eq!(outside.events(), both(says));
}

/// Of a volume that a pod has only its size is looked at, and nobody is woken by a look that finds nothing new.
#[tokio::test(start_paused = true)]
async fn what_a_pod_has_is_read_no_further() {
    let outside = Outside::new();
    let status = json!({"capacity": {"storage": "1Gi"}});
    grow(&outside, "1Gi", status.as_object().unwrap().clone());
    let manager = outside.manager();
    mount_pod(&manager, "a").await;
    tokio::time::sleep(LONG).await;
    let reads = || std::mem::take(&mut *outside.reads.lock());
    reads();
    let mut changed = manager.context.changed.subscribe();
    let pod = pod_of("a", "c");
    manager.add_pod(&uid("a"), &pod).await;
    assert_eq!((reads(), changed.has_changed().unwrap()), (vec!["volume"], false));
    outside.growth.lock().volume = "2Gi";
    manager.add_pod(&uid("a"), &pod).await;
    assert!(changed.has_changed().unwrap());
    tokio::time::sleep(LONG).await;
    assert_eq!(reads(), ["volume", "claim"], "the claim is asked how far it may grow");
    assert_eq!(since(&outside, "CommitPublish"), ["NodeGetCapabilities", "to 2147483648", "NodeExpandVolume", DONE]);
    manager.add_pod(&uid("a"), &pod).await;
    changed.borrow_and_update();
    manager.add_pod(&uid("a"), &pod).await;
    assert_eq!((reads(), changed.has_changed().unwrap()), (vec!["volume"; 2], false));
    tokio::time::sleep(LONG).await;
    assert_eq!(expansions(&outside), 1, "it has grown");
}
