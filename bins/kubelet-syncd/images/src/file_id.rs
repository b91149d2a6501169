//! Names of upstream's files of image pulls, `image_manager/{pulling,pulled}/sha256-<digest>` (upstream
//! `pkg/kubelet/images/pullmanager/fs_pullrecords.go`, cacheFilename).

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Folder {
    Pulling,
    Pulled,
}

/// Which file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId {
    pub folder: Folder,
    /// SHA-256, hexadecimal, of the image as the container names it, or of the runtime's id of it.
    pub digest: String,
}

impl FileId {
    pub fn pulling(image: &str) -> Self {
        FileId { folder: Folder::Pulling, digest: hex(&Sha256::digest(image)) }
    }

    pub fn pulled(id: &str) -> Self {
        FileId { folder: Folder::Pulled, digest: hex(&Sha256::digest(id)) }
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_upstreams() {
        // Of upstream's own test data (`pullmanager/testdata`).
        assert_eq!(
            FileId::pulled("testimageref").digest,
            "b3c0cc4278800b03a308ceb2611161430df571ca733122f0a40ac8b9792a9064"
        );
        assert_ne!(FileId::pulled("a"), FileId::pulling("a"));
    }
}
