//! A model of kubelet-walker's workers: what it measures are figures of the world ([`crate::pressure`]).

use std::os::fd::OwnedFd;
use std::time::Duration;

use bulkhead_ipc::common::walk_request::What;
use bulkhead_ipc::common::{
    ContainerLogFigures, FileSystemFigures, FolderFigures, PodLogFigures, WalkReply, WalkRequest,
};
use bulkhead_worker::Message;
use prost::Message as _;

use crate::node::PODS;
use crate::worker_socket::{self, Worker};
use crate::world::{Shared, World};

/// Serves until it is dropped.
pub async fn serve(world: Shared, listener: OwnedFd) {
    worker_socket::serve(OfWalker(world), listener).await;
}

#[derive(Debug, Clone)]
struct OfWalker(Shared);

impl Worker for OfWalker {
    const PID: u32 = 1;

    async fn answer(&self, request: Message, _: &OwnedFd) -> Option<Message> {
        let late = self.0.lock().pressure.walker_is_late();
        if late > Duration::ZERO {
            tokio::time::sleep(late).await;
        }
        Some(Message::of(answer(&self.0.lock(), &request).encode_to_vec()))
    }
}

fn answer(world: &World, request: &Message) -> WalkReply {
    let error = |error: &str| WalkReply { error: error.to_owned(), ..WalkReply::default() };
    if world.pressure.is_blind() {
        return error("nothing can be read now");
    }
    match WalkRequest::decode(&*request.bytes).ok().and_then(|request| request.what) {
        Some(What::FileSystem(path)) => {
            let file_system = Some(figures(world.pressure.file_system(&path)));
            WalkReply { file_system, ..WalkReply::default() }
        }
        Some(What::PodLogs(logs)) => {
            let of = |container: &String| ContainerLogFigures {
                container: container.clone(),
                files: Some(FolderFigures {
                    bytes: world.logs_of(&logs.pod_uid, container) << 20,
                    inodes: 1,
                    incomplete: false,
                }),
            };
            let pod_logs = PodLogFigures {
                file_system: Some(figures(world.pressure.file_system(PODS))),
                containers: logs.containers.iter().map(of).collect(),
                other: Some(FolderFigures::default()),
            };
            WalkReply { pod_logs: Some(pod_logs), ..WalkReply::default() }
        }
        // How much of a disk logs take is another figure ([`crate::pressure`]): what is rotated is far less.
        Some(What::ContainerLogs(asked)) => {
            let container_logs = asked.logs.iter().map(|log| world.log_figures(log)).collect();
            WalkReply { container_logs, ..WalkReply::default() }
        }
        Some(What::Volumes(_)) => WalkReply::default(),
        None => error("no request"),
    }
}

/// `found`: MiB that are left, MiB in all, and which file system it is.
fn figures((left, all, device): (u64, u64, u64)) -> FileSystemFigures {
    FileSystemFigures {
        capacity_bytes: all << 20,
        available_bytes: left << 20,
        used_bytes: (all - left) << 20,
        inodes: 1 << 20,
        inodes_free: 1 << 19,
        device,
    }
}
