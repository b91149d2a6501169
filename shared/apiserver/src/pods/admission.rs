//! What admission adds to a new pod: its service account and token volume, its priority, the tolerations that keep it
//! five minutes on a node that is gone (`plugin/pkg/admission/{serviceaccount,priority,defaulttolerationseconds}`).

use serde_json::{Value, json};

use super::{each_container, is_mirror, references};
use crate::meta::random_suffix;
use crate::resources::named;
use crate::status::ApiError;
use crate::storage::Store;

/// Where containers find the token.
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// A little more than an hour: by this number the server knows tokens that it may let live longer.
const TOKEN_SECONDS: i64 = 3607;
const TOLERATED_SECONDS: i64 = 300;

/// Completes a pod before it is validated and stored.
///
/// # Errors
/// 403 as the plugin in question words it.
pub fn admit(store: &Store, pod: &mut Value) -> Result<(), ApiError> {
    if is_mirror(pod) {
        mirror(pod)?;
    } else {
        service_account(store, pod)?;
    }
    priority(store, pod)?;
    tolerations(pod);
    Ok(())
}

fn forbidden(pod: &Value, why: &str) -> ApiError {
    ApiError::forbidden(named("pods"), pod["metadata"]["name"].as_str().unwrap_or_default(), why)
}

fn mirror(pod: &Value) -> Result<(), ApiError> {
    if !pod["spec"]["serviceAccountName"].as_str().unwrap_or_default().is_empty() {
        return Err(forbidden(pod, "a mirror pod may not reference service accounts"));
    }
    if !references::secrets(pod).is_empty() {
        return Err(forbidden(pod, "a mirror pod may not reference secrets"));
    }
    let volumes = pod["spec"]["volumes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let sources = volumes.iter().filter_map(|volume| volume["projected"]["sources"].as_array()).flatten();
    if sources.into_iter().any(|source| source["serviceAccountToken"].is_object()) {
        return Err(forbidden(pod, "a mirror pod may not use ServiceAccountToken volume projections"));
    }
    Ok(())
}

fn service_account(store: &Store, pod: &mut Value) -> Result<(), ApiError> {
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
    let name =
        pod["spec"]["serviceAccountName"].as_str().filter(|name| !name.is_empty()).unwrap_or("default").to_owned();
    pod["spec"]["serviceAccountName"] = json!(name);
    pod["spec"]["serviceAccount"] = json!(name);
    let Some(account) = store.get(named("serviceaccounts"), &namespace, &name) else {
        let why = format!("error looking up service account {namespace}/{name}: serviceaccount {name:?} not found");
        return Err(forbidden(pod, &why));
    };
    let account = &account.value;
    let automount = pod["spec"]["automountServiceAccountToken"]
        .as_bool()
        .or_else(|| account["automountServiceAccountToken"].as_bool())
        .unwrap_or(true);
    if automount {
        mount_token(pod);
    }
    let has_pull_secrets = pod["spec"]["imagePullSecrets"].as_array().is_some_and(|list| !list.is_empty());
    if let Some(secrets) = account["imagePullSecrets"].as_array().filter(|list| !list.is_empty() && !has_pull_secrets) {
        pod["spec"]["imagePullSecrets"] = json!(secrets);
    }
    Ok(())
}

fn mount_token(pod: &mut Value) {
    let volumes = pod["spec"]["volumes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let existing = volumes
        .iter()
        .filter_map(|volume| volume["name"].as_str())
        .find(|name| name.starts_with("kube-api-access-"))
        .map(str::to_owned);
    let volume = existing.clone().unwrap_or_else(|| format!("kube-api-access-{}", random_suffix()));
    let mut needed = false;
    let ephemeral = pod["spec"]["ephemeralContainers"].take();
    each_container(pod, |container| {
        if !container["volumeMounts"].is_array() {
            container["volumeMounts"] = json!([]);
        }
        let Some(mounts) = container["volumeMounts"].as_array_mut() else { return };
        if !mounts.iter().any(|mount| mount["mountPath"] == TOKEN_PATH) {
            needed = true;
            mounts.push(json!({"name": volume, "readOnly": true, "mountPath": TOKEN_PATH}));
        }
    });
    if let Some(spec) = pod["spec"].as_object_mut() {
        spec.remove("ephemeralContainers");
        if !ephemeral.is_null() {
            spec.insert("ephemeralContainers".to_owned(), ephemeral);
        }
    }
    if existing.is_none() && needed {
        let added = json!({
            "name": volume,
            "projected": {
                "defaultMode": 0o644,
                "sources": [
                    {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                    {"downwardAPI": {"items": [
                        {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
                    ]}},
                ],
            },
        });
        if !pod["spec"]["volumes"].is_array() {
            pod["spec"]["volumes"] = json!([]);
        }
        if let Some(volumes) = pod["spec"]["volumes"].as_array_mut() {
            volumes.push(added);
        }
    }
}

fn priority(store: &Store, pod: &mut Value) -> Result<(), ApiError> {
    let class = pod["spec"]["priorityClassName"].as_str().unwrap_or_default().to_owned();
    let classes = named("priorityclasses");
    let found = if class.is_empty() {
        let global = store.list(classes, None).find(|class| class.value["globalDefault"] == true).cloned();
        if let Some(global) = &global {
            pod["spec"]["priorityClassName"] = global.value["metadata"]["name"].clone();
        }
        global
    } else {
        let found = store.get(classes, "", &class);
        if found.is_none() {
            return Err(forbidden(pod, &format!("no PriorityClass with name {class} was found")));
        }
        found
    };
    let computed = found.as_ref().and_then(|class| class.value["value"].as_i64()).unwrap_or(0);
    let policy = found
        .as_ref()
        .and_then(|class| class.value["preemptionPolicy"].as_str().map(str::to_owned))
        .unwrap_or_else(|| "PreemptLowerPriority".to_owned());
    if let Some(given) = pod["spec"]["priority"].as_i64().filter(|given| *given != computed) {
        let why = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller \
             computed {computed} from the given PriorityClass name"
        );
        return Err(forbidden(pod, &why));
    }
    pod["spec"]["priority"] = json!(computed);
    pod["spec"]["preemptionPolicy"] = json!(policy);
    Ok(())
}

fn tolerations(pod: &mut Value) {
    let text = |toleration: &Value, field: &str| toleration[field].as_str().unwrap_or_default().to_owned();
    let mut missing = Vec::new();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let existing = pod["spec"]["tolerations"].as_array().map(Vec::as_slice).unwrap_or_default();
        let tolerated = existing.iter().any(|one| {
            let (of, effect) = (text(one, "key"), text(one, "effect"));
            (of.is_empty() || of == key) && (effect.is_empty() || effect == "NoExecute")
        });
        if !tolerated {
            missing.push(json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATED_SECONDS,
            }));
        }
    }
    if missing.is_empty() {
        return;
    }
    if !pod["spec"]["tolerations"].is_array() {
        pod["spec"]["tolerations"] = json!([]);
    }
    if let Some(list) = pod["spec"]["tolerations"].as_array_mut() {
        list.extend(missing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> Store {
        let mut store = Store::new(10);
        store.put(named("serviceaccounts"), json!({"metadata": {"namespace": "n", "name": "default"}}));
        store
    }

    fn pod(spec: Value) -> Value {
        json!({"metadata": {"namespace": "n", "name": "p"}, "spec": spec})
    }

    #[test]
    fn a_pod_gets_a_token_and_tolerations() {
        let mut pod = pod(
            json!({"containers": [{"name": "a"}, {"name": "b", "volumeMounts": [{"mountPath": TOKEN_PATH, "name": "x"}]}]}),
        );
        admit(&store(), &mut pod).unwrap();
        let spec = &pod["spec"];
        assert_eq!(spec["serviceAccountName"], "default");
        assert_eq!(spec["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"], 3607);
        assert_eq!(spec["containers"][0]["volumeMounts"][0]["name"], spec["volumes"][0]["name"]);
        assert_eq!(spec["containers"][1]["volumeMounts"].as_array().unwrap().len(), 1);
        assert_eq!(spec["tolerations"].as_array().unwrap().len(), 2);
        assert_eq!(
            (spec["priority"].clone(), spec["preemptionPolicy"].clone()),
            (json!(0), json!("PreemptLowerPriority"))
        );
        assert!(spec.get("ephemeralContainers").is_none());
    }

    #[test]
    fn wildcard_tolerations_and_automount_are_respected() {
        let mut pod = pod(json!({
            "containers": [{"name": "a"}], "automountServiceAccountToken": false, "tolerations": [{"operator": "Exists"}],
        }));
        admit(&store(), &mut pod).unwrap();
        assert!(pod["spec"].get("volumes").is_none());
        assert_eq!(pod["spec"]["tolerations"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn a_mirror_pod_is_left_alone_and_may_not_name_secrets() {
        let mut mirror = pod(json!({"containers": [{"name": "a"}]}));
        mirror["metadata"]["annotations"] = json!({super::super::MIRROR: "h"});
        admit(&store(), &mut mirror).unwrap();
        assert!(mirror["spec"].get("serviceAccountName").is_none() && mirror["spec"].get("volumes").is_none());
        mirror["spec"]["imagePullSecrets"] = json!([{"name": "s"}]);
        assert_eq!(
            admit(&store(), &mut mirror).unwrap_err().message,
            "pods \"p\" is forbidden: a mirror pod may not reference secrets"
        );
    }

    #[test]
    fn refusals() {
        let refused = |spec: Value| admit(&store(), &mut pod(spec)).unwrap_err().message;
        assert_eq!(
            refused(json!({"serviceAccountName": "x"})),
            "pods \"p\" is forbidden: error looking up service account n/x: serviceaccount \"x\" not found"
        );
        assert!(refused(json!({"priorityClassName": "x"})).ends_with("no PriorityClass with name x was found"));
    }
}
