//! The machine itself: processors, memory, block devices and mounted file systems. Parsers are pure.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use bulkhead_ipc::evictiond::{Machine, MountedFileSystem};
use bulkhead_sys::mountinfo;

use crate::disk::FileSystem;
use crate::kernel::{self, Reader};

/// Most file systems that are looked at: each may hang.
const FILE_SYSTEMS_MAX: usize = 64;

/// Of /proc/cpuinfo, which has about 1.6 KiB for each processor: ten thousand of them.
const CPUINFO_MAX: u64 = 16 << 20;

/// What does not change while the machine runs, and its memory.
pub fn read(reader: &mut Reader) -> Machine {
    let meminfo = reader.read(Path::new("/proc/meminfo")).unwrap_or_default();
    let (memory, swap) = (kernel::meminfo(meminfo, "MemTotal"), kernel::meminfo(meminfo, "SwapTotal"));
    let (cores, physical_cores, sockets) = processors_in(Path::new("/proc/cpuinfo"));
    let boot_id = reader.read(Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default();
    Machine {
        cores,
        physical_cores,
        sockets,
        memory_bytes: memory.unwrap_or(0),
        swap_bytes: swap.unwrap_or(0),
        boot_id: String::from_utf8_lossy(boot_id).trim().to_owned(),
        ..Machine::default()
    }
}

fn processors_in(cpuinfo: &Path) -> (u32, u32, u32) {
    processors(&kernel::read_up_to(cpuinfo, CPUINFO_MAX).unwrap_or_default())
}

/// Logical processors, cores and sockets of /proc/cpuinfo. Where it names no cores (ARM), each processor is one, in one
/// socket.
fn processors(cpuinfo: &[u8]) -> (u32, u32, u32) {
    let (mut logical, mut cores, mut sockets) = (0_u32, HashSet::new(), HashSet::new());
    let mut socket = "";
    let text = String::from_utf8_lossy(cpuinfo);
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        match key.trim_end() {
            "processor" => {
                logical = logical.saturating_add(1);
                socket = "";
            }
            "physical id" => {
                socket = value.trim();
                sockets.insert(socket);
            }
            "core id" => {
                cores.insert((socket, value.trim()));
            }
            _ => {}
        }
    }
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let physical = if cores.is_empty() { logical } else { count(cores.len()) };
    (logical, physical, count(sockets.len()).max(u32::from(logical > 0)))
}

/// A block device's line of /proc/diskstats.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
    pub name: String,
    /// Reads, merged, sectors, milliseconds; the same of writes; in progress, busy and weighted milliseconds.
    pub counters: [u64; 11],
}

/// All block devices.
pub fn devices(diskstats: &[u8]) -> Vec<Device> {
    let text = String::from_utf8_lossy(diskstats);
    let device = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (major, minor) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let name = fields.next()?.to_owned();
        let mut counters = [0; 11];
        for counter in &mut counters {
            *counter = fields.next()?.parse().ok()?;
        }
        Some(Device { major, minor, name, counters })
    };
    text.lines().filter_map(device).collect()
}

/// A file system that /metrics/cadvisor shows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mounted {
    /// "/dev/vda", "/dev/mapper/vg-root"; of one in memory where it is mounted.
    pub device: String,
    pub point: PathBuf,
    pub major: u32,
    pub minor: u32,
}

/// The machine's own file systems out of /proc/self/mountinfo: each disk once, and those in memory, without those of pods:
/// volumes, which are told elsewhere, and the shared memory of sandboxes. `root_dir`: without a link, as the kernel tells it.
pub fn file_systems(mountinfo: &[u8], root_dir: &Path, devices: &[Device]) -> Vec<Mounted> {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for mount in mountinfo::parse(mountinfo) {
        let numbers = mount.device.split_once(':');
        let numbers = numbers.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let Some((major, minor)) = numbers else { continue };
        let (point, source) = (mount.mount_point.into_owned(), mount.source.to_string_lossy());
        let device = match &*mount.fs_type {
            "tmpfs" => point.to_string_lossy().into_owned(),
            "ext2" | "ext3" | "ext4" | "xfs" | "btrfs" | "f2fs" | "vfat" => {
                // As it was mounted (cAdvisor `fs/fs.go` processMounts). The kernel's word for what it mounted first is no device.
                if source.starts_with("/dev/") && source != "/dev/root" {
                    source.to_string()
                } else {
                    let named = devices.iter().find(|device| (device.major, device.minor) == (major, minor));
                    named.map_or_else(|| source.to_string(), |device| format!("/dev/{}", device.name))
                }
            }
            _ => continue,
        };
        let of_pod = (point != root_dir && point.starts_with(root_dir))
            || point.iter().any(|part| part.to_string_lossy().starts_with("kubernetes.io~"))
            || (source == "shm" && point != Path::new("/dev/shm"));
        if of_pod || !seen.insert(device.clone()) {
            continue;
        }
        if found.len() == FILE_SYSTEMS_MAX {
            break;
        }
        found.push(Mounted { device, point, major, minor });
    }
    found
}

/// Its figures and those of its device.
pub fn measured(mounted: &Mounted, fs: FileSystem, devices: &[Device]) -> MountedFileSystem {
    let device = devices.iter().find(|device| (device.major, device.minor) == (mounted.major, mounted.minor));
    let [
        reads,
        reads_merged,
        sectors_read,
        read_ms,
        writes,
        writes_merged,
        sectors_written,
        write_ms,
        in_progress,
        io_ms,
        weighted_io_ms,
    ] = device.map(|device| device.counters).unwrap_or_default();
    MountedFileSystem {
        device: mounted.device.clone(),
        capacity_bytes: fs.capacity,
        used_bytes: fs.used,
        inodes: fs.inodes,
        inodes_free: fs.inodes_free,
        reads,
        reads_merged,
        sectors_read,
        read_ms,
        writes,
        writes_merged,
        sectors_written,
        write_ms,
        in_progress,
        io_ms,
        weighted_io_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DISKS: &[u8] = b"   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n \
                           254       0 vda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n \
                           253       0 dm-0 4 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";

    #[test]
    fn processors_of_machines() {
        let two_sockets = "processor\t: 0\nphysical id\t: 0\ncore id\t: 0\n\nprocessor\t: 1\nphysical id\t: 0\n\
                           core id\t: 0\n\nprocessor\t: 2\nphysical id\t: 1\ncore id\t: 0\n\nprocessor\t: 3\n\
                           physical id\t: 1\ncore id\t: 1\n";
        assert_eq!(processors(two_sockets.as_bytes()), (4, 3, 2));
        assert_eq!(processors(b"processor : 0\nBogoMIPS : 48\n\nprocessor : 1\n"), (2, 2, 1), "ARM");
        assert_eq!(processors(b""), (0, 0, 0));
    }

    #[test]
    fn all_processors_of_a_large_machine() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let processor = |index: usize| {
            let flags = "x".repeat(1500);
            format!(
                "processor\t: {index}\nphysical id\t: {}\ncore id\t: {}\nflags\t: {flags}\n\n",
                index / 256,
                index / 2
            )
        };
        std::fs::write(file.path(), (0..2048).map(processor).collect::<String>()).unwrap();
        assert!(file.as_file().metadata().unwrap().len() > 3 << 20);
        assert_eq!(processors_in(file.path()), (2048, 1024, 8));
    }

    #[test]
    fn file_systems_of_the_machine_alone() {
        let devices = devices(DISKS);
        assert_eq!(devices[1].counters, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        let mountinfo = "\
20 1 254:0 / / rw - ext4 /dev/root rw
21 20 254:0 /var /mnt rw - ext4 /dev/root rw
22 20 0:20 / /dev/shm rw shared:1 - tmpfs tmpfs rw
23 20 0:21 / /var/lib/kubelet/pods/u/volumes/v rw - tmpfs tmpfs rw
24 20 0:4 / /proc rw - proc proc rw
26 20 0:24 / /run/containerd/sandboxes/s/shm rw - tmpfs shm rw
27 20 0:25 / /other/pods/u/volumes/kubernetes.io~projected/t rw - tmpfs tmpfs rw
25 20 8:1 / /data rw - xfs /dev/sdb1 rw
28 20 253:0 / /volumes rw - xfs /dev/mapper/vg-volumes rw
";
        let found = file_systems(mountinfo.as_bytes(), Path::new("/var/lib/kubelet"), &devices);
        let names: Vec<_> = found.iter().map(|mounted| mounted.device.as_str()).collect();
        assert_eq!(names, ["/dev/vda", "/dev/shm", "/dev/sdb1", "/dev/mapper/vg-volumes"]);
        assert_eq!(measured(&found[3], FileSystem::default(), &devices).reads, 4, "by its number");
        let beside = [b"19 20 8:9 / /\xff rw - ext4 /dev/sdz1 rw\n", mountinfo.as_bytes()].concat();
        let beside = file_systems(&beside, Path::new("/var/lib/kubelet"), &devices);
        assert_eq!((beside.len(), &beside[1..]), (5, &found[..]), "a name of any bytes is one of them");
        let fs = FileSystem { capacity: 10, used: 4, ..FileSystem::default() };
        let told = measured(&found[0], fs, &devices);
        assert_eq!((told.capacity_bytes, told.reads, told.weighted_io_ms), (10, 1, 11));
        assert_eq!(measured(&found[1], fs, &devices).reads, 0);
    }

    #[test]
    fn this_machine() {
        let machine = read(&mut Reader::default());
        assert!(machine.cores > 0 && machine.sockets > 0 && machine.physical_cores <= machine.cores);
        assert!(machine.memory_bytes > 0 && machine.boot_id.len() == 36);
    }

    proptest! {
        #[test]
        fn nothing_makes_the_parsers_panic(text in ".{0,300}") {
            let devices = devices(text.as_bytes());
            let _ = (processors(text.as_bytes()), file_systems(text.as_bytes(), Path::new("/r"), &devices));
        }
    }
}
