//! What is destructive needs to know whom it talks to, and what is wanted now.

use anyhow::{Result, ensure};
use bulkhead_ipc::common::DestructiveGuard;
use bulkhead_ipc::volnetd as api;
use tonic::Code;

use super::subject::Subject;
use crate::code;

/// The codes of all verbs that destroy something, of a pod that is there.
async fn codes(subject: &Subject, guard: Option<DestructiveGuard>) -> Vec<Code> {
    let uid = || "guarded".to_owned();
    let pod = api::PodLogId { namespace: "default".to_owned(), name: "pod".to_owned(), uid: uid() };
    let device = || {
        let (driver, volume_handle) = ("driver.example".to_owned(), "guarded".to_owned());
        Some(api::CsiDevice { driver, volume_handle, block: false, spec_name: "pv".to_owned() })
    };
    let stage = || api::EndStageRequest { device: device(), guard, folder: String::new() };
    let publish = || api::EndPublishRequest { pod_uid: uid(), device: device(), guard };
    let (mut volumes, mut files, mut csi) = (subject.volumes(), subject.files(), subject.csi());
    let log = api::RemoveContainerLogRequest {
        pod: Some(pod),
        container: "main".to_owned(),
        restart_count: 0,
        container_id: "id".to_owned(),
        guard,
    };
    vec![
        code(&volumes.tear_down_pod(api::TearDownPodRequest { pod_uid: uid(), guard, volumes_only: false }).await),
        code(&volumes.prune(api::PruneRequest { known_pod_uids: vec![uid()], guard }).await),
        code(&files.remove_container_log(log).await),
        code(&files.prune_logs(api::PruneLogsRequest { known_pod_uids: vec![uid()], guard }).await),
        code(&subject.cgroups().remove_pod(api::RemovePodRequest { pod_uid: uid(), guard }).await),
        code(&csi.begin_unstage(stage()).await),
        code(&csi.end_stage(stage()).await),
        code(&csi.begin_unpublish(publish()).await),
        code(&csi.end_publish(publish()).await),
    ]
}

async fn is_there(subject: &Subject) -> Result<bool> {
    let (pod_uid, hostname) = ("guarded".to_owned(), "h".to_owned());
    let request = api::WriteEtcHostsRequest { pod_uid, hostname, ..Default::default() };
    Ok(subject.files().write_etc_hosts(request).await.is_ok())
}

/// Stale knowledge of any kind destroys nothing.
pub async fn only_who_knows_may_destroy(subject: &Subject) -> Result<()> {
    subject.volumes().prepare_pod(api::PreparePodRequest { pod_uid: "guarded".to_owned() }).await?;
    let epoch = subject.epoch().await?;
    // An epoch of kubelet-syncd's that other scenarios do not have, and a generation that others are older than.
    let good = DestructiveGuard { volnetd_epoch: epoch, syncd_epoch: 21, generation: 5, sources_ready: true };
    let newest = api::TearDownPodRequest { pod_uid: "other".to_owned(), guard: Some(good), volumes_only: false };
    subject.volumes().tear_down_pod(newest).await?;
    let refused = [
        None,
        Some(DestructiveGuard { volnetd_epoch: epoch + 1, ..good }),
        Some(DestructiveGuard { volnetd_epoch: 0, ..good }),
        Some(DestructiveGuard { syncd_epoch: 0, ..good }),
        Some(DestructiveGuard { generation: 4, ..good }),
        Some(DestructiveGuard { sources_ready: false, ..good }),
    ];
    for guard in refused {
        let codes = codes(subject, guard).await;
        ensure!(codes.iter().all(|code| *code == Code::FailedPrecondition), "{guard:?}: {codes:?}");
    }
    ensure!(is_there(subject).await?);
    // Another life of kubelet-syncd counts anew, and the one before has nothing to say any more.
    let next = DestructiveGuard { syncd_epoch: 22, generation: 1, ..good };
    let other = api::TearDownPodRequest { pod_uid: "other".to_owned(), guard: Some(next), volumes_only: false };
    subject.volumes().tear_down_pod(other).await?;
    let codes_of_retired = codes(subject, Some(good)).await;
    ensure!(codes_of_retired.iter().all(|code| *code == Code::FailedPrecondition), "{codes_of_retired:?}");
    ensure!(is_there(subject).await?);
    let codes = codes(subject, Some(next)).await;
    ensure!(codes.iter().all(|code| *code == Code::Ok), "{codes:?}");
    ensure!(!is_there(subject).await?);
    Ok(())
}

/// Its epoch is another one after each start, and who does not know that is refused.
pub async fn another_life_is_another_epoch(subject: &Subject) -> Result<()> {
    subject.volumes().prepare_pod(api::PreparePodRequest { pod_uid: "guarded".to_owned() }).await?;
    let before =
        DestructiveGuard { volnetd_epoch: subject.epoch().await?, syncd_epoch: 31, generation: 1, sources_ready: true };
    subject.restart()?;
    let epoch = subject.epoch().await?;
    ensure!(epoch != before.volnetd_epoch && epoch != 0, "{epoch}");
    let codes_of_before = codes(subject, Some(before)).await;
    ensure!(codes_of_before.iter().all(|code| *code == Code::FailedPrecondition), "{codes_of_before:?}");
    ensure!(is_there(subject).await?, "a folder outlives a restart");
    let codes = codes(subject, Some(DestructiveGuard { volnetd_epoch: epoch, ..before })).await;
    ensure!(codes.iter().all(|code| *code == Code::Ok), "{codes:?}");
    ensure!(!is_there(subject).await?);
    Ok(())
}
