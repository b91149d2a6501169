//! Defaults of a pod's fields (`pkg/apis/core/v1/defaults.go`), as the recorded pods have them.

use serde_json::{Map, Value, json};

use super::each_container;

/// Sets a field that is not there.
fn default(object: &mut Value, field: &str, value: Value) {
    if let Some(map) = object.as_object_mut()
        && map.get(field).is_none_or(Value::is_null)
    {
        map.insert(field.to_owned(), value);
    }
}

/// Fills in what the author left out.
pub fn apply(pod: &mut Value) {
    let spec = &mut pod["spec"];
    default(spec, "dnsPolicy", json!("ClusterFirst"));
    default(spec, "restartPolicy", json!("Always"));
    default(spec, "securityContext", json!({}));
    default(spec, "terminationGracePeriodSeconds", json!(30));
    default(spec, "schedulerName", json!("default-scheduler"));
    default(spec, "enableServiceLinks", json!(true));
    // The old name of the field is kept in step with the new one.
    if let Some(account) = spec.get("serviceAccountName").or_else(|| spec.get("serviceAccount")).cloned() {
        spec["serviceAccountName"] = account.clone();
        spec["serviceAccount"] = account;
    }
    let host_network = spec["hostNetwork"] == true;
    if let Some(volumes) = spec.get_mut("volumes").and_then(Value::as_array_mut) {
        volumes.iter_mut().for_each(volume);
    }
    if let Some(gates) = spec.get_mut("topologySpreadConstraints").and_then(Value::as_array_mut) {
        for constraint in gates {
            default(constraint, "nodeAffinityPolicy", json!("Honor"));
            default(constraint, "nodeTaintsPolicy", json!("Ignore"));
        }
    }
    each_container(pod, |one| container(one, host_network));
}

fn container(container: &mut Value, host_network: bool) {
    let image = container["image"].as_str().unwrap_or_default();
    let policy = if is_latest(image) { "Always" } else { "IfNotPresent" };
    default(container, "imagePullPolicy", json!(policy));
    default(container, "terminationMessagePath", json!("/dev/termination-log"));
    default(container, "terminationMessagePolicy", json!("File"));
    default(container, "resources", json!({}));
    let limits = container["resources"]["limits"].as_object().cloned().unwrap_or_default();
    if !limits.is_empty() {
        default(&mut container["resources"], "requests", json!({}));
        for (name, amount) in limits {
            default(&mut container["resources"]["requests"], &name, amount);
        }
    }
    if let Some(ports) = container.get_mut("ports").and_then(Value::as_array_mut) {
        for port in ports {
            default(port, "protocol", json!("TCP"));
            if host_network {
                let number = port["containerPort"].clone();
                default(port, "hostPort", number);
            }
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(name).filter(|probe| probe.is_object()) {
            for (field, value) in
                [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
            {
                if probe[field].as_i64().unwrap_or_default() == 0 {
                    probe[field] = json!(value);
                }
            }
            http_get(probe);
            if let Some(grpc) = probe.get_mut("grpc").filter(|grpc| grpc.is_object()) {
                default(grpc, "service", json!(""));
            }
        }
    }
    for name in ["postStart", "preStop"] {
        if let Some(hook) = container.get_mut("lifecycle").and_then(|lifecycle| lifecycle.get_mut(name)) {
            http_get(hook);
        }
    }
    if let Some(variables) = container.get_mut("env").and_then(Value::as_array_mut) {
        for variable in variables {
            let from = variable.get_mut("valueFrom");
            if let Some(field) = from.and_then(|from| from.get_mut("fieldRef")) {
                default(field, "apiVersion", json!("v1"));
            }
            if let Some(resource) = variable.get_mut("valueFrom").and_then(|from| from.get_mut("resourceFieldRef")) {
                default(resource, "divisor", json!("0"));
            }
        }
    }
}

fn http_get(handler: &mut Value) {
    if let Some(get) = handler.get_mut("httpGet").filter(|get| get.is_object()) {
        for (field, value) in [("path", "/"), ("scheme", "HTTP")] {
            if get[field].as_str().unwrap_or_default().is_empty() {
                get[field] = json!(value);
            }
        }
    }
}

const MODE: i64 = 0o644;

fn volume(volume: &mut Value) {
    let has_source = volume.as_object().is_some_and(|map| map.keys().any(|key| key != "name"));
    if !has_source {
        volume["emptyDir"] = json!({});
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = volume.get_mut(source).filter(|source| source.is_object()) {
            default(source, "defaultMode", json!(MODE));
        }
    }
    if let Some(host_path) = volume.get_mut("hostPath").filter(|source| source.is_object()) {
        default(host_path, "type", json!(""));
    }
    if let Some(image) = volume.get_mut("image").filter(|source| source.is_object()) {
        let policy = if is_latest(image["reference"].as_str().unwrap_or_default()) { "Always" } else { "IfNotPresent" };
        default(image, "pullPolicy", json!(policy));
    }
    if let Some(items) = volume.pointer_mut("/downwardAPI/items").and_then(Value::as_array_mut) {
        items.iter_mut().for_each(downward_item);
    }
    if let Some(sources) = volume.pointer_mut("/projected/sources").and_then(Value::as_array_mut) {
        for source in sources {
            if let Some(token) = source.get_mut("serviceAccountToken").filter(|token| token.is_object()) {
                default(token, "expirationSeconds", json!(3600));
            }
            if let Some(items) = source.pointer_mut("/downwardAPI/items").and_then(Value::as_array_mut) {
                items.iter_mut().for_each(downward_item);
            }
        }
    }
    if let Some(claim) = volume.pointer_mut("/ephemeral/volumeClaimTemplate/spec") {
        default(claim, "volumeMode", json!("Filesystem"));
    }
}

fn downward_item(item: &mut Value) {
    if let Some(field) = item.get_mut("fieldRef").filter(|field| field.is_object()) {
        default(field, "apiVersion", json!("v1"));
    }
    if let Some(resource) = item.get_mut("resourceFieldRef").filter(|resource| resource.is_object()) {
        default(resource, "divisor", json!("0"));
    }
}

/// No tag and no digest, or the tag `latest`.
fn is_latest(image: &str) -> bool {
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    let last = name.rsplit('/').next().unwrap_or_default();
    match last.split_once(':') {
        Some((_, tag)) => tag == "latest",
        None => digest.is_none(),
    }
}

/// Amounts in the form in which the server stores them: `1000m` becomes `1`.
pub fn canonical_amounts(list: &mut Map<String, Value>) {
    for amount in list.values_mut() {
        let text = match &*amount {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => continue,
        };
        if let Ok(quantity) = bulkhead_types::Quantity::parse(&text) {
            *amount = json!(quantity.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_policy_follows_the_tag() {
        for (image, latest) in [
            ("busybox", true),
            ("busybox:latest", true),
            ("busybox:1", false),
            ("reg:5000/busybox", true),
            ("reg:5000/busybox:1", false),
            ("busybox@sha256:00", false),
        ] {
            assert_eq!(is_latest(image), latest, "{image}");
        }
    }

    #[test]
    fn fields_that_recorded_pods_have() {
        let mut pod = json!({"spec": {
            "volumes": [{"name": "a"}, {"name": "b", "configMap": {"name": "c"}}, {"name": "h", "hostPath": {"path": "/x"}}],
            "containers": [{
                "name": "main", "image": "x:1",
                "ports": [{"containerPort": 80}],
                "resources": {"limits": {"cpu": "1"}},
                "readinessProbe": {"httpGet": {"port": 80}},
                "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            }],
        }});
        apply(&mut pod);
        let spec = &pod["spec"];
        assert_eq!(spec["dnsPolicy"], "ClusterFirst");
        assert_eq!(spec["securityContext"], json!({}));
        assert_eq!(spec["volumes"][0]["emptyDir"], json!({}));
        assert_eq!(spec["volumes"][1]["configMap"]["defaultMode"], 420);
        assert_eq!(spec["volumes"][2]["hostPath"]["type"], "");
        let main = &spec["containers"][0];
        assert_eq!(main["imagePullPolicy"], "IfNotPresent");
        assert_eq!(main["ports"][0], json!({"containerPort": 80, "protocol": "TCP"}));
        assert_eq!(main["resources"]["requests"], json!({"cpu": "1"}));
        assert_eq!(main["readinessProbe"]["httpGet"], json!({"port": 80, "path": "/", "scheme": "HTTP"}));
        assert_eq!(main["readinessProbe"]["failureThreshold"], 3);
        assert_eq!(main["env"][0]["valueFrom"]["fieldRef"]["apiVersion"], "v1");
    }
}
