//! Pod workers: for each pod uid, what is to be done next, one thing at a time.
//!
//! [`state`] is the whole state machine as pure code: updates and results in, actions out ([`messages`]). [`requeue`]
//! says when a pod is looked at again; [`queue`] is the one timer behind it. There is no task that sits and waits for a
//! pod: the main loop owns the machine and starts a task for a piece of work, so an idle pod costs its entry in a map.

pub mod messages;
mod queries;
pub mod queue;
pub mod requeue;
pub mod state;

pub use messages::{Action, Kill, Lifecycle, Outcome, PodFacts, PodView, Termination, UpdateType, Work, WorkKind};
pub use queue::WorkQueue;
pub use requeue::{Retry, delay};
pub use state::Workers;
