//! How pods end, and what holds or lets go of an object.

use super::*;

pub fn a_pod_ends_in_two_steps(server: Server) -> Result<()> {
    let place = Place::new("graceful", server)?;
    let client = place.client();
    let created = place.create(&pod("a", "node-a"))?;
    let uid = created["metadata"]["uid"].clone();
    let path = format!("{PODS}/a");
    let mut events = client.watch(&format!("{PODS}?resourceVersion={}", version(&created)))?;
    let marked = client.request("DELETE", &path, &[], b"")?.success()?;
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(marked["metadata"]["generation"], 2);
    let again = client.send_json("DELETE", &path, &json!({"gracePeriodSeconds": 60}))?.success()?;
    assert_eq!(again["metadata"], marked["metadata"], "a period only shrinks");
    let shorter = client.send_json("DELETE", &path, &json!({"gracePeriodSeconds": 5}))?.success()?;
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    assert_eq!(shorter["metadata"]["generation"], 2);
    let patch = json!({"metadata": {"uid": uid, "deletionTimestamp": null}, "status": {"phase": "Succeeded"}});
    let status = client.patch(&format!("{path}/status"), "strategic-merge-patch", &patch)?.success()?;
    assert!(status["metadata"]["deletionTimestamp"].is_string(), "a status does not take it back");
    let wrong = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "other"}});
    let message = refused(&client.send_json("DELETE", &path, &wrong)?, 409, "Conflict");
    assert!(message.contains("the UID in the precondition (other) does not match the UID in record"), "{message}");
    let last = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
    client.send_json("DELETE", &path, &last)?.success()?;
    refused(&client.get(&path)?, 404, "NotFound");
    let mut seen = Vec::new();
    while seen.last().is_none_or(|(kind, _)| kind != "DELETED") {
        let event = events.expect(SHORT)?;
        seen.push((event.kind, event.object["metadata"]["deletionGracePeriodSeconds"].clone()));
    }
    let kinds = |kind: &str, period: i64| (kind.to_owned(), json!(period));
    assert_eq!(
        seen,
        [kinds("MODIFIED", 30), kinds("MODIFIED", 5), kinds("MODIFIED", 5), kinds("MODIFIED", 0), kinds("DELETED", 0)]
    );
    Ok(())
}

pub fn objects_without_finalizers_go_at_once(server: Server) -> Result<()> {
    let place = Place::new("deletion", server)?;
    let client = place.client();
    place.create(&pod("unscheduled", ""))?;
    client.request("DELETE", &format!("{PODS}/unscheduled"), &[], b"")?.success()?;
    refused(&client.get(&format!("{PODS}/unscheduled"))?, 404, "NotFound");
    place.create(&pod("ended", "node-a"))?;
    client.patch(&format!("{PODS}/ended/status"), "merge-patch", &json!({"status": {"phase": "Failed"}}))?.success()?;
    client.request("DELETE", &format!("{PODS}/ended"), &[], b"")?.success()?;
    refused(&client.get(&format!("{PODS}/ended"))?, 404, "NotFound");

    let mut held = map("held", "1");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    place.create(&held)?;
    client.request("DELETE", &format!("{MAPS}/held"), &[], b"")?.success()?;
    assert!(place.get("configmaps", "default", "held")?["metadata"]["deletionTimestamp"].is_string());
    place.patch("configmaps", "default", "held", &json!({"metadata": {"finalizers": null}}))?;
    refused(&client.get(&format!("{MAPS}/held"))?, 404, "NotFound");

    place.create(&map("plain", "1"))?;
    let status = client.request("DELETE", &format!("{MAPS}/plain"), &[], b"")?.success()?;
    assert_eq!((status["kind"].clone(), status["status"].clone()), (json!("Status"), json!("Success")));
    for name in ["x", "y"] {
        place.create(&map(name, "1"))?;
    }
    client.request("DELETE", &format!("{MAPS}?fieldSelector=metadata.name%3Dx"), &[], b"")?.success()?;
    assert!(place.find("configmaps", "default", "x")?.is_none());
    assert!(place.find("configmaps", "default", "y")?.is_some());
    Ok(())
}
