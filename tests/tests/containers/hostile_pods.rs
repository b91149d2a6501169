//! Pods that any tenant may write and that ask for more than there is: each gets its error, and no daemon dies of it.

use anyhow::{Result, ensure};
use bulkhead_testkit::Pod;
use bulkhead_tests::joined::{Member, NAMESPACE, config_map, create, main_of, wait_event, wait_ready};
use bulkhead_tests::lab;
use serde_json::{Value, json};

#[test]
fn a_grace_period_of_centuries_ends_no_daemon() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Member { cluster, node } = Member::start(&lab, &[], |node| node)?;
    let before = node.pids();
    let deleted = Pod::idle("deleted").spec("terminationGracePeriodSeconds", json!(i64::MAX));
    // A probe's own grace period counts where one fails.
    let sick = json!({"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1,
        "terminationGracePeriodSeconds": i64::MAX});
    create(&cluster, deleted)?;
    create(&cluster, Pod::idle("sick").container_field("livenessProbe", sick))?;
    wait_ready(&cluster, "deleted")?;
    cluster.delete("pods", "default", "deleted", None)?;
    cluster.wait_gone("pods", "default", "deleted")?;
    cluster.wait_for("pods", "default", "sick", "its container runs again", |pod| {
        main_of(pod)["restartCount"].as_i64().is_some_and(|count| count >= 1)
    })?;
    ensure!(node.pids() == before, "{:?} were {before:?}", node.pids());
    node.finish()
}

#[test]
fn variables_that_multiply_are_refused() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let objects = [config_map("big", &json!({"k": "x".repeat(1 << 19)}))];
    let Member { cluster, node } = Member::start(&lab, &objects, |node| node)?;
    let before = node.pids();
    let twenty_of = |name: String| format!("$({name})").repeat(20);
    let mut doubled = vec![json!({"name": "V0", "value": "0123456789"})];
    doubled.extend(
        (1..12).map(|level| json!({"name": format!("V{level}"), "value": twenty_of(format!("V{}", level - 1))})),
    );
    let key = json!({"configMapKeyRef": {"name": "big", "key": "k"}});
    let copied: Vec<Value> = (0..2000).map(|n| json!({"name": format!("V{n}"), "valueFrom": key})).collect();
    let items: Vec<Value> = (0..2000).map(|n| json!({"key": "k", "path": format!("f{n}")})).collect();
    create(&cluster, Pod::idle("doubled").container_field("env", json!(doubled)))?;
    create(&cluster, Pod::idle("copied").container_field("env", json!(copied)))?;
    let volume = json!({"configMap": {"name": "big", "items": items}});
    let items =
        create(&cluster, Pod::idle("items").volume("v", volume.as_object().cloned().unwrap_or_default(), "/v"))?;
    for name in ["doubled", "copied"] {
        cluster.wait_for("pods", "default", name, "CreateContainerConfigError", |pod| {
            let waiting = &main_of(pod)["state"]["waiting"];
            waiting["reason"] == "CreateContainerConfigError"
                && waiting["message"].as_str().is_some_and(|m| m.contains('V'))
        })?;
    }
    wait_event(&cluster, &items, "Warning FailedMount ")?;
    create(&cluster, Pod::idle("modest"))?;
    wait_ready(&cluster, "modest")?;
    ensure!(node.pids() == before, "{:?} were {before:?}", node.pids());
    node.finish()
}

/// A time that the API takes and no `jiff::Timestamp` holds.
const LAST_DAY: &str = "9999-12-31T00:00:00Z";

/// The server looks neither at the times of other managers nor at those of a status. A stand-in keeps no managedFields.
#[test]
fn objects_with_times_that_cannot_be_decoded_hold_up_no_other_pod() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let managed = json!([{"manager": "x", "operation": "Update", "apiVersion": "v1", "time": LAST_DAY,
        "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}}}]);
    let service = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}]},
            "metadata": {"namespace": NAMESPACE, "name": name, "managedFields": managed}})
    };
    // One of them is in the first list, the others come while it is watched.
    let Member { cluster, node } = Member::start(&lab, &[service("listed")], |node| node)?;
    let before = node.pids();
    let service = cluster.create(&service("watched"))?;
    let mut far = Pod::idle("far").value().clone();
    far["metadata"]["managedFields"] = managed.clone();
    let far = create(&cluster, Pod::from_value(far))?;
    for object in [&service, &far] {
        let kept = object["metadata"]["managedFields"].to_string().contains(LAST_DAY);
        ensure!(kept || cluster.is_stand_in(), "{object}");
    }
    wait_ready(&cluster, "far")?;
    // And now it cannot be decoded at all: it runs on as it was last.
    cluster.patch_status("pods", NAMESPACE, "far", &json!({"status": {"startTime": LAST_DAY}}))?;
    create(&cluster, Pod::idle("other"))?;
    wait_ready(&cluster, "other")?;
    cluster.delete("pods", NAMESPACE, "other", None)?;
    cluster.wait_gone("pods", NAMESPACE, "other")?;
    cluster.delete("pods", NAMESPACE, "far", Some(0))?;
    cluster.wait_gone("pods", NAMESPACE, "far")?;
    create(&cluster, Pod::idle("far"))?;
    wait_ready(&cluster, "far")?;
    ensure!(node.pids() == before, "{:?} were {before:?}", node.pids());
    node.finish()
}
