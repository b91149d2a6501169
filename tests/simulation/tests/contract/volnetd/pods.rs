//! Folders, files, logs and cgroups of pods.

use anyhow::{Result, ensure};
use bulkhead_ipc::volnetd as api;
use tonic::Code;

use super::subject::Subject;
use crate::code;

fn log_id(uid: &str) -> Option<api::PodLogId> {
    Some(api::PodLogId { namespace: "default".to_owned(), name: "pod".to_owned(), uid: uid.to_owned() })
}

fn logs(uid: &str) -> api::PrepareLogDirectoryRequest {
    api::PrepareLogDirectoryRequest { pod: log_id(uid), container: "main".to_owned() }
}

/// What its cgroup has stays until it is given something else; of what is not named it has what it had.
pub async fn a_pods_limits(subject: &Subject) -> Result<()> {
    ensure_node(subject).await?;
    let uid = "limits";
    let ask = async |resources: Option<api::CgroupResources>| -> Result<api::EnsurePodReply> {
        let request = api::EnsurePodRequest { qos: api::Qos::Burstable.into(), resources, ..cgroup(uid) };
        Ok(subject.cgroups().ensure_pod(request).await?.into_inner())
    };
    let has = |reply: &api::EnsurePodReply, shares: u64, quota: i64, memory: i64| {
        let now = reply.current.clone().unwrap_or_default();
        let cpu = (now.cpu_shares, now.cpu_quota_us, now.cpu_period_us) == (Some(shares), Some(quota), Some(100_000));
        ensure!(cpu && now.memory_limit_bytes == Some(memory) && reply.memory_usage_bytes.is_some(), "{reply:?}");
        Ok(())
    };
    let made = ask(None).await?;
    let new = made.current.clone().unwrap_or_default();
    ensure!(made.created && (new.cpu_quota_us, new.memory_limit_bytes) == (Some(-1), Some(-1)), "{made:?}");
    let all = api::CgroupResources {
        cpu_shares: Some(512),
        cpu_quota_us: Some(50_000),
        cpu_period_us: Some(100_000),
        memory_limit_bytes: Some(64 << 20),
        ..Default::default()
    };
    has(&ask(Some(all)).await?, 512, 50_000, 64 << 20)?;
    let memory = api::CgroupResources { memory_limit_bytes: Some(32 << 20), ..Default::default() };
    has(&ask(Some(memory)).await?, 512, 50_000, 32 << 20)?;
    let cpu = api::CgroupResources { cpu_shares: Some(256), cpu_quota_us: Some(-1), ..Default::default() };
    has(&ask(Some(cpu)).await?, 256, -1, 32 << 20)?;
    has(&ask(None).await?, 256, -1, 32 << 20)?;
    let unasked = api::EnsurePodRequest { qos: api::Qos::Burstable.into(), without_limits: true, ..cgroup(uid) };
    let unasked = subject.cgroups().ensure_pod(unasked).await?.into_inner();
    ensure!(unasked.current.is_none() && unasked.memory_usage_bytes.is_none(), "{unasked:?}");
    let request = api::RemovePodRequest { pod_uid: uid.to_owned(), guard: Some(subject.guard().await?) };
    ensure!(subject.cgroups().remove_pod(request).await?.into_inner().done);
    let anew = ask(None).await?.current.unwrap_or_default();
    ensure!((anew.cpu_quota_us, anew.memory_limit_bytes) == (Some(-1), Some(-1)), "{anew:?}");
    let request = api::RemovePodRequest { pod_uid: uid.to_owned(), guard: Some(subject.guard().await?) };
    ensure!(subject.cgroups().remove_pod(request).await?.into_inner().done);
    Ok(())
}

fn cgroup(uid: &str) -> api::EnsurePodRequest {
    api::EnsurePodRequest { pod_uid: uid.to_owned(), qos: api::Qos::BestEffort.into(), ..Default::default() }
}

/// UIDs of all cgroups.
async fn cgroups(subject: &Subject) -> Result<Vec<String>> {
    let mut stream = subject.cgroups().list(api::ListCgroupsRequest {}).await?.into_inner();
    let mut all = Vec::new();
    while let Some(found) = stream.message().await? {
        all.push(found.pod_uid);
    }
    Ok(all)
}

pub async fn ensure_node(subject: &Subject) -> Result<()> {
    let node = api::CgroupResources { cpu_shares: Some(1024), ..Default::default() };
    let request = api::EnsureNodeRequest { kubepods: Some(node), ..Default::default() };
    subject.cgroups().ensure_node(request).await?;
    Ok(())
}

/// All of a pod's, each twice, from first to last.
pub async fn a_pods_places(subject: &Subject) -> Result<()> {
    ensure_node(subject).await?;
    let (mut volumes, mut files, uid) = (subject.volumes(), subject.files(), "places");
    let hosts = api::WriteEtcHostsRequest { pod_uid: uid.to_owned(), hostname: "h".to_owned(), ..Default::default() };
    let termination = api::CreateTerminationFileRequest { pod_uid: uid.to_owned(), container: "main".to_owned() };
    ensure!(code(&files.write_etc_hosts(hosts.clone()).await) == Code::NotFound, "a pod that is not prepared");
    ensure!(code(&files.create_termination_file(termination.clone()).await) == Code::NotFound);
    for _ in 0..2 {
        let request = api::PreparePodRequest { pod_uid: uid.to_owned() };
        let made = volumes.prepare_pod(request).await?.into_inner().pod_dir;
        ensure!(made.ends_with("/pods/places"), "{made}");
    }
    for _ in 0..2 {
        let made = files.write_etc_hosts(hosts.clone()).await?.into_inner().host_path;
        ensure!(made.ends_with("/pods/places/etc-hosts"), "{made}");
    }
    let first = files.create_termination_file(termination.clone()).await?.into_inner().host_path;
    let second = files.create_termination_file(termination).await?.into_inner().host_path;
    ensure!(first != second && first.contains("/pods/places/containers/main/"), "{first} {second}");
    for _ in 0..2 {
        let made = files.prepare_log_directory(logs(uid)).await?.into_inner();
        ensure!(made.pod_log_dir.ends_with("/default_pod_places"), "{made:?}");
        ensure!(made.highest_index.is_none(), "no container has written: {made:?}");
    }
    for created in [true, false] {
        let made = subject.cgroups().ensure_pod(cgroup(uid)).await?.into_inner();
        ensure!(made.created == created && made.cgroup_parent.ends_with("/kubepods/besteffort/podplaces"), "{made:?}");
    }
    ensure!(cgroups(subject).await?.iter().any(|found| found == uid));

    let guard = Some(subject.guard().await?);
    for _ in 0..2 {
        let request = api::RemovePodRequest { pod_uid: uid.to_owned(), guard };
        ensure!(subject.cgroups().remove_pod(request).await?.into_inner().done);
    }
    ensure!(!cgroups(subject).await?.iter().any(|found| found == uid));
    let tear_down = api::TearDownPodRequest { pod_uid: uid.to_owned(), guard, volumes_only: true };
    ensure!(volumes.tear_down_pod(tear_down.clone()).await?.into_inner().done);
    // Its folder stays.
    ensure!(code(&files.write_etc_hosts(hosts.clone()).await) == Code::Ok);
    for _ in 0..2 {
        let request = api::TearDownPodRequest { volumes_only: false, ..tear_down.clone() };
        let gone = volumes.tear_down_pod(request).await?.into_inner();
        ensure!(gone.done && gone.left.is_empty(), "{gone:?}");
    }
    ensure!(code(&files.write_etc_hosts(hosts).await) == Code::NotFound, "its folder is there");
    Ok(())
}

/// To take away what is not there is no error.
pub async fn what_was_never_made_is_gone(subject: &Subject) -> Result<()> {
    let guard = Some(subject.guard().await?);
    let uid = || "never".to_owned();
    let request = api::TearDownPodRequest { pod_uid: uid(), guard, volumes_only: false };
    let gone = subject.volumes().tear_down_pod(request).await?.into_inner();
    ensure!(gone.done && gone.left.is_empty(), "{gone:?}");
    ensure!(subject.cgroups().remove_pod(api::RemovePodRequest { pod_uid: uid(), guard }).await?.into_inner().done);
    let request = api::RemoveContainerLogRequest {
        pod: log_id("never"),
        container: "main".to_owned(),
        restart_count: 0,
        container_id: "id".to_owned(),
        guard,
    };
    subject.files().remove_container_log(request).await?;
    // Who asks was told of the container before its end.
    let request = api::LinkContainerLogRequest {
        pod: log_id("never"),
        container: "main".to_owned(),
        restart_count: 0,
        container_id: "id".to_owned(),
    };
    subject.files().link_container_log(request).await?;
    Ok(())
}

/// What is no name of a pod is refused, whatever is asked.
pub async fn what_is_no_id(subject: &Subject) -> Result<()> {
    let guard = Some(subject.guard().await?);
    for bad in ["", "..", "a/b"] {
        let uid = || bad.to_owned();
        let (mut volumes, mut files) = (subject.volumes(), subject.files());
        let codes = [
            code(&volumes.prepare_pod(api::PreparePodRequest { pod_uid: uid() }).await),
            code(&volumes.tear_down_pod(api::TearDownPodRequest { pod_uid: uid(), guard, volumes_only: false }).await),
            code(&files.write_etc_hosts(api::WriteEtcHostsRequest { pod_uid: uid(), ..Default::default() }).await),
            code(&files.prepare_log_directory(logs(bad)).await),
            code(&subject.cgroups().ensure_pod(cgroup(bad)).await),
            code(&subject.cgroups().remove_pod(api::RemovePodRequest { pod_uid: uid(), guard }).await),
        ];
        ensure!(codes == [Code::InvalidArgument; 6], "{bad:?}: {codes:?}");
    }
    let no_level = api::EnsurePodRequest { pod_uid: "pod".to_owned(), ..Default::default() };
    ensure!(code(&subject.cgroups().ensure_pod(no_level).await) == Code::InvalidArgument);
    let no_pod = api::PrepareLogDirectoryRequest { pod: None, container: "main".to_owned() };
    ensure!(code(&subject.files().prepare_log_directory(no_pod).await) == Code::InvalidArgument);
    Ok(())
}

/// Folders, cgroups and logs of pods that are not among those that are known.
pub async fn what_nobody_knows_goes(subject: &Subject) -> Result<()> {
    ensure_node(subject).await?;
    for uid in ["known", "orphan"] {
        subject.volumes().prepare_pod(api::PreparePodRequest { pod_uid: uid.to_owned() }).await?;
        subject.cgroups().ensure_pod(cgroup(uid)).await?;
        subject.files().prepare_log_directory(logs(uid)).await?;
    }
    let guard = Some(subject.guard().await?);
    let known_pod_uids = vec!["known".to_owned()];
    for round in 0..2 {
        let request = api::PruneRequest { known_pod_uids: known_pod_uids.clone(), guard };
        let mut stream = subject.volumes().prune(request).await?.into_inner();
        let mut steps = Vec::new();
        while let Some(step) = stream.message().await? {
            steps.push((step.action, step.pod_uid, step.error));
        }
        let orphan = |action: &str| (action.to_owned(), "orphan".to_owned(), String::new());
        let wanted = if round == 0 { vec![orphan("removed cgroup"), orphan("removed directory")] } else { Vec::new() };
        ensure!(steps == wanted, "{steps:?}");
        let request = api::PruneLogsRequest { known_pod_uids: known_pod_uids.clone(), guard };
        let removed = subject.files().prune_logs(request).await?.into_inner().removed;
        let of_orphan = removed.iter().filter(|name| name.contains("orphan")).count();
        ensure!(of_orphan == usize::from(round == 0), "{removed:?}");
    }
    ensure!(cgroups(subject).await? == ["known"]);
    let hosts = |uid: &str| api::WriteEtcHostsRequest {
        pod_uid: uid.to_owned(),
        hostname: "h".to_owned(),
        ..Default::default()
    };
    ensure!(code(&subject.files().write_etc_hosts(hosts("known")).await) == Code::Ok);
    ensure!(code(&subject.files().write_etc_hosts(hosts("orphan")).await) == Code::NotFound);
    let request = api::PruneRequest { known_pod_uids: Vec::new(), guard };
    let mut stream = subject.volumes().prune(request).await?.into_inner();
    while stream.message().await?.is_some() {}
    ensure!(cgroups(subject).await?.is_empty());
    Ok(())
}
