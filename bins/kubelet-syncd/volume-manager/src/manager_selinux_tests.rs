//! Volumes that are mounted with a label.

use kubelet_model::selinux::SeLinux;

use super::*;
use crate::metrics::SeLinuxMetrics;

fn on() -> Arc<Outside> {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in
        [("sys/fs/selinux/enforce", "1"), ("usr/share/containers/selinux/contexts", "process=a:b:c:s0\nfile=u:r:t:s0")]
    {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let machine = SeLinux::read(root.path()).unwrap();
    let metrics = SeLinuxMetrics::unregistered().unwrap();
    Outside::on(false, Some(SeLinuxMount { machine, every_mode: false, metrics }))
}

fn labelled(name: &str, level: &str) -> Arc<Pod> {
    let mut pod = (*pod_of(name, "c")).clone();
    let context = json!({"seLinuxOptions": {"level": level}});
    pod.spec.as_mut().unwrap().security_context = Some(serde_json::from_value(context).unwrap());
    Arc::new(pod)
}

async fn want(manager: &VolumeManager, name: &str, level: &str) {
    manager.add_pod(&uid(name), &labelled(name, level)).await;
    manager.folders_ready(&uid(name));
}

#[tokio::test(start_paused = true)]
async fn one_label_after_the_other() {
    let outside = on();
    let manager = outside.manager();
    want(&manager, "a", "s0:c1,c2").await;
    let there = manager.wait_for_attach_and_mount(&uid("a"), LONG).await.unwrap();
    assert!(!there["data"].relabel);
    let flags = |label: &str| [format!("stage context=\"{label}\""), format!("publish context=\"{label}\"")];
    assert_eq!(std::mem::take(&mut *outside.flags.lock()), flags("u:r:t:s0:c1,c2"));
    // Another pod wants another one, as long as the first wants its own.
    want(&manager, "b", "s0:c3").await;
    let waiting = manager.wait_for_attach_and_mount(&uid("b"), LONG).await.unwrap_err();
    assert!(!waiting.timed_out);
    assert_eq!(
        waiting.text,
        "unmounted volumes=[data], unattached volumes=[], failed to process volumes=[data]: conflicting SELinux labels of \
         volume pv: \"u:r:t:s0:c1,c2\" and \"u:r:t:s0:c3\""
    );
    // What kubelet-volnetd lists is labelled as it was.
    outside.epoch.send_replace(2);
    tokio::time::sleep(Duration::from_secs(1)).await;
    // The first one ends, and its driver takes its time.
    outside.will("NodeUnpublishVolume", Does::Hang);
    manager.remove_pod(&uid("a"));
    want(&manager, "b", "s0:c3").await;
    let there = manager.wait_for_attach_and_mount(&uid("b"), LONG).await.unwrap();
    assert!(!there["data"].relabel);
    assert_eq!(
        outside.events(),
        [format!(
            "FailedMount Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to process \
             volumes=[]: waiting for unmount of volume {UNIQUE:?}, because it is already mounted to a different pod with a \
             different SELinux label"
        )],
        "it is said once, and the pod has not failed"
    );
    assert_eq!(std::mem::take(&mut *outside.flags.lock()), flags("u:r:t:s0:c3"));
    assert!(manager.why(&uid("b")).is_empty());
    // Another pod with the same label needs no other stage.
    manager.remove_pod(&uid("b"));
    want(&manager, "c", "s0:c3").await;
    manager.wait_for_attach_and_mount(&uid("c"), LONG).await.unwrap();
    assert_eq!(outside.log().iter().filter(|line| *line == "NodeStageVolume").count(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_a_label_it_is_the_runtimes() {
    let outside = on();
    let manager = outside.manager();
    mount_pod(&manager, "a").await;
    let there = manager.wait_for_attach_and_mount(&uid("a"), LONG).await.unwrap();
    assert!(there["data"].relabel);
    assert_eq!(*outside.flags.lock(), ["stage ", "publish "]);
    // Where SELinux is off nothing is looked at.
    let outside = Outside::new();
    let manager = outside.manager();
    want(&manager, "a", "s0:c1").await;
    manager.wait_for_attach_and_mount(&uid("a"), LONG).await.unwrap();
    assert_eq!(*outside.flags.lock(), ["stage ", "publish "]);
}
