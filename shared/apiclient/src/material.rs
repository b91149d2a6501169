//! From a kubeconfig and the files that it names to what a connection needs: server, trust, certificate, headers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use bulkhead_config::kubeconfig::{Cluster, Exec, Kubeconfig, KubeconfigError, Material as Named, Secret, User};
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, InvalidHeaderValue};
use tokio::time::Instant;

use crate::exec::{self, ExecCredential, ExecError};
use crate::server::{Server, ServerError};
use crate::source::{CredentialFile, CredentialSource, SourceError};
use crate::tls::{self, TlsError, Trust};

/// A credential that was just made is not made again: a server that refuses it would otherwise keep the program busy.
const EXEC_PAUSE: Duration = Duration::from_secs(10);

/// Why there are no credentials to work with.
#[derive(Debug, thiserror::Error)]
pub enum MaterialError {
    #[error("the kubeconfig")]
    Kubeconfig(#[from] KubeconfigError),
    #[error("{} (named by the kubeconfig's current context)", .file.name())]
    File { file: CredentialFile, source: SourceError },
    #[error("the kubeconfig")]
    KubeconfigFile(#[source] SourceError),
    #[error("the kubeconfig's server")]
    Server(#[from] ServerError),
    #[error("the kubeconfig's proxy-url is not supported: the API server has to be reached directly")]
    Proxy,
    #[error("tokenFile is empty")]
    EmptyToken,
    #[error("{what} cannot be sent in a header")]
    Header { what: &'static str, source: InvalidHeaderValue },
    #[error(
        "the kubeconfig runs a program for its credentials, which it did not when the node agent started and which this \
         process may therefore not do: restart the node agent"
    )]
    ProgramDenied,
    #[error(transparent)]
    Exec(#[from] ExecError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl MaterialError {
    /// Nothing is wrong that anybody could repair: kubelet-volnetd is away for the moment.
    pub fn is_unknown(&self) -> bool {
        matches!(self, MaterialError::File { source, .. } | MaterialError::KubeconfigFile(source) if source.is_unknown())
    }
}

/// What decides whether connections have to be made anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wire {
    pub server: Server,
    pub trust: Trust,
    /// Checked against the server's certificate instead of the host.
    pub server_name: Option<String>,
    /// Chain and key, PEM.
    pub certificate: Option<(Secret, Secret)>,
}

/// Everything that a kubeconfig gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Material {
    pub wire: Wire,
    /// Sent with each request.
    pub headers: HeaderMap,
    pub namespace: String,
    /// For the log: the user's entry and its kind of credential.
    pub identity: String,
    /// When the client certificate ends.
    pub certificate_expires: Option<jiff::Timestamp>,
}

/// Reads and combines; remembers the last answer of a credential program.
#[derive(Debug)]
pub struct Loader {
    folder: PathBuf,
    may_run_programs: bool,
    /// The pair that was signed for the node wins over what the kubeconfig has.
    prefers_signed: bool,
    cached: Option<Cached>,
}

#[derive(Debug)]
struct Cached {
    exec: Exec,
    cluster: Cluster,
    credential: ExecCredential,
    made: Instant,
}

impl Loader {
    /// `kubeconfig`: its path, for names that are relative to it. It is not opened. `prefers_signed`: while the node has a
    /// pair that was signed for it and has not ended, that is what it shows, and nothing else (upstream `cmd/kubelet/app`,
    /// buildKubeletClientConfig, where rotateCertificates is on).
    pub fn new(kubeconfig: &Path, may_run_programs: bool, prefers_signed: bool) -> Self {
        let folder = kubeconfig.parent().unwrap_or(Path::new("/")).to_owned();
        Loader { folder, may_run_programs, prefers_signed, cached: None }
    }

    /// The server refused our credential: a program's answer is not used again, unless it is brand-new.
    pub fn refused(&mut self) {
        self.cached.take_if(|cached| cached.made.elapsed() >= EXEC_PAUSE);
    }

    /// How long the current credential may be used from `now` on; None: until it is refused.
    pub fn refresh_in(&self, now: jiff::Timestamp) -> Option<Duration> {
        self.cached.as_ref().and_then(|cached| fresh_for(cached.credential.expires?, now))
    }

    /// Reads everything anew.
    ///
    /// # Errors
    /// See [`MaterialError`]; what was loaded before stays good.
    pub async fn load(&mut self, source: &dyn CredentialSource) -> Result<Material, MaterialError> {
        let bytes = source.read(CredentialFile::Kubeconfig).await.map_err(MaterialError::KubeconfigFile)?;
        let config = Kubeconfig::parse(&bytes)?;
        let Kubeconfig { cluster, user, namespace, .. } = config;
        if cluster.proxy_url.is_some() {
            return Err(MaterialError::Proxy);
        }
        let authority = match &cluster.certificate_authority {
            None => None,
            Some(named) => Some(bytes_of(source, CredentialFile::ClusterCa, named).await?),
        };
        let user = match self.signed(source).await? {
            None => user,
            Some(pair) => {
                let pair = Some(Named::Data(pair));
                User { name: user.name, client_certificate: pair.clone(), client_key: pair, ..User::default() }
            }
        };
        let secure = authority.is_some() || user.client_certificate.is_some() || cluster.insecure_skip_tls_verify;
        let server = Server::parse(&cluster.server, secure)?;
        let user = if server.is_tls() { user } else { without_credentials(user) };
        let mut certificate = match (&user.client_certificate, &user.client_key) {
            (Some(chain), Some(key)) => {
                let chain = bytes_of(source, CredentialFile::ClientCertificate, chain).await?;
                let key = bytes_of(source, CredentialFile::ClientKey, key).await?;
                let text = |bytes: Vec<u8>| Secret::new(String::from_utf8_lossy(&bytes).into_owned());
                Some((text(chain), text(key)))
            }
            _ => None,
        };
        let mut token = token(source, &user).await?;
        if let Some(exec) = user.program() {
            let made = self.credential(exec, &cluster, authority.as_deref()).await?;
            token = made.token;
            certificate = made.certificate;
        }
        let trust = match authority {
            _ if cluster.insecure_skip_tls_verify => Trust::Anyone,
            Some(pem) => Trust::Authority(pem),
            None => Trust::System,
        };
        let certificate_expires = certificate.as_ref().and_then(|(chain, _)| tls::not_after(chain.expose().as_bytes()));
        let identity = identity(&user, certificate.is_some(), token.is_some());
        let headers = headers(&user, token.as_ref())?;
        let wire = Wire { server, trust, server_name: cluster.tls_server_name, certificate };
        let namespace = namespace.unwrap_or_else(|| "default".to_owned());
        Ok(Material { wire, headers, namespace, identity, certificate_expires })
    }

    /// The pair that was signed for the node, where it counts and can be used.
    async fn signed(&self, source: &dyn CredentialSource) -> Result<Option<Vec<u8>>, MaterialError> {
        if !self.prefers_signed {
            return Ok(None);
        }
        let file = CredentialFile::ClientPair;
        match source.read(file).await {
            Ok(pair) if tls::is_pair(&pair) && tls::not_after(&pair).is_some_and(|at| at > jiff::Timestamp::now()) => {
                Ok(Some(pair))
            }
            Err(source) if source.is_unknown() => Err(MaterialError::File { file, source }),
            // The kubeconfig's own may still be good.
            Ok(_) | Err(_) => Ok(None),
        }
    }

    async fn credential(
        &mut self,
        exec: &Exec,
        cluster: &Cluster,
        authority: Option<&[u8]>,
    ) -> Result<ExecCredential, MaterialError> {
        if !self.may_run_programs {
            return Err(MaterialError::ProgramDenied);
        }
        if let Some(cached) = &self.cached
            && cached.exec == *exec
            && cached.cluster == *cluster
            && (cached.credential.expires.is_none_or(|at| fresh_for(at, jiff::Timestamp::now()).is_some())
                || cached.made.elapsed() < EXEC_PAUSE)
        {
            return Ok(cached.credential.clone());
        }
        let credential = exec::run(exec, cluster, authority, &self.folder).await?;
        self.cached = Some(Cached {
            exec: exec.clone(),
            cluster: cluster.clone(),
            credential: credential.clone(),
            made: Instant::now(),
        });
        Ok(credential)
    }
}

/// How long something that ends at `expires` is still fresh: a little less than it is valid, so that no request is sent
/// with what expires on its way. None: not any more.
fn fresh_for(expires: jiff::Timestamp, now: jiff::Timestamp) -> Option<Duration> {
    const MARGIN: Duration = Duration::from_secs(10);
    let left = Duration::try_from(expires.duration_since(now)).ok()?;
    left.checked_sub(MARGIN).filter(|left| !left.is_zero())
}

async fn bytes_of(
    source: &dyn CredentialSource,
    file: CredentialFile,
    named: &Named,
) -> Result<Vec<u8>, MaterialError> {
    match named {
        Named::Data(bytes) => Ok(bytes.clone()),
        Named::File(_) => source.read(file).await.map_err(|source| MaterialError::File { file, source }),
    }
}

/// The file wins; the token in the kubeconfig is what is left when there is no file or it cannot be read.
async fn token(source: &dyn CredentialSource, user: &User) -> Result<Option<Secret>, MaterialError> {
    if user.token_file.is_none() {
        return Ok(user.token.clone());
    }
    let file = CredentialFile::Token;
    let read = match source.read(file).await {
        Ok(bytes) => match std::str::from_utf8(&bytes).unwrap_or_default().trim() {
            "" => Err(MaterialError::EmptyToken),
            text => Ok(Secret::new(text)),
        },
        Err(source) => Err(MaterialError::File { file, source }),
    };
    match (read, &user.token) {
        (Ok(token), _) => Ok(Some(token)),
        (Err(error), Some(token)) if !error.is_unknown() => {
            tracing::debug!(%error, "using the kubeconfig's token in place of tokenFile");
            Ok(Some(token.clone()))
        }
        (Err(error), _) => Err(error),
    }
}

/// What of the user counts over plain http: whom the requests claim to be, and nothing that proves it (client-go
/// `tools/clientcmd`, ClientConfig).
fn without_credentials(user: User) -> User {
    User { name: user.name, impersonate: user.impersonate, ..User::default() }
}

fn identity(user: &User, certificate: bool, token: bool) -> String {
    let mut ways = Vec::new();
    for (used, way) in [
        (certificate, "client certificate"),
        (token, "token"),
        (user.basic.is_some(), "password"),
        (user.program().is_some(), "from a program"),
    ] {
        if used {
            ways.push(way);
        }
    }
    let ways = if ways.is_empty() { "no credentials".to_owned() } else { ways.join(", ") };
    format!("{} ({ways})", user.name)
}

fn headers(user: &User, token: Option<&Secret>) -> Result<HeaderMap, MaterialError> {
    let value = |what: &'static str, text: &str| {
        HeaderValue::from_str(text).map_err(|source| MaterialError::Header { what, source })
    };
    let mut headers = HeaderMap::new();
    let authorization = match (token, &user.basic) {
        (Some(token), _) => Some(format!("Bearer {}", token.expose())),
        (None, Some((name, password))) => {
            let pair = format!("{name}:{}", password.expose());
            Some(format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair)))
        }
        (None, None) => None,
    };
    if let Some(text) = authorization {
        let mut authorization = value("the token", &text)?;
        authorization.set_sensitive(true);
        headers.insert(AUTHORIZATION, authorization);
    }
    let claimed = &user.impersonate;
    if !claimed.user.is_empty() {
        headers.insert("impersonate-user", value("as", &claimed.user)?);
        if !claimed.uid.is_empty() {
            headers.insert("impersonate-uid", value("as-uid", &claimed.uid)?);
        }
        for group in &claimed.groups {
            headers.append("impersonate-group", value("as-groups", group)?);
        }
        for (key, values) in &claimed.extra {
            let name = format!("impersonate-extra-{}", escape_key(key));
            let Ok(name) = HeaderName::try_from(name) else { continue };
            for text in values {
                headers.append(&name, value("as-user-extra", text)?);
            }
        }
    }
    Ok(headers)
}

/// Keys are lower-cased, and what a header's name cannot hold is percent-encoded (client-go `transport`).
fn escape_key(key: &str) -> String {
    let mut escaped = String::new();
    for byte in key.to_lowercase().bytes() {
        if byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemorySource;

    fn with_user(user: &str) -> MemorySource {
        MemorySource::new(&format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{server: 'https://h:6443'}}}}]\nusers: [{{name: u, user: {user}}}]\n"
        ))
    }

    async fn load(source: &MemorySource, programs: bool) -> Result<Material, MaterialError> {
        Loader::new(Path::new("/etc/kubernetes/kubelet.conf"), programs, false).load(source).await
    }

    fn header<'a>(material: &'a Material, name: &str) -> &'a str {
        material.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    #[tokio::test]
    async fn ways_to_say_who_we_are() {
        let basic = load(&with_user("{username: u, password: p}"), false).await.unwrap();
        assert_eq!(header(&basic, "authorization"), "Basic dTpw");
        let token = load(&with_user("{token: abc}"), false).await.unwrap();
        assert_eq!(header(&token, "authorization"), "Bearer abc");
        assert!(!format!("{token:?}").contains("abc"));
        let claimed = "{token: abc, as: a, as-uid: u1, as-groups: [g, h], as-user-extra: {Scope/X: [v]}}";
        let claimed = load(&with_user(claimed), false).await.unwrap();
        assert_eq!((header(&claimed, "impersonate-user"), header(&claimed, "impersonate-uid")), ("a", "u1"));
        assert_eq!(claimed.headers.get_all("impersonate-group").iter().count(), 2);
        assert_eq!(header(&claimed, "impersonate-extra-scope%2fx"), "v");
    }

    #[tokio::test]
    async fn a_token_file_wins_and_falls_back() {
        let source = with_user("{token: inline, tokenFile: /t}");
        assert_eq!(header(&load(&source, false).await.unwrap(), "authorization"), "Bearer inline");
        source.put(CredentialFile::Token, " fresh\n");
        assert_eq!(header(&load(&source, false).await.unwrap(), "authorization"), "Bearer fresh");
        let source = with_user("{tokenFile: /t}");
        assert!(matches!(load(&source, false).await, Err(MaterialError::File { file: CredentialFile::Token, .. })));
        source.put(CredentialFile::Token, "\n");
        assert!(matches!(load(&source, false).await, Err(MaterialError::EmptyToken)));
        source.put(CredentialFile::Token, "a\nb");
        assert!(matches!(load(&source, false).await, Err(MaterialError::Header { .. })));
    }

    #[tokio::test]
    async fn a_program_beside_another_way_is_not_run() {
        // It may not run: what asks for it fails.
        const EXEC: &str = "exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: c}";
        for (beside, authorization) in [
            ("token: abc", "Bearer abc"),
            ("tokenFile: /t", "Bearer fresh"),
            ("username: u, password: p", "Basic dTpw"),
            ("client-certificate-data: YQ==, client-key-data: YQ==", ""),
        ] {
            let source = with_user(&format!("{{{EXEC}, {beside}}}"));
            source.put(CredentialFile::Token, "fresh");
            let material = load(&source, false).await.unwrap();
            assert_eq!(header(&material, "authorization"), authorization, "{beside}");
            assert!(!material.identity.contains("program"), "{}", material.identity);
        }
        let error = load(&with_user(&format!("{{{EXEC}, password: p}}")), false).await.unwrap_err();
        assert!(matches!(error, MaterialError::ProgramDenied), "{error:?}");
    }

    #[tokio::test]
    async fn over_plain_http_nothing_proves_who_we_are() {
        const EXEC: &str = "exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: c}";
        for user in
            ["token: abc", "tokenFile: /t", "username: u, password: p", "client-certificate: c, client-key: k", EXEC]
        {
            let text = format!(
                "current-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
                 clusters: [{{name: c, cluster: {{server: 'http://h:8080'}}}}]\nusers: [{{name: u, user: {{as: a, {user}}}}}]\n"
            );
            let mut loader = Loader::new(Path::new("/etc/kubernetes/kubelet.conf"), false, false);
            let material = loader.load(&MemorySource::new(&text)).await.unwrap();
            assert_eq!(material.wire.certificate, None, "{user}");
            assert_eq!(material.identity, "u (no credentials)");
            let names: Vec<&str> = material.headers.keys().map(HeaderName::as_str).collect();
            assert_eq!(names, ["impersonate-user"], "{user}");
        }
    }

    #[tokio::test]
    async fn what_is_broken_says_what() {
        let text = |error: MaterialError| bulkhead_types::chain(&error);
        let cases = [
            (
                "{client-certificate: c, client-key: k}",
                "client-certificate (named by the kubeconfig's current context): is not there",
            ),
            ("{exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: c}}", "restart the node agent"),
        ];
        for (user, expected) in cases {
            let error = text(load(&with_user(user), false).await.unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        let proxied = "current-context: c\ncontexts: [{name: c, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: 'https://h', proxy-url: 'http://u:pw@p'}}]";
        let error = text(load(&MemorySource::new(proxied), false).await.unwrap_err());
        assert!(error.contains("proxy-url") && !error.contains("pw"), "{error}");
        let gone = MemorySource::new("");
        gone.remove(CredentialFile::Kubeconfig);
        assert_eq!(text(load(&gone, false).await.unwrap_err()), "the kubeconfig: is not there");
    }

    #[tokio::test]
    async fn a_programs_credential_is_kept_until_it_expires_or_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let runs = dir.path().join("runs");
        let exec = |expires: &str| {
            let script = format!(
                "echo x >> {}; echo '{{\\\"kind\\\":\\\"ExecCredential\\\",\\\"apiVersion\\\":\\\"client.authentication.k8s.io/v1\\\",\\\"status\\\":{{\\\"token\\\":\\\"t\\\",\\\"expirationTimestamp\\\":\\\"{expires}\\\"}}}}'",
                runs.display()
            );
            with_user(&format!(
                "{{exec: {{apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: /bin/sh, args: [-c, \"{script}\"]}}}}"
            ))
        };
        let count = || std::fs::read_to_string(&runs).map_or(0, |text| text.lines().count());
        let source = exec("2999-01-01T00:00:00Z");
        let mut loader = Loader::new(Path::new("/etc/k"), true, false);
        for _ in 0..3 {
            assert_eq!(header(&loader.load(&source).await.unwrap(), "authorization"), "Bearer t");
        }
        assert_eq!(count(), 1);
        // Refused at once: the program is given a rest.
        loader.refused();
        loader.load(&source).await.unwrap();
        assert_eq!(count(), 1);
        tokio::time::pause();
        tokio::time::advance(EXEC_PAUSE).await;
        tokio::time::resume();
        loader.refused();
        loader.load(&source).await.unwrap();
        assert_eq!(count(), 2);
        assert!(loader.refresh_in(jiff::Timestamp::now()).is_some());
        // An answer that has expired already is used for the rest, and then asked for again.
        let source = exec("2001-01-01T00:00:00Z");
        let mut loader = Loader::new(Path::new("/etc/k"), true, false);
        loader.load(&source).await.unwrap();
        loader.load(&source).await.unwrap();
        assert_eq!(count(), 3);
        tokio::time::pause();
        tokio::time::advance(EXEC_PAUSE).await;
        tokio::time::resume();
        loader.load(&source).await.unwrap();
        assert_eq!(count(), 4);
    }

    #[test]
    fn freshness() {
        let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap();
        let expires = at("2030-01-01T00:01:00Z");
        assert_eq!(fresh_for(expires, at("2030-01-01T00:00:00Z")), Some(Duration::from_secs(50)));
        assert_eq!(fresh_for(expires, at("2030-01-01T00:00:50Z")), None);
        assert_eq!(fresh_for(expires, at("2031-01-01T00:00:00Z")), None);
    }
}
