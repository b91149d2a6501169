//! The laboratory: a real containerd in a network namespace of its own, busybox images made here, a node under test,
//! and a check that nothing was left behind. Used by `tests/`, by `cargo xtask demo` and by the benchmark.
//!
//! A test reads like this:
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use bulkhead_testkit::{Lab, Pod};
//! let lab = Lab::start()?;
//! let node = lab.node("alpha").start()?;
//! node.write(&Pod::busybox("web", "echo hello; sleep 1000"))?;
//! node.wait_for_log("web", "main", "hello")?;
//! # Ok(()) }
//! ```
//!
//! Everything is blocking on purpose: a test is a story with one actor. Several labs may live at once; each claims a
//! number, and all names (namespace, addresses, cgroup, folder) follow from it.

#[cfg(feature = "grpc")]
pub mod agent;
#[cfg(feature = "apiserver")]
pub mod agnhost;
pub mod build;
mod cache;
pub mod cgroups;
#[cfg(feature = "apiserver")]
pub mod cluster;
pub mod conformance;
pub mod containerd;
#[cfg(feature = "grpc")]
pub mod cri;
#[cfg(feature = "apiserver")]
pub mod csi;
mod debian;
#[cfg(feature = "apiserver")]
pub mod device_plugin;
#[cfg(feature = "apiserver")]
pub mod dra;
#[cfg(feature = "grpc")]
pub mod floor;
#[cfg(feature = "apiserver")]
pub mod https;
pub mod image;
pub mod immutable;
#[cfg(feature = "apiserver")]
pub mod kubernetes_images;
mod lab;
pub mod leaks;
#[cfg(feature = "apiserver")]
mod linked;
pub mod loops;
pub mod machine;
pub mod mounts;
pub mod netns;
pub mod node;
#[cfg(all(feature = "apiserver", feature = "grpc"))]
pub mod null_agent;
pub mod package;
mod pod;
mod prepared_root;
pub mod previous;
pub mod processes;
pub mod release;
pub mod runtime_disk;
pub mod silent_fs;
pub mod skip;
pub mod systemd;
pub mod traces;
#[cfg(feature = "vm")]
pub mod vm;
pub mod wait;

#[cfg(feature = "apiserver")]
pub use bulkhead_apiserver as apiserver;
#[cfg(feature = "apiserver")]
pub use cluster::Cluster;
pub use lab::{Claim, Lab, only_machine, only_virtual_machine};
pub use node::{Node, NodeBuilder};
pub use pod::{IDLE, Pod};
pub use release::Release;
pub use wait::{LONG, SHORT, eventually};
