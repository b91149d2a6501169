//! Where devices are mounted once a node, and where they are mapped, by upstream's plugins. Pure.

use std::path::{Path, PathBuf};

use bulkhead_types::VolumeName;
use serde::{Deserialize, Serialize};

use super::super::{FC, ISCSI, LOCAL};
use super::{fc, iscsi};
use crate::node::Settings;

/// Whose device it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Plugin {
    /// The machine's own: it is there, and stays.
    Local,
    /// Behind Fibre Channel: attached for pods, and detached after them.
    Fc,
    /// The same of an iSCSI target.
    Iscsi,
}

impl Plugin {
    pub const ALL: [Plugin; 3] = [Plugin::Local, Plugin::Fc, Plugin::Iscsi];
    /// Those that are attached and detached.
    pub const ATTACHED: [Plugin; 2] = [Plugin::Fc, Plugin::Iscsi];

    pub const fn name(self) -> &'static str {
        match self {
            Plugin::Local => LOCAL,
            Plugin::Fc => FC,
            Plugin::Iscsi => ISCSI,
        }
    }

    /// Of those that are attached and detached.
    pub fn attached(name: &str) -> Option<Self> {
        Plugin::ATTACHED.into_iter().find(|plugin| plugin.name() == name)
    }

    /// Below the root directory: a folder for each device that is mounted.
    pub const fn mounts(self) -> &'static str {
        match self {
            Plugin::Local => "plugins/kubernetes.io/local-volume/mounts",
            Plugin::Fc => "plugins/kubernetes.io/fc",
            Plugin::Iscsi => "plugins/kubernetes.io/iscsi",
        }
    }

    /// Below the root directory: a folder for each device that is mapped. Upstream escapes the plugin's name of local ones here, and
    /// not where it mounts.
    pub const fn maps(self) -> &'static str {
        match self {
            Plugin::Local => "plugins/kubernetes.io~local-volume/volumeDevices",
            Plugin::Fc => "plugins/kubernetes.io/fc/volumeDevices",
            Plugin::Iscsi => "plugins/kubernetes.io/iscsi/volumeDevices",
        }
    }

    /// Folders of a disk's name: those of iSCSI lie in one for each interface.
    pub const fn depth(self) -> usize {
        match self {
            Plugin::Local | Plugin::Fc => 1,
            Plugin::Iscsi => 2,
        }
    }
}

/// One device's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DiskPlace {
    pub plugin: Plugin,
    /// Its folder.
    pub name: String,
}

impl DiskPlace {
    pub fn local(volume: &VolumeName) -> Self {
        DiskPlace { plugin: Plugin::Local, name: volume.to_string() }
    }

    pub fn fc(disk: &fc::Disk) -> Self {
        DiskPlace { plugin: Plugin::Fc, name: disk.name() }
    }

    pub fn iscsi(disk: &iscsi::Disk) -> Self {
        DiskPlace { plugin: Plugin::Iscsi, name: disk.name() }
    }

    /// Where it is mounted, below the root directory.
    pub fn mount(&self) -> PathBuf {
        Path::new(self.plugin.mounts()).join(&self.name)
    }

    /// Where it is mapped, below the root directory: in it, by the pod's uid.
    pub fn map(&self) -> PathBuf {
        Path::new(self.plugin.maps()).join(&self.name)
    }

    /// Where it is mounted, absolute.
    pub fn point(&self, settings: &Settings) -> PathBuf {
        settings.paths.root_dir.join(self.mount())
    }
}

impl std::fmt::Display for DiskPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.plugin.name(), self.name)
    }
}
