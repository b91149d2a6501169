//! On which file systems the root directory, images and containers' writable layers lie, and what was read of each. Who reads is
//! elsewhere: a reading may hang.

use std::collections::BTreeSet;
use std::time::Duration;

use bulkhead_config::eviction::Signal;
use tokio::time::Instant;

use super::observation::{self, FileSystem, Observations};
use super::thresholds::Layout;
use crate::disk;

/// Where images lie is asked so often, and while it is not known so often.
const FOLDERS_KEEP: Duration = Duration::from_secs(60);
const FOLDERS_RETRY: Duration = Duration::from_secs(2);

/// A file system that signals speak of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Node,
    Images,
    Containers,
}

impl Place {
    pub const ALL: [Place; 3] = [Place::Node, Place::Images, Place::Containers];

    /// Bytes and inodes.
    pub const fn signals(self) -> [Signal; 2] {
        match self {
            Place::Node => [Signal::NodeFsAvailable, Signal::NodeFsInodesFree],
            Place::Images => [Signal::ImageFsAvailable, Signal::ImageFsInodesFree],
            Place::Containers => [Signal::ContainerFsAvailable, Signal::ContainerFsInodesFree],
        }
    }
}

/// Folders on the file systems that count, and what was found there last.
#[derive(Debug, Default)]
pub struct FileSystems {
    folders: [Option<String>; 3],
    devices: [Option<u64>; 3],
    /// Readings that are under way.
    reading: BTreeSet<String>,
    asked: Option<Instant>,
}

impl FileSystems {
    /// The root directory's folder is known; where images and containers lie, the runtime says.
    pub fn new(root: String) -> Self {
        FileSystems { folders: [Some(root), None, None], ..FileSystems::default() }
    }

    /// All folders, each once.
    pub fn folders(&self) -> BTreeSet<String> {
        self.folders.iter().flatten().cloned().collect()
    }

    /// A reading of the folder begins. False: one is under way.
    pub fn begin(&mut self, folder: &str) -> bool {
        self.reading.insert(folder.to_owned())
    }

    /// A reading of the folder has ended: what follows for the signals of everything that lies there.
    pub fn take(&mut self, folder: &str, found: Option<disk::FileSystem>, at: Duration, seen: &mut Observations) {
        self.reading.remove(folder);
        for place in Place::ALL {
            if self.folder(place).is_none_or(|known| known != folder) {
                continue;
            }
            if let Some(found) = found {
                self.devices[place as usize] = Some(found.device);
            }
            let fs = found.map(|found| FileSystem {
                available: found.available,
                capacity: found.capacity,
                inodes_free: found.inodes_free,
                inodes: found.inodes,
            });
            observation::file_system(place.signals(), fs, at, seen);
        }
    }

    /// The runtime is asked where images and containers lie, if it is time. True: it is.
    pub fn asks(&mut self) -> bool {
        let asks = self.ask_again();
        if asks {
            self.asked = Some(Instant::now());
        }
        asks
    }

    /// What the runtime said. True: something lies elsewhere than before.
    pub fn told(&mut self, images: String, containers: String) -> bool {
        let mut is_new = false;
        for (place, folder) in [(Place::Images, images), (Place::Containers, containers)] {
            if self.folder(place) != Some(&folder) {
                self.folders[place as usize] = Some(folder);
                self.devices[place as usize] = None;
                is_new = true;
            }
        }
        is_new
    }

    fn folder(&self, place: Place) -> Option<&String> {
        self.folders[place as usize].as_ref()
    }

    /// `None` until every file system has been looked at.
    pub fn layout(&self) -> Option<Layout> {
        let [Some(root), Some(images), Some(containers)] = self.devices else { return None };
        Some(Layout::of(root, images, containers))
    }

    fn ask_again(&self) -> bool {
        let keep = if self.folders.iter().all(Option::is_some) { FOLDERS_KEEP } else { FOLDERS_RETRY };
        self.asked.is_none_or(|asked| asked.elapsed() >= keep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_where_follows_the_devices() {
        let mut files = FileSystems::new("/root".into());
        let mut seen = Observations::new();
        let on = |device| Some(disk::FileSystem { available: 5, capacity: 10, device, ..disk::FileSystem::default() });
        let at = Duration::from_secs(1);
        assert!(files.begin("/root") && !files.begin("/root"), "one reading at a time");
        files.take("/root", on(1), at, &mut seen);
        assert!(files.begin("/root"));
        assert_eq!(files.layout(), None, "the runtime has not said where images lie");
        assert!(files.told("/images".into(), "/images".into()) && !files.told("/images".into(), "/images".into()));
        files.take("/images", on(1), at, &mut seen);
        assert_eq!((files.layout(), seen.len()), (Some(Layout::Single), 6));
        files.take("/images", on(2), at, &mut seen);
        assert_eq!(files.layout(), Some(Layout::ImageFs));
        files.take("/images", None, at, &mut seen);
        assert_eq!(seen.keys().copied().collect::<Vec<_>>(), Place::Node.signals(), "what hangs is unknown");
        assert_eq!(files.layout(), Some(Layout::ImageFs), "and where it was");
        files.told("/images".into(), "/root/layers".into());
        files.take("/root/layers", on(1), at, &mut seen);
        files.take("/images", on(2), at, &mut seen);
        assert_eq!(files.layout(), Some(Layout::Split));
        assert_eq!(files.folders().len(), 3);
    }
}
