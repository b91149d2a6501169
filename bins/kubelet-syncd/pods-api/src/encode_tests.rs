use serde_json::json;

use super::*;

/// Recorded from a kube-apiserver 1.36, the same pod in both forms (`tests/tests/apiserver_contract/forms.rs`).
const JSON: &str = include_str!("../tests/pod.json");
const BYTES: &[u8] = include_bytes!("../tests/pod.pb");

#[test]
fn as_the_api_server_writes_it() {
    let ours = pod(&serde_json::from_str(JSON).unwrap()).unwrap();
    let same = ours.iter().zip(BYTES).take_while(|(ours, theirs)| ours == theirs).count();
    assert!(ours == BYTES, "{} and {} bytes, the same up to {same}", ours.len(), BYTES.len());
}

/// What the recorded pod cannot have: fields that exclude each other, or that the server completes.
#[test]
fn forms_of_single_fields() {
    let bytes_of = |message: &str, json: Value| {
        let place = core_v1().messages.iter().position(|one| one.name == message).unwrap();
        let mut out = Vec::new();
        super::message(core_v1(), place, &json, &mut out).map(|()| out)
    };
    let empty = bytes_of("HostIP", json!({})).unwrap();
    assert_eq!(empty, b"\x0a\x00", "a text that is no pointer is written where nothing is set");
    assert_eq!(bytes_of("PodOS", json!({"name": "linux", "new": 1})).unwrap(), b"\x0a\x05linux");
    let negative = bytes_of("Toleration", json!({"tolerationSeconds": -1})).unwrap();
    assert_eq!(negative[8..], [40, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
    let port = |port: Value| bytes_of("TCPSocketAction", json!({"port": port})).unwrap();
    assert_eq!(port(json!(80)), [10, 6, 8, 0, 16, 80, 26, 0, 18, 0]);
    assert_eq!(port(json!("x")), [10, 7, 8, 1, 16, 0, 26, 1, b'x', 18, 0]);
    let time = |time: Value| bytes_of("ContainerStateRunning", json!({"startedAt": time}));
    assert_eq!(time(Value::Null).unwrap(), [10, 0], "the zero time is nothing");
    assert_eq!(time(json!("1970-01-01T00:00:01.5Z")).unwrap(), [10, 4, 8, 1, 16, 0], "no fraction");
    let wrong = time(json!("soon")).unwrap_err();
    assert_eq!(wrong.to_string(), "ContainerStateRunning.startedAt is not of its type");
    let divisor = bytes_of("ResourceFieldSelector", json!({"resource": "r"})).unwrap();
    assert_eq!(divisor, b"\x0a\x00\x12\x01r\x1a\x03\x0a\x010", "the zero quantity has a text");
    let overhead = bytes_of("ResourceRequirements", json!({"limits": {"b": "2", "a": "1"}})).unwrap();
    assert_eq!(overhead, b"\x0a\x08\x0a\x01a\x12\x03\x0a\x011\x0a\x08\x0a\x01b\x12\x03\x0a\x012", "by key");
}

#[test]
fn what_is_no_pod_is_refused() {
    for (json, field) in [
        (json!({"metadata": {"name": 1}}), "ObjectMeta.name"),
        (json!({"metadata": "x"}), "Pod.metadata"),
        (json!({"metadata": {"labels": []}}), "ObjectMeta.labels"),
        (json!({"spec": {"containers": {}}}), "PodSpec.containers"),
        (json!({"spec": {"containers": [{"stdin": "yes"}]}}), "Container.stdin"),
        (json!({"spec": {"priority": 0.5}}), "PodSpec.priority"),
    ] {
        assert_eq!(pod(&json).unwrap_err().to_string(), format!("{field} is not of its type"));
    }
}
