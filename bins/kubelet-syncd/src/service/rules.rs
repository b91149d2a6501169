//! Who may call what.

use bulkhead_ipc::peers::{MethodRule, Role};

const READERS: &[Role] = &[Role::Statusd, Role::Evictiond, Role::Operator];

/// The table of this process; what is not in it may not be called.
pub const RULES: &[MethodRule] = &[
    MethodRule { method: "/kubelet.syncd.v1.Pods/List", peers: READERS },
    MethodRule { method: "/kubelet.syncd.v1.Pods/Get", peers: READERS },
    MethodRule { method: "/kubelet.syncd.v1.Pods/Watch", peers: READERS },
    MethodRule { method: "/kubelet.syncd.v1.Views/Objects", peers: &[Role::Statusd] },
    MethodRule { method: "/kubelet.syncd.v1.Views/Running", peers: &[Role::Statusd] },
    MethodRule { method: "/kubelet.syncd.v1.Events/Watch", peers: &[Role::Statusd, Role::Operator] },
    MethodRule { method: "/kubelet.syncd.v1.Node/Get", peers: READERS },
    MethodRule { method: "/kubelet.syncd.v1.Node/Watch", peers: READERS },
    MethodRule { method: "/kubelet.syncd.v1.Stats/WritableLayers", peers: &[Role::Evictiond, Role::Operator] },
    MethodRule { method: "/kubelet.syncd.v1.Stats/ImageFs", peers: &[Role::Evictiond, Role::Operator] },
    MethodRule { method: "/kubelet.syncd.v1.RuntimeStats/Pods", peers: &[Role::Evictiond, Role::Operator] },
    MethodRule { method: "/kubelet.syncd.v1.Eviction/Candidates", peers: &[Role::Evictiond, Role::Operator] },
    MethodRule { method: "/kubelet.syncd.v1.Eviction/InFlight", peers: &[Role::Evictiond, Role::Operator] },
    MethodRule { method: "/kubelet.syncd.v1.Eviction/Evict", peers: &[Role::Evictiond] },
    MethodRule { method: "/kubelet.syncd.v1.Eviction/ReportPressure", peers: &[Role::Evictiond] },
    MethodRule { method: "/kubelet.syncd.v1.Eviction/Reclaim", peers: &[Role::Evictiond] },
    MethodRule { method: "/kubelet.syncd.v1.Images/List", peers: &[Role::Evictiond, Role::Operator] },
    MethodRule { method: "/kubelet.syncd.v1.Images/Pulls", peers: &[Role::Operator] },
    MethodRule { method: "/kubelet.syncd.v1.Images/Remove", peers: &[Role::Evictiond] },
    MethodRule { method: "/kubelet.syncd.v1.Images/Report", peers: &[Role::Evictiond] },
    MethodRule { method: "/kubelet.syncd.v1.Ooms/Report", peers: &[Role::Evictiond] },
    MethodRule { method: "/kubelet.syncd.v1.Resources/List", peers: &[Role::Operator] },
    MethodRule { method: "/kubelet.syncd.v1.Logs/List", peers: &[Role::Evictiond, Role::Operator] },
    MethodRule { method: "/kubelet.syncd.v1.Logs/RotateLog", peers: &[Role::Evictiond] },
    MethodRule { method: "/kubelet.syncd.v1.Logs/ReopenLog", peers: &[Role::Evictiond] },
    MethodRule { method: "/kubelet.syncd.v1.Logs/RestoreLog", peers: &[Role::Evictiond] },
    MethodRule { method: "/kubelet.syncd.v1.Logs/RemoveRotated", peers: &[Role::Evictiond] },
    MethodRule { method: "/kubelet.syncd.v1.Storage/WatchWrites", peers: &[Role::Statusd] },
    MethodRule { method: "/kubelet.syncd.v1.Storage/Acknowledge", peers: &[Role::Statusd] },
    MethodRule { method: "/kubelet.syncd.v1.Storage/VolumeUsages", peers: &[Role::Evictiond, Role::Operator] },
    MethodRule { method: "/kubelet.syncd.v1.Storage/ListPlugins", peers: &[Role::Operator] },
    MethodRule { method: "/kubelet.syncd.v1.Streams/Exec", peers: &[Role::Statusd] },
    MethodRule { method: "/kubelet.syncd.v1.Streams/Attach", peers: &[Role::Statusd] },
    MethodRule { method: "/kubelet.syncd.v1.Streams/PortForward", peers: &[Role::Statusd] },
    MethodRule { method: "/kubelet.syncd.v1.Streams/Run", peers: &[Role::Statusd] },
    MethodRule { method: "/kubelet.syncd.v1.Streams/Checkpoint", peers: &[Role::Statusd] },
];
