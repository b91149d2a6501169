//! ResourceClaims of drivers (upstream `pkg/kubelet/cm/dra`): which claims a pod has, whether it may use them, what drivers are asked,
//! and what containers get of the answers.
//!
//! A module uses only those above it in this table.
//!
//! | module | decides |
//! |---|---|
//! | [`claims`] | which claims a pod and its containers have, and whether a claim is the pod's to use |
//! | [`book`] | which drivers are asked to prepare and to unprepare, and which devices a container gets |
//! | [`health`] | whether a device is well, as its driver has told it |
//! | [`wipes`] | when the ResourceSlices of a driver that is away go |

pub mod book;
pub mod claims;
pub mod health;
pub mod wipes;
