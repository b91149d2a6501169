//! Garbage collection of images (upstream `pkg/kubelet/images/image_gc_manager.go`): which go, and when. kubelet-syncd, which alone
//! talks to the runtime, says who uses an image, and removes it unless somebody does by then
//! (docs/decisions/0062-who-removes-images.md).
//!
//! | module | decides |
//! |---|---|
//! | [`policy`] | what the configuration asks for |
//! | [`ledger`] | since when an image has been there, and when it was used last |
//! | [`passes`] | which images go, in which order |
//! | [`fates`] | what would become of each now, for the operator |
//! | [`failures`] | which failure is told |
//! | [`schedule`] | when the next round comes |
//! | [`store`] | nothing: the questions to kubelet-syncd and kubelet-walker |
//! | [`collector`] | what a round does |
//! | [`rounds`] | nothing: the loop of rounds |
//! | [`report`] | nothing: what the operator is shown |

pub mod collector;
pub mod failures;
pub mod fates;
pub mod ledger;
pub mod passes;
pub mod policy;
pub mod report;
pub mod rounds;
pub mod schedule;
pub mod store;
