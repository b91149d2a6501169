//! Pods and plugins against the manager as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bulkhead_device_plugin::v1beta1::{ContainerAllocateResponse, DeviceSpec};
use kubelet_model::v1::Pod;
use proptest::prelude::*;
use prost::Message as _;
use serde_json::json;

use super::manager::Call;
use super::plugins::{Capacity, Device, Devices, PluginOptions, Plugins, RESOURCES_MAX, STOP_GRACE};
use super::{Admission, DeviceManager, Question};
use crate::checkpoint;
use crate::request::{Gates, PodRequest};
use crate::topology::{Hint, HintProvider as _, NumaMask, Refusal};

const R: &str = "example.com/r";
const NONE: Hint = Hint { affinity: None, preferred: false };

fn device(healthy: bool, nodes: &[i64]) -> Device {
    Device { healthy, nodes: nodes.to_vec() }
}

fn devices(list: &[(&str, bool, &[i64])]) -> Devices {
    list.iter().map(|(id, healthy, nodes)| ((*id).to_owned(), device(*healthy, nodes))).collect()
}

fn ids(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|id| (*id).to_owned()).collect()
}

/// Init containers, sidecars (`+`), then the others; each with its number of devices.
fn pod(uid: &str, init: &[(&str, u32)], apps: &[(&str, u32)]) -> PodRequest {
    let container = |(name, number): &(&str, u32)| {
        let mut one = json!({"name": name.trim_start_matches('+'), "resources": {"limits": {R: number.to_string()}}});
        if name.starts_with('+') {
            one["restartPolicy"] = json!("Always");
        }
        one
    };
    let spec = json!({"initContainers": init.iter().map(container).collect::<Vec<_>>(),
        "containers": apps.iter().map(container).collect::<Vec<_>>()});
    let pod: Pod = serde_json::from_value(json!({"metadata": {"uid": uid}, "spec": spec})).unwrap();
    PodRequest::of(&pod, Gates::default())
}

fn take(manager: &mut DeviceManager, pod: &PodRequest, best: Hint, running: &[&str]) -> Result<(), Refusal> {
    let mut admission = Admission::new(manager, Box::new(|_: &str| ids(running)));
    pod.containers.iter().try_for_each(|container| admission.allocate(pod, container, best))
}

fn answer(manager: &mut DeviceManager, pod: &PodRequest, like: &[&str]) -> Vec<Question> {
    let mut asked = Vec::new();
    while let Some(question) = manager.next_question(&pod.uid, &pod.containers).unwrap() {
        match &question.call {
            Call::GetPreferredAllocation { .. } => {
                manager.preferred(&pod.uid, &pod.containers, &question, &ids(like)).unwrap();
            }
            Call::Allocate { .. } => manager.allocated(&pod.uid, &question, Vec::new()),
        }
        asked.push(question);
    }
    asked
}

fn has(manager: &DeviceManager, pod: &PodRequest, container: &str) -> Vec<String> {
    manager.held().of(&pod.uid, container, R).map(|held| held.devices.iter().cloned().collect()).unwrap_or_default()
}

fn started(list: &[(&str, bool, &[i64])], preferred: bool) -> (DeviceManager, u64) {
    let mut manager = DeviceManager::new(vec![0, 1], None, Instant::now());
    let options = PluginOptions { preferred_allocation: preferred, pre_start: false };
    let generation = manager.connect(R, options);
    manager.list(R, generation, devices(list)).unwrap();
    (manager, generation)
}

#[test]
fn refusals_in_upstreams_words() {
    let (mut manager, generation) = started(&[("a", true, &[]), ("b", false, &[])], false);
    let refused = |manager: &mut DeviceManager, pod: &PodRequest| take(manager, pod, NONE, &[]).unwrap_err();
    let refusal = refused(&mut manager, &pod("u", &[], &[("c", 2)]));
    assert_eq!(refusal.reason, "UnexpectedAdmissionError");
    assert_eq!(
        refusal.message,
        "Allocate failed due to requested number of devices unavailable for example.com/r. Requested: 2, Available: 1, which is unexpected"
    );
    let one = pod("v", &[], &[("c", 1)]);
    take(&mut manager, &one, NONE, &[]).unwrap();
    answer(&mut manager, &one, &[]);
    assert_eq!(manager.health("v", "c")[0].resources.as_ref().unwrap()[0].health.as_deref(), Some("Healthy"));
    assert!(
        refused(&mut manager, &pod("v", &[], &[("c", 2)]))
            .message
            .contains("pod \"v\" container \"c\" changed request for resource \"example.com/r\" from 1 to 2")
    );
    assert_eq!(manager.list(R, generation, devices(&[("a", false, &[]), ("b", true, &[])])), Some(ids(&["v"])));
    assert!(refused(&mut manager, &one).message.contains("previously allocated devices are no longer healthy"));
    // It runs: nothing is asked.
    take(&mut manager, &one, NONE, &["c"]).unwrap();
    assert_eq!(manager.health("v", "c")[0].resources.as_ref().unwrap()[0].health.as_deref(), Some("Unhealthy"));
    manager.disconnect(R, generation, Instant::now());
    assert!(
        refused(&mut manager, &one).message.contains("no healthy devices present; cannot allocate unhealthy devices")
    );
    assert!(manager.forget(Instant::now() + STOP_GRACE + Duration::from_secs(1)));
    assert!(refused(&mut manager, &one).message.contains("cannot allocate unregistered device example.com/r"));
}

#[test]
fn a_plugin_goes_and_comes_back() {
    let (mut manager, first) = started(&[("a", true, &[]), ("b", false, &[])], false);
    let now = Instant::now();
    let shown = |manager: &mut DeviceManager, at| {
        manager.forget(at);
        let shown = manager.capacity();
        (shown.capacity[R], shown.allocatable[R])
    };
    assert_eq!(shown(&mut manager, now), (2, 1));
    let wants = pod("u", &[], &[("c", 1)]);
    assert_eq!(manager.waits_for(&wants, &ids(&[])), None);
    assert!(manager.disconnect(R, first, now));
    assert_eq!(shown(&mut manager, now + STOP_GRACE), (2, 0));
    assert_eq!(manager.waits_for(&wants, &ids(&[])).as_deref(), Some(R));
    assert_eq!(manager.waits_for(&wants, &ids(&["c"])), None, "it runs");
    // Another one has it now: what the first one says is nothing.
    let second = manager.connect(R, PluginOptions::default());
    assert!(!manager.disconnect(R, first, now) && manager.list(R, first, Devices::new()).is_none());
    assert_eq!(manager.waits_for(&wants, &ids(&[])).as_deref(), Some(R), "it has not told its devices");
    manager.list(R, second, devices(&[("a", true, &[])])).unwrap();
    assert_eq!((shown(&mut manager, now), manager.waits_for(&wants, &ids(&[]))), ((1, 1), None));
    manager.disconnect(R, second, now);
    assert_eq!(shown(&mut manager, now + STOP_GRACE + Duration::from_secs(1)), (0, 0), "for good");
    assert_eq!(manager.waits_for(&wants, &ids(&[])), None);
    // It has been here, and need not be looked for; that of a checkpoint has not.
    assert_eq!(manager.plugins().last(R), Some(second));
    let mut plugins = Plugins::default();
    plugins.expect(R, now);
    assert_eq!(plugins.last(R), None);
    // It is back with its first list.
    let third = plugins.connect(R, PluginOptions::default());
    assert_eq!((plugins.last(R), plugins.has_told(R, third)), (Some(third), None));
    plugins.disconnect(R, third, now);
    assert_eq!(plugins.has_told(R, third), Some(false));
    let fourth = plugins.connect(R, PluginOptions::default());
    assert_eq!((plugins.has_told(R, third), plugins.has_told(R, fourth)), (Some(false), None));
    plugins.list(R, fourth, devices(&[("a", true, &[])])).unwrap();
    assert_eq!(plugins.has_told(R, fourth), Some(true));
    plugins.disconnect(R, fourth, now);
    assert_eq!(plugins.has_told(R, fourth), Some(true), "it had");
}

#[test]
fn init_containers_leave_their_devices() {
    let (mut manager, _) = started(&[("a", true, &[]), ("b", true, &[]), ("c", true, &[])], false);
    let pod = pod("u", &[("i", 2), ("+s", 1)], &[("x", 1), ("y", 1)]);
    take(&mut manager, &pod, NONE, &[]).unwrap();
    assert_eq!(answer(&mut manager, &pod, &[]).len(), 4);
    let of = |container: &str| has(&manager, &pod, container);
    assert_eq!(
        (of("i"), of("s"), of("x"), of("y")),
        (vec!["a".into(), "b".into()], vec!["a".into()], vec!["b".into()], vec!["c".into()])
    );
}

#[test]
fn the_plugins_word_is_heard_where_there_is_a_choice() {
    let (mut manager, _) = started(&[("a", true, &[]), ("b", true, &[]), ("c", true, &[])], true);
    let pod = pod("u", &[("i", 1)], &[("x", 2)]);
    take(&mut manager, &pod, NONE, &[]).unwrap();
    let asked = answer(&mut manager, &pod, &["c"]);
    assert_eq!(
        (has(&manager, &pod, "i"), has(&manager, &pod, "x")),
        (vec!["c".to_owned()], vec!["a".to_owned(), "c".into()])
    );
    let Call::GetPreferredAllocation { available, must_include, size } = &asked[2].call else { panic!("{asked:?}") };
    assert_eq!((available.len(), must_include, *size), (3, &vec!["c".to_owned()], 2));
    assert_eq!(asked.len(), 4);
    // All that is left: nothing to choose, and it is not in anybody's way what it says.
    let rest = super::tests::pod("v", &[], &[("x", 1)]);
    take(&mut manager, &rest, NONE, &[]).unwrap();
    answer(&mut manager, &rest, &["a", "nonsense"]);
    assert_eq!(has(&manager, &rest, "x"), ["b"]);
    assert!(take(&mut manager, &super::tests::pod("w", &[], &[("x", 1)]), NONE, &[]).is_err());
    assert!(manager.take_back("v") && !manager.take_back("v"));
}

#[test]
fn what_a_plugin_prefers_moves_what_later_containers_have() {
    // Init containers and sidecars, the others, devices that there are, which the plugin prefers; who has which in the end.
    type Row = (
        &'static [(&'static str, u32)],
        &'static [(&'static str, u32)],
        &'static str,
        &'static str,
        &'static [(&'static str, &'static str)],
    );
    let rows: &[Row] = &[
        // The second init container moves, too, and the others with it.
        (&[("i", 1), ("j", 2)], &[("x", 1), ("y", 1)], "abcd", "d", &[("i", "d"), ("j", "ad"), ("x", "a"), ("y", "d")]),
        (
            &[("i", 1), ("j", 2)],
            &[("x", 1), ("y", 2)],
            "abcd",
            "cd",
            &[("i", "c"), ("j", "cd"), ("x", "c"), ("y", "ad")],
        ),
        // Nothing is free but what the pod's later containers are to have.
        (&[("i", 1)], &[("x", 1)], "a", "", &[("i", "a"), ("x", "a")]),
        (&[("i", 1), ("j", 2)], &[("x", 1), ("y", 1)], "ab", "b", &[("i", "b"), ("j", "ab"), ("x", "a"), ("y", "b")]),
        // A sidecar keeps what it has, be it of an init container.
        (&[("i", 1), ("+s", 1)], &[("x", 1)], "abcd", "c", &[("i", "c"), ("s", "c"), ("x", "a")]),
        (&[("+s", 1), ("i", 2)], &[("x", 1)], "abcd", "cd", &[("s", "c"), ("i", "ad"), ("x", "a")]),
        (
            &[("i", 2), ("+s", 1), ("j", 2)],
            &[("x", 2)],
            "abc",
            "c",
            &[("i", "ac"), ("s", "a"), ("j", "bc"), ("x", "bc")],
        ),
    ];
    for (index, (init, apps, there, like, expected)) in rows.iter().enumerate() {
        let letters = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
        let names = letters(there);
        let list: Vec<(&str, bool, &[i64])> = names.iter().map(|id| (id.as_str(), true, &[] as &[i64])).collect();
        let (mut manager, _) = started(&list, true);
        let pod = pod("u", init, apps);
        take(&mut manager, &pod, NONE, &[]).unwrap();
        let like = letters(like);
        answer(&mut manager, &pod, &like.iter().map(String::as_str).collect::<Vec<_>>());
        let found: Vec<(&str, String)> =
            expected.iter().map(|(name, _)| (*name, has(&manager, &pod, name).concat())).collect();
        let expected: Vec<(&str, String)> = expected.iter().map(|(name, ids)| (*name, (*ids).to_owned())).collect();
        assert_eq!(found, expected, "{index}");
    }
}

#[test]
fn devices_of_the_nodes_that_were_agreed_on() {
    let list: &[(&str, bool, &[i64])] =
        &[("a", true, &[0]), ("b", true, &[1]), ("c", true, &[1]), ("d", true, &[]), ("e", true, &[0, 1])];
    let (mut manager, _) = started(list, false);
    let nobody = || Box::new(|_: &str| BTreeSet::<String>::new());
    let wants = pod("u", &[], &[("c", 3)]);
    let hints = Admission::new(&mut manager, nobody()).hints(&wants, &wants.containers[0]);
    let shown: Vec<(Vec<u32>, bool)> =
        hints[R].iter().flatten().map(|hint| (hint.affinity.unwrap().nodes().collect(), hint.preferred)).collect();
    assert_eq!(shown, [(vec![1], true), (vec![0, 1], false)]);
    take(&mut manager, &wants, Hint::new(NumaMask::new([1]), true), &[]).unwrap();
    answer(&mut manager, &wants, &[]);
    assert_eq!(has(&manager, &wants, "c"), ["b", "c", "e"]);
    // The one that is of the hint's node first, then what is left.
    let more = pod("v", &[], &[("c", 2)]);
    take(&mut manager, &more, Hint::new(NumaMask::new([0]), false), &[]).unwrap();
    answer(&mut manager, &more, &[]);
    assert_eq!(has(&manager, &more, "c"), ["a", "d"]);
    let by_node = &manager.held().of("u", "c", R).unwrap().by_node;
    assert_eq!(by_node.get(&1).unwrap(), &["b", "c", "e"]);
    assert_eq!(by_node.get(&0).unwrap(), &["e"]);
    let none = Admission::new(&mut manager, nobody()).hints(&pod("w", &[], &[("c", 1)]), &wants.containers[0]);
    assert_eq!(none[R], Some(Vec::new()));
    let again = Admission::new(&mut manager, nobody()).pod_hints(&wants);
    assert_eq!(again[R].as_ref().unwrap().len(), 2, "what it has already gives the same hints");
}

#[test]
fn the_checkpoint_of_upstream_comes_back_as_it_was() {
    let text = include_str!("../checkpoint/upstream_devices.json").trim_end();
    let found = checkpoint::devices::read(text.as_bytes()).unwrap();
    let mut manager = DeviceManager::new(vec![0], Some(&found), Instant::now());
    let resource = "example.com/resource";
    assert_eq!(manager.capacity().capacity, BTreeMap::from([(resource.to_owned(), 0)]));
    let generation = manager.connect(resource, PluginOptions::default());
    manager.list(resource, generation, devices(&[("Dev-1", true, &[]), ("Dev-2", true, &[])])).unwrap();
    let uid = "f6e8e287-3417-4a16-b1ac-b90b9128bbd4";
    assert_eq!(manager.grants(uid, "c").mounts.len(), 1);
    assert_eq!(manager.grants(uid, "i").mounts.len() + manager.grants(uid, "i").devices.len(), 1);
    let written = manager.to_file();
    let sorted = |file: &checkpoint::devices::Devices| {
        let mut entries = file.pod_device_entries.clone().unwrap();
        entries.sort_by(|a, b| (&a.uid, &a.container_name).cmp(&(&b.uid, &b.container_name)));
        entries
    };
    assert_eq!(sorted(&written), sorted(&found));
    let bytes = checkpoint::devices::write(&written).unwrap();
    assert_eq!(checkpoint::devices::read(&bytes).unwrap(), written);
}

/// Upstream's `fromCheckpointData`.
#[test]
fn an_answer_of_the_checkpoint_that_cannot_be_read_is_asked_for_again() {
    let entry = |container: &str, answer: Option<&[u8]>| checkpoint::devices::PodDevices {
        uid: "u".to_owned(),
        container_name: container.to_owned(),
        resource_name: R.to_owned(),
        device_ids: Some(BTreeMap::from([(-1, vec![format!("device-{container}")])])),
        alloc_resp: answer.map(checkpoint::devices::to_base64),
    };
    // A field that is longer than the message, and nothing at all.
    let entries = vec![entry("cut", Some(&[0x0a, 0x7f])), entry("empty", Some(&[])), entry("none", None)];
    let found = checkpoint::devices::Devices {
        pod_device_entries: Some(entries),
        registered_devices: Some(BTreeMap::from([(R.to_owned(), Vec::new())])),
    };
    let bytes = checkpoint::devices::write(&found).unwrap();
    let found = checkpoint::devices::read(&bytes).unwrap();
    let mut manager = DeviceManager::new(vec![0], Some(&found), Instant::now());
    let pod = pod("u", &[], &[("cut", 1), ("empty", 1), ("none", 1)]);
    let generation = manager.connect(R, PluginOptions::default());
    let told = devices(&[("device-cut", true, &[]), ("device-empty", true, &[]), ("device-none", true, &[])]);
    manager.list(R, generation, told).unwrap();
    assert_eq!(["cut", "empty", "none"].map(|container| manager.lacks(&pod, container)), [true, false, false]);
    take(&mut manager, &pod, NONE, &[]).unwrap();
    let question = manager.next_question("u", &pod.containers).unwrap().unwrap();
    assert_eq!(question.container, "cut");
    assert_eq!(question.call, Call::Allocate { devices: vec!["device-cut".to_owned()] });
}

#[test]
fn the_first_answer_counts() {
    let (mut manager, _) = started(&[("a", true, &[])], false);
    let other = "example.com/a-first";
    let generation = manager.connect(other, PluginOptions { pre_start: true, ..Default::default() });
    manager.list(other, generation, devices(&[("z", true, &[])])).unwrap();
    let answer = |value: &str| {
        let device = DeviceSpec {
            container_path: "/dev/x".into(),
            host_path: format!("/dev/{value}"),
            permissions: "rw".into(),
        };
        let envs = BTreeMap::from([("WHO".to_owned(), value.to_owned())]);
        ContainerAllocateResponse { envs, devices: vec![device], ..Default::default() }.encode_to_vec()
    };
    let limits = json!({R: "1", other: "1"});
    let spec = json!({"containers": [{"name": "c", "resources": {"limits": limits}}]});
    let pod: Pod = serde_json::from_value(json!({"metadata": {"uid": "u"}, "spec": spec})).unwrap();
    let pod = PodRequest::of(&pod, Gates::default());
    assert!(manager.lacks(&pod, "c"));
    take(&mut manager, &pod, NONE, &[]).unwrap();
    while let Some(question) = manager.next_question("u", &pod.containers).unwrap() {
        manager.allocated("u", &question, answer(&question.resource[12..]));
    }
    let grants = manager.grants("u", "c");
    assert_eq!((grants.envs["WHO"].as_str(), grants.devices.len()), ("a-first", 1));
    assert!(!manager.lacks(&pod, "c"));
    assert_eq!(manager.pre_start(&pod, "c").unwrap(), [(other.to_owned(), generation, vec!["z".to_owned()])]);
    assert_eq!(manager.allocatable_for(&pod), BTreeMap::from([(R.to_owned(), 2), (other.to_owned(), 2)]));
    manager.disconnect(other, generation, Instant::now());
    let gone = format!("device plugin PreStartContainer rpc failed with err: endpoint {other} has been stopped");
    assert_eq!(manager.pre_start(&pod, "c").unwrap_err(), gone);
}

#[test]
fn a_resource_is_shown_once_its_plugin_has_told_its_devices() {
    let mut manager = DeviceManager::new(vec![0], None, Instant::now());
    let generation = manager.connect(R, PluginOptions::default());
    assert_eq!(manager.capacity(), Capacity::default());
    assert_eq!(manager.to_file().registered_devices, Some(BTreeMap::new()));
    let error = take(&mut manager, &pod("u", &[], &[("c", 1)]), NONE, &[]).unwrap_err();
    let words = format!("cannot allocate unregistered device {R}");
    assert!(format!("{error:?}").contains(&words), "{error:?}");
    manager.list(R, generation, devices(&[("a", true, &[])])).unwrap();
    assert_eq!(manager.capacity().allocatable, BTreeMap::from([(R.to_owned(), 1)]));
}

#[test]
fn resources_that_have_gone_make_room_for_new_ones() {
    let start = Instant::now();
    let mut manager = DeviceManager::new(vec![0], None, start);
    let name = |n: usize| format!("example.com/r{n}");
    let come = |manager: &mut DeviceManager, resource: &str| {
        assert!(manager.plugins().has_place(resource), "{resource}");
        let dropped = manager.make_room(resource);
        let generation = manager.connect(resource, PluginOptions::default());
        manager.list(resource, generation, devices(&[("a", true, &[])])).unwrap();
        (generation, dropped)
    };
    let over = |at| at + STOP_GRACE + Duration::from_secs(1);
    let limits = json!({(name(0)): "1"});
    let spec = json!({"containers": [{"name": "c", "resources": {"limits": limits}}]});
    let holder: Pod = serde_json::from_value(json!({"metadata": {"uid": "u"}, "spec": spec})).unwrap();
    let holder = PodRequest::of(&holder, Gates::default());
    // As many as there may be; a pod has something of the first.
    let generations: Vec<u64> = (0..RESOURCES_MAX).map(|n| come(&mut manager, &name(n)).0).collect();
    take(&mut manager, &holder, NONE, &[]).unwrap();
    answer(&mut manager, &holder, &[]);
    assert!(!manager.plugins().has_place(R) && manager.plugins().has_place(&name(7)));
    // Within its grace a plugin keeps its place.
    for (gone, at) in [(0, start), (2, start), (1, start + Duration::from_secs(1))] {
        manager.disconnect(&name(gone), generations[gone], at);
    }
    manager.forget(start + STOP_GRACE);
    assert!(!manager.plugins().has_place(R));
    manager.forget(over(start));
    manager.forget(over(start + Duration::from_secs(1)));
    let told = |manager: &DeviceManager, n: usize| manager.plugins().told(&name(n)).map(Devices::len);
    assert_eq!([0, 1, 2].map(|n| told(&manager, n)), [Some(1), Some(0), Some(0)], "its pod's status says it still");
    assert_eq!(manager.capacity().capacity[&name(2)], 0, "the node shows it");
    // The one that has gone longest and is nobody's gives its place, then the next; what a pod has stays known.
    assert_eq!(come(&mut manager, "example.com/new0").1, [name(2)]);
    assert_eq!(come(&mut manager, "example.com/new1").1, [name(1)]);
    assert!(come(&mut manager, "example.com/new2").1.is_empty());
    assert_eq!([0, 1, 2].map(|n| told(&manager, n)), [Some(1), None, None]);
    assert!(!manager.plugins().has_place(R) && manager.capacity().capacity.len() == RESOURCES_MAX + 1);
    // Once its pod has ended it goes as well, and however many come and go after that, new ones find a place.
    manager.take_back("u");
    let (mut at, mut last) = (start, "example.com/new2".to_owned());
    for n in 0..3 * RESOURCES_MAX {
        at += Duration::from_secs(1000);
        let generation = manager.plugins().last(&last).unwrap();
        manager.disconnect(&last, generation, at);
        manager.forget(over(at));
        last = format!("example.com/then{n}");
        come(&mut manager, &last);
        assert_eq!(manager.capacity().capacity.len(), RESOURCES_MAX);
    }
}

#[test]
fn what_the_node_has_for_a_pod_of_very_many_containers() {
    let (mut manager, _) = started(&[("a", true, &[]), ("b", true, &[])], false);
    let small = pod("u", &[("i", 1)], &[("x", 1)]);
    take(&mut manager, &small, NONE, &[]).unwrap();
    answer(&mut manager, &small, &[]);
    let names: Vec<String> = (0..20_000).map(|n| format!("c{n}")).collect();
    let asks: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 3)).collect();
    let began = Instant::now();
    let given = manager.allocatable_for(&pod("v", &[], &asks));
    assert_eq!(given, BTreeMap::from([(R.to_owned(), 60_001)]));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(manager.allocatable_for(&pod("w", &[], &[("x", 0)])), BTreeMap::from([(R.to_owned(), 2)]));
}

#[derive(Debug)]
enum Does {
    Come,
    Tell,
    Go,
    /// Its grace passes, too.
    GoForGood,
}

/// What a plugin does, and what is left in the end: what the node shows, whether the checkpoint names it, and the words for a pod.
type Life = (&'static [Does], Option<(u64, u64)>, bool, &'static str);

#[test]
fn what_is_left_of_a_plugin_that_goes() {
    use Does::{Come, Go, GoForGood, Tell};
    let (unregistered, ill) = ("cannot allocate unregistered device", "no healthy devices present");
    let rows: &[Life] = &[
        (&[Come], None, false, unregistered),
        (&[Come, Go], Some((0, 0)), false, unregistered),
        (&[Come, GoForGood], Some((0, 0)), false, ""),
        (&[Come, Go, Come], Some((0, 0)), false, unregistered),
        (&[Come, Tell, Go], Some((1, 0)), true, ill),
        (&[Come, Tell, Go, Come], Some((1, 0)), true, ill),
        // It registers anew: until it tells its devices, they are those that are known.
        (&[Come, Tell, Come], Some((1, 1)), true, ""),
        (&[Come, Tell, GoForGood], Some((0, 0)), false, ""),
        (&[Come, Tell, GoForGood, Come], Some((0, 0)), false, unregistered),
        (&[Come, Go, Come, Tell, Go], Some((1, 0)), true, ill),
    ];
    for (index, (life, shown, kept, words)) in rows.iter().enumerate() {
        let (mut manager, mut generation) = (DeviceManager::new(vec![0], None, Instant::now()), 0);
        for does in *life {
            let now = Instant::now();
            match does {
                Come => generation = manager.connect(R, PluginOptions::default()),
                Tell => drop(manager.list(R, generation, devices(&[("a", true, &[])])).unwrap()),
                Go => assert!(manager.disconnect(R, generation, now) && !manager.forget(now + STOP_GRACE), "{index}"),
                GoForGood => {
                    let over = now + STOP_GRACE + Duration::from_secs(1);
                    assert!(manager.disconnect(R, generation, now) && manager.forget(over), "{index}");
                    assert!(!manager.forget(over), "{index}: it says so once");
                }
            }
        }
        let seen = manager.capacity();
        let seen = seen.capacity.get(R).map(|capacity| (*capacity, seen.allocatable[R]));
        assert_eq!((seen, manager.to_file().registered_devices.unwrap().contains_key(R)), (*shown, *kept), "{index}");
        let mut admission = Admission::new(&mut manager, Box::new(|_: &str| BTreeSet::<String>::new()));
        let pod = pod("u", &[], &[("c", 1)]);
        let refused = admission.allocate(&pod, &pod.containers[0], NONE).err();
        // The resource of no plugin is not the device manager's.
        assert_eq!(refused.is_none(), words.is_empty(), "{index}: {refused:?}");
        assert!(refused.is_none_or(|refused| refused.message.contains(words)), "{index}");
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// The numbers of devices: of an init container, a sidecar, an init container beside it, two others.
    Pod {
        uid: u8,
        asks: [u32; 5],
    },
    End(u8),
    Health(Vec<bool>),
    Gone,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u8..6, prop::array::uniform5(0_u32..3)).prop_map(|(uid, asks)| Step::Pod { uid, asks }),
        3 => (0_u8..6).prop_map(Step::End),
        2 => prop::collection::vec(any::<bool>(), 5).prop_map(Step::Health),
        1 => Just(Step::Gone),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    /// No device is two pods' or that of two containers that run together, none is given that was not healthy, and all come back.
    #[test]
    fn a_life_of_devices(steps in prop::collection::vec(step(), 1..60), like in prop::collection::btree_set("[a-e]", 0..4)) {
        let names = ["a", "b", "c", "d", "e"];
        let all = |health: &[bool]| names.iter().zip(health).map(|(id, healthy)| ((*id).to_owned(), device(*healthy, &[]))).collect::<Devices>();
        let options = PluginOptions { preferred_allocation: true, pre_start: false };
        let now = Instant::now();
        let mut manager = DeviceManager::new(vec![0], None, now);
        let mut health = vec![true; 5];
        let mut generation = manager.connect(R, options);
        manager.list(R, generation, all(&health));
        let mut there = true;
        let mut specs: BTreeMap<u8, [u32; 5]> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Pod { uid, asks } => {
                    // What a pod asks of devices does not change in its life.
                    let asks = if manager.held().has_pod(&format!("u{uid}")) {
                        specs.get(&uid).copied().unwrap_or(asks)
                    } else {
                        asks
                    };
                    specs.insert(uid, asks);
                    let [i, s, j, x, y] = asks;
                    let pod = pod(&format!("u{uid}"), &[("i", i), ("+s", s), ("j", j)], &[("x", x), ("y", y)]);
                    let fresh = !manager.held().has_pod(&pod.uid);
                    if take(&mut manager, &pod, NONE, &[]).is_err() {
                        if fresh { manager.take_back(&pod.uid); }
                        continue;
                    }
                    if fresh { prop_assert!(there || asks == [0; 5]); }
                    while let Some(question) = manager.next_question(&pod.uid, &pod.containers).unwrap() {
                        match &question.call {
                            Call::GetPreferredAllocation { .. } => manager.preferred(&pod.uid, &pod.containers, &question, &like).unwrap(),
                            Call::Allocate { devices } => {
                                prop_assert!(devices.iter().all(|id| health[names.iter().position(|n| n == id).unwrap()]), "{:?}", devices);
                                manager.allocated(&pod.uid, &question, Vec::new());
                            }
                        }
                    }
                    let of = |container: &str| has(&manager, &pod, container);
                    if fresh {
                        for (name, number) in ["i", "s", "j", "x", "y"].into_iter().zip(asks) {
                            prop_assert_eq!(of(name).len(), number as usize);
                        }
                    }
                    // The first init container ends before all others start, and the second one before the last two.
                    for (one, other) in [("s", "j"), ("s", "x"), ("s", "y"), ("x", "y")] {
                        let (one, other) = (of(one), of(other));
                        prop_assert!(!one.iter().any(|id| other.contains(id)), "{:?} and {:?}", one, other);
                    }
                }
                Step::End(uid) => { manager.take_back(&format!("u{uid}")); }
                Step::Health(now) => {
                    health = now;
                    if !there { generation = manager.connect(R, options); }
                    there = true;
                    manager.list(R, generation, all(&health));
                }
                Step::Gone => { manager.disconnect(R, generation, now); there = false; }
                Step::Restart => {
                    let file = manager.to_file();
                    manager = DeviceManager::new(vec![0], Some(&file), now);
                    prop_assert_eq!(manager.to_file().pod_device_entries, file.pod_device_entries);
                    there = false;
                }
            }
            let mut owners: BTreeMap<String, String> = BTreeMap::new();
            for uid in manager.held().uids() {
                let of: BTreeSet<String> = manager.held().of_pod(uid).flat_map(|(_, of)| of.values().flat_map(|a| a.devices.clone())).collect();
                for id in of {
                    prop_assert!(owners.insert(id, uid.clone()).is_none());
                }
            }
        }
    }
}
