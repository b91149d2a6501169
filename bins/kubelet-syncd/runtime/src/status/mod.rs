//! The status of a pod as the API shows it, computed from the spec, the runtime's record and the status before.
//!
//! | module | decides |
//! |---|---|
//! | [`pod_status`] | the whole: [`pod_status::generate`] |
//! | [`phase`] | Pending, Running, Succeeded, Failed |
//! | [`containers`] | state, last state, restart count, readiness of each container |
//! | [`conditions`] | the conditions that a kubelet owns |
//! | `resources` | what containers and the pod have |
//! | [`termination`] | termination messages: joining and limits |
//! | [`terminate`] | the last status of a pod whose containers are gone |
//! | [`remembered`] | what a pod's first status after a restart goes on from |
//! | [`next`] | what becomes of the status that was told last |
//! | [`ended`] | whether a pod that admission is about to judge is over |
//! | [`ends`] | which containers have ended between two statuses |
//! | [`transition`] | which updates are contradictions and must not be stored |
//! | [`reason_cache`] | why a container that should run does not |
//! | [`summary`] | a few words about each container, for people |
//!
//! Pure throughout: files, clocks and the previous status are passed in. One place stores the result: the core.

pub mod conditions;
pub mod containers;
pub mod ended;
pub mod ends;
pub mod next;
pub mod phase;
pub mod pod_status;
pub mod readiness;
pub mod reason_cache;
pub mod remembered;
mod resources;
pub mod summary;
pub mod terminate;
pub mod termination;
pub mod transition;
