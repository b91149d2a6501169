//! The eviction manager (upstream `pkg/kubelet/eviction`): judges signals, reclaims, and picks the pod that goes. It queues nothing:
//! each pass judges anew, and kubelet-syncd, which ends the pod, owns it from then on (docs/decisions/0060-who-evicts.md).
//!
//! | module | decides |
//! |---|---|
//! | [`judge`] | which thresholds are met and for how long, which conditions the node has |
//! | [`rank`] | who goes first |
//! | [`local_storage`] | who has used more of the disk than its own limits allow |
//! | [`messages`] | what is said of it |
//! | [`hold`] | what is waited for before the next pass, and for how long |
//! | [`syncd`] | nothing: the questions to kubelet-syncd |
//! | [`pressure`] | nothing: what others are shown |
//! | [`manager`] | when a pass comes, and what a pass does |
//! | [`next`] | whom the operator is shown as next |
//! | `report` | nothing: what the operator is shown of it |

pub mod hold;
pub mod judge;
pub mod local_storage;
pub mod manager;
pub mod messages;
pub mod next;
pub mod pressure;
pub mod rank;
mod report;
pub mod syncd;
