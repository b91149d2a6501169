//! Disks behind Fibre Channel (upstream `pkg/volume/fc/fc_util.go`): found by the links that udev makes, after the kernel has looked
//! at its SCSI hosts anew, and taken out of the kernel again.
//!
//! `root` is where `/dev` and `/sys` are: `/`, but for trees that tests have recorded.

use std::io;
use std::path::{Path, PathBuf};

use bulkhead_ipc::common::FcDisk;
use bulkhead_sys::mountinfo;

use crate::multipath::{self, names};

const BY_PATH: &str = "dev/disk/by-path";
const BY_ID: &str = "dev/disk/by-id";

/// Whether a link below `/dev/disk/by-path` is that disk of that target. Pure.
fn is_path_to(link: &str, wwn: &str, lun: u32) -> bool {
    match link.strip_suffix(&format!("-0x{wwn}-lun-{lun}")) {
        Some("fc") => true,
        Some(bus) => bus.len() > "pci-fc".len() && bus.starts_with("pci-") && bus.ends_with("-fc"),
        None => false,
    }
}

/// What a link leads to, by the kernel's name for it ("sda").
fn device(root: &Path, link: &Path) -> Option<String> {
    let device = link.canonicalize().ok()?;
    let dev = root.join("dev").canonicalize().ok()?;
    let name = device.strip_prefix(dev).ok()?.to_str()?.to_owned();
    (!name.contains('/')).then_some(name)
}

/// The first path to each of its names that has a link.
fn links(root: &Path, disk: &FcDisk) -> Vec<PathBuf> {
    let folder = root.join(if disk.target_wwns.is_empty() { BY_ID } else { BY_PATH });
    let there = names(&folder);
    let of_target = |wwn: &String| there.iter().find(|link| is_path_to(link, wwn, disk.lun));
    let of_id = |id: &String| there.iter().find(|link| link.strip_prefix("scsi-") == Some(id));
    let found: Vec<&String> = if disk.target_wwns.is_empty() {
        disk.wwids.iter().filter_map(of_id).collect()
    } else {
        disk.target_wwns.iter().filter_map(of_target).collect()
    };
    found.into_iter().map(|link| folder.join(link)).collect()
}

/// What there is of a disk now: one of its paths, and the device that joins them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    path: String,
    joined: Option<String>,
}

fn found(root: &Path, disk: &FcDisk) -> Option<Found> {
    let paths = links(root, disk).into_iter().filter_map(|link| device(root, &link));
    let all: Vec<Found> = paths.map(|path| Found { joined: multipath::parent(root, &path), path }).collect();
    all.iter().find(|found| found.joined.is_some()).or(all.first()).cloned()
}

/// Has the kernel look for new disks of all its SCSI hosts. Blocks for as long as they take.
fn scan(root: &Path) {
    let folder = root.join("sys/class/scsi_host");
    for host in names(&folder) {
        let file = folder.join(&host).join("scan");
        if let Err(error) = write(&file, "- - -") {
            tracing::warn!(host, %error, "a SCSI host cannot be scanned");
        }
    }
}

/// Nothing is made where there is no such file.
///
/// # Errors
/// It cannot be written.
pub fn write(file: &Path, text: &str) -> io::Result<()> {
    io::Write::write_all(&mut std::fs::OpenOptions::new().write(true).open(file)?, text.as_bytes())
}

/// The device of a disk, by its path below `/dev`. Where its paths are joined already nothing is scanned. Blocks.
///
/// # Errors
/// There is none, in upstream's words.
pub fn attach(root: &Path, disk: &FcDisk) -> Result<PathBuf, String> {
    let joined = found(root, disk).filter(|found| found.joined.is_some());
    let now = joined.or_else(|| {
        scan(root);
        found(root, disk)
    });
    let Found { path, joined } = now.ok_or("no fc disk found")?;
    tracing::info!(disk = path, dm = joined.as_deref(), "fc: find disk");
    Ok(Path::new("/dev").join(joined.unwrap_or(path)))
}

/// Where the machine has a device mounted, or a partition of it: kubelet-volnetd has unmounted what it has.
///
/// # Errors
/// The kernel's list of mounts cannot be read.
fn mounted(root: &Path, name: &str) -> io::Result<Option<PathBuf>> {
    let block = root.join("sys/block").join(name);
    let partitions = names(&block).into_iter().filter(|entry| entry.starts_with(name)).map(|entry| block.join(entry));
    let numbers: Vec<String> = std::iter::once(block.clone())
        .chain(partitions)
        .filter_map(|folder| std::fs::read_to_string(folder.join("dev")).ok())
        .map(|numbers| numbers.trim_end().to_owned())
        .collect();
    let mounts = std::fs::read(root.join("proc/self/mountinfo"))?;
    let mut mounts = mountinfo::parse(&mounts);
    let mount = mounts.find(|mount| numbers.iter().any(|number| number == mount.device));
    Ok(mount.map(|mount| mount.mount_point.into_owned()))
}

/// Flushes a device ("sda", "dm-0") and takes it out of the kernel with all its paths. One that is not there is out. Blocks.
///
/// # Errors
/// Something uses it, or the kernel refuses.
pub fn detach(root: &Path, name: &str) -> Result<(), String> {
    let joined = multipath::parent(root, name);
    let shown = joined.as_deref().unwrap_or(name);
    let unread = |error| format!("failed to read where device /dev/{shown} is mounted: {error}");
    if let Some(point) = mounted(root, shown).map_err(unread)? {
        return Err(format!("device /dev/{shown} is mounted at {}", point.display()));
    }
    let paths = match joined {
        Some(joined) => {
            let paths = multipath::paths(root, &joined);
            let failed = |error| format!("failed to flush multipath device /dev/{joined}: {error}");
            multipath::flush(root, &joined).map_err(failed)?;
            paths
        }
        None => {
            let holders = multipath::holders(root, name);
            if !holders.is_empty() {
                return Err(format!("device /dev/{name} is in use by {}", holders.join(", ")));
            }
            vec![name.to_owned()]
        }
    };
    let mut failed = Ok(());
    for path in paths {
        if let Err(error) = remove(root, &path) {
            failed = Err(format!("fc: detachFCDisk failed. device: /dev/{path} err: {error}"));
        }
    }
    failed
}

/// The disk that is named, or a part of it: nothing is scanned for it.
///
/// # Errors
/// As [`detach`].
pub fn detach_named(root: &Path, disk: &FcDisk) -> Result<(), String> {
    match found(root, disk) {
        Some(Found { path, joined }) => detach(root, &joined.unwrap_or(path)),
        None => Ok(()),
    }
}

fn remove(root: &Path, name: &str) -> io::Result<()> {
    match std::fs::File::open(root.join("dev").join(name)).and_then(|device| device.sync_all()) {
        Ok(()) => {}
        Err(error) => tracing::warn!(device = name, %error, "a device could not be flushed"),
    }
    match write(&root.join("sys/block").join(name).join("device/delete"), "1") {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => {
            tracing::info!(device = name, "fc: removed device from scsi-subsystem");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Two paths to one disk, a disk of one path, a volume of LVM's on a third; as recorded of a machine with two ports.
    fn machine() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for name in ["sda", "sdb", "sdc", "sdd", "dm-0", "dm-1"] {
            let block = root.join("sys/block").join(name);
            for of_it in ["device", "slaves", "holders", "dm"] {
                std::fs::create_dir_all(block.join(of_it)).unwrap();
            }
            std::fs::create_dir_all(root.join("dev")).unwrap();
            std::fs::write(root.join("dev").join(name), "").unwrap();
            std::fs::write(block.join("device/delete"), "").unwrap();
        }
        std::fs::create_dir_all(root.join("proc/self")).unwrap();
        let mounts = "25 1 254:0 / / rw - ext4 /dev/vda rw\n42 25 8:33 /sub /mnt rw,noatime - ext4 /dev/sdc1 rw\n";
        std::fs::write(root.join("proc/self/mountinfo"), mounts).unwrap();
        for (dm, uuid, paths) in [("dm-0", "mpath-3600", &["sda", "sdb"][..]), ("dm-1", "LVM-x", &["sdd"])] {
            std::fs::write(root.join("sys/block").join(dm).join("dm/uuid"), uuid).unwrap();
            for path in paths {
                symlink("x", root.join("sys/block").join(dm).join("slaves").join(path)).unwrap();
                symlink("x", root.join("sys/block").join(path).join("holders").join(dm)).unwrap();
            }
        }
        for (link, name) in [
            ("by-path/pci-0000:41:00.0-fc-0x50060e801049cfd1-lun-0", "sda"),
            ("by-path/pci-0000:41:00.1-fc-0x50060e801049cfd2-lun-0", "sdb"),
            ("by-path/fc-0x500a0981891b8dc5-lun-0", "sdc"),
            ("by-path/pci-0000:41:00.0-fc-0x50060e801049cfd1-lun-1", "sdd"),
            ("by-path/pci-0000:41:00.0-fc-0x50060e801049cfd1-lun-0-part1", "sda"),
            ("by-id/scsi-3600508b400105e210000900000490000", "sdc"),
            ("by-id/scsi-VENDOR_NUMBER", "sdd"),
            ("by-id/scsi-3600-mpath", "dm-0"),
        ] {
            let link = root.join("dev/disk").join(link);
            std::fs::create_dir_all(link.parent().unwrap()).unwrap();
            symlink(format!("../../{name}"), link).unwrap();
        }
        for host in ["host0", "host1"] {
            let host = root.join("sys/class/scsi_host").join(host);
            std::fs::create_dir_all(&host).unwrap();
            std::fs::write(host.join("scan"), "").unwrap();
        }
        folder
    }

    fn of_targets(wwns: &[&str], lun: u32) -> FcDisk {
        let target_wwns = wwns.iter().map(|wwn| (*wwn).to_owned()).collect();
        FcDisk { target_wwns, lun, wwids: Vec::new() }
    }

    fn of_ids(ids: &[&str]) -> FcDisk {
        FcDisk { wwids: ids.iter().map(|id| (*id).to_owned()).collect(), ..FcDisk::default() }
    }

    fn scanned(machine: &tempfile::TempDir) -> bool {
        let scanned =
            |host| std::fs::read_to_string(machine.path().join("sys/class/scsi_host").join(host).join("scan"));
        let both = [scanned("host0").unwrap(), scanned("host1").unwrap()];
        assert!(both[0] == both[1] && ["", "- - -"].contains(&both[0].as_str()), "{both:?}");
        !both[0].is_empty()
    }

    #[test]
    fn links_as_udev_makes_them() {
        for (link, is) in [
            ("fc-0x50-lun-0", true),
            ("pci-0000:41:00.0-fc-0x50-lun-0", true),
            ("pci--fc-0x50-lun-0", true),
            ("pci-fc-0x50-lun-0", false),
            ("pci-0000:41:00.0-fc-0x50-lun-00", false),
            ("pci-0000:41:00.0-fc-0x150-lun-0", false),
            ("pci-0000:41:00.0-fc-0x50-lun-0-part1", false),
            ("ip-10.0.0.1:3260-iscsi-iqn-0x50-lun-0", false),
            ("x-fc-0x50-lun-0", false),
        ] {
            assert_eq!(is_path_to(link, "50", 0), is, "{link}");
        }
    }

    #[test]
    fn a_disk_is_found_by_its_targets_or_its_ids() {
        for (disk, device, scans) in [
            (of_targets(&["50060e801049cfd1", "50060e801049cfd2"], 0), Some("/dev/dm-0"), false),
            // Whichever of its targets there is.
            (of_targets(&["50060e801049cfff", "50060e801049cfd2"], 0), Some("/dev/dm-0"), false),
            (of_targets(&["500a0981891b8dc5", "50060e801049cfff"], 0), Some("/dev/sdc"), true),
            // What lies on it is not what joins it.
            (of_targets(&["50060e801049cfd1"], 1), Some("/dev/sdd"), true),
            (of_targets(&["50060e801049cfd1"], 2), None, true),
            (of_ids(&["3600508b400105e210000900000490000"]), Some("/dev/sdc"), true),
            (of_ids(&["none", "VENDOR_NUMBER"]), Some("/dev/sdd"), true),
            (of_ids(&["3600-mpath"]), Some("/dev/dm-0"), false),
            (of_ids(&["3600"]), None, true),
            (of_ids(&[]), None, true),
        ] {
            let machine = machine();
            let found = attach(machine.path(), &disk).ok();
            assert_eq!(found.as_deref(), device.map(Path::new), "{disk:?}");
            assert_eq!(scanned(&machine), scans, "{disk:?}");
        }
        assert_eq!(attach(Path::new("/nowhere"), &of_ids(&["x"])), Err("no fc disk found".to_owned()));
    }

    #[test]
    fn a_disk_goes_with_all_its_paths() {
        let gone = |machine: &tempfile::TempDir, name: &str| {
            let delete = machine.path().join("sys/block").join(name).join("device/delete");
            !std::fs::read_to_string(delete).unwrap().is_empty()
        };
        let machine = machine();
        let root = machine.path();
        let partition = root.join("sys/block/sdc/sdc1");
        std::fs::create_dir_all(&partition).unwrap();
        std::fs::write(partition.join("dev"), "8:33\n").unwrap();
        assert_eq!(detach(root, "sdc"), Err("device /dev/sdc is mounted at /mnt".to_owned()));
        assert!(!gone(&machine, "sdc"));
        let mounts = root.join("proc/self/mountinfo");
        let listed = std::fs::read(&mounts).unwrap();
        std::fs::write(&mounts, [b"41 25 8:1 / /\xff rw - ext4 /dev/sda1 rw\n", listed.as_slice()].concat()).unwrap();
        assert_eq!(detach(root, "sdc"), Err("device /dev/sdc is mounted at /mnt".to_owned()), "beside any bytes");
        std::fs::remove_file(&mounts).unwrap();
        let unread = detach(root, "sdc").unwrap_err();
        assert!(unread.starts_with("failed to read where device /dev/sdc is mounted: "), "{unread}");
        assert!(!gone(&machine, "sdc"));
        std::fs::write(&mounts, listed).unwrap();
        std::fs::write(partition.join("dev"), "8:34\n").unwrap();
        detach(root, "sdc").unwrap();
        assert!(gone(&machine, "sdc"));
        detach_named(root, &of_targets(&["50060e801049cfff"], 0)).unwrap();
        detach(root, "sdx").unwrap();
        // Somebody else's volume group.
        let refused = detach_named(root, &of_ids(&["VENDOR_NUMBER"])).unwrap_err();
        assert_eq!(refused, "device /dev/sdd is in use by dm-1");
        // Nobody forgets the joined one: its paths stay.
        let refused = detach(root, "dm-0").unwrap_err();
        assert!(refused.starts_with("failed to flush multipath device /dev/dm-0: "), "{refused}");
        assert!(!["sda", "sdb", "sdd"].iter().any(|name| gone(&machine, name)));
        assert_eq!(multipath::paths(root, "dm-0"), ["sda", "sdb"]);
        assert!(!scanned(&machine));
    }
}
