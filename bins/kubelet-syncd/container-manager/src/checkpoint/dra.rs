//! `dra_manager_state`: which claims are prepared (upstream `cm/dra/state/checkpoint.go`). A text of JSON in JSON; the checksum is
//! CRC-32 (IEEE) of that text.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::go::{CheckpointError, json, parse};

/// The file's name in the root directory.
pub const FILE: &str = "dra_manager_state";

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    #[serde(default)]
    data: String,
    #[serde(default)]
    checksum: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct Data {
    kind: String,
    #[serde(rename = "apiVersion")]
    api_version: String,
    #[serde(rename = "ClaimInfoStateList", default)]
    claims: Option<Vec<Value>>,
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

/// The file of these claims; each is a JSON object with fields in the order of upstream's structure.
///
/// # Errors
/// None that a claim can cause.
pub fn write(claims: &[Value]) -> Result<Vec<u8>, CheckpointError> {
    let data = json(&Data {
        kind: "DRACheckpoint".to_owned(),
        api_version: "checkpoint.dra.kubelet.k8s.io/v1".to_owned(),
        claims: Some(claims.to_vec()),
    })?;
    let checksum = crc32(&data);
    json(&File { data: String::from_utf8_lossy(&data).into_owned(), checksum })
}

/// The claims of a file.
///
/// # Errors
/// It is cut off or damaged.
pub fn read(bytes: &[u8]) -> Result<Vec<Value>, CheckpointError> {
    let file: File = parse(bytes)?;
    if crc32(file.data.as_bytes()) != file.checksum {
        return Err(CheckpointError::Corrupted);
    }
    let data: Data = parse(file.data.as_bytes())?;
    Ok(data.claims.unwrap_or_default())
}
