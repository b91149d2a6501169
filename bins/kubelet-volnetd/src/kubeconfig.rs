//! Which files the kubeconfig's current context names, and nothing else of it: neither the server nor any key or token
//! that may stand in the kubeconfig itself is kept. Who connects parses the same text in a process of its own. Of the
//! kubeconfig that a node begins with (`--bootstrap-kubeconfig`) the cluster is kept too, for the one that is written from it:
//! whom the node obeys is what root wrote, and no other process's word.
//!
//! Relative names are relative to the kubeconfig's folder (client-go `tools/clientcmd` ResolveLocalPaths).

use std::io::Read;
use std::path::{Path, PathBuf};

use bulkhead_sys::open::{self, FileKind, OpenError};
use serde::Deserialize;

/// Far above a kubeconfig with every certificate inline.
const MAX_BYTES: u64 = 1 << 20;

/// Why the names are not known.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error("failed to open the kubeconfig")]
    Open(#[from] OpenError),
    #[error("failed to read the kubeconfig {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the kubeconfig {path} has more than 1 MiB")]
    TooLarge { path: PathBuf },
    /// Without the parser's words: they may quote a credential.
    #[error("the kubeconfig {path} is not valid{}", line_text(*.line))]
    Syntax { path: PathBuf, line: Option<u64> },
    #[error("the kubeconfig {path} has no entry for its current context")]
    NoContext { path: PathBuf },
    #[error("the kubeconfig {path} names no server for its current context")]
    NoServer { path: PathBuf },
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

/// The cluster of the current context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// As written.
    pub server: String,
    pub tls_server_name: Option<String>,
    pub insecure_skip_tls_verify: bool,
    pub authority: Option<Authority>,
}

/// Whose certificate the server shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authority {
    /// Absolute.
    File(PathBuf),
    /// Base64 of PEM.
    Data(String),
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
    cluster: Option<ClusterWords>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct ClusterWords {
    #[serde(default)]
    certificate_authority: Option<String>,
    #[serde(default)]
    certificate_authority_data: Option<String>,
    #[serde(default)]
    server: Option<String>,
    #[serde(default)]
    tls_server_name: Option<String>,
    #[serde(default)]
    insecure_skip_tls_verify: Option<bool>,
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
    parse(&text(path)?, path)
}

/// Reads a kubeconfig under rule 1 and keeps the cluster. Blocks for the disk.
pub fn read_cluster(path: &Path) -> Result<Cluster, KubeconfigError> {
    parse_cluster(&text(path)?, path)
}

fn text(path: &Path) -> Result<String, KubeconfigError> {
    let file = std::fs::File::from(open::operator(path, FileKind::RegularFile)?);
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| KubeconfigError::Read { path: path.to_owned(), source })?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(KubeconfigError::TooLarge { path: path.to_owned() });
    }
    String::from_utf8(bytes).map_err(|_| KubeconfigError::Syntax { path: path.to_owned(), line: None })
}

/// The current context's entries of clusters and users.
fn current(text: &str, path: &Path) -> Result<(Option<ClusterWords>, Option<User>), KubeconfigError> {
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
    Ok((cluster, user))
}

/// An absolute path of a name in the kubeconfig at `path`.
fn file(path: &Path, name: Option<String>) -> Option<PathBuf> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    name.filter(|name| !name.is_empty()).map(|name| folder.join(name))
}

/// The names in a kubeconfig's text. Pure.
pub fn parse(text: &str, path: &Path) -> Result<NamedFiles, KubeconfigError> {
    let (cluster, user) = current(text, path)?;
    let (client_certificate, client_key, token) = match user {
        Some(user) => (user.client_certificate, user.client_key, user.token_file),
        None => (None, None, None),
    };
    Ok(NamedFiles {
        client_certificate: file(path, client_certificate),
        client_key: file(path, client_key),
        cluster_ca: file(path, cluster.and_then(|cluster| cluster.certificate_authority)),
        token: file(path, token),
    })
}

/// The cluster in a kubeconfig's text. Pure. A file of the authority wins over what stands in the kubeconfig (upstream
/// `certificate/bootstrap`, writeKubeconfigFromBootstrapping).
pub fn parse_cluster(text: &str, path: &Path) -> Result<Cluster, KubeconfigError> {
    let no_server = || KubeconfigError::NoServer { path: path.to_owned() };
    let words = current(text, path)?.0.ok_or_else(no_server)?;
    let set = |text: Option<String>| text.filter(|text| !text.is_empty());
    let server = set(words.server).filter(|text| is_word(text)).ok_or_else(no_server)?;
    let data = set(words.certificate_authority_data).map(|text| text.split_ascii_whitespace().collect::<String>());
    let authority = file(path, words.certificate_authority).map(Authority::File).or(data.map(Authority::Data));
    Ok(Cluster {
        server,
        tls_server_name: set(words.tls_server_name),
        insecure_skip_tls_verify: words.insecure_skip_tls_verify.unwrap_or(false),
        authority,
    })
}

/// A URL has no blank and nothing that is not printed.
fn is_word(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
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

    #[test]
    fn the_current_contexts_cluster() {
        let path = Path::new("/etc/kubernetes/bootstrap-kubelet.conf");
        let cluster = parse_cluster(TEXT, path).unwrap();
        assert_eq!(cluster.server, "https://10.0.0.1:6443");
        assert_eq!(cluster.authority, Some(Authority::File("/etc/kubernetes/pki/ca.crt".into())));
        assert_eq!((cluster.insecure_skip_tls_verify, cluster.tls_server_name), (false, None));
        let inline = TEXT.replace("certificate-authority: pki/ca.crt", "certificate-authority-data: QUJD");
        assert_eq!(parse_cluster(&inline, path).unwrap().authority, Some(Authority::Data("QUJD".to_owned())));
        let insecure = TEXT.replace("certificate-authority: pki/ca.crt", "insecure-skip-tls-verify: true");
        let cluster = parse_cluster(&insecure, path).unwrap();
        assert!(cluster.insecure_skip_tls_verify && cluster.authority.is_none());
        for bad in ["server: ''", "server: \"a b\"", "server: \"a\\nb\""] {
            let text = TEXT.replace("server: https://10.0.0.1:6443", bad);
            assert!(matches!(parse_cluster(&text, path), Err(KubeconfigError::NoServer { .. })), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in ".{0,200}") {
            let _ = parse(&text, Path::new("/k"));
            let _ = parse_cluster(&text, Path::new("/k"));
        }
    }
}
