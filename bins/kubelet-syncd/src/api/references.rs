//! Which configMaps, secrets and claims a pod names (upstream `pkg/api/v1/pod`, VisitPodSecretNames and VisitPodConfigmapNames),
//! and whether a running pod follows their changes: in a volume it does, elsewhere they are read when something starts.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar};
use kubelet_model::v1::{Pod, PodSpec, Volume};
use kubelet_volume_manager::populator::resolve;

/// Names in the pod's namespace; true: the pod follows the changes.
pub type Names = BTreeMap<String, bool>;

fn add(names: &mut Names, name: Option<&str>, follows: bool) {
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        *names.entry(name.to_owned()).or_default() |= follows;
    }
}

/// The environments of all containers, also of those that come later (ephemeral ones).
fn environments(spec: &PodSpec) -> impl Iterator<Item = (&[EnvVar], &[EnvFromSource])> {
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let regular = containers.map(|c| (c.env.as_deref(), c.env_from.as_deref()));
    let later = spec.ephemeral_containers.iter().flatten().map(|c| (c.env.as_deref(), c.env_from.as_deref()));
    regular.chain(later).map(|(env, from)| (env.unwrap_or_default(), from.unwrap_or_default()))
}

/// ConfigMaps.
pub fn config_maps(pod: &Pod) -> Names {
    let mut names = Names::new();
    let Some(spec) = &pod.spec else { return names };
    for (env, from) in environments(spec) {
        for source in from {
            add(&mut names, source.config_map_ref.as_ref().map(|r| r.name.as_str()), false);
        }
        for key in env.iter().filter_map(|e| e.value_from.as_ref()?.config_map_key_ref.as_ref()) {
            add(&mut names, Some(&key.name), false);
        }
    }
    for volume in spec.volumes.iter().flatten() {
        add(&mut names, volume.config_map.as_ref().map(|c| c.name.as_str()), true);
        for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            add(&mut names, source.config_map.as_ref().map(|c| c.name.as_str()), true);
        }
    }
    names
}

/// Secrets.
pub fn secrets(pod: &Pod) -> Names {
    let mut names = Names::new();
    let Some(spec) = &pod.spec else { return names };
    for pull in spec.image_pull_secrets.iter().flatten() {
        add(&mut names, Some(&pull.name), false);
    }
    for (env, from) in environments(spec) {
        for source in from {
            add(&mut names, source.secret_ref.as_ref().map(|r| r.name.as_str()), false);
        }
        for key in env.iter().filter_map(|e| e.value_from.as_ref()?.secret_key_ref.as_ref()) {
            add(&mut names, Some(&key.name), false);
        }
    }
    for volume in spec.volumes.iter().flatten() {
        add(&mut names, volume.secret.as_ref().and_then(|s| s.secret_name.as_deref()), true);
        for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            add(&mut names, source.secret.as_ref().map(|s| s.name.as_str()), true);
        }
        for name in mount_credentials(volume) {
            add(&mut names, name, false);
        }
    }
    names
}

/// PersistentVolumeClaims, those of generic ephemeral volumes among them.
pub fn claims(pod: &Pod) -> BTreeSet<String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| resolve::claim_name(pod, volume)).collect()
}

/// Secrets that are read once, to mount.
fn mount_credentials(v: &Volume) -> [Option<&str>; 9] {
    [
        v.azure_file.as_ref().map(|a| a.secret_name.as_str()),
        v.cephfs.as_ref().and_then(|s| s.secret_ref.as_ref()).map(|r| r.name.as_str()),
        v.cinder.as_ref().and_then(|s| s.secret_ref.as_ref()).map(|r| r.name.as_str()),
        v.flex_volume.as_ref().and_then(|s| s.secret_ref.as_ref()).map(|r| r.name.as_str()),
        v.rbd.as_ref().and_then(|s| s.secret_ref.as_ref()).map(|r| r.name.as_str()),
        v.scale_io.as_ref().map(|s| s.secret_ref.name.as_str()),
        v.iscsi.as_ref().and_then(|s| s.secret_ref.as_ref()).map(|r| r.name.as_str()),
        v.storageos.as_ref().and_then(|s| s.secret_ref.as_ref()).map(|r| r.name.as_str()),
        v.csi.as_ref().and_then(|s| s.node_publish_secret_ref.as_ref()).map(|r| r.name.as_str()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_place() {
        let env = |kind: &str, list: &str| {
            json!({"name": "c", "image": "i", "envFrom": [{format!("{list}Ref"): {"name": format!("{kind}-from")}}],
                "env": [{"name": "E", "value": "v"}, {"name": "F", "valueFrom": {format!("{list}KeyRef"): {"name": format!("{kind}-key"), "key": "k"}}}]})
        };
        let pod: Pod = serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
            "imagePullSecrets": [{"name": "pull"}, {"name": ""}],
            "initContainers": [env("init", "secret"), env("init", "configMap")],
            "containers": [env("main", "secret"), env("main", "configMap")],
            "ephemeralContainers": [env("later", "secret"), env("later", "configMap")],
            "volumes": [
                {"name": "a", "secret": {"secretName": "volume"}},
                {"name": "b", "configMap": {"name": "volume"}},
                {"name": "c", "projected": {"sources": [{"secret": {"name": "projected"}}, {"configMap": {"name": "main-key"}}]}},
                {"name": "d", "csi": {"driver": "x", "nodePublishSecretRef": {"name": "csi"}}},
                {"name": "e", "azureFile": {"secretName": "azure", "shareName": "s"}},
                {"name": "f", "iscsi": {"targetPortal": "p", "iqn": "q", "lun": 0, "secretRef": {"name": "iscsi"}}},
                {"name": "g", "emptyDir": {}}
            ]}}))
        .unwrap();
        let shown = |names: Names| {
            let text = |(name, follows): (String, bool)| if follows { format!("{name}!") } else { name };
            names.into_iter().map(text).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            shown(secrets(&pod)),
            "azure csi init-from init-key iscsi later-from later-key main-from main-key projected! pull volume!"
        );
        assert_eq!(shown(config_maps(&pod)), "init-from init-key later-from later-key main-from main-key! volume!");
        assert!(secrets(&Pod::default()).is_empty());
    }
}
