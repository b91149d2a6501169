//! The rendered configuration between versions: what an earlier version wrote is read, and what a later one may add does
//! no harm. `rendered/<version>.json` is what that version of `kubelet` wrote.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

use bulkhead_config::NodeConfig;
use serde_json::{Value, json};

const WRITTEN: &str = include_str!("rendered/0.1.0.json");

fn load(text: &str) -> Result<NodeConfig, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, text).unwrap();
    NodeConfig::load(&path).map_err(|error| format!("{error}: {:?}", std::error::Error::source(&error)))
}

#[test]
fn what_every_released_version_wrote_is_read() {
    let config = load(WRITTEN).unwrap();
    assert_eq!(config.node_name.as_str(), "node-a");
    assert_eq!(config.version, "v1.36.0-bulkhead.0.1.0");
    assert_eq!(config.paths.root_dir, Path::new("/srv/node/root"));
    assert_eq!(config.kubelet.max_pods, 120);
    assert_eq!(config.kubelet.eviction_hard["memory.available"], "100Mi");
    assert_eq!(config.cgroup_root, "/e-old");
    let providers = config.credential_providers.unwrap();
    assert_eq!(providers.providers[0].match_images, ["*.registry.test/team"]);
    assert_eq!(providers.providers[0].env[0].value, "b");
    assert_eq!(providers.providers[0].token_attributes.as_ref().unwrap().cache_type, "Token");
}

/// Adds a field that nobody knows to every object.
fn add_everywhere(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(add_everywhere);
            // Maps take any name: what is added fits those of texts, and those of switches.
            let switches = !fields.is_empty() && fields.values().all(Value::is_boolean);
            fields.insert("addedLater".into(), if switches { json!(true) } else { json!("1") });
        }
        Value::Array(all) => all.iter_mut().for_each(add_everywhere),
        _ => {}
    }
}

#[test]
fn what_a_later_version_adds_is_ignored() {
    let mut later: Value = serde_json::from_str(WRITTEN).unwrap();
    add_everywhere(&mut later);
    let config = load(&later.to_string()).unwrap();
    assert_eq!(config.credential_providers, load(WRITTEN).unwrap().credential_providers);
    assert_eq!(config.kubelet.max_pods, 120);
}

/// What an earlier version did not have yet.
#[test]
fn what_is_missing_has_its_default() {
    let written: Value = serde_json::from_str(WRITTEN).unwrap();
    for part in ["kubelet", "flags"] {
        for name in written[part].as_object().unwrap().keys() {
            let mut earlier = written.clone();
            earlier[part].as_object_mut().unwrap().remove(name);
            load(&earlier.to_string()).unwrap_or_else(|error| panic!("without {part}.{name}: {error}"));
        }
    }
    for name in ["kubeconfig_runs_program", "credential_providers"] {
        let mut earlier = written.clone();
        earlier.as_object_mut().unwrap().remove(name);
        load(&earlier.to_string()).unwrap();
    }
}

#[test]
fn another_form_is_refused_with_words() {
    let mut other: Value = serde_json::from_str(WRITTEN).unwrap();
    other["format"] = json!(2);
    let error = load(&other.to_string()).unwrap_err();
    assert!(error.contains("format 2") && error.contains("restart the whole node agent"), "{error}");
}
