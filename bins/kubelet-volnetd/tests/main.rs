//! The tests of this crate from outside: one binary of the files below, because each would hold another copy of the same
//! libraries.
#![allow(clippy::unwrap_used, reason = "helpers of tests are no tests to the lint")]

mod broker;
mod content;
mod csi;
mod csi_crashes;
mod csi_leftovers;
mod disks;
mod flexvolume;
mod life;
mod linked_root;
mod local;
mod nfs;
mod plugins;
mod process;
mod rotation;
mod silent;
mod sub_path;
mod verbs;
mod walks;
mod world;
