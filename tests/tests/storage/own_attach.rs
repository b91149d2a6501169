//! enableControllerAttachDetach: false. A node that attaches volumes by itself, as far as upstream's does, which passes this as well.

use anyhow::{Result, ensure};
use bulkhead_testkit::{IDLE, LONG, eventually, image};
use bulkhead_tests::lab;
use bulkhead_tests::storage::scene::unique_name;
use bulkhead_tests::storage::{NODE, Scene};
use serde_json::{Value, json};

use crate::DRIVER;

const CONTROLLER: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Of drivers whose volumes are attached, and are not.
const ATTACHED: &str = "attached.test";
const PLAIN: &str = "plain.test";

#[test]
fn what_a_node_does_that_attaches_by_itself() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    // As if a controller had attached for this Node before.
    let before = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": NODE, "annotations": {CONTROLLER: "true", "stays": "here"}}});
    cluster.create(&before)?;
    let scene = Scene::start_with(lab, cluster, |node| node.config("enableControllerAttachDetach", json!(false)))?;
    let annotations = scene.cluster.get("nodes", "", NODE)?["metadata"]["annotations"].clone();
    ensure!(annotations[CONTROLLER].is_null() && annotations["stays"] == "here", "{annotations}");

    let driver = scene.driver(DRIVER, PLAIN, &Value::Null)?.start()?;
    driver.wait_registered()?;
    scene.driver(DRIVER, ATTACHED, &json!({"attachRequired": true}))?;
    scene.volume("plain", PLAIN)?;
    scene.volume("attached", ATTACHED)?;
    scene.pod("user", &["plain"])?;
    scene.pod("refused", &["attached"])?;
    scene.create(
        "of-a-disk",
        &json!({
            "volumes": [{"name": "disk", "fc": {"targetWWNs": ["50060e801049cfd1"], "lun": 0}}],
            "containers": [{"name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", IDLE],
                "volumeMounts": [{"name": "disk", "mountPath": "/disk"}]}],
        }),
    )?;
    scene.wait_ready("user")?;
    let why = "attaching volumes from the kubelet is not supported";
    let said = scene.wait_event("refused", &format!("AttachVolume.Attach failed for volume \"attached\" : {why}"))?;
    ensure!(said.starts_with("FailedAttachVolume "), "{said}");
    let said = scene.wait_event("of-a-disk", "AttachVolume.Attach succeeded for volume \"disk\"")?;
    ensure!(said.starts_with("SuccessfulAttachVolume "), "{said}");
    let said = scene.wait_event("of-a-disk", "for volume \"disk\" : no fc disk found")?;
    ensure!(said.starts_with("FailedMount MountVolume.WaitForAttach failed"), "{said}");
    let mut used = [unique_name(ATTACHED, "attached"), "kubernetes.io/fc/[50060e801049cfd1]:0".to_owned()];
    used.sort();
    eventually("both are in use, and nothing is attached", LONG, || {
        let in_use = scene.volumes("volumesInUse")?;
        ensure!(in_use == used && scene.volumes("volumesAttached")?.is_empty(), "{in_use:?}");
        Ok(())
    })?;
    let attachments = scene.cluster.list("volumeattachments", None)?;
    ensure!(attachments.is_empty(), "{attachments:?}");
    for pod in ["user", "refused", "of-a-disk"] {
        scene.delete(pod)?;
    }
    scene.wait_no_traces()?;
    drop(driver);
    scene.finish()
}
