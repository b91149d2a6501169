//! The image credential providers of `--image-credential-provider-config` and `-bin-dir`: decoded strictly and checked
//! at the start, as upstream does (`pkg/credentialprovider/plugin/config.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_types::GoDuration;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::kubelet_flags::check_qualified_name;

/// Largest configuration file, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
const GROUP: &str = "kubelet.config.k8s.io/";
const KIND: &str = "CredentialProviderConfig";
const EXEC_VERSIONS: [&str; 3] = [
    "credentialprovider.kubelet.k8s.io/v1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
    "credentialprovider.kubelet.k8s.io/v1alpha1",
];

/// What syncd runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CredentialProviders {
    pub bin_dir: PathBuf,
    /// In the order in which they are asked.
    pub providers: Vec<CredentialProvider>,
    /// `sha256:` and the hexadecimal digest of the files, for the metrics. None: an older version rendered this.
    #[serde(default)]
    pub config_hash: Option<String>,
}

/// One program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CredentialProvider {
    /// Of the program in the folder.
    pub name: String,
    /// Patterns `host[:port][/path]`, with `*` inside labels of the host.
    pub match_images: Vec<String>,
    pub default_cache_duration: Option<GoDuration>,
    /// Of the exchange with the program.
    pub api_version: String,
    #[serde(default, deserialize_with = "zero_if_null")]
    pub args: Vec<String>,
    #[serde(default, deserialize_with = "zero_if_null")]
    pub env: Vec<ProviderVariable>,
    #[serde(default)]
    pub token_attributes: Option<TokenAttributes>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderVariable {
    pub name: String,
    #[serde(default, deserialize_with = "zero_if_null")]
    pub value: String,
}

/// The program gets a service account's token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenAttributes {
    #[serde(default, deserialize_with = "zero_if_null")]
    pub service_account_token_audience: String,
    /// `ServiceAccount` or `Token`.
    #[serde(default, deserialize_with = "zero_if_null")]
    pub cache_type: String,
    pub require_service_account: Option<bool>,
    #[serde(default, deserialize_with = "zero_if_null")]
    pub required_service_account_annotation_keys: Vec<String>,
    #[serde(default, deserialize_with = "zero_if_null")]
    pub optional_service_account_annotation_keys: Vec<String>,
}

/// Names of the fields that are known of a provider, of a variable and of token attributes.
const KNOWN: [&[&str]; 3] = [
    &["name", "matchImages", "defaultCacheDuration", "apiVersion", "args", "env", "tokenAttributes"],
    &["name", "value"],
    &[
        "serviceAccountTokenAudience",
        "cacheType",
        "requireServiceAccount",
        "requiredServiceAccountAnnotationKeys",
        "optionalServiceAccountAnnotationKeys",
    ],
];

/// From the rendered configuration, which a newer version of `kubelet` may have written: what is not known there is left
/// out, where in an operator's file it is a mistake.
pub(crate) fn rendered<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<CredentialProviders>, D::Error> {
    use serde_json::Value;
    let keep = |value: &mut Value, known: &[&str]| {
        if let Value::Object(fields) = value {
            fields.retain(|name, _| known.contains(&name.as_str()));
        }
    };
    let Some(mut all) = Option::<Value>::deserialize(deserializer)? else { return Ok(None) };
    for provider in all.get_mut("providers").and_then(Value::as_array_mut).into_iter().flatten() {
        keep(provider, KNOWN[0]);
        for variable in provider.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten() {
            keep(variable, KNOWN[1]);
        }
        if let Some(attributes) = provider.get_mut("tokenAttributes") {
            keep(attributes, KNOWN[2]);
        }
    }
    serde_json::from_value(all).map(Some).map_err(serde::de::Error::custom)
}

impl CredentialProvider {
    /// How long an answer is kept that does not say so itself.
    pub fn cache_duration(&self) -> Duration {
        self.default_cache_duration.map_or(Duration::ZERO, GoDuration::to_std)
    }
}

/// Why the providers cannot be used. Each ends the start, as upstream.
#[derive(Debug, thiserror::Error)]
pub enum ProviderConfigError {
    #[error(
        "credential provider config path is empty: --image-credential-provider-bin-dir needs --image-credential-provider-config"
    )]
    NoConfig,
    #[error(
        "plugin binary directory is empty: --image-credential-provider-config needs --image-credential-provider-bin-dir"
    )]
    NoBinDir,
    #[error("failed to read the credential provider configuration {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the folder of credential provider configurations {} has no .json, .yaml or .yml file", path.display())]
    EmptyFolder { path: PathBuf },
    #[error("credential provider configuration {}: {problem}", path.display())]
    Invalid { path: PathBuf, problem: String },
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default, deserialize_with = "zero_if_null")]
    providers: Vec<CredentialProvider>,
}

/// `null` is Go's zero value.
fn zero_if_null<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Reads what the two flags name; `None` where neither is given.
///
/// # Errors
/// One flag without the other, a file cannot be read or decoded, a provider is not valid, two have one name, or a
/// program is not there or not executable.
pub fn load(config: &str, bin_dir: &str) -> Result<Option<CredentialProviders>, ProviderConfigError> {
    match (config.is_empty(), bin_dir.is_empty()) {
        (true, true) => return Ok(None),
        (true, false) => return Err(ProviderConfigError::NoConfig),
        (false, true) => return Err(ProviderConfigError::NoBinDir),
        (false, false) => {}
    }
    let (path, bin_dir) = (Path::new(config), Path::new(bin_dir));
    let mut providers: Vec<CredentialProvider> = Vec::new();
    let mut contents = Vec::new();
    for file in files(path)? {
        let invalid = |problem| ProviderConfigError::Invalid { path: file.clone(), problem };
        let read = |source| ProviderConfigError::Read { path: file.clone(), source };
        if std::fs::metadata(&file).map_err(read)?.len() > MAX_FILE_BYTES {
            return Err(invalid(format!("has more than {MAX_FILE_BYTES} bytes")));
        }
        let text = std::fs::read_to_string(&file).map_err(read)?;
        for provider in decode(&text).map_err(invalid)? {
            check(&provider, bin_dir).map_err(|problem| invalid(format!("provider {:?}: {problem}", provider.name)))?;
            if providers.iter().any(|other| other.name == provider.name) {
                return Err(invalid(format!("provider {:?} is there twice", provider.name)));
            }
            providers.push(provider);
        }
        contents.push(text);
    }
    if providers.is_empty() {
        let problem = "providers: at least one is needed".to_owned();
        return Err(ProviderConfigError::Invalid { path: path.to_owned(), problem });
    }
    Ok(Some(CredentialProviders { bin_dir: bin_dir.to_owned(), providers, config_hash: Some(hash(&contents)) }))
}

/// Of the files' contents in order, each behind its length (upstream readCredentialProviderConfig).
fn hash(contents: &[String]) -> String {
    let mut digest = Sha256::new();
    for content in contents {
        digest.update(u64::try_from(content.len()).unwrap_or(u64::MAX).to_be_bytes());
        digest.update(content);
    }
    let hex: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn files(path: &Path) -> Result<Vec<PathBuf>, ProviderConfigError> {
    let read = |source| ProviderConfigError::Read { path: path.to_owned(), source };
    if !std::fs::metadata(path).map_err(read)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(read)? {
        let file = entry.map_err(read)?.path();
        let extension = file.extension().and_then(|e| e.to_str());
        if matches!(extension, Some("json" | "yaml" | "yml")) && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() { Err(ProviderConfigError::EmptyFolder { path: path.to_owned() }) } else { Ok(files) }
}

fn decode(text: &str) -> Result<Vec<CredentialProvider>, String> {
    let document = crate::document::parse(text).map_err(|error| error.to_string())?;
    if let Some(twice) = document.duplicates.first() {
        return Err(format!("{twice} is written more than once"));
    }
    let file: File = serde_json::from_value(document.value).map_err(|error| error.to_string())?;
    let version = file.api_version.strip_prefix(GROUP).unwrap_or_default();
    if file.kind != KIND || !matches!(version, "v1" | "v1beta1" | "v1alpha1") {
        return Err(format!(
            "is {:?} of {:?}, and must be {KIND} of {GROUP}v1, {GROUP}v1beta1 or {GROUP}v1alpha1",
            file.kind, file.api_version
        ));
    }
    if version != "v1" && file.providers.iter().any(|p| p.token_attributes.is_some()) {
        return Err(format!("tokenAttributes are in {GROUP}v1 alone"));
    }
    Ok(file.providers)
}

fn check(provider: &CredentialProvider, bin_dir: &Path) -> Result<(), String> {
    let name = provider.name.as_str();
    if name.is_empty() || name.contains(['/', ' ']) || matches!(name, "." | "..") {
        return Err("name must be that of a file, without '/' and blanks".to_owned());
    }
    if provider.match_images.is_empty() {
        return Err("matchImages: at least one pattern is needed".to_owned());
    }
    if let Some(bad) = provider.match_images.iter().find(|pattern| !is_pattern(pattern)) {
        return Err(format!("matchImages: {bad:?} is not host[:port][/path]"));
    }
    match provider.default_cache_duration {
        None => return Err("defaultCacheDuration is needed".to_owned()),
        Some(duration) if duration.is_negative() => return Err("defaultCacheDuration must not be negative".to_owned()),
        Some(_) => {}
    }
    if !EXEC_VERSIONS.contains(&provider.api_version.as_str()) {
        return Err(format!("apiVersion {:?} must be one of {}", provider.api_version, EXEC_VERSIONS.join(", ")));
    }
    if let Some(attributes) = &provider.token_attributes {
        check_token(attributes, &provider.api_version)?;
    }
    let program = bin_dir.join(name);
    match std::fs::metadata(&program) {
        // Whoever may execute it, as for Go's exec.LookPath where root asks.
        Ok(meta) if meta.is_file() && meta.permissions().mode() & 0o111 == 0 => {
            Err(format!("error inspecting binary executable {}: permission denied", program.display()))
        }
        Ok(meta) if meta.is_file() => Ok(()),
        Ok(_) => Err(format!("{} is no file", program.display())),
        Err(error) => Err(format!("program {}: {error}", program.display())),
    }
}

/// `host[:port][/path]` with something as the host.
fn is_pattern(pattern: &str) -> bool {
    let authority = pattern.split('/').next().unwrap_or_default();
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        // An IPv6 address; what follows is nothing, or a port.
        Some((host, "")) => (host, "0"),
        Some((host, rest)) => (host, rest.strip_prefix(':').unwrap_or("no port")),
        None => authority.split_once(':').unwrap_or((authority, "0")),
    };
    !host.is_empty()
        && !pattern.contains("://")
        && !pattern.chars().any(|c| c.is_whitespace() || c.is_control())
        && port.parse::<u16>().is_ok()
}

fn check_token(attributes: &TokenAttributes, api_version: &str) -> Result<(), String> {
    if api_version != EXEC_VERSIONS[0] {
        return Err(format!("tokenAttributes need apiVersion {}", EXEC_VERSIONS[0]));
    }
    if attributes.service_account_token_audience.is_empty() {
        return Err("tokenAttributes.serviceAccountTokenAudience is needed".to_owned());
    }
    if !matches!(attributes.cache_type.as_str(), "ServiceAccount" | "Token") {
        return Err(format!("tokenAttributes.cacheType {:?} must be ServiceAccount or Token", attributes.cache_type));
    }
    let Some(required) = attributes.require_service_account else {
        return Err("tokenAttributes.requireServiceAccount is needed".to_owned());
    };
    if !required && !attributes.required_service_account_annotation_keys.is_empty() {
        return Err("tokenAttributes.requiredServiceAccountAnnotationKeys need requireServiceAccount".to_owned());
    }
    let all = attributes
        .required_service_account_annotation_keys
        .iter()
        .chain(&attributes.optional_service_account_annotation_keys);
    let mut seen = BTreeSet::new();
    for key in all {
        check_qualified_name(&key.to_lowercase()).map_err(|why| format!("annotation key {key:?}: {why}"))?;
        if !seen.insert(key) {
            return Err(format!("annotation key {key:?} is there twice"));
        }
    }
    Ok(())
}

impl CredentialProviders {
    /// Environment that a provider's program is given beside the daemon's own.
    pub fn environment(provider: &CredentialProvider) -> BTreeMap<&str, &str> {
        provider.env.iter().map(|v| (v.name.as_str(), v.value.as_str())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: helper
  matchImages: ["*.registry.test", "registry.test:5000/team"]
  defaultCacheDuration: 12h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  args: [--get]
  env: [{name: REGION, value: here}]
"#;

    fn put_program(folder: &Path, mode: u32) {
        let program = folder.join("helper");
        std::fs::write(&program, "").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn try_load(text: &str) -> Result<Option<CredentialProviders>, ProviderConfigError> {
        let folder = tempfile::tempdir().unwrap();
        put_program(folder.path(), 0o755);
        let file = folder.path().join("config.yaml");
        std::fs::write(&file, text).unwrap();
        load(file.to_str().unwrap(), folder.path().to_str().unwrap())
    }

    #[test]
    fn a_good_file_is_taken_and_both_flags_are_needed() {
        let found = try_load(GOOD).unwrap().unwrap();
        assert_eq!(found.providers[0].cache_duration(), Duration::from_secs(12 * 3600));
        assert_eq!(CredentialProviders::environment(&found.providers[0])["REGION"], "here");
        assert!(load("", "").unwrap().is_none());
        assert!(matches!(load("/x", "").unwrap_err(), ProviderConfigError::NoBinDir));
        assert!(matches!(load("", "/x").unwrap_err(), ProviderConfigError::NoConfig));
        let error = load("/nowhere/at-all", "/x").unwrap_err();
        assert!(error.to_string().contains("/nowhere/at-all"));
    }

    #[test]
    fn null_is_what_is_not_given() {
        let attributes = "tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: true, \
                          requiredServiceAccountAnnotationKeys: null, optionalServiceAccountAnnotationKeys: null}";
        let text = GOOD
            .replace("args: [--get]", &format!("args: null\n  {attributes}"))
            .replace("[{name: REGION, value: here}]", "[{name: REGION, value: null}]");
        let found = try_load(&text).unwrap().unwrap();
        assert!(found.providers[0].args.is_empty());
        assert_eq!(CredentialProviders::environment(&found.providers[0])["REGION"], "");
        let found = try_load(&GOOD.replace("[{name: REGION, value: here}]", "null")).unwrap().unwrap();
        assert!(found.providers[0].env.is_empty());
        let none = GOOD.split_once("providers:").unwrap().0.to_owned() + "providers: null\n";
        assert!(try_load(&none).unwrap_err().to_string().contains("at least one is needed"));
    }

    #[test]
    fn each_mistake_is_named() {
        for (from, to, word) in [
            ("kind: CredentialProviderConfig", "kind: Other", "Other"),
            ("io/v1\nkind", "io/v3\nkind", "v3"),
            ("name: helper", "name: a/b", "name"),
            ("name: helper", "name: absent", "absent"),
            ("[\"*.registry.test\", \"registry.test:5000/team\"]", "[]", "matchImages"),
            ("*.registry.test", "https://x", "https://x"),
            ("12h", "-1s", "defaultCacheDuration"),
            ("io/v1\n  args", "io/v9\n  args", "v9"),
            ("args: [--get]", "arms: []", "arms"),
            ("args: [--get]", "tokenAttributes: {cacheType: Token}", "Audience"),
        ] {
            let text = GOOD.replace(from, to);
            assert_ne!(text, GOOD, "{from}");
            let error = try_load(&text).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_program_is_to_be_executable() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        std::fs::write(&file, GOOD).unwrap();
        for (mode, taken) in [(0o755, true), (0o100, true), (0o001, true), (0o644, false), (0o000, false)] {
            put_program(folder.path(), mode);
            let loaded = load(file.to_str().unwrap(), folder.path().to_str().unwrap());
            assert_eq!(loaded.is_ok(), taken, "{mode:o}");
            if let Err(error) = loaded {
                let error = error.to_string();
                assert!(error.contains("error inspecting binary executable"), "{error}");
            }
        }
    }

    #[test]
    fn a_hash_is_of_each_file_behind_its_length() {
        // printf '\0\0\0\0\0\0\0\3one\0\0\0\0\0\0\0\2to' | sha256sum
        assert_eq!(
            hash(&["one".into(), "to".into()]),
            "sha256:5ffc9cefd8e031baf9bb4e5dcc8aec72c46e215445b3ca675a0706d6357d9163"
        );
        assert_ne!(hash(&["on".into(), "eto".into()]), hash(&["one".into(), "to".into()]));
        let found = try_load(GOOD).unwrap().unwrap();
        assert_eq!(found.config_hash, Some(hash(&[GOOD.into()])));
        // Rendered by a version that had none.
        let older: CredentialProviders = serde_json::from_str(r#"{"bin_dir": "/b", "providers": []}"#).unwrap();
        assert_eq!(older.config_hash, None);
    }

    #[test]
    fn patterns() {
        for good in ["*.io", "a.io:5000/x", "[fd00::1]:5000/x", "[fd00::1]/x"] {
            assert!(is_pattern(good), "{good}");
        }
        for bad in ["", "a.io:x", "fd00::1/x", "[fd00::1]5000", "https://a.io"] {
            assert!(!is_pattern(bad), "{bad}");
        }
    }

    #[test]
    fn a_folder_is_read_in_order_and_must_not_be_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        assert!(matches!(load(path, path), Err(ProviderConfigError::EmptyFolder { .. })));
        put_program(folder.path(), 0o755);
        std::fs::write(folder.path().join("b.yaml"), GOOD).unwrap();
        assert_eq!(load(path, path).unwrap().unwrap().providers.len(), 1);
        // One that names none is no error beside another.
        let (head, _) = GOOD.split_once("providers:").unwrap();
        std::fs::write(folder.path().join("c.yaml"), format!("{head}providers: []\n")).unwrap();
        assert_eq!(load(path, path).unwrap().unwrap().providers.len(), 1);
        std::fs::write(folder.path().join("a.yml"), GOOD).unwrap();
        assert!(load(path, path).unwrap_err().to_string().contains("twice"));
    }
}
