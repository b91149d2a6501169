//! `kubelet-walker`: enters file systems for kubelet-evictiond, pods' among them: how full they are, what a folder holds. It
//! exists because that takes a capability that opens every file of the machine, and because a file system may never answer.
//!
//! # Serves / calls
//! WorkerPool, each a process of its own, for kubelet-evictiond alone: over the one inherited socket whose other end evictiond
//! has, or (as a unit) over connections that evictiond's user alone may make. Calls nobody.
//!
//! # Privileges
//! A user of its own and CAP_DAC_READ_SEARCH: pods' folders are behind directories that only root may search.
//!
//! # Security
//! Landlock leaves listing of directories below `<root>/pods` and the pod log folder, and nothing of /proc, /sys or any other
//! file; the system call filter takes away opening by handle, which Landlock does not see. A request is typed: ids, from
//! which paths are built here, and a path for figures of its file system. What pods control (names, depth and number of
//! files in their volumes) is walked relative to open directories ([`walk`]).
//!
//! # State
//! None.
//!
//! # When it fails
//! A worker in a file system that does not answer stays there until it does, whatever signal comes; it holds one socket.
//! The process that forks workers enters no file system, and is started again when it ends.
//!
//! # Modules
//! A module uses only those above it in this table (`tests/tests/files/layers.rs` holds it to that).
//!
//! | module | decides |
//! |---|---|
//! | [`walk`] | what a folder holds, where a walk stops |
//! | [`measure`] | how volumes, file systems and logs are measured |
//! | [`answer`] | what a request may name, and what is measured for it |
//! | [`run`] | who may ask, and when the process ends |

pub mod answer;
pub mod measure;
pub mod run;
pub mod walk;
