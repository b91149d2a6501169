//! `Volumes.SetUpNfs`.

use std::path::PathBuf;
use std::time::Duration;

use bulkhead_ipc::volnetd::SetUpNfsRequest;
use tonic::Status;

use super::Verbs;
use crate::journal::Intent;
use crate::operations::{self, VolumeSetUp};
use crate::validate;
use crate::volumes::nfs::options::Options;
use crate::volumes::nfs::{self, Nfs, NfsError, NfsReason};
use crate::volumes::{NFS, VolumeError};
use crate::worker::Task;

/// A server that has not answered by then is told of; the kernel goes on trying, and who asks again finds it mounted.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) async fn set_up(verbs: &Verbs, request: SetUpNfsRequest) -> Result<PathBuf, Status> {
    let pod = validate::pod_uid(&request.pod_uid)?;
    let volume = validate::volume(&request.volume)?;
    let mut nfs = Nfs {
        volume: volume.clone(),
        server: nfs::server(&request.server)?,
        addresses: nfs::addresses(&request.addresses)?,
        path: nfs::path(&request.path)?,
        options: Options::default(),
    };
    let settings = &verbs.node.settings;
    nfs.options = Options::parse(&request.options, request.read_only).map_err(|why| {
        VolumeError::Nfs(NfsError {
            why: NfsReason::Option(why),
            source_text: nfs.source(),
            target: settings.paths.volume(&pod, NFS, &volume),
            options: request.options.join(","),
        })
    })?;
    let intent = Intent::Mount { plugin: NFS.to_owned(), volume };
    let lock = verbs.node.lock_pod(&pod).await?;
    let task = |may_mount| Task::SetUpNfs { pod: pod.clone(), nfs: nfs.clone(), may_mount };
    let (look, mount) = (task(false), task(true));
    let volume = VolumeSetUp { pod: pod.clone(), plugin: NFS, intent, look, mount, give: None };
    match tokio::time::timeout(PATIENCE, operations::set_up(verbs.node.clone(), lock, volume)).await {
        Ok(result) => result,
        Err(_) => Err(VolumeError::Nfs(NfsError::no_answer(settings, &pod, &nfs)).into()),
    }
}
