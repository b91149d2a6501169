//! Where events go: the queue for the API server, and the pod's own short list.

use std::collections::HashMap;
use std::sync::Arc;

use bulkhead_ipc::syncd::{Event, EventObject};

use crate::hub::{EventRing, PodHub};
use kubelet_model::events::{EventSink, EventType, InvolvedObject, NodeEvent, ObjectEvent, PodEvent};

/// The sink that everything about pods reports to.
#[derive(Debug, Clone)]
pub struct Reporter {
    pub ring: Arc<EventRing>,
    pub hub: Arc<PodHub>,
}

impl Reporter {
    /// As [`EventSink::emit`], with metadata.annotations for the event.
    pub fn emit_with(&self, event: PodEvent, annotations: HashMap<String, String>) {
        let uid = event.pod.uid.clone();
        match event.kind {
            EventType::Normal => {
                tracing::info!(pod = %event.pod, reason = %event.reason, field = event.field_path, "{}", event.message);
            }
            EventType::Warning => {
                tracing::warn!(pod = %event.pod, reason = %event.reason, field = event.field_path, "{}", event.message);
            }
        }
        let kept = self.ring.push(Event {
            cursor: None,
            time: jiff::Timestamp::now().to_string(),
            r#type: event.kind.as_str().to_owned(),
            reason: event.reason.into_owned(),
            message: event.message,
            pod_uid: uid.to_string(),
            namespace: event.pod.namespace.to_string(),
            pod_name: event.pod.name.to_string(),
            field_path: event.field_path,
            annotations,
            dropped: 0,
            object: None,
        });
        self.hub.event(&uid, kept);
    }
}

impl EventSink for Reporter {
    fn emit(&self, event: PodEvent) {
        self.emit_with(event, HashMap::new());
    }

    fn emit_node(&self, event: NodeEvent) {
        match event.kind {
            EventType::Normal => tracing::info!(reason = event.reason, "{}", event.message),
            EventType::Warning => tracing::warn!(reason = event.reason, "{}", event.message),
        }
        self.ring.push(Event {
            time: jiff::Timestamp::now().to_string(),
            r#type: event.kind.as_str().to_owned(),
            reason: event.reason.to_owned(),
            message: event.message,
            ..Event::default()
        });
    }
    fn emit_object(&self, event: ObjectEvent) {
        let InvolvedObject { kind, namespace, name, uid, resource_version } = event.object;
        match event.kind {
            EventType::Normal => tracing::info!(kind, namespace, name, reason = event.reason, "{}", event.message),
            EventType::Warning => tracing::warn!(kind, namespace, name, reason = event.reason, "{}", event.message),
        }
        let kind = kind.to_owned();
        self.ring.push(Event {
            time: jiff::Timestamp::now().to_string(),
            r#type: event.kind.as_str().to_owned(),
            reason: event.reason.to_owned(),
            message: event.message,
            object: Some(EventObject { kind, namespace, name, uid, resource_version }),
            ..Event::default()
        });
    }
}
