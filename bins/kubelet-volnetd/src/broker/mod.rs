//! The descriptor broker: opens what is root's but harmless once open, and passes the descriptor. The kinds, who may
//! ask for each and by which rule it is opened stand in [`crate::verbs`].
//!
//! No descriptor into a pod's volume leaves this process: any open descriptor, even a bare handle, makes an unmount
//! fail. (A termination message file lies beside the volumes, not in one; of a file with variables a copy is passed.)

pub mod client_pair;
mod credential;
mod joined;
mod open;
pub mod pairs;
mod plugin_socket;
mod private_state;
mod put_credential;
mod subject;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bulkhead_ipc::broker::{BrokerRequest, Caller};
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::{EnvFile, NodeLog, PutContent};
use tonic::Status;

use crate::audit::Act;
use crate::node::Node;
use crate::validate::InvalidRequest;
use crate::volumes::content;
use crate::worker::{self, Task};
use crate::{validate, verbs};

pub use open::BrokerError;

/// Answers one request of a checked peer, and leaves a record of it.
///
/// # Errors
/// The peer may not ask for it, or what it asks for cannot be had.
pub async fn answer(node: Arc<Node>, caller: Caller, request: BrokerRequest) -> Result<Option<OwnedFd>, Status> {
    let (pod_uid, object) = subject::subject(&request);
    let act = Act {
        peer: Some(caller.role),
        verb: format!("Broker/{}", row(&request).kind),
        pod_uid,
        object,
        request_id: String::new(),
    };
    let begun = node.audit.begin(act);
    let result = answered(node, caller, request).await;
    begun.ended(result.as_ref().map(|_| String::new()));
    result
}

async fn answered(node: Arc<Node>, caller: Caller, request: BrokerRequest) -> Result<Option<OwnedFd>, Status> {
    allowed(caller, &request)?;
    // A runtime that is stuck, or a slow disk, must not hold up the other answers.
    let result = match request {
        BrokerRequest::Open(Kind::EnvFile(file)) => return opened_by_worker(&node, env_file(&file)?).await,
        BrokerRequest::Open(Kind::ShutdownInhibitor(_)) => {
            return Ok(Some(node.inhibitor.take(node.settings.shutdown_delay).await?));
        }
        BrokerRequest::Open(Kind::NodeLog(log)) => return opened_by_worker(&node, node_log(&log)?).await,
        BrokerRequest::Open(kind) => tokio::task::spawn_blocking(move || open::open(&node, caller, kind).map(Some)),
        BrokerRequest::PutState(kind, fd) => {
            // A write that its caller has given up may still be going on when the next one comes.
            let lock = node.lock_state_file(kind).await?;
            tokio::task::spawn_blocking(move || {
                let _lock = lock;
                open::put_state(&node, kind, fd).map(|()| None)
            })
        }
        BrokerRequest::PutCredential(kind, fd) => {
            // Two at once would write one file, and put half of it in force.
            let lock = node.lock_credentials().await?;
            tokio::task::spawn_blocking(move || {
                let _lock = lock;
                put_credential::put(&node, kind, fd).map(|()| None)
            })
        }
        BrokerRequest::LinkCompressedLog(log, fd) => {
            let pod = validate::pod_log(log.pod.as_ref())?.uid;
            let lock = node.lock_pod(&pod).await?;
            tokio::task::spawn_blocking(move || {
                let _lock = lock;
                open::link_compressed_log(&node, &log, &fd).map(|()| None)
            })
        }
        BrokerRequest::PutContent(volume, files) => return put_content(node, volume, files).await.map(|()| None),
    };
    match result.await {
        Ok(result) => Ok(result?),
        Err(error) => Err(Status::internal(format!("the request ended unexpectedly: {error}"))),
    }
}

/// Replaces the files of a content volume, under the pod's lock.
async fn put_content(node: Arc<Node>, request: PutContent, files: OwnedFd) -> Result<(), Status> {
    let pod = validate::pod_uid(&request.pod_uid)?;
    let volume = validate::volume(&request.volume)?;
    let plugin = content::Plugin::from_wire(request.plugin)?;
    let lock = node.lock_pod(&pod).await?;
    let task = Task::PutContent { pod, volume, plugin };
    worker::call(&node.workers, &task, Some(files), lock).await?;
    Ok(())
}

/// Has a worker open what lies in a pod's volume, or in a folder that a file system of the operator's may be mounted in.
async fn opened_by_worker(node: &Node, task: Task) -> Result<Option<OwnedFd>, Status> {
    match worker::call(&node.workers, &task, None, ()).await? {
        (_, Some(fd)) => Ok(Some(fd)),
        (_, None) => Err(Status::internal("the worker opened nothing")),
    }
}

fn env_file(file: &EnvFile) -> Result<Task, InvalidRequest> {
    let (pod, volume) = (validate::pod_uid(&file.pod_uid)?, validate::volume(&file.volume)?);
    Ok(Task::OpenEnvFile { pod, volume, path: validate::sub_path(&file.path)? })
}

fn node_log(log: &NodeLog) -> Result<Task, InvalidRequest> {
    let relative = (!log.relative.is_empty()).then(|| validate::relative_path(&log.relative)).transpose()?;
    Ok(Task::OpenNodeLog { relative: relative.map(Into::into) })
}

/// The request's row of the table.
fn row(request: &BrokerRequest) -> &'static verbs::BrokerRow {
    match request {
        BrokerRequest::Open(kind) => verbs::broker_row(kind),
        BrokerRequest::PutContent(..) => &verbs::PUT_CONTENT,
        BrokerRequest::PutCredential(..) => &verbs::PUT_CREDENTIAL,
        BrokerRequest::LinkCompressedLog(..) => &verbs::LINK_COMPRESSED_LOG,
        BrokerRequest::PutState(..) => &verbs::PUT_STATE,
    }
}

/// The table's word on this peer and this kind; for state files also the kind's one owner.
fn allowed(caller: Caller, request: &BrokerRequest) -> Result<(), Status> {
    let verbs::BrokerRow { kind: name, peers, .. } = row(request);
    let state = match request {
        BrokerRequest::Open(Kind::State(state)) => Some(state.kind()),
        BrokerRequest::PutState(kind, _) => Some(*kind),
        _ => None,
    };
    let owner_ok = state.is_none_or(|kind| verbs::state_file(kind).is_none_or(|(_, owner)| owner == caller.role));
    let peers = match request {
        BrokerRequest::Open(Kind::Credential(credential)) => verbs::credential_peers(credential.kind()),
        _ => *peers,
    };
    if peers.contains(&caller.role) && owner_ok {
        Ok(())
    } else {
        Err(Status::permission_denied(format!("{name} is not for {}", caller.role.as_str())))
    }
}
