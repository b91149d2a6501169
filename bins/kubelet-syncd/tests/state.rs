//! State files as released versions wrote them, one folder for each version of the forms. What was once written is read
//! for ever; a new form gets a folder of its own, and no file here is ever changed.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bulkhead_daemon::{ANOTHER_KUBELET, StateDir};
use bulkhead_types::{ContainerId, PodUid};
use kubelet_probes::hooks::pre_stop::{NoStore, PreStops};
use kubelet_probes::prober::journal::{ProbeStore, Restored};
use kubelet_probes::prober::results::ProbeResult;
use kubelet_probes::prober::worker::ProbeKind;
use kubelet_runtime::runtime::backoff::CrashLoopBackOff;
use kubelet_runtime::runtime::userns::{IdBlock, PoolError, UserNamespaces};
use kubelet_syncd::private_state::PrivateState;
use kubelet_syncd::sources::uids::UidStore;
use serde_json::{Value, json};

const FILES: [(&str, &str); 9] = [
    ("static-pod-uids.json", include_str!("state/v1/static-pod-uids.json")),
    ("restart-back-off.json", include_str!("state/v1/restart-back-off.json")),
    ("image-pulls.json", include_str!("state/v1/image-pulls.json")),
    ("pre-stop-hooks.json", include_str!("state/v1/pre-stop-hooks.json")),
    ("users-of-pods.json", include_str!("state/v1/users-of-pods.json")),
    ("allocations.json", include_str!("state/v1/allocations.json")),
    ("probe-results.json", include_str!("state/v1/probe-results.json")),
    ("evictions.json", include_str!("state/v1/evictions.json")),
    ("pressure.json", include_str!("state/v1/pressure.json")),
];
const POD: &str = "45bbbc9d-d0f2-4f05-b523-456180a33b77";
const CONTAINER: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn folder(change: impl Fn(&str, &str) -> String) -> (tempfile::TempDir, PrivateState) {
    let temp = tempfile::tempdir().unwrap();
    for (name, content) in FILES {
        std::fs::write(temp.path().join(name), change(name, content)).unwrap();
    }
    let dir = StateDir::lock(std::fs::File::open(temp.path()).unwrap().into()).unwrap();
    (temp, PrivateState::new(dir))
}

fn kept(temp: &tempfile::TempDir) -> Vec<String> {
    let names = std::fs::read_dir(temp.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut kept: Vec<String> = names.filter(|name| !FILES.iter().any(|(file, _)| file == name)).collect();
    kept.sort();
    kept
}

/// Everything that the files of version 1 say.
fn is_understood(state: &PrivateState) {
    let book = UidStore::load(state).unwrap();
    let choice = &book.choices["file:/etc/kubernetes/manifests/web.yaml"];
    assert_eq!(choice.uid, "9b6d61c0820b1343bf3743b2806ef0dd");
    assert_eq!(choice.digest, "0123456789abcdef0123456789abcdef");
    assert_eq!(choice.pod.spec.as_ref().unwrap().containers[0].image.as_deref(), Some("registry.test/web:1"));

    let mut back_off = CrashLoopBackOff::new(Duration::from_secs(10), Duration::from_secs(300));
    back_off.restore(&state.back_off().unwrap());
    let ended = UNIX_EPOCH + Duration::from_millis(1_795_305_600_000);
    assert_eq!(back_off.held_back("5f3b2c1d0e9a8b7c", ended, ended).unwrap().delay, Duration::from_secs(40));

    let pulls = state.pull_records();
    assert_eq!(pulls.counts(), (1, 1));

    let hooks = format!("{:?}", PreStops::new(Arc::new(NoStore), state.pre_stops().as_deref()));
    assert!(hooks.contains(CONTAINER) && hooks.contains("1795305599000") && hooks.contains("ended: true"), "{hooks}");

    let saved = state.allocations().unwrap();
    assert_eq!(saved.allocated[POD].containers["main"].limits.as_ref().unwrap()["cpu"].0, "1");
    assert_eq!(saved.actuated[POD].pod.as_ref().unwrap().limits.as_ref().unwrap()["memory"].0, "1Gi");
    assert_eq!(saved.exported, [1_178_570_812]);

    let evictions = state.evictions().evictions;
    let eviction = &evictions[&PodUid::parse(POD).unwrap()];
    assert_eq!((eviction.message.as_str(), eviction.grace_period), ("The node was low on resource: memory. ", 1));
    assert!(eviction.threshold && eviction.disruption_target && eviction.annotations["starved_resource"] == "memory");
    let pressure = state.pressure().unwrap();
    assert!(pressure.memory && !pressure.disk && !pressure.pid && !pressure.boot_id.is_empty());

    let restored = Restored::from_json(&ProbeStore::load(state).unwrap());
    let container = ContainerId::parse(CONTAINER).unwrap();
    let ready = restored.get(&container, ProbeKind::Readiness).unwrap();
    assert_eq!((ready.result, ready.run), (Some(ProbeResult::Success), 7));
    assert!(restored.get(&container, ProbeKind::Liveness).unwrap().on_hold);
}

fn users(state: &PrivateState) -> Option<IdBlock> {
    let blocks = UserNamespaces::new(Err(PoolError::Length(0)), Box::new(state.clone()));
    blocks.of_pod(&PodUid::parse(POD).unwrap()).ok()
}

#[test]
fn files_of_version_1_are_read() {
    let (temp, state) = folder(|_, content| content.to_owned());
    is_understood(&state);
    assert_eq!(users(&state), Some(IdBlock { first: 262_144, length: 65_536 }));
    assert!(kept(&temp).is_empty(), "{:?}", kept(&temp));
}

/// What a later version may add without calling it another one.
#[test]
fn what_is_added_is_ignored() {
    let (temp, state) = folder(|name, content| {
        let mut file: Value = serde_json::from_str(content).unwrap();
        if name != "pre-stop-hooks.json" {
            file["addedLater"] = json!({"much": ["more"]});
        }
        match name {
            "probe-results.json" => file["probes"][0]["addedLater"] = json!(1),
            "allocations.json" => file["allocated"][POD]["addedLater"] = json!(1),
            "users-of-pods.json" => file["blocks"][POD]["addedLater"] = json!(1),
            "pre-stop-hooks.json" => file[CONTAINER]["addedLater"] = json!(1),
            _ => {}
        }
        file.to_string()
    });
    is_understood(&state);
    assert_eq!(users(&state), Some(IdBlock { first: 262_144, length: 65_536 }));
    assert!(kept(&temp).is_empty(), "{:?}", kept(&temp));
}

/// A later version's files, after a way back: read as far as understood, and kept as they were.
#[test]
fn a_later_version_is_read_as_far_as_understood_and_nothing_of_it_is_lost() {
    let (temp, state) = folder(|name, content| {
        let mut file: Value = serde_json::from_str(content).unwrap();
        file["version"] = json!(2);
        match name {
            "probe-results.json" => file["probes"].as_array_mut().unwrap().push(json!({"kind": "Liveliness"})),
            "allocations.json" => file["allocated"]["other"] = json!(["another", "form"]),
            "restart-back-off.json" => file["entries"]["other"] = json!({"curve": "flat"}),
            "static-pod-uids.json" => file["choices"]["file:/other"] = json!({"uids": []}),
            "image-pulls.json" => {}
            _ => {}
        }
        file.to_string()
    });
    is_understood(&state);
    let names: Vec<&str> = FILES.iter().map(|(name, _)| *name).filter(|name| *name != "users-of-pods.json").collect();
    let mut expected: Vec<String> = names.iter().map(|name| format!("{name}.version-2")).collect();
    expected.sort();
    assert_eq!(kept(&temp), expected);
    for name in names {
        let read = |name: &str| std::fs::read_to_string(temp.path().join(name)).unwrap();
        assert_eq!(read(name), read(&format!("{name}.version-2")));
    }
    // Giving out users of which it is not understood who has them would let one pod into another.
    assert_eq!(users(&state), None);
    assert!(temp.path().join("users-of-pods.json").exists());
}

#[test]
fn damaged_state_is_kept_under_another_name() {
    let (temp, state) = folder(|_, content| content[..content.len() / 2].to_owned());
    assert!(UidStore::load(&state).unwrap().choices.is_empty());
    assert!(state.back_off().is_none() && state.pre_stops().is_none() && state.allocations().is_none());
    assert!(ProbeStore::load(&state).is_none());
    assert_eq!(state.pull_records().counts(), (0, 0));
    assert_eq!(users(&state), None);
    let kept = kept(&temp);
    assert_eq!(kept.len(), 6, "{kept:?}");
    assert!(kept.iter().all(|name| name.ends_with(".json.damaged")));
    assert!(temp.path().join("users-of-pods.json").exists(), "who has which users is never begun anew by itself");
}

/// What would be acted upon of the time before another kubelet had the node goes; what that kubelet did not change stays.
#[test]
fn another_kubelet_has_had_the_node() {
    let (temp, state) = folder(|_, content| content.to_owned());
    state.after_another_kubelet(&[]);
    is_understood(&state);
    std::fs::write(temp.path().join(ANOTHER_KUBELET), "").unwrap();
    for _ in 0..2 {
        state.after_another_kubelet(&[]);
        assert!(ProbeStore::load(&state).is_none() && state.pressure().is_none());
        assert!(state.evictions().evictions.is_empty());
        assert!(UidStore::load(&state).unwrap().choices.is_empty());
        assert!(state.back_off().is_some() && state.pre_stops().is_some() && state.allocations().is_some());
        assert_eq!(state.pull_records().counts(), (1, 1));
        assert!(users(&state).is_some());
        assert!(kept(&temp).is_empty(), "{:?}", kept(&temp));
    }
}
