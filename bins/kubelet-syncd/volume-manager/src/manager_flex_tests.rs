//! Volumes of FlexVolume drivers.

use super::*;

pub fn refusal(verb: &'static str, source: Status) -> VolnetdError {
    if source.code() == tonic::Code::Unavailable {
        return VolnetdError::Away { verb, source };
    }
    VolnetdError::Refused { verb, source }
}

/// Volume and driver, and what is told of the device and of sizes.
pub fn shown(request: &api::SetUpFlexRequest) -> String {
    let api::SetUpFlexRequest { volume, driver, options, device, grow, .. } = request;
    let part = match request.part() {
        api::FlexPart::Unspecified => "",
        api::FlexPart::Device => ", once a node",
        api::FlexPart::Pod => ", for the pod",
    };
    let told = options.as_ref().unwrap();
    assert!(told.secret.is_none());
    let used = if told.read_only { "to read" } else { "to write" };
    let device = device.as_ref().map_or("not attached".to_owned(), |device| format!("device {device}"));
    let grow = grow.as_ref().map(|grow| format!(", {} of {}", grow.new_size, grow.old_size)).unwrap_or_default();
    format!("SetUpFlex {volume} {driver} {used}, {device}{grow}{part}")
}

fn with_driver(can: FlexCapabilities) -> Arc<Outside> {
    let outside = Outside::new();
    *outside.flex.lock() = Some(can);
    outside
}

/// One that says nothing of what it can do, and nothing of it is asked of the node yet.
fn attaching() -> Arc<Outside> {
    let can = FlexCapabilities { attach: true, fs_group: true, selinux_relabel: true, ..FlexCapabilities::default() };
    with_driver(FlexCapabilities { requires_fs_resize: true, ..can })
}

const ATTACHED: &str = "v/d/pv";

/// As a controller and kubelet-statusd write it.
fn attach(outside: &Outside) {
    outside.node.send_modify(|node| {
        let status = Arc::make_mut(node.as_mut().unwrap()).status.get_or_insert_default();
        let entry = json!([{"name": ATTACHED, "devicePath": "/dev/sdx"}]);
        status.volumes_attached = Some(serde_json::from_value(entry).unwrap());
    });
}

fn pod_with_driver(volume: &serde_json::Value) -> Arc<Pod> {
    let pod = json!({"metadata": {"name": "a", "namespace": "ns", "uid": "a"}, "spec": {
        "containers": [{"name": "c", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}],
        "volumes": [{"name": "data", "flexVolume": volume}]}});
    Arc::new(serde_json::from_value(pod).unwrap())
}

/// An inline volume of a FlexVolume driver goes with its pod's folder, as an export does.
#[tokio::test(start_paused = true)]
async fn a_flexvolume_driver_is_told_of_its_volume() {
    let outside = with_driver(FlexCapabilities { supports_metrics: false, ..FlexCapabilities::default() });
    let manager = outside.manager();
    manager.add_pod(&uid("a"), &pod_with_driver(&json!({"driver": "v/d", "readOnly": true}))).await;
    manager.folders_ready(&uid("a"));
    let found = manager.wait_for_attach_and_mount(&uid("a"), LONG).await.unwrap();
    let root = Root::Flex { driver: "v/d".into() };
    assert_eq!((&found["data"].root, &found["data"].host_path), (&root, &PathBuf::from("/flex")));
    assert!(!found["data"].relabel && found["data"].read_only);
    assert_eq!(outside.log(), ["AskFlexDriver v/d", "SetUpFlex data v/d to read, not attached"]);
    assert!(manager.statistics().all().collect::<Vec<_>>().await.is_empty());
    manager.remove_pod(&uid("a"));
    manager.wait_for_unmount(&uid("a"), LONG).await.unwrap();
    assert!(manager.in_use().borrow().names.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_mounted_has_figures_where_its_driver_says_so() {
    let outside = with_driver(FlexCapabilities { supports_metrics: true, ..FlexCapabilities::default() });
    let manager = outside.manager();
    manager.add_pod(&uid("a"), &pod_with_driver(&json!({"driver": "v/d"}))).await;
    manager.folders_ready(&uid("a"));
    manager.wait_for_attach_and_mount(&uid("a"), LONG).await.unwrap();
    let told = manager.statistics().all().collect::<Vec<_>>().await;
    assert_eq!((told.len(), told[0].folder.as_str(), &told[0].usage), (1, "/flex", &None));
}

/// Nothing is known of the volume before the driver has said what it can do.
#[tokio::test(start_paused = true)]
async fn a_driver_that_is_not_there_is_asked_again_with_the_pods_next_sync() {
    let outside = attaching();
    let manager = outside.manager();
    manager.add_pod(&uid("a"), &pod_with_driver(&json!({"driver": "v/off"}))).await;
    manager.folders_ready(&uid("a"));
    let waiting = manager.wait_for_attach_and_mount(&uid("a"), LONG).await.unwrap_err();
    let text = "unmounted volumes=[data], unattached volumes=[], failed to process volumes=[data]: failed to get Plugin from \
                volumeSpec for volume \"data\" err=off";
    assert_eq!((waiting.text.as_str(), waiting.away), (text, false));
    *outside.flex.lock() = None;
    manager.add_pod(&uid("a"), &pod_with_driver(&json!({"driver": "v/d"}))).await;
    assert!(manager.wait_for_attach_and_mount(&uid("a"), LONG).await.unwrap_err().away);
    assert_eq!(outside.log(), ["AskFlexDriver v/off", "AskFlexDriver v/d"]);
    assert!(manager.in_use().borrow().names.is_empty());
}

/// It waits for the controller's word, is mounted for two pods, and goes after the last one's folder.
#[tokio::test(start_paused = true)]
async fn what_is_attached_is_in_use_until_the_driver_has_unmounted_it() {
    let outside = attaching();
    let manager = outside.manager();
    begin(&manager, "a").await;
    let waiting = manager.wait_for_attach_and_mount(&uid("a"), Duration::from_secs(60)).await.unwrap_err();
    assert!(waiting.text.contains("unattached volumes=[data]"), "{}", waiting.text);
    let mut in_use = manager.in_use();
    let listed = InUse { names: vec![ATTACHED.into()], complete: true };
    assert_eq!(*in_use.borrow_and_update(), listed);
    assert_eq!(outside.log(), ["AskFlexDriver v/d"]);
    let before = Instant::now();
    attach(&outside);
    manager.wait_for_attach_and_mount(&uid("a"), LONG).await.unwrap();
    assert_eq!(before.elapsed(), Duration::ZERO);
    begin(&manager, "b").await;
    manager.wait_for_attach_and_mount(&uid("b"), LONG).await.unwrap();
    let [once, set_up] = parts();
    assert_eq!(outside.log()[1..], [&once, &set_up, "AskFlexDriver v/d", &once, &set_up]);
    // What a pod has is asked for no more.
    manager.add_pod(&uid("a"), &pod_of("a", "c")).await;
    assert_eq!(outside.log().len(), 6);
    // kubelet-volnetd starts again: what is mounted once a node is found.
    outside.epoch.send_replace(2);
    manager.wait_for_attach_and_mount(&uid("b"), LONG).await.unwrap();
    for pod in ["a", "b"] {
        manager.remove_pod(&uid(pod));
        manager.wait_for_unmount(&uid(pod), LONG).await.unwrap();
        assert_eq!(*in_use.borrow_and_update(), listed, "{pod}");
        manager.torn_down(&uid(pod));
    }
    in_use.wait_for(|in_use| in_use.names.is_empty()).await.unwrap();
    assert_eq!(outside.log().last().unwrap(), "EndDisk kubernetes.io/flexvolume/v/d/pv");
    // A successor that finds one which nobody wants has it unmounted, and lists it until then.
    outside.disks.lock().insert(ATTACHED.into());
    outside.log.lock().clear();
    let _successor = outside.manager();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(outside.log(), ["EndDisk kubernetes.io/flexvolume/v/d/pv"]);
    assert!(outside.events().is_empty());
}

/// What is asked for a pod's volume that is attached.
fn parts() -> [String; 2] {
    ["once a node", "for the pod"].map(|part| format!("SetUpFlex pv v/d to write, device /dev/sdx, {part}"))
}

/// Upstream's spec `should not work when mount is in progress`: the pod goes, and the volume is in use until it is unmounted.
#[tokio::test(start_paused = true)]
async fn a_pod_goes_while_its_volume_is_mounted_once_a_node() {
    let outside = attaching();
    attach(&outside);
    outside.will("SetUpFlex", Does::Hang);
    let manager = outside.manager();
    begin(&manager, "a").await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let began = Instant::now();
    manager.remove_pod(&uid("a"));
    manager.wait_for_unmount(&uid("a"), LONG).await.unwrap();
    manager.torn_down(&uid("a"));
    assert_eq!(began.elapsed(), Duration::ZERO);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(manager.in_use().borrow().names, [ATTACHED]);
    tokio::time::sleep(Duration::from_secs(110)).await;
    assert!(manager.in_use().borrow().names.is_empty());
    let [once, _] = parts();
    assert_eq!(outside.log()[1..], [&once, "EndDisk kubernetes.io/flexvolume/v/d/pv"]);
    assert!(outside.events().is_empty() && manager.counts().1.is_empty());
}

/// A driver that has failed may have mounted it once a node.
#[tokio::test(start_paused = true)]
async fn what_a_driver_could_not_mount_is_unmounted_after_its_pod() {
    let outside = attaching();
    attach(&outside);
    let refused = Status::with_details(tonic::Code::Aborted, "no such share", b"MountDevice"[..].into());
    (0..100).for_each(|_| outside.will("SetUpFlex", Does::Fail(refused.clone())));
    let manager = outside.manager();
    begin(&manager, "a").await;
    manager.wait_for_attach_and_mount(&uid("a"), Duration::from_secs(2)).await.unwrap_err();
    assert_eq!(outside.events()[0], "FailedMount MountVolume.MountDevice failed for volume \"pv\" : no such share");
    manager.remove_pod(&uid("a"));
    manager.wait_for_unmount(&uid("a"), LONG).await.unwrap();
    let mut in_use = manager.in_use();
    in_use.wait_for(|in_use| in_use.names.is_empty()).await.unwrap();
    assert_eq!(outside.log().last().unwrap(), "EndDisk kubernetes.io/flexvolume/v/d/pv");
}

#[tokio::test(start_paused = true)]
async fn a_driver_has_its_part_in_expansions() {
    const GIB: i64 = 1 << 30;
    let outside = attaching();
    attach(&outside);
    let status = json!({"capacity": {"storage": "1Gi"}}).as_object().unwrap().clone();
    *outside.growth.lock() = Growth { volume: "2Gi", status, requests: "2Gi", expands: false, secret: false };
    (0..2).for_each(|_| outside.will("SetUpFlex", Does::NotRegistered));
    outside.will("SetUpFlex", Does::Fail(Status::aborted("no room")));
    let manager = outside.manager();
    begin(&manager, "a").await;
    manager.wait_for_attach_and_mount(&uid("a"), LONG).await.unwrap();
    let set_up = "SetUpFlex pv v/d to write, device /dev/sdx".to_owned();
    let grown = |new: i64, old: i64| format!("{set_up}, {} of {}", new * GIB, old * GIB);
    let mut expected = vec!["AskFlexDriver v/d".to_owned()];
    // The pod does not have it before its file system fills it.
    for _ in 0..2 {
        expected.extend(parts());
        expected.push(grown(2, 1));
    }
    expected.push("claim [2Gi] [] true []".to_owned());
    assert_eq!(outside.log(), expected);
    let failed = "FailedMount MountVolume.Setup failed while expanding volume for volume \"pv\" : no room";
    assert_eq!(outside.events()[0], failed);
    // While its pod runs.
    outside.growth.lock().volume = "3Gi";
    outside.log.lock().clear();
    manager.add_pod(&uid("a"), &pod_of("a", "c")).await;
    tokio::time::sleep(LONG).await;
    assert_eq!(outside.log(), [grown(3, 2), "claim [3Gi] [] true []".to_owned()]);
    // What is not mounted is not asked about again before it is. That is no failure: the claim is told of none.
    let status = json!({"capacity": {"storage": "3Gi"}, "allocatedResources": {"storage": "4Gi"},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"}});
    let status = status.as_object().unwrap().clone();
    *outside.growth.lock() = Growth { volume: "4Gi", status, requests: "4Gi", expands: false, secret: false };
    outside.log.lock().clear();
    outside.will("SetUpFlex", Does::Fail(Status::failed_precondition("nothing is mounted")));
    manager.add_pod(&uid("a"), &pod_of("a", "c")).await;
    tokio::time::sleep(LONG).await;
    assert_eq!(outside.log(), ["claim [] [NodeResizeInProgress] false []".to_owned(), grown(4, 3)]);
}

/// enableControllerAttachDetach: false.
#[tokio::test(start_paused = true)]
async fn a_node_that_attaches_by_itself_has_none_that_are_attached() {
    let outside = attaching();
    let manager = outside.manager_with(false);
    begin(&manager, "a").await;
    let waiting = manager.wait_for_attach_and_mount(&uid("a"), Duration::from_secs(2)).await.unwrap_err();
    let refused = "AttachVolume.Attach failed for volume \"pv\" : attaching volumes from the kubelet is not supported";
    assert_eq!(waiting.errors, [refused]);
    assert_eq!(outside.log(), ["AskFlexDriver v/d"]);
}
