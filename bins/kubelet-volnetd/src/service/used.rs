//! What a request says of the use of a device or folder, whatever kind of volume it is of.

use std::path::PathBuf;

use crate::operations::local::{FileSystem, Wanted};
use crate::validate::{self, InvalidRequest};
use crate::volumes::disk::options::{self, FsType, Options};
use crate::volumes::disk::place::Plugin;
use crate::volumes::empty_dir::Group;
use crate::volumes::local::Local;

/// As on the wire.
pub(super) struct Used {
    pub(super) pod_uid: String,
    pub(super) volume: String,
    pub(super) read_only: bool,
    pub(super) fs_group: Option<i64>,
    pub(super) on_root_mismatch: bool,
    pub(super) fs_type: String,
    pub(super) mount_options: Vec<String>,
    pub(super) block: bool,
}

impl Used {
    /// `path`: what is bound into the pod's folder. `grow`: its file system is to fill the device. What a device would be mounted as
    /// is judged where there is one: a folder has a file system already.
    ///
    /// # Errors
    /// A field is not as it is to be.
    pub(super) fn wanted(self, plugin: Plugin, path: PathBuf, grow: bool) -> Result<Wanted, InvalidRequest> {
        let pod = validate::pod_uid(&self.pod_uid)?;
        let group = self.fs_group.map(|group| validate::id("fs_group", group)).transpose()?;
        let local = Local {
            plugin,
            volume: validate::volume(&self.volume)?,
            path,
            read_only: self.read_only,
            group: group.map(|id| Group { id, on_root_mismatch: self.on_root_mismatch }),
            attributes: options::of_bind(&self.mount_options),
        };
        let file_system = || -> Result<FileSystem, InvalidRequest> {
            let options = Options::parse(&self.mount_options, self.read_only)?;
            Ok(FileSystem { fs_type: FsType::parse(&self.fs_type)?, options })
        };
        Ok(Wanted { pod, local, file_system: file_system(), block: self.block, grow })
    }
}
