//! kubelet-volnetd's workers: what they are asked for is done by its own code, as late as a worker may be. They are killed with
//! kubelet-volnetd, at any moment: one that had something to do has done it, or not.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use bulkhead_sys::{async_fd, scm};
use bulkhead_worker::Message;
use kubelet_volnetd::node::Settings;
use kubelet_volnetd::worker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::Interest;

use crate::world::Shared;

/// A worker's number, which it says first.
const PID: u32 = 2;

/// Serves until it is dropped.
pub async fn serve(world: Shared, settings: Settings, listener: OwnedFd) {
    let Ok(listener) = async_fd::register(listener) else { return };
    while let Ok(connection) = listener.async_io(Interest::READABLE, |listener| scm::accept(listener)).await {
        tokio::spawn(work(world.clone(), settings.clone(), connection));
    }
}

/// One worker.
async fn work(world: Shared, settings: Settings, connection: OwnedFd) {
    let Ok(connection) = async_fd::register(connection) else { return };
    let mut next = Some(Message::of(PID.to_le_bytes().to_vec()));
    while let Some(message) = next.take() {
        if connection.async_io(Interest::WRITABLE, |socket| message.send(socket)).await.is_err() {
            return;
        }
        let Ok(Some(request)) = connection.async_io(Interest::READABLE, |socket| Message::recv(socket)).await else {
            return;
        };
        let (late, boots) = {
            let mut world = world.lock();
            (world.worker_is_late(), world.boots)
        };
        if late > Duration::ZERO {
            tokio::time::sleep(late).await;
        }
        let is_killed = is_closed(connection.get_ref());
        {
            let mut world = world.lock();
            if world.boots != boots {
                return;
            }
            if is_killed {
                let does = world.workers.percent(50);
                let how = if does { "when it is done" } else { "before it is done" };
                world.tell("kubelet-volnetd", format!("and a worker of it dies {how}"));
                if !does {
                    return;
                }
            }
        }
        next = Some(worker::perform(&settings, request));
    }
}

/// Whether the other end is gone.
fn is_closed(connection: &OwnedFd) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(connection.as_fd(), PollFlags::RDHUP)];
    let found = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    found.is_ok_and(|count| count > 0) && polled[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP)
}
