//! kubelet-syncd: decides what runs on the node and makes the container runtime run it.
//!
//! It owns the desired pods, the pod workers, the picture of the runtime (PLEG and its cache) and every call to the
//! container runtime. It holds no capability: what needs one is a verb of `kubelet-volnetd`, and the runtime's socket
//! comes from there as an open connection.
//!
//! A module uses only those above it in this table (`tests/tests/files/layers.rs` holds it to that).
//!
//! | module | decides |
//! |---|---|
//! | [`validation`] | whether a pod is well formed, in upstream's words |
//! | [`node_facts`] | nothing: what the node is, and which settings shape its pods |
//! | [`pod`] | how a spec is read and a pod's containers are named: everybody's vocabulary |
//! | [`events`] | nothing: what is recorded of pods and the node, and the trait of who takes it |
//! | [`objects`] | which objects of the API server a pod names; the trait of who has them |
//! | [`hub`] | nothing: the newest state of each pod, and events, ready for other processes |
//! | [`metrics`], [`cri_metrics`], [`stages`] | nothing: what is measured of the work |
//! | [`dial`], [`http_get`] | how a pod is connected to and asked over HTTP |
//! | [`volnetd`] | the verbs of the other side, and the proof that a destructive one needs |
//! | [`runtime_service`] | nothing: the runtime's calls that change something, as a trait |
//! | [`pleg`] | what the runtime has, from its events and a slow audit |
//! | [`allocation`] | which size a pod was granted, and whether it may be resized |
//! | [`hooks`] | when postStart and preStop run, and that they run once |
//! | [`prober`] | whether a container has started, is ready, lives |
//! | [`runtime`] | what to do with a pod's sandbox and containers, and the exact requests for it |
//! | [`images`] | whether an image is there and how it gets there |
//! | [`volumes`], [`cgroups`] | which volumes and which limits a pod is to have |
//! | [`node_resources`] | what the node has, and what of it pods may have |
//! | [`status`] | the pod's status as the API shows it |
//! | [`sources`], [`manifests`] | which pods are wanted: manifests, HTTP, the API server, merged |
//! | [`start_latency`] | nothing: how long pods take to start |
//! | [`api`] | what is read from the API server, and how often |
//! | [`pod_workers`] | what each pod gets done next, and what never again |
//! | [`desired`] | the wanted pods as taken in |
//! | [`admission`] | whether a pod may run here |
//! | [`ownership`] | which of the runtime's pods are this instance's |
//! | [`housekeeping`] | what is left over and may go |
//! | [`start_limit`] | how many pods start at a time, and in which order |
//! | [`private_state`] | nothing: what outlives the process |
//! | [`sync_loop`] | the main loop, the one owner of that state, and the work itself step by step |
//! | [`service`] | what other processes are told |
//! | [`run`] | in which order the parts are put together |
//!
//! # Tasks and channels
//! | task | takes | gives |
//! |---|---|---|
//! | the sync loop ([`sync_loop`]) | pod updates (mpsc), PLEG's events (mpsc), ends of work (mpsc), changes of what pods name (broadcast); health, peers, Node and facts (watch) | work to pod workers; each pod's state to [`hub`] |
//! | a pod worker's work, one task a pod ([`sync_loop::work`]) | the pod as it was when the work began | its end, to the sync loop (mpsc) |
//! | sources: file, URL, merge ([`sources`]) | manifests through volnetd, an URL | pod changes to the merge (mpsc), updates to the sync loop (mpsc) |
//! | the watch of pods ([`api::pods`]) | the API server | pod changes to the merge (mpsc) |
//! | watches of the Node, services, runtime classes, and of what pods name ([`api`]) | the API server | the newest of each (watch), whose objects have changed (broadcast) |
//! | PLEG ([`pleg`]) | the runtime's events, requests for a look | the pod cache, events to its subscribers (mpsc) |
//! | the prober ([`prober`]) | pods that were added, the time | results (its table), that some have changed |
//! | runtime health, image file system, image list ([`sync_loop`]) | the runtime | the newest of each (watch) |
//! | the node's cgroups, exported allocations ([`sync_loop::upkeep`], [`allocation`]) | volnetd's life (watch), grants | the life in which the tree is in place (watch); upstream's files |
//! | silent sources ([`service::silence`]) | the node's view | events, a metric |
//!
//! Invariants: one writer of each fact; nothing is killed, unmounted or deleted before every source has delivered and
//! volnetd's epoch is known; a peer or a runtime that does not answer is unknown, never gone; a pod goes one way through
//! its life; one hung call holds up one pod. It never writes to the API server, and of what it reads there secrets and
//! tokens are used for the pods that name them alone.
//!
//! # Known gaps
//! Volumes are emptyDir, hostPath and those with files from the API; a pod with another kind waits and says why. No
//! resource managers and devices.

pub mod admission;
pub mod allocation;
pub mod api;
pub mod cgroups;
pub mod cri_metrics;
pub mod desired;
pub mod dial;
pub mod events;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod hooks;
pub mod housekeeping;
pub mod http_get;
pub mod hub;
pub mod images;
pub mod manifests;
pub mod metrics;
pub mod node_facts;
pub mod node_resources;
pub mod objects;
pub mod ownership;
pub mod pleg;
pub mod pod;
pub mod pod_workers;
pub mod private_state;
pub mod prober;
pub mod run;
pub mod runtime;
pub mod runtime_service;
pub mod service;
#[cfg(test)]
mod simulated;
pub mod sources;
pub mod stages;
pub mod start_latency;
pub mod start_limit;
pub mod status;
pub mod sync_loop;
pub mod validation;
pub mod volnetd;
pub mod volumes;
