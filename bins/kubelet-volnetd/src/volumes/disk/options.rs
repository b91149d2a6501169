//! File systems and mount options of volumes on block devices. Both are closed lists: a parameter of the kernel that nobody has
//! looked at cannot be set, and a file system that nobody has looked at is not mounted. Pure.

use bulkhead_ipc::common::DiskFileSystem;
use bulkhead_sys::fs_context::Parameter;
use rustix::mount::MountAttrFlags;
use serde::{Deserialize, Serialize};

use super::super::mount_attributes::Attribute;
use crate::validate::{InvalidRequest, bad};

/// More than anybody writes.
const MAX_OPTIONS: usize = 64;
const MAX_BYTES: usize = 256;

/// What a device is formatted with and mounted as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FsType {
    Ext2,
    Ext3,
    Ext4,
    Xfs,
    Btrfs,
}

impl FsType {
    /// Empty is ext4, as upstream.
    ///
    /// # Errors
    /// It is none of them.
    pub fn parse(text: &str) -> Result<Self, InvalidRequest> {
        Ok(match text {
            "" | "ext4" => FsType::Ext4,
            "ext3" => FsType::Ext3,
            "ext2" => FsType::Ext2,
            "xfs" => FsType::Xfs,
            "btrfs" => FsType::Btrfs,
            _ => return Err(bad("fs_type", text, "ext2, ext3, ext4, xfs or btrfs")),
        })
    }

    pub const fn name(self) -> &'static str {
        match self {
            FsType::Ext2 => "ext2",
            FsType::Ext3 => "ext3",
            FsType::Ext4 => "ext4",
            FsType::Xfs => "xfs",
            FsType::Btrfs => "btrfs",
        }
    }

    pub const fn to_wire(self) -> DiskFileSystem {
        match self {
            FsType::Ext2 => DiskFileSystem::Ext2,
            FsType::Ext3 => DiskFileSystem::Ext3,
            FsType::Ext4 => DiskFileSystem::Ext4,
            FsType::Xfs => DiskFileSystem::Xfs,
            FsType::Btrfs => DiskFileSystem::Btrfs,
        }
    }
}

/// Options as they are mounted with.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Options {
    /// The file system's own.
    pub parameters: Vec<Parameter>,
    /// Bits of the mount itself (`MOUNT_ATTR_*`).
    pub attributes: u32,
    pub read_only: bool,
    /// As they were written.
    pub shown: String,
}

/// What becomes of an option.
enum Rule {
    Flag,
    Number,
    Word(&'static [&'static str]),
    Attribute(Attribute),
    Ignored,
}

fn rule(name: &str) -> Option<Rule> {
    if let Some(attribute) = Attribute::of(name) {
        return Some(Rule::Attribute(attribute));
    }
    Some(match name {
        // Of all file systems.
        "sync" | "dirsync" | "lazytime" | "iversion" => Rule::Flag,
        "rw" | "async" | "defaults" | "_netdev" | "auto" | "noauto" | "nofail" | "nouser" => Rule::Ignored,
        // ext2, ext3, ext4.
        "acl" | "noacl" | "user_xattr" | "nouser_xattr" | "barrier" | "nobarrier" | "auto_da_alloc"
        | "noauto_da_alloc" | "delalloc" | "nodelalloc" | "journal_checksum" | "nojournal_checksum"
        | "block_validity" | "noblock_validity" | "dioread_lock" | "dioread_nolock" | "i_version" | "grpid"
        | "nogrpid" | "bsdgroups" | "sysvgroups" | "init_itable" | "noinit_itable" | "usrquota" | "grpquota"
        | "prjquota" | "noquota" => Rule::Flag,
        "commit"
        | "stripe"
        | "inode_readahead_blks"
        | "max_batch_time"
        | "min_batch_time"
        | "journal_ioprio"
        | "resuid"
        | "resgid"
        | "max_dir_size_kb" => Rule::Number,
        "errors" => Rule::Word(&["remount-ro", "continue", "panic"]),
        "data" => Rule::Word(&["ordered", "journal", "writeback"]),
        // Also of others.
        "discard" | "nodiscard" => Rule::Flag,
        // xfs.
        "attr2" | "noattr2" | "inode32" | "inode64" | "largeio" | "nolargeio" | "noalign" | "swalloc" | "nouuid"
        | "norecovery" | "uquota" | "gquota" | "pquota" | "wsync" | "filestreams" | "ikeep" | "noikeep" => Rule::Flag,
        "logbufs" | "sunit" | "swidth" => Rule::Number,
        // btrfs.
        "ssd" | "nossd" | "datacow" | "nodatacow" | "datasum" | "nodatasum" | "autodefrag" | "noautodefrag"
        | "flushoncommit" | "noflushoncommit" => Rule::Flag,
        "compress" => Rule::Word(&["zlib", "lzo", "zstd", "no"]),
        "space_cache" => Rule::Word(&["v1", "v2"]),
        _ if name.starts_with("x-") => Rule::Ignored,
        _ => return None,
    })
}

/// Bits of a bind mount (`MOUNT_ATTR_*`). As mount(8) with "bind": the options of a file system, and what nobody knows, change
/// nothing of one.
pub fn of_bind(all: &[String]) -> u32 {
    all.iter().flat_map(|entry| entry.split(',')).fold(0, |attributes, option| match Attribute::of(option) {
        _ if option == "ro" => attributes | MountAttrFlags::MOUNT_ATTR_RDONLY.bits(),
        Some(attribute) => attribute.applied_to(attributes),
        None => attributes,
    })
}

impl Options {
    /// # Errors
    /// An option that is not known, or whose value is not.
    pub fn parse(all: &[String], read_only: bool) -> Result<Self, InvalidRequest> {
        if all.len() > MAX_OPTIONS {
            return Err(InvalidRequest::TooMany { field: "mount_options", count: all.len(), max: MAX_OPTIONS });
        }
        let mut options = Options { read_only, shown: all.join(","), ..Options::default() };
        // An entry may hold several, as `mount -o` takes them.
        for option in all.iter().flat_map(|entry| entry.split(',')).filter(|option| !option.is_empty()) {
            let refused = |why| bad("mount_options", option, why);
            if option.len() > MAX_BYTES {
                return Err(refused("at most 256 bytes"));
            }
            if option == "ro" {
                options.read_only = true;
                continue;
            }
            let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
            match (rule(name).ok_or_else(|| refused("a mount option of its file system"))?, value) {
                (Rule::Flag, None) => options.parameters.push((name.to_owned(), None)),
                (Rule::Number, Some(number)) if number.parse::<u32>().is_ok() => {
                    options.parameters.push((name.to_owned(), Some(number.to_owned())));
                }
                (Rule::Word(words), Some(word)) if words.contains(&word) => {
                    options.parameters.push((name.to_owned(), Some(word.to_owned())));
                }
                (Rule::Attribute(attribute), None) => options.attributes = attribute.applied_to(options.attributes),
                (Rule::Ignored, _) => {}
                (Rule::Flag | Rule::Attribute(_), Some(_)) => return Err(refused("it takes no value")),
                (Rule::Number, _) => return Err(refused("a number")),
                (Rule::Word(_), _) => return Err(refused("one of its words")),
            }
        }
        if options.read_only {
            options.attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY.bits();
            options.parameters.push(("ro".to_owned(), None));
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &[&str], read_only: bool) -> Result<Options, InvalidRequest> {
        Options::parse(&text.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>(), read_only)
    }

    #[test]
    fn options_become_parameters_and_bits() {
        assert_eq!(parse(&[], false), Ok(Options::default()));
        let options =
            parse(&["noatime,nosuid", "data=journal", "commit=30", "discard", "defaults", "x-y=z"], false).unwrap();
        let text = |name: &str, value: Option<&str>| (name.to_owned(), value.map(ToOwned::to_owned));
        assert_eq!(
            options.parameters,
            [text("data", Some("journal")), text("commit", Some("30")), text("discard", None)]
        );
        let bits = MountAttrFlags::MOUNT_ATTR_NOATIME | MountAttrFlags::MOUNT_ATTR_NOSUID;
        assert_eq!((options.attributes, options.read_only), (bits.bits(), false));
        for read_only in [parse(&["ro"], false), parse(&[], true)] {
            let read_only = read_only.unwrap();
            assert!(read_only.read_only);
            assert_eq!(read_only.parameters, [text("ro", None)]);
            assert_eq!(read_only.attributes, MountAttrFlags::MOUNT_ATTR_RDONLY.bits());
        }
    }

    #[test]
    fn a_bind_takes_bits_alone() {
        let bits = |all: &[&str]| of_bind(&all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>());
        let [no_exec, read_only] = [MountAttrFlags::MOUNT_ATTR_NOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY];
        assert_eq!(bits(&["noexec,ro", "commit=30", "bogus"]), (no_exec | read_only).bits());
        assert_eq!(bits(&["noexec", "exec", "discard"]), 0);
        let atime = MountAttrFlags::MOUNT_ATTR_STRICTATIME;
        assert_eq!(bits(&["noatime", "strictatime"]), atime.bits(), "the last one counts");
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for bad in
            ["source=/dev/sda", "bogus", "data=fast", "commit=x", "discard=1", "nosuid=1", "commit", "loop", "bind"]
        {
            assert!(parse(&[bad], false).is_err(), "{bad}");
        }
        assert!(parse(&["ro"; 65], false).is_err());
        assert!(FsType::parse("overlay").is_err() && FsType::parse("EXT4").is_err());
        assert_eq!(FsType::parse("").unwrap(), FsType::Ext4);
        for name in ["ext2", "ext3", "ext4", "xfs", "btrfs"] {
            assert_eq!(FsType::parse(name).unwrap().name(), name);
        }
    }
}
