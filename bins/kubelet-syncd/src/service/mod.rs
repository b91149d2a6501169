//! `kubelet.syncd.v1`: what this daemon tells the others. Read-only; whatever is shown is kept ready in [`hub`] and
//! [`ring`], so a caller costs the main loop nothing.

pub mod api;
mod fits;
pub mod hub;
pub mod node_view;
pub mod ring;
pub mod rules;
pub mod silence;
pub mod stats;
pub mod streams;
mod views;

pub use hub::PodHub;
pub use ring::EventRing;
