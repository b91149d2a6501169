//! What a pod, a node and the objects that a pod names are, and how they are read: values and rules, no input or output.
//!
//! A module uses only those above it in this table (`tests/tests/files/layers.rs` holds it to that).
//!
//! | module | decides |
//! |---|---|
//! | [`v1`] | nothing: a pod as it is kept |
//! | [`annotations`] | nothing: where a pod says that it comes from |
//! | [`pem`] | certificates and keys as text |
//! | [`selinux`] | how files of containers are labelled |
//! | [`validation`] | whether a pod is well formed, in upstream's words |
//! | [`node_selector`] | whether a node is one of those that a term of a node selector names |
//! | [`node_facts`] | nothing: what the node is, and which settings shape its pods |
//! | [`pod`] | how a spec is read and a pod's containers are named: everybody's vocabulary |
//! | [`defaults`] | what the API server would have filled in |
//! | [`decode`] | which pod, or list of pods, the text of a manifest is |
//! | [`events`] | nothing: what is recorded of pods and the node, and the trait of who takes it |
//! | [`objects`] | which objects of the API server a pod names; the trait of who has them |

pub mod annotations;
pub mod decode;
pub mod defaults;
pub mod events;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod node_facts;
pub mod node_selector;
pub mod objects;
pub mod pem;
pub mod pod;
pub mod selinux;
pub mod v1;
pub mod validation;
