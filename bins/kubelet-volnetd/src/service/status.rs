//! Errors to gRPC statuses, in one place. A code says what the caller should do: INVALID_ARGUMENT and NOT_FOUND are its
//! own mistake, FAILED_PRECONDITION wants something else first (a fresh guard, a configured node), UNAVAILABLE may work
//! later, INTERNAL is ours.

use std::error::Error;

use bulkhead_sys::cgroup::CgroupError;
use bulkhead_sys::mount::MountError;
use bulkhead_sys::open::OpenError;
use bulkhead_sys::session::SessionError;
use bulkhead_types::chain;
use rustix::io::Errno;
use tonic::{Code, Status};

use crate::broker::BrokerError;
use crate::cgroups::PodsTreeError;
use crate::files::FileError;
use crate::files::env_file::{CopyError, EnvFileError};
use crate::files::node_log::NodeLogError;
use crate::guard::GuardError;
use crate::inhibitor::InhibitorError;
use crate::journal::JournalError;
use crate::kubeconfig::KubeconfigError;
use crate::node::Busy;
use crate::validate::InvalidRequest;
use crate::volumes::VolumeError;
use crate::volumes::content::{PutContentError, WriteError};
use crate::volumes::csi::CsiError;
use crate::volumes::disk::DiskError;
use crate::volumes::flex::FlexError;
use crate::volumes::host_path::HostPathError;
use crate::volumes::nfs::{NfsError, NfsReason};
use crate::volumes::ownership::OwnershipError;
use crate::volumes::sub_path::SubPathError;

/// A status with the whole chain of causes; only root's own processes read it.
fn status(code: Code, error: &dyn Error) -> Status {
    Status::new(code, chain(error))
}

fn code_of_errno(errno: Option<Errno>) -> Code {
    match errno {
        Some(Errno::NOENT | Errno::NOTDIR) => Code::NotFound,
        // A way out, a link in the way, or something that others could steer.
        Some(Errno::LOOP | Errno::XDEV) => Code::FailedPrecondition,
        Some(Errno::AGAIN | Errno::CONNREFUSED | Errno::BUSY | Errno::INTR) => Code::Unavailable,
        Some(Errno::NOSPC | Errno::DQUOT | Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Code::ResourceExhausted,
        Some(Errno::NAMETOOLONG) => Code::InvalidArgument,
        _ => Code::Internal,
    }
}

fn code_of_open(error: &OpenError) -> Code {
    match error {
        OpenError::NotAbsolute { .. } => Code::InvalidArgument,
        OpenError::Untrusted { .. } | OpenError::WrongType { .. } | OpenError::TooManyLinks { .. } => {
            Code::FailedPrecondition
        }
        OpenError::Io { .. } => code_of_errno(error.errno()),
    }
}

/// FAILED_PRECONDITION tells syncd to look at its guard again. A link in our own tree is nothing that it could cure.
fn code_in_our_tree(error: &OpenError) -> Code {
    match code_of_open(error) {
        Code::FailedPrecondition => Code::Internal,
        code => code,
    }
}

fn code_of_io(error: &std::io::Error) -> Code {
    code_of_errno(error.raw_os_error().map(Errno::from_raw_os_error))
}

impl From<InvalidRequest> for Status {
    fn from(error: InvalidRequest) -> Self {
        status(Code::InvalidArgument, &error)
    }
}

impl From<GuardError> for Status {
    fn from(error: GuardError) -> Self {
        status(Code::FailedPrecondition, &error)
    }
}

impl From<VolumeError> for Status {
    fn from(error: VolumeError) -> Self {
        status(code_of_volume(&error), &error)
    }
}

fn code_of_volume(error: &VolumeError) -> Code {
    match error {
        VolumeError::UnknownPod { .. } | VolumeError::NotSetUp { .. } => Code::NotFound,
        VolumeError::SubPath { source, .. } => code_of_sub_path(source),
        VolumeError::Content { source, .. } => code_of_write(source),
        VolumeError::Ownership { source, .. } => code_of_ownership(source),
        VolumeError::PodDir { source, .. } | VolumeError::Open { source, .. } => code_in_our_tree(source),
        // The pod asks for something that this host does not have: its event says so, asking again may help.
        VolumeError::HostPath(HostPathError::Type { .. }) => Code::InvalidArgument,
        VolumeError::HostPath(HostPathError::Create { source, .. }) => code_of_io(source),
        VolumeError::Mode { source, .. } | VolumeError::Mounts(source) | VolumeError::List { source, .. } => {
            code_of_io(source)
        }
        VolumeError::Local(error) => code_of_io(&error.source),
        // The server, or the volume's options: nothing is wrong with this node.
        VolumeError::Nfs(NfsError { why: NfsReason::Option(_), .. }) => Code::InvalidArgument,
        VolumeError::Nfs(_) => Code::Aborted,
        VolumeError::Disk(error) => code_of_disk(error),
        VolumeError::Csi(error) => code_of_csi(error),
        VolumeError::Flex(FlexError::StillMounted { .. } | FlexError::NotMounted { .. }) => Code::FailedPrecondition,
        VolumeError::Flex(FlexError::Remove { source, .. } | FlexError::Once { source, .. }) => code_of_io(source),
        VolumeError::Journal(JournalError::Write { source, .. }) => code_of_io(source),
        VolumeError::Mount { .. } | VolumeError::Journal(_) | VolumeError::Remove { .. } => Code::Internal,
    }
}

/// What a PersistentVolume names, or what is on its device: nothing is wrong with this node.
fn code_of_disk(error: &DiskError) -> Code {
    match error {
        DiskError::Open { source, .. } => code_of_io(source),
        DiskError::Kind { .. } | DiskError::NoDevice { .. } | DiskError::NoGrowth { .. } => Code::InvalidArgument,
        DiskError::NoName { .. } => Code::NotFound,
        DiskError::InUse { .. } => Code::FailedPrecondition,
        DiskError::Another { .. } | DiskError::Mount { .. } | DiskError::Grow { .. } => Code::Aborted,
    }
}

/// FAILED_PRECONDITION: it may go as soon as something else has gone. A link or a mount in our own tree is nothing that asking
/// again could cure.
fn code_of_csi(error: &CsiError) -> Code {
    match error {
        CsiError::StillMounted { .. }
        | CsiError::StillPublished { .. }
        | CsiError::Another { .. }
        | CsiError::Readable { .. } => Code::FailedPrecondition,
        // Not FAILED_PRECONDITION, which kubelet-syncd keeps to itself: whoever has mounted it has to hear of it.
        CsiError::MountedElsewhere { .. } => Code::Aborted,
        CsiError::NotPrepared { .. } | CsiError::NoTarget { .. } => Code::NotFound,
        CsiError::Open { source, .. } => code_in_our_tree(source),
        CsiError::Group { source, .. } => code_of_ownership(source),
        CsiError::Io { source, .. } => code_of_io(source),
        CsiError::Mount(MountError::Busy { .. }) => Code::FailedPrecondition,
        // Whatever a mount answers is an answer: asking again would bring the same.
        CsiError::Unserved { .. } => Code::Internal,
        CsiError::Link { .. }
        | CsiError::InTheWay { .. }
        | CsiError::MountInTheWay { .. }
        | CsiError::Target { .. }
        | CsiError::NotEmpty { .. }
        | CsiError::Remove { .. }
        | CsiError::Mount(_)
        | CsiError::Loop { .. } => Code::Internal,
    }
}

fn code_of_write(error: &WriteError) -> Code {
    match error {
        WriteError::List(source) | WriteError::Io { source, .. } => code_of_io(source),
        WriteError::Open(source) => code_in_our_tree(source),
        WriteError::Remove(_) => Code::Internal,
        WriteError::Ownership(source) => code_of_ownership(source),
    }
}

fn code_of_sub_path(error: &SubPathError) -> Code {
    match error {
        // The pod's own word, or a link of its own: its event says so, asking again may help.
        SubPathError::LeadsOut | SubPathError::Root { .. } => Code::InvalidArgument,
        SubPathError::Missing => Code::NotFound,
        SubPathError::Source(source) => code_of_open(source),
        SubPathError::Target(source) => code_in_our_tree(source),
        SubPathError::Io { source, .. } => code_of_io(source),
        SubPathError::Mount(_) | SubPathError::Remove(_) => Code::Internal,
    }
}

/// A walk that takes a day is begun anew where it is asked for again.
fn code_of_ownership(error: &OwnershipError) -> Code {
    match error {
        OwnershipError::TakesLong { .. } => Code::Unavailable,
        OwnershipError::Missing { .. } => Code::NotFound,
        OwnershipError::Root(source) | OwnershipError::Entry { source, .. } => code_of_io(source),
    }
}

impl From<PutContentError> for Status {
    fn from(error: PutContentError) -> Self {
        match error {
            PutContentError::Receive(error) => status(Code::InvalidArgument, &error),
            PutContentError::Volume(error) => error.into(),
        }
    }
}

impl From<FileError> for Status {
    fn from(error: FileError) -> Self {
        status(code_of_file(&error), &error)
    }
}

fn code_of_file(error: &FileError) -> Code {
    match error {
        FileError::Pod(error) => code_of_volume(error),
        FileError::Open { source, .. } => code_in_our_tree(source),
        FileError::Io { source, .. } => code_of_io(source),
        FileError::Remove { .. } | FileError::NoRegularFile { .. } | FileError::NoStamp { .. } => Code::Internal,
        FileError::Exists { .. } => Code::AlreadyExists,
        FileError::NotNew { .. } => Code::InvalidArgument,
        FileError::NotNewest { .. } | FileError::OnlyForm { .. } | FileError::Grown { .. } => Code::FailedPrecondition,
    }
}

impl From<PodsTreeError> for Status {
    fn from(error: PodsTreeError) -> Self {
        let code = match &error {
            PodsTreeError::Cgroup(error) => code_of_cgroup(error),
            PodsTreeError::NoRoot { .. }
            | PodsTreeError::NoSystemd
            | PodsTreeError::NothingReserved(_)
            | PodsTreeError::Root => Code::FailedPrecondition,
            PodsTreeError::Systemd { .. } => Code::Unavailable,
            PodsTreeError::NoContainer { .. } => Code::NotFound,
            PodsTreeError::Session(error) => code_of_session(error),
        };
        status(code, &error)
    }
}

fn code_of_session(error: &SessionError) -> Code {
    match error {
        SessionError::Cgroup(error) => code_of_cgroup(error),
        SessionError::NoSession(_) => Code::InvalidArgument,
        SessionError::LeaderLives(_) | SessionError::Older { .. } => Code::FailedPrecondition,
        SessionError::Busy { .. } => Code::Unavailable,
    }
}

fn code_of_cgroup(error: &CgroupError) -> Code {
    match error {
        CgroupError::Path { .. } => Code::InvalidArgument,
        CgroupError::NoHierarchy
        | CgroupError::MissingControllers { .. }
        | CgroupError::MissingPaths { .. }
        | CgroupError::NoControllers { .. }
        | CgroupError::LacksControllers { .. }
        | CgroupError::NoMemoryEvents
        | CgroupError::NoPressure => Code::FailedPrecondition,
        CgroupError::Busy { .. } => Code::Unavailable,
        CgroupError::Create { source, .. }
        | CgroupError::Write { source, .. }
        | CgroupError::Read { source, .. }
        | CgroupError::Remove { source, .. }
        | CgroupError::Mounts(source) => code_of_io(source),
    }
}

/// logind and the bus come back; a machine without them never has them, and who asks goes on asking now and then.
impl From<InhibitorError> for Status {
    fn from(error: InhibitorError) -> Self {
        let code = match &error {
            InhibitorError::NotConfigured => Code::FailedPrecondition,
            InhibitorError::Copy(source) | InhibitorError::DropIn { source, .. } => code_of_io(source),
            InhibitorError::Ended(_) => Code::Internal,
            InhibitorError::Bus(_) | InhibitorError::Reload(_) | InhibitorError::TooShort { .. } => Code::Unavailable,
        };
        status(code, &error)
    }
}

impl From<BrokerError> for Status {
    fn from(error: BrokerError) -> Self {
        status(code_of_broker(&error), &error)
    }
}

/// What the pod put there is its own word: its event says so, and nothing of syncd's is stale.
fn code_of_copy(error: &CopyError) -> Code {
    match error {
        CopyError::Open(source) => match code_of_open(source) {
            Code::FailedPrecondition => Code::InvalidArgument,
            code => code,
        },
        CopyError::TooLarge => Code::InvalidArgument,
        CopyError::Copy(source) => code_of_io(source),
    }
}

impl From<EnvFileError> for Status {
    fn from(error: EnvFileError) -> Self {
        let code = match &error {
            EnvFileError::Volume(error) => code_of_volume(error),
            EnvFileError::File { source, .. } => code_of_copy(source),
        };
        status(code, &error)
    }
}

impl From<NodeLogError> for Status {
    fn from(error: NodeLogError) -> Self {
        status(code_of_open(&error.0), &error)
    }
}

impl From<Busy> for Status {
    fn from(error: Busy) -> Self {
        status(Code::Unavailable, &error)
    }
}

fn code_of_broker(error: &BrokerError) -> Code {
    match error {
        BrokerError::Invalid(_) | BrokerError::Memfd { .. } | BrokerError::ClientPair(_) => Code::InvalidArgument,
        BrokerError::NotConfigured { .. } | BrokerError::NotNamed { .. } | BrokerError::NotALink { .. } => {
            Code::FailedPrecondition
        }
        BrokerError::File(error) => code_of_file(error),
        BrokerError::PastTheLast { .. } => Code::OutOfRange,
        BrokerError::Exists { .. } => Code::AlreadyExists,
        BrokerError::NobodyListens(_) => Code::NotFound,
        BrokerError::Kubeconfig(KubeconfigError::Open(source)) => code_of_open(source),
        BrokerError::Kubeconfig(KubeconfigError::Read { source, .. }) => code_of_io(source),
        BrokerError::Kubeconfig(
            KubeconfigError::TooLarge { .. }
            | KubeconfigError::Syntax { .. }
            | KubeconfigError::NoContext { .. }
            | KubeconfigError::NoServer { .. },
        ) => Code::FailedPrecondition,
        BrokerError::NotServed { .. } => Code::Unimplemented,
        BrokerError::Open(source) => code_of_open(source),
        BrokerError::Kernel { .. } | BrokerError::PrivateState { .. } | BrokerError::PutState { .. } => {
            code_of_errno(error.errno())
        }
        BrokerError::Volume(error) => code_of_volume(error),
        BrokerError::Cgroup(error) => code_of_cgroup(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_mount_answers_is_not_taken_for_silence() {
        for errno in
            [Errno::AGAIN, Errno::BUSY, Errno::INTR, Errno::CONNREFUSED, Errno::NOTCONN, Errno::NOENT, Errno::LOOP]
        {
            let unserved = CsiError::Unserved { path: "/v".into(), source: errno.into() };
            assert_eq!(code_of_csi(&unserved), Code::Internal, "{errno}");
        }
    }
}
