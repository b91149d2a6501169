//! Kubeconfig files for nodes, administrators and joining nodes: owned by root, readable by nobody else.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::client::Credential;

/// The content of a kubeconfig (JSON is YAML too).
pub fn content(server: &str, ca: &str, user: &str, credential: &Credential) -> Value {
    let shown = match credential {
        Credential::Certificate(pair) => json!({
            "client-certificate-data": STANDARD.encode(&pair.certificate),
            "client-key-data": STANDARD.encode(&pair.key),
        }),
        Credential::Token(token) => json!({"token": token}),
        Credential::Nothing => json!({}),
    };
    with_user(server, ca, user, shown)
}

/// The same with the user's credential told by the fields of `shown`, such as files.
pub fn with_user(server: &str, ca: &str, user: &str, shown: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {"server": server, "certificate-authority-data": STANDARD.encode(ca)}}],
        "users": [{"name": user, "user": shown}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user, "namespace": "default"}}],
        "current-context": "lab",
    })
}

/// Writes a secret file in one step: a reader sees the old content or the new one, never half of it.
///
/// # Errors
/// The folder cannot be written.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let draft = path.with_extension("draft");
    let what = || format!("writing {}", path.display());
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&draft)
        .with_context(what)?;
    file.write_all(text.as_bytes()).with_context(what)?;
    std::fs::rename(&draft, path).with_context(what)
}
