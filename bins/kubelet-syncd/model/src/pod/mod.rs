//! The vocabulary of pods, for every other module: how a spec is read, what the runtime has of a pod, and what follows from
//! the two alone. Pure; knows no task and no socket.
//!
//! | module | tells |
//! |---|---|
//! | [`spec`] | names, containers, policies of a pod as its spec has them |
//! | [`source`] | where a pod comes from |
//! | [`model`] | what the runtime knows of a pod (filled by PLEG) |
//! | [`restart`] | which containers run again |
//! | [`resources`], [`memory_qos`] | requests and limits, QoS class, what of them cgroups get |
//! | [`labels`], [`names`], [`hash`] | how its containers are marked, named and told apart from a changed spec |
//! | [`downward`], [`expansion`] | fields of the pod as values, and variables inside texts |
//! | [`image_reference`] | the parts of an image's name |
//! | [`stop_signal`] | with which signal a container ends |

pub mod downward;
pub mod expansion;
pub mod hash;
pub mod image_reference;
pub mod labels;
pub mod memory_qos;
pub mod model;
pub mod names;
pub mod resources;
pub mod restart;
pub mod source;
pub mod spec;
pub mod stop_signal;
