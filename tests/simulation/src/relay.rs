//! The connections of kubelet-evictiond to kubelet-syncd: bytes go through, some later than others, until somebody breaks them. To
//! kubelet-syncd they are another user's than kubelet-statusd's.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bulkhead_simulation_kernel as kernel;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use crate::schedule::Peer;
use crate::world::Shared;

const BUFFER: usize = 64 << 10;

/// Serves until it is dropped. `syncd`: its socket; `user`: who comes there.
pub async fn serve(world: Shared, listener: std::os::unix::net::UnixListener, syncd: PathBuf, user: u32) {
    let Ok(listener) = UnixListener::from_std(listener) else { return };
    let mut number = 0;
    while let Ok((near, _)) = listener.accept().await {
        number += 1;
        // Nobody listens: the other end sees a connection that breaks.
        if let Ok(far) = connect(&syncd, user, number) {
            tokio::spawn(carry(world.clone(), near, far));
        }
    }
}

fn connect(syncd: &Path, user: u32, number: u64) -> Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let name = SocketAddrUnix::new_abstract_name(kernel::name_of_user(user, number).as_bytes())?;
    rustix::net::bind(&socket, &name)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(syncd)?).context("connecting to kubelet-syncd")?;
    Ok(UnixStream::from_std(socket.into())?)
}

async fn carry(world: Shared, near: UnixStream, far: UnixStream) {
    let mut breaks = world.lock().pressure.breaks.subscribe();
    breaks.mark_unchanged();
    let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
    tokio::select! {
        () = pass(&world, from_near, to_far) => {}
        () = pass(&world, from_far, to_near) => {}
        _ = breaks.changed() => {}
    }
}

async fn pass(world: &Shared, mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
    let mut buffer = vec![0; BUFFER];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let late = world.lock().latency(Peer::Volnetd).1;
        if late > 0 {
            tokio::time::sleep(Duration::from_millis(late)).await;
        }
        if to.write_all(buffer.get(..count).unwrap_or_default()).await.is_err() {
            return;
        }
    }
}
