//! Credentials as Docker writes them: `config.json` (`{"auths": {...}}`, secrets of type
//! kubernetes.io/dockerconfigjson) and `.dockercfg` (the inner map alone, kubernetes.io/dockercfg).

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bulkhead_cri::v1::AuthConfig;
use serde::Deserialize;

use super::matching::Pattern;

/// Padding may be missing, as some tools leave it out.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A credential and what it is for. `Debug` shows no password: the CRI message's own does not.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub pattern: Pattern,
    pub auth: AuthConfig,
    /// No runtime is told, but it is part of what tells one credential from another.
    pub email: String,
}

/// The text is no such configuration. Says where, never what stands there: it may be a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DockerConfigError {
    #[error("is no JSON of the expected form (line {line}, column {column})")]
    Json { line: usize, column: usize },
    #[error("auth of {registry:?} is not base64 of user:password")]
    Auth { registry: String },
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    auths: BTreeMap<String, Registry>,
}

#[derive(Deserialize, Default)]
struct Registry {
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
    #[serde(default)]
    email: Option<String>,
    #[serde(default)]
    auth: Option<String>,
}

/// `config.json`.
pub fn config_json(text: &[u8]) -> Result<Vec<Entry>, DockerConfigError> {
    let file: File = serde_json::from_slice(text).map_err(|error| json(&error))?;
    entries(file.auths)
}

/// `.dockercfg`.
pub fn dockercfg(text: &[u8]) -> Result<Vec<Entry>, DockerConfigError> {
    entries(serde_json::from_slice(text).map_err(|error| json(&error))?)
}

fn json(error: &serde_json::Error) -> DockerConfigError {
    DockerConfigError::Json { line: error.line(), column: error.column() }
}

fn entries(registries: BTreeMap<String, Registry>) -> Result<Vec<Entry>, DockerConfigError> {
    let mut entries = Vec::new();
    for (name, registry) in registries {
        let (username, password) = match registry.auth.as_deref().filter(|auth| !auth.is_empty()) {
            Some(auth) => user_and_password(auth).ok_or_else(|| DockerConfigError::Auth { registry: name.clone() })?,
            None => (registry.username.unwrap_or_default(), registry.password.unwrap_or_default()),
        };
        if let Some(pattern) = Pattern::parse(&name) {
            let auth = AuthConfig { username, password, ..AuthConfig::default() };
            entries.push(Entry { pattern, auth, email: registry.email.unwrap_or_default() });
        }
    }
    Ok(entries)
}

fn user_and_password(auth: &str) -> Option<(String, String)> {
    // Line breaks are no part of base64, as for Go's decoder: `base64` breaks its output after 76 characters.
    let auth: Cow<'_, str> = match auth.contains(['\r', '\n']) {
        true => auth.replace(['\r', '\n'], "").into(),
        false => auth.into(),
    };
    let bytes = STANDARD.decode(&*auth).or_else(|_| LENIENT.decode(auth.trim())).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.trim_matches('\0').to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_forms() {
        let text = br#"{"auths":{"https://registry.test/v1/":{"auth":"dXNlcjpwYTpzcw=="},"b.test":{"username":"u","password":"p"}}}"#;
        let entries = config_json(text).unwrap();
        let of = |i: usize| (entries[i].auth.username.as_str(), entries[i].auth.password.as_str());
        assert_eq!([of(0), of(1)], [("u", "p"), ("user", "pa:ss")]);
        let entries = dockercfg(br#"{"registry.test":{"auth":"dXNlcjpwYTpzcw"}}"#).unwrap();
        assert_eq!(entries[0].auth.password, "pa:ss");
    }

    #[test]
    fn line_breaks_in_base64_are_none_of_it() {
        for auth in ["dXNlcjpwYTpzcw==\\n", "dXNl\\r\\ncjpwYTpzcw==", "dXNlcjpw\\nYTpzcw\\n", "\\ndXNlcjpwYTpzcw=\\n="]
        {
            let text = format!(r#"{{"r.test":{{"auth":"{auth}"}}}}"#);
            let entries = dockercfg(text.as_bytes()).unwrap();
            assert_eq!((&*entries[0].auth.username, &*entries[0].auth.password), ("user", "pa:ss"), "{auth}");
        }
        assert!(dockercfg(br#"{"r.test":{"auth":"dXNl cjpwYTpzcw=="}}"#).is_err(), "as for Go's");
    }

    #[test]
    fn errors_say_where_and_show_no_secret() {
        let error = config_json(br#"{"auths":{"r.test":{"auth":"hunter2!"}}}"#).unwrap_err().to_string();
        assert!(error.contains("r.test") && !error.contains("hunter2"));
        assert!(config_json(b"{\"auths\": hunter2").unwrap_err().to_string().contains("line 1"));
        let shown = format!("{:?}", dockercfg(br#"{"r.test":{"username":"u","password":"hunter2"}}"#).unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = config_json(&bytes);
            let _ = dockercfg(&bytes);
        }
    }
}
