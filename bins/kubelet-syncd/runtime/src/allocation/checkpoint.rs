//! Upstream's checkpoint files `allocated_pods_state` and `actuated_pods_state`: `{"data": "<JSON>", "checksum": n}`,
//! the checksum being FNV-1a (32 bits) of the Go dump of the data, which for a string is `(string)` and the string
//! (upstream `pkg/kubelet/allocation/state/checkpoint.go`, `pkg/kubelet/checkpointmanager/checksum`).

use std::collections::BTreeMap;

use bulkhead_types::hash::fnv1a_32;
use serde::{Deserialize, Serialize};

use super::record::PodResources;

/// Pod uid to what the pod has.
pub type Entries = BTreeMap<String, PodResources>;

#[derive(Debug, Serialize, Deserialize)]
struct Checkpoint {
    data: String,
    checksum: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Data {
    #[serde(default)]
    entries: Option<Entries>,
}

/// Why a file is no checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("it is not JSON of a checkpoint")]
    Json(#[from] serde_json::Error),
    #[error("its checksum is {told}, and of its data it would be {computed}")]
    Checksum { told: u64, computed: u64 },
}

fn checksum(data: &str) -> u64 {
    u64::from(fnv1a_32(format!("(string){data}").as_bytes()))
}

/// The file's content and its checksum.
///
/// # Errors
/// The entries cannot be written as JSON, which no entry that was read can cause.
pub fn write(entries: Entries) -> Result<(Vec<u8>, u64), CheckpointError> {
    let data = serde_json::to_string(&Data { entries: Some(entries).filter(|e| !e.is_empty()) })?;
    // Upstream leaves an empty list out.
    let data = if data == "{\"entries\":null}" { "{}".to_owned() } else { data };
    let checksum = checksum(&data);
    Ok((serde_json::to_vec(&Checkpoint { data, checksum })?, checksum))
}

/// Entries and checksum of a file.
///
/// # Errors
/// It is damaged.
pub fn read(bytes: &[u8]) -> Result<(Entries, u64), CheckpointError> {
    let Checkpoint { data, checksum: told } = serde_json::from_slice(bytes)?;
    let computed = checksum(&data);
    if told != computed {
        return Err(CheckpointError::Checksum { told, computed });
    }
    let data: Data = serde_json::from_str(&data)?;
    Ok((data.entries.unwrap_or_default(), told))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_upstreams_is_read() {
        let known =
            r#"{"entries":{"pod1":{"ContainerResources":{"container1":{"requests":{"cpu":"1Ki","memory":"1Ki"}}}}}}"#;
        assert_eq!(checksum(known), 1_178_570_812);
        // As Go writes it: fields in the order of the struct, null for what is nil.
        let data = r#"{"entries":{"u1":{"ContainerResources":{"c":{"limits":{"cpu":"1"},"requests":{"cpu":"500m"}}},"PodLevelResources":null},"u2":{"ContainerResources":null,"PodLevelResources":{"limits":{"memory":"1Gi"}}}}}"#;
        let file = serde_json::json!({"data": data, "checksum": checksum(data)}).to_string();
        let (entries, _) = read(file.as_bytes()).unwrap();
        assert_eq!(entries["u1"].containers["c"].limits.as_ref().unwrap()["cpu"].0, "1");
        assert!(entries["u1"].pod.is_none() && entries["u2"].containers.is_empty());
        assert_eq!(entries["u2"].pod.as_ref().unwrap().limits.as_ref().unwrap()["memory"].0, "1Gi");
    }

    #[test]
    fn what_is_written_is_read_and_damage_is_noticed() {
        let mut entries = Entries::new();
        assert_eq!(
            write(entries.clone()).unwrap().0,
            format!("{{\"data\":\"{{}}\",\"checksum\":{}}}", checksum("{}")).as_bytes()
        );
        entries.insert("u".into(), PodResources::default());
        let (bytes, sum) = write(entries.clone()).unwrap();
        assert_eq!(read(&bytes).unwrap(), (entries, sum));
        let damaged = String::from_utf8(bytes).unwrap().replace("null", "{}");
        assert!(matches!(read(damaged.as_bytes()), Err(CheckpointError::Checksum { .. })));
        assert!(matches!(read(b"{"), Err(CheckpointError::Json(_))));
    }
}
