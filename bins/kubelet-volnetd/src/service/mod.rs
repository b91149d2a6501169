//! The gRPC services: from the wire to typed values ([`crate::validate`]), the guard, the pod's lock, the work in a worker
//! process or on a blocking thread, and back. No rule of its own.

mod attached;
mod audit;
mod audited;
mod cgroups;
mod csi;
mod files;
mod flex;
mod nfs;
mod shutdown;
pub mod status;
mod used;
mod volumes;
mod watches;

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::common::DestructiveGuard;
use bulkhead_ipc::server::Services;
use bulkhead_ipc::volnetd::audit_server::AuditServer;
use bulkhead_ipc::volnetd::cgroups_server::CgroupsServer;
use bulkhead_ipc::volnetd::csi_server::CsiServer;
use bulkhead_ipc::volnetd::files_server::FilesServer;
use bulkhead_ipc::volnetd::shutdown_server::ShutdownServer;
use bulkhead_ipc::volnetd::volumes_server::VolumesServer;
use bulkhead_ipc::volnetd::watches_server::WatchesServer;
use tokio_stream::Stream;
use tonic::Status;

use crate::node::{Node, PodLock};
use crate::volumes::ownership;
use crate::watch::Watches;
use crate::worker::{self, Done, Task};

/// The longest that a verb may take: longer than a volume is given to its group, and than kubelet-syncd waits for that.
const LONGEST: Duration = ownership::PATIENCE.saturating_add(Duration::from_secs(60));

/// Adds this process's services to those that every process has.
pub fn add_to(services: Services, node: Arc<Node>, watches: Watches) -> Services {
    let audit = audit::AuditService { node: node.clone() };
    let verbs = audited::Audited(Verbs::of(node));
    services
        .longest(LONGEST)
        .add(VolumesServer::new(verbs.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(CsiServer::new(verbs.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(FilesServer::new(verbs.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(ShutdownServer::new(verbs.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(CgroupsServer::new(verbs).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(AuditServer::new(audit).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(WatchesServer::new(watches::WatchService { watches }).max_decoding_message_size(MAX_MESSAGE_BYTES))
}

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Implements the verbs on a node: without a record of who has asked for what, which [`add_to`] puts around them.
#[derive(Debug, Clone)]
pub struct Verbs {
    node: Arc<Node>,
}

impl Verbs {
    /// The verbs of this node.
    pub fn of(node: Arc<Node>) -> Self {
        Verbs { node }
    }

    /// A path for who asks ([`Settings::told`](crate::node::Settings::told)).
    fn told(&self, path: &Path) -> String {
        text(&self.node.settings.told(path))
    }

    /// The guard of destructive verbs.
    fn guard(&self, guard: Option<&DestructiveGuard>) -> Result<(), Status> {
        let mut state = self.node.guard.lock();
        Ok(state.check(guard)?)
    }

    /// Does the work on a blocking thread. The lock goes with it: a caller whose deadline passes lets go of the answer,
    /// not of the pod.
    async fn run<T, E>(
        &self,
        lock: Option<PodLock>,
        work: impl FnOnce(&Node) -> Result<T, E> + Send + 'static,
    ) -> Result<T, Status>
    where
        T: Send + 'static,
        E: Send + 'static,
        Status: From<E>,
    {
        let node = self.node.clone();
        let span = tracing::Span::current();
        let done = tokio::task::spawn_blocking(move || {
            let _lock = lock;
            span.in_scope(|| work(&node))
        });
        match done.await {
            Ok(result) => Ok(result?),
            Err(error) => Err(Status::internal(format!("the verb ended unexpectedly: {error}"))),
        }
    }
}

impl Verbs {
    /// One act in a worker, with the pod's lock.
    async fn work(&self, task: Task, lock: PodLock) -> Result<Done, Status> {
        Ok(worker::call(&self.node.workers, &task, None, lock).await?.0)
    }
}

/// Paths of our own are UTF-8: the configuration's are, and ids are ASCII.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
