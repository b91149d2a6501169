//! What the server makes of pods: defaults, admission, what an update may change, what a status may say.

pub mod admission;
pub mod defaults;
pub mod qos;
pub mod references;
pub mod resize;
pub mod status;
pub mod update;

use serde_json::Value;

/// The annotation that marks a mirror pod.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

pub fn is_mirror(pod: &Value) -> bool {
    pod["metadata"]["annotations"].get(MIRROR).is_some()
}

/// Init and regular containers (with `ephemeral`, those too).
pub fn containers(pod: &Value, ephemeral: bool) -> impl Iterator<Item = &Value> {
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    lists
        .into_iter()
        .take(if ephemeral { 3 } else { 2 })
        .flat_map(|list| pod["spec"][list].as_array().map(Vec::as_slice).unwrap_or_default())
}

/// Calls `change` for every init and regular container.
pub fn each_container(pod: &mut Value, mut change: impl FnMut(&mut Value)) {
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        if let Some(containers) = pod["spec"].get_mut(list).and_then(Value::as_array_mut) {
            containers.iter_mut().for_each(&mut change);
        }
    }
}
