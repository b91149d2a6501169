//! What a start finds of volumes.

use super::*;

/// A driver may have staged or published, in a life before this one, what it refuses now: its opposite calls follow with the pod's
/// end.
#[tokio::test(start_paused = true)]
async fn what_was_found_is_not_gone_because_it_is_refused() {
    for call in ["NodeStageVolume", "NodePublishVolume"] {
        let outside = Outside::new();
        mount_pod(&outside.manager(), "a").await;
        outside.staged.lock().values_mut().for_each(|staged| staged.1 = false);
        outside.published.lock().values_mut().for_each(|published| published.1 = false);
        outside.log.lock().clear();
        outside.will(call, Does::Fail(Status::invalid_argument("no")));
        let manager = outside.manager();
        begin(&manager, "a").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let log = outside.log();
        assert!(log.contains(&call.to_owned()), "{log:?}");
        assert!(!log.iter().any(|line| line == "EndStage" || line == "EndPublish"), "{call}: {log:?}");
        manager.remove_pod(&uid("a"));
        manager.wait_for_unmount(&uid("a"), LONG).await.unwrap();
        manager.in_use().wait_for(|in_use| in_use.names.is_empty()).await.unwrap();
        let log = outside.log();
        for opposite in ["NodeUnpublishVolume", "NodeUnstageVolume"] {
            assert!(log.contains(&opposite.to_owned()), "{call}: {log:?}");
        }
    }
}

/// Another life of this process finds what is mounted, and calls no driver for it; what was uncertain is called again.
#[tokio::test(start_paused = true)]
async fn a_restart_adopts_what_is_there() {
    let outside = Outside::new();
    mount_pod(&outside.manager(), "a").await;
    outside.log.lock().clear();
    let manager = outside.manager();
    mount_pod(&manager, "a").await;
    assert_eq!(outside.log(), ["CommitPublish"]);
    outside.log.lock().clear();
    outside.published.lock().values_mut().for_each(|published| published.1 = false);
    mount_pod(&outside.manager(), "a").await;
    assert_eq!(outside.log(), ["NodeGetCapabilities", "PreparePublish", "NodePublishVolume", "CommitPublish"]);
}

/// The mount is there, but what served it is not: kubelet-volnetd finds a folder that nobody can look at.
#[tokio::test(start_paused = true)]
async fn a_mount_that_has_died_is_made_again_by_its_driver() {
    let outside = Outside::new();
    mount_pod(&outside.manager(), "a").await;
    outside.log.lock().clear();
    // That kubelet-volnetd is away says nothing of it.
    outside.will("CommitPublish", Does::Fail(Status::unavailable("starting")));
    let died = "stat /target: Transport endpoint is not connected";
    outside.will("CommitPublish", Does::Fail(Status::internal(died)));
    mount_pod(&outside.manager(), "a").await;
    let log = outside.log();
    assert_eq!(log[..2], ["CommitPublish", "CommitPublish"]);
    assert_eq!(log[2..], MOUNTED);
    assert_eq!(*outside.found.lock(), [false, true, true, false], "a driver is believed");
    assert!(outside.events().is_empty(), "{:?}", outside.events());
}

/// A pod whose claim cannot be read has not said what it wants of what a start has found: that is waited for, for a while.
#[tokio::test(start_paused = true)]
async fn what_was_found_stays_while_a_claim_cannot_be_read() {
    let outside = Outside::new();
    mount_pod(&outside.manager(), "a").await;
    outside.published.lock().clear();
    let manager = outside.manager();
    let (a, pod) = (uid("a"), pod_of("a", "unbound"));
    manager.await_pods([(&a, &*pod)].into_iter());
    manager.add_pod(&a, &pod).await;
    tokio::time::sleep(POPULATED_WITHIN / 2).await;
    assert_eq!(outside.staged.lock().len(), 1);
    tokio::time::sleep(POPULATED_WITHIN).await;
    assert!(outside.staged.lock().is_empty());
}
