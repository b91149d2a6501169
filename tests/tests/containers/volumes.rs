//! Volumes as containers see them: what a pod may read of itself, parts of volumes, and the group that owns them.

use anyhow::{Result, ensure};
use bulkhead_testkit::{IDLE, LONG, Pod, eventually, processes};
use bulkhead_tests::lab;
use nix::sys::signal::Signal;
use serde_json::json;

#[test]
fn a_pod_reads_of_itself_and_shares_parts_of_a_volume_by_its_group() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    let script = format!(
        "cat /info/labels; echo; cat /info/notes; echo; echo cpu $(cat /info/deep/cpu); stat -Lc 'info %a %g' /info/labels; \
         stat -c 'data %a %u %g' /data; touch /info/new 2>/dev/null || echo read-only; \
         echo mine > /part/file; echo in $(cat /data/of/self/file); stat -c '%n %A %u %g' /data/of /data/of/self /mem /mem/a /mem/a/b /mem/a/b/c /deep; \
         echo kept > /info/inner/x && echo inner; echo name $NAME; {IDLE}"
    );
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "self", "namespace": "default", "labels": {"app": "self"},
                     "annotations": {"note": "a\"b"}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsUser": 1001, "fsGroup": 3003},
            "containers": [{
                "name": "main", "image": node.image(), "command": ["sh", "-c", script],
                "resources": {"requests": {"cpu": "250m"}},
                "env": [
                    {"name": "PART", "value": "self"},
                    {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
                ],
                "volumeMounts": [
                    {"name": "info", "mountPath": "/info"},
                    {"name": "data", "mountPath": "/info/inner", "subPath": "below"},
                    {"name": "data", "mountPath": "/data"},
                    {"name": "data", "mountPath": "/part", "subPathExpr": "of/$(PART)"},
                    {"name": "memory", "mountPath": "/mem"},
                    {"name": "memory", "mountPath": "/deep", "subPath": "a/b/c"},
                ],
            }],
            "volumes": [
                {"name": "data", "emptyDir": {}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
                {"name": "info", "downwardAPI": {"defaultMode": 256, "items": [
                    {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                    {"path": "notes", "fieldRef": {"fieldPath": "metadata.annotations"}},
                    {"path": "deep/cpu", "resourceFieldRef":
                        {"containerName": "main", "resource": "requests.cpu", "divisor": "1m"}}]}},
            ],
        },
    });
    node.write(&Pod::from_value(pod))?;
    let log = std::fs::read_to_string(node.wait_for_log("self", "main", "name default")?)?;
    let said = |text: &str| ensure_said(&log, text);
    said("app=\"self\"")?;
    said("note=\"a\\\"b\"")?;
    said("cpu 250")?;
    // 0400 and the group may read.
    said("info 440 3003")?;
    said("data 2777 0 3003")?;
    said("read-only")?;
    said("in mine")?;
    // Each directory that was missing is as the volume's root: a tmpfs has the sticky bit, too.
    for path in ["/data/of", "/data/of/self"] {
        said(&format!("{path} drwxrwsrwx 0 3003\n"))?;
    }
    for path in ["/mem", "/mem/a", "/mem/a/b", "/mem/a/b/c", "/deep"] {
        said(&format!("{path} drwxrwsrwt 0 3003\n"))?;
    }
    said("inner")?;

    // Another instance of the container is given the same parts again.
    let running = node.wait_running("self", 1)?;
    processes::signal(node.cri()?.pid(&running.main().id)?, Signal::SIGKILL);
    eventually("the container is back", LONG, || {
        let containers = node.cri()?.containers()?;
        ensure!(containers.iter().any(|one| one.attempt == 1 && one.running), "{containers:?}");
        Ok(())
    })?;
    let again = node.wait_running("self", 1)?;
    let (code, output) = node.cri()?.exec(&again.main().id, &["cat", "/part/file", "/info/inner/x"])?;
    ensure!(code == 0 && output.contains("mine") && output.contains("kept"), "{output}");
    node.finish()
}

fn ensure_said(log: &str, text: &str) -> Result<()> {
    ensure!(log.contains(text), "{text:?} is not in the log:\n{log}");
    Ok(())
}
