//! Which copy of an object on the API server is the newest: that of a watch, or the answer to our own request.

use std::cmp::Ordering;

use bulkhead_ipc::syncd::ApiObject;
use bulkhead_types::{IdError, PodUid};
use serde::Deserialize;

/// A pod on the API server, as much of it as is needed to write to it. The status stays JSON text: it is read when there
/// is something to compare, and held for each pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiCopy {
    /// Of the object: a mirror pod has another one than its static pod.
    pub uid: PodUid,
    pub version: String,
    pub deleting: bool,
    /// Empty when it is no mirror pod.
    pub mirror_hash: String,
    pub status: Box<[u8]>,
}

impl ApiCopy {
    /// What a watch has seen, as kubelet-syncd sends it.
    ///
    /// # Errors
    /// Its uid is none.
    pub fn seen(object: ApiObject) -> Result<Self, IdError> {
        Ok(ApiCopy {
            uid: PodUid::parse(&object.uid)?,
            version: object.resource_version,
            deleting: object.deleting,
            mirror_hash: object.mirror_hash,
            status: object.status_json.into_boxed_slice(),
        })
    }

    /// A pod as the server answers it. `None`: it is none.
    pub fn answered(body: &[u8]) -> Option<Self> {
        let pod: Answer = serde_json::from_slice(body).ok()?;
        if pod.kind != "Pod" {
            return None;
        }
        let uid = PodUid::parse(&pod.metadata.uid).ok()?;
        let status = if pod.status.is_null() { serde_json::json!({}) } else { pod.status };
        Some(ApiCopy {
            uid,
            version: pod.metadata.resource_version,
            deleting: pod.metadata.deletion_timestamp.is_some(),
            mirror_hash: pod.metadata.annotations.unwrap_or_default().mirror,
            status: status.to_string().into_bytes().into_boxed_slice(),
        })
    }

    /// Whether this one is newer than `other`; versions that cannot be compared answer `false`.
    pub fn is_newer_than(&self, other: &ApiCopy) -> bool {
        compare(&self.version, &other.version) == Some(Ordering::Greater)
    }
}

#[derive(Deserialize)]
struct Answer {
    kind: String,
    metadata: Meta,
    #[serde(default)]
    status: serde_json::Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    resource_version: String,
    deletion_timestamp: Option<String>,
    annotations: Option<Annotations>,
}

#[derive(Deserialize, Default)]
struct Annotations {
    #[serde(default, rename = "kubernetes.io/config.mirror")]
    mirror: String,
}

/// Compares two resource versions as decimal numbers of any length
/// (KEP 5504: they are comparable, and larger is newer). `None`: one is no such number.
pub fn compare(a: &str, b: &str) -> Option<Ordering> {
    let number = |text: &str| {
        (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.trim_start_matches('0').to_owned())
    };
    let (a, b) = (number(a)?, number(b)?);
    Some(a.len().cmp(&b.len()).then_with(|| a.cmp(&b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers() {
        for (a, b, expected) in [
            ("9", "10", Some(Ordering::Less)),
            ("10", "10", Some(Ordering::Equal)),
            ("0010", "10", Some(Ordering::Equal)),
            ("99999999999999999999999999", "100000000000000000000000000", Some(Ordering::Less)),
            ("a", "10", None),
            ("", "10", None),
        ] {
            assert_eq!(compare(a, b), expected, "{a} {b}");
        }
    }

    #[test]
    fn an_answer_is_read() {
        let body =
            br#"{"kind":"Pod","metadata":{"uid":"u","resourceVersion":"7","deletionTimestamp":"2026-01-01T00:00:00Z",
            "annotations":{"kubernetes.io/config.mirror":"h","x":"y"}},"spec":{},"status":{"phase":"Running"}}"#;
        let copy = ApiCopy::answered(body).unwrap();
        assert_eq!(
            (copy.uid.as_str(), copy.version.as_str(), copy.deleting, copy.mirror_hash.as_str()),
            ("u", "7", true, "h")
        );
        assert_eq!(&*copy.status, br#"{"phase":"Running"}"#);
        assert_eq!(ApiCopy::answered(br#"{"kind":"Status","metadata":{},"status":"Success"}"#), None);
        assert_eq!(ApiCopy::answered(b"nonsense"), None);
    }
}
