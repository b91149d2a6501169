//! Who listens to what kubelet-syncd says of its pods, as kubelet-statusd does.

use std::path::Path;
use std::time::Duration;

use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::syncd::pod_update::Update;
use bulkhead_ipc::syncd::pods_client::PodsClient;
use bulkhead_ipc::syncd::{PodState, WatchPodsRequest, WorkerState};

use crate::world::{Shared, Told};

/// Between two attempts to listen.
const AGAIN: Duration = Duration::from_millis(250);

/// The worker's state as the contract names it.
pub fn worker_name(state: i32) -> &'static str {
    match WorkerState::try_from(state) {
        Ok(WorkerState::Waiting) => "waiting",
        Ok(WorkerState::Sync) => "sync",
        Ok(WorkerState::Terminating) => "terminating",
        Ok(WorkerState::Terminated) => "terminated",
        Ok(WorkerState::Finished) => "finished",
        Ok(WorkerState::Unspecified) | Err(_) => "none",
    }
}

/// Listens for ever.
pub async fn listen(world: Shared, socket: &Path) {
    loop {
        let mut client = PodsClient::new(bulkhead_ipc::client::channel(socket)).max_decoding_message_size(8 << 20);
        let request = CallContext::new().streaming_request(WatchPodsRequest { cursor: None });
        let boots = world.lock().boots;
        if let Ok(stream) = client.watch(request).await
            && world.lock().boots == boots
        {
            let mut stream = stream.into_inner();
            world.lock().begin_listening();
            while let Ok(Some(update)) = stream.message().await {
                let mut world = world.lock();
                // What was on its way when the power went has reached nobody.
                if world.boots != boots {
                    break;
                }
                match update.update {
                    Some(Update::Upsert(pod)) => world.check_told(&pod.uid, &pod.name, told(&pod)),
                    Some(Update::RemovedUid(uid)) => forget(&mut world, &uid),
                    Some(Update::SnapshotDone(_)) | None => {}
                }
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

fn forget(world: &mut crate::world::World, uid: &str) {
    world.shown.remove(uid);
    if let Some(before) = world.told.remove(uid) {
        world.coverage.transition(before.worker, 0);
        let name = world.short(uid);
        world.tell("kubelet-syncd", format!("{name}: nothing is left of it"));
    }
}

fn told(pod: &PodState) -> Told {
    Told {
        phase: pod.phase.clone(),
        counts: pod.containers.iter().map(|container| (container.name.clone(), container.restart_count)).collect(),
        worker: pod.worker,
        running: pod.containers.iter().filter(|c| c.state == "running").map(|c| c.name.clone()).collect(),
        ready: pod.containers.iter().filter(|c| c.ready).map(|c| c.name.clone()).collect(),
        may_delete: pod.may_delete,
        may_run: pod.containers_may_run,
        reason: pod.reason.clone(),
        message: pod.message.clone(),
        version: serde_json::from_slice::<serde_json::Value>(&pod.static_pod_json)
            .ok()
            .and_then(|pod| pod["metadata"]["annotations"]["simulation/version"].as_str()?.parse().ok()),
    }
}
