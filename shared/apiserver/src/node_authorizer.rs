//! What a node may ask for at all: the mode `Node` of the real server's authorization
//! (`plugin/pkg/auth/authorizer/node`, with selectors enforced as from 1.34 on).

use super::pods::{self, references};
use super::request::Request;
use super::resources::named;
use super::storage::Store;

/// Allowed, or the reason that goes into the refusal (empty for none).
pub fn authorize(store: &Store, node: &str, request: &Request) -> Result<(), String> {
    let Some(resource) = request.resource else { return Err(String::new()) };
    let (verb, sub) = (request.verb, request.subresource.as_str());
    let one_of = |verbs: &[&str]| verbs.contains(&verb);
    let allow_if = |allowed: bool| if allowed { Ok(()) } else { Err(String::new()) };
    match (resource.group, resource.plural) {
        ("", "secrets" | "configmaps") => {
            if !one_of(&["get", "list", "watch"]) {
                return Err("can only read resources of this type".into());
            }
            if request.namespace.is_empty() {
                return Err("can only read namespaced object of this type".into());
            }
            related(store, node, request)
        }
        ("", "persistentvolumeclaims") if sub == "status" => match one_of(&["update", "patch"]) {
            true => related(store, node, request),
            false => Err("can only get/update/patch this type".into()),
        },
        ("", "persistentvolumeclaims" | "persistentvolumes")
        | ("resource.k8s.io", "resourceclaims")
        | ("storage.k8s.io", "volumeattachments") => {
            if verb != "get" {
                return Err("can only get individual resources of this type".into());
            }
            if !sub.is_empty() {
                return Err("cannot get subresource".into());
            }
            related(store, node, request)
        }
        ("", "serviceaccounts") => {
            if verb == "get" && sub.is_empty() {
                return related(store, node, request);
            }
            if verb != "create" || request.name.is_empty() {
                return Err("can only create tokens for individual service accounts".into());
            }
            if sub != "token" {
                return Err("can only create token subresource of serviceaccount".into());
            }
            related(store, node, request)
        }
        ("coordination.k8s.io", "leases") => {
            if !one_of(&["get", "create", "update", "patch", "delete"]) {
                return Err("can only get, create, update, patch, or delete a node lease".into());
            }
            if request.namespace != "kube-node-lease" {
                return Err("can only access leases in the \"kube-node-lease\" system namespace".into());
            }
            own_name(node, request, "can only access node lease with the same name as the requesting node")
        }
        ("storage.k8s.io", "csinodes") => {
            if !one_of(&["get", "create", "update", "patch", "delete"]) {
                return Err("can only get, create, update, patch, or delete a CSINode".into());
            }
            own_name(node, request, "can only access CSINode with the same name as the requesting node")
        }
        ("resource.k8s.io", "resourceslices") => match verb {
            "create" => Ok(()),
            "watch" | "list" | "deletecollection" if request.selector.exact("spec.nodeName") == Some(node) => Ok(()),
            "watch" | "list" | "deletecollection" => {
                Err("can only list/watch/deletecollection resourceslices with nodeName field selector".into())
            }
            _ => related(store, node, request),
        },
        ("", "nodes") => match (sub, verb) {
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
            ("", "get" | "list" | "watch") if request.name == node => Ok(()),
            ("", "get" | "list" | "watch") if request.name.is_empty() => {
                Err(format!("node '{node}' cannot read all nodes, only its own Node object"))
            }
            ("", "get" | "list" | "watch") => {
                Err(format!("node '{node}' cannot read '{}', only its own Node object", request.name))
            }
            _ => Err(String::new()),
        },
        ("", "pods") => match (sub, verb) {
            ("", "get") => related(store, node, request),
            ("", "list" | "watch") if request.selector.exact("spec.nodeName") == Some(node) => Ok(()),
            ("", "list" | "watch") if !request.name.is_empty() => related(store, node, request),
            ("", "list" | "watch") => Err("can only list/watch pods with spec.nodeName field selector".into()),
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => Ok(()),
            _ => Err(String::new()),
        },
        ("", "services") => allow_if(sub.is_empty() && one_of(&["get", "list", "watch"])),
        ("", "events") => allow_if(one_of(&["create", "update", "patch"])),
        ("", "endpoints") => allow_if(verb == "get"),
        ("certificates.k8s.io", "certificatesigningrequests") => {
            allow_if(sub.is_empty() && one_of(&["create", "get", "list", "watch"]))
        }
        ("storage.k8s.io", "csidrivers") | ("node.k8s.io", "runtimeclasses") => {
            allow_if(one_of(&["get", "list", "watch"]))
        }
        ("authentication.k8s.io", "tokenreviews") | ("authorization.k8s.io", "subjectaccessreviews") => {
            allow_if(verb == "create")
        }
        _ => Err(String::new()),
    }
}

fn own_name(node: &str, request: &Request, why: &str) -> Result<(), String> {
    // A creation's name is in the body: admission looks there.
    if request.verb == "create" || request.name == node { Ok(()) } else { Err(why.to_owned()) }
}

/// Whether a pod on the node (no mirror pod) leads to the object.
fn related(store: &Store, node: &str, request: &Request) -> Result<(), String> {
    if request.name.is_empty() {
        return Err("No Object name found".into());
    }
    let none = || format!("no relationship found between node '{node}' and this object");
    let Some(resource) = request.resource else { return Err(none()) };
    let (namespace, name) = (request.namespace.as_str(), request.name.as_str());
    let names = |list: Vec<String>| list.iter().any(|one| one == name);
    let on_node = |namespace: Option<&str>, leads: &dyn Fn(&serde_json::Value) -> bool| {
        store
            .list(named("pods"), namespace.map(str::to_owned).as_deref())
            .any(|pod| pod.value["spec"]["nodeName"] == node && !pods::is_mirror(&pod.value) && leads(&pod.value))
    };
    let found = match resource.plural {
        "secrets" => {
            on_node(Some(namespace), &|pod| names(references::secrets(pod))) || volume_secret(store, namespace, name)
        }
        "configmaps" => on_node(Some(namespace), &|pod| names(references::config_maps(pod))),
        "persistentvolumeclaims" => on_node(Some(namespace), &|pod| names(references::claims(pod))),
        "persistentvolumes" => store
            .list(named("persistentvolumeclaims"), None)
            .filter(|claim| claim.value["spec"]["volumeName"] == name)
            .any(|claim| {
                let metadata = &claim.value["metadata"];
                let claim_name = metadata["name"].as_str().unwrap_or_default();
                on_node(metadata["namespace"].as_str(), &|pod| {
                    references::claims(pod).iter().any(|one| one == claim_name)
                })
            }),
        "serviceaccounts" => on_node(Some(namespace), &|pod| pod["spec"]["serviceAccountName"] == name),
        "pods" => store.get(resource, namespace, name).is_some_and(|pod| pod.value["spec"]["nodeName"] == node),
        "volumeattachments" => store.get(resource, "", name).is_some_and(|one| one.value["spec"]["nodeName"] == node),
        "resourceslices" => store.get(resource, "", name).is_some_and(|one| one.value["spec"]["nodeName"] == node),
        "resourceclaims" => on_node(Some(namespace), &|pod| {
            let claims = pod["spec"]["resourceClaims"].as_array().map(Vec::as_slice).unwrap_or_default();
            let statuses = pod["status"]["resourceClaimStatuses"].as_array().map(Vec::as_slice).unwrap_or_default();
            let extended = &pod["status"]["extendedResourceClaimStatus"];
            claims.iter().chain(statuses).chain([extended]).any(|claim| claim["resourceClaimName"] == name)
        }),
        _ => false,
    };
    if found { Ok(()) } else { Err(none()) }
}

/// A secret that a volume of the cluster names for its driver; such volumes are found through any claim.
fn volume_secret(store: &Store, namespace: &str, name: &str) -> bool {
    store.list(named("persistentvolumes"), None).any(|volume| {
        ["nodePublishSecretRef", "nodeStageSecretRef", "nodeExpandSecretRef"].iter().any(|field| {
            let reference = &volume.value["spec"]["csi"][field];
            reference["name"] == name && reference["namespace"] == namespace
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn store() -> Store {
        let mut store = Store::new(10);
        store.put(
            named("pods"),
            json!({"metadata": {"namespace": "n", "name": "p"}, "spec": {
                "nodeName": "a", "serviceAccountName": "sa", "containers": [],
                "volumes": [{"name": "v", "secret": {"secretName": "s"}}],
            }}),
        );
        store
    }

    fn ask(method: &str, path: &str, query: &str) -> Result<(), String> {
        authorize(&store(), "a", &Request::parse(method, path, query).unwrap())
    }

    #[test]
    fn what_a_kubelet_asks_for_is_allowed() {
        for (method, path, query) in [
            ("GET", "/api/v1/nodes/a", ""),
            ("GET", "/api/v1/nodes", "watch=true&fieldSelector=metadata.name%3Da"),
            ("GET", "/api/v1/pods", "fieldSelector=spec.nodeName%3Da"),
            ("GET", "/api/v1/namespaces/n/pods/p", ""),
            ("GET", "/api/v1/namespaces/n/secrets", "watch=true&fieldSelector=metadata.name%3Ds"),
            ("POST", "/api/v1/namespaces/n/serviceaccounts/sa/token", ""),
            ("PATCH", "/api/v1/namespaces/n/pods/p/status", ""),
            ("PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a", ""),
            ("DELETE", "/apis/resource.k8s.io/v1/resourceslices", "fieldSelector=spec.nodeName%3Da"),
            ("GET", "/api/v1/services", "watch=true&fieldSelector=spec.clusterIP!%3DNone"),
        ] {
            assert_eq!(ask(method, path, query), Ok(()), "{method} {path}?{query}");
        }
    }

    #[test]
    fn everything_else_is_refused_with_the_reason() {
        for (method, path, query, why) in [
            ("GET", "/api/v1/nodes", "", "node 'a' cannot read all nodes, only its own Node object"),
            ("GET", "/api/v1/nodes/b", "", "node 'a' cannot read 'b', only its own Node object"),
            ("GET", "/api/v1/pods", "", "can only list/watch pods with spec.nodeName field selector"),
            ("GET", "/api/v1/namespaces/n/secrets", "", "No Object name found"),
            ("GET", "/api/v1/secrets", "", "can only read namespaced object of this type"),
            ("GET", "/api/v1/namespaces/n/secrets/x", "", "no relationship found between node 'a' and this object"),
            ("POST", "/api/v1/namespaces/n/secrets", "", "can only read resources of this type"),
            ("GET", "/api/v1/persistentvolumes", "", "can only get individual resources of this type"),
            ("DELETE", "/api/v1/nodes/a", "", ""),
            ("GET", "/api/v1/namespaces", "", ""),
        ] {
            assert_eq!(ask(method, path, query), Err(why.to_owned()), "{method} {path}?{query}");
        }
    }
}
