//! Recordings of upstream's kubelet, and the comparison of our node with them.
//!
//! `tests/golden/<name>.json` holds for each pod what upstream asked of the runtime, which statuses a watcher of the API
//! server saw one after the other, and which events there were at the end (Kubernetes 1.36.2, containerd 1.6, cgroup
//! v1). Times, ids and addresses differ from run to run and are normalised on both sides.

mod brief;
pub mod calls;
pub mod compare;
pub mod normal;
pub mod proxy;
pub mod recording;
pub mod users;

pub use compare::{Difference, Meant};
pub use proxy::{Call, Proxy};
pub use recording::Recording;
