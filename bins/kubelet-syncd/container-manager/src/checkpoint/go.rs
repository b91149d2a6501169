//! How Go prints structures for their checksum, and how it writes JSON.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use bulkhead_types::hash::fnv1a_32;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why a file is not believed; upstream's words where it has some.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    #[error("unexpected end of JSON input")]
    CutOff,
    #[error("{0}")]
    Json(String),
    /// The checksum is not that of the content.
    #[error("checkpoint is corrupted")]
    Corrupted,
    #[error("configured policy {configured:?} differs from state checkpoint policy {found:?}")]
    CpuPolicy { configured: String, found: String },
    #[error("[memorymanager] configured policy {configured:?} differs from state checkpoint policy {found:?}")]
    MemoryPolicy { configured: String, found: String },
    #[error("could not parse default cpu set {cpus:?}: {why}")]
    DefaultCpus { cpus: String, why: String },
    #[error("could not parse cpuset {cpus:?} for container {container:?} in pod {pod:?}: {why}")]
    Cpus { cpus: String, container: String, pod: String, why: String },
    #[error("failed to migrate checkpoint from v1 to v2: containerID '{0}' not found in initial containers list")]
    UnknownContainer(String),
}

impl From<serde_json::Error> for CheckpointError {
    fn from(error: serde_json::Error) -> Self {
        if error.is_eof() { CheckpointError::CutOff } else { CheckpointError::Json(error.to_string()) }
    }
}

pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CheckpointError> {
    Ok(serde_json::from_slice(bytes)?)
}

/// JSON as Go writes it: the same but for three letters that must not stand in HTML.
///
/// # Errors
/// None that these structures can cause: their keys are texts.
pub(super) fn json(value: &impl Serialize) -> Result<Vec<u8>, CheckpointError> {
    let text = serde_json::to_string(value)?;
    let escaped = text.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e");
    Ok(escaped.replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029").into_bytes())
}

pub(super) fn checksum(dump: &str) -> u64 {
    u64::from(fnv1a_32(dump.as_bytes()))
}

/// `map[KEY:VALUE KEY:VALUE]`.
pub(super) fn map<K: Display, V>(of: &BTreeMap<K, V>, value: impl Fn(&V) -> String) -> String {
    let mut text = String::from("map[");
    for (at, (key, item)) in of.iter().enumerate() {
        let space = if at > 0 { " " } else { "" };
        // Writing to a text cannot fail.
        let _ = write!(text, "{space}{key}:{}", value(item));
    }
    text.push(']');
    text
}

/// The same of a map that may be `null` in a file.
pub(super) fn optional_map<K: Display, V>(of: Option<&BTreeMap<K, V>>, value: impl Fn(&V) -> String) -> String {
    of.map_or_else(|| "<nil>".to_owned(), |of| map(of, value))
}

/// `[ITEM ITEM]`.
pub(super) fn slice<T>(of: &[T], item: impl Fn(&T) -> String) -> String {
    format!("[{}]", of.iter().map(item).collect::<Vec<_>>().join(" "))
}
