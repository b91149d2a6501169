//! On which file systems the root directory, images and containers' writable layers lie, and what was read of each. Who reads is
//! elsewhere: a reading may hang.

use std::collections::{BTreeMap, BTreeSet};
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
/// A reading that takes longer says that nothing is known.
const PATIENCE: Duration = Duration::from_secs(5);

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

/// A reading that is under way.
#[derive(Debug, Clone, Copy)]
struct Reading {
    begun: Instant,
    /// It has taken too long, and nobody waits for it.
    late: bool,
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
    /// Readings that are under way. One that is late stays: whoever reads there may hang, and a second one would hang beside it.
    reading: BTreeMap<String, Reading>,
    asked: Option<Instant>,
}

impl FileSystems {
    /// The root directory's folder is known; where images and containers lie, the runtime says.
    pub fn new(root: String) -> Self {
        FileSystems { folders: [Some(root), None, None], ..FileSystems::default() }
    }

    /// Folders of which a reading begins now: one of each file system, and each of them now and then. One whose last reading is
    /// still under way is none, and speaks for no other.
    pub fn begin(&mut self) -> Vec<String> {
        self.begin_those(self.each_at.is_none_or(|at| at.elapsed() >= EACH_EVERY))
    }

    /// As [`Self::begin`], of each folder.
    pub fn begin_each(&mut self) -> Vec<String> {
        self.begin_those(true)
    }

    fn begin_those(&mut self, each: bool) -> Vec<String> {
        let now = Instant::now();
        if each {
            self.each_at = Some(now);
        }
        let (mut told, mut begun) = (BTreeSet::new(), Vec::new());
        for place in Place::ALL {
            let Some(folder) = self.folder(place).filter(|folder| !self.reading.contains_key(*folder)).cloned() else {
                // Another place has the same folder, which was begun just now.
                continue;
            };
            let is_told = self.own[place as usize].is_some_and(|extent| !told.insert(extent));
            if each || !is_told {
                self.reading.insert(folder.clone(), Reading { begun: now, late: false });
                begun.push(folder);
            }
        }
        begun
    }

    /// When the first reading that is waited for will be late; `None`: none is waited for.
    pub fn next_late(&self) -> Option<Instant> {
        self.reading.values().filter(|reading| !reading.late).map(|reading| reading.begun + PATIENCE).min()
    }

    /// Of folders whose reading is late by now nothing is known any more. It stays under way, and counts when it comes at last. True:
    /// there were some.
    pub fn give_up_late(&mut self, seen: &mut Observations) -> bool {
        let now = Instant::now();
        let late = self.reading.iter_mut().filter(|(_, reading)| !reading.late && reading.begun + PATIENCE <= now);
        let late: Vec<String> = late
            .map(|(folder, reading)| {
                reading.late = true;
                folder.clone()
            })
            .collect();
        for folder in &late {
            self.found(folder, None, Duration::ZERO, seen);
        }
        !late.is_empty()
    }

    /// A reading of the folder has ended: what follows for the signals of everything that lies there.
    pub fn take(&mut self, folder: &str, found: Option<disk::FileSystem>, at: Duration, seen: &mut Observations) {
        self.reading.remove(folder);
        self.found(folder, found, at, seen);
    }

    fn found(&mut self, folder: &str, found: Option<disk::FileSystem>, at: Duration, seen: &mut Observations) {
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
        assert_eq!(files.begin_each(), ["/images", "/root/layers"], "that of the root is under way");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reading_that_is_late_is_unknown_and_counts_when_it_comes() {
        let mut files = FileSystems::new("/root".into());
        files.told("/images".into(), "/images".into());
        let mut seen = Observations::new();
        let on = |device, available| {
            Some(disk::FileSystem { available, capacity: 10, device, ..disk::FileSystem::default() })
        };
        let available = |seen: &Observations| {
            [Place::Node, Place::Images].map(|place| seen.get(&place.signals()[0]).map(|reading| reading.available))
        };
        let at = Duration::from_secs(1);
        assert_eq!(files.begin(), ["/root", "/images"]);
        files.take("/root", on(1, 5), at, &mut seen);
        files.take("/images", on(2, 6), at, &mut seen);
        assert_eq!((files.next_late(), available(&seen)), (None, [Some(5), Some(6)]));

        let begun = Instant::now();
        assert_eq!(files.begin(), ["/root", "/images"]);
        assert_eq!(files.next_late(), Some(begun + PATIENCE));
        files.take("/root", on(1, 4), at, &mut seen);
        tokio::time::advance(PATIENCE - Duration::from_millis(1)).await;
        assert!(!files.give_up_late(&mut seen));
        assert_eq!(available(&seen), [Some(4), Some(6)], "what was read last stands for so long");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(files.give_up_late(&mut seen));
        assert_eq!(available(&seen), [Some(4), None], "and no longer");
        assert_eq!((files.next_late(), files.give_up_late(&mut seen)), (None, false), "said once, and not waited for");
        assert_eq!(files.layout(), Some(Layout::ImageFs), "it lies where it lay");
        assert_eq!(
            (files.begin_each(), files.begin_each()),
            (vec!["/root".to_owned()], vec![]),
            "nobody hangs beside it"
        );

        files.take("/images", on(2, 3), at, &mut seen);
        assert_eq!(available(&seen), [Some(4), Some(3)]);
        files.take("/root", on(1, 4), at, &mut seen);
        assert_eq!(files.begin(), ["/root", "/images"]);
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
