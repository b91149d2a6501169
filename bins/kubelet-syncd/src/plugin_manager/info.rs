//! What a plugin says of itself, and whether that can be meant. Its words go to logs, lists and the API server, so each is bounded.
//! Pure.

use std::path::Path;

/// Bounds of what is taken; whatever is longer is no plugin.
const MAX_NAME: usize = 256;
const MAX_ENDPOINT: usize = 4096;
const MAX_VERSIONS: usize = 64;
const MAX_VERSION: usize = 64;

/// An answer to GetInfo.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PluginInfo {
    pub kind: String,
    pub name: String,
    /// Absolute path; of one that named none, its registration socket.
    pub endpoint: String,
    pub versions: Vec<String>,
}

/// Why an answer is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InfoError {
    #[error("{field} has {length} bytes, at most {allowed} are allowed")]
    TooLong { field: &'static str, length: usize, allowed: usize },
    #[error("supported_versions has {0} entries, at most {MAX_VERSIONS} are allowed")]
    TooMany(usize),
    #[error("endpoint is not an absolute path")]
    NotAbsolute,
}

impl PluginInfo {
    /// `socket_path`: absolute path of the registration socket.
    ///
    /// # Errors
    /// See [`InfoError`].
    pub fn checked(self, socket_path: &str) -> Result<Self, InfoError> {
        let bound = |field, text: &str, allowed| match text.len() {
            length if length > allowed => Err(InfoError::TooLong { field, length, allowed }),
            _ => Ok(()),
        };
        bound("type", &self.kind, MAX_NAME)?;
        bound("name", &self.name, MAX_NAME)?;
        bound("endpoint", &self.endpoint, MAX_ENDPOINT)?;
        if self.versions.len() > MAX_VERSIONS {
            return Err(InfoError::TooMany(self.versions.len()));
        }
        self.versions.iter().try_for_each(|version| bound("supported_versions", version, MAX_VERSION))?;
        if self.endpoint.is_empty() {
            return Ok(PluginInfo { endpoint: socket_path.to_owned(), ..self });
        }
        if !Path::new(&self.endpoint).is_absolute() {
            return Err(InfoError::NotAbsolute);
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_and_bounds() {
        let info = |endpoint: &str| PluginInfo { endpoint: endpoint.into(), ..PluginInfo::default() };
        assert_eq!(info("").checked("/r/a.sock").unwrap().endpoint, "/r/a.sock");
        assert_eq!(info("/p/csi.sock").checked("/r/a.sock").unwrap().endpoint, "/p/csi.sock");
        for relative in ["p/csi.sock", "unix:///p/csi.sock", "@abstract"] {
            assert_eq!(info(relative).checked("/r/a.sock"), Err(InfoError::NotAbsolute), "{relative}");
        }
        let long = PluginInfo { name: "n".repeat(257), ..PluginInfo::default() };
        assert_eq!(long.checked("/r").unwrap_err().to_string(), "name has 257 bytes, at most 256 are allowed");
        let many = PluginInfo { versions: vec!["1.0".into(); 65], ..PluginInfo::default() };
        assert_eq!(many.checked("/r"), Err(InfoError::TooMany(65)));
    }
}
