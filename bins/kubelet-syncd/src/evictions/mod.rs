//! What the eviction manager has asked for: pods that end because of it, and the node's conditions that it reported last. Both are
//! kept on disk, because kubelet-evictiond is not asked again (docs/decisions/0060-who-evicts.md).
//!
//! | module | decides |
//! |---|---|
//! | [`book`] | whether a pod may be evicted now |
//! | [`candidate`] | what ranking is told of a pod |
//! | [`pressure`] | by which conditions pods are admitted |

pub mod book;
pub mod candidate;
pub mod pressure;
