//! Mount options that are about the mount itself and not about its file system, by mount(8)'s names. Pure.

use rustix::mount::MountAttrFlags;

/// How access times are written: one value of several bits.
const ATIME: MountAttrFlags = MountAttrFlags::MOUNT_ATTR__ATIME;

/// What an option does to the bits of a mount (`MOUNT_ATTR_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attribute {
    Set(MountAttrFlags),
    Clear(MountAttrFlags),
}

impl Attribute {
    /// `None`: the option is about something else. `ro` and `rw` are of both, and each caller's own.
    pub fn of(option: &str) -> Option<Self> {
        Some(match option {
            "nosuid" => Attribute::Set(MountAttrFlags::MOUNT_ATTR_NOSUID),
            "suid" => Attribute::Clear(MountAttrFlags::MOUNT_ATTR_NOSUID),
            "nodev" => Attribute::Set(MountAttrFlags::MOUNT_ATTR_NODEV),
            "dev" => Attribute::Clear(MountAttrFlags::MOUNT_ATTR_NODEV),
            "noexec" => Attribute::Set(MountAttrFlags::MOUNT_ATTR_NOEXEC),
            "exec" => Attribute::Clear(MountAttrFlags::MOUNT_ATTR_NOEXEC),
            "nodiratime" => Attribute::Set(MountAttrFlags::MOUNT_ATTR_NODIRATIME),
            "diratime" => Attribute::Clear(MountAttrFlags::MOUNT_ATTR_NODIRATIME),
            "noatime" => Attribute::Set(MountAttrFlags::MOUNT_ATTR_NOATIME),
            "strictatime" => Attribute::Set(MountAttrFlags::MOUNT_ATTR_STRICTATIME),
            "atime" | "relatime" | "norelatime" | "nostrictatime" => Attribute::Clear(ATIME),
            _ => return None,
        })
    }

    /// The bits with it. Of the ways to write access times the last option counts, as with mount(8).
    #[must_use]
    pub fn applied_to(self, attributes: u32) -> u32 {
        match self {
            Attribute::Set(bits) => {
                let cleared = if ATIME.contains(bits) { ATIME } else { bits };
                attributes & !cleared.bits() | bits.bits()
            }
            Attribute::Clear(bits) => attributes & !bits.bits(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_option_on_one_thing_counts() {
        let [no_suid, no_exec] = [MountAttrFlags::MOUNT_ATTR_NOSUID, MountAttrFlags::MOUNT_ATTR_NOEXEC];
        let [no_atime, strict] = [MountAttrFlags::MOUNT_ATTR_NOATIME, MountAttrFlags::MOUNT_ATTR_STRICTATIME];
        for (options, expected) in [
            ("", MountAttrFlags::empty()),
            ("nosuid", no_suid),
            ("nosuid noexec", no_suid | no_exec),
            ("nosuid noexec suid", no_exec),
            ("noatime strictatime", strict),
            ("strictatime nosuid noatime", no_suid | no_atime),
            ("noatime relatime", MountAttrFlags::empty()),
            ("nodev dev nodiratime diratime exec", MountAttrFlags::empty()),
        ] {
            let all = options.split(' ').filter_map(Attribute::of);
            assert_eq!(all.fold(0, |bits, one| one.applied_to(bits)), expected.bits(), "{options:?}");
        }
        assert!(["ro", "rw", "sync", "NOSUID", "nosuid=1"].iter().all(|option| Attribute::of(option).is_none()));
    }
}
