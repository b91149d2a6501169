//! Exports of NFS servers, as far as a kernel without NFS goes: what is refused, how a failure is told, and what others have
//! mounted. Needs root. `tests/tests/vm/nfs.rs` has the rest.

use bulkhead_ipc::volnetd::prepare_sub_path_request::Root;
use bulkhead_ipc::volnetd::volumes_client::VolumesClient;
use bulkhead_ipc::volnetd::*;
use bulkhead_testkit::silent_fs::SilentFs;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use rustix::mount::MountFlags;
use tokio_stream::StreamExt as _;
use tonic::Code;
use tonic::transport::Channel;

use crate::world::{SYNCD, world};

fn request(pod: &str) -> SetUpNfsRequest {
    SetUpNfsRequest {
        pod_uid: pod.into(),
        volume: "v".into(),
        server: "server.test".into(),
        // Nobody is there.
        addresses: vec!["127.0.0.1".into()],
        path: "/p".into(),
        options: vec!["soft,timeo=10".into(), "retrans=0".into(), "vers=4.2".into()],
        read_only: true,
    }
}

async fn listed(volumes: &mut VolumesClient<Channel>) -> Vec<VolumeState> {
    let list = volumes.list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    list.map(Result::unwrap).collect().await
}

#[tokio::test(flavor = "current_thread")]
async fn requests_that_cannot_be_meant_make_nothing() {
    let Some(world) = world().await else { return };
    let mut volumes = VolumesClient::new(world.channel(SYNCD).await);
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let bad = |change: &dyn Fn(&mut SetUpNfsRequest)| {
        let mut request = request("p");
        change(&mut request);
        request
    };
    for request in [
        bad(&|r| r.pod_uid = "../p".into()),
        bad(&|r| r.volume = "..".into()),
        bad(&|r| r.server = "a:/b".into()),
        bad(&|r| r.server.clear()),
        bad(&|r| r.addresses.clear()),
        bad(&|r| r.addresses = vec!["server.test".into()]),
        bad(&|r| r.addresses = vec!["::1".into(); 9]),
        bad(&|r| r.path = "p".into()),
        bad(&|r| r.path = "/p\n".into()),
        bad(&|r| r.options = vec!["addr=10.0.0.1".into()]),
        bad(&|r| r.options = vec!["source=/dev/sda".into()]),
    ] {
        let refused = volumes.set_up_nfs(request.clone()).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{request:?}: {refused:?}");
    }
    let refused = volumes.set_up_nfs(bad(&|r| r.options = vec!["hard,bogus".into()])).await.unwrap_err();
    assert_eq!(
        refused.message(),
        format!(
            "mount failed: an incorrect mount option was specified: \"bogus\": it is not known here\nMounting arguments: -t nfs \
             -o hard,bogus server.test:/p {}/volumes/kubernetes.io~nfs/v",
            world.pod("p").display()
        )
    );
    assert_eq!(volumes.set_up_nfs(request("none")).await.unwrap_err().code(), Code::NotFound);
    assert!(!world.pod("p").join("volumes/kubernetes.io~nfs").exists() && world.node.journal.all().is_empty());
}

/// No NFS in this kernel, or nobody at the address.
#[tokio::test(flavor = "current_thread")]
async fn a_failed_mount_is_told_and_leaves_no_folder() {
    let Some(world) = world().await else { return };
    let mut volumes = VolumesClient::new(world.channel(SYNCD).await);
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let target = world.pod("p").join("volumes/kubernetes.io~nfs/v");
    for _ in 0..2 {
        let refused = volumes.set_up_nfs(request("p")).await.unwrap_err();
        assert_eq!(refused.code(), Code::Aborted, "{refused:?}");
        let (reason, arguments) = refused.message().split_once('\n').unwrap();
        let connects = format!("mount failed: Connection refused for server.test:/p on {}", target.display());
        assert!(reason == "mount failed: unknown filesystem type 'nfs'" || reason == connects, "{reason}");
        let wanted = format!(
            "Mounting arguments: -t nfs -o retrans=0,ro,soft,timeo=10,vers=4.2 server.test:/p {}",
            target.display()
        );
        assert_eq!(arguments, wanted);
        assert!(!target.exists());
    }
    assert!(listed(&mut volumes).await.is_empty());
    assert!(world.node.journal.all().is_empty(), "nothing is uncertain");
    let sub_path = PrepareSubPathRequest {
        pod_uid: "p".into(),
        volume: "v".into(),
        container: "c".into(),
        sub_path: "s".into(),
        root: Some(Root::Plugin("kubernetes.io/nfs".into())),
        ..Default::default()
    };
    std::fs::create_dir(&target).unwrap();
    let refused = volumes.prepare_sub_path(sub_path).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound, "an empty folder is no export: {refused:?}");
}

/// What upstream's kubelet mounted there is used, listed and taken away; of what does not answer it is not asked whether it is there.
#[tokio::test(flavor = "current_thread")]
async fn what_is_mounted_there_is_found_and_not_entered() {
    let Some(world) = world().await else { return };
    let mut volumes = VolumesClient::new(world.channel(SYNCD).await);
    for pod in ["p", "q"] {
        volumes.prepare_pod(PreparePodRequest { pod_uid: pod.into() }).await.unwrap();
    }
    let target = |pod: &str| world.pod(pod).join("volumes/kubernetes.io~nfs/v");
    std::fs::create_dir_all(target("p")).unwrap();
    rustix::mount::mount("server.test:/p", target("p"), "tmpfs", MountFlags::empty(), None).unwrap();
    let reply = volumes.set_up_nfs(request("p")).await.unwrap().into_inner();
    assert_eq!(reply.host_path, target("p").display().to_string());
    assert_eq!(world.mounts(&target("p")).len(), 1);
    let silent = if SilentFs::is_possible() {
        std::fs::create_dir_all(target("q")).unwrap();
        let silent = SilentFs::mount_silent(&target("q")).unwrap();
        assert!(volumes.set_up_nfs(request("q")).await.is_ok());
        Some(silent)
    } else {
        skip_this_test(Lack::Fuse).unwrap();
        None
    };
    let all = listed(&mut volumes).await;
    assert_eq!(all.len(), 1 + usize::from(silent.is_some()));
    assert!(all.iter().all(|v| v.mounted && !v.uncertain && v.plugin == "kubernetes.io/nfs"), "{all:?}");
    drop(silent);
    let request = TearDownPodRequest { pod_uid: "p".into(), guard: world.guard(1), volumes_only: false };
    let reply = volumes.tear_down_pod(request).await.unwrap().into_inner();
    assert!(reply.done && !world.pod("p").exists(), "{reply:?}");
}
