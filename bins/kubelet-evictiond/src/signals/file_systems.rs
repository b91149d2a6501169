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
/// Folders whose file system another one's reading tells of are looked at themselves so often: something may be mounted there.
const EACH_EVERY: Duration = Duration::from_secs(10);

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

/// Two folders with the same one show the same figures. The capacity is in it because a quota of a folder's changes what is shown there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Extent {
    device: u64,
    capacity: u64,
}

impl Extent {
    fn of(found: &disk::FileSystem) -> Self {
        Extent { device: found.device, capacity: found.capacity }
    }
}

/// Folders on the file systems that count, and what was found there last.
#[derive(Debug, Default)]
pub struct FileSystems {
    folders: [Option<String>; 3],
    devices: [Option<u64>; 3],
    /// What the folder's own last reading tells from others'. `None`: it was not answered, or there is none.
    own: [Option<Extent>; 3],
    /// When each folder was read itself last.
    each_at: Option<Instant>,
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

    /// Folders of which a reading begins now: one of each file system, and each of them now and then. One whose last reading is
    /// still under way is none, and speaks for no other.
    pub fn begin(&mut self) -> Vec<String> {
        let each = self.each_at.is_none_or(|at| at.elapsed() >= EACH_EVERY);
        if each {
            self.each_at = Some(Instant::now());
        }
        let (mut told, mut begun) = (BTreeSet::new(), Vec::new());
        for place in Place::ALL {
            let Some(folder) = self.folder(place).filter(|folder| !self.reading.contains(*folder)).cloned() else {
                // Another place has the same folder, which was begun just now.
                continue;
            };
            let is_told = self.own[place as usize].is_some_and(|extent| !told.insert(extent));
            if each || !is_told {
                self.reading.insert(folder.clone());
                begun.push(folder);
            }
        }
        begun
    }

    /// A reading of the folder has ended: what follows for the signals of everything that lies there.
    pub fn take(&mut self, folder: &str, found: Option<disk::FileSystem>, at: Duration, seen: &mut Observations) {
        self.reading.remove(folder);
        let extent = found.as_ref().map(Extent::of);
        for place in Place::ALL {
            let index = place as usize;
            if self.folder(place).is_some_and(|known| known == folder) {
                self.own[index] = extent;
                if let Some(extent) = extent {
                    self.devices[index] = Some(extent.device);
                }
            } else if extent.is_none() || self.own[index] != extent {
                continue;
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
                self.own[place as usize] = None;
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
        assert_eq!((files.begin(), files.begin()), (vec!["/root".to_owned()], vec![]), "one reading at a time");
        files.take("/root", on(1), at, &mut seen);
        assert_eq!(files.begin(), ["/root"]);
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

    #[tokio::test(start_paused = true)]
    async fn one_reading_tells_of_all_that_lies_on_a_file_system() {
        let mut files = FileSystems::new("/root".into());
        files.told("/images".into(), "/images".into());
        let mut seen = Observations::new();
        let on = |device, capacity, available| {
            Some(disk::FileSystem { available, capacity, device, ..disk::FileSystem::default() })
        };
        let available =
            |seen: &Observations, place: Place| seen.get(&place.signals()[0]).map(|reading| reading.available);
        let at = Duration::from_secs(1);
        assert_eq!(files.begin(), ["/root", "/images"], "nothing is known of either");
        files.take("/root", on(1, 10, 5), at, &mut seen);
        files.take("/images", on(1, 10, 5), at, &mut seen);
        assert_eq!(files.begin(), ["/root"]);
        files.take("/root", on(1, 10, 4), at, &mut seen);
        assert_eq!(Place::ALL.map(|place| available(&seen, place)), [Some(4); 3]);

        assert_eq!(files.begin(), ["/root"]);
        assert_eq!(files.begin(), ["/images"], "the first hangs, and is not waited for");
        files.take("/images", on(1, 10, 3), at, &mut seen);
        assert_eq!(available(&seen, Place::Node), Some(3));
        files.take("/root", None, at, &mut seen);
        assert_eq!(Place::ALL.map(|place| available(&seen, place)), [None, Some(3), Some(3)]);
        assert_eq!(files.begin(), ["/root", "/images"]);
        files.take("/root", on(1, 10, 2), at, &mut seen);
        files.take("/images", on(1, 8, 1), at, &mut seen);
        assert_eq!(Place::ALL.map(|place| available(&seen, place)), [Some(2), Some(1), Some(1)], "a quota");
        assert_eq!(files.begin(), ["/root", "/images"]);
        files.take("/root", on(1, 10, 2), at, &mut seen);
        files.take("/images", on(1, 10, 2), at, &mut seen);
        assert_eq!(files.begin(), ["/root"]);
        files.take("/root", on(1, 10, 2), at, &mut seen);
        tokio::time::advance(EACH_EVERY).await;
        assert_eq!(files.begin(), ["/root", "/images"], "something may have been mounted there");
        files.take("/images", on(2, 20, 9), at, &mut seen);
        assert_eq!((files.layout(), available(&seen, Place::Images)), (Some(Layout::ImageFs), Some(9)));
    }
}
