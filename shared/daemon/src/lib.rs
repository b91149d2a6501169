//! The skeleton that all four processes share, so that confinement, supervision and the sockets are written once.
//!
//! A daemon's `main` is [`run`] with a [`Spec`]; what it does is a function from [`Daemon`] to a future. The order of
//! the steps is the point of this crate:
//!
//! 1. not dumpable, before anything is in memory that a process of the same uid could read;
//! 2. arguments, then the rendered configuration, then logging;
//! 3. the listening sockets that the supervisor holds for us;
//! 4. privileges: drop to the exact list, no_new_privs, the daemon's own filters - all before any thread exists,
//!    because capabilities and filters are a thread's, not a process's;
//! 5. the runtime, the state folder and its lock, the services;
//! 6. ready; then the watchdog beats until SIGTERM or until the supervisor is gone.
//!
//! Nothing here knows what a pod is.

pub mod addresses;
pub mod arguments;
mod exit;
pub mod kept;
mod listeners;
pub mod logging;
mod memory;
mod metrics;
mod peer_metrics;
mod pool;
pub mod privileges;
mod process_metrics;
mod process_service;
pub mod progress;
mod skeleton;
mod state_dir;
pub mod state_file;
mod supervisor;
mod traces;

pub use exit::{ExitReason, ListenError};
pub use listeners::Passed;
pub use metrics::encode as encode_metrics;
pub use process_metrics::{of as process_metrics_of, start_time as process_start_time};
pub use skeleton::{Daemon, FORK_SERVER, RunError, Spec, run};
pub use state_dir::{ANOTHER_KUBELET, StateDir, StateError};
pub use traces::wire_span;
