//! Which names the files of a volume may have, and which folders have to be in it for the mounts below it
//! (upstream `pkg/volume/util/atomic_writer.go`, `nested_volumes.go`).

use std::collections::{BTreeSet, HashSet};

use bulkhead_config::path_text::clean;
use k8s_openapi::api::core::v1::VolumeMount;
use kubelet_model::v1::Pod;

/// Bytes of a path, and of one part of it.
const MAX_PATH: usize = 4096;
const MAX_NAME: usize = 255;

/// A path that no file of a volume may have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("invalid path: must not be empty: {0:?}")]
    Empty(String),
    #[error("invalid path: must be relative path: {0}")]
    Absolute(String),
    #[error("invalid path: must be less than or equal to {MAX_PATH} characters")]
    TooLong,
    #[error("invalid path: must not contain '..': {0}")]
    Backsteps(String),
    #[error("invalid path: filenames must be less than or equal to {MAX_NAME} characters")]
    NameTooLong,
    #[error("invalid path: must not start with '..': {0}")]
    Hidden(String),
    #[error("invalid path: must not contain a zero byte: {0:?}")]
    ZeroByte(String),
    #[error("invalid container mount point {0}")]
    MountPoint(String),
}

/// Checks a file's path and answers its one way of writing it: without `.`, empty parts and a last slash.
pub fn file_path(path: &str) -> Result<String, PathError> {
    let text = || path.to_owned();
    if path.starts_with('/') {
        return Err(PathError::Absolute(text()));
    }
    if path.len() > MAX_PATH {
        return Err(PathError::TooLong);
    }
    if path.contains('\0') {
        return Err(PathError::ZeroByte(text()));
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if parts.contains(&"..") {
        return Err(PathError::Backsteps(text()));
    }
    if parts.iter().any(|part| part.len() > MAX_NAME) {
        return Err(PathError::NameTooLong);
    }
    match parts.first() {
        None => Err(PathError::Empty(text())),
        // The atomic writer's own names begin like this.
        Some(first) if first.starts_with("..") => Err(PathError::Hidden(text())),
        Some(_) => Ok(parts.join("/")),
    }
}

/// Folders that have to be in `volume`, relative to it: where other volumes are mounted below it in some container. The
/// volume is read-only for containers, so the runtime could not make them.
pub fn nested_mount_points(pod: &Pod, volume: &str) -> Result<Vec<String>, PathError> {
    let Some(spec) = &pod.spec else { return Ok(Vec::new()) };
    let regular = spec.init_containers.iter().flatten().chain(&spec.containers).map(|c| &c.volume_mounts);
    let all = regular.chain(spec.ephemeral_containers.iter().flatten().map(|c| &c.volume_mounts));
    let mut found = BTreeSet::new();
    for mounts in all {
        nested_in(mounts.as_deref().unwrap_or(&[]), volume, &mut found)?;
    }
    Ok(found.into_iter().collect())
}

fn nested_in(mounts: &[VolumeMount], volume: &str, found: &mut BTreeSet<String>) -> Result<(), PathError> {
    let own: BTreeSet<String> = mounts.iter().filter(|m| m.name == volume).map(|m| clean(&m.mount_path)).collect();
    if let Some(out) = own.iter().find(|own| *own == ".." || own.starts_with("../")) {
        return Err(PathError::MountPoint(out.clone()));
    }
    if own.is_empty() {
        return Ok(());
    }
    let points: HashSet<String> = mounts.iter().map(|m| clean(&m.mount_path)).collect();
    for point in &points {
        // What is mounted below something nested is that one's matter: from the point up, the first mount point decides.
        let mut place = point.len();
        while let Some(slash) = point[..place].rfind('/') {
            let above = &point[..slash];
            if own.contains(above) {
                found.insert(point[slash + 1..].to_owned());
            }
            if points.contains(above) {
                break;
            }
            place = slash;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files() {
        for (path, expected) in [("a", "a"), ("a/b", "a/b"), ("./a//b/", "a/b"), ("...a", ""), ("a/..b", "a/..b")] {
            match expected {
                "" => assert_eq!(file_path(path), Err(PathError::Hidden(path.into()))),
                expected => assert_eq!(file_path(path).as_deref(), Ok(expected)),
            }
        }
        let long = "a".repeat(256);
        let refused = |path: &str| file_path(path).unwrap_err().to_string();
        assert_eq!(refused(""), "invalid path: must not be empty: \"\"");
        assert_eq!(refused("."), "invalid path: must not be empty: \".\"");
        assert_eq!(refused("/a"), "invalid path: must be relative path: /a");
        assert_eq!(refused("a/../b"), "invalid path: must not contain '..': a/../b");
        assert_eq!(refused("..data"), "invalid path: must not start with '..': ..data");
        assert_eq!(refused(&long), "invalid path: filenames must be less than or equal to 255 characters");
        assert_eq!(refused(&"a/".repeat(2049)), "invalid path: must be less than or equal to 4096 characters");
        assert!(file_path("a\0b").is_err());
    }

    /// As many as a pod has room for: each with each would take minutes.
    #[test]
    fn many_mount_points_take_no_long_time() {
        let mount =
            |name: &str, path: String| VolumeMount { name: name.into(), mount_path: path, ..VolumeMount::default() };
        let own = (0..4000).map(|n| mount("v", format!("/a{}", "/".repeat(n % 100))));
        let others = (0..9000).map(|n| mount("other", format!("/a/x{n:04}")));
        let mut found = BTreeSet::new();
        nested_in(&own.chain(others).collect::<Vec<_>>(), "v", &mut found).unwrap();
        assert_eq!(found.len(), 9000);
    }

    #[test]
    fn folders_for_mounts_below() {
        let pod = |mounts: &[(&str, &str)]| -> Pod {
            let mounts: Vec<_> = mounts.iter().map(|(n, p)| serde_json::json!({"name": n, "mountPath": p})).collect();
            serde_json::from_value(serde_json::json!({"spec": {"containers": [
                {"name": "a", "volumeMounts": mounts}, {"name": "b"}]}}))
            .unwrap()
        };
        let nested = |mounts| nested_mount_points(&pod(mounts), "v");
        assert_eq!(nested(&[("v", "/dir")]), Ok(vec![]));
        let mounts = [
            ("v", "/dir/"),
            ("w", "/dir/nested"),
            ("w", "/dir/nested-vol"),
            ("w", "/dir/nested/double"),
            ("w", "/dir/./x/../deep/er"),
            ("w", "/directory"),
        ];
        assert_eq!(nested(&mounts), Ok(vec!["deep/er".into(), "nested".into(), "nested-vol".into()]));
        assert_eq!(nested(&[("v", "../x"), ("w", "../x/y")]), Err(PathError::MountPoint("../x".into())));
        assert_eq!(nested(&[("v", "x"), ("w", "x/y")]), Ok(vec!["y".into()]));
        assert_eq!(nested(&[("v", "."), ("w", "/"), ("w", "y"), ("w", "/y")]), Ok(vec![]));
    }

    proptest::proptest! {
        #[test]
        fn a_file_never_escapes(path in "[a-c./\u{0}]{0,16}") {
            if let Ok(path) = file_path(&path) {
                proptest::prop_assert!(!path.is_empty() && !path.starts_with('/'));
                proptest::prop_assert!(path.split('/').all(|part| !matches!(part, "" | "." | "..")));
                proptest::prop_assert_eq!(file_path(&path).unwrap(), path);
            }
        }

        #[test]
        fn nor_does_a_mount_point(own in "[a-b./]{1,8}", other in "[a-b./]{1,12}") {
            let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {"containers": [{"name": "a",
                "volumeMounts": [{"name": "v", "mountPath": own}, {"name": "w", "mountPath": other}]}]}})).unwrap();
            for point in nested_mount_points(&pod, "v").unwrap_or_default() {
                proptest::prop_assert!(!point.is_empty() && !point.starts_with('/'));
                proptest::prop_assert!(point.split('/').all(|part| !matches!(part, "" | "." | "..")));
            }
        }
    }
}
