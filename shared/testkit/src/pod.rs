//! Static pods for tests, built up in a few words and written as JSON (which is YAML too).

use serde_json::{Map, Value, json};

use crate::image;

/// A pod manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    value: Value,
}

impl Pod {
    /// A pod `name` in the namespace `default` with one container `main` that runs `script` in busybox' shell.
    /// The grace period is short, because a test that does not ask about it should not wait for it.
    pub fn busybox(name: &str, script: &str) -> Self {
        let mut pod = Self::empty(name);
        pod.value["spec"]["containers"] = json!([container("main", script)]);
        pod
    }

    /// A pod without containers, to be filled.
    pub fn empty(name: &str) -> Self {
        Self {
            value: json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": []},
            }),
        }
    }

    /// From a manifest in JSON.
    pub fn from_value(value: Value) -> Self {
        Self { value }
    }

    /// A pod that only waits and, because it handles SIGTERM, ends at once when asked to.
    pub fn idle(name: &str) -> Self {
        Self::busybox(name, IDLE)
    }

    pub fn name(&self) -> &str {
        self.value["metadata"]["name"].as_str().unwrap_or_default()
    }

    pub fn namespace(&self) -> &str {
        self.value["metadata"]["namespace"].as_str().unwrap_or("default")
    }

    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.value["metadata"]["namespace"] = json!(namespace);
        self
    }

    /// Sets a field of `spec`.
    pub fn spec(mut self, field: &str, value: Value) -> Self {
        self.value["spec"][field] = value;
        self
    }

    /// Sets a field of the first container.
    pub fn container_field(mut self, field: &str, value: Value) -> Self {
        self.value["spec"]["containers"][0][field] = value;
        self
    }

    /// Adds a container that runs `script`.
    pub fn and_container(mut self, name: &str, script: &str) -> Self {
        self.push("/spec/containers", container(name, script));
        self
    }

    pub fn host_network(self) -> Self {
        self.spec("hostNetwork", json!(true))
    }

    pub fn restart_policy(self, policy: &str) -> Self {
        self.spec("restartPolicy", json!(policy))
    }

    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.value["metadata"]["annotations"][key] = json!(value);
        self
    }

    /// Adds a volume and mounts it at `path` in every container.
    pub fn volume(mut self, name: &str, source: Map<String, Value>, path: &str) -> Self {
        let mut volume = source;
        volume.insert("name".into(), json!(name));
        if self.value["spec"]["volumes"].is_null() {
            self.value["spec"]["volumes"] = json!([]);
        }
        self.push("/spec/volumes", Value::Object(volume));
        if let Some(containers) = self.value["spec"]["containers"].as_array_mut() {
            for container in containers {
                if container["volumeMounts"].is_null() {
                    container["volumeMounts"] = json!([]);
                }
                if let Some(mounts) = container["volumeMounts"].as_array_mut() {
                    mounts.push(json!({"name": name, "mountPath": path}));
                }
            }
        }
        self
    }

    /// An emptyDir; `medium` is `""` or `"Memory"`.
    pub fn empty_dir(self, name: &str, medium: &str, size_limit: Option<&str>, path: &str) -> Self {
        let mut source = Map::new();
        let mut empty_dir = Map::new();
        if !medium.is_empty() {
            empty_dir.insert("medium".into(), json!(medium));
        }
        if let Some(limit) = size_limit {
            empty_dir.insert("sizeLimit".into(), json!(limit));
        }
        source.insert("emptyDir".into(), Value::Object(empty_dir));
        self.volume(name, source, path)
    }

    /// A hostPath of a type (`""` for none).
    pub fn host_path(self, name: &str, host_path: &str, kind: &str, path: &str) -> Self {
        let mut source = Map::new();
        source.insert("hostPath".into(), json!({"path": host_path, "type": kind}));
        self.volume(name, source, path)
    }

    fn push(&mut self, pointer: &str, value: Value) {
        if let Some(list) = self.value.pointer_mut(pointer).and_then(Value::as_array_mut) {
            list.push(value);
        }
    }

    /// The manifest.
    pub fn to_json(&self) -> String {
        format!("{:#}", self.value)
    }

    /// The manifest as a value.
    pub fn value(&self) -> &Value {
        &self.value
    }
}

/// Waits for ever; ends at once on SIGTERM, which the first process of a container would otherwise ignore.
pub const IDLE: &str = "trap 'exit 0' TERM INT; while true; do sleep 3600 & wait $!; done";

fn container(name: &str, script: &str) -> Value {
    json!({
        "name": name,
        "image": image::BUSYBOX,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", script],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_with_volumes_mounts_them_in_every_container() {
        let pod = Pod::idle("a").and_container("b", "true").empty_dir("scratch", "Memory", Some("1Mi"), "/scratch");
        for index in 0..2 {
            assert_eq!(pod.value()["spec"]["containers"][index]["volumeMounts"][0]["mountPath"], "/scratch");
        }
        assert_eq!(pod.value()["spec"]["volumes"][0]["emptyDir"]["sizeLimit"], "1Mi");
    }
}
