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

#[test]
fn an_unreadable_volume_is_there_and_no_driver_is_asked() {
    let mut broken = published("p", "a", true, false);
    broken.problem = "not JSON".into();
    let found = ActualState::default().rebuilt(1, Vec::new(), vec![broken]);
    let pod = PodUid::parse("p").unwrap();
    let there = found.published(&name("a"), &pod).unwrap();
    assert!(there.unreadable && there.presence == Presence::Uncertain);
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
