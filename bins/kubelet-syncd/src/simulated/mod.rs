//! A node in small, for tests: a runtime that keeps what it is asked for, a pod and who looks after it. Decisions are
//! made by the real executor, the real statuses and the real workers; only the calls between them are played.
//!
//! [`machine`] is the runtime, with the truth about each container and the rules that no start may break; [`world`] is
//! the process that looks after the pod, with its restarts; [`story`] makes specs and events at random.

mod machine;
mod story;
mod world;
