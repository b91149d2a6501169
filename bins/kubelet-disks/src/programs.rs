//! The programs, their arguments, and what their answers mean (upstream `mount-utils` SafeFormatAndMount and resizefs). Pure.

use bulkhead_helper::{Ended, Program};
use bulkhead_ipc::common::DiskFileSystem;

/// The folders of an ordinary PATH, in its order: upstream finds the programs by it.
pub const FOLDERS: &[&str] =
    &["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/run/current-system/sw/bin"];

const fn program(name: &'static str) -> Program {
    Program { name, folders: FOLDERS }
}

pub const BLKID: Program = program("blkid");
pub const FSCK: Program = program("fsck");
pub const E2FSCK: Program = program("e2fsck");
pub const RESIZE2FS: Program = program("resize2fs");

/// What blkid is asked: what is really there, and no cache of it.
pub fn look(device: &str) -> Vec<&str> {
    vec!["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device]
}

/// Repairs what can be repaired without a question.
pub fn check(device: &str) -> Vec<&str> {
    vec!["-a", device]
}

/// resize2fs wants a whole check of what is not mounted.
pub fn check_whole(device: &str) -> Vec<&str> {
    vec!["-f", "-p", device]
}

pub fn grow(device: &str) -> Vec<&str> {
    vec![device]
}

/// Who formats a device, and its arguments.
pub fn format(file_system: DiskFileSystem, device: &str) -> Option<(Program, Vec<&str>)> {
    Some(match file_system {
        DiskFileSystem::Unspecified => return None,
        DiskFileSystem::Ext2 => (program("mkfs.ext2"), vec![device]),
        DiskFileSystem::Ext3 => (program("mkfs.ext3"), vec!["-F", "-m0", device]),
        DiskFileSystem::Ext4 => (program("mkfs.ext4"), vec!["-F", "-m0", device]),
        DiskFileSystem::Xfs => (program("mkfs.xfs"), vec!["-f", device]),
        DiskFileSystem::Btrfs => (program("mkfs.btrfs"), vec![device]),
    })
}

/// Name of a file system, as blkid and mount have it.
pub const fn name(file_system: DiskFileSystem) -> &'static str {
    match file_system {
        DiskFileSystem::Unspecified => "",
        DiskFileSystem::Ext2 => "ext2",
        DiskFileSystem::Ext3 => "ext3",
        DiskFileSystem::Ext4 => "ext4",
        DiskFileSystem::Xfs => "xfs",
        DiskFileSystem::Btrfs => "btrfs",
    }
}

/// resize2fs is for these.
pub fn is_ext(found: &str) -> bool {
    matches!(found, "ext2" | "ext3" | "ext4")
}

/// What upstream calls a device with a table of partitions: never formatted, and no file system either.
pub const PARTITIONS: &str = "unknown data, probably partitions";

/// What is on the device by blkid's word; empty: nothing.
///
/// # Errors
/// It cannot be told, and so nothing may be formatted.
pub fn found(ended: &Ended) -> Result<String, String> {
    match ended.code {
        // Nothing that was asked for.
        Some(2) => return Ok(String::new()),
        Some(0) => {}
        _ => return Err(ended.output.clone()),
    }
    let (mut kind, mut table) = ("", "");
    for line in ended.output.lines().filter(|line| !line.is_empty()) {
        let Some((key, value)) = line.split_once('=') else {
            return Err(format!("blkid returns invalid output: {}", ended.output));
        };
        match key {
            "TYPE" => kind = value,
            "PTTYPE" => table = value,
            _ => {}
        }
    }
    Ok(if table.is_empty() { kind.to_owned() } else { PARTITIONS.to_owned() })
}

/// What a check has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checked {
    Clean,
    Corrected,
    /// Errors are left: it must not be mounted.
    Broken,
    /// It could not be checked, which upstream passes over: a mounted device, a type without a program.
    Unchecked,
}

/// By the exit code of fsck(8).
pub fn checked(ended: &Ended) -> Checked {
    match ended.code {
        Some(0) => Checked::Clean,
        Some(1) => Checked::Corrected,
        Some(4) => Checked::Broken,
        _ => Checked::Unchecked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(code: i32, output: &str) -> Ended {
        Ended { code: Some(code), output: output.to_owned() }
    }

    #[test]
    fn upstreams_arguments() {
        let line = |file_system| {
            let (program, arguments) = format(file_system, "/dev/sdb").unwrap();
            format!("{} {}", program.name, arguments.join(" "))
        };
        use DiskFileSystem::{Btrfs, Ext2, Ext3, Ext4, Xfs};
        assert_eq!(
            [Ext2, Ext3, Ext4, Xfs, Btrfs].map(line),
            [
                "mkfs.ext2 /dev/sdb",
                "mkfs.ext3 -F -m0 /dev/sdb",
                "mkfs.ext4 -F -m0 /dev/sdb",
                "mkfs.xfs -f /dev/sdb",
                "mkfs.btrfs /dev/sdb",
            ]
        );
        assert!(format(DiskFileSystem::Unspecified, "/dev/sdb").is_none());
        assert_eq!(look("/dev/sdb").join(" "), "-p -s TYPE -s PTTYPE -o export /dev/sdb");
        assert_eq!(check("/dev/sdb"), ["-a", "/dev/sdb"]);
    }

    #[test]
    fn what_blkid_says() {
        assert_eq!(found(&ended(2, "")), Ok(String::new()));
        assert_eq!(found(&ended(0, "DEVNAME=/dev/sdb\nTYPE=ext4\n")), Ok("ext4".into()));
        assert_eq!(found(&ended(0, "DEVNAME=/dev/sdb\nPTTYPE=gpt\n")), Ok(PARTITIONS.into()));
        assert_eq!(found(&ended(0, "TYPE=ext4\nPTTYPE=dos")), Ok(PARTITIONS.into()));
        assert_eq!(found(&ended(0, "DEVNAME=/dev/sdb\n")), Ok(String::new()));
        // Two file systems at once, a device that cannot be read.
        assert!(found(&ended(8, "ambivalent")).is_err() && found(&ended(4, "")).is_err());
        assert!(found(&ended(0, "what?")).is_err());
        assert!(found(&Ended { code: None, output: String::new() }).is_err());
    }

    #[test]
    fn what_fsck_says() {
        let by_code = |code| checked(&ended(code, ""));
        assert_eq!(
            [0, 1, 2, 4, 8, 12].map(by_code),
            [
                Checked::Clean,
                Checked::Corrected,
                Checked::Unchecked,
                Checked::Broken,
                Checked::Unchecked,
                Checked::Unchecked
            ]
        );
        assert_eq!(checked(&Ended { code: None, output: String::new() }), Checked::Unchecked);
    }
}
