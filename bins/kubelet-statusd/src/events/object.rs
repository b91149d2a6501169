//! The Event object on the API server (upstream `staging/src/k8s.io/client-go/tools/record/event.go` makeEvent).

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use bulkhead_ipc::syncd;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Involved;
use crate::api_writer::seconds;

/// Who reports.
const COMPONENT: &str = "kubelet";
/// Where events about things without a namespace are.
const DEFAULT_NAMESPACE: &str = "default";
/// A name on the API server is no longer than this.
const MAX_NAME_BYTES: usize = 253;

/// Something that happened, once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occurrence {
    pub involved: Involved,
    /// "Normal" or "Warning".
    pub kind: String,
    pub reason: String,
    pub message: String,
    pub annotations: BTreeMap<String, String>,
    /// Unlike that of any other occurrence about the same object.
    pub time: Timestamp,
}

impl Occurrence {
    /// What it takes in memory, about.
    pub fn bytes(&self) -> usize {
        let involved = match &self.involved {
            Involved::Node => 0,
            Involved::Pod { namespace, name, uid, field_path } => {
                namespace.len() + name.len() + uid.len() + field_path.len()
            }
            Involved::Object { kind, namespace, name, uid, resource_version } => {
                kind.len() + namespace.len() + name.len() + uid.len() + resource_version.len()
            }
        };
        let annotations: usize = self.annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
        size_of::<Self>() + involved + self.kind.len() + self.reason.len() + self.message.len() + annotations
    }

    /// An event of kubelet-syncd. The place in its queue makes the time unlike any other's, and the same each time it is
    /// read. `None`: it has no time or place.
    pub fn of(event: &syncd::Event) -> Option<Self> {
        let cursor = event.cursor?;
        let time: Timestamp = event.time.parse().ok()?;
        let nanos = time.as_nanosecond();
        let unique = nanos - nanos.rem_euclid(1000) + i128::from(cursor.seq % 1000);
        let involved = match &event.object {
            Some(object) => Involved::Object {
                kind: object.kind.clone(),
                namespace: object.namespace.clone(),
                name: object.name.clone(),
                uid: object.uid.clone(),
                resource_version: object.resource_version.clone(),
            },
            None if event.pod_uid.is_empty() => Involved::Node,
            None => Involved::Pod {
                namespace: event.namespace.clone(),
                name: event.pod_name.clone(),
                uid: event.pod_uid.clone(),
                field_path: event.field_path.clone(),
            },
        };
        Some(Occurrence {
            involved,
            // The server refuses any other.
            kind: if event.r#type == "Warning" { "Warning" } else { "Normal" }.to_owned(),
            reason: event.reason.clone(),
            message: event.message.clone(),
            annotations: event.annotations.clone().into_iter().collect(),
            time: Timestamp::from_nanosecond(unique).ok()?,
        })
    }
}

/// An event as it is on the server, or is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventObject {
    pub namespace: String,
    pub name: String,
    pub involved: Value,
    pub kind: String,
    pub reason: String,
    pub message: String,
    pub annotations: BTreeMap<String, String>,
    pub first: Timestamp,
    pub last: Timestamp,
    pub count: u32,
    pub host: String,
    /// Not set in an aggregate, as upstream's copy lacks it.
    pub reporting: bool,
}

impl EventObject {
    /// `node`: this node's name. `version`: the pod's resource version, if known.
    pub fn new(occurrence: &Occurrence, node: &str, version: Option<&str>) -> Self {
        let (object, namespace) = match &occurrence.involved {
            Involved::Node => (node, DEFAULT_NAMESPACE),
            Involved::Object { namespace, name, .. } if namespace.is_empty() => (name.as_str(), DEFAULT_NAMESPACE),
            Involved::Pod { namespace, name, .. } | Involved::Object { namespace, name, .. } => {
                (name.as_str(), namespace.as_str())
            }
        };
        EventObject {
            namespace: namespace.to_owned(),
            name: name(object, occurrence.time),
            involved: reference(&occurrence.involved, node, version),
            kind: occurrence.kind.clone(),
            reason: occurrence.reason.clone(),
            message: occurrence.message.clone(),
            annotations: occurrence.annotations.clone(),
            first: occurrence.time,
            last: occurrence.time,
            count: 1,
            host: node.to_owned(),
            reporting: true,
        }
    }

    /// The body of its creation.
    pub fn body(&self) -> Value {
        let reporting = |text: &str| if self.reporting { text.to_owned() } else { String::new() };
        let mut metadata = json!({"name": self.name, "namespace": self.namespace});
        if !self.annotations.is_empty() {
            metadata["annotations"] = json!(self.annotations);
        }
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": metadata,
            "involvedObject": self.involved,
            "reason": self.reason,
            "message": self.message,
            "source": {"component": COMPONENT, "host": self.host},
            "firstTimestamp": seconds(self.first),
            "lastTimestamp": seconds(self.last),
            "count": self.count,
            "type": self.kind,
            "eventTime": null,
            "reportingComponent": reporting(COMPONENT),
            "reportingInstance": reporting(&self.host),
        })
    }

    /// The body of the PATCH that counts it once more.
    pub fn patch(&self) -> Value {
        json!({"count": self.count, "lastTimestamp": seconds(self.last), "message": self.message})
    }
}

/// `<object>.<time in nanoseconds, hexadecimal>`; a name that would be too long is made of hashes instead.
pub fn name(object: &str, time: Timestamp) -> String {
    let nanos = time.as_nanosecond();
    let name = format!("{object}.{nanos:x}");
    if name.len() <= MAX_NAME_BYTES {
        return name;
    }
    let mut hasher = DefaultHasher::new();
    object.hash(&mut hasher);
    format!("{:016x}.{nanos:x}", hasher.finish())
}

fn reference(involved: &Involved, node: &str, version: Option<&str>) -> Value {
    match involved {
        Involved::Node => json!({"apiVersion": "v1", "kind": "Node", "name": node}),
        Involved::Pod { namespace, name, uid, field_path } => {
            let mut reference =
                json!({"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid});
            if let Some(version) = version {
                reference["resourceVersion"] = json!(version);
            }
            if !field_path.is_empty() {
                reference["fieldPath"] = json!(field_path);
            }
            reference
        }
        Involved::Object { kind, namespace, name, uid, resource_version } => {
            let mut reference = json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": uid});
            for (field, text) in [("namespace", namespace), ("resourceVersion", resource_version)] {
                if !text.is_empty() {
                    reference[field] = json!(text);
                }
            }
            reference
        }
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_ipc::common::Cursor;

    use super::*;

    fn event() -> syncd::Event {
        syncd::Event {
            cursor: Some(Cursor { epoch: 9, seq: 4_007 }),
            time: "2026-11-21T01:19:29.123456789Z".into(),
            r#type: "Normal".into(),
            reason: "Created".into(),
            message: "Container created".into(),
            pod_uid: "u".into(),
            namespace: "audit".into(),
            pod_name: "one".into(),
            field_path: "spec.containers{one}".into(),
            annotations: [("starved_resource".to_owned(), "memory".to_owned())].into(),
            dropped: 0,
            object: None,
        }
    }

    #[test]
    fn an_event_as_upstream_sends_it() {
        let occurrence = Occurrence::of(&event()).unwrap();
        let object = EventObject::new(&occurrence, "node-a", Some("30574"));
        let nanos = "2026-11-21T01:19:29.123456007Z".parse::<Timestamp>().unwrap().as_nanosecond();
        assert_eq!(
            object.body(),
            json!({"kind": "Event", "apiVersion": "v1", "metadata": {"name": format!("one.{nanos:x}"), "namespace": "audit", "annotations": {"starved_resource": "memory"}},
                "involvedObject": {"kind": "Pod", "namespace": "audit", "name": "one", "uid": "u", "apiVersion": "v1",
                    "resourceVersion": "30574", "fieldPath": "spec.containers{one}"},
                "reason": "Created", "message": "Container created", "source": {"component": "kubelet", "host": "node-a"},
                "firstTimestamp": "2026-11-21T01:19:29Z", "lastTimestamp": "2026-11-21T01:19:29Z", "count": 1, "type": "Normal",
                "eventTime": null, "reportingComponent": "kubelet", "reportingInstance": "node-a"})
        );
    }

    #[test]
    fn the_node_has_no_namespace_and_its_events_have_the_default_one() {
        let of_node =
            syncd::Event { pod_uid: String::new(), namespace: String::new(), pod_name: String::new(), ..event() };
        let object = EventObject::new(&Occurrence::of(&of_node).unwrap(), "node-a", None);
        assert_eq!(object.namespace, "default");
        assert!(object.name.starts_with("node-a."));
        assert_eq!(object.involved, json!({"kind": "Node", "name": "node-a", "apiVersion": "v1"}));
    }

    #[test]
    fn claims_and_volumes_have_events_of_their_own() {
        let about = |kind: &str, namespace: &str| {
            let object = syncd::EventObject {
                kind: kind.into(),
                namespace: namespace.into(),
                name: "x".into(),
                uid: "u".into(),
                resource_version: "7".into(),
            };
            let event = syncd::Event { object: Some(object), pod_uid: String::new(), ..event() };
            let object = EventObject::new(&Occurrence::of(&event).unwrap(), "node-a", None);
            (object.namespace, object.involved)
        };
        assert_eq!(
            about("PersistentVolumeClaim", "ns"),
            (
                "ns".to_owned(),
                json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "ns", "name": "x", "uid": "u",
                    "resourceVersion": "7"})
            )
        );
        let (namespace, involved) = about("PersistentVolume", "");
        assert_eq!((namespace.as_str(), involved.get("namespace")), ("default", None));
    }

    #[test]
    fn the_same_event_has_the_same_name_and_two_of_one_moment_have_two() {
        let name_of = |event: &syncd::Event| EventObject::new(&Occurrence::of(event).unwrap(), "n", None).name;
        let next = syncd::Event { cursor: Some(Cursor { epoch: 9, seq: 4_008 }), ..event() };
        assert_eq!(name_of(&event()), name_of(&event()));
        assert_ne!(name_of(&event()), name_of(&next));
        let long = syncd::Event { pod_name: "a".repeat(250), ..event() };
        assert!(name_of(&long).len() <= MAX_NAME_BYTES);
        assert_eq!(Occurrence::of(&syncd::Event { time: "noon".into(), ..event() }), None);
        assert_eq!(Occurrence::of(&syncd::Event { cursor: None, ..event() }), None);
    }
}
