//! Names that upstream computes (`pkg/volume/csi/csi_attacher.go`, `csi_mounter.go`, `pkg/volume/util/util.go`).

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// SHA-256 of the parts one after the other, in hexadecimal digits.
pub fn hex_digest(parts: &[&str]) -> String {
    let mut digest = Sha256::new();
    parts.iter().for_each(|part| digest.update(part.as_bytes()));
    digest.finalize().iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The VolumeAttachment of a volume on a node.
pub fn attachment(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", hex_digest(&[handle, driver, node]))
}

/// The handle of an inline volume.
pub fn ephemeral_handle(pod_uid: &str, volume: &str) -> String {
    format!("csi-{}", hex_digest(&[pod_uid, volume]))
}

/// The folder in which a volume with a file system is staged, below its driver's.
pub fn folder(handle: &str) -> String {
    hex_digest(&[handle])
}

/// As `Node.status.volumesInUse` and `volumesAttached` name it.
pub fn unique(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a recording of upstream's.
    #[test]
    fn as_upstream() {
        assert_eq!(
            attachment("8afac6de-e688-11f1-8eba-5646475931de", "hostpath.csi.k8s.io", "node-a"),
            "csi-a377fb66bb00bc27ce7ca89bfe5fde033a1fe78e1785433ce149641a07b71be6"
        );
        assert_eq!(
            ephemeral_handle("4bb0ec72-4ebc-4585-a543-8b341daf7e02", "inline"),
            "csi-ae7c522a47bf8e3435073d82c44946bab38968dcceffa370ef6c02c14006c159"
        );
        assert_eq!(unique("d", "v/1"), "kubernetes.io/csi/d^v/1");
    }
}
