//! What upstream's kubelet makes outside a node's own folders: the folder of device plugins, which is this one whatever its root
//! directory is.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

const FOLDER: &str = "/var/lib/kubelet/device-plugins";

/// Takes away what was not there before, if it is empty and nobody serves in it, when it is dropped.
#[derive(Debug)]
pub(super) struct DevicePluginsFolder {
    /// The innermost first.
    absent: Vec<PathBuf>,
}

impl DevicePluginsFolder {
    /// Before the kubelet begins. In its root directory the folder goes with that.
    pub(super) fn before(root_dir: &Path) -> Self {
        let folder = Path::new(FOLDER);
        if folder.starts_with(root_dir) {
            return Self { absent: Vec::new() };
        }
        Self { absent: folder.ancestors().take_while(|folder| !folder.exists()).map(Path::to_owned).collect() }
    }
}

impl Drop for DevicePluginsFolder {
    fn drop(&mut self) {
        let Some(folder) = self.absent.first() else { return };
        // One that was killed leaves it.
        let socket = folder.join("kubelet.sock");
        if UnixStream::connect(&socket).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
            let _ = std::fs::remove_file(socket);
        }
        for folder in &self.absent {
            let _ = std::fs::remove_dir(folder);
        }
    }
}
