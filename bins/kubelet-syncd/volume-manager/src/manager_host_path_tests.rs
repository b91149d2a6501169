//! PersistentVolumes that are paths of the host.

use super::*;

/// A path of the host is mounted by nobody, and is no device; and of a type that is not known nothing is made of it.
#[tokio::test(start_paused = true)]
async fn what_a_path_of_the_host_is_refused_for() {
    let refused = |step: &str, why: &str| format!("{step} for volume \"pv\" : {why}");
    let options = "mount options are not supported for this volume type";
    let block = "no block volume plugin matched: kubernetes.io/host-path";
    for (volume, device, expected) in [
        (
            json!({"mountOptions": ["noexec"]}),
            false,
            refused("FailedMount MountVolume.MountOptionSupport check failed", options),
        ),
        (
            json!({"volumeMode": "Block", "mountOptions": ["noexec"]}),
            true,
            refused("FailedMapVolume MapVolume.NewBlockVolumeMapper initialization failed", block),
        ),
        (
            json!({"hostPath": {"path": "/srv", "type": "Pipe"}}),
            false,
            refused("FailedMount MountVolume.SetUp failed", "Pipe is an invalid volume type"),
        ),
    ] {
        let outside = Outside::new();
        let mut spec = volume;
        if spec["hostPath"].is_null() {
            spec["hostPath"] = json!({"path": "/srv"});
        }
        *outside.host_path.lock() = spec;
        let manager = outside.manager();
        let mut pod = (*pod_of("a", "c")).clone();
        if device {
            let container = &mut pod.spec.as_mut().unwrap().containers[0];
            container.volume_mounts = None;
            container.volume_devices =
                serde_json::from_value(json!([{"name": "data", "devicePath": "/dev/x"}])).unwrap();
        }
        manager.add_pod(&uid("a"), &Arc::new(pod)).await;
        manager.folders_ready(&uid("a"));
        manager.wait_for_attach_and_mount(&uid("a"), Duration::from_millis(100)).await.unwrap_err();
        assert_eq!(outside.events(), [expected]);
    }
}
