//! CSI drivers on a node of a lab: one of our own that misbehaves on demand, and the project's hostpath driver with its sidecars.
//!
//! | module | what |
//! |---|---|
//! | [`driver`] | the tests' program `csi_driver`, its calls and its faults |
//! | [`hostpath`] | hostpathplugin, node-driver-registrar, provisioner, attacher, resizer |
//! | [`objects`] | StorageClass, CSIDriver, claims and volumes to create |
//! | `process` | a program that ends with its owner |
//!
//! All of them run on the machine itself: a lab's node shares its mount namespace, and its API server listens there.

pub mod driver;
pub mod hostpath;
pub mod objects;
pub(crate) mod process;

pub use driver::{Call, Driver, DriverBuilder, Fault};
pub use hostpath::Hostpath;
