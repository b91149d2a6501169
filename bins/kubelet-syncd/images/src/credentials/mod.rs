//! Credentials for pulling an image, in the order in which they are tried: the pod's imagePullSecrets, the node's own
//! files, the image credential providers (upstream `pkg/credentialprovider`). They are looked up when an image has to be
//! pulled and not before.

pub mod docker_config;
pub mod matching;
pub mod metrics;
mod node_files;
mod provider;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bulkhead_config::credential_providers::{CredentialProviders, TokenAttributes};
use bulkhead_ipc::broker::BrokerClient;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use sha2::{Digest as _, Sha256};

use self::docker_config::Entry;
use self::matching::{Pattern, lookup};
use self::node_files::NodeFiles;
use self::provider::{Provider, ServiceAccountToken};
use super::file_id::hex;
use super::manager::Credential;
use super::pull_records::{self, Owner, Source};
use kubelet_model::objects::named_objects::{self, ObjectReferences};
use kubelet_model::objects::{Objects, TokenWanted};
use kubelet_model::pod::labels::go_json_string;

/// TokenRequest's default, for providers that get a token.
const TOKEN_SECONDS: i64 = 3600;

/// Each credential is tried with the registry: more of the pod's secrets are not.
const CREDENTIALS_MAX: usize = 256;
/// Of the pod's secrets so many are in memory at a time. One may be of 1 MiB, and a pod may name thousands.
const SECRETS_AT_ONCE: usize = 8;

/// For whom an image is pulled.
#[derive(Debug, Clone, Copy)]
pub struct Puller<'a> {
    pub namespace: &'a str,
    pub pod: &'a str,
    pub pod_uid: &'a str,
    pub service_account: &'a str,
    /// Names of `imagePullSecrets`.
    pub secrets: &'a [String],
}

/// What was found, and what was not to be had.
#[derive(Debug, Default)]
pub struct FoundCredentials {
    /// Each once from each of its sources.
    pub credentials: Vec<Credential>,
    /// Names of secrets that are not there or cannot be used.
    pub missing_secrets: Vec<String>,
    /// Why a provider gave nothing.
    pub provider_problems: Vec<String>,
}

/// All sources of credentials of this node.
#[derive(Debug)]
pub struct Keyring {
    objects: Arc<dyn Objects>,
    files: NodeFiles,
    providers: Vec<Provider>,
}

impl Keyring {
    pub fn new(objects: Arc<dyn Objects>, broker: BrokerClient, providers: Option<&CredentialProviders>) -> Self {
        let providers = providers
            .map(|all| all.providers.iter().map(|one| Provider::new(one.clone(), &all.bin_dir)).collect())
            .unwrap_or_default();
        Keyring { objects, files: NodeFiles::new(broker), providers }
    }

    /// Credentials for `repository` (`registry.test/team/app`, without tag and digest).
    pub async fn find(&self, puller: Puller<'_>, repository: &str) -> FoundCredentials {
        let mut found = FoundCredentials::default();
        let secrets = self.of_secrets(puller, repository, &mut found.missing_secrets).await;
        add(&mut found.credentials, &secrets, repository);
        add(&mut found.credentials, &sourced(self.files.entries().await.iter().cloned(), None), repository);
        let mut provided = Vec::new();
        for provider in self.providers.iter().filter(|provider| provider.serves(repository)) {
            let asked = match &provider.config.token_attributes {
                None => Ok(Asked::WithoutToken),
                Some(attributes) => self.asked(attributes, puller).await,
            };
            let token = match asked {
                Ok(Asked::WithToken(token)) => Some(token),
                Ok(Asked::WithoutToken) => None,
                Ok(Asked::Not) => continue,
                Err(problem) => {
                    found.provider_problems.push(format!("{}: {problem}", provider.config.name));
                    continue;
                }
            };
            let source = token.as_ref().map(|token| Source::ServiceAccount(token.account.clone()));
            match provider.credentials(repository, token.as_ref()).await {
                Ok(entries) => provided.extend(sourced(entries.iter().cloned(), source)),
                Err(error) => found.provider_problems.push(error.to_string()),
            }
        }
        // Those of all providers together, as upstream looks them up.
        add(&mut found.credentials, &provided, repository);
        found
    }

    /// What the pod's secrets have for the repository, the more special first and no more than can be tried.
    async fn of_secrets(&self, puller: Puller<'_>, repository: &str, missing: &mut Vec<String>) -> Vec<Sourced> {
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        // A name that stands there again gives nothing new, and its secret may be large.
        let each: Vec<&String> = puller.secrets.iter().filter(|name| seen.insert(name.as_str())).collect();
        for some in each.chunks(SECRETS_AT_ONCE) {
            let wanted = some.iter().map(|name| (*name).clone()).collect();
            let wanted = ObjectReferences { secrets: wanted, ..ObjectReferences::default() };
            let objects = named_objects::fetch(&*self.objects, puller.namespace, wanted).await;
            for name in some {
                let entries = match objects.secret(name) {
                    Ok(secret) => entries_of(secret, repository).map(|entries| (secret, entries)),
                    Err(error) => {
                        tracing::info!(secret = name, %error, "failed to get image pull secret");
                        None
                    }
                };
                let Some((secret, mut entries)) = entries else {
                    missing.push((*name).clone());
                    continue;
                };
                entries.sort_by(|a, b| a.pattern.rank().cmp(&b.pattern.rank()));
                entries.truncate(CREDENTIALS_MAX);
                found.extend(entries.into_iter().map(|entry| {
                    let source = secret_source(puller.namespace, secret, &entry);
                    (entry, Some(source))
                }));
                found.sort_by(|(a, _), (b, _)| a.pattern.rank().cmp(&b.pattern.rank()));
                found.truncate(CREDENTIALS_MAX);
                // A large one has taken its time.
                tokio::task::yield_now().await;
            }
        }
        found
    }

    /// How a provider that wants tokens is asked for this pod (upstream `pkg/credentialprovider/plugin/plugin.go`, provide).
    async fn asked(&self, attributes: &TokenAttributes, puller: Puller<'_>) -> Result<Asked, String> {
        if puller.service_account.is_empty() {
            // A static pod, mostly.
            return Ok(match attributes.require_service_account {
                Some(false) => Asked::WithoutToken,
                Some(true) | None => Asked::Not,
            });
        }
        let account = self.objects.service_account(puller.namespace, puller.service_account).await;
        let account = account.map_err(|error| error.to_string())?;
        let all = account.metadata.annotations.clone().unwrap_or_default();
        if attributes.required_service_account_annotation_keys.iter().any(|key| !all.contains_key(key)) {
            return Ok(Asked::Not);
        }
        let wanted_keys = attributes
            .required_service_account_annotation_keys
            .iter()
            .chain(&attributes.optional_service_account_annotation_keys);
        let annotations: BTreeMap<String, String> =
            wanted_keys.filter_map(|key| Some((key.clone(), all.get(key)?.clone()))).collect();
        let wanted = token_wanted(puller, &account, attributes);
        let token = self.objects.token(&wanted).await.map_err(|error| error.to_string())?.token;
        let owner = Owner {
            namespace: puller.namespace.to_owned(),
            name: puller.service_account.to_owned(),
            uid: account.metadata.uid.clone().unwrap_or_default(),
        };
        Ok(Asked::WithToken(ServiceAccountToken::new(token, annotations, owner, &attributes.cache_type)))
    }
}

/// The token of this very account: another one that is made under its name is not the one whose annotations were read (upstream
/// `pkg/credentialprovider/plugin/plugin.go`, getServiceAccountToken).
fn token_wanted(puller: Puller<'_>, account: &ServiceAccount, attributes: &TokenAttributes) -> TokenWanted {
    TokenWanted {
        namespace: puller.namespace.to_owned(),
        service_account: puller.service_account.to_owned(),
        service_account_uid: account.metadata.uid.clone(),
        audiences: vec![attributes.service_account_token_audience.clone()],
        expiration_seconds: TOKEN_SECONDS,
        pod_name: puller.pod.to_owned(),
        pod_uid: puller.pod_uid.to_owned(),
    }
}

/// How a provider is asked for a pod's credentials.
enum Asked {
    Not,
    WithoutToken,
    WithToken(ServiceAccountToken),
}

/// A credential for some registries, and where the pod has it from.
type Sourced = (Entry, Option<Source>);

fn sourced(entries: impl IntoIterator<Item = Entry>, source: Option<Source>) -> Vec<Sourced> {
    entries.into_iter().map(|entry| (entry, source.clone())).collect()
}

/// A pull secret and the credential in it, as records of pulls know them.
fn secret_source(namespace: &str, secret: &Secret, entry: &Entry) -> Source {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let owner =
        Owner { namespace: namespace.to_owned(), name: text(&secret.metadata.name), uid: text(&secret.metadata.uid) };
    Source::Secret(pull_records::Secret { owner, hash: credential_hash(entry) })
}

/// SHA-256 of the credential as upstream's Go writes it, so that records of either kubelet are the other's, too (upstream
/// `pkg/credentialprovider/keyring.go`, hashAuthConfig).
fn credential_hash(entry: &Entry) -> String {
    let fields = [("username", &entry.auth.username), ("password", &entry.auth.password), ("email", &entry.email)];
    let fields = fields.into_iter().filter(|(_, value)| !value.is_empty());
    let fields: Vec<String> = fields.map(|(name, value)| format!("\"{name}\":{}", go_json_string(value))).collect();
    hex(&Sha256::digest(format!("{{{}}}", fields.join(","))))
}

/// Those for the repository, the more special first, and none twice: the same credential from another source gives the right to an
/// image that was pulled with that source, too.
fn add(credentials: &mut Vec<Credential>, entries: &[Sourced], repository: &str) {
    for (entry, source) in lookup(entries, |(entry, _)| &entry.pattern, repository) {
        let credential = Credential { auth: entry.auth.clone(), source: source.clone() };
        if !credentials.contains(&credential) {
            credentials.push(credential);
        }
    }
}

/// What a secret of one of the two types may have for the repository; `None` when it is another one or cannot be read.
fn entries_of(secret: &Secret, repository: &str) -> Option<Vec<Entry>> {
    let wanted = |pattern: &Pattern| pattern.concerns(repository);
    let data = |key: &str| secret.data.as_ref()?.get(key).map(|bytes| bytes.0.as_slice());
    let name = secret.metadata.name.as_deref().unwrap_or_default();
    let parsed = match secret.type_.as_deref() {
        Some("kubernetes.io/dockerconfigjson") => docker_config::config_json(data(".dockerconfigjson")?, wanted),
        Some("kubernetes.io/dockercfg") => docker_config::dockercfg(data(".dockercfg")?, wanted),
        other => {
            tracing::info!(secret = name, kind = other, "ignoring image pull secret of another type");
            return None;
        }
    };
    parsed.inspect_err(|error| tracing::warn!(secret = name, %error, "failed to decode image pull secret")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_cri::v1::AuthConfig;
    use k8s_openapi::ByteString;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use kubelet_model::objects::NoObjects;

    fn entry(pattern: &str, password: &str) -> Entry {
        let auth = AuthConfig { password: password.into(), ..AuthConfig::default() };
        Entry { pattern: Pattern::of_credential(pattern).unwrap(), auth, email: String::new() }
    }

    fn attributes(required: bool) -> TokenAttributes {
        TokenAttributes {
            service_account_token_audience: "registry".into(),
            cache_type: "Token".into(),
            require_service_account: Some(required),
            required_service_account_annotation_keys: Vec::new(),
            optional_service_account_annotation_keys: Vec::new(),
        }
    }

    /// Of the text that Go's `json.Marshal` makes of upstream's AuthConfig.
    #[test]
    fn credentials_are_told_apart_as_upstream_does() {
        let of = |username: &str, password: &str, email: &str| {
            let auth = AuthConfig { username: username.into(), password: password.into(), ..AuthConfig::default() };
            credential_hash(&Entry { auth, email: email.into(), ..entry("r.test", "") })
        };
        let sum = |json: &str| hex(&Sha256::digest(json));
        for (credential, json) in [
            (of("u", "p", ""), r#"{"username":"u","password":"p"}"#),
            (of("u", "", "a@b.test"), r#"{"username":"u","email":"a@b.test"}"#),
            (of("u", "<&\"\u{2028}", ""), r#"{"username":"u","password":"\u003c\u0026\"\u2028"}"#),
            (of("", "", ""), "{}"),
        ] {
            assert_eq!(credential, sum(json), "{json}");
        }
    }

    #[test]
    fn the_more_special_first_and_none_twice() {
        let mut found = Vec::new();
        let entries =
            [entry("*.test", "a"), entry("registry.test/team", "b"), entry("registry.test", "a"), entry("x.y", "c")];
        add(&mut found, &sourced(entries, None), "registry.test/team/app");
        assert_eq!(found.iter().map(|one| one.auth.password.as_str()).collect::<Vec<_>>(), ["b", "a"]);
        let mut hub = Vec::new();
        let entries = sourced([entry("https://index.docker.io/v1/", "h")], None);
        add(&mut hub, &entries, "docker.io/library/busybox");
        assert_eq!(hub.len(), 1);
    }

    /// A record of a pull may name any of them.
    #[test]
    fn the_same_credential_of_two_secrets_has_both_sources() {
        let source = |name: &str| {
            let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
            Some(secret_source("n", &Secret { metadata, ..Secret::default() }, &entry("r.test", "p")))
        };
        let mut found = Vec::new();
        for one in [source("a"), source("b"), source("a"), None] {
            add(&mut found, &sourced([entry("r.test", "p"), entry("*.test", "p")], one), "r.test/app");
        }
        let sources: Vec<_> = found.into_iter().map(|credential| credential.source).collect();
        assert_eq!(sources, [source("a"), source("b"), None]);
    }

    #[test]
    fn a_token_is_wanted_of_the_account_that_was_read() {
        let puller = Puller { namespace: "n", pod: "p", pod_uid: "u", service_account: "a", secrets: &[] };
        let metadata = ObjectMeta { uid: Some("uid-1".into()), ..ObjectMeta::default() };
        let account = ServiceAccount { metadata, ..ServiceAccount::default() };
        let wanted = token_wanted(puller, &account, &attributes(true));
        let of = (&*wanted.namespace, &*wanted.service_account, wanted.service_account_uid.as_deref());
        assert_eq!(of, ("n", "a", Some("uid-1")));
        assert_eq!((wanted.audiences, wanted.expiration_seconds), (vec!["registry".to_owned()], 3600));
        assert_eq!((&*wanted.pod_name, &*wanted.pod_uid), ("p", "u"));
    }

    #[test]
    fn secrets_of_both_types_and_no_others() {
        let secret = |kind: &str, key: &str, text: &str| Secret {
            type_: Some(kind.into()),
            data: Some(BTreeMap::from([(key.to_owned(), ByteString(text.as_bytes().to_vec()))])),
            ..Secret::default()
        };
        let json = r#"{"auths":{"r.test":{"username":"u","password":"p"}}}"#;
        let name = "r.test/app";
        let plain = r#"{"r.test":{"username":"u","password":"p"}}"#;
        assert!(entries_of(&secret("kubernetes.io/dockerconfigjson", ".dockerconfigjson", json), name).is_some());
        assert!(entries_of(&secret("kubernetes.io/dockercfg", ".dockercfg", plain), name).is_some());
        assert!(entries_of(&secret("Opaque", ".dockerconfigjson", json), name).is_none());
        assert!(entries_of(&secret("kubernetes.io/dockercfg", "other", plain), name).is_none());
        let hub = r#"{"https://index.docker.io/v1/":{"username":"u","password":"p"},"index.docker.io/v1":{}}"#;
        let of =
            |repository| entries_of(&secret("kubernetes.io/dockercfg", ".dockercfg", hub), repository).unwrap().len();
        assert_eq!([of("docker.io/library/busybox"), of(name)], [1, 0]);
    }

    #[tokio::test]
    async fn a_provider_of_tokens_is_asked_for_a_pod_without_account_where_none_is_required() {
        use std::os::unix::fs::PermissionsExt as _;
        const VERSION: &str = "credentialprovider.kubelet.k8s.io/v1";
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("helper");
        let answer = format!(
            r#"{{"kind":"CredentialProviderResponse","apiVersion":"{VERSION}","cacheKeyType":"Image","auth":{{"registry.test":{{"username":"u","password":"p"}}}}}}"#
        );
        let script = format!("#!/bin/sh\ncat > $(dirname $0)/question\necho '{answer}'\n");
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        for (required, asked) in [(true, 0), (false, 1)] {
            let provider = bulkhead_config::credential_providers::CredentialProvider {
                name: "helper".into(),
                match_images: vec!["*.test".into()],
                default_cache_duration: Some(bulkhead_types::GoDuration::from_secs(60)),
                api_version: VERSION.into(),
                args: Vec::new(),
                env: Vec::new(),
                token_attributes: Some(attributes(required)),
            };
            let providers =
                CredentialProviders { bin_dir: folder.path().into(), providers: vec![provider], config_hash: None };
            let broker = BrokerClient::new(&folder.path().join("nobody.sock"));
            let keyring = Keyring::new(Arc::new(NoObjects::new("n", BTreeMap::new())), broker, Some(&providers));
            let puller = Puller { namespace: "n", pod: "p", pod_uid: "u", service_account: "", secrets: &[] };
            let found = keyring.find(puller, "registry.test/a").await;
            assert_eq!(found.provider_problems, Vec::<String>::new());
            assert_eq!(found.credentials.len(), asked, "requireServiceAccount: {required}");
            // The node's own, as what is pulled with no account of anybody's.
            assert!(found.credentials.iter().all(|one| one.source.is_none()));
        }
        let question = std::fs::read_to_string(folder.path().join("question")).unwrap();
        assert!(question.contains("registry.test/a") && !question.contains("serviceAccount"), "{question}");
    }

    #[tokio::test]
    async fn a_secret_that_is_not_there_is_named_and_the_pull_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let broker = BrokerClient::new(&folder.path().join("nobody.sock"));
        let keyring = Keyring::new(Arc::new(NoObjects::new("n", BTreeMap::new())), broker, None);
        let secrets = ["absent".to_owned(), "absent".to_owned()];
        let puller = Puller { namespace: "n", pod: "p", pod_uid: "u", service_account: "", secrets: &secrets };
        let found = keyring.find(puller, "registry.test/a").await;
        assert!(found.credentials.is_empty());
        assert_eq!(found.missing_secrets, ["absent"]);
    }
}
