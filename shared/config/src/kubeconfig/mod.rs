//! What a kubeconfig says for its current context: server, trust, and how to prove who we are.
//!
//! Parsed here and nowhere else, without touching a file that it names: who may open those is another's question.
//! Rules and precedence are those of upstream's loader (client-go `tools/clientcmd`): unknown fields are passed over,
//! two ways of saying one thing are refused, data and file of the same thing are refused.

mod read;
#[cfg(test)]
mod tests;

use std::fmt;

use serde_json::Value;

use read::Section;

/// A kubeconfig has some kilobytes; with certificates of a whole chain in it, some dozens.
pub const MAX_BYTES: usize = 1 << 20;
/// `apiVersion`s of the program interface that are spoken.
pub const EXEC_API_VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];
/// Name of the cluster's extension that is handed to a credential program.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";

/// Why a kubeconfig cannot be used. Each names the place in the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KubeconfigError {
    #[error("is larger than {MAX_BYTES} bytes")]
    TooLarge,
    #[error("is not UTF-8 text")]
    NotText,
    #[error("is neither YAML nor JSON: {0}")]
    Syntax(String),
    #[error("{path}: must be {expected}")]
    Type { path: String, expected: &'static str },
    #[error("{path}: is not valid base64")]
    Base64 { path: String },
    #[error("{path}: must be set: {why}")]
    Missing { path: String, why: &'static str },
    #[error("{path}: the name {name:?} appears more than once")]
    Duplicate { path: String, name: String },
    #[error("{path}: there is no entry named {name:?}")]
    Unknown { path: String, name: String },
    #[error("{path}: {first} and {second} cannot be set together")]
    Conflict { path: String, first: &'static str, second: &'static str },
    #[error("{path}: {value:?} is not supported; allowed: {allowed}")]
    Unsupported { path: String, value: String, allowed: &'static str },
}

/// Bytes in the file itself, or the name of another file (as written: relative to the kubeconfig's folder).
#[derive(Clone, PartialEq, Eq)]
pub enum Material {
    Data(Vec<u8>),
    File(String),
}

impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Material::Data(bytes) => write!(f, "{} bytes of data", bytes.len()),
            Material::File(name) => write!(f, "file {name:?}"),
        }
    }
}

/// Text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// The cluster of the current context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    pub name: String,
    /// As written; may lack a scheme and may have a path.
    pub server: String,
    /// Name to check the server's certificate against instead of the URL's host.
    pub tls_server_name: Option<String>,
    pub insecure_skip_tls_verify: bool,
    /// None: the machine's trusted roots.
    pub certificate_authority: Option<Material>,
    pub proxy_url: Option<String>,
    /// Configuration that a credential program gets with the cluster.
    pub exec_config: Option<Value>,
}

/// Whom the requests claim to be, headers `Impersonate-*`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Impersonate {
    pub user: String,
    pub uid: String,
    pub groups: Vec<String>,
    /// Key and its values.
    pub extra: Vec<(String, Vec<String>)>,
}

/// A program that prints a credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exec {
    /// One of [`EXEC_API_VERSIONS`].
    pub api_version: String,
    /// A name to find in PATH, or a path; with a slash and relative: below the kubeconfig's folder.
    pub command: String,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub provide_cluster_info: bool,
    /// For people, when the command is not there.
    pub install_hint: String,
}

/// The user of the current context. A client certificate may stand beside one other way to say who we are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub client_certificate: Option<Material>,
    pub client_key: Option<Material>,
    /// What to use while the token file cannot be read, or always when there is none.
    pub token: Option<Secret>,
    /// Wins over `token` (client-go `transport`).
    pub token_file: Option<String>,
    /// Name and password; there is no password without a name (client-go `transport`, HasBasicAuth).
    pub basic: Option<(String, Secret)>,
    /// As written; [`User::program`] says whether it counts.
    pub exec: Option<Exec>,
    pub impersonate: Impersonate,
}

impl User {
    /// The program whose credential is used: one beside a token, a password or a client certificate is never run (client-go
    /// `plugin/pkg/client/auth/exec`, UpdateTransportConfig).
    pub fn program(&self) -> Option<&Exec> {
        let others = self.token.is_some()
            || self.token_file.is_some()
            || self.basic.is_some()
            || (self.client_certificate.is_some() && self.client_key.is_some());
        self.exec.as_ref().filter(|_| !others)
    }
}

/// The current context with what it refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubeconfig {
    pub context: String,
    pub namespace: Option<String>,
    pub cluster: Cluster,
    pub user: User,
}

impl Kubeconfig {
    /// Parses the file's bytes, YAML or JSON.
    ///
    /// # Errors
    /// See [`KubeconfigError`]; nothing of the content of a secret is in it.
    pub fn parse(bytes: &[u8]) -> Result<Self, KubeconfigError> {
        if bytes.len() > MAX_BYTES {
            return Err(KubeconfigError::TooLarge);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| KubeconfigError::NotText)?;
        let value = match crate::document::parse(text) {
            Ok(document) => document.value,
            Err(error) => return Err(KubeconfigError::Syntax(one_line(&error.to_string()))),
        };
        if value.is_null() {
            return Err(KubeconfigError::Missing { path: "current-context".into(), why: "the file is empty" });
        }
        let root = Section::root(&value)?;
        for (key, allowed) in [("kind", "Config"), ("apiVersion", "v1")] {
            if let Some(found) = root.text(key)?
                && found != allowed
            {
                return Err(KubeconfigError::Unsupported { path: key.into(), value: found, allowed });
            }
        }
        let context_name = root.required("current-context", "it names the context to use")?;
        let context = root.body("contexts", "context", &context_name)?;
        let cluster_name = context.required("cluster", "a context names its cluster")?;
        let user_name = context.text("user")?;
        let cluster = cluster(cluster_name.clone(), &root.body("clusters", "cluster", &cluster_name)?)?;
        let user = match user_name {
            None => User::default(),
            // An entry with nothing but a name is somebody without credentials.
            Some(name) => match root.body_or_none("users", "user", &name)? {
                None => User { name, ..User::default() },
                Some(section) => user(name, &section)?,
            },
        };
        let namespace = context.text("namespace")?;
        Ok(Kubeconfig { context: context_name, namespace, cluster, user })
    }

    /// True when credentials come from a program that has to be started. Over plain http none are used.
    pub fn runs_program(&self) -> bool {
        let cluster = &self.cluster;
        // Without a scheme as the API client's `Server::parse` has it.
        let is_tls = match cluster.server.split_once("://") {
            Some((scheme, _)) => !scheme.eq_ignore_ascii_case("http"),
            None => cluster.certificate_authority.is_some() || cluster.insecure_skip_tls_verify,
        };
        self.user.program().is_some() && is_tls
    }
}

fn cluster(name: String, section: &Section<'_>) -> Result<Cluster, KubeconfigError> {
    let certificate_authority = section.material("certificate-authority", "certificate-authority-data")?;
    let insecure_skip_tls_verify = section.flag("insecure-skip-tls-verify")?;
    if insecure_skip_tls_verify && certificate_authority.is_some() {
        return Err(section.conflict("insecure-skip-tls-verify", "a certificate authority"));
    }
    Ok(Cluster {
        name,
        server: section.required("server", "it is the API server's URL")?,
        tls_server_name: section.text("tls-server-name")?,
        insecure_skip_tls_verify,
        certificate_authority,
        proxy_url: section.text("proxy-url")?,
        exec_config: section.extension(EXEC_EXTENSION)?,
    })
}

fn user(name: String, section: &Section<'_>) -> Result<User, KubeconfigError> {
    let client_certificate = section.material("client-certificate", "client-certificate-data")?;
    let client_key = section.material("client-key", "client-key-data")?;
    match (&client_certificate, &client_key) {
        (Some(_), None) => {
            return Err(KubeconfigError::Missing {
                path: section.path("client-key"),
                why: "a client certificate needs its key (client-key or client-key-data)",
            });
        }
        (None, Some(_)) => {
            return Err(KubeconfigError::Missing {
                path: section.path("client-certificate"),
                why: "a client key needs its certificate (client-certificate or client-certificate-data)",
            });
        }
        _ => {}
    }
    let (token, token_file) = (section.text("token")?, section.text("tokenFile")?);
    let (username, password) = (section.text("username")?, section.text("password")?);
    if (token.is_some() && (username.is_some() || password.is_some())) || (token_file.is_some() && username.is_some()) {
        return Err(section.conflict("a token", "username or password"));
    }
    let basic = username.map(|username| (username, Secret::new(password.unwrap_or_default())));
    if let Some(provider) = section.section("auth-provider")? {
        return Err(KubeconfigError::Unsupported {
            path: section.path("auth-provider"),
            value: provider.text("name")?.unwrap_or_default(),
            allowed: "exec (providers built into the client were removed in Kubernetes 1.26)",
        });
    }
    let exec = section.section("exec")?.map(|section| exec(&section)).transpose()?;
    let impersonate = Impersonate {
        user: section.text("as")?.unwrap_or_default(),
        uid: section.text("as-uid")?.unwrap_or_default(),
        groups: section.texts("as-groups")?,
        extra: section.text_lists("as-user-extra")?,
    };
    let others = !impersonate.uid.is_empty() || !impersonate.groups.is_empty() || !impersonate.extra.is_empty();
    if impersonate.user.is_empty() && others {
        return Err(KubeconfigError::Missing {
            path: section.path("as"),
            why: "as-uid, as-groups and as-user-extra only go with it",
        });
    }
    let token = token.map(Secret::new);
    Ok(User { name, client_certificate, client_key, token, token_file, basic, exec, impersonate })
}

fn exec(section: &Section<'_>) -> Result<Exec, KubeconfigError> {
    let api_version = section.required("apiVersion", "it is the form in which the program answers")?;
    if !EXEC_API_VERSIONS.contains(&api_version.as_str()) {
        return Err(KubeconfigError::Unsupported {
            path: section.path("apiVersion"),
            value: api_version,
            allowed: "client.authentication.k8s.io/v1, client.authentication.k8s.io/v1beta1",
        });
    }
    match section.text("interactiveMode")?.as_deref() {
        Some("Never" | "IfAvailable") => {}
        None if api_version.ends_with("/v1beta1") => {}
        None => {
            return Err(KubeconfigError::Missing {
                path: section.path("interactiveMode"),
                why: "client.authentication.k8s.io/v1 asks for it; Never or IfAvailable",
            });
        }
        Some(other) => {
            return Err(KubeconfigError::Unsupported {
                path: section.path("interactiveMode"),
                value: other.to_owned(),
                allowed: "Never, IfAvailable (a node agent has no terminal)",
            });
        }
    }
    Ok(Exec {
        command: section.required("command", "it is the program to run")?,
        args: section.texts("args")?,
        env: section.pairs("env")?,
        provide_cluster_info: section.flag("provideClusterInfo")?,
        install_hint: section.text("installHint")?.unwrap_or_default(),
        api_version,
    })
}

/// Parser messages end up in one log line; what they quote may be a secret and is left out.
fn one_line(message: &str) -> String {
    let mut line = String::new();
    let mut quote = None;
    for c in message.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(300) {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if matches!(c, '"' | '`' | '\'') => {
                quote = Some(c);
                line.push_str("...");
            }
            None => line.push(c),
        }
    }
    line
}
