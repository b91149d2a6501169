//! Operations on one volume, each a task of its own, with upstream's steps and words (`pkg/volume/util/operationexecutor`).
//!
//! Between two verbs of kubelet-volnetd stands each call of a driver: what a Prepare has noted is uncertain until its Commit, so
//! that whoever comes after a death calls again, or takes back.

pub mod csi;
pub mod csi_words;
pub mod driver_facts;
pub mod expand;
pub mod fc;
pub mod flex;
pub mod host_path;
pub mod iscsi;
pub mod local;
pub mod mount;
pub mod nfs;
pub mod secrets;
pub mod slow_group;
pub mod unmount;

use kubelet_edges::csi::{CsiError, Outcome};
use kubelet_edges::volnetd::VolnetdError;
use kubelet_model::objects::ObjectError;
use tonic::Code;

use self::csi_words::Act;
use crate::spec::VolumeSpec;

/// Upstream's step, which the message begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Attach,
    NodeAffinity,
    NewMounter,
    /// Whether the kind has any.
    MountOptions,
    WaitForAttach,
    /// Where it is mounted once a node.
    DevicePath,
    /// Stage.
    Device,
    /// Publish.
    SetUp,
    Expand,
    /// While it is mounted.
    ExpandOnMount,
    TearDown,
    UnmountDevice,
}

impl Phase {
    /// `block`: upstream calls it a map.
    pub fn text(self, block: bool) -> &'static str {
        match (self, block) {
            (Phase::Attach, _) => "AttachVolume.Attach failed",
            (Phase::NodeAffinity, false) => "MountVolume.NodeAffinity check failed",
            (Phase::NodeAffinity, true) => "MapVolume.NodeAffinity check failed",
            (Phase::NewMounter, false) => "MountVolume.NewMounter initialization failed",
            (Phase::NewMounter, true) => "MapVolume.NewBlockVolumeMapper initialization failed",
            (Phase::MountOptions, _) => "MountVolume.MountOptionSupport check failed",
            (Phase::WaitForAttach, false) => "MountVolume.WaitForAttach failed",
            (Phase::WaitForAttach, true) => "MapVolume.WaitForAttach failed",
            (Phase::DevicePath, _) => "MountVolume.GetDeviceMountPath failed",
            (Phase::Device, false) => "MountVolume.MountDevice failed",
            (Phase::Device, true) => "MapVolume.SetUpDevice failed",
            (Phase::SetUp, false) => "MountVolume.SetUp failed",
            (Phase::SetUp, true) => "MapVolume.MapPodDevice failed",
            (Phase::Expand, _) => "NodeExpandVolume.NodeExpandVolume failed",
            (Phase::ExpandOnMount, false) => "MountVolume.Setup failed while expanding volume",
            (Phase::ExpandOnMount, true) => "MapVolume.MarkVolumeAsMounted failed while expanding volume",
            (Phase::TearDown, false) => "UnmountVolume.TearDown failed",
            (Phase::TearDown, true) => "UnmapVolume.UnmapBlockVolume failed",
            (Phase::UnmountDevice, false) => "UnmountDevice failed",
            (Phase::UnmountDevice, true) => "UnmapDevice failed",
        }
    }
}

impl Phase {
    /// Reason of the event on a mount that has failed. Upstream looks at the node's labels before it knows a map from a mount.
    pub fn reason(self, block: bool) -> &'static str {
        match self {
            Phase::Attach => "FailedAttachVolume",
            _ if block && self != Phase::NodeAffinity => "FailedMapVolume",
            _ => "FailedMount",
        }
    }
}

/// Of a kind that is neither a block volume nor mounted with options of a PersistentVolume's (upstream SupportsMountOption and
/// FindMapperPluginBySpec, of which the latter's failure is in the log alone).
///
/// # Errors
/// It is to be one, or has some.
fn is_plain(spec: &VolumeSpec, plugin: &str) -> Result<(), Failure> {
    if spec.block {
        return Err(Failure::new(Phase::NewMounter, format!("no block volume plugin matched: {plugin}")));
    }
    if !spec.mount_options.is_empty() {
        return Err(Failure::new(Phase::MountOptions, "mount options are not supported for this volume type"));
    }
    Ok(())
}

/// Why an operation did not get through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub phase: Phase,
    pub text: String,
    /// kubelet-volnetd or the API server is away: nothing has failed, and nobody is told.
    pub away: bool,
    /// The driver's code, where it has answered one.
    pub code: Option<Code>,
    /// A device holds another file system than its volume says.
    pub mismatch: bool,
}

impl Failure {
    pub fn new(phase: Phase, text: impl Into<String>) -> Self {
        Failure { phase, text: text.into(), away: false, code: None, mismatch: false }
    }

    /// `what`: upstream's prefix for what could not even be begun.
    pub fn call(phase: Phase, error: &CsiError, what: &str) -> Self {
        let text = match error.outcome() {
            Outcome::NotCalled => format!("kubernetes.io/csi: {what}: {error}"),
            Outcome::Uncertain | Outcome::Failed => error.to_string(),
        };
        Failure { phase, text, away: false, code: error.code(), mismatch: false }
    }

    /// The same with the words of what was to be done with a volume.
    pub fn act(phase: Phase, error: &CsiError, act: Act, block: bool) -> Self {
        Failure::answered(phase, error, act.no_client(block), act.refused(block))
    }

    /// The same of a driver that does not say what it can do.
    pub fn capabilities(phase: Phase, error: &CsiError, act: Act, block: bool) -> Self {
        Failure::answered(phase, error, act.no_client(block), act.unable(block))
    }

    fn answered(phase: Phase, error: &CsiError, no_client: &str, answered: Option<&str>) -> Self {
        let failure = Failure::call(phase, error, no_client);
        match answered.filter(|_| failure.code.is_some()) {
            Some(what) => Failure { text: format!("kubernetes.io/csi: {what}: {error}"), ..failure },
            None => failure,
        }
    }

    pub fn verb(phase: Phase, error: &VolnetdError) -> Self {
        let text = match error {
            VolnetdError::Refused { source, .. } => source.message().to_owned(),
            other => other.to_string(),
        };
        Failure { phase, text, away: error.is_transient(), code: None, mismatch: false }
    }

    pub fn object(phase: Phase, text: String, error: &ObjectError) -> Self {
        let away = matches!(error, ObjectError::Away(_));
        Failure { phase, text, away, code: None, mismatch: false }
    }

    /// As events say it.
    pub fn message(&self, volume: &str, block: bool) -> String {
        format!("{} for volume {volume:?} : {}", self.phase.text(block), self.text)
    }
}
