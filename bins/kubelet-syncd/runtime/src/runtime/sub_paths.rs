//! Which part of a volume a container's mount shows: `subPath`, or `subPathExpr` with the container's variables put in
//! (upstream `pkg/kubelet/container/helpers.go`, `makeMounts`). Resolving it inside the volume is volnetd's.

use std::collections::BTreeSet;

use kubelet_model::v1::Container;

use super::argument_list::Environment;
use kubelet_model::pod::expansion::expand;

/// Bytes of a path that the kernel takes (PATH_MAX).
const PATH_MAX: usize = 4096;

/// Bytes of all paths of one container that are made of expressions.
const ALL_MAX: usize = 1 << 20;

/// A subPath that nobody may have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubPathError {
    /// Names of variables that are not there, or empty.
    #[error("missing value for {}", .0.join(", "))]
    Missing(Vec<String>),
    #[error("error SubPath `{0}` must not be an absolute path")]
    Absolute(String),
    #[error("unable to provision SubPath `{0}`: must not contain '..'")]
    Backsteps(String),
    #[error("unable to provision SubPath `{0}`: is not valid UTF-8 once its variables are put in")]
    NotText(String),
    #[error("unable to provision SubPath of volumeMounts[{0}]: file name too long: more than {PATH_MAX} bytes")]
    TooLong(usize),
    #[error(
        "unable to provision SubPath of volumeMounts[{0}]: with it those of the container take more than {ALL_MAX} bytes"
    )]
    TooLongTogether(usize),
}

/// A mount that shows a part of its volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubPath {
    /// Place in the container's `volumeMounts`.
    pub index: usize,
    pub volume: String,
    /// Relative, without `..`, not empty.
    pub path: String,
}

/// All of a container's, in the order of its mounts.
///
/// # Errors
/// For the first that is refused.
pub fn sub_paths(container: &Container, environment: &Environment) -> Result<Vec<SubPath>, SubPathError> {
    let (mut found, mut expanded) = (Vec::new(), 0);
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let path = match mount.sub_path_expr.as_deref().filter(|expression| !expression.is_empty()) {
            None => mount.sub_path.clone().unwrap_or_default(),
            Some(expression) => {
                let path = expand_path(index, expression, environment)?;
                expanded += path.len();
                path
            }
        };
        if expanded > ALL_MAX {
            return Err(SubPathError::TooLongTogether(index));
        }
        if path.is_empty() {
            continue;
        }
        if path.starts_with('/') {
            return Err(SubPathError::Absolute(path));
        }
        if path.split('/').any(|part| part == "..") {
            return Err(SubPathError::Backsteps(path));
        }
        found.push(SubPath { index, volume: mount.name.clone(), path });
    }
    Ok(found)
}

fn expand_path(index: usize, expression: &str, environment: &Environment) -> Result<String, SubPathError> {
    let mut missing = BTreeSet::new();
    let expanded = expand(expression, PATH_MAX, |name| {
        let value = environment.get(name).map(Vec::as_slice).filter(|value| !value.is_empty());
        if value.is_none() {
            missing.insert(name.to_owned());
        }
        value
    });
    if !missing.is_empty() {
        return Err(SubPathError::Missing(missing.into_iter().collect()));
    }
    let expanded = expanded.map_err(|_| SubPathError::TooLong(index))?;
    String::from_utf8(expanded).map_err(|_| SubPathError::NotText(expression.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(mount: serde_json::Value) -> Result<Vec<SubPath>, String> {
        let mut second = serde_json::json!({"name": "v", "mountPath": "/v"});
        for (key, value) in mount.as_object().unwrap() {
            second[key] = value.clone();
        }
        let container: Container = serde_json::from_value(
            serde_json::json!({"name": "c", "volumeMounts": [{"name": "w", "mountPath": "/w"}, second]}),
        )
        .unwrap();
        let environment =
            [("A", "one"), ("UP", ".."), ("ABS", "/x"), ("EMPTY", "")].map(|(k, v)| (k.to_owned(), v.into())).into();
        sub_paths(&container, &environment).map_err(|e| e.to_string())
    }

    #[test]
    fn which_part_is_shown() {
        let shown = |path: &str| Ok(vec![SubPath { index: 1, volume: "v".into(), path: path.into() }]);
        assert_eq!(of(serde_json::json!({})), Ok(Vec::new()));
        assert_eq!(of(serde_json::json!({"subPath": "a/$(A)"})), shown("a/$(A)"));
        assert_eq!(of(serde_json::json!({"subPathExpr": "a/$(A)/$$(A)"})), shown("a/one/$(A)"));
        // Nothing but variables is put in.
        assert_eq!(of(serde_json::json!({"subPathExpr": "`date`"})), shown("`date`"));
        let refused = |mount, why: &str| assert_eq!(of(mount), Err(why.to_owned()));
        refused(serde_json::json!({"subPathExpr": "$(Z)$(EMPTY)$(Z)"}), "missing value for EMPTY, Z");
        refused(serde_json::json!({"subPathExpr": "$(ABS)"}), "error SubPath `/x` must not be an absolute path");
        refused(serde_json::json!({"subPath": "/x"}), "error SubPath `/x` must not be an absolute path");
        refused(
            serde_json::json!({"subPathExpr": "a/$(UP)"}),
            "unable to provision SubPath `a/..`: must not contain '..'",
        );
    }

    #[test]
    fn expressions_are_no_longer_than_a_path() {
        let environment = Environment::from([("A".to_owned(), vec![b'a'; 64])]);
        let of = |mounts: usize, references: usize| {
            let mount = |index| serde_json::json!({"name": "v", "mountPath": format!("/{index}"), "subPathExpr": "$(A)".repeat(references)});
            let mounts: Vec<_> = (0..mounts).map(mount).collect();
            let container = serde_json::from_value(serde_json::json!({"name": "c", "volumeMounts": mounts})).unwrap();
            sub_paths(&container, &environment).map(|found| found.len())
        };
        assert_eq!(of(256, 64), Ok(256));
        assert_eq!(of(257, 64), Err(SubPathError::TooLongTogether(256)));
        assert_eq!(of(1, 65), Err(SubPathError::TooLong(0)));
        assert_eq!(of(1, 100_000), Err(SubPathError::TooLong(0)));
    }

    proptest::proptest! {
        #[test]
        fn never_outside(path in "[a./$()A-Z]{0,12}", expression: bool) {
            let key = if expression { "subPathExpr" } else { "subPath" };
            if let Ok(found) = of(serde_json::json!({key: path})) {
                for one in found {
                    proptest::prop_assert!(!one.path.starts_with('/') && one.path.split('/').all(|p| p != ".."));
                }
            }
        }
    }
}
