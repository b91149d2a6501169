//! Upstream's checkpoint files: their form and their checksums, which upstream refuses to start without.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// FNV-1a of 32 bits.
fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Upstream's hash of a container: of the dump of the bytes of its name and image as JSON.
pub fn container_hash(name: &str, image: &str) -> String {
    let bytes: Vec<String> =
        json!({"image": image, "name": name}).to_string().bytes().map(|byte| byte.to_string()).collect();
    format!("{:x}", fnv1a(&format!("([]uint8)[{}]", bytes.join(" "))))
}

/// `cpu_manager_state` of the policy `none`.
pub fn cpu_manager() -> String {
    let dump = "(*state.CPUManagerCheckpoint){PolicyName:(string)none DefaultCPUSet:(string) \
                Entries:(map[string]map[string]string)map[] Checksum:(checksum.Checksum)0}";
    // In upstream's order, in which a node that takes the file over would write it.
    format!(r#"{{"policyName":"none","defaultCpuSet":"","checksum":{}}}"#, fnv1a(dump))
}

/// `memory_manager_state` of the policy `None`.
pub fn memory_manager() -> String {
    let dump = "(*state.MemoryManagerCheckpoint){PolicyName:(string)None MachineState:(state.NUMANodeMap)map[] \
                Entries:(state.ContainerMemoryAssignments)map[] Checksum:(checksum.Checksum)0}";
    format!(r#"{{"policyName":"None","machineState":{{}},"checksum":{}}}"#, fnv1a(dump))
}

/// `kubelet_internal_checkpoint` with no device.
pub fn devices() -> String {
    let dump = "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)<nil> \
                RegisteredDevices:(map[string][]string)map[]}";
    json!({"Data": {"PodDeviceEntries": null, "RegisteredDevices": {}}, "Checksum": fnv1a(dump)}).to_string()
}

/// `allocated_pods_state` and `actuated_pods_state`.
pub fn resources(entries: &Value) -> String {
    let data = json!({"entries": entries}).to_string();
    json!({"data": data, "checksum": fnv1a(&format!("(string){data}"))}).to_string()
}

/// Entries of such a file, as upstream takes them.
///
/// # Errors
/// Upstream would end at its start because of it.
pub fn read_resources(content: &str) -> Result<Value> {
    let file: Value = serde_json::from_str(content)?;
    let data = file["data"].as_str().context("no data")?;
    let told = file["checksum"].as_u64().context("no checksum")?;
    let computed = u64::from(fnv1a(&format!("(string){data}")));
    ensure!(told == computed, "checksum {told}, and of its data it is {computed}");
    let data: Value = serde_json::from_str(data)?;
    ensure!(data.is_object() && (data["entries"].is_null() || data["entries"].is_object()), "{data}");
    for (uid, entry) in data["entries"].as_object().into_iter().flatten() {
        let containers = &entry["ContainerResources"];
        ensure!(containers.is_object() || containers.is_null(), "{uid}: {entry}");
    }
    Ok(data["entries"].clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_checksums() {
        // From upstream's own tests and recordings.
        let known =
            r#"{"entries":{"pod1":{"ContainerResources":{"container1":{"requests":{"cpu":"1Ki","memory":"1Ki"}}}}}}"#;
        assert_eq!(fnv1a(&format!("(string){known}")), 1_178_570_812);
        let dump = "(*state.CPUManagerCheckpoint){PolicyName:(string)none DefaultCPUSet:(string)4-6 \
                    Entries:(map[string]map[string]string)map[] Checksum:(checksum.Checksum)0}";
        assert_eq!(fnv1a(dump), 354_655_845);
        assert_eq!(container_hash("main", "registry.k8s.io/e2e-test-images/busybox:1.37.0-1"), "a785d335");
        assert!(read_resources(&resources(&json!({"u": {"ContainerResources": {"c": {}}}}))).is_ok());
        assert!(read_resources(r#"{"data":"{}","checksum":1}"#).is_err());
    }
}
