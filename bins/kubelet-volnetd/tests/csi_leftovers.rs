//! Volumes of CSI drivers that others left: half done, without a file that says what they are, or with one that was cut off. Needs
//! root.

use std::path::{Path, PathBuf};

use bulkhead_ipc::volnetd::*;
use bulkhead_types::PodUid;
use kubelet_volnetd::journal::Intent;
use tonic::Code;

use crate::csi::{
    Clients, DRIVER, bind, device, mount_tmpfs, published, staged, to_commit, to_end, to_publish, to_stage,
};

/// What is half done without an intent, as upstream's kubelet leaves it.
#[tokio::test(flavor = "current_thread")]
async fn what_others_left_is_listed_as_it_is() {
    let Some(mut clients) = Clients::new().await else { return };
    let (base, folder) = (clients.base(), clients.folder());
    // An empty folder is no volume, and goes with the pod.
    std::fs::create_dir_all(&folder).unwrap();
    assert!(published(&mut clients.csi).await.is_empty());
    // A target without the file is one.
    std::fs::create_dir(folder.join("mount")).unwrap();
    let listed = published(&mut clients.csi).await;
    assert!(listed[0].problem.contains("there is no") && !listed[0].mounted, "{listed:?}");
    assert!(!clients.tear_down().await.done && folder.join("mount").exists());
    // Nobody knows whose it is, and so it is named by its folder alone.
    let by_name = CsiDevice { spec_name: "pv".into(), ..Default::default() };
    clients.csi.begin_unpublish(to_end(&clients.world, "p", by_name.clone())).await.unwrap();
    clients.csi.end_publish(to_end(&clients.world, "p", by_name)).await.unwrap();
    assert!(published(&mut clients.csi).await.is_empty());
    // A file in a folder of another name.
    let wrong = base.join(DRIVER).join("0000");
    std::fs::create_dir_all(wrong.join("globalmount")).unwrap();
    std::fs::write(wrong.join("vol_data.json"), "{\"driverName\":\"driver.example\",\"volumeHandle\":\"volume-1\"}\n")
        .unwrap();
    let listed = staged(&mut clients.csi).await;
    assert!(listed[0].problem.contains("another name"), "{listed:?}");
    // A device that was published and not mapped.
    std::fs::create_dir_all(base.join("volumeDevices/publish/pv2")).unwrap();
    std::fs::write(base.join("volumeDevices/publish/pv2/p"), "").unwrap();
    let listed = published(&mut clients.csi).await;
    let data = listed[0].data.clone().unwrap().device.unwrap();
    assert!(
        data.block && data.spec_name == "pv2" && listed[0].uncertain && !listed[0].problem.is_empty(),
        "{listed:?}"
    );
    assert!(!clients.tear_down().await.done);
    // An intent that nothing bears out.
    let pod = PodUid::parse("p").unwrap();
    let spec = bulkhead_types::VolumeName::parse("none").unwrap();
    for block in [false, true] {
        clients.world.node.journal.begin(&pod, Intent::Publish { spec: spec.clone(), block }).unwrap();
    }
    let mut stream = clients.volumes.list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    while stream.message().await.unwrap().is_some() {}
    assert!(clients.world.node.journal.of(&pod).iter().all(|intent| !matches!(intent, Intent::Publish { .. })));
}

/// Volumes of which nobody knows what they are: unreadable, cut off, missing or another volume's `vol_data.json`.
#[tokio::test(flavor = "current_thread")]
async fn what_nobody_knows_is_taken_back_by_its_path() {
    let Some(mut clients) = Clients::new().await else { return };
    let folder = clients.folder();
    let unknown = CsiDevice { spec_name: "pv".into(), ..Default::default() };
    for (content, problem) in [
        (Some("{\"driverName\":\"dri"), "it is no JSON object"),
        (Some(""), "it is empty"),
        (Some("{\"driverName\":\"\",\"volumeHandle\":\"\"}\n"), "names no driver"),
        (
            Some("{\"driverName\":\"driver.example\",\"specVolID\":\"other\",\"volumeHandle\":\"v\"}\n"),
            "is of the volume other",
        ),
        (None, "there is no"),
    ] {
        let target = clients.published().await;
        clients.csi.commit_publish(to_commit("p", device(false))).await.unwrap();
        // As long as it can be read its driver is to be asked.
        let refused = clients.csi.end_publish(to_end(&clients.world, "p", unknown.clone())).await.unwrap_err();
        assert!(
            refused.code() == Code::FailedPrecondition && refused.message().contains("has to be asked"),
            "{refused:?}"
        );
        std::fs::write(target.join("data"), "precious").unwrap();
        mount_tmpfs(&target);
        let file = folder.join("vol_data.json");
        match content {
            Some(content) => std::fs::write(&file, content).unwrap(),
            None => std::fs::remove_file(&file).unwrap(),
        }
        let listed = published(&mut clients.csi).await;
        let data = listed[0].data.clone().unwrap();
        assert!(listed[0].problem.contains(problem) && listed[0].mounted, "{content:?}: {listed:?}");
        assert_eq!(data.device.unwrap(), unknown, "no driver is to be asked for another volume");
        assert!(!clients.tear_down().await.done, "nothing is taken back by the way");
        // What a process has in use stays.
        let held = std::fs::File::open(target.join(".")).unwrap();
        let refused = clients.csi.end_publish(to_end(&clients.world, "p", unknown.clone())).await.unwrap_err();
        assert!(refused.message().contains("failed to unmount"), "{refused:?}");
        drop(held);
        clients.csi.begin_unpublish(to_end(&clients.world, "p", unknown.clone())).await.unwrap();
        clients.csi.end_publish(to_end(&clients.world, "p", unknown.clone())).await.unwrap();
        assert!(published(&mut clients.csi).await.is_empty() && !folder.exists());
    }
    // A volume that is not there is gone, and so is that of a pod that is not.
    clients.csi.end_publish(to_end(&clients.world, "p", unknown.clone())).await.unwrap();
    clients.csi.end_publish(to_end(&clients.world, "none", unknown)).await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn what_is_staged_of_nobody_knows_what_is_taken_back_by_its_folder() {
    let Some(mut clients) = Clients::new().await else { return };
    let staging = clients.csi.prepare_stage(to_stage(device(false))).await.unwrap().into_inner().staging_path;
    let staging = PathBuf::from(staging);
    mount_tmpfs(&staging);
    clients.csi.commit_stage(device(false)).await.unwrap();
    let folder = staging.parent().unwrap().to_owned();
    let hash = folder.file_name().unwrap().to_str().unwrap().to_owned();
    let nameless = |driver: &str, folder: &str| EndStageRequest {
        device: Some(CsiDevice { driver: driver.into(), ..Default::default() }),
        guard: clients.world.guard(1),
        folder: folder.into(),
    };
    let (by_folder, strange) =
        (nameless(DRIVER, &hash), ["..", "../x", "0000", "A"].map(|name| nameless(DRIVER, name)));
    let (of_no_driver, unguarded) = (nameless("..", &hash), EndStageRequest { guard: None, ..by_folder.clone() });
    for request in strange.into_iter().chain([of_no_driver]) {
        let refused = clients.csi.end_stage(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    }
    assert_eq!(clients.csi.end_stage(unguarded).await.unwrap_err().code(), Code::FailedPrecondition);
    let refused = clients.csi.end_stage(by_folder.clone()).await.unwrap_err();
    assert!(refused.code() == Code::FailedPrecondition && refused.message().contains("has to be asked"), "{refused:?}");
    assert!(folder.join("vol_data.json").exists());

    // A file of another volume: neither that one's driver is asked, nor is its folder touched.
    std::fs::write(folder.join("vol_data.json"), "{\"driverName\":\"driver.example\",\"volumeHandle\":\"another\"}\n")
        .unwrap();
    let listed = staged(&mut clients.csi).await;
    assert!(listed[0].problem.contains("another name") && listed[0].folder == hash, "{listed:?}");
    assert_eq!(listed[0].device.clone().unwrap(), CsiDevice { driver: DRIVER.into(), ..Default::default() });
    clients.csi.end_stage(by_folder.clone()).await.unwrap();
    assert!(staged(&mut clients.csi).await.is_empty() && !folder.exists());
    assert!(clients.world.node.staging.all().is_empty());
    clients.csi.end_stage(by_folder).await.unwrap();

    // A block volume: its folders have its name.
    let by_name = EndStageRequest {
        device: Some(CsiDevice { block: true, spec_name: "pv".into(), ..Default::default() }),
        guard: clients.world.guard(1),
        folder: String::new(),
    };
    let staging = clients.csi.prepare_stage(to_stage(device(true))).await.unwrap().into_inner().staging_path;
    mount_tmpfs(Path::new(&staging));
    clients.csi.commit_stage(device(true)).await.unwrap();
    assert_eq!(clients.csi.end_stage(by_name.clone()).await.unwrap_err().code(), Code::FailedPrecondition);
    std::fs::write(clients.base().join("volumeDevices/pv/data/vol_data.json"), "{").unwrap();
    // Not as long as a pod has it.
    let published = clients.base().join("volumeDevices/publish/pv/p");
    std::fs::create_dir_all(published.parent().unwrap()).unwrap();
    std::fs::write(&published, "").unwrap();
    let refused = clients.csi.end_stage(by_name.clone()).await.unwrap_err();
    assert!(refused.message().contains("still published to pod p"), "{refused:?}");
    let of_pod = CsiDevice { block: true, spec_name: "pv".into(), ..Default::default() };
    bind(Path::new("/dev/null"), &published);
    clients.csi.begin_unpublish(to_end(&clients.world, "p", of_pod.clone())).await.unwrap();
    clients.csi.end_publish(to_end(&clients.world, "p", of_pod)).await.unwrap();
    clients.csi.end_stage(by_name).await.unwrap();
    assert!(staged(&mut clients.csi).await.is_empty());
    assert!(!clients.base().join("volumeDevices/pv").exists() && !Path::new(&staging).exists());
}

#[tokio::test(flavor = "current_thread")]
async fn a_file_that_was_cut_off_at_any_byte_is_written_again_or_taken_back_by_its_path() {
    let Some(mut clients) = Clients::new().await else { return };
    let file = clients.folder().join("vol_data.json");
    let unknown = CsiDevice { spec_name: "pv".into(), ..Default::default() };
    clients.csi.prepare_publish(to_publish("p", device(false))).await.unwrap();
    let whole = std::fs::read(&file).unwrap();
    // Without the last newline all is said.
    for cut in 0..whole.len() - 1 {
        std::fs::write(&file, &whole[..cut]).unwrap();
        let listed = published(&mut clients.csi).await;
        assert!(!listed[0].problem.is_empty() && listed[0].uncertain, "{cut}: {listed:?}");
        clients.csi.prepare_publish(to_publish("p", device(false))).await.unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), whole, "{cut}");
        std::fs::write(&file, &whole[..cut]).unwrap();
        clients.csi.end_publish(to_end(&clients.world, "p", unknown.clone())).await.unwrap();
        assert!(published(&mut clients.csi).await.is_empty() && !clients.folder().exists(), "{cut}");
        clients.csi.prepare_publish(to_publish("p", device(false))).await.unwrap();
    }
    std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    assert_eq!(published(&mut clients.csi).await[0].problem, "");
}
