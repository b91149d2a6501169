//! One image credential provider: asked by running its program, remembered as long as it allows.
//!
//! The program runs as this process's user and inside its filters. What it says is bounded and read strictly
//! (upstream `pkg/credentialprovider/plugin/plugin.go`).

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_apiclient::program::{self, ProgramError};
use bulkhead_config::credential_providers::CredentialProvider;
use bulkhead_cri::v1::AuthConfig;
use bulkhead_types::{GoDuration, chain};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::docker_config::Entry;
use super::matching::Pattern;
use super::metrics;
use crate::file_id::hex;
use crate::pull_records::Owner;

/// Programs of one provider that run at once: one that hangs leaves room for other images.
const QUESTIONS: usize = 4;

/// Why a provider gave nothing. Never holds a secret.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    #[error("{program}, run as this process's user: {}", chain(.source))]
    Program { program: String, source: ProgramError },
    #[error("{program}'s answer cannot be used: {problem}")]
    Answer { program: String, problem: String },
}

/// The token that a provider is given, and what it belongs to.
#[derive(Clone)]
pub struct ServiceAccountToken {
    pub token: String,
    pub annotations: BTreeMap<String, String>,
    /// Tells apart what may not share an answer.
    cache_key: String,
    /// `cacheType` is `Token`: the program may answer with the token itself.
    may_echo: bool,
    /// Whose it is.
    pub account: Owner,
}

impl ServiceAccountToken {
    /// `cache_type`: of the provider. An answer is for one account with these annotations, and with `Token` for one token (upstream
    /// generateServiceAccountCacheKey).
    pub fn new(token: String, annotations: BTreeMap<String, String>, account: Owner, cache_type: &str) -> Self {
        let may_echo = cache_type == "Token";
        let Owner { namespace, name, uid } = &account;
        let hash = if may_echo { hex(&Sha256::digest(token.as_bytes())) } else { String::new() };
        let cache_key = format!("{namespace}/{name}/{uid} {annotations:?} {hash}");
        ServiceAccountToken { token, annotations, cache_key, may_echo, account }
    }
}

impl std::fmt::Debug for ServiceAccountToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceAccountToken").finish_non_exhaustive()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    kind: &'static str,
    api_version: &'a str,
    image: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    service_account_token: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_account_annotations: Option<&'a BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    kind: String,
    api_version: String,
    cache_key_type: String,
    #[serde(default)]
    cache_duration: Option<GoDuration>,
    /// `null`, as what was built in Go writes a map that it has not made, is none.
    #[serde(default)]
    auth: Option<BTreeMap<String, Login>>,
}

#[derive(Deserialize)]
struct Login {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

/// Answers that are still good: until when, and what they were.
type Remembered = HashMap<String, (Instant, Arc<[Entry]>)>;

/// See the module.
#[derive(Debug)]
pub struct Provider {
    pub config: CredentialProvider,
    patterns: Vec<Pattern>,
    program: PathBuf,
    cache: Mutex<Remembered>,
    /// Who waits for his turn may find the answer in the cache then.
    asking: Semaphore,
}

impl Provider {
    pub fn new(config: CredentialProvider, bin_dir: &std::path::Path) -> Self {
        let patterns = config.match_images.iter().filter_map(|text| Pattern::of_images(text)).collect();
        let program = bin_dir.join(&config.name);
        Provider { config, patterns, program, cache: Mutex::default(), asking: Semaphore::new(QUESTIONS) }
    }

    /// Whether it is asked for this image at all.
    pub fn serves(&self, repository: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(repository))
    }

    /// Its credentials for an image: from memory, or from the program.
    ///
    /// # Errors
    /// See [`ProviderError`].
    pub async fn credentials(
        &self,
        repository: &str,
        token: Option<&ServiceAccountToken>,
    ) -> Result<Arc<[Entry]>, ProviderError> {
        if let Some(entries) = self.remembered(repository, token) {
            return Ok(entries);
        }
        // Never closed.
        let _turn = self.asking.acquire().await;
        if let Some(entries) = self.remembered(repository, token) {
            return Ok(entries);
        }
        let answer = self.ask(repository, token).await?;
        let (key, duration, entries) = self.read(&answer, repository, token)?;
        if !duration.is_zero() {
            let mut cache = self.cache.lock();
            let now = Instant::now();
            cache.retain(|_, (until, _)| *until > now);
            cache.insert(key, (now + duration, entries.clone()));
        }
        Ok(entries)
    }

    fn remembered(&self, repository: &str, token: Option<&ServiceAccountToken>) -> Option<Arc<[Entry]>> {
        let cache = self.cache.lock();
        let now = Instant::now();
        ["Image", "Registry", "Global"].iter().find_map(|kind| {
            let (until, entries) = cache.get(&cache_key(kind, repository, token)?)?;
            (*until > now).then(|| entries.clone())
        })
    }

    async fn ask(&self, repository: &str, token: Option<&ServiceAccountToken>) -> Result<Vec<u8>, ProviderError> {
        let request = Request {
            kind: "CredentialProviderRequest",
            api_version: &self.config.api_version,
            image: repository,
            service_account_token: token.map_or("", |t| &t.token),
            service_account_annotations: token.map(|t| &t.annotations).filter(|a| !a.is_empty()),
        };
        let question = serde_json::to_vec(&request).unwrap_or_default();
        let mut command = Command::new(&self.program);
        command.args(&self.config.args).envs(self.config.env.iter().map(|v| (&v.name, &v.value)));
        let failed = |source| ProviderError::Program { program: self.program.display().to_string(), source };
        let began = Instant::now();
        let answer = program::ask(&mut command, &question).await;
        metrics::ran(&self.config.name, began.elapsed(), answer.is_ok());
        answer.map_err(failed)
    }

    /// Key, time to keep, credentials.
    fn read(
        &self,
        answer: &[u8],
        repository: &str,
        token: Option<&ServiceAccountToken>,
    ) -> Result<(String, Duration, Arc<[Entry]>), ProviderError> {
        let program = self.program.display().to_string();
        let bad = |problem: String| ProviderError::Answer { program: program.clone(), problem };
        let response: Response = serde_json::from_slice(answer).map_err(|error| {
            bad(format!("no CredentialProviderResponse (line {}, column {})", error.line(), error.column()))
        })?;
        if response.kind != "CredentialProviderResponse" || response.api_version != self.config.api_version {
            return Err(bad(format!(
                "it is {:?} of {:?}, and must be CredentialProviderResponse of {:?}",
                response.kind, response.api_version, self.config.api_version
            )));
        }
        let key = cache_key(&response.cache_key_type, repository, token).ok_or_else(|| {
            bad(format!("cacheKeyType {:?} must be Image, Registry or Global", response.cache_key_type))
        })?;
        // One that is negative is over at once.
        let duration = response.cache_duration.map_or_else(|| self.config.cache_duration(), GoDuration::to_std);
        let mut entries = Vec::new();
        for (name, login) in response.auth.unwrap_or_default() {
            if token.is_some_and(|t| !t.may_echo && t.token == login.password) {
                return Err(bad(
                    "it gives the service account's token as the password, which cacheType Token alone allows"
                        .to_owned(),
                ));
            }
            // What names no host is for no image; upstream's Add leaves it out as well.
            let Some(pattern) = Pattern::of_credential(&name) else { continue };
            let auth = AuthConfig { username: login.username, password: login.password, ..AuthConfig::default() };
            entries.push(Entry { pattern, auth, email: String::new() });
        }
        Ok((key, duration, entries.into()))
    }
}

/// `None` for a kind that there is not.
fn cache_key(kind: &str, repository: &str, token: Option<&ServiceAccountToken>) -> Option<String> {
    let of = match kind {
        "Image" => repository,
        "Registry" => repository.split('/').next().unwrap_or(repository),
        "Global" => "<global>",
        _ => return None,
    };
    Some(match token {
        None => of.to_owned(),
        Some(token) => format!("{of} {}", token.cache_key),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const VERSION: &str = "credentialprovider.kubelet.k8s.io/v1";

    fn provider(folder: &std::path::Path, script: &str) -> Provider {
        let program = folder.join("helper");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let config = CredentialProvider {
            name: "helper".into(),
            match_images: vec!["*.test".into()],
            default_cache_duration: Some(GoDuration::from_secs(60)),
            api_version: VERSION.into(),
            args: Vec::new(),
            env: vec![bulkhead_config::credential_providers::ProviderVariable {
                name: "WHO".into(),
                value: "me".into(),
            }],
            token_attributes: None,
        };
        Provider::new(config, folder)
    }

    fn answering(key: &str, password: &str) -> String {
        format!(
            r#"cat > question; n=$(cat count 2>/dev/null || echo 0); echo $((n+1)) > count
echo '{{"kind":"CredentialProviderResponse","apiVersion":"{VERSION}","cacheKeyType":"{key}","auth":{{"registry.test":{{"username":"'$WHO'","password":"{password}"}}}}}}'"#
        )
        .replace("question", "$(dirname $0)/question")
        .replace("count", "$(dirname $0)/count")
    }

    #[tokio::test]
    async fn a_program_is_asked_once_for_a_registry() {
        let folder = tempfile::tempdir().unwrap();
        let provider = provider(folder.path(), &answering("Registry", "hunter2"));
        assert!(provider.serves("registry.test/a") && !provider.serves("registry.else/a"));
        for image in ["registry.test/a", "registry.test/b"] {
            let entries = provider.credentials(image, None).await.unwrap();
            assert_eq!((entries[0].auth.username.as_str(), entries[0].auth.password.as_str()), ("me", "hunter2"));
        }
        assert_eq!(std::fs::read_to_string(folder.path().join("count")).unwrap().trim(), "1");
        let question: serde_json::Value =
            serde_json::from_slice(&std::fs::read(folder.path().join("question")).unwrap()).unwrap();
        assert_eq!(question["image"], "registry.test/a");
        assert_eq!(question["kind"], "CredentialProviderRequest");
    }

    #[tokio::test]
    async fn no_credentials_are_an_answer_and_kept() {
        for auth in [r#","auth":null"#, r#","auth":{}"#, ""] {
            let folder = tempfile::tempdir().unwrap();
            let script = format!(
                r#"echo >> $(dirname $0)/count
echo '{{"kind":"CredentialProviderResponse","apiVersion":"{VERSION}","cacheKeyType":"Image"{auth}}}'"#
            );
            let provider = provider(folder.path(), &script);
            for _ in 0..2 {
                assert!(provider.credentials("registry.test/a", None).await.unwrap().is_empty(), "{auth}");
            }
            assert_eq!(std::fs::read_to_string(folder.path().join("count")).unwrap(), "\n", "{auth}: asked once");
        }
    }

    #[tokio::test]
    async fn an_answer_that_is_over_at_once_is_used_and_not_kept() {
        for (duration, asked) in [("-1s", 2), ("0s", 2), ("1h", 1)] {
            let folder = tempfile::tempdir().unwrap();
            let lasting = format!(r#""cacheDuration":"{duration}","auth""#);
            let provider = provider(folder.path(), &answering("Image", "p").replace(r#""auth""#, &lasting));
            for _ in 0..2 {
                assert_eq!(provider.credentials("registry.test/a", None).await.unwrap().len(), 1, "{duration}");
            }
            let count = std::fs::read_to_string(folder.path().join("count")).unwrap();
            assert_eq!(count.trim(), asked.to_string(), "{duration}");
        }
    }

    #[tokio::test]
    async fn a_name_without_a_host_takes_no_other_with_it() {
        for name in ["", "https://", ":5000", "/team"] {
            let folder = tempfile::tempdir().unwrap();
            let more = format!(r#""auth":{{"{name}":{{"username":"n"}},"#);
            let provider = provider(folder.path(), &answering("Image", "p").replace(r#""auth":{"#, &more));
            let entries = provider.credentials("registry.test/a", None).await.unwrap();
            assert_eq!(entries.iter().map(|entry| &*entry.auth.username).collect::<Vec<_>>(), ["me"], "{name:?}");
        }
    }

    #[tokio::test]
    async fn errors_of_a_credential_provider_quote_no_secret() {
        let folder = tempfile::tempdir().unwrap();
        let token =
            ServiceAccountToken::new("hunter2".into(), BTreeMap::new(), account(["n", "a", "u"]), "ServiceAccount");
        for (script, word) in [
            ("echo no access to /secret/file >&2; exit 3".to_owned(), "no access to /secret/file"),
            ("echo nonsense".to_owned(), "line 1"),
            (answering("Sometimes", "x"), "Sometimes"),
            (answering("Image", "hunter2"), "cacheType Token"),
        ] {
            let provider = provider(folder.path(), &script);
            let error = provider.credentials("registry.test/a", Some(&token)).await.unwrap_err().to_string();
            assert!(error.contains(word) && !error.contains("hunter2"), "{error}");
        }
        let provider = provider(folder.path(), "");
        std::fs::set_permissions(folder.path().join("helper"), std::fs::Permissions::from_mode(0o000)).unwrap();
        let error = provider.credentials("registry.test/a", None).await.unwrap_err().to_string();
        assert!(error.contains("helper") && error.contains("ermission"), "{error}");
    }

    fn account([namespace, name, uid]: [&str; 3]) -> Owner {
        Owner { namespace: namespace.into(), name: name.into(), uid: uid.into() }
    }

    fn annotations(role: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("domain.io/role".to_owned(), role.to_owned()), ("domain.io/id".to_owned(), "1".to_owned())])
    }

    /// Whether what was answered for `one` is taken for `other`, with each kind of answer: of the same image, of another image of its
    /// registry, and of another registry (upstream plugin_test.go, `Test_CacheKeyGeneration`).
    fn shared(one: Option<&ServiceAccountToken>, other: Option<&ServiceAccountToken>) -> [[bool; 3]; 3] {
        let images = ["test.registry.io/foo/bar", "test.registry.io/foo/other", "other.registry.io/foo/bar"];
        ["Image", "Registry", "Global"].map(|kind| {
            let key = |image, token| cache_key(kind, image, token).unwrap();
            images.map(|image| key(images[0], one) == key(image, other))
        })
    }

    const AS_WIDE_AS_ITS_KIND: [[bool; 3]; 3] = [[true, false, false], [true, true, false], [true, true, true]];
    const NOTHING: [[bool; 3]; 3] = [[false; 3]; 3];

    #[test]
    fn an_answer_is_as_wide_as_its_kind_and_cache_type() {
        let token = |text: &str, cache_type| {
            ServiceAccountToken::new(text.into(), annotations("admin"), account(["n", "a", "u"]), cache_type)
        };
        assert_eq!(shared(None, None), AS_WIDE_AS_ITS_KIND);
        for (cache_type, with_another_token) in [("ServiceAccount", AS_WIDE_AS_ITS_KIND), ("Token", NOTHING)] {
            let one = token("one", cache_type);
            assert_eq!(shared(Some(&one), Some(&token("one", cache_type))), AS_WIDE_AS_ITS_KIND, "{cache_type}");
            assert_eq!(shared(Some(&one), Some(&token("two", cache_type))), with_another_token, "{cache_type}");
            assert_eq!(shared(Some(&one), None), NOTHING, "{cache_type}");
        }
        assert_eq!(cache_key("Sometimes", "test.registry.io/foo/bar", None), None);
    }

    /// Upstream plugin_test.go, `TestGenerateServiceAccountCacheKey_Deterministic`.
    #[test]
    fn no_two_accounts_share_an_answer() {
        let mut all = Vec::new();
        for namespace in ["default", "kube-system"] {
            for name in ["service-account1", "service-account2"] {
                for uid in ["633a81d0", "1408a4e6"] {
                    for role in ["admin", "viewer"] {
                        all.push((account([namespace, name, uid]), annotations(role)));
                    }
                }
            }
        }
        for cache_type in ["ServiceAccount", "Token"] {
            let token = |index: usize| {
                let (account, annotations) = all[index].clone();
                ServiceAccountToken::new("same".into(), annotations, account, cache_type)
            };
            for (a, b) in (0..all.len()).flat_map(|a| (0..all.len()).map(move |b| (a, b))) {
                let expected = if a == b { AS_WIDE_AS_ITS_KIND } else { NOTHING };
                assert_eq!(shared(Some(&token(a)), Some(&token(b))), expected, "{:?} {:?}", all[a], all[b]);
            }
        }
    }
}
