//! NodeExpandVolume: a volume that has become larger than its claim says, while it is mounted (after the driver has published it,
//! before the pod has it) or while its pod runs (upstream `pkg/volume/util/operationexecutor/node_expander.go`,
//! `operation_generator.go` expandVolumeDuringMount and nodeExpandVolume, `pkg/volume/csi/expander.go`).

use std::sync::Arc;

use bulkhead_ipc::syncd::ClaimStatus;
use bulkhead_ipc::volnetd::{FlexGrowth, SetUpFlexRequest, SetUpLocalRequest};
use bulkhead_types::{PodUid, Quantity};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kubelet_edges::csi::{CsiError, Outcome};
use kubelet_model::events::EventType;
use tonic::Code;

use super::secrets::{self, SecretField};
use super::{Failure, Phase, flex, local};
use crate::actual_state::{ActualVolume, Expansion};
use crate::context::Context;
use crate::csi::policy::Capabilities;
use crate::csi::requests;
use crate::pod_facts::PodFacts;
use crate::spec::{CsiSource, FlexSource, Source, UniqueName, VolumeSpec};

const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";
/// A claim's annotation: the controller's part is all that its driver needs (upstream NodeExpansionNotRequired).
const NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";

/// A size as the API writes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Size {
    pub bytes: i64,
    pub text: String,
}

impl Size {
    fn of(text: &str) -> Self {
        let bytes = Quantity::parse(text).map_or(0, Quantity::value);
        Size { bytes, text: text.to_owned() }
    }
}

/// What a claim says of its expansion.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClaimSays {
    /// status.capacity.
    pub has: i64,
    /// status.allocatedResources: set by resizers that can recover from a failed expansion.
    pub allocated: Option<Size>,
    /// status.allocatedResourceStatuses.
    pub status: String,
    /// spec.resources.requests.
    pub wanted: i64,
    /// Several nodes may have it, and each of them has a part in its expansion.
    pub on_each_node: bool,
}

impl ClaimSays {
    fn of(claim: &PersistentVolumeClaim) -> Self {
        let status = claim.status.clone().unwrap_or_default();
        let storage = |amounts: Option<&std::collections::BTreeMap<String, _>>| {
            let quantity: Option<&k8s_openapi::apimachinery::pkg::api::resource::Quantity> =
                amounts.and_then(|amounts| amounts.get("storage"));
            quantity.map(|quantity| Size::of(&quantity.0))
        };
        let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
        let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
        let is_annotated = claim.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(NOT_REQUIRED));
        ClaimSays {
            has: storage(status.capacity.as_ref()).unwrap_or_default().bytes,
            allocated: storage(status.allocated_resources.as_ref()),
            status: status.allocated_resource_statuses.and_then(|all| all.get("storage").cloned()).unwrap_or_default(),
            wanted: storage(requests).unwrap_or_default().bytes,
            on_each_node: modes.iter().any(|mode| mode == "ReadWriteMany") && !is_annotated,
        }
    }
}

/// What of the claim's status is written on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// The size in the end: a resizer that knows nothing of `allocatedResources`.
    Capacity,
    /// Progress, failures and the size.
    All,
    /// A failure alone: another node has done its part already, and written the size.
    Nothing,
}

/// What is done now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The controller has its turn, or it could not be done and nobody has asked anew.
    NotNow,
    /// The controller has done all of it.
    Done {
        to: Size,
    },
    Expand {
        to: Size,
        writes: Writes,
    },
}

/// What came of whoever has the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Grown,
    NothingToDo,
    /// Nothing has failed: it is asked again with the volume's next mount.
    NotMounted,
}

/// Pure. `volume`: the PersistentVolume's size.
pub fn next(claim: &ClaimSays, volume: &Size) -> Next {
    if claim.status.is_empty() && claim.allocated.is_none() {
        return Next::Expand { to: volume.clone(), writes: Writes::Capacity };
    }
    let to = claim.allocated.clone().unwrap_or_else(|| volume.clone());
    match claim.status.as_str() {
        "" if claim.has >= to.bytes && claim.on_each_node => Next::Expand { to, writes: Writes::Nothing },
        "" if claim.has >= to.bytes => Next::Done { to },
        PENDING | IN_PROGRESS => Next::Expand { to, writes: Writes::All },
        _ => Next::NotNow,
    }
}

/// The driver's word that it will never work: the size, or the volume, is not one that it can do.
fn is_infeasible(code: Option<Code>) -> bool {
    matches!(code, Some(Code::InvalidArgument | Code::OutOfRange | Code::NotFound))
}

/// The claim's status of its resizing, after a failure that it is told.
fn after_failure(hopeless: bool, writes: Writes) -> &'static str {
    match (hopeless, writes) {
        (true, _) => INFEASIBLE,
        // Another node has done its part: nothing is in progress.
        (false, Writes::Nothing) => "",
        (false, Writes::All | Writes::Capacity) => IN_PROGRESS,
    }
}

/// When it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The driver has published the volume, and the pod does not have it yet. Whoever mounts has one of the driver's places.
    Mount,
    Online,
}

/// One expansion.
#[derive(Debug)]
pub struct Expand<'a> {
    pub context: &'a Context,
    pub volume: &'a UniqueName,
    pub uid: &'a PodUid,
    pub pod: Arc<PodFacts>,
    pub spec: Arc<VolumeSpec>,
    pub moment: Moment,
}

impl Expand<'_> {
    fn phase(&self) -> Phase {
        match self.moment {
            Moment::Mount => Phase::ExpandOnMount,
            Moment::Online => Phase::Expand,
        }
    }

    /// Asks the driver, and wants the claim's status written.
    ///
    /// # Errors
    /// It is tried again; a mount with it.
    pub async fn run(&self) -> Result<(), Failure> {
        let Some(known) = self.spec.claim.as_ref().filter(|_| self.spec.grows()) else { return Ok(()) };
        let claim = self.context.ports.reader.claim(&known.namespace, &known.name).await;
        let claim = claim.map_err(|error| {
            let text = format!("mountVolume.NodeExpandVolume get PVC failed : {error}");
            Failure::object(self.phase(), text, &error)
        })?;
        if claim.metadata.uid.as_deref() != Some(known.uid.as_str()) {
            return Ok(());
        }
        let says = ClaimSays::of(&claim);
        let volume = Size { bytes: self.spec.capacity, text: self.spec.capacity_text.clone() };
        if self.moment == Moment::Mount && says.has >= volume.bytes {
            self.note(|known| known.claim_size = volume.bytes);
            return Ok(());
        }
        if self.spec.read_only {
            self.say(
                &claim,
                EventType::Warning,
                "FileSystemResizeFailed",
                "failed for volume",
                "requested read-only file system",
            );
            self.note(|known| known.claim_size = volume.bytes);
            return Ok(());
        }
        match next(&says, &volume) {
            Next::NotNow => {
                tracing::debug!(volume = %self.volume, status = says.status, "NodeExpandVolume is not allowed to proceed");
                self.note(|known| known.expansion = Expansion::NextSync);
                Ok(())
            }
            Next::Done { to } => {
                self.has_grown_to(&to);
                Ok(())
            }
            Next::Expand { to, writes } => self.expand(&claim, &says, to, writes).await,
        }
    }

    async fn expand(
        &self,
        claim: &PersistentVolumeClaim,
        says: &ClaimSays,
        to: Size,
        writes: Writes,
    ) -> Result<(), Failure> {
        let ports = &self.context.ports;
        if writes == Writes::All {
            self.write(ClaimStatus { resize_status: IN_PROGRESS.to_owned(), ..ClaimStatus::default() }).await?;
        }
        let asked = match &self.spec.source {
            Source::Csi(source) => self.driver(source, &to, writes).await?,
            Source::Local { path, fs_type } => self.local(path, fs_type).await,
            Source::Flex(source) => self.flex(source, says, &to).await,
            Source::HostPath { .. } | Source::Nfs { .. } | Source::Fc(_) | Source::Iscsi(_) => return Ok(()),
        };
        match asked {
            Ok(Asked::Grown) => {}
            Ok(Asked::NothingToDo) => {
                self.has_grown_to(&to);
                return Ok(());
            }
            Ok(Asked::NotMounted) => {
                self.note(|known| known.expansion = Expansion::NextMount);
                return Ok(());
            }
            Err(failure) => return self.failed(failure, says, &to, writes).await,
        }
        self.has_grown_to(&to);
        self.note(|known| known.expansion_failed = false);
        let node = ports.node_name.as_str();
        self.say(claim, EventType::Normal, "FileSystemResizeSuccessful", "succeeded for volume", node);
        if writes == Writes::Nothing {
            return Ok(());
        }
        let status = ClaimStatus { capacity: to.text, resize_done: true, ..ClaimStatus::default() };
        self.write(status).await.map_err(|failure| Failure {
            text: format!("mountVolume.NodeExpandVolume update pvc status failed: {}", failure.text),
            ..failure
        })
    }

    /// A claim may have less than its volume is large (`allocatedResources`): it is looked at again with its pod's next sync.
    fn has_grown_to(&self, to: &Size) {
        self.note(|known| {
            known.claim_size = to.bytes;
            if to.bytes < self.spec.capacity {
                known.expansion = Expansion::NextSync;
            }
        });
    }

    /// What came of the driver's part; that it is not registered is no word of its own (upstream NewTransientOperationFailure).
    async fn driver(&self, source: &CsiSource, to: &Size, writes: Writes) -> Result<Result<Asked, Failure>, Failure> {
        let phase = self.phase();
        let can = self.context.ports.drivers.capabilities(&source.driver, source.migrated).await;
        let can = match can {
            Ok(can) => can,
            Err(error) if error.outcome() == Outcome::NotCalled => return Err(self.not_called(&error)),
            // Upstream's error has neither the driver's code nor doubt.
            Err(error) => {
                let text = format!("Expander.NodeExpand failed to check if node supports expansion : {error}");
                return Ok(Err(Failure::new(phase, text)));
            }
        };
        if !can.expand {
            if writes != Writes::All {
                // A resizer of old does not ask for the node's part of such a driver, and what the claim has already was given
                // to it without this node.
                return Ok(Ok(Asked::NothingToDo));
            }
            let text = format!("NodeExpand is not supported by the CSI driver {}", source.driver);
            return Ok(Err(Failure::new(phase, text)));
        }
        let error = match self.call(source, can, to.bytes).await {
            Ok(Ok(())) => return Ok(Ok(Asked::Grown)),
            Ok(Err(error)) => error,
            Err(failure) => return Ok(Err(failure)),
        };
        if error.outcome() == Outcome::NotCalled {
            return Err(self.not_called(&error));
        }
        let colon = if is_infeasible(error.code()) { "" } else { ": " };
        let text = format!("Expander.NodeExpand failed to expand the volume {colon}{error}");
        Ok(Err(Failure { text, ..Failure::call(phase, &error, "") }))
    }

    /// A folder is as large as it is, and so is a device that is no file system's.
    async fn local(&self, path: &str, fs_type: &str) -> Result<Asked, Failure> {
        if self.spec.block {
            return Ok(Asked::Grown);
        }
        let request = local::request(self.uid, &self.spec, path, fs_type);
        let request = SetUpLocalRequest { grow: true, ..request };
        let grown = self.context.ports.verbs.set_up_local(request).await;
        grown.map(|_| Asked::Grown).map_err(|error| Failure::verb(self.phase(), &error))
    }

    /// The driver is told both sizes, and no secret.
    async fn flex(&self, source: &FlexSource, says: &ClaimSays, to: &Size) -> Result<Asked, Failure> {
        let ports = &self.context.ports;
        let device = flex::device(ports.reader.node().borrow().as_deref(), self.volume);
        let request = flex::request(self.uid, &self.pod, &self.spec, source, device)?;
        let known = self.note(|known| known.claim_size).unwrap_or_default();
        let old_size = if self.moment == Moment::Mount { says.has } else { known };
        let grow = Some(FlexGrowth { new_size: to.bytes, old_size });
        let _place = match self.moment {
            Moment::Online => self.context.place(&source.driver).await,
            Moment::Mount => None,
        };
        match ports.verbs.set_up_flex(SetUpFlexRequest { grow, ..request }).await {
            Ok(_) => Ok(Asked::Grown),
            Err(error) if flex::is_not_mounted(&error) => {
                tracing::info!(volume = %self.volume, "NodeExpandVolume waits for the volume's next mount: {error}");
                Ok(Asked::NotMounted)
            }
            Err(error) => Err(Failure::verb(self.phase(), &error)),
        }
    }

    /// The driver's answer; or why there is no secret to ask it with.
    async fn call(&self, source: &CsiSource, can: Capabilities, bytes: i64) -> Result<Result<(), CsiError>, Failure> {
        let (path, staging_path) = {
            let state = self.context.state();
            let volume = state.actual.volumes.get(self.volume);
            let staging = volume.map(|volume| volume.staging_path.clone()).unwrap_or_default();
            let target = volume.and_then(|volume| volume.pods.get(self.uid)).map(|p| p.target_path.clone());
            (target.unwrap_or_default(), staging)
        };
        let ports = &self.context.ports;
        let reference = source.expand_secret.as_ref();
        let block = self.spec.block;
        let secret = secrets::secret(&*ports.reader, reference, SecretField::Expand, self.phase(), block).await?;
        let mut request = requests::expand(&self.spec, source, can, path, staging_path, bytes);
        request.secrets = secret;
        let _place = match self.moment {
            Moment::Online => self.context.place(&source.driver).await,
            Moment::Mount => None,
        };
        Ok(ports.drivers.expand(source, request).await.map(|_| ()))
    }

    fn not_called(&self, error: &CsiError) -> Failure {
        Failure { text: error.to_string(), ..Failure::call(self.phase(), error, "") }
    }

    /// What the driver has answered goes into the claim's status, doubtful or not, as upstream's expander.go hides the doubt from
    /// node_expander.go; and what is in use does not keep the pod from its volume.
    async fn failed(&self, failure: Failure, says: &ClaimSays, to: &Size, writes: Writes) -> Result<(), Failure> {
        if failure.away {
            return Err(failure);
        }
        if writes != Writes::Capacity {
            let failed_before = self.note(|known| std::mem::replace(&mut known.expansion_failed, true));
            // Somebody wants another size by now, and this one fails: the controller is to have its turn.
            let overtaken = failed_before.unwrap_or_default() && says.wanted != to.bytes;
            let hopeless = is_infeasible(failure.code) || overtaken;
            if hopeless {
                self.note(|known| known.expansion = Expansion::NextSync);
            }
            let status = ClaimStatus {
                resize_status: after_failure(hopeless, writes).to_owned(),
                resize_error: format!("failed to expand pvc with {}", failure.text),
                ..ClaimStatus::default()
            };
            if let Err(unwritten) = self.write(status).await {
                let why = unwritten.text;
                tracing::error!(volume = %self.volume, "MountVolume.NodeExpandVolume failed to mark node expansion as failed: {why}");
            }
        }
        if failure.code == Some(Code::FailedPrecondition) {
            tracing::error!(volume = %self.volume, "MountVolume.NodeExpandVolume failed : {}", failure.text);
            self.note(|known| known.expansion = Expansion::NextMount);
            return Ok(());
        }
        Err(failure)
    }

    /// To the pod and to the claim.
    fn say(&self, claim: &PersistentVolumeClaim, kind: EventType, reason: &'static str, what: &str, more: &str) {
        let message = format!("MountVolume.NodeExpandVolume {what} {:?} {more}", self.spec.name);
        self.context.event(&self.pod, kind, reason, message.clone());
        self.context.event_of("PersistentVolumeClaim", &claim.metadata, kind, reason, message);
    }

    async fn write(&self, status: ClaimStatus) -> Result<(), Failure> {
        let Some(claim) = &self.spec.claim else { return Ok(()) };
        let status = ClaimStatus {
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            uid: claim.uid.clone(),
            ..status
        };
        let written = self.context.ports.claims.write(status).await;
        written.map_err(|why| Failure::new(self.phase(), why))
    }

    fn note<T>(&self, write: impl FnOnce(&mut ActualVolume) -> T) -> Option<T> {
        self.context.state().actual.volumes.get_mut(self.volume).map(write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_claim_says() {
        let size = |gib: i64| Size { bytes: gib << 30, text: format!("{gib}Gi") };
        let expand = |to: i64, writes| Next::Expand { to: size(to), writes };
        for (has, allocated, status, expected) in [
            // A resizer of old, or the claim is large already.
            (1, None, "", expand(2, Writes::Capacity)),
            (2, None, "", expand(2, Writes::Capacity)),
            (1, Some(2), "NodeResizePending", expand(2, Writes::All)),
            (1, Some(2), "NodeResizeInProgress", expand(2, Writes::All)),
            // Less was asked for after a failure.
            (1, Some(3), "NodeResizePending", expand(3, Writes::All)),
            (1, None, "NodeResizePending", expand(2, Writes::All)),
            (2, Some(2), "", Next::Done { to: size(2) }),
            (1, Some(2), "", Next::NotNow),
            (1, Some(2), "NodeResizeInfeasible", Next::NotNow),
            (1, Some(2), "ControllerResizeInProgress", Next::NotNow),
            (1, Some(2), "ControllerResizeInfeasible", Next::NotNow),
        ] {
            let status = status.to_owned();
            let (has, allocated, wanted) = (has << 30, allocated.map(size), 2 << 30);
            let claim = ClaimSays { has, allocated, status, wanted, on_each_node: false };
            assert_eq!(next(&claim, &size(2)), expected, "{claim:?}");
            let shared = ClaimSays { on_each_node: true, ..claim };
            let expected = match expected {
                // Another node has done its part, and this one has not.
                Next::Done { to } => Next::Expand { to, writes: Writes::Nothing },
                other => other,
            };
            assert_eq!(next(&shared, &size(2)), expected, "{shared:?}");
        }
        for (hopeless, writes, expected) in [
            (false, Writes::All, "NodeResizeInProgress"),
            (true, Writes::All, "NodeResizeInfeasible"),
            (false, Writes::Nothing, ""),
            (true, Writes::Nothing, "NodeResizeInfeasible"),
        ] {
            assert_eq!(after_failure(hopeless, writes), expected, "{hopeless} {writes:?}");
        }
        assert!(is_infeasible(Some(Code::OutOfRange)) && !is_infeasible(Some(Code::Internal)) && !is_infeasible(None));
    }
}
