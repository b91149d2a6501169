//! What the eviction manager has asked for: pods that end because of it, and the node's conditions that it reported last. Both are
//! kept on disk, because kubelet-evictiond is not asked again (docs/decisions/0060-who-evicts.md).
//!
//! | module | decides |
//! |---|---|
//! | [`book`] | whether a pod may be evicted now |
//! | [`grace_period`] | how long the end of a pod that is killed for others may take |
//! | [`candidate`] | what ranking is told of a pod |
//! | [`pressure`] | by which conditions pods are admitted |

pub mod book;
pub mod candidate;
pub mod grace_period;
pub mod pressure;
