//! StopContainer, as the runtime does it.

use std::pin::Pin;
use std::time::Duration;

use bulkhead_cri::v1;
use tokio::runtime::Handle;
use tonic::Status;

use crate::runtime::{AsyncFnOnceSend, Caller, ended, no_container};
use crate::world::{Container, Shared, State, World};

/// Stops a container: SIGTERM, and SIGKILL where it still runs at the end of the grace period. As with containerd, whoever has asked
/// must still wait then (`internal/cri/server/container_stop.go` stopContainer): the signal stays sent, but the second one is not.
#[derive(Debug)]
pub struct Stop {
    pub id: String,
    /// Seconds.
    pub grace: u64,
    pub machine: Handle,
}

impl AsyncFnOnceSend<v1::StopContainerResponse> for Stop {
    fn run(
        self,
        shared: Shared,
        caller: Caller,
    ) -> Pin<Box<dyn Future<Output = Result<v1::StopContainerResponse, Status>> + Send>> {
        Box::pin(async move {
            let Stop { id, grace, machine } = self;
            let heeds = {
                let mut world = shared.lock();
                let Some(container) = world.containers.get(&id).cloned() else { return Err(no_container(&id)) };
                if container.state != State::Running {
                    return Ok(v1::StopContainerResponse {});
                }
                let uid = container.uid().to_owned();
                world.count_change(&uid);
                world.check_grace(&uid, grace);
                if world.is_waited_for {
                    world.check_pre_stop(&container, grace);
                }
                if !world.may_be_stopped(&container) {
                    world.check_stop(&uid, &format!("container {}", container.name()));
                }
                if let Some(container) = world.containers.get_mut(&id) {
                    container.is_stopped = true;
                }
                container.behaviour.heeds_term
            };
            if let Some(after) = heeds.filter(|_| grace > 0) {
                let (shared, of_machine, id) = (shared.clone(), machine.clone(), id.clone());
                machine.spawn(async move {
                    tokio::time::sleep(Duration::from_millis(after)).await;
                    ended(&shared, &of_machine, &id, 143, "");
                });
            }
            let within = Duration::from_secs(grace);
            if tokio::time::timeout(within, until_ended(&shared, &id)).await.is_err() {
                if grace > 0 && !caller.waits() {
                    return Err(Status::cancelled("nobody waits for it"));
                }
                ended(&shared, &machine, &id, 137, "");
            }
            Ok(v1::StopContainerResponse {})
        })
    }
}

/// Returns once the container does not run any more.
pub(crate) async fn until_ended(shared: &Shared, id: &str) {
    loop {
        let mut exits = {
            let world = shared.lock();
            if world.containers.get(id).is_none_or(|container| container.state != State::Running) {
                return;
            }
            world.exits.subscribe()
        };
        // The world, and who tells of exits, outlive whoever waits.
        if exits.changed().await.is_err() {
            return;
        }
    }
}

impl World {
    /// There is a reason for it, though its pod is to run.
    fn may_be_stopped(&self, container: &Container) -> bool {
        self.may_be_stopped_by_probe(container)
            || self.may_be_stopped_to_resize(container)
            || self.may_be_stopped_by_hook(container)
    }
}
