//! Which files the kubeconfig's current context names, and nothing else of it: neither the server nor any key or token
//! that may stand in the kubeconfig itself is kept. Who connects parses the same text in a process of its own.
//!
//! Relative names are relative to the kubeconfig's folder (client-go `tools/clientcmd` ResolveLocalPaths).

use std::io::Read;
use std::path::{Path, PathBuf};

use bulkhead_sys::open::{self, OpenError, Wanted};
use serde::Deserialize;

/// Far above a kubeconfig with every certificate inline.
const MAX_BYTES: u64 = 1 << 20;

/// Why the names are not known.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error("opening the kubeconfig")]
    Open(#[from] OpenError),
    #[error("reading the kubeconfig {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the kubeconfig {path} has more than 1 MiB")]
    TooLarge { path: PathBuf },
    /// Without the parser's words: they may quote a credential.
    #[error("the kubeconfig {path} is not valid{}", line_text(*.line))]
    Syntax { path: PathBuf, line: Option<u64> },
    #[error("the kubeconfig {path} has no entry for its current context")]
    NoContext { path: PathBuf },
}

fn line_text(line: Option<u64>) -> String {
    line.map(|line| format!(", line {line}")).unwrap_or_default()
}

/// Files that the current context names, absolute.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NamedFiles {
    pub client_certificate: Option<PathBuf>,
    pub client_key: Option<PathBuf>,
    pub cluster_ca: Option<PathBuf>,
    pub token: Option<PathBuf>,
}

impl NamedFiles {
    pub fn iter(&self) -> impl Iterator<Item = &Path> {
        [&self.client_certificate, &self.client_key, &self.cluster_ca, &self.token]
            .into_iter()
            .filter_map(|path| path.as_deref())
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Document {
    #[serde(default)]
    current_context: Option<String>,
    #[serde(default)]
    contexts: Option<Vec<NamedContext>>,
    #[serde(default)]
    clusters: Option<Vec<NamedCluster>>,
    #[serde(default)]
    users: Option<Vec<NamedUser>>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    #[serde(default)]
    context: Option<Context>,
}

#[derive(Deserialize)]
struct Context {
    #[serde(default)]
    cluster: Option<String>,
    #[serde(default)]
    user: Option<String>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    #[serde(default)]
    cluster: Option<Cluster>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    #[serde(default)]
    certificate_authority: Option<String>,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    #[serde(default)]
    user: Option<User>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    #[serde(default)]
    client_certificate: Option<String>,
    #[serde(default)]
    client_key: Option<String>,
    #[serde(default, rename = "tokenFile")]
    token_file: Option<String>,
}

/// Reads the kubeconfig under rule 1 and keeps the names. Blocks for the disk.
pub fn read(path: &Path) -> Result<NamedFiles, KubeconfigError> {
    let file = std::fs::File::from(open::operator(path, Wanted::RegularFile)?);
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| KubeconfigError::Read { path: path.to_owned(), source })?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(KubeconfigError::TooLarge { path: path.to_owned() });
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) => parse(text, path),
        Err(_) => Err(KubeconfigError::Syntax { path: path.to_owned(), line: None }),
    }
}

/// The names in a kubeconfig's text. Pure.
pub fn parse(text: &str, path: &Path) -> Result<NamedFiles, KubeconfigError> {
    let options = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::LastWins,
        with_snippet: false,
    };
    let document: Document = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        KubeconfigError::Syntax { path: path.to_owned(), line: error.location().map(|place| place.line()) }
    })?;
    let no_context = || KubeconfigError::NoContext { path: path.to_owned() };
    let current = document.current_context.filter(|name| !name.is_empty()).ok_or_else(no_context)?;
    let context = document
        .contexts
        .unwrap_or_default()
        .into_iter()
        .find(|entry| entry.name == current)
        .and_then(|entry| entry.context)
        .ok_or_else(no_context)?;
    let cluster = context.cluster.and_then(|name| {
        document
            .clusters
            .unwrap_or_default()
            .into_iter()
            .find(|entry| entry.name == name)
            .and_then(|entry| entry.cluster)
    });
    let user = context.user.and_then(|name| {
        document.users.unwrap_or_default().into_iter().find(|entry| entry.name == name).and_then(|entry| entry.user)
    });
    let folder = path.parent().unwrap_or(Path::new("/"));
    let file = |name: Option<String>| name.filter(|name| !name.is_empty()).map(|name| folder.join(name));
    let (client_certificate, client_key, token) = match user {
        Some(user) => (user.client_certificate, user.client_key, user.token_file),
        None => (None, None, None),
    };
    Ok(NamedFiles {
        client_certificate: file(client_certificate),
        client_key: file(client_key),
        cluster_ca: file(cluster.and_then(|cluster| cluster.certificate_authority)),
        token: file(token),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
apiVersion: v1
kind: Config
preferences: {}
current-context: here
clusters:
- name: other
  cluster: {server: https://x, certificate-authority: wrong.crt}
- name: prod
  cluster:
    server: https://10.0.0.1:6443
    certificate-authority: pki/ca.crt
contexts:
- context: {cluster: other, user: nobody}
  name: there
- context:
    cluster: prod
    user: node
    namespace: x
  name: here
users:
- name: node
  user:
    client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem
    client-key: /var/lib/kubelet/pki/kubelet-client-current.pem
    token: c2VjcmV0
    exec: {command: x, args: [a]}
";

    #[test]
    fn the_current_contexts_files() {
        let path = Path::new("/etc/kubernetes/kubelet.conf");
        let names = parse(TEXT, path).unwrap();
        let pem = PathBuf::from("/var/lib/kubelet/pki/kubelet-client-current.pem");
        assert_eq!(
            names,
            NamedFiles {
                client_certificate: Some(pem.clone()),
                client_key: Some(pem),
                cluster_ca: Some("/etc/kubernetes/pki/ca.crt".into()),
                token: None,
            }
        );
        assert_eq!(names.iter().count(), 3);
        let token = TEXT.replace("token: c2VjcmV0", "tokenFile: ../token");
        assert_eq!(parse(&token, path).unwrap().token, Some("/etc/kubernetes/../token".into()));
        let json = r#"{"current-context":"a","contexts":[{"name":"a","context":{"cluster":"c","user":"u"}}],
            "users":[{"name":"u","user":{"client-key":"k","client-certificate":""}}]}"#;
        let names = parse(json, path).unwrap();
        assert_eq!((names.client_key, names.client_certificate), (Some("/etc/kubernetes/k".into()), None));
    }

    #[test]
    fn what_is_no_kubeconfig_is_refused_without_quoting_it() {
        let path = Path::new("/k");
        for bad in ["", "current-context: a", "{}", &TEXT.replace("current-context: here", "current-context: gone")] {
            assert!(matches!(parse(bad, path), Err(KubeconfigError::NoContext { .. })), "{bad}");
        }
        let error = parse("users: s3cret\ncurrent-context: a", path).unwrap_err();
        assert!(matches!(error, KubeconfigError::Syntax { .. }) && !error.to_string().contains("s3cret"), "{error}");
        assert!(parse("a: [", path).is_err() && parse("- x", path).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in ".{0,200}") {
            let _ = parse(&text, Path::new("/k"));
        }
    }
}
