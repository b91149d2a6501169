//! Nuisances on the descriptor broker's side socket and the sockets that take datagrams.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use anyhow::Result;
use bulkhead_ipc::volnetd::{Kmsg, OpenRequest, open_request::Kind};
use bulkhead_sys::scm;
use prost::Message as _;

/// Garbage, unknown ids, too long, too many descriptors, descriptors that nobody asked for, answers never read, silence.
/// What cannot be sent any more is not an error.
///
/// # Errors
/// This process is out of descriptors.
pub fn pester(socket: &Path, round: u64) -> Result<()> {
    let (_reader, writer) = std::io::pipe()?;
    let writer = OwnedFd::from(writer);
    let known = OpenRequest { id: round, kind: Some(Kind::Kmsg(Kmsg {})), ..Default::default() }.encode_to_vec();
    let long = vec![0; bulkhead_ipc::broker::MAX_DATAGRAM_BYTES * 4];
    // A kind with a number that no version of the contract has.
    let unknown = [&known[..], &[0xfa, 0x3f, 0]].concat();
    let messages: [&[u8]; 6] = [&known, &long, &unknown, &[0xff; 64], &[0x0a; 8192], b"x"];
    let mut silent = Vec::new();
    for message in messages {
        for fds in 0..=scm::MAX_FDS {
            let Ok(connection) = scm::connect(socket) else { continue };
            let rights = vec![writer.as_fd(); fds];
            while scm::send(&connection, message, &rights).is_ok() {}
            // Never reads.
            silent.push(connection);
        }
    }
    silent.extend((0..64).map_while(|_| scm::connect(socket).ok()));
    Ok(())
}

/// Floods a supervisor's notification socket with what is no notification, too long or too much.
///
/// # Errors
/// It cannot be reached.
pub fn notifications(socket: &Path, times: usize) -> Result<()> {
    let sender = UnixDatagram::unbound()?;
    sender.connect(socket)?;
    sender.set_nonblocking(true)?;
    let (_reader, writer) = std::io::pipe()?;
    let messages: [&[u8]; 4] = [&[0xff; 4096], b"STATUS=\x00\n\n=", &[b'A'; 100_000], b"WATCHDOG=never\nREADY=2"];
    for at in 0..times {
        let _ = sender.send(messages[at % messages.len()]);
        let _ = scm::send(&sender, b"FDSTORE=1", &[writer.as_fd()]);
    }
    Ok(())
}
