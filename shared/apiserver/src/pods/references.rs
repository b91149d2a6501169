//! Which other API objects a pod names: what the node authorizer lets a node read
//! (`pkg/api/v1/pod`, `plugin/pkg/auth/authorizer/node/graph.go`).

use serde_json::Value;

use super::containers;

/// Names of the objects of one kind, in the pod's namespace.
fn names(pod: &Value, sources: &[&str], env: &str, env_from: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut add = |value: &Value| {
        if let Some(name) = value.as_str().filter(|name| !name.is_empty()) {
            found.push(name.to_owned());
        }
    };
    for volume in list(&pod["spec"]["volumes"]) {
        for source in sources {
            volume.pointer(source).into_iter().for_each(&mut add);
        }
    }
    for container in containers(pod, true) {
        for variable in list(&container["env"]) {
            add(&variable["valueFrom"][env]["name"]);
        }
        for source in list(&container["envFrom"]) {
            add(&source[env_from]["name"]);
        }
    }
    found
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn projected(pod: &Value, kind: &str) -> Vec<String> {
    list(&pod["spec"]["volumes"])
        .iter()
        .flat_map(|volume| list(&volume["projected"]["sources"]))
        .filter_map(|source| source[kind]["name"].as_str().map(str::to_owned))
        .collect()
}

pub fn secrets(pod: &Value) -> Vec<String> {
    let mut all = names(
        pod,
        &[
            "/secret/secretName",
            "/csi/nodePublishSecretRef/name",
            "/cephfs/secretRef/name",
            "/rbd/secretRef/name",
            "/iscsi/secretRef/name",
            "/flexVolume/secretRef/name",
            "/azureFile/secretName",
            "/scaleIO/secretRef/name",
            "/storageos/secretRef/name",
        ],
        "secretKeyRef",
        "secretRef",
    );
    all.extend(projected(pod, "secret"));
    all.extend(list(&pod["spec"]["imagePullSecrets"]).iter().filter_map(|one| one["name"].as_str().map(str::to_owned)));
    all
}

pub fn config_maps(pod: &Value) -> Vec<String> {
    let mut all = names(pod, &["/configMap/name"], "configMapKeyRef", "configMapRef");
    all.extend(projected(pod, "configMap"));
    all
}

pub fn claims(pod: &Value) -> Vec<String> {
    let mut all = names(pod, &["/persistentVolumeClaim/claimName"], "", "");
    let pod_name = pod["metadata"]["name"].as_str().unwrap_or_default();
    for volume in list(&pod["spec"]["volumes"]) {
        if volume["ephemeral"]["volumeClaimTemplate"].is_object() {
            all.push(format!("{pod_name}-{}", volume["name"].as_str().unwrap_or_default()));
        }
    }
    all
}

/// Whether a pod names any API object, and of which kind (`HasAPIObjectReference`).
pub fn any(pod: &Value) -> Option<&'static str> {
    if !pod["spec"]["serviceAccountName"].as_str().unwrap_or_default().is_empty() {
        return Some("serviceaccounts");
    }
    if !secrets(pod).is_empty() {
        return Some("secrets");
    }
    if !config_maps(pod).is_empty() {
        return Some("configmaps");
    }
    if !list(&pod["spec"]["resourceClaims"]).is_empty() {
        return Some("resourceclaims");
    }
    for volume in list(&pod["spec"]["volumes"]) {
        if volume["persistentVolumeClaim"].is_object() || volume["ephemeral"].is_object() {
            return Some("persistentvolumeclaims");
        }
        for source in list(&volume["projected"]["sources"]) {
            if source["serviceAccountToken"].is_object() {
                return Some("serviceaccounts");
            }
            if source["clusterTrustBundle"].is_object() {
                return Some("clustertrustbundles");
            }
            if source["podCertificate"].is_object() {
                return Some("podcertificates");
            }
        }
        if volume["csi"].is_object() {
            return Some("csidrivers");
        }
    }
    None
}

/// Whether a projected volume of the pod asks for a token of this audience (empty: the server's own).
pub fn wants_audience(pod: &Value, audience: &str) -> bool {
    list(&pod["spec"]["volumes"])
        .iter()
        .flat_map(|volume| list(&volume["projected"]["sources"]))
        .filter(|source| source["serviceAccountToken"].is_object())
        .any(|source| source["serviceAccountToken"]["audience"].as_str().unwrap_or_default() == audience)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_place_that_can_name_an_object() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {
            "imagePullSecrets": [{"name": "pull"}],
            "volumes": [
                {"name": "a", "secret": {"secretName": "s1"}},
                {"name": "b", "configMap": {"name": "c1"}},
                {"name": "c", "projected": {"sources": [{"secret": {"name": "s2"}}, {"configMap": {"name": "c2"}},
                    {"serviceAccountToken": {"audience": "vault"}}]}},
                {"name": "d", "persistentVolumeClaim": {"claimName": "pvc"}},
                {"name": "e", "ephemeral": {"volumeClaimTemplate": {}}},
            ],
            "initContainers": [{"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s3", "key": "k"}}}]}],
            "containers": [{"envFrom": [{"configMapRef": {"name": "c3"}}, {"secretRef": {"name": "s4"}}]}],
        }});
        let sorted = |mut names: Vec<String>| {
            names.sort();
            names
        };
        assert_eq!(sorted(secrets(&pod)), ["pull", "s1", "s2", "s3", "s4"]);
        assert_eq!(sorted(config_maps(&pod)), ["c1", "c2", "c3"]);
        assert_eq!(claims(&pod), ["pvc", "p-e"]);
        assert!(wants_audience(&pod, "vault") && !wants_audience(&pod, ""));
        assert_eq!(any(&json!({"spec": {"containers": [{}]}})), None);
    }
}
