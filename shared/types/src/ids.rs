//! Ids. Parsing is the only way to make one.
//!
//! Each becomes a path component, a label value or both, so what parses is safe as a file name: no slash, no NUL, not
//! `.` or `..`, no leading dot where the API forbids it, bounded length. A copy shares the text: a pod's uid is a key in many tables.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a text is not an id of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {value:?} is not valid: {allowed}")]
pub struct IdError {
    pub kind: &'static str,
    /// Cut to 128 characters.
    pub value: String,
    pub allowed: &'static str,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $allowed:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the text. Errors say what is allowed.
            pub fn parse(text: &str) -> Result<Self, IdError> {
                let check: fn(&str) -> bool = $check;
                if check(text) {
                    Ok($name(text.into()))
                } else {
                    Err(IdError { kind: $kind, value: text.chars().take(128).collect(), allowed: $allowed })
                }
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::parse(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                Self::parse(&text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.as_str().to_owned()
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

id!(
    /// `metadata.uid`. Usually a UUID or 32 hex digits; a manifest may give another one.
    PodUid,
    "pod uid",
    "1 to 128 letters, digits, '-', '_' or '.', starting with a letter or digit",
    |t| bounded(t, 128) && starts_alphanumeric(t) && t.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
);
id!(
    /// `metadata.name` of a pod: a DNS subdomain.
    PodName,
    "pod name",
    "a DNS subdomain: lower-case letters, digits, '-' and '.', at most 253, each label starting and ending with a letter or digit",
    is_dns1123_subdomain
);
id!(
    /// A namespace: a DNS label.
    Namespace,
    "namespace",
    "a DNS label: lower-case letters, digits and '-', at most 63, starting and ending with a letter or digit",
    is_dns1123_label
);
id!(
    /// A container's name: a DNS label.
    ContainerName,
    "container name",
    "a DNS label: lower-case letters, digits and '-', at most 63, starting and ending with a letter or digit",
    is_dns1123_label
);
id!(
    /// A volume's name inside its pod: a DNS label. (A persistent volume's name, also used as folder, is a subdomain.)
    VolumeName,
    "volume name",
    "a DNS subdomain: lower-case letters, digits, '-' and '.', at most 253, each label starting and ending with a letter or digit",
    is_dns1123_subdomain
);
id!(
    /// The Node object's name.
    NodeName,
    "node name",
    "a DNS subdomain: lower-case letters, digits, '-' and '.', at most 253, each label starting and ending with a letter or digit",
    is_dns1123_subdomain
);
id!(
    /// A container's id as the runtime gave it, without `containerd://`.
    ContainerId,
    "container id",
    "1 to 128 letters, digits, '-', '_' or '.', starting with a letter or digit",
    |t| bounded(t, 128) && starts_alphanumeric(t) && t.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
);
id!(
    /// A pod sandbox's id as the runtime gave it.
    SandboxId,
    "sandbox id",
    "1 to 128 letters, digits, '-', '_' or '.', starting with a letter or digit",
    |t| bounded(t, 128) && starts_alphanumeric(t) && t.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
);

id!(
    /// A FlexVolume driver as volumes name it: `vendor/driver`, or `driver` alone. `kubernetes.io` is the kubelet's own plugins'
    /// vendor: a driver of that name would have its volumes in their folders.
    FlexDriver,
    "FlexVolume driver",
    "<vendor>/<driver> or <driver>: letters, digits, '-', '_' and '.', at most 63 and of a vendor 190, each starting with a letter or digit, and no vendor kubernetes.io",
    |t| {
        let word = |t: &str, max| {
            bounded(t, max)
                && starts_alphanumeric(t)
                && t.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        };
        match t.split_once('/') {
            Some((vendor, driver)) => vendor != "kubernetes.io" && word(vendor, 190) && word(driver, 63),
            None => word(t, 63),
        }
    }
);

impl FlexDriver {
    /// Below the root directory: a folder for each driver that mounts once a node (upstream getDeviceMountPath).
    pub const ONCE_A_NODE: &str = "plugins/kubernetes.io/flexvolume";
    /// In that folder: a folder for each volume.
    pub const MOUNTS: &str = "mounts";

    /// The name of its folder, and of its volumes' folder below a pod's (upstream EscapeQualifiedName).
    pub fn folder(&self) -> String {
        crate::escape_qualified_name(self.as_str())
    }

    /// The driver that a folder is named after.
    ///
    /// # Errors
    /// It is no driver's.
    pub fn of_folder(name: &str) -> Result<Self, IdError> {
        Self::parse(&name.replacen('~', "/", 1))
    }

    /// Where its volumes are mounted once a node, below the root directory.
    pub fn mounts(&self) -> PathBuf {
        Path::new(Self::ONCE_A_NODE).join(self.as_str()).join(Self::MOUNTS)
    }

    /// The name of its program, in its folder.
    pub fn program(&self) -> &str {
        self.as_str().rsplit('/').next().unwrap_or_default()
    }
}

fn bounded(text: &str, max: usize) -> bool {
    !text.is_empty() && text.len() <= max
}

fn starts_alphanumeric(text: &str) -> bool {
    text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
}

/// RFC 1123 label as Kubernetes checks it (`apimachinery/pkg/util/validation` IsDNS1123Label).
pub fn is_dns1123_label(text: &str) -> bool {
    let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    bounded(text, 63)
        && text.bytes().all(|b| lower(b) || b == b'-')
        && text.bytes().next().is_some_and(lower)
        && text.bytes().last().is_some_and(lower)
}

/// RFC 1123 subdomain as Kubernetes checks it (IsDNS1123Subdomain): at most 253 bytes, labels of any length.
pub fn is_dns1123_subdomain(text: &str) -> bool {
    let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    bounded(text, 253)
        && text.split('.').all(|label| {
            label.bytes().all(|b| lower(b) || b == b'-')
                && label.bytes().next().is_some_and(lower)
                && label.bytes().last().is_some_and(lower)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_are_never_ids() {
        for bad in ["", ".", "..", "../x", "a/b", "/", "a\0b", ".hidden", "-x", "a b", &"x".repeat(254)] {
            assert!(PodUid::parse(bad).is_err(), "{bad:?} as pod uid");
            assert!(ContainerName::parse(bad).is_err(), "{bad:?} as container name");
            assert!(VolumeName::parse(bad).is_err(), "{bad:?} as volume name");
        }
        assert!(PodUid::parse("9b6d61c0820b1343bf3743b2806ef0dd").is_ok());
        assert!(PodName::parse("web-node-a.example").is_ok());
        assert!(ContainerName::parse("a.b").is_err());
    }

    #[test]
    fn drivers_are_two_words_and_one_folder() {
        for (name, folder, program) in [
            ("k8s/nfs", "k8s~nfs", "nfs"),
            ("lvm", "lvm", "lvm"),
            ("ceph.rook.io/rook-1", "ceph.rook.io~rook-1", "rook-1"),
        ] {
            let driver = FlexDriver::parse(name).unwrap();
            assert_eq!((driver.folder().as_str(), driver.program()), (folder, program));
            let mounts = format!("plugins/kubernetes.io/flexvolume/{name}/mounts");
            assert_eq!(driver.mounts(), PathBuf::from(mounts));
            assert_eq!(FlexDriver::of_folder(folder).unwrap(), driver);
        }
        for bad in
            ["", "/", "a/", "/b", "a/b/c", "../b", "a/..", ".a/b", "a/.b", "a~b", "a b", "a/b\0", "kubernetes.io/nfs"]
        {
            assert!(FlexDriver::parse(bad).is_err(), "{bad:?}");
        }
        for bad in ["a~b~c", "~b", "kubernetes.io~nfs", "kubernetes.io~empty-dir", ".x"] {
            assert!(FlexDriver::of_folder(bad).is_err(), "{bad:?}");
        }
        assert!(FlexDriver::parse(&format!("{}/b", "a".repeat(191))).is_err());
    }

    proptest! {
        #[test]
        fn whatever_parses_is_one_path_component(text in ".{0,200}") {
            for ok in [PodUid::parse(&text).is_ok(), PodName::parse(&text).is_ok(), ContainerName::parse(&text).is_ok(),
                       VolumeName::parse(&text).is_ok(), ContainerId::parse(&text).is_ok()] {
                if ok {
                    prop_assert!(!text.contains('/') && !text.contains('\0') && text != "." && text != "..");
                    prop_assert!(text.len() <= 253);
                }
            }
        }
    }
}
