//! `kubelet_internal_checkpoint`: which devices containers have, and which there are (upstream `devicemanager/checkpoint`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::go::{CheckpointError, checksum, json, optional_map, parse, slice};

/// The file's name in the folder of device plugins.
pub const FILE: &str = "kubelet_internal_checkpoint";

/// What a container has of one resource.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PodDevices {
    #[serde(rename = "PodUID")]
    pub uid: String,
    pub container_name: String,
    pub resource_name: String,
    /// By NUMA node; -1: the plugin tells of none.
    #[serde(rename = "DeviceIDs", with = "by_node")]
    pub device_ids: Option<BTreeMap<i64, Vec<String>>>,
    /// The plugin's answer to Allocate as it stood on the wire, in base64.
    pub alloc_resp: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Devices {
    pub pod_device_entries: Option<Vec<PodDevices>>,
    /// Resource to its devices that are healthy.
    pub registered_devices: Option<BTreeMap<String, Vec<String>>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    #[serde(default)]
    data: Devices,
    #[serde(default)]
    checksum: u64,
}

/// Go writes a map's keys in the order of their texts.
mod by_node {
    use std::collections::BTreeMap;

    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    type Ids = Option<BTreeMap<i64, Vec<String>>>;

    pub(super) fn serialize<S: Serializer>(ids: &Ids, to: S) -> Result<S::Ok, S::Error> {
        let texts = |ids: &BTreeMap<i64, Vec<String>>| -> BTreeMap<String, Vec<String>> {
            ids.iter().map(|(node, ids)| (node.to_string(), ids.clone())).collect()
        };
        ids.as_ref().map(texts).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Ids, D::Error> {
        let Some(texts) = Option::<BTreeMap<String, Vec<String>>>::deserialize(from)? else { return Ok(None) };
        let number = |node: String| node.parse().map_err(|_| D::Error::custom(format!("{node:?} is no NUMA node")));
        texts.into_iter().map(|(node, ids)| Ok((number(node)?, ids))).collect::<Result<_, _>>().map(Some)
    }
}

/// Bytes as Go writes them in base64, with padding.
pub fn to_base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for at in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= group.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

/// Bytes of a text in base64 (with padding, as Go writes it); None: it is none.
pub fn from_base64(text: &str) -> Option<Vec<u8>> {
    let value = |letter: u8| -> Option<u32> {
        let at =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".iter().position(|l| *l == letter)?;
        u32::try_from(at).ok()
    };
    let letters = text.trim_end_matches('=').as_bytes();
    if !text.len().is_multiple_of(4) || text.len() - letters.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in letters.chunks(4) {
        let bits = group.iter().try_fold(0_u32, |bits, letter| Some(bits << 6 | value(*letter)?))?;
        let bits = bits << (6 * (4 - group.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}

fn sum(data: &Devices) -> Result<u64, CheckpointError> {
    let texts = |ids: &Vec<String>| slice(ids, Clone::clone);
    let mut entries = Vec::new();
    for entry in data.pod_device_entries.iter().flatten() {
        let response = match &entry.alloc_resp {
            None => "<nil>".to_owned(),
            Some(text) => {
                let bytes = from_base64(text).ok_or_else(|| CheckpointError::Json("illegal base64 data".to_owned()))?;
                slice(&bytes, u8::to_string)
            }
        };
        let ids = optional_map(entry.device_ids.as_ref(), texts);
        let PodDevices { uid, container_name, resource_name, .. } = entry;
        entries.push(format!(
            "{{PodUID:(string){uid} ContainerName:(string){container_name} ResourceName:(string){resource_name} DeviceIDs:(checkpoint.DevicesPerNUMA){ids} AllocResp:([]uint8){response}}}"
        ));
    }
    let entries = match data.pod_device_entries {
        Some(_) => format!("[{}]", entries.join(" ")),
        None => "<nil>".to_owned(),
    };
    let registered = optional_map(data.registered_devices.as_ref(), texts);
    Ok(checksum(&format!(
        "(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries} RegisteredDevices:(map[string][]string){registered}}}"
    )))
}

/// The file of these devices.
///
/// # Errors
/// An answer of a plugin is no base64.
pub fn write(devices: &Devices) -> Result<Vec<u8>, CheckpointError> {
    json(&File { data: devices.clone(), checksum: sum(devices)? })
}

/// What a file holds.
///
/// # Errors
/// It is cut off or damaged.
pub fn read(bytes: &[u8]) -> Result<Devices, CheckpointError> {
    let file: File = parse(bytes)?;
    if file.checksum == sum(&file.data)? { Ok(file.data) } else { Err(CheckpointError::Corrupted) }
}
