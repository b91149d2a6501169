//! Every listening socket of the daemons. The launcher holds them for its life, so a daemon's restart
//! loses no caller.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use bulkhead_config::NodeConfig;
use bulkhead_types::Process;

/// Could not make a socket or its folder.
#[derive(Debug, thiserror::Error)]
#[error("failed to {doing} {}", path.display())]
pub struct SocketError {
    doing: &'static str,
    path: PathBuf,
    source: std::io::Error,
}

/// Listening sockets of all daemons.
#[derive(Debug)]
pub struct Sockets {
    /// By process: name and descriptor as passed.
    by_process: BTreeMap<Process, Vec<(&'static str, OwnedFd)>>,
    paths: Vec<PathBuf>,
}

impl Sockets {
    /// Binds everything anew; the folder is there.
    pub fn bind(config: &NodeConfig) -> Result<Self, SocketError> {
        let gid = config.users.gid;
        let mut by_process = BTreeMap::new();
        let mut paths = Vec::new();
        for process in Process::ALL {
            let path = config.paths.socket(process);
            let mut sockets = vec![("grpc", listen_stream(&path, gid)?)];
            paths.push(path);
            if process == Process::Volnetd {
                let path = config.paths.broker_socket();
                sockets.push(("broker", listen_seqpacket(&path, gid)?));
                paths.push(path);
            }
            if let Some(port) = config.flags.vsock_port_of(process) {
                let failed = |source| SocketError {
                    doing: "listen on (--vsock-port)",
                    path: PathBuf::from(format!("vsock port {port}")),
                    source,
                };
                sockets.push(("vsock", bulkhead_sys::vsock::listen(port).map_err(failed)?));
            }
            by_process.insert(process, sockets);
        }
        Ok(Sockets { by_process, paths })
    }

    /// Copies of a process's sockets, to be passed to a new child.
    pub fn of(&self, process: Process) -> std::io::Result<Vec<(String, OwnedFd)>> {
        let sockets = self.by_process.get(&process).map_or(&[][..], Vec::as_slice);
        sockets.iter().map(|(name, fd)| Ok(((*name).to_owned(), fd.try_clone()?))).collect()
    }

    /// Removes the files, on a clean stop.
    pub fn remove(self) {
        for path in &self.paths {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn listen_stream(path: &Path, gid: u32) -> Result<OwnedFd, SocketError> {
    remove_stale(path)?;
    let failed = |doing| move |source| SocketError { doing, path: path.to_owned(), source };
    let listener = std::os::unix::net::UnixListener::bind(path).map_err(failed("listen on"))?;
    give(path, 0, gid, 0o660)?;
    Ok(listener.into())
}

fn listen_seqpacket(path: &Path, gid: u32) -> Result<OwnedFd, SocketError> {
    remove_stale(path)?;
    let listener = bulkhead_sys::scm::listen(path, 0o660).map_err(|source| SocketError {
        doing: "listen on",
        path: path.to_owned(),
        source,
    })?;
    give(path, 0, gid, 0o660)?;
    Ok(listener)
}

/// A daemon's notification socket: it alone may write there, so a message needs no further proof of who sent it.
pub(super) fn notification(path: &Path, uid: u32) -> Result<std::os::unix::net::UnixDatagram, SocketError> {
    remove_stale(path)?;
    let failed = |source| SocketError { doing: "listen on", path: path.to_owned(), source };
    let socket = std::os::unix::net::UnixDatagram::bind(path).map_err(failed)?;
    give(path, uid, 0, 0o200)?;
    socket.set_nonblocking(true).map_err(failed)?;
    Ok(socket)
}

fn give(path: &Path, uid: u32, gid: u32, mode: u32) -> Result<(), SocketError> {
    let failed = |doing| move |source| SocketError { doing, path: path.to_owned(), source };
    // The mode first: as the new owner's, only CAP_FOWNER could change it.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(failed("set the mode of"))?;
    std::os::unix::fs::chown(path, Some(uid), Some(gid)).map_err(failed("set the owner of"))
}

fn remove_stale(path: &Path) -> Result<(), SocketError> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(SocketError { doing: "remove the old socket", path: path.to_owned(), source }),
    }
}
