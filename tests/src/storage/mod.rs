//! What tests of persistent volumes share: a node with drivers, its pods and volumes, and what a recording says of them.
//!
//! | module | what |
//! |---|---|
//! | [`scene`] | a cluster, its node, pods with volumes |
//! | [`recorded`] | names of one run as those of the recording, `golden/csi` |
//! | [`tree`] | a folder as lines, in the form of the recording |

pub mod recorded;
pub mod scene;
pub mod tree;

pub use recorded::Names;
pub use scene::{Kubelet, NODE, Scene};
