//! `vol_data.json`: what upstream's kubelet keeps of a volume beside it, byte for byte as Go's encoder writes it
//! (`pkg/volume/csi/csi_util.go`). It is written as a whole or not at all, and is on the disk when it is there.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use bulkhead_ipc::volnetd as wire;
use bulkhead_sys::open::{self, OpenError};
use bulkhead_types::NodeName;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::paths::{Device, Driver, Handle, Published, Staged};
use crate::journal;
use crate::validate::{InvalidRequest, bad};

pub const NAME: &str = "vol_data.json";
/// Left by a write that was cut off.
const TEMPORARY: &str = ".vol_data.json.tmp";

/// A handle of 4096 bytes, each escaped, is far below.
const MAX_BYTES: u64 = 1 << 20;
const MAX_CONTEXT: usize = 4096;

const SPEC: &str = "specVolID";
const HANDLE: &str = "volumeHandle";
const DRIVER: &str = "driverName";
const NODE: &str = "nodeName";
const ATTACHMENT: &str = "attachmentID";
const LIFECYCLE: &str = "volumeLifecycleMode";
const SELINUX: &str = "seLinuxMountContext";

/// A flat map of strings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolData(BTreeMap<String, String>);

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("it cannot be opened")]
    Open(#[source] OpenError),
    #[error("it cannot be read")]
    Read(#[source] io::Error),
    #[error("it is no JSON object of strings")]
    Syntax(#[source] serde_json::Error),
}

impl VolData {
    /// Of what is staged.
    ///
    /// # Errors
    /// A value that cannot be meant.
    pub fn staged(staged: &Staged, request: &wire::PrepareStageRequest) -> Result<Self, InvalidRequest> {
        let mut data = Self::of(&staged.device);
        if let Some(spec) = &staged.block {
            data.put(SPEC, spec.as_str());
            data.put(NODE, node(&request.node_name)?);
            data.put(ATTACHMENT, attachment(&request.attachment_id)?);
        }
        data.put_context(&request.selinux_mount_context)?;
        Ok(data)
    }

    /// Of what is published to a pod.
    ///
    /// # Errors
    /// A value that cannot be meant.
    pub fn published(published: &Published, wire: &wire::CsiVolumeData) -> Result<Self, InvalidRequest> {
        let device = published.device.as_ref().ok_or(InvalidRequest::Missing { field: "device" })?;
        let mut data = Self::of(device);
        data.put(SPEC, published.spec.as_str());
        data.put(NODE, node(&wire.node_name)?);
        data.put(ATTACHMENT, attachment(&wire.attachment_id)?);
        if !published.block {
            match wire.lifecycle_mode.as_str() {
                mode @ ("Persistent" | "Ephemeral") => data.put(LIFECYCLE, mode),
                other => return Err(bad("lifecycle_mode", other, "Persistent or Ephemeral")),
            }
        }
        data.put_context(&wire.selinux_mount_context)?;
        Ok(data)
    }

    fn of(device: &Device) -> Self {
        let mut data = VolData(BTreeMap::new());
        data.put(DRIVER, device.driver.as_str());
        data.put(HANDLE, device.handle.as_str());
        data
    }

    fn put(&mut self, key: &str, value: &str) {
        self.0.insert(key.to_owned(), value.to_owned());
    }

    fn put_context(&mut self, context: &str) -> Result<(), InvalidRequest> {
        if context.len() > MAX_CONTEXT || context.contains('\0') {
            return Err(bad("selinux_mount_context", context, "at most 4096 bytes without NUL"));
        }
        if !context.is_empty() {
            self.put(SELINUX, context);
        }
        Ok(())
    }

    fn get(&self, key: &str) -> String {
        self.0.get(key).cloned().unwrap_or_default()
    }

    /// Whose it is; None where driver or handle are none.
    pub fn device(&self) -> Option<Device> {
        let device =
            Device { driver: Driver::parse(&self.get(DRIVER)).ok()?, handle: Handle::parse(&self.get(HANDLE)).ok()? };
        Some(device)
    }

    /// The volume's name; files of volumes with a file system that are staged have none.
    pub fn spec(&self) -> Option<&str> {
        self.0.get(SPEC).map(String::as_str)
    }

    /// For an answer; `spec` is the folder's name.
    pub fn to_wire(&self, block: bool, spec: &str) -> wire::CsiVolumeData {
        wire::CsiVolumeData {
            device: Some(wire::CsiDevice {
                driver: self.get(DRIVER),
                volume_handle: self.get(HANDLE),
                block,
                spec_name: spec.to_owned(),
            }),
            node_name: self.get(NODE),
            attachment_id: self.get(ATTACHMENT),
            lifecycle_mode: self.get(LIFECYCLE),
            selinux_mount_context: self.get(SELINUX),
        }
    }

    pub fn selinux_mount_context(&self) -> String {
        self.get(SELINUX)
    }

    /// As Go's `json.NewEncoder(file).Encode(map)` writes it: keys sorted, HTML's characters escaped, a newline at the end.
    pub fn encode(&self) -> String {
        let fields = self.0.iter().map(|(key, value)| format!("{}:{}", quoted(key), quoted(value)));
        format!("{{{}}}\n", fields.collect::<Vec<_>>().join(","))
    }

    /// What the file in an open folder says; None: it is not there. Upstream's decoder takes the first value and does not look at
    /// what follows.
    ///
    /// # Errors
    /// It cannot be read, or is no such map.
    pub fn read(folder: BorrowedFd<'_>) -> Result<Option<Self>, DataError> {
        let Some(text) = read(folder)? else { return Ok(None) };
        let mut values = serde_json::Deserializer::from_slice(&text).into_iter::<BTreeMap<String, String>>();
        match values.next() {
            Some(Ok(map)) => Ok(Some(VolData(map))),
            Some(Err(error)) => Err(DataError::Syntax(error)),
            None => Err(DataError::Syntax(serde::de::Error::custom("it is empty"))),
        }
    }

    /// Whether the file is there, to the byte.
    pub fn is_written(&self, folder: BorrowedFd<'_>) -> bool {
        matches!(read(folder), Ok(Some(text)) if text == self.encode().as_bytes())
    }

    /// Writes the file, unless it is there to the byte; on return it is on the disk.
    ///
    /// # Errors
    /// Then what was there is there still.
    pub fn write(&self, folder: BorrowedFd<'_>) -> io::Result<()> {
        if self.is_written(folder) {
            return Ok(());
        }
        let written = journal::replace(folder, Path::new(NAME), self.encode().as_bytes(), 0o644);
        if written.is_err() {
            let _ = rustix::fs::unlinkat(folder, TEMPORARY, AtFlags::empty());
        }
        written
    }
}

fn read(folder: BorrowedFd<'_>) -> Result<Option<Vec<u8>>, DataError> {
    let file = match open::regular_beneath(folder, NAME) {
        Ok(file) => std::fs::File::from(file),
        Err(error) if error.errno() == Some(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(DataError::Open(error)),
    };
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text).map_err(DataError::Read)?;
    Ok(Some(text))
}

/// Removes the file and what a write that was cut off has left; not being there is success.
///
/// # Errors
/// The kernel refuses (a file that is immutable).
pub fn remove(folder: BorrowedFd<'_>) -> io::Result<()> {
    for name in [TEMPORARY, NAME] {
        match rustix::fs::unlinkat(folder.as_fd(), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Removes what a write that was cut off has left, of a volume that was never published; not being there is success.
///
/// # Errors
/// The kernel refuses.
pub fn remove_cut_off(folder: BorrowedFd<'_>) -> io::Result<()> {
    match rustix::fs::unlinkat(folder, TEMPORARY, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn node(text: &str) -> Result<&str, InvalidRequest> {
    NodeName::parse(text)?;
    Ok(text)
}

/// "csi-" and the SHA-256 of handle, driver and node.
fn attachment(text: &str) -> Result<&str, InvalidRequest> {
    let digits = text.strip_prefix("csi-").unwrap_or_default();
    let ok = digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if ok { Ok(text) } else { Err(bad("attachment_id", text, "csi- and 64 hexadecimal digits")) }
}

/// A string as Go writes it in JSON.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0'..='\u{1f}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::super::paths::hash;
    use super::*;
    use proptest::prelude::*;

    const HANDLE_TEXT: &str = "8afb6922-e688-11f1-8eba-5646475931de";

    fn device(block: bool) -> wire::CsiDevice {
        wire::CsiDevice {
            driver: "hostpath.csi.k8s.io".into(),
            volume_handle: HANDLE_TEXT.into(),
            block,
            spec_name: "pvc-046cb1a8-6484-4e38-ba66-ee3422a450b7".into(),
        }
    }

    /// As recorded of upstream's kubelet.
    #[test]
    fn files_are_upstreams() {
        let attachment_id = "csi-b53cae4bc960d1575e694f11172ac3a966cd1d31fd2c02011e7ad8fda208f2e9";
        assert_eq!(attachment_id, format!("csi-{}", hash(&format!("{HANDLE_TEXT}hostpath.csi.k8s.ionode-a"))));
        let request = wire::PrepareStageRequest {
            device: Some(device(true)),
            node_name: "node-a".into(),
            attachment_id: attachment_id.into(),
            ..Default::default()
        };
        let staged = Staged::from_wire(request.device.as_ref()).unwrap();
        assert_eq!(
            VolData::staged(&staged, &request).unwrap().encode(),
            "{\"attachmentID\":\"csi-b53cae4bc960d1575e694f11172ac3a966cd1d31fd2c02011e7ad8fda208f2e9\",\
             \"driverName\":\"hostpath.csi.k8s.io\",\"nodeName\":\"node-a\",\
             \"specVolID\":\"pvc-046cb1a8-6484-4e38-ba66-ee3422a450b7\",\
             \"volumeHandle\":\"8afb6922-e688-11f1-8eba-5646475931de\"}\n"
        );
        let request = wire::PrepareStageRequest { device: Some(device(false)), ..Default::default() };
        let staged = Staged::from_wire(request.device.as_ref()).unwrap();
        assert_eq!(
            VolData::staged(&staged, &request).unwrap().encode(),
            "{\"driverName\":\"hostpath.csi.k8s.io\",\"volumeHandle\":\"8afb6922-e688-11f1-8eba-5646475931de\"}\n"
        );
        let mut data = wire::CsiVolumeData {
            device: Some(device(false)),
            node_name: "node-a".into(),
            attachment_id: attachment_id.into(),
            lifecycle_mode: "Persistent".into(),
            selinux_mount_context: String::new(),
        };
        let published = Published::from_wire("u", data.device.as_ref(), false).unwrap();
        let text = VolData::published(&published, &data).unwrap().encode();
        assert!(text.ends_with(",\"volumeLifecycleMode\":\"Persistent\"}\n"), "{text}");
        for bad in ["", "persistent", "Persistent\n"] {
            data.lifecycle_mode = bad.into();
            assert!(VolData::published(&published, &data).is_err(), "{bad:?}");
        }
        data.lifecycle_mode = "Ephemeral".into();
        for bad in ["", "csi-", "csi-x", &"c".repeat(68)] {
            data.attachment_id = bad.into();
            assert!(VolData::published(&published, &data).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn strings_are_escaped_as_go_escapes_them() {
        assert_eq!(
            quoted("a\"\\\n\r\t\u{8}\u{c}\u{1}<>&\u{2028}\u{7f}ä/"),
            "\"a\\\"\\\\\\n\\r\\t\\b\\f\\u0001\\u003c\\u003e\\u0026\\u2028\u{7f}ä/\""
        );
    }

    #[test]
    fn what_cannot_be_read_is_told_and_what_follows_is_not_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let folder = open::base_dir(dir.path()).unwrap();
        let path = dir.path().join(NAME);
        assert!(VolData::read(folder.as_fd()).unwrap().is_none());
        for bad in ["", "{", "[]", "{\"a\":1}", "\0\0"] {
            std::fs::write(&path, bad).unwrap();
            assert!(VolData::read(folder.as_fd()).is_err(), "{bad:?}");
        }
        std::fs::write(&path, "{\"driverName\":\"d\",\"volumeHandle\":\"h\",\"newer\":\"x\"}\n{").unwrap();
        let data = VolData::read(folder.as_fd()).unwrap().unwrap();
        assert_eq!(data.device().unwrap().handle.as_str(), "h");
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(VolData::read(folder.as_fd()).is_err());
        // A write replaces the name, not what a link leads to.
        data.write(folder.as_fd()).unwrap();
        assert!(data.is_written(folder.as_fd()));
        assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
        remove(folder.as_fd()).unwrap();
        remove(folder.as_fd()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(map in proptest::collection::btree_map(".{0,10}", ".{0,20}", 0..5)) {
            let data = VolData(map);
            let read: BTreeMap<String, String> = serde_json::from_str(&data.encode()).unwrap();
            prop_assert_eq!(&read, &data.0);
            prop_assert!(data.encode().bytes().all(|b| b >= 0x20 || b == b'\n'));
        }
    }
}
