use super::*;

fn device(handle: &str, block: bool) -> api::CsiDevice {
    api::CsiDevice { driver: "d".into(), volume_handle: handle.into(), block, spec_name: format!("pv-{handle}") }
}

fn staged(handle: &str, mounted: bool, uncertain: bool) -> api::StagedVolume {
    api::StagedVolume {
        // Its vol_data.json names driver and handle alone.
        device: Some(api::CsiDevice { spec_name: String::new(), ..device(handle, false) }),
        staging_path: format!("/s/{handle}"),
        mounted,
        uncertain,
        ..api::StagedVolume::default()
    }
}

fn published(pod: &str, handle: &str, mounted: bool, uncertain: bool) -> api::PublishedVolume {
    let data = api::CsiVolumeData { device: Some(device(handle, false)), ..api::CsiVolumeData::default() };
    api::PublishedVolume {
        pod_uid: pod.into(),
        data: Some(data),
        target_path: format!("/t/{handle}"),
        mounted,
        uncertain,
        ..api::PublishedVolume::default()
    }
}

fn name(handle: &str) -> UniqueName {
    UniqueName(format!("kubernetes.io/csi/d^{handle}"))
}

#[test]
fn what_is_found_after_a_start() {
    let pod = PodUid::parse("p").unwrap();
    let found = ActualState::default().rebuilt(
        7,
        vec![staged("a", true, false), staged("b", false, false), staged("c", true, true)],
        vec![published("p", "a", true, false), published("p", "b", false, false), published("p", "e", true, true)],
    );
    assert_eq!(found.epoch, 7);
    let staged = |handle: &str| found.volumes.get(&name(handle)).unwrap().staged;
    assert_eq!((staged("a"), staged("b"), staged("c")), (Presence::Yes, Presence::Uncertain, Presence::Uncertain));
    let there = |handle: &str| found.published(&name(handle), &pod).unwrap().presence;
    assert_eq!((there("a"), there("b"), there("e")), (Presence::Yes, Presence::Uncertain, Presence::Uncertain));
    let a = found.volumes.get(&name("a")).unwrap();
    assert_eq!(a.device.as_ref().unwrap().spec_name, "pv-a");
    assert_eq!(a.pods[&pod].spec_name, "pv-a");
    // The driver of this one does not stage.
    assert_eq!(staged("e"), Presence::No);
}

/// As kubelet-volnetd lists what it cannot read: by the folder alone.
fn unknown(pod: &str, spec: &str, block: bool) -> api::PublishedVolume {
    let device = api::CsiDevice { block, spec_name: spec.into(), ..api::CsiDevice::default() };
    api::PublishedVolume {
        data: Some(api::CsiVolumeData { device: Some(device), ..api::CsiVolumeData::default() }),
        problem: "not JSON".into(),
        ..published(pod, "x", true, false)
    }
}

fn unknown_staging(folder: &str) -> api::StagedVolume {
    api::StagedVolume {
        device: Some(api::CsiDevice { driver: "d".into(), ..api::CsiDevice::default() }),
        staging_path: format!("/s/d/{folder}/globalmount"),
        folder: folder.into(),
        problem: "not JSON".into(),
        ..staged("x", true, false)
    }
}

#[test]
fn unreadable_volumes_are_there_each_by_its_folder() {
    let all = vec![unknown("p", "one", false), unknown("p", "two", false), unknown("q", "one", true)];
    let found = ActualState::default().rebuilt(1, Vec::new(), all);
    let pods = |name: &str| found.volumes[&UniqueName(format!("kubernetes.io/csi/{name}"))].pods.clone();
    for (name, pod) in [("p-one", "p"), ("p-two", "p"), ("q-one", "q")] {
        let there = &pods(name)[&PodUid::parse(pod).unwrap()];
        assert!(there.unreadable && there.presence == Presence::Uncertain, "{name}");
    }
    // What a pod wants is known as soon as its file is written.
    let mut found = found;
    let device = api::CsiDevice { spec_name: "one".into(), ..device("a", false) };
    found.is_named(&name("a"), &device, Some(&PodUid::parse("p").unwrap()));
    let left: Vec<&str> =
        found.volumes.iter().filter(|(_, volume)| !volume.pods.is_empty()).map(|(name, _)| name.0.as_str()).collect();
    assert_eq!(left, ["kubernetes.io/csi/p-two", "kubernetes.io/csi/q-one"]);
}

#[test]
fn what_is_staged_and_unreadable_is_known_by_its_pod_or_by_its_folder() {
    let (of_a, of_b) = (crate::names::folder("a"), crate::names::folder("b"));
    let staged = vec![unknown_staging(&of_a), unknown_staging(&of_b), unknown_staging("")];
    let mut found = ActualState::default().rebuilt(1, staged, vec![published("p", "a", true, false)]);
    let a = &found.volumes[&name("a")];
    assert_eq!((a.staged, a.staging_path.as_str()), (Presence::Uncertain, &*format!("/s/d/{of_a}/globalmount")));
    let by_folder = UniqueName(format!("kubernetes.io/csi/d/{of_b}"));
    assert_eq!(found.volumes[&by_folder].nameless(), Some(Nameless::FileSystem { driver: "d", folder: &of_b }));
    assert_eq!(found.volumes.len(), 2, "a folder of no volume is left alone: {found:?}");
    found.is_named(&name("b"), &device("b", true), None);
    assert_eq!(found.volumes[&by_folder].staged, Presence::Uncertain, "a block volume has another folder");
    found.is_named(&name("b"), &device("b", false), None);
    assert!(found.volumes[&by_folder].is_gone());
}

#[test]
fn what_the_node_lists_stays_in_use() {
    let found = ActualState::default().rebuilt(1, vec![staged("a", true, false), staged("b", true, false)], Vec::new());
    let listed = BTreeSet::from([name("a").0]);
    assert_eq!(found.attachable(&listed).cloned().collect::<Vec<_>>(), [name("a")]);
    let mut known = found.clone();
    known.volumes.get_mut(&name("b")).unwrap().attachable = Some(true);
    known.volumes.get_mut(&name("a")).unwrap().attachable = Some(false);
    let known = known.rebuilt(2, vec![staged("a", true, false), staged("b", true, false)], Vec::new());
    assert_eq!(known.attachable(&listed).cloned().collect::<Vec<_>>(), [name("b")]);
}

#[test]
fn names_of_disks_by_their_folders() {
    for (plugin, folder, name) in [
        (crate::spec::FC, "50-51-lun-1", "kubernetes.io/fc/[50 51]:1"),
        (
            crate::spec::ISCSI,
            "iface-default/10.0.0.1:3260-iqn.x:a-lun-b-lun-2",
            "kubernetes.io/iscsi/10.0.0.1:3260:iqn.x:a-lun-b:2",
        ),
        (crate::spec::ISCSI, "iface-a/store-1.test:1-naa.5-lun-0", "kubernetes.io/iscsi/store-1.test:1:naa.5:0"),
    ] {
        let place = api::DiskPlace { plugin: plugin.into(), name: folder.into(), block: false };
        assert_eq!(disk_name(&place).0, name, "{folder}");
    }
}
