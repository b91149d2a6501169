//! The folder of the sockets and of the rendered configuration: root's, for the daemons' group to enter.

use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::PathBuf;

use bulkhead_config::NodeConfig;

/// The folder cannot be as it must be.
#[derive(Debug, thiserror::Error)]
#[error("failed to {doing} {}", path.display())]
pub struct FolderError {
    doing: &'static str,
    path: PathBuf,
    source: std::io::Error,
}

/// Makes the folder (root, the daemons' group, 0750), or makes it so.
///
/// # Errors
/// It cannot be made, or its owner and mode cannot be set.
pub fn prepare(config: &NodeConfig) -> Result<(), FolderError> {
    let path = &config.paths.run_dir;
    let failed = |doing| move |source| FolderError { doing, path: path.clone(), source };
    std::fs::DirBuilder::new().recursive(true).mode(0o750).create(path).map_err(failed("create the folder"))?;
    std::os::unix::fs::chown(path, Some(0), Some(config.users.gid)).map_err(failed("give to the daemons' group"))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o750)).map_err(failed("set the mode of"))
}
