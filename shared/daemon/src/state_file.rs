//! Which state files are understood, and what becomes of those that are not: nothing that another version or a damaged
//! disk left behind is overwritten unseen.
//!
//! A state file is JSON. `version` at its top says which form it has; without one it is version 1. A field that is not
//! known is ignored, one that is missing has its default, an entry of a list that is not understood is left out. The
//! version is raised when an older reader would misunderstand what stands there, and for nothing less.

use std::collections::BTreeMap;
use std::fmt::Display;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::state_dir::{StateDir, StateError};

/// A state file as this build knows it.
#[derive(Debug, Clone, Copy)]
pub struct StateFile {
    pub name: &'static str,
    /// What this build writes.
    pub version: u64,
}

/// What a file says of itself before anything else of it is looked at.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    version: Option<Value>,
}

/// The version that the file has. Pure.
pub fn version_of(content: &[u8]) -> u64 {
    let head = serde_json::from_slice::<Head>(content).ok();
    head.and_then(|head| head.version?.as_u64()).unwrap_or(1)
}

/// The content with its version at the top. What is no struct cannot have one: it stays as it is for as long as it is
/// version 1.
///
/// # Errors
/// A key of a map is no text.
pub fn encode<T: Serialize>(version: u64, content: &T) -> serde_json::Result<Vec<u8>> {
    #[derive(Serialize)]
    struct Versioned<'a, T> {
        version: u64,
        #[serde(flatten)]
        content: &'a T,
    }
    serde_json::to_vec(&Versioned { version, content })
}

impl StateDir {
    /// What `parse` makes of the file. A newer version's file is read as far as it is understood, and a copy of it kept
    /// as `<name>.version-<n>`, because the next write leaves out what was not understood. A file of which nothing is
    /// understood is kept as `<name>.version-<n>` or `<name>.damaged` and counts as none. Both are told in the log.
    ///
    /// # Errors
    /// The file is there and could not be read, or not be kept: then it still stands under its own name.
    pub fn load<T, E: Display>(
        &self,
        file: StateFile,
        parse: impl FnOnce(&[u8]) -> Result<T, E>,
    ) -> Result<Option<T>, StateError> {
        let StateFile { name, version } = file;
        let Some(content) = self.read(name)? else { return Ok(None) };
        let found = version_of(&content);
        let newer = (found > version).then(|| format!("{name}.version-{found}"));
        match (parse(&content), newer) {
            (Ok(value), None) => Ok(Some(value)),
            (Ok(value), Some(kept)) => {
                self.write(&kept, &content)?;
                tracing::warn!(
                    name,
                    found,
                    known = version,
                    kept,
                    "state file of a newer version: read as far as understood"
                );
                Ok(Some(value))
            }
            (Err(error), newer) => {
                let kept = newer.unwrap_or_else(|| format!("{name}.damaged"));
                self.write(&kept, &content)?;
                self.remove(name)?;
                tracing::error!(name, found, known = version, kept, %error, "state file is not understood: it is kept, and begun anew");
                Ok(None)
            }
        }
    }
}

/// For `#[serde(deserialize_with)]`: a list without the entries that are not understood.
///
/// # Errors
/// It is no list.
pub fn list<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let all = Vec::<Value>::deserialize(deserializer)?;
    Ok(all.into_iter().filter_map(understood).collect())
}

/// For `#[serde(deserialize_with)]`: a map without the entries of which key or value is not understood.
///
/// # Errors
/// It is no map.
pub fn map<'de, D, K, T>(deserializer: D) -> Result<BTreeMap<K, T>, D::Error>
where
    D: Deserializer<'de>,
    K: DeserializeOwned + Ord,
    T: DeserializeOwned,
{
    let all = BTreeMap::<String, Value>::deserialize(deserializer)?;
    Ok(all.into_iter().filter_map(|(key, value)| Some((understood(Value::String(key))?, understood(value)?))).collect())
}

fn understood<T: DeserializeOwned>(value: Value) -> Option<T> {
    serde_json::from_value(value)
        .inspect_err(|error| tracing::warn!(%error, "an entry of a state file is not understood and left out"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Content {
        #[serde(default, deserialize_with = "map")]
        pods: BTreeMap<String, u32>,
        #[serde(default, deserialize_with = "list")]
        names: Vec<String>,
    }

    const FILE: StateFile = StateFile { name: "a.json", version: 1 };

    fn folder() -> (tempfile::TempDir, StateDir) {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::lock(std::fs::File::open(temp.path()).unwrap().into()).unwrap();
        (temp, state)
    }

    fn load(state: &StateDir) -> Option<Content> {
        state.load(FILE, |bytes| serde_json::from_slice::<Content>(bytes)).unwrap()
    }

    #[test]
    fn versions() {
        for (content, version) in [
            ("{}", 1),
            (r#"{"version": 1}"#, 1),
            (r#"{"version": 7, "x": [1]}"#, 7),
            // A map whose key happens to be called so.
            (r#"{"version": {"began": 1}}"#, 1),
            ("[]", 1),
            ("7", 1),
            ("", 1),
        ] {
            assert_eq!(version_of(content.as_bytes()), version, "{content}");
        }
    }

    #[test]
    fn what_is_understood_is_read_and_nothing_is_lost() {
        let (temp, state) = folder();
        assert_eq!(load(&state), None);

        let plain = r#"{"pods": {"a": 1}, "names": ["x"], "later": true}"#;
        state.write(FILE.name, plain.as_bytes()).unwrap();
        let both = |pods: &[(&str, u32)], names: &[&str]| Content {
            pods: pods.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        assert_eq!(load(&state), Some(both(&[("a", 1)], &["x"])));
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 1, "a known file needs no copy");

        let newer = r#"{"version": 3, "pods": {"a": 1, "b": {"much": "more"}}, "names": ["x", 5]}"#;
        state.write(FILE.name, newer.as_bytes()).unwrap();
        assert_eq!(load(&state), Some(both(&[("a", 1)], &["x"])));
        assert_eq!(state.read("a.json.version-3").unwrap().as_deref(), Some(newer.as_bytes()));
        assert!(state.read(FILE.name).unwrap().is_some(), "it stands until it is written anew");

        let other = r#"{"version": 4, "pods": []}"#;
        state.write(FILE.name, other.as_bytes()).unwrap();
        assert_eq!(load(&state), None);
        assert_eq!(state.read("a.json.version-4").unwrap().as_deref(), Some(other.as_bytes()));

        state.write(FILE.name, b"{half").unwrap();
        assert_eq!(load(&state), None);
        assert_eq!(state.read("a.json.damaged").unwrap().as_deref(), Some(&b"{half"[..]));
        assert_eq!(state.read(FILE.name).unwrap(), None);
    }

    #[test]
    fn what_cannot_be_kept_stays() {
        let (temp, state) = folder();
        state.write(FILE.name, b"{half").unwrap();
        // A folder is in the way of the copy.
        std::fs::create_dir(temp.path().join("a.json.damaged")).unwrap();
        assert!(state.load(FILE, |bytes| serde_json::from_slice::<Content>(bytes)).is_err());
        assert_eq!(state.read(FILE.name).unwrap().as_deref(), Some(&b"{half"[..]));
    }
}
