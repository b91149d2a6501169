//! Volumes of CSI drivers: what is prepared, what is committed, what is listed. The model has the real verbs for them, on folders where
//! nothing is mounted: what it must be right about is what a driver mounts and makes, which is real here.

use anyhow::{Context as _, Result, ensure};
use bulkhead_ipc::volnetd as api;
use tonic::Code;

use super::subject::Subject;
use crate::code;

const DRIVER: &str = "driver.example";
const NODE: &str = "node-a";
const ATTACHMENT: &str = "csi-0000000000000000000000000000000000000000000000000000000000000000";

fn device(handle: &str) -> api::CsiDevice {
    let (driver, volume_handle) = (DRIVER.to_owned(), handle.to_owned());
    api::CsiDevice { driver, volume_handle, block: false, spec_name: format!("pv-{handle}") }
}

fn to_stage(handle: &str) -> api::PrepareStageRequest {
    api::PrepareStageRequest {
        device: Some(device(handle)),
        node_name: NODE.to_owned(),
        attachment_id: ATTACHMENT.to_owned(),
        ..Default::default()
    }
}

fn data(handle: &str) -> api::CsiVolumeData {
    api::CsiVolumeData {
        lifecycle_mode: "Persistent".to_owned(),
        device: Some(device(handle)),
        node_name: NODE.to_owned(),
        attachment_id: ATTACHMENT.to_owned(),
        ..Default::default()
    }
}

fn to_publish(pod: &str, handle: &str) -> api::PreparePublishRequest {
    api::PreparePublishRequest { pod_uid: pod.to_owned(), data: Some(data(handle)) }
}

fn to_commit(pod: &str, handle: &str) -> api::CommitPublishRequest {
    api::CommitPublishRequest { pod_uid: pod.to_owned(), device: Some(device(handle)), ..Default::default() }
}

async fn end_publish(subject: &Subject, pod: &str, handle: &str) -> Result<api::EndPublishRequest> {
    let guard = Some(subject.guard().await?);
    Ok(api::EndPublishRequest { pod_uid: pod.to_owned(), device: Some(device(handle)), guard })
}

async fn end_stage(subject: &Subject, handle: &str) -> Result<api::EndStageRequest> {
    let guard = Some(subject.guard().await?);
    Ok(api::EndStageRequest { device: Some(device(handle)), guard, folder: String::new() })
}

/// Whether it is listed as mounted and as uncertain.
async fn staged(subject: &Subject, handle: &str) -> Result<Option<(bool, bool)>> {
    let mut stream = subject.csi().list_staged(api::ListStagedRequest {}).await?.into_inner();
    let mut found = None;
    while let Some(volume) = stream.message().await? {
        if volume.device.as_ref().is_some_and(|device| device.volume_handle == handle && device.driver == DRIVER) {
            ensure!(volume.problem.is_empty() && found.is_none(), "{volume:?}");
            found = Some((volume.mounted, volume.uncertain));
        }
    }
    Ok(found)
}

/// The same of what is published to a pod.
async fn published(subject: &Subject, pod: &str, handle: &str) -> Result<Option<(bool, bool)>> {
    let mut stream = subject.csi().list_published(api::ListPublishedRequest::default()).await?.into_inner();
    let mut found = None;
    while let Some(volume) = stream.message().await? {
        if volume.pod_uid == pod && volume.data.as_ref() == Some(&data(handle)) {
            ensure!(volume.problem.is_empty() && found.is_none(), "{volume:?}");
            found = Some((volume.mounted, volume.uncertain));
        }
    }
    Ok(found)
}

async fn tear_down(subject: &Subject, pod: &str) -> Result<api::TearDownPodReply> {
    let guard = Some(subject.guard().await?);
    let request = api::TearDownPodRequest { pod_uid: pod.to_owned(), guard, volumes_only: false };
    Ok(subject.volumes().tear_down_pod(request).await?.into_inner())
}

/// Prepared, committed, taken back, each twice, with what is listed after each.
pub async fn a_volumes_life(subject: &Subject) -> Result<()> {
    let (pod, handle, mut csi) = ("volume-life", "life", subject.csi());
    subject.volumes().prepare_pod(api::PreparePodRequest { pod_uid: pod.to_owned() }).await?;
    let mut staging = String::new();
    for _ in 0..2 {
        let made = csi.prepare_stage(to_stage(handle)).await?.into_inner();
        ensure!(made.staging_path.ends_with("/globalmount") && !made.committed_before, "{made:?}");
        ensure!(staged(subject, handle).await? == Some((false, true)));
        staging = made.staging_path;
    }
    subject.driver_mounts(&staging)?;
    ensure!(staged(subject, handle).await? == Some((true, true)), "before it is committed");
    for _ in 0..2 {
        csi.commit_stage(device(handle)).await?;
        ensure!(staged(subject, handle).await? == Some((true, false)));
    }
    let again = csi.prepare_stage(to_stage(handle)).await?.into_inner();
    ensure!(again.committed_before && again.staging_path == staging, "{again:?}");
    ensure!(staged(subject, handle).await? == Some((true, false)), "asking again takes nothing away");

    let mut target = String::new();
    for _ in 0..2 {
        let made = csi.prepare_publish(to_publish(pod, handle)).await?.into_inner();
        let wanted = format!("/pods/{pod}/volumes/kubernetes.io~csi/pv-{handle}/mount");
        ensure!(made.target_path.ends_with(&wanted) && !made.committed_before, "{made:?}");
        ensure!(published(subject, pod, handle).await? == Some((false, true)));
        target = made.target_path;
    }
    subject.driver_mounts(&target)?;
    for _ in 0..2 {
        let given = csi.commit_publish(to_commit(pod, handle)).await?.into_inner();
        ensure!(given.host_path == target, "{given:?}");
        ensure!(published(subject, pod, handle).await? == Some((true, false)));
    }
    ensure!(csi.prepare_publish(to_publish(pod, handle)).await?.into_inner().committed_before);
    ensure!(published(subject, pod, handle).await? == Some((true, false)));

    // What is published keeps the pod's folder.
    let kept = tear_down(subject, pod).await?;
    ensure!(!kept.done && kept.left.len() == 1, "{kept:?}");
    let guard = Some(subject.guard().await?);
    let request = api::PruneRequest { known_pod_uids: Vec::new(), guard };
    let mut stream = subject.volumes().prune(request).await?.into_inner();
    let mut steps = Vec::new();
    while let Some(step) = stream.message().await? {
        if step.pod_uid == pod {
            steps.push(step.action);
        }
    }
    ensure!(steps == ["kept"], "{steps:?}");
    ensure!(published(subject, pod, handle).await? == Some((true, false)), "a look changes nothing");

    let end = end_publish(subject, pod, handle).await?;
    ensure!(code(&csi.end_publish(end.clone()).await) == Code::FailedPrecondition, "it is mounted");
    for _ in 0..2 {
        csi.begin_unpublish(end.clone()).await?;
        ensure!(published(subject, pod, handle).await? == Some((true, true)));
    }
    subject.driver_unmounts(&target)?;
    ensure!(published(subject, pod, handle).await? == Some((false, true)));
    for _ in 0..2 {
        csi.end_publish(end.clone()).await?;
        ensure!(published(subject, pod, handle).await?.is_none());
    }
    let gone = tear_down(subject, pod).await?;
    ensure!(gone.done && gone.left.is_empty(), "{gone:?}");

    let end = end_stage(subject, handle).await?;
    csi.begin_unstage(end.clone()).await?;
    ensure!(staged(subject, handle).await? == Some((true, true)));
    ensure!(code(&csi.end_stage(end.clone()).await) == Code::FailedPrecondition, "it is mounted");
    subject.driver_unmounts(&staging)?;
    for _ in 0..2 {
        csi.end_stage(end.clone()).await?;
        ensure!(staged(subject, handle).await?.is_none());
    }
    Ok(())
}

/// Nothing is committed that was not prepared; what is not there may be taken back.
pub async fn what_is_not_prepared(subject: &Subject) -> Result<()> {
    let (pod, handle, mut csi) = ("unprepared", "unprepared", subject.csi());
    ensure!(code(&csi.prepare_publish(to_publish(pod, handle)).await) == Code::NotFound, "a pod that is not prepared");
    subject.volumes().prepare_pod(api::PreparePodRequest { pod_uid: pod.to_owned() }).await?;
    ensure!(code(&csi.commit_stage(device(handle)).await) == Code::NotFound);
    ensure!(code(&csi.commit_publish(to_commit(pod, handle)).await) == Code::NotFound);
    for _ in 0..2 {
        csi.begin_unpublish(end_publish(subject, pod, handle).await?).await.context("BeginUnpublish")?;
        csi.end_publish(end_publish(subject, pod, handle).await?).await.context("EndPublish")?;
        csi.begin_unstage(end_stage(subject, handle).await?).await.context("BeginUnstage")?;
        csi.end_stage(end_stage(subject, handle).await?).await.context("EndStage")?;
    }
    ensure!(staged(subject, handle).await?.is_none() && published(subject, pod, handle).await?.is_none());
    ensure!(code(&csi.prepare_stage(api::PrepareStageRequest::default()).await) == Code::InvalidArgument);
    ensure!(code(&csi.commit_stage(api::CsiDevice::default()).await) == Code::InvalidArgument);
    let no_data = api::PreparePublishRequest { pod_uid: pod.to_owned(), data: None };
    ensure!(code(&csi.prepare_publish(no_data).await) == Code::InvalidArgument);
    ensure!(tear_down(subject, pod).await?.done);
    Ok(())
}

/// What was prepared and not committed is uncertain to the next life, too, and what was committed certain.
pub async fn intents_outlive_a_life(subject: &Subject) -> Result<()> {
    let pod = "outlives";
    subject.volumes().prepare_pod(api::PreparePodRequest { pod_uid: pod.to_owned() }).await?;
    let mut paths = Vec::new();
    for handle in ["sure", "unsure"] {
        let staging = subject.csi().prepare_stage(to_stage(handle)).await?.into_inner().staging_path;
        let target = subject.csi().prepare_publish(to_publish(pod, handle)).await?.into_inner().target_path;
        subject.driver_mounts(&staging)?;
        subject.driver_mounts(&target)?;
        if handle == "sure" {
            subject.csi().commit_stage(device(handle)).await?;
            subject.csi().commit_publish(to_commit(pod, handle)).await?;
        }
        paths.push((handle, staging, target));
    }
    subject.restart()?;
    for (handle, staging, target) in &paths {
        let uncertain = *handle == "unsure";
        ensure!(staged(subject, handle).await? == Some((true, uncertain)), "{handle}");
        ensure!(published(subject, pod, handle).await? == Some((true, uncertain)), "{handle}");
        let again = subject.csi().prepare_publish(to_publish(pod, handle)).await?.into_inner();
        ensure!(again.committed_before != uncertain && again.target_path == *target, "{again:?}");
        // What the driver has taken back by itself is not certain.
        subject.driver_unmounts(target)?;
        ensure!(published(subject, pod, handle).await? == Some((false, true)), "{handle}");
        subject.csi().end_publish(end_publish(subject, pod, handle).await?).await?;
        subject.driver_unmounts(staging)?;
        subject.csi().end_stage(end_stage(subject, handle).await?).await?;
    }
    ensure!(tear_down(subject, pod).await?.done);
    Ok(())
}
