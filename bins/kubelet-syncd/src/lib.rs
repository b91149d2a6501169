//! kubelet-syncd: decides what runs on the node and makes the container runtime run it.
//!
//! It owns the desired pods, the pod workers, the picture of the runtime (PLEG and its cache) and every call to the
//! container runtime. It holds no capability: what needs one is a verb of `kubelet-volnetd`, and the runtime's socket
//! comes from there as an open connection.
//!
//! What is about one pod at a time lies in crates of its own, in folders beside this `src`. A crate uses only those above it, which
//! the compiler holds it to:
//!
//! | crate | what it is |
//! |---|---|
//! | [`kubelet_model`] | what a pod, a node and the objects that a pod names are, and how they are read |
//! | [`kubelet_edges`] | what lies outside the process: connections to pods, volnetd, the runtime |
//! | [`kubelet_pleg`] | what the runtime has, from its events and a slow audit |
//! | [`kubelet_volume_manager`] | claims and volumes of CSI drivers and NFS servers: which pods want, which are there, what is done about the difference |
//! | [`kubelet_pod_resources`] | what is told to agents on the node of the CPUs, memory, devices and claims that containers have for themselves |
//! | [`kubelet_pods_api`] | the pods, told to agents on the node |
//! | [`kubelet_images`] | whether an image is there and how it gets there |
//! | [`kubelet_probes`] | what is asked of a running container and run in it: probes, lifecycle hooks |
//! | [`kubelet_runtime`] | one pod at the container runtime: its size, what to do with its sandbox and containers, its status |
//!
//! Here is what is about all pods. A module uses only those above it in this table (`tests/tests/files/layers.rs` holds it to that).
//!
//! | module | decides |
//! |---|---|
//! | [`hub`] | nothing: the newest state of each pod, and events, ready for other processes |
//! | [`logs`] | what is done with a log's files so that nothing of it is lost |
//! | [`mirror_pods`] | nothing: what the API server has of each static pod |
//! | [`metrics`], [`cri_metrics`] | nothing: what is measured of the work |
//! | [`volumes`], [`cgroups`] | which volumes and which limits a pod is to have |
//! | [`node_resources`] | what the node has, and what of it pods may have |
//! | [`sources`], [`manifests`] | which pods are wanted: manifests, HTTP, the API server, merged |
//! | [`start_latency`] | nothing: how long pods take to start |
//! | [`storage_writes`] | nothing: what is to be written on the API server about storage and ResourceSlices, and whether it is |
//! | [`api`] | what is read from the API server, and how often |
//! | [`container_manager`] | which CPUs, memory, devices and claims a container has for itself |
//! | [`pod_workers`] | what each pod gets done next, and what never again |
//! | [`desired`] | the wanted pods as taken in |
//! | [`admission`] | whether a pod may run here |
//! | [`evictions`] | whether a pod may be evicted, and by which pressure pods are admitted |
//! | [`node_shutdown`] | in which order pods end when the machine goes down, and when it may go on |
//! | [`ooms`] | whether an end for want of the machine's memory is news |
//! | [`ownership`] | which of the runtime's pods are this instance's |
//! | [`start_limit`] | how many pods start at a time, and in which order |
//! | [`take_down`] | how many pods are taken down at a time, in which order, and how long a signal is held back |
//! | [`plugin_manager`] | which plugins are registered, and when each is asked again |
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
//! | trust bundles and certificates of pods, from the first that is asked for ([`api::trust_bundles`], [`api::pod_certificates`]) | the API server, answers of kubelet-statusd (watch), the time | whose files have changed (broadcast), wishes for the API server, events |
//! | PLEG ([`kubelet_pleg`]) | the runtime's events, requests for a look | the pod cache, events to its subscribers (mpsc) |
//! | the prober ([`kubelet_probes::prober`]) | pods that were added, the time | results (its table), that some have changed |
//! | runtime health, image file system, image list ([`sync_loop`]) | the runtime | the newest of each (watch) |
//! | the CPUs of running containers ([`sync_loop::cpu_sets`]), and the managers' state files | changes of what containers have (watch), the time | calls of the runtime; upstream's files |
//! | the node's cgroups, exported allocations ([`sync_loop::node_cgroups`], [`kubelet_runtime::allocation`]) | volnetd's life (watch), grants | the life in which the tree is in place (watch); upstream's files |
//! | the volume manager's reconciler, and a task for each operation ([`kubelet_volume_manager`]) | wanted volumes, the Node (watch), drivers that come and go, volnetd's lists | calls of drivers and verbs; what is in use (watch), events |
//! | a plugin's attendant, one task a socket ([`plugin_manager`]) | the socket, answers of kubelet-statusd (watch) | the drivers that can be called (watch), wishes for the API server |
//! | whose turn it is to be asked for its limit ([`plugin_manager::allocatable`]) | drivers, their objects, limits that were reached (watch), the time | wishes for the API server |
//! | claims of drivers ([`container_manager::dra`]): each plugin's connection and its stream of health, lost pods, ResourceSlices | plugins that come and go (watch), pods that are gone (watch), the time | calls of drivers; which pods are to be looked at (its news), wishes for the API server |
//! | the system bus, and the lock that delays a shutdown ([`node_shutdown::logind`]) | logind's word, kubelet-volnetd's life (watch) | whether the machine goes down (watch) |
//! | the pods API, where its gate is on, a task a connection ([`service::pods_api`]) | requests of agents on the node | pods |
//! | the pod resources API, a task a connection ([`service::pod_resources`]) | requests of agents on the node | who has what for himself |
//! | device plugins: a task each that follows its list, one that serves their registration, two that keep the checkpoint and what the Node shows ([`container_manager::devices`]) | what plugins tell | pods whose devices' health is news, amounts (watch), the checkpoint |
//! | silent sources ([`service::silence`]) | the node's view | events, a metric |
//!
//! Invariants: one writer of each fact; nothing is killed, unmounted or deleted before every source has delivered and
//! volnetd's epoch is known; a peer or a runtime that does not answer is unknown, never gone; a pod goes one way through
//! its life; one hung call holds up one pod. It never writes to the API server, and of what it reads there secrets and
//! tokens are used for the pods that name them alone.
//!
//! # Known gaps
//! None.

pub mod admission;
pub mod api;
pub mod cgroups;
pub mod container_manager;
pub mod cri_metrics;
pub mod desired;
pub mod evictions;
pub mod hub;
pub mod logs;
pub mod manifests;
pub mod metrics;
pub mod mirror_pods;
pub mod node_resources;
pub mod node_shutdown;
pub mod ooms;
pub mod ownership;
pub mod plugin_manager;
pub mod pod_workers;
pub mod private_state;
pub mod run;
pub mod service;
#[cfg(test)]
mod simulated;
pub mod sources;
pub mod start_latency;
pub mod start_limit;
pub mod storage_writes;
pub mod sync_loop;
pub mod take_down;
pub mod volumes;
