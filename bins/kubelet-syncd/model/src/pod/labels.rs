//! Labels and annotations that tie sandboxes and containers to their pod, and reading them back.
//!
//! They are the node agent's memory inside the runtime: after a restart (or a take-over from upstream's kubelet)
//! restart counts, hashes and termination settings are known from here alone. Keys and values are upstream's
//! (`pkg/kubelet/kuberuntime/labels.go`).

use std::collections::BTreeMap;

use crate::v1::{Container, Pod};
use k8s_openapi::api::core::v1::{ContainerPort, LifecycleHandler};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;

use super::hash::container_hash;
use super::spec::{PodIdentity, image};

pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
pub const POD_DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
pub const POD_TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
pub const PRE_STOP_HANDLER: &str = "io.kubernetes.container.preStopHandler";
pub const CONTAINER_PORTS: &str = "io.kubernetes.container.ports";

type Map = BTreeMap<String, String>;

/// The pod's own labels and the three that identify it.
pub fn sandbox_labels(pod: &Pod, identity: &PodIdentity) -> Map {
    let mut labels = pod.metadata.labels.clone().unwrap_or_default();
    identify(&mut labels, identity);
    labels
}

/// All annotations of the pod.
pub fn sandbox_annotations(pod: &Pod) -> Map {
    pod.metadata.annotations.clone().unwrap_or_default()
}

/// Four labels; those of the pod are not copied.
pub fn container_labels(container: &Container, identity: &PodIdentity) -> Map {
    let mut labels = Map::new();
    identify(&mut labels, identity);
    labels.insert(CONTAINER_NAME.to_owned(), container.name.clone());
    labels
}

/// Annotations of a container instance with that restart count.
pub fn container_annotations(container: &Container, pod: &Pod, restart_count: u32) -> Map {
    let mut annotations = Map::new();
    let mut set = |key: &str, value: String| {
        annotations.insert(key.to_owned(), value);
    };
    set(CONTAINER_HASH, format!("{:x}", container_hash(&container.name, image(container))));
    set(RESTART_COUNT, restart_count.to_string());
    set(TERMINATION_MESSAGE_PATH, container.termination_message_path.clone().unwrap_or_default());
    set(TERMINATION_MESSAGE_POLICY, container.termination_message_policy.clone().unwrap_or_default());
    if let Some(seconds) = pod.metadata.deletion_grace_period_seconds {
        set(POD_DELETION_GRACE, seconds.to_string());
    }
    if let Some(seconds) = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds) {
        set(POD_TERMINATION_GRACE, seconds.to_string());
    }
    if let Some(hook) = container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref()) {
        set(PRE_STOP_HANDLER, handler_json(hook));
    }
    if let Some(ports) = container.ports.as_deref().filter(|p| !p.is_empty()) {
        set(CONTAINER_PORTS, ports_json(ports));
    }
    annotations
}

fn identify(labels: &mut Map, identity: &PodIdentity) {
    labels.insert(POD_NAME.to_owned(), identity.name.to_string());
    labels.insert(POD_NAMESPACE.to_owned(), identity.namespace.to_string());
    labels.insert(POD_UID.to_owned(), identity.uid.to_string());
}

/// What the labels of a sandbox or container say about where it belongs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelledInfo {
    pub pod_name: String,
    pub pod_namespace: String,
    pub pod_uid: String,
    /// Empty for a sandbox.
    pub container_name: String,
}

impl LabelledInfo {
    /// None for what no kubelet made (the uid label is missing or empty).
    pub fn parse(labels: &Map) -> Option<Self> {
        let get = |key: &str| labels.get(key).cloned().unwrap_or_default();
        let info = LabelledInfo {
            pod_name: get(POD_NAME),
            pod_namespace: get(POD_NAMESPACE),
            pod_uid: get(POD_UID),
            container_name: get(CONTAINER_NAME),
        };
        (!info.pod_uid.is_empty()).then_some(info)
    }
}

/// What the annotations of a container say. Unreadable numbers are as good as absent ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AnnotatedInfo {
    /// 0 when absent or unreadable.
    pub hash: u32,
    pub restart_count: u32,
    pub termination_message_path: String,
    pub termination_message_policy: String,
    /// Seconds.
    pub pod_deletion_grace: Option<i64>,
    /// Seconds.
    pub pod_termination_grace: Option<i64>,
}

impl AnnotatedInfo {
    pub fn parse(annotations: &Map) -> Self {
        let text = |key: &str| annotations.get(key).cloned().unwrap_or_default();
        let seconds = |key: &str| annotations.get(key).and_then(|v| v.parse().ok());
        AnnotatedInfo {
            hash: annotations.get(CONTAINER_HASH).and_then(|v| u32::from_str_radix(v, 16).ok()).unwrap_or(0),
            restart_count: annotations.get(RESTART_COUNT).and_then(|v| v.parse().ok()).unwrap_or(0),
            termination_message_path: text(TERMINATION_MESSAGE_PATH),
            termination_message_policy: text(TERMINATION_MESSAGE_POLICY),
            pod_deletion_grace: seconds(POD_DELETION_GRACE),
            pod_termination_grace: seconds(POD_TERMINATION_GRACE),
        }
    }
}

/// A JSON string as Go's encoder writes it: `<`, `>`, `&` and the two line separators escaped.
pub fn go_json_string(text: &str) -> String {
    go_escape(&serde_json::Value::from(text).to_string())
}

fn go_escape(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' => escaped.push_str("\\u003c"),
            '>' => escaped.push_str("\\u003e"),
            '&' => escaped.push_str("\\u0026"),
            '\u{2028}' => escaped.push_str("\\u2028"),
            '\u{2029}' => escaped.push_str("\\u2029"),
            other => escaped.push(other),
        }
    }
    escaped
}

fn to_go_json(value: &impl Serialize) -> String {
    // Plain structs of strings and numbers: serialising them has nothing to fail on; "null" is what Go would print.
    go_escape(&serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned()))
}

/// In the order of Go's struct, which is not alphabetical.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PortJson<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "is_zero")]
    host_port: i32,
    container_port: i32,
    #[serde(skip_serializing_if = "str::is_empty")]
    protocol: &'a str,
    #[serde(rename = "hostIP", skip_serializing_if = "str::is_empty")]
    host_ip: &'a str,
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct HandlerJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    exec: Option<ExecJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    http_get: Option<HttpJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp_socket: Option<TcpJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sleep: Option<SleepJson>,
}

#[derive(Serialize)]
struct ExecJson<'a> {
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    command: &'a [String],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HttpJson<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    path: &'a str,
    port: &'a IntOrString,
    #[serde(skip_serializing_if = "str::is_empty")]
    host: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    scheme: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    http_headers: Vec<HeaderJson<'a>>,
}

#[derive(Serialize)]
struct HeaderJson<'a> {
    name: &'a str,
    value: &'a str,
}

#[derive(Serialize)]
struct TcpJson<'a> {
    port: &'a IntOrString,
    #[serde(skip_serializing_if = "str::is_empty")]
    host: &'a str,
}

#[derive(Serialize)]
struct SleepJson {
    seconds: i64,
}

fn is_zero(value: &i32) -> bool {
    *value == 0
}

fn text(value: Option<&String>) -> &str {
    value.map_or("", String::as_str)
}

fn ports_json(ports: &[ContainerPort]) -> String {
    let ports: Vec<PortJson<'_>> = ports
        .iter()
        .map(|p| PortJson {
            name: text(p.name.as_ref()),
            host_port: p.host_port.unwrap_or(0),
            container_port: p.container_port,
            protocol: text(p.protocol.as_ref()),
            host_ip: text(p.host_ip.as_ref()),
        })
        .collect();
    to_go_json(&ports)
}

fn handler_json(hook: &LifecycleHandler) -> String {
    to_go_json(&HandlerJson {
        exec: hook.exec.as_ref().map(|e| ExecJson { command: e.command.as_deref().unwrap_or(&[]) }),
        http_get: hook.http_get.as_ref().map(|h| HttpJson {
            path: text(h.path.as_ref()),
            port: &h.port,
            host: text(h.host.as_ref()),
            scheme: text(h.scheme.as_ref()),
            http_headers: h
                .http_headers
                .iter()
                .flatten()
                .map(|h| HeaderJson { name: &h.name, value: &h.value })
                .collect(),
        }),
        tcp_socket: hook.tcp_socket.as_ref().map(|t| TcpJson { port: &t.port, host: text(t.host.as_ref()) }),
        sleep: hook.sleep.as_ref().map(|s| SleepJson { seconds: s.seconds }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_hooks_are_written_as_go_writes_them() {
        let ports: Vec<ContainerPort> = serde_json::from_value(serde_json::json!([
            {"name": "http", "hostPort": 18080, "containerPort": 80, "protocol": "TCP"},
            {"hostPort": 18053, "containerPort": 53, "protocol": "UDP", "hostIP": "10.0.0.1"},
        ]))
        .unwrap();
        assert_eq!(
            ports_json(&ports),
            r#"[{"name":"http","hostPort":18080,"containerPort":80,"protocol":"TCP"},{"hostPort":18053,"containerPort":53,"protocol":"UDP","hostIP":"10.0.0.1"}]"#
        );
        let hook: LifecycleHandler = serde_json::from_value(serde_json::json!({"sleep": {"seconds": 2}})).unwrap();
        assert_eq!(handler_json(&hook), r#"{"sleep":{"seconds":2}}"#);
        let hook: LifecycleHandler = serde_json::from_value(serde_json::json!(
            {"httpGet": {"scheme": "HTTP", "path": "/a?b<c", "port": 80}}))
        .unwrap();
        assert_eq!(handler_json(&hook), r#"{"httpGet":{"path":"/a?b\u003cc","port":80,"scheme":"HTTP"}}"#);
    }

    #[test]
    fn what_is_written_is_read_back() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u-1", "deletionGracePeriodSeconds": 7,
                          "labels": {"app": "x"}},
            "spec": {"terminationGracePeriodSeconds": 30, "containers": [
                {"name": "c", "image": "i", "terminationMessagePath": "/dev/termination-log",
                 "terminationMessagePolicy": "File"}]},
        }))
        .unwrap();
        let identity = PodIdentity::of(&pod).unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let info = AnnotatedInfo::parse(&container_annotations(container, &pod, 3));
        assert_eq!(info.hash, container_hash("c", "i"));
        assert_eq!(info.restart_count, 3);
        assert_eq!(info.termination_message_path, "/dev/termination-log");
        assert_eq!((info.pod_deletion_grace, info.pod_termination_grace), (Some(7), Some(30)));
        let labels = LabelledInfo::parse(&container_labels(container, &identity)).unwrap();
        assert_eq!((labels.pod_name.as_str(), labels.container_name.as_str()), ("p", "c"));
        assert_eq!(sandbox_labels(&pod, &identity).len(), 4);
        assert_eq!(LabelledInfo::parse(&Map::new()), None);
        assert_eq!(AnnotatedInfo::parse(&Map::new()), AnnotatedInfo::default());
    }
}
