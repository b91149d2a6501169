//! What every namespace has: the account `default` and the cluster's certificate authority.

use serde_json::json;

use super::super::Shared;
use super::super::resources::named;
use super::create;

/// Gives each namespace what it lacks.
pub(super) fn furnish_all(shared: &Shared) {
    let (accounts, maps) = (named("serviceaccounts"), named("configmaps"));
    let lacking: Vec<(String, bool, bool)> = {
        let store = shared.store();
        store
            .list(named("namespaces"), None)
            .filter(|namespace| !namespace.value["metadata"]["deletionTimestamp"].is_string())
            .filter_map(|namespace| namespace.value["metadata"]["name"].as_str())
            .map(|name| {
                let account = store.get(accounts, name, "default").is_none();
                (name.to_owned(), account, store.get(maps, name, "kube-root-ca.crt").is_none())
            })
            .filter(|(_, account, map)| *account || *map)
            .collect()
    };
    for (namespace, account, map) in lacking {
        // Lost against somebody who made it just now.
        if account {
            let _ = create(shared, "serviceaccounts", &namespace, json!({"metadata": {"name": "default"}}));
        }
        if map {
            let certificate = json!({
                "metadata": {
                    "name": "kube-root-ca.crt",
                    "annotations": {"kubernetes.io/description": "Contains a CA bundle that can be used to verify the \
                        kube-apiserver when using internal endpoints such as the internal service IP or \
                        kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters."},
                },
                "data": {"ca.crt": shared.ca.pem()},
            });
            let _ = create(shared, "configmaps", &namespace, certificate);
        }
    }
}
