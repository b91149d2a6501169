//! Where devices are mounted once a node, and where they are mapped, by upstream's plugins. What a FlexVolume driver mounts once a
//! node need be no device. Pure.

use std::path::{Path, PathBuf};

use bulkhead_types::{FlexDriver, VolumeName};
use serde::{Deserialize, Serialize};

use super::super::{FC, FLEX, ISCSI, LOCAL};
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
    /// A FlexVolume driver's, which a controller attaches and detaches.
    Flex,
}

impl Plugin {
    /// Those of which devices are mapped into pods.
    pub const MAPPED: [Plugin; 3] = [Plugin::Local, Plugin::Fc, Plugin::Iscsi];
    /// Those that are attached and detached.
    pub const ATTACHED: [Plugin; 3] = [Plugin::Fc, Plugin::Iscsi, Plugin::Flex];

    pub const fn name(self) -> &'static str {
        match self {
            Plugin::Local => LOCAL,
            Plugin::Fc => FC,
            Plugin::Iscsi => ISCSI,
            Plugin::Flex => FLEX,
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
            Plugin::Flex => FlexDriver::ONCE_A_NODE,
        }
    }

    /// Below the root directory: a folder for each device that is mapped. Upstream escapes the plugin's name of local ones here, and
    /// not where it mounts. Of FlexVolume drivers none is.
    pub const fn maps(self) -> &'static str {
        match self {
            Plugin::Local => "plugins/kubernetes.io~local-volume/volumeDevices",
            Plugin::Fc => "plugins/kubernetes.io/fc/volumeDevices",
            Plugin::Iscsi => "plugins/kubernetes.io/iscsi/volumeDevices",
            Plugin::Flex => "plugins/kubernetes.io/flexvolume/volumeDevices",
        }
    }

    /// Folders of a disk's name: those of iSCSI lie in one for each interface. Of FlexVolume drivers see [`DiskPlace::of_flex`].
    pub const fn depth(self) -> usize {
        match self {
            Plugin::Local | Plugin::Fc => 1,
            Plugin::Iscsi | Plugin::Flex => 2,
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

    pub fn flex(driver: &FlexDriver, volume: &VolumeName) -> Self {
        DiskPlace { plugin: Plugin::Flex, name: format!("{driver}/{volume}") }
    }

    /// Driver and volume, where it is a FlexVolume driver's.
    pub fn of_flex(&self) -> Option<(FlexDriver, VolumeName)> {
        let (driver, volume) = self.name.rsplit_once('/').filter(|_| self.plugin == Plugin::Flex)?;
        Some((FlexDriver::parse(driver).ok()?, VolumeName::parse(volume).ok()?))
    }

    /// Where it is mounted, below the root directory.
    pub fn mount(&self) -> PathBuf {
        match self.of_flex() {
            Some((driver, volume)) => driver.mounts().join(volume.as_str()),
            None => Path::new(self.plugin.mounts()).join(&self.name),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_flexvolume_driver_mounts_once_a_node_is_named_by_both() {
        for (driver, mount) in [
            ("v.example/d", "plugins/kubernetes.io/flexvolume/v.example/d/mounts/pv"),
            ("d", "plugins/kubernetes.io/flexvolume/d/mounts/pv"),
        ] {
            let (driver, volume) = (FlexDriver::parse(driver).unwrap(), VolumeName::parse("pv").unwrap());
            let place = DiskPlace::flex(&driver, &volume);
            assert_eq!((place.mount(), place.name.clone()), (mount.into(), format!("{driver}/pv")));
            assert_eq!(place.of_flex(), Some((driver, volume)));
        }
        for bad in ["pv", "../pv", "v/../pv", "a/b/c/pv", "v/d/", "/pv", "kubernetes.io/nfs/pv"] {
            assert_eq!(DiskPlace { plugin: Plugin::Flex, name: bad.to_owned() }.of_flex(), None, "{bad}");
        }
        assert_eq!(DiskPlace { plugin: Plugin::Fc, name: "v/d/pv".to_owned() }.of_flex(), None);
    }
}
