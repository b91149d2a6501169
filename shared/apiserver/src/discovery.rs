//! What the server says about itself: versions, groups, resources, health, and as much OpenAPI as lets clients send
//! what they have without checking it themselves.

use serde_json::{Value, json};

use super::resources::{RESOURCES, Resource, group_version, groups};
use super::status::ApiError;

/// The version that is claimed.
pub const VERSION: &str = "v1.36.2";

/// An answer that is no API object.
#[derive(Debug, PartialEq)]
pub enum Answer {
    Json(Value),
    Text(&'static str),
    Binary(&'static str, Vec<u8>),
}

/// Answers a path that is no resource.
///
/// # Errors
/// 404.
pub fn answer(path: &str, accept: &str, server: &str) -> Result<Answer, ApiError> {
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    Ok(Answer::Json(match segments.as_slice() {
        ["healthz" | "readyz" | "livez", ..] => return Ok(Answer::Text("ok")),
        ["version"] => version(),
        ["api"] => json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server}],
        }),
        ["api", "v1"] => resource_list("", "v1"),
        ["apis"] => json!({
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": groups().into_iter().map(|(name, version)| group(name, version)).collect::<Vec<_>>(),
        }),
        ["apis", name] => match groups().into_iter().find(|(known, _)| known == name) {
            Some((name, version)) => {
                let mut group = group(name, version);
                group["kind"] = json!("APIGroup");
                group["apiVersion"] = json!("v1");
                group
            }
            None => return Err(ApiError::no_such_resource()),
        },
        ["apis", name, version] if groups().contains(&(*name, *version)) => resource_list(name, version),
        ["openapi", "v2"] if accept.contains("proto") => {
            return Ok(Answer::Binary(
                // A dot, although it is asked for with an @, which no reader of media types takes.
                "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
                empty_openapi_v2(),
            ));
        }
        ["openapi", "v2"] => json!({
            "swagger": "2.0",
            "info": {"title": "Kubernetes", "version": VERSION},
            "paths": {},
            "definitions": {},
        }),
        ["openapi", "v3"] => {
            let paths = groups().into_iter().map(|(name, version)| format!("apis/{name}/{version}"));
            let all = std::iter::once("api/v1".to_owned()).chain(paths);
            let entries = all.map(|path| (path.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{path}")})));
            json!({"paths": entries.collect::<serde_json::Map<_, _>>()})
        }
        ["openapi", "v3", "api", "v1"] => openapi_v3("", "v1"),
        ["openapi", "v3", "apis", name, version] if groups().contains(&(*name, *version)) => openapi_v3(name, version),
        [] => {
            json!({"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]})
        }
        _ => return Err(ApiError::no_such_resource()),
    }))
}

fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "emulationMajor": "1",
        "emulationMinor": "36",
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35",
        "gitVersion": VERSION,
        "gitCommit": "0000000000000000000000000000000000000000",
        "gitTreeState": "clean",
        "buildDate": "2026-06-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": "linux/amd64",
    })
}

fn group(name: &str, version: &str) -> Value {
    let version = json!({"groupVersion": group_version(name, version), "version": version});
    json!({"name": name, "versions": [version], "preferredVersion": version})
}

fn verbs(resource: &Resource) -> Value {
    if resource.question {
        json!(["create"])
    } else {
        json!(["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"])
    }
}

fn resource_list(group: &str, version: &str) -> Value {
    let mut resources = Vec::new();
    for resource in RESOURCES.iter().filter(|one| one.group == group && one.version == version) {
        let mut entry = json!({
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": verbs(resource),
        });
        if !resource.short.is_empty() {
            entry["shortNames"] = json!(resource.short);
        }
        if ["pods", "services"].contains(&resource.plural) {
            entry["categories"] = json!(["all"]);
        }
        resources.push(entry);
        for (name, kind) in resource.subresources {
            let mut entry = json!({
                "name": format!("{}/{name}", resource.plural),
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": kind,
                "verbs": match (*name, *kind) {
                    (_, "Binding" | "Eviction" | "TokenRequest") => json!(["create"]),
                    ("attach" | "exec" | "portforward", _) => json!(["create", "get"]),
                    ("log", _) => json!(["get"]),
                    ("proxy", _) => json!(["create", "delete", "get", "patch", "update"]),
                    _ => json!(["get", "patch", "update"]),
                },
            });
            match *kind {
                "Eviction" => (entry["group"], entry["version"]) = (json!("policy"), json!("v1")),
                "TokenRequest" => (entry["group"], entry["version"]) = (json!("authentication.k8s.io"), json!("v1")),
                _ => {}
            }
            resources.push(entry);
        }
    }
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version(group, version),
        "resources": resources,
    })
}

/// No definitions, but the promise that the server validates fields: so clients do not.
fn openapi_v3(group: &str, version: &str) -> Value {
    let mut paths = serde_json::Map::new();
    for resource in RESOURCES.iter().filter(|one| one.group == group && one.version == version && !one.question) {
        let kind = json!({"group": group, "kind": resource.kind, "version": version});
        let parameter =
            json!({"name": "fieldValidation", "in": "query", "schema": {"type": "string", "uniqueItems": true}});
        let operation = |action: &str| {
            json!({
                "x-kubernetes-action": action,
                "x-kubernetes-group-version-kind": kind,
                "parameters": [parameter],
                "responses": {"200": {"description": "OK"}},
            })
        };
        let one = json!({"patch": operation("patch"), "put": operation("put")});
        paths.insert(resource.path(Some("{namespace}"), Some("{name}")), one);
        paths.insert(resource.path(Some("{namespace}"), None), json!({"post": operation("post")}));
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION},
        "paths": paths,
        "components": {"schemas": {}},
    })
}

/// The same emptiness for clients that only read the binary form: swagger `2.0`, title and version, no paths.
fn empty_openapi_v2() -> Vec<u8> {
    let field = |number: u8, content: &[u8]| {
        let mut bytes = vec![number << 3 | 2, u8::try_from(content.len()).unwrap_or_default()];
        bytes.extend_from_slice(content);
        bytes
    };
    let info = [field(1, b"Kubernetes"), field(2, VERSION.as_bytes())].concat();
    [field(1, b"2.0"), field(2, &info), field(8, b""), field(9, b"")].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str) -> Value {
        match answer(path, "", "127.0.0.1:6443").unwrap() {
            Answer::Json(value) => value,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn groups_and_resources() {
        let names: Vec<_> =
            get("/api/v1")["resources"].as_array().unwrap().iter().map(|one| one["name"].clone()).collect();
        for name in ["pods", "pods/status", "pods/eviction", "nodes/status", "serviceaccounts/token"] {
            assert!(names.contains(&json!(name)), "{name}");
        }
        assert_eq!(get("/apis/storage.k8s.io/v1")["groupVersion"], "storage.k8s.io/v1");
        assert_eq!(get("/version")["minor"], "36");
        assert_eq!(answer("/apis/apps/v1", "", "").unwrap_err().code, 404);
        assert_eq!(answer("/readyz/ping", "", "").unwrap(), Answer::Text("ok"));
    }
}
