//! Annotations that say where a pod comes from (upstream `pkg/kubelet/types/pod_update.go`).

/// Hash of a static pod's manifest: its uid.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// Kind of the source: `file`, `http`, `api`.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// When the pod was first seen.
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
/// On the mirror of a static pod; the hash of its manifest.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
