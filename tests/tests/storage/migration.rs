//! In-tree kinds of volumes, which a CSI driver serves. The drivers are ours, by the names of the real ones.

use anyhow::{Result, ensure};
use bulkhead_testkit::csi::objects;
use bulkhead_testkit::{IDLE, image};
use bulkhead_tests::lab;
use bulkhead_tests::storage::scene::unique_name;
use bulkhead_tests::storage::{NODE, Scene, recorded};
use serde_json::{Value, json};

use crate::DRIVER;

const GCE: &str = "pd.csi.storage.gke.io";
const AWS: &str = "ebs.csi.aws.com";
const VSPHERE: &str = "csi.vsphere.vmware.com";
const HANDLE: &str = "projects/UNSPECIFIED/zones/us-central1-a/disks/disk-1";

fn pod_of(volumes: &[Value]) -> Value {
    let mounts: Vec<Value> = volumes
        .iter()
        .map(|volume| json!({"name": volume["name"], "mountPath": format!("/{}", volume["name"].as_str().unwrap_or("x"))}))
        .collect();
    json!({"volumes": volumes, "containers": [{"name": "main", "image": image::BUSYBOX,
        "command": ["sh", "-c", IDLE], "volumeMounts": mounts}]})
}

#[test]
fn in_tree_volumes_are_mounted_by_their_drivers() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let scene = Scene::start(lab, cluster)?;
    let gce = scene.driver(DRIVER, GCE, &json!({"attachRequired": true}))?.start()?;
    let aws = scene.driver(DRIVER, AWS, &Value::Null)?.start()?;
    let vsphere = scene.driver(DRIVER, VSPHERE, &Value::Null)?.start()?;
    for driver in [&gce, &aws, &vsphere] {
        driver.wait_registered()?;
    }
    let disk = json!({"csi": null, "gcePersistentDisk": {"pdName": "disk-1", "fsType": "ext4"},
        "accessModes": ["ReadWriteMany"]});
    objects::create_bound(&scene.cluster, "claimed", GCE, &disk)?;
    let labels = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "us-central1-a"}}});
    scene.cluster.patch("persistentvolumes", "", "claimed", &labels)?;

    let mut spec = pod_of(&[
        objects::of_claim("claimed"),
        json!({"name": "inline", "awsElasticBlockStore": {"volumeID": "aws://us-east-1a/vol-17"}}),
        json!({"name": "datastore", "vsphereVolume": {"volumePath": "[ds] folder/disk.vmdk"}}),
    ]);
    // Their folders have other names than the volumes.
    if let Some(mounts) = spec["containers"][0]["volumeMounts"].as_array_mut() {
        let part = |volume: &str| json!({"name": volume, "mountPath": format!("/part-of-{volume}"), "subPath": "a/b"});
        mounts.extend(["claimed", "inline", "datastore"].map(part));
    }
    scene.create("migrated", &spec)?;
    // The controller knows it by the driver's handle, and so does the node.
    let unique = unique_name(GCE, HANDLE);
    scene.cluster.wait_for("nodes", "", NODE, "the volume is in use", |node| {
        node["status"]["volumesInUse"].as_array().is_some_and(|all| all.iter().any(|name| *name == unique))
    })?;
    let attachment = recorded::attachment(HANDLE, GCE, NODE);
    scene.cluster.create(&json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": attachment}, "spec": {"attacher": GCE, "nodeName": NODE,
            "source": {"persistentVolumeName": "claimed"}}}))?;
    let attached = json!({"status": {"attached": true, "attachmentMetadata": {"lun": "4"}}});
    scene.cluster.patch_status("volumeattachments", "", &attachment, &attached)?;
    let attached = json!({"status": {"volumesAttached": [{"name": unique, "devicePath": ""}]}});
    scene.cluster.patch_status("nodes", "", NODE, &attached)?;
    scene.wait_ready("migrated")?;

    let staged = gce.wait_call("NodeStageVolume", HANDLE, |call| call.is_ok())?;
    ensure!(staged.request["volume_context"] == json!({"partition": ""}), "{}", staged.request);
    ensure!(staged.request["publish_context"] == json!({"lun": "4"}), "{}", staged.request);
    let capability = &staged.request["volume_capability"];
    // The driver refuses ReadWriteMany, which the in-tree kind let pass.
    ensure!(capability["access_mode"]["mode"] == "SINGLE_NODE_MULTI_WRITER", "{capability}");
    ensure!(capability["mount"]["fs_type"] == "ext4", "{capability}");
    let staged = aws.wait_call("NodeStageVolume", "vol-17", |call| call.is_ok())?;
    ensure!(staged.request["volume_context"] == json!({"partition": "0"}), "{}", staged.request);
    let published = aws.wait_call("NodePublishVolume", "vol-17", |call| call.is_ok())?;
    let target = published.request["target_path"].as_str().unwrap_or_default().to_owned();
    ensure!(target.ends_with("/volumes/kubernetes.io~csi/ebs.csi.aws.com-vol-17/mount"), "{target}");
    let context = &published.request["volume_context"];
    ensure!(context["csi.storage.k8s.io/ephemeral"] == "false", "{context}");
    vsphere.wait_call("NodePublishVolume", "[ds] folder/disk.vmdk", |call| call.is_ok())?;

    scene.delete("migrated")?;
    for (driver, handle) in [(&gce, HANDLE), (&aws, "vol-17"), (&vsphere, "[ds] folder/disk.vmdk")] {
        driver.wait_call("NodeUnstageVolume", handle, |call| call.is_ok())?;
    }
    scene.wait_no_traces()?;
    drop((gce, aws, vsphere));
    scene.finish()
}

#[test]
fn an_in_tree_volume_waits_for_its_driver_by_name() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let scene = Scene::start(lab, cluster)?;
    // Its object is there, and it is not.
    let name = "cinder.csi.openstack.org";
    let builder = scene.driver(DRIVER, name, &Value::Null)?;
    let volume = json!({"name": "v", "cinder": {"volumeID": "8a1c"}});
    scene.create("waits", &pod_of(&[volume]))?;
    scene.wait_event("waits", &format!("driver name {name} not found in the list of registered CSI drivers"))?;
    let bad = json!({"name": "v", "awsElasticBlockStore": {"volumeID": "aws:///x"}});
    scene.create("bad", &pod_of(&[bad]))?;
    let why = "failed to translate in-tree pv to CSI: failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS \
               volume (aws:///x)";
    scene.wait_event("bad", why)?;
    scene.delete("bad")?;
    let driver = builder.start()?;
    scene.wait_ready("waits")?;
    scene.delete("waits")?;
    scene.wait_no_traces()?;
    drop(driver);
    scene.finish()
}
