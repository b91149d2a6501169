//! The sync loop: one task owns the desired pods and the state of each pod worker; everything else is a message to it.
//!
//! * [`SyncLoop`] takes in updates of the sources, events of PLEG, ends of work and times that have come, and starts work.
//!   It never waits for a call: a hung runtime, volume or image cannot stop it.
//! * [`admission_queue`] admits pods, keeps them pending or rejects them, as [`crate::admission`] decides.
//! * [`evictions`] ends pods that the eviction manager takes off the node.
//! * [`image_store`] lists images with who uses them, and removes what garbage collection has chosen.
//! * `resize` lets pods wait for other resources and tells what became of that; `resize_port` does it.
//! * [`work`] is what is done on one pod, step by step, in a task of its own; [`node`] is what all such tasks share,
//!   and [`pod_table`] what they have found out of each pod, a record each ([`pod_records`]).
//! * `prepare` makes what a pod needs before its first container, and again what `doubts` says; `persistent_volumes`
//!   waits for what the volume manager mounts.
//! * [`runtime_side`] is the runtime side with its ports: [`runtime_service`] has its calls wait for their turn, [`host_files`] and
//!   [`pod_images`] give it files and images.
//! * [`cpu_sets`] keeps running containers on the CPUs that they are to have.
//! * [`runtime_health`] asks the runtime how it is, rarely; [`node_cgroups`] keeps the pods' cgroup tree as a whole.
//! * [`runtime_settings`] asks the runtime, more rarely still, for what its operator sets: [`image_fs`] where it keeps images,
//!   [`sandbox_image`] what it makes sandboxes of.
//! * [`image_list`] has the images for the Node; `image_uses` says what uses one, and `image_events` tells
//!   of garbage collection that failed.
//! * [`view`] is what callers are told of a pod, with what [`termination_messages`] its containers left; [`events`] is where
//!   events go.
//! * [`shutdown`] ends pods when the machine goes down; `resource_waits` are those of admission for the container manager.
//! * [`loop_monitor`] says when the loop turned last; [`prune_gate`] keeps new pods from what a prune removes.
//! * `housekeeping` is all clean-up: orphans, dead containers, what pods that are gone have left.
//!
//! Nothing ticks: the loop sleeps until the next thing is due (upstream `pkg/kubelet/kubelet.go` looks every second).

mod admission_queue;
pub mod cpu_sets;
mod doubts;
pub mod events;
pub mod evictions;
pub mod host_files;
mod housekeeping;
mod image_events;
pub mod image_fs;
pub mod image_list;
pub mod image_store;
mod image_uses;
pub mod loop_monitor;
pub mod node;
pub mod node_cgroups;
mod persistent_volumes;
pub mod pod_images;
pub mod pod_records;
pub mod pod_table;
mod prepare;
pub mod prune_gate;
mod resize;
mod resize_port;
mod resource_waits;
pub mod runtime_health;
pub mod runtime_service;
pub mod runtime_settings;
pub mod runtime_side;
pub mod sandbox_image;
pub mod shutdown;
pub mod termination_messages;
pub mod view;
pub mod work;

mod main_loop;

pub use main_loop::{SyncLoop, SyncLoopParts};
pub use node::NodeContext;
pub use runtime_side::{RuntimeMetrics, RuntimeParts, RuntimeSide};
