//! A node as upstream's kubelet leaves it when it is stopped, made without it, and read as it would read it.
//!
//! [`leave`] makes sandboxes and containers with upstream's recorded requests and writes the files that it would have
//! written; [`read`] goes over a node with upstream's rules alone and names everything at which it would stumble.

pub mod checkpoints;
pub mod leave;
pub mod read;
