//! `kubelet-disks`: makes block devices ready to be mounted, for kubelet-volnetd, and attaches those behind Fibre Channel and of iSCSI
//! targets. It exists because blkid, mkfs, fsck, resize2fs and iscsiadm are programs of the machine's, and most of them read what a
//! stranger may have written to a disk.
//!
//! # Serves / calls
//! Questions of kubelet-volnetd alone: from the one inherited socket whose other end volnetd has, or (as a unit) from
//! connections that root alone may make. Calls nobody but multipathd, where a disk with several paths goes; iscsiadm calls iscsid.
//!
//! # Privileges
//! uid 0, because block devices are root's; of capabilities CAP_SYS_RESOURCE alone, which the kernel wants of whoever lets a
//! mounted ext4 grow. It mounts nothing. Of files Landlock leaves programs with their libraries, and what is below /dev;
//! of what it reads in /sys it may write the SCSI hosts' own folders. iscsiadm has its records and its lock.
//!
//! # Security
//! A question names a device and what an empty one is formatted with, one of a fixed list. Programs and their arguments are fixed
//! in [`programs`]; the device is compared with the numbers that its asker saw ([`device`]). No environment, no shell.
//! Who takes it over writes to every disk of the machine.
//!
//! # State
//! None: what is on a device, the device tells.
//!
//! # When it fails
//! The asker's pipe ends, and the question is asked again with the volume's next try. What a mkfs that was cut off has left is
//! there to be found by the next look. It ends when nothing is asked for a while.
//!
//! # Modules
//! A module uses only those above it in this table (`tests/tests/files/layers.rs` holds it to that).
//!
//! | module | decides |
//! |---|---|
//! | [`device`] | whether a path is the device that is meant |
//! | [`multipath`] | which devices join several paths, and what multipathd is told |
//! | [`fc`] | which device a disk behind Fibre Channel is |
//! | [`programs`] | which programs there are, with which arguments, and what their answers mean |
//! | [`sysfs`] | what iscsiadm sees of the kernel, and in which folder |
//! | [`iscsi`] | which sessions there are, which device a target's disk is |
//! | [`act`] | in which order they run |

pub mod act;
pub mod device;
pub mod fc;
pub mod iscsi;
pub mod multipath;
pub mod programs;
pub mod sysfs;
