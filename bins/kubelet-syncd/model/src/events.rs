//! Events about pods, the node and claims, as these modules produce them; who records them is the core's business.

use std::borrow::Cow;

use crate::pod::spec::{ContainerKind, PodIdentity};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    Normal,
    Warning,
}

impl EventType {
    /// As in `Event.type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            EventType::Normal => "Normal",
            EventType::Warning => "Warning",
        }
    }
}

/// One event about a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodEvent {
    pub pod: PodIdentity,
    pub kind: EventType,
    /// Upstream's reason (`pkg/kubelet/events/event.go`).
    pub reason: Cow<'static, str>,
    pub message: String,
    /// `spec.containers{main}`; empty for the pod as a whole.
    pub field_path: String,
}

impl PodEvent {
    pub fn pod(
        pod: &PodIdentity,
        kind: EventType,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) -> Self {
        PodEvent { pod: pod.clone(), kind, reason: reason.into(), message: message.into(), field_path: String::new() }
    }

    pub fn container(
        pod: &PodIdentity,
        container: (ContainerKind, &str),
        kind: EventType,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) -> Self {
        let field_path = container.0.field_path(container.1);
        PodEvent { pod: pod.clone(), kind, reason: reason.into(), message: message.into(), field_path }
    }
}

/// One event about the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeEvent {
    pub kind: EventType,
    /// Upstream's reason.
    pub reason: &'static str,
    pub message: String,
}

/// What an event is about that is neither a pod nor the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvolvedObject {
    /// Of the core API (`PersistentVolumeClaim`).
    pub kind: &'static str,
    /// Empty where the kind has none.
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
}

/// One event about such an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectEvent {
    pub object: InvolvedObject,
    pub kind: EventType,
    /// Upstream's reason.
    pub reason: &'static str,
    pub message: String,
}

/// Takes events; never blocks and never fails (a bounded queue behind it may drop and count).
pub trait EventSink: Send + Sync {
    fn emit(&self, event: PodEvent);
    fn emit_node(&self, event: NodeEvent);
    /// Most have nothing to say of other objects, and do not hear of them.
    fn emit_object(&self, _event: ObjectEvent) {}
}
