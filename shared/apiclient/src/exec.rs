//! Credentials from a program (client.authentication.k8s.io, client-go `plugin/pkg/client/auth/exec`): what it is given,
//! and what counts as an answer.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use bulkhead_config::kubeconfig::{Cluster, Exec, Secret};
use serde::Deserialize;
use tokio::process::Command;

use crate::program::{self, ProgramError};

/// Where bare names are looked for when the process was started without PATH, as a daemon's environment is.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Why a program gave no credential.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// `hint`: the kubeconfig's own, for a program that is not there.
    #[error("credential program {command:?}{hint}")]
    Program { command: String, hint: String, source: ProgramError },
    /// Without the parser's words: they may quote the credential.
    #[error("the answer of credential program {command:?} is no ExecCredential in JSON (line {line}, column {column})")]
    Decode { command: String, line: usize, column: usize },
    #[error("the answer of credential program {command:?}: {problem}")]
    Answer { command: String, problem: String },
}

/// What a program answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecCredential {
    pub token: Option<Secret>,
    /// Certificate chain and key, PEM.
    pub certificate: Option<(Secret, Secret)>,
    /// None: good until it is refused.
    pub expires: Option<jiff::Timestamp>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    expiration_timestamp: Option<String>,
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    client_certificate_data: Option<String>,
    #[serde(default)]
    client_key_data: Option<String>,
}

/// What the program finds in KUBERNETES_EXEC_INFO. `authority`: the cluster's CA, PEM.
pub fn exec_info(exec: &Exec, cluster: &Cluster, authority: Option<&[u8]>) -> String {
    let mut spec = serde_json::json!({ "interactive": false });
    if exec.provide_cluster_info {
        let mut info = serde_json::json!({ "server": cluster.server });
        let mut put = |key: &str, value: Option<serde_json::Value>| {
            if let Some(value) = value {
                info[key] = value;
            }
        };
        put("tls-server-name", cluster.tls_server_name.clone().map(Into::into));
        put("insecure-skip-tls-verify", cluster.insecure_skip_tls_verify.then(|| true.into()));
        let encode = |bytes| base64::engine::general_purpose::STANDARD.encode(bytes).into();
        put("certificate-authority-data", authority.map(encode));
        put("proxy-url", cluster.proxy_url.clone().map(Into::into));
        put("config", cluster.exec_config.clone());
        spec["cluster"] = info;
    }
    serde_json::json!({ "kind": "ExecCredential", "apiVersion": exec.api_version, "spec": spec }).to_string()
}

/// Where the command is: a bare name is looked for in PATH, a relative path starts at the kubeconfig's folder.
pub fn command_path(command: &str, folder: &Path) -> PathBuf {
    if command.contains('/') { folder.join(command) } else { PathBuf::from(command) }
}

/// Runs the program and reads its answer. `folder`: the kubeconfig's. It is killed when the future is dropped.
///
/// # Errors
/// See [`ExecError`].
pub async fn run(
    exec: &Exec,
    cluster: &Cluster,
    authority: Option<&[u8]>,
    folder: &Path,
) -> Result<ExecCredential, ExecError> {
    let answer = program::ask(
        Command::new(command_path(&exec.command, folder))
            .args(&exec.args)
            .env("PATH", std::env::var_os("PATH").unwrap_or_else(|| PATH.into()))
            .envs(exec.env.iter().map(|(name, value)| (name, value)))
            .env("KUBERNETES_EXEC_INFO", exec_info(exec, cluster, authority)),
        b"",
    )
    .await
    .map_err(|source| {
        let hint = match (&source, exec.install_hint.as_str()) {
            (ProgramError::Start(_), hint) if !hint.is_empty() => format!(" ({hint})"),
            _ => String::new(),
        };
        ExecError::Program { command: exec.command.clone(), hint, source }
    })?;
    decode(exec, &answer)
}

/// The program's answer, checked as upstream checks it.
pub fn decode(exec: &Exec, answer: &[u8]) -> Result<ExecCredential, ExecError> {
    let wrong = |problem: &str| ExecError::Answer { command: exec.command.clone(), problem: problem.to_owned() };
    let answer: Answer = serde_json::from_slice(answer).map_err(|error| ExecError::Decode {
        command: exec.command.clone(),
        line: error.line(),
        column: error.column(),
    })?;
    if answer.kind != "ExecCredential" {
        return Err(wrong("kind must be ExecCredential"));
    }
    if answer.api_version != exec.api_version {
        return Err(wrong(&format!("apiVersion must be {}, as the kubeconfig says", exec.api_version)));
    }
    let Some(status) = answer.status else { return Err(wrong("has no status")) };
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let certificate = match (given(status.client_certificate_data), given(status.client_key_data)) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some((Secret::new(certificate), Secret::new(key))),
        (Some(_), None) => return Err(wrong("clientCertificateData came without clientKeyData")),
        (None, Some(_)) => return Err(wrong("clientKeyData came without clientCertificateData")),
    };
    let token = given(status.token).map(Secret::new);
    if token.is_none() && certificate.is_none() {
        return Err(wrong("has neither a token nor a client certificate"));
    }
    let expires = match given(status.expiration_timestamp) {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| wrong("expirationTimestamp is no RFC 3339 time"))?),
    };
    Ok(ExecCredential { token, certificate, expires })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exec() -> Exec {
        Exec {
            api_version: "client.authentication.k8s.io/v1".into(),
            command: "helper".into(),
            args: Vec::new(),
            env: Vec::new(),
            provide_cluster_info: true,
            install_hint: String::new(),
        }
    }

    fn cluster() -> Cluster {
        Cluster {
            name: "c".into(),
            server: "https://x:6443".into(),
            tls_server_name: Some("n".into()),
            insecure_skip_tls_verify: false,
            certificate_authority: None,
            proxy_url: None,
            exec_config: Some(serde_json::json!({"a": 1})),
        }
    }

    #[test]
    fn the_exec_info_of_a_plugin() {
        let info: serde_json::Value = serde_json::from_str(&exec_info(&exec(), &cluster(), Some(b"CA"))).unwrap();
        assert_eq!(
            info,
            serde_json::json!({"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1",
                "spec": {"interactive": false, "cluster": {"server": "https://x:6443", "tls-server-name": "n",
                "certificate-authority-data": "Q0E=", "config": {"a": 1}}}})
        );
        let quiet = Exec { provide_cluster_info: false, ..exec() };
        assert!(!exec_info(&quiet, &cluster(), None).contains("cluster"));
        assert_eq!(command_path("aws", Path::new("/etc/k")), Path::new("aws"));
        assert_eq!(command_path("bin/aws", Path::new("/etc/k")), Path::new("/etc/k/bin/aws"));
        assert_eq!(command_path("/bin/aws", Path::new("/etc/k")), Path::new("/bin/aws"));
    }

    #[test]
    fn answers() {
        let answer = |status: &str| {
            let text = format!(
                r#"{{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{status}}}"#
            );
            decode(&exec(), text.as_bytes())
        };
        let good = answer(r#"{"token":"t0p","expirationTimestamp":"2030-01-01T00:00:00Z"}"#).unwrap();
        assert_eq!(good.token.as_ref().unwrap().expose(), "t0p");
        assert_eq!(good.expires.unwrap().to_string(), "2030-01-01T00:00:00Z");
        assert!(!format!("{good:?}").contains("t0p"));
        assert!(answer(r#"{"clientCertificateData":"c","clientKeyData":"k"}"#).unwrap().certificate.is_some());
        for (status, expected) in [
            ("{}", "neither a token"),
            ("null", "no status"),
            (r#"{"clientCertificateData":"c"}"#, "without clientKeyData"),
            (r#"{"clientKeyData":"c"}"#, "without clientCertificateData"),
            (r#"{"token":"t","expirationTimestamp":"soon"}"#, "RFC 3339"),
            (r#"{"token":7}"#, "no ExecCredential in JSON"),
        ] {
            assert!(answer(status).unwrap_err().to_string().contains(expected), "{status}");
        }
        for (text, expected) in [
            (r#"{"kind":"Pod"}"#, "kind must be"),
            (r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1beta1"}"#, "apiVersion must be"),
            ("s3cret", "no ExecCredential"),
        ] {
            let error = decode(&exec(), text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("s3cret"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_real_program() {
        let script = |body: &str| Exec {
            command: "/bin/sh".into(),
            args: vec!["-c".into(), body.into()],
            env: vec![("EXTRA".into(), "e".into())],
            ..exec()
        };
        let answer = r#"echo "{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":{\"token\":\"$EXTRA-$(echo "$KUBERNETES_EXEC_INFO" | grep -c x:6443)\"}}""#;
        let run = async |body: &str| run(&script(body), &cluster(), None, Path::new("/")).await;
        assert_eq!(run(answer).await.unwrap().token.unwrap().expose(), "e-1");
        let error = bulkhead_types::chain(&run("echo no luck >&2; exit 3").await.unwrap_err());
        assert!(error.contains("/bin/sh") && error.ends_with("exit status: 3: no luck"), "{error}");
        let missing = Exec { command: "/none/such".into(), install_hint: "install it".into(), ..exec() };
        let error = super::run(&missing, &cluster(), None, Path::new("/")).await.unwrap_err().to_string();
        assert!(error.contains("install it"), "{error}");
    }
}
