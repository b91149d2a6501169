//! A shutdown of the machine that waits for pods (upstream `pkg/kubelet/nodeshutdown`,
//! docs/decisions/0076-who-delays-a-shutdown.md).
//!
//! | module | decides |
//! |---|---|
//! | [`course`] | whose turn it is to end, for how long they are waited for, and when the machine may go on |
//! | [`logind`] | nothing: whether a shutdown is being prepared, and the lock that delays it |
//! | [`record`] | nothing: when the last one began and ended |

pub mod course;
pub mod logind;
pub mod record;
