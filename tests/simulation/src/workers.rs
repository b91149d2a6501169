//! kubelet-volnetd's workers: what they are asked for is done by its own code, as late as a worker may be. They are killed with
//! kubelet-volnetd, at any moment: one that had something to do has done it, or not.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use bulkhead_worker::Message;
use kubelet_volnetd::node::Settings;
use kubelet_volnetd::worker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::worker_socket::{self, Worker};
use crate::world::Shared;

/// Serves until it is dropped.
pub async fn serve(world: Shared, settings: Settings, listener: OwnedFd) {
    worker_socket::serve(OfVolnetd { world, settings }, listener).await;
}

#[derive(Debug, Clone)]
struct OfVolnetd {
    world: Shared,
    settings: Settings,
}

impl Worker for OfVolnetd {
    const PID: u32 = 2;

    async fn answer(&self, request: Message, asker: &OwnedFd) -> Option<Message> {
        let (late, boots) = {
            let mut world = self.world.lock();
            (world.worker_is_late(), world.boots)
        };
        if late > Duration::ZERO {
            tokio::time::sleep(late).await;
        }
        let is_killed = is_closed(asker);
        {
            let mut world = self.world.lock();
            if world.boots != boots {
                return None;
            }
            if is_killed {
                let does = world.workers.percent(50);
                let how = if does { "when it is done" } else { "before it is done" };
                world.tell("kubelet-volnetd", format!("and a worker of it dies {how}"));
                if !does {
                    return None;
                }
            }
        }
        Some(worker::perform(&self.settings, request))
    }
}

/// Whether the other end is gone.
fn is_closed(connection: &OwnedFd) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(connection.as_fd(), PollFlags::RDHUP)];
    let found = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    found.is_ok_and(|count| count > 0) && polled[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP)
}
