//! What other processes are shown, kept ready: the newest state of every pod, and the events that are still to be sent. Whoever
//! decides writes here, `service` reads.

pub mod events;
pub mod pods;

pub use events::EventRing;
pub use pods::PodHub;
