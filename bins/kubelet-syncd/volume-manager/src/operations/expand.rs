//! NodeExpandVolume: a volume that has become larger than its claim says, after its mount or while its pod runs (upstream
//! `pkg/volume/util/operationexecutor/node_expander.go`).

use std::sync::Arc;

use bulkhead_ipc::syncd::ClaimStatus;
use bulkhead_ipc::volnetd::SetUpLocalRequest;
use bulkhead_types::{PodUid, Quantity};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kubelet_model::events::EventType;
use tonic::Code;

use super::{Failure, Phase, local, secrets};
use crate::context::Context;
use crate::csi::requests;
use crate::spec::{CsiSource, Source, UniqueName, VolumeSpec};

const INFEASIBLE: &str = "NodeResizeInfeasible";
const IN_PROGRESS: &str = "NodeResizeInProgress";

/// What a claim's status says of its expansion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The claim has its size.
    Nothing,
    /// It could not be done, and nobody has asked for another size since.
    Hopeless,
    Expand,
}

/// Pure.
pub fn next(claim_bytes: i64, resize_status: &str, wanted_bytes: i64) -> Next {
    match resize_status {
        "" if claim_bytes >= wanted_bytes => Next::Nothing,
        INFEASIBLE => Next::Hopeless,
        _ => Next::Expand,
    }
}

/// The driver's word that it will never work: the size, or the volume, is not one that it can do.
fn is_infeasible(code: Option<Code>) -> bool {
    matches!(code, Some(Code::InvalidArgument | Code::OutOfRange | Code::NotFound))
}

fn resize_status(claim: &PersistentVolumeClaim) -> String {
    let statuses = claim.status.as_ref().and_then(|status| status.allocated_resource_statuses.as_ref());
    statuses.and_then(|all| all.get("storage").cloned()).unwrap_or_default()
}

fn size(claim: &PersistentVolumeClaim) -> i64 {
    let capacity = claim.status.as_ref().and_then(|status| status.capacity.as_ref()?.get("storage"));
    capacity.and_then(|quantity| Quantity::parse(&quantity.0).ok()).map_or(0, Quantity::value)
}

/// One expansion.
#[derive(Debug)]
pub struct Expand<'a> {
    pub context: &'a Context,
    pub volume: &'a UniqueName,
    pub uid: &'a PodUid,
    pub pod: Arc<Pod>,
    pub spec: Arc<VolumeSpec>,
}

impl Expand<'_> {
    /// Asks the driver, and wants the claim's status written.
    ///
    /// # Errors
    /// It is tried again.
    pub async fn run(&self) -> Result<(), Failure> {
        let phase = Phase::Expand;
        let Some(known) = &self.spec.claim else { return Ok(()) };
        let ports = &self.context.ports;
        let claim = ports.reader.claim(&known.namespace, &known.name).await;
        let claim = claim.map_err(|error| Failure::object(phase, format!("failed to fetch PVC: {error}"), &error))?;
        if claim.metadata.uid.as_deref() != Some(known.uid.as_str()) {
            return Ok(());
        }
        match next(size(&claim), &resize_status(&claim), self.spec.capacity) {
            Next::Expand => {}
            Next::Nothing | Next::Hopeless => {
                self.has(self.spec.capacity);
                return Ok(());
            }
        }
        let done = match &self.spec.source {
            Source::Csi(source) => self.csi(source).await?,
            Source::Local { path, fs_type } => self.local(path, fs_type).await?,
            Source::HostPath { .. } => return Ok(()),
        };
        if !done {
            return Ok(());
        }
        self.write(&self.spec.capacity_text, "", true).await?;
        self.has(self.spec.capacity);
        let name = &self.spec.name;
        let message = format!("MountVolume.NodeExpandVolume succeeded for volume {name:?} {}", ports.node_name);
        self.context.event(&self.pod, EventType::Normal, "FileSystemResizeSuccessful", message);
        Ok(())
    }

    /// Whether it has its size now.
    async fn csi(&self, source: &CsiSource) -> Result<bool, Failure> {
        let (phase, ports) = (Phase::Expand, &self.context.ports);
        let can = ports.drivers.capabilities(&source.driver).await;
        let what = "Expander.NodeExpand failed to get CSI client";
        let can = can.map_err(|error| Failure::call(phase, &error, what))?;
        if can.expand {
            let (path, staging_path) = {
                let world = self.context.world();
                let volume = world.actual.volumes.get(self.volume);
                let staging = volume.map(|volume| volume.staging_path.clone()).unwrap_or_default();
                let target = volume.and_then(|volume| volume.pods.get(self.uid)).map(|p| p.target_path.clone());
                (target.unwrap_or_default(), staging)
            };
            let reference = source.expand_secret.as_ref();
            let secret = secrets::secret(&*ports.reader, reference, "NodeExpandSecretRef", phase).await?;
            self.write("", IN_PROGRESS, false).await?;
            let staging_path = if can.stage { staging_path } else { String::new() };
            let mut request = requests::expand(&self.spec, source, can, path, staging_path, self.spec.capacity);
            request.secrets = secret;
            let _place = self.context.place(&source.driver).await;
            if let Err(error) = ports.drivers.expand(&source.driver, request).await {
                return self.failed(Failure::call(phase, &error, what)).await.map(|()| false);
            }
        }
        Ok(true)
    }

    /// A folder is as large as it is, and so is a device that is no file system's.
    async fn local(&self, path: &str, fs_type: &str) -> Result<bool, Failure> {
        self.write("", IN_PROGRESS, false).await?;
        let request = local::request(self.uid, &self.spec, path, fs_type);
        if self.spec.block {
            return Ok(true);
        }
        let request = SetUpLocalRequest { grow: true, ..request };
        match self.context.ports.verbs.set_up_local(request).await {
            Ok(_) => Ok(true),
            Err(error) => self.failed(Failure::verb(Phase::Expand, &error)).await.map(|()| false),
        }
    }

    async fn failed(&self, failure: Failure) -> Result<(), Failure> {
        let name = &self.spec.name;
        let message = format!("MountVolume.NodeExpandVolume failed for volume {name:?} : {}", failure.text);
        self.context.event(&self.pod, EventType::Warning, "VolumeResizeFailed", message);
        if is_infeasible(failure.code) {
            self.write("", INFEASIBLE, false).await?;
            self.has(self.spec.capacity);
            return Ok(());
        }
        if failure.code == Some(Code::FailedPrecondition) {
            // It is in use: the next mount tries it again.
            self.has(self.spec.capacity);
            return Ok(());
        }
        Err(failure)
    }

    async fn write(&self, capacity: &str, resize_status: &str, resize_done: bool) -> Result<(), Failure> {
        let Some(claim) = &self.spec.claim else { return Ok(()) };
        let status = ClaimStatus {
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            uid: claim.uid.clone(),
            capacity: capacity.to_owned(),
            resize_status: resize_status.to_owned(),
            resize_done,
        };
        let written = self.context.ports.claims.write(status).await;
        written.map_err(|why| Failure::new(Phase::Expand, format!("the claim's status could not be written: {why}")))
    }

    /// As far as the node is concerned the claim has this size.
    fn has(&self, bytes: i64) {
        if let Some(volume) = self.context.world().actual.volumes.get_mut(self.volume) {
            volume.claim_size = bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_claim_says() {
        for (claim, status, wanted, expected) in [
            (2, "", 2, Next::Nothing),
            (1, "", 2, Next::Expand),
            (1, "NodeResizePending", 2, Next::Expand),
            (1, "NodeResizeInProgress", 2, Next::Expand),
            (1, "NodeResizeInfeasible", 2, Next::Hopeless),
        ] {
            assert_eq!(next(claim, status, wanted), expected, "{status}");
        }
        assert!(is_infeasible(Some(Code::OutOfRange)) && !is_infeasible(Some(Code::Internal)) && !is_infeasible(None));
    }
}
