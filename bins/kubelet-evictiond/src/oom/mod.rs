//! Out of memory, as the kernel's log tells of it (upstream `pkg/kubelet/oom` and cAdvisor's `utils/oomparser`): which process was
//! killed, and in whose control group. The log comes as an open descriptor (docs/decisions/0063-who-reads-the-kernels-log.md).
//!
//! | module | decides |
//! |---|---|
//! | [`record`] | what one record of the log is, and whether the kernel wrote it |
//! | [`kill`] | which records are one process's end for want of memory |
//! | [`owner`] | whose count that is |
//! | [`ledger`] | whether it has been dealt with already, and what is still to be told |
//! | [`counts`] | nothing: the counts, for whoever makes statistics |
//! | [`log`] | nothing: the descriptor |
//! | [`syncd`] | nothing: the call to kubelet-syncd |
//! | [`watch`] | when the log is read, and when what was read is told |

pub mod counts;
pub mod kill;
pub mod ledger;
pub mod log;
pub mod owner;
pub mod record;
pub mod syncd;
pub mod watch;
