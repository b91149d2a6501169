//! Clients that mean harm: dressed as any user, speaking HTTP/2 by hand, or filling every message of the contract with
//! what must not be believed.

pub mod broker;
pub mod floods;
pub mod frames;
pub mod messages;

use anyhow::{Context as _, Result};
use rustix::thread::{Gid, Uid};

/// Runs `work` in a thread of its own as this user and group, in no other group and with no capability: the kernel tells
/// a server who the thread is that connects.
///
/// # Errors
/// Those of `work`, or the thread could not become that user.
pub fn dressed<T: Send>(uid: u32, gid: u32, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            rustix::thread::set_thread_groups(&[]).context("leaving all groups")?;
            rustix::thread::set_thread_res_gid(gid, gid, gid).context("becoming a group")?;
            rustix::thread::set_thread_res_uid(uid, uid, uid).context("becoming a user")?;
            work()
        });
        thread.join().map_err(|_| anyhow::anyhow!("the client panicked"))?
    })
}

/// A runtime for one such thread.
///
/// # Errors
/// The kernel has no more descriptors.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
