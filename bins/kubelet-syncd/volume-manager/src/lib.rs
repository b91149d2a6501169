//! The volume manager: which volumes pods are to have, which are there, and what is done about the difference (upstream
//! `pkg/kubelet/volumemanager`, decision 64). It calls drivers; what touches the disk is a verb of kubelet-volnetd before and after
//! each call.
//!
//! A module uses only those above it in this table.
//!
//! | module | decides |
//! |---|---|
//! | [`names`] | the names that are computed: attachments, handles of inline volumes, unique volume names |
//! | [`spec`] | nothing: a volume as it was resolved |
//! | [`pod_facts`] | nothing: what of a pod operations need to know |
//! | [`metrics`] | nothing: how long operations take |
//! | [`selinux`] | with which SELinux label a volume is mounted |
//! | [`csi`] | what a driver is told |
//! | [`ports`], [`edges`] | nothing: what is asked of others, and the real ones |
//! | [`populator`] | what a pod's volume stands for, or why it may not be used |
//! | [`desired_state`] | which volumes pods want |
//! | [`actual_state`] | which are there, and whether that is certain |
//! | [`back_off`] | when something that failed is tried again |
//! | [`pending_operations`] | which operations exclude each other, and which hold back a pod's end |
//! | [`reconciler`] | what is done next |
//! | [`context`] | nothing: the state behind one lock, and whom operations ask |
//! | [`operations`] | in which order a volume is attached, staged, published, and taken back |
//! | [`attach_limit`] | which pod waits for a volume that the node has no place for |
//! | [`block_devices`] | of which block volumes the size is told, and what it is |
//! | [`statistics`] | which drivers are asked for the room in which volumes |
//! | [`populate`] | nothing: what a sync of a pod says of its volumes is written into the state |
//! | [`waiting`] | whether a pod's volumes are there, or gone, and why not |
//! | [`executor`] | nothing: an operation, and what came of it |
//! | [`followers`] | nothing: what the Node, drivers and kubelet-volnetd say is written into the state |
//! | [`reconcile_loop`] | nothing: a task for each operation, and what the Node's status is to list |
//! | [`manager`] | nothing: who waits for what |

pub mod actual_state;
pub mod attach_limit;
pub mod back_off;
pub mod block_devices;
pub mod context;
pub mod csi;
pub mod desired_state;
pub mod edges;
pub mod executor;
pub mod followers;
pub mod manager;
pub mod metrics;
pub mod names;
pub mod operations;
pub mod pending_operations;
pub mod pod_facts;
pub mod populate;
pub mod populator;
pub mod ports;
pub mod reconcile_loop;
pub mod reconciler;
pub mod selinux;
pub mod spec;
pub mod statistics;
pub mod waiting;

pub use context::Ports;
pub use manager::VolumeManager;
pub use waiting::{MountedVolume, Root, UnmountTimeout, Waiting};
