//! `dra_manager_state`: which claims are prepared (upstream `cm/dra/state`). A text of JSON in JSON; the checksum is CRC-32 (IEEE) of
//! that text, and nothing else of it is checked: upstream takes `{}` for no claims.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::go::{CheckpointError, json, parse};

/// The file's name in the root directory.
pub const FILE: &str = "dra_manager_state";

/// A claim that is prepared, or is about to be (upstream `ClaimInfoState`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ClaimState {
    #[serde(rename = "ClaimUID")]
    pub claim_uid: String,
    pub claim_name: String,
    pub namespace: String,
    /// Uids of the pods that use it: a set, as Go writes one.
    #[serde(rename = "PodUIDs")]
    pub pod_uids: Option<BTreeMap<String, Member>>,
    /// By driver: each that has a part in the claim's allocation, also where it gives no device.
    pub driver_state: Option<BTreeMap<String, DriverState>>,
}

/// A member of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Member {}

/// What a driver has given.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DriverState {
    pub devices: Option<Vec<Device>>,
}

/// A device, as its driver has told it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Device {
    pub pool_name: String,
    pub device_name: String,
    /// Which share of it, where several claims have parts of one device.
    #[serde(rename = "ShareID")]
    pub share_id: Option<String>,
    /// The claim's requests that it is for; none: all of them.
    pub request_names: Option<Vec<String>>,
    #[serde(rename = "CDIDeviceIDs")]
    pub cdi_device_ids: Option<Vec<String>>,
}

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
    #[serde(default)]
    kind: String,
    #[serde(rename = "apiVersion", default)]
    api_version: String,
    #[serde(rename = "ClaimInfoStateList", default)]
    claims: Option<Vec<ClaimState>>,
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

/// The file of these claims.
///
/// # Errors
/// None that a claim can cause.
pub fn write(claims: &[ClaimState]) -> Result<Vec<u8>, CheckpointError> {
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
pub fn read(bytes: &[u8]) -> Result<Vec<ClaimState>, CheckpointError> {
    let file: File = parse(bytes)?;
    if crc32(file.data.as_bytes()) != file.checksum {
        return Err(CheckpointError::Corrupted);
    }
    let data: Data = parse(file.data.as_bytes())?;
    Ok(data.claims.unwrap_or_default())
}
