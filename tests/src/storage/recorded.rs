//! What is another name in each run, as the recording names it; and what stands in the recording.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::image::hex;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Text of this run and what the recording has instead, in the order in which they are replaced: the longer ones first.
#[derive(Debug, Clone)]
pub struct Names(Vec<(String, &'static str)>);

/// The names that say which volume is which.
#[derive(Debug)]
pub struct Volumes<'a> {
    pub root: &'a Path,
    pub pod_uid: &'a str,
    /// The PersistentVolumes of the claims `data` and `raw`.
    pub data: &'a Value,
    pub raw: &'a Value,
}

/// The name of the VolumeAttachment of a volume.
pub fn attachment(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", sha256(&[handle, driver, node].concat()))
}

/// The handle of a pod's inline volume.
pub fn inline_handle(pod_uid: &str, volume: &str) -> String {
    format!("csi-{}", sha256(&[pod_uid, volume].concat()))
}

/// In hexadecimal.
pub fn sha256(text: &str) -> String {
    hex(&Sha256::digest(text))
}

impl Names {
    /// # Errors
    /// A volume has no handle.
    pub fn of(volumes: &Volumes<'_>, driver: &str, node: &str) -> Result<Self> {
        let text = |value: &Value, what: &str| value.as_str().map(str::to_owned).with_context(|| format!("no {what}"));
        let handle = |volume: &Value| text(&volume["spec"]["csi"]["volumeHandle"], "handle");
        let (data, raw) = (handle(volumes.data)?, handle(volumes.raw)?);
        let inline = inline_handle(volumes.pod_uid, "inline");
        let provisioner = "storage.kubernetes.io/csiProvisionerIdentity";
        Ok(Self(vec![
            (attachment(&data, driver, node), "$DATA_ATTACHMENT"),
            (attachment(&raw, driver, node), "$RAW_ATTACHMENT"),
            (attachment(&inline, driver, node), "$INLINE_ATTACHMENT"),
            (sha256(&data), "$DATA_HASH"),
            (inline, "$INLINE_HANDLE"),
            (text(&volumes.data["metadata"]["name"], "name")?, "$DATA"),
            (text(&volumes.raw["metadata"]["name"], "name")?, "$RAW"),
            (data, "$DATA_HANDLE"),
            (raw, "$RAW_HANDLE"),
            (volumes.pod_uid.to_owned(), "$POD"),
            (text(&volumes.data["spec"]["csi"]["volumeAttributes"][provisioner], "provisioner")?, "$PROVISIONER"),
            (volumes.root.display().to_string(), "$ROOT"),
        ]))
    }

    /// One more.
    pub fn and(mut self, text: &str, name: &'static str) -> Self {
        self.0.push((text.to_owned(), name));
        self
    }

    pub fn apply(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (own, recorded)| text.replace(own.as_str(), recorded))
    }

    pub fn apply_to(&self, value: &Value) -> Value {
        serde_json::from_str(&self.apply(&value.to_string())).unwrap_or_default()
    }
}

/// The lines of a file of the recording.
///
/// # Errors
/// There is none of that name.
pub fn lines(file: &str) -> Result<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/csi").join(file);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// The same of a file of JSON lines.
///
/// # Errors
/// As [`lines`], or it is not JSON.
pub fn values(file: &str) -> Result<Vec<Value>> {
    lines(file)?.iter().map(|line| serde_json::from_str(line).with_context(|| line.clone())).collect()
}

/// Compares lines in any order; those that are there once too often or not often enough are named.
///
/// # Errors
/// What is different.
pub fn same_lines(what: &str, recorded: &[String], ours: &[String]) -> Result<()> {
    let without = |all: &[String], others: &[String]| {
        let mut left = others.to_vec();
        let mut missing = Vec::new();
        for line in all {
            match left.iter().position(|one| one == line) {
                Some(index) => drop(left.swap_remove(index)),
                None => missing.push(line.clone()),
            }
        }
        missing
    };
    let (missing, more) = (without(recorded, ours), without(ours, recorded));
    ensure!(
        missing.is_empty() && more.is_empty(),
        "{what} differ from the recording;\nrecorded and not here:\n  {}\nhere and not recorded:\n  {}",
        missing.join("\n  "),
        more.join("\n  ")
    );
    Ok(())
}
