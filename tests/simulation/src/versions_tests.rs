use bulkhead_ipc::common::{Cursor, HelloReply};
use bulkhead_ipc::syncd::pod_update::Update;
use bulkhead_ipc::syncd::{NodeState, PodState, PodUpdate, SourceState};
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::{CompressedLog, Manifest, OpenRequest, RotatedLog, WatchEvent};
use prost::Message as _;

use super::*;

fn record() -> Record {
    Record::newest(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap()
}

fn ends(of_sender: Age, of_receiver: Age) -> Ends {
    Ends { of_sender, of_receiver }
}

#[test]
fn verbs_that_came_since_are_not_there() {
    let record = record();
    for (path, has) in [
        ("/kubelet.syncd.v1.Pods/Watch", true),
        ("/kubelet.syncd.v1.Ooms/Report", false),
        ("/kubelet.syncd.v1.Eviction/Evict", false),
        ("/kubelet.evictiond.v1.Pressure/Watch", false),
        ("/kubelet.volnetd.v1.Files/RotateContainerLog", false),
        ("/kubelet.common.v1.Process/Hello", true),
        ("/grpc.health.v1.Health/Watch", true),
    ] {
        assert_eq!(record.has(path), has, "{path}");
    }
}

#[test]
fn fields_that_came_since_are_missing_whichever_end_is_older() {
    let record = record();
    let hello = HelloReply { version: "9".into(), ready: true, degraded: vec!["less".into()], ..HelloReply::default() };
    let source = SourceState { silent: true, ..SourceState::default() };
    let node = NodeState { shutting_down: true, sources: vec![source], ..NodeState::default() };
    for ages in [(Age::Before, Age::Same), (Age::Same, Age::Before), (Age::Before, Age::After)] {
        let ends = ends(ages.0, ages.1);
        let passed = record.passes("/kubelet.common.v1.Process/Hello", true, &hello.encode_to_vec(), ends);
        let expected = HelloReply { degraded: Vec::new(), ..hello.clone() };
        assert_eq!(passed.iter().map(|m| HelloReply::decode(&**m).unwrap()).collect::<Vec<_>>(), [expected]);
        let passed = record.passes("/kubelet.syncd.v1.Node/Watch", true, &node.encode_to_vec(), ends);
        let inner = NodeState::decode(&*passed[0]).unwrap();
        assert!(!inner.shutting_down && inner.sources == [SourceState::default()], "{inner:?}");
    }
    let passed = record.passes("/kubelet.common.v1.Process/Hello", true, &hello.encode_to_vec(), Ends::default());
    assert_eq!(passed, [hello.encode_to_vec()]);
}

#[test]
fn a_newer_one_says_what_nobody_knows() {
    let record = record();
    let cursor = Some(Cursor { epoch: 5, seq: 7 });
    let pod = PodState { uid: "u".into(), ..PodState::default() };
    let update = PodUpdate { cursor, update: Some(Update::Upsert(pod)) };
    let path = "/kubelet.syncd.v1.Pods/Watch";
    let newer = ends(Age::After, Age::Same);
    let passed = record.passes(path, true, &update.encode_to_vec(), newer);
    assert!(passed[0].len() > update.encoded_len() + 10);
    let read: Vec<PodUpdate> = passed.iter().map(|message| PodUpdate::decode(&**message).unwrap()).collect();
    assert_eq!(read, [update.clone(), PodUpdate { cursor, update: None }]);
    // Who listens to an older one hears nothing of it.
    let heard = record.passes(path, true, &update.encode_to_vec(), ends(Age::Same, Age::After));
    assert_eq!(heard, [update.encode_to_vec()]);
    let passed = record.passes("/kubelet.volnetd.v1.Watches/Watch", true, &[], newer);
    let unheard_of = WatchEvent::decode(&*passed[1]).unwrap();
    assert_eq!((unheard_of.change, unheard_of.name.as_str()), (99, "later.json"));
}

#[test]
fn what_is_no_message_stays_what_it_is() {
    let broken = [0x0a, 0xff];
    for age in [Age::Before, Age::After] {
        let passed = record().passes("/kubelet.syncd.v1.Node/Watch", false, &broken, ends(age, Age::Same));
        assert_eq!(passed, [broken.to_vec()]);
    }
}

#[test]
fn what_is_opened_since_is_nothing_to_the_version_before() {
    let record = record();
    let kind = |kind: Kind| OpenRequest { id: 3, kind: Some(kind), ..OpenRequest::default() };
    let link = OpenRequest { id: 3, link_compressed_log: Some(CompressedLog::default()), ..OpenRequest::default() };
    let manifest = kind(Kind::Manifest(Manifest { index: 1, name: "a.json".into() }));
    let nothing = OpenRequest { id: 3, ..OpenRequest::default() };
    for (asked, understood) in [
        (manifest.clone(), manifest),
        (kind(Kind::RotatedLog(RotatedLog::default())), nothing.clone()),
        (kind(Kind::CompressedLog(CompressedLog::default())), nothing.clone()),
        (link, nothing),
    ] {
        let cut = record.cut("kubelet.volnetd.v1.OpenRequest", &asked.encode_to_vec());
        assert_eq!(OpenRequest::decode(&*cut).unwrap(), understood, "{asked:?}");
    }
}
