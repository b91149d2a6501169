//! What drivers say of their volumes.

use super::*;
use crate::statistics::Usage;

/// What has not answered in time is not waited for again and again.
#[tokio::test(start_paused = true)]
async fn a_silent_driver_is_asked_for_the_room_of_no_further_volume() {
    let outside = Outside::new();
    let manager = outside.manager();
    let pods: Vec<String> = (b'a'..=b't').map(|letter| char::from(letter).to_string()).collect();
    for pod in &pods {
        mount_pod(&manager, pod).await;
    }
    for _ in &pods {
        outside.will("NodeGetVolumeStats", Does::Hang);
    }
    let began = Instant::now();
    let told: Vec<_> = manager.statistics().all().collect().await;
    assert_eq!(began.elapsed(), Duration::from_secs(10));
    assert_eq!(told.len(), pods.len());
    assert!(told.iter().all(|volume| volume.usage.is_none()));
    let asked = outside.log().iter().filter(|line| *line == "NodeGetVolumeStats").count();
    assert_eq!(asked, 8);
}

/// The driver is asked once, and the pod has the answer by each name.
#[tokio::test(start_paused = true)]
async fn a_claim_that_a_pod_names_twice_is_told_twice() {
    let outside = Outside::new();
    outside.script.lock().entry("NodeGetVolumeStats").or_default();
    *outside.condition.lock() = Some(csi::VolumeCondition { abnormal: true, message: "bad blocks".into() });
    let manager = outside.manager();
    let pod = json!({"metadata": {"name": "a", "namespace": "ns", "uid": "a"}, "spec": {
        "containers": [{"name": "c", "volumeMounts": [
            {"name": "data", "mountPath": "/d"}, {"name": "other", "mountPath": "/o"}]}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "other", "persistentVolumeClaim": {"claimName": "c"}}]}});
    manager.add_pod(&uid("a"), &Arc::new(serde_json::from_value(pod).unwrap())).await;
    manager.folders_ready(&uid("a"));
    manager.wait_for_attach_and_mount(&uid("a"), LONG).await.unwrap();
    let mut told: Vec<_> = manager.statistics().with_health(true).all().collect().await;
    told.sort_by(|one, other| one.volume.cmp(&other.volume));
    let usage = Usage { available: Some(0), capacity: Some(7), used: Some(0), ..Usage::default() };
    let told: Vec<_> = told.iter().map(|told| (told.volume.as_str(), told.usage, told.abnormal)).collect();
    assert_eq!(told, [("data", Some(usage), Some(true)), ("other", Some(usage), Some(true))]);
    assert_eq!(outside.log().iter().filter(|line| *line == "NodeGetVolumeStats").count(), 1);
    let mut events = outside.events();
    events.sort();
    assert_eq!(events, ["data", "other"].map(|name| format!("VolumeConditionAbnormal Volume {name}: bad blocks")));
}
