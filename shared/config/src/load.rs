//! Reading `--config` and `--config-dir`: decode, warn, default, merge.
//!
//! A document that only fails the strict check (unknown or duplicate fields) is taken leniently with one warning for
//! each such field; a wrong kind or type is refused with every finding at once.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::defaults::{Presence, complete_eviction_hard, set_defaults};
use crate::document::{self, merge_patch};
use crate::field::{Field, FieldError, Findings, folded};
use crate::gates::FeatureGates;
use crate::kubelet::{API_VERSION, KIND, KubeletConfiguration};
use crate::path_text;

/// Larger files are refused unread: a configuration has a few kilobytes.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Nesting of drop-in folders, so that a bind-mounted loop ends.
const MAX_DEPTH: usize = 32;

/// Why the configuration could not be loaded. Every variant names the file.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("failed to read configuration file {path:?}")]
    Read { path: PathBuf, source: io::Error },
    #[error("failed to list drop-in directory {path:?}")]
    List { path: PathBuf, source: io::Error },
    #[error("configuration file {path:?} is larger than {MAX_FILE_BYTES} bytes")]
    TooLarge { path: PathBuf },
    #[error("configuration file {path:?} is empty")]
    Empty { path: PathBuf },
    #[error("configuration file {path:?} is neither YAML nor JSON: {message}")]
    Syntax { path: PathBuf, message: String },
    #[error("configuration file {path:?} is refused:{}", list(errors))]
    Fields { path: PathBuf, errors: Vec<FieldError> },
}

fn list(errors: &[FieldError]) -> String {
    errors.iter().map(|error| format!("\n  {error}")).collect()
}

/// A configuration with what is to be said about how it was written.
#[derive(Debug)]
pub struct Loaded {
    pub config: KubeletConfiguration,
    /// One line for each unknown or duplicate field.
    pub warnings: Vec<String>,
}

/// Loads the `--config` file: decoded, defaulted, its relative paths resolved against its own folder.
pub fn load_file(path: &Path, process_gates: &BTreeMap<String, bool>) -> Result<Loaded, LoadError> {
    let value_and_duplicates = read(path)?;
    let document::Document { value, duplicates } = value_and_duplicates;
    let mut findings = Findings::default();
    check_kind(&value, &mut findings);
    let mut config = match &value {
        Value::Object(_) => KubeletConfiguration::decode(&value, "", &mut findings),
        // Said already, and there are no fields to look at.
        _ => KubeletConfiguration::default(),
    };
    if !findings.errors.is_empty() {
        return Err(LoadError::Fields { path: path.to_owned(), errors: findings.errors });
    }
    let mut warnings: Vec<String> = Vec::new();
    for unknown in &findings.unknown {
        warnings.push(format!("configuration file {path:?}: unknown field {unknown:?} is ignored"));
    }
    for duplicate in &duplicates {
        warnings.push(format!(
            "configuration file {path:?}: field {duplicate:?} is set more than once, the last one counts"
        ));
    }
    let gates = overlaid(process_gates, &config.feature_gates);
    set_defaults(&mut config, Presence::of(&value), &gates);
    let named = value.get("evictionHard").is_some_and(|map| !map.is_null());
    complete_eviction_hard(&mut config, named);
    resolve_relative_paths(&mut config, path);
    Ok(Loaded { config, warnings })
}

/// Merges the drop-ins of `--config-dir` over `base`, in lexical order. Also where there are none what is empty in `base` is left
/// out, and defaulted anew (upstream `cmd/kubelet/app/server.go` mergeKubeletConfigurations).
pub fn merge_drop_ins(
    base: &KubeletConfiguration,
    directory: &Path,
    process_gates: &BTreeMap<String, bool>,
) -> Result<KubeletConfiguration, LoadError> {
    let mut files = Vec::new();
    walk(directory, 0, &mut files)?;
    let mut merged = serde_json::to_value(base).unwrap_or(Value::Null);
    let mut last = directory.to_owned();
    for file in files {
        let document = read(&file)?;
        // The file itself is decoded strictly, though into no type: a key twice is an error, an unknown one is not.
        let twice = |path: &String| FieldError::new(path, "", "must not be set more than once");
        let errors = document.duplicates.iter().map(twice).collect();
        let mut findings = Findings { errors, ..merged_findings() };
        check_kind(&document.value, &mut findings);
        if findings.errors.is_empty() {
            // Type errors are found here, where the file is still known; unknown fields are nobody's concern.
            KubeletConfiguration::decode(&document.value, "", &mut findings);
        }
        if !findings.errors.is_empty() {
            return Err(LoadError::Fields { path: file, errors: findings.errors });
        }
        merge_patch(&mut merged, &document.value);
        last = file;
    }
    let mut findings = merged_findings();
    let merged = match &merged {
        Value::Object(entries) => Value::Object(folded(entries, KubeletConfiguration::FIELDS, true).into_owned()),
        _ => merged,
    };
    let mut config = KubeletConfiguration::decode(&merged, "", &mut findings);
    if !findings.errors.is_empty() {
        return Err(LoadError::Fields { path: last, errors: findings.errors });
    }
    let gates = overlaid(process_gates, &config.feature_gates);
    set_defaults(&mut config, Presence::of(&merged), &gates);
    Ok(config)
}

/// What is merged is decoded by upstream with `encoding/json` (`cmd/kubelet/app/server.go` mergeKubeletConfigurations), to which
/// the case of a field's name is nothing.
fn merged_findings() -> Findings {
    Findings { any_case: true, ..Findings::default() }
}

fn overlaid(process: &BTreeMap<String, bool>, object: &BTreeMap<String, bool>) -> FeatureGates {
    let mut all = process.clone();
    all.extend(object.iter().map(|(name, value)| (name.clone(), *value)));
    FeatureGates::from_map(&all)
}

fn read(path: &Path) -> Result<document::Document, LoadError> {
    let unreadable = |source| LoadError::Read { path: path.to_owned(), source };
    let file = fs::File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    let length = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if length as u64 > MAX_FILE_BYTES {
        return Err(LoadError::TooLarge { path: path.to_owned() });
    }
    if text.trim().is_empty() {
        return Err(LoadError::Empty { path: path.to_owned() });
    }
    let document = document::parse(&text)
        .map_err(|error| LoadError::Syntax { path: path.to_owned(), message: error.to_string() })?;
    if document.value.is_null() {
        return Err(LoadError::Empty { path: path.to_owned() });
    }
    Ok(document)
}

fn check_kind(value: &Value, findings: &mut Findings) {
    if !value.is_object() {
        findings.errors.push(FieldError::new("(document)", value, "must be an object of kind KubeletConfiguration"));
        return;
    }
    for (field, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let found = value.get(field).unwrap_or(&Value::Null);
        if found.as_str() != Some(wanted) {
            let shown = if found.is_null() { "(not set)".to_owned() } else { found.to_string() };
            findings.errors.push(FieldError::new(field, shown, format!("must be {wanted:?}")));
        }
    }
}

/// Upstream resolves exactly these seven.
fn resolve_relative_paths(config: &mut KubeletConfiguration, file: &Path) {
    let folder = file.parent().map(Path::to_owned).unwrap_or_default();
    let folder =
        std::path::absolute(if folder.as_os_str().is_empty() { Path::new(".") } else { &folder }).unwrap_or(folder);
    let resolve = |path: &mut String| {
        if !path.is_empty() && !path.starts_with('/') {
            *path = path_text::clean(&format!("{}/{path}", folder.display()));
        }
    };
    resolve(&mut config.static_pod_path);
    resolve(&mut config.authentication.x509.client_ca_file);
    resolve(&mut config.tls_cert_file);
    resolve(&mut config.tls_private_key_file);
    if let Some(path) = &mut config.resolv_conf {
        resolve(path);
    }
    resolve(&mut config.volume_plugin_dir);
    resolve(&mut config.pod_logs_dir);
}

/// `*.conf` files below a folder; entries in byte order, a folder entered where it stands, links to folders not followed.
fn walk(directory: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), LoadError> {
    let unlisted = |source| LoadError::List { path: directory.to_owned(), source };
    if depth > MAX_DEPTH {
        return Err(unlisted(io::Error::other("folders are nested too deeply")));
    }
    let mut entries = fs::read_dir(directory).map_err(unlisted)?.collect::<Result<Vec<_>, _>>().map_err(unlisted)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type().map_err(unlisted)?;
        let path = entry.path();
        if kind.is_dir() {
            walk(&path, depth + 1, files)?;
        } else if entry.file_name().to_string_lossy().ends_with(".conf") {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    fn load(body: &str) -> Result<Loaded, LoadError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        let mut text = format!("apiVersion: {API_VERSION}\nkind: {KIND}\n");
        text.write_str(body).unwrap();
        fs::write(&path, text).unwrap();
        load_file(&path, &BTreeMap::new())
    }

    fn refusal(body: &str) -> String {
        load(body).expect_err(body).to_string()
    }

    #[test]
    fn the_recorded_node_gets_the_recorded_configuration() {
        let loaded = load(
            "staticPodPath: /etc/lab/manifests\ntlsCertFile: /etc/lab/pki/kubelet-serving.crt\n\
             tlsPrivateKeyFile: /etc/lab/pki/kubelet-serving.key\n\
             authentication: {x509: {clientCAFile: /etc/lab/pki/ca.crt}}\nregistryPullQPS: 0\n\
             clusterDomain: cluster.local\nclusterDNS: [10.96.0.10]\nmaxPods: 250\nfailSwapOn: false\nfailCgroupV1: false\n\
             evictionHard: {imagefs.available: 1%, memory.available: 100Mi, nodefs.available: 1%, nodefs.inodesFree: 1%}\n\
             containerRuntimeEndpoint: unix:///run/containerd/proxy.sock\n",
        )
        .unwrap();
        // What upstream 1.36 answered on /configz for this file.
        let recorded = include_str!("../testdata/configz.json").trim();
        assert_eq!(serde_json::to_string(&loaded.config).unwrap(), recorded);
        let back: KubeletConfiguration = serde_json::from_str(recorded).unwrap();
        assert_eq!(back, loaded.config);
        assert!(loaded.warnings.is_empty());
    }

    #[test]
    fn zero_is_unset_unless_it_is_a_pointer() {
        let config =
            load("syncFrequency: 0s\nmaxPods: 0\neventBurst: 0\nregistryBurst: 0\nhealthzPort: 0\neventRecordQPS: 0\n")
                .unwrap()
                .config;
        assert_eq!(config.sync_frequency.to_string(), "1m0s");
        assert_eq!((config.max_pods, config.event_burst, config.registry_burst), (110, 100, 10));
        assert_eq!((config.healthz_port(), config.event_record_qps()), (0, 0));
    }

    #[test]
    fn kubeadms_zero_values_are_taken() {
        let loaded = load(
            "syncFrequency: 0s\nmemorySwap: {}\ncrashLoopBackOff: {}\nlogging:\n  flushFrequency: 0\n  options:\n    \
             json: {infoBufferSize: \"0\"}\n    text: {infoBufferSize: \"0\"}\n  verbosity: 0\ncpuManagerReconcilePeriod: 0s\n\
             shutdownGracePeriod: 0s\nimageMaximumGCAge: 0s\ncontainerRuntimeEndpoint: \"\"\n",
        )
        .unwrap();
        assert!(loaded.warnings.is_empty());
        assert_eq!(serde_json::to_value(loaded.config.logging.flush_frequency).unwrap(), "5s");
        assert!(loaded.config.shutdown_grace_period.is_zero());
        assert_eq!(loaded.config.container_runtime_endpoint, "unix:///run/containerd/containerd.sock");
    }

    #[test]
    fn a_flush_frequency_is_written_as_it_was_read() {
        let folder = tempfile::tempdir().unwrap();
        let none = BTreeMap::new();
        for (given, written) in [
            ("5000000000", serde_json::json!(5_000_000_000_u64)),
            ("1", serde_json::json!(1)),
            ("5s", serde_json::json!("5s")),
            ("0", serde_json::json!("5s")),
            ("null", serde_json::json!("5s")),
            ("0s", serde_json::json!("5s")),
        ] {
            let config = load(&format!("logging: {{flushFrequency: {given}}}")).unwrap().config;
            let shown = serde_json::to_value(&config).unwrap();
            assert_eq!(shown["logging"]["flushFrequency"], written, "{given}");
            // The same for the daemons, and below drop-ins.
            assert_eq!(serde_json::from_value::<KubeletConfiguration>(shown).unwrap(), config, "{given}");
            assert_eq!(merge_drop_ins(&config, folder.path(), &none).unwrap(), config, "{given}");
        }
    }

    #[test]
    fn a_folder_without_drop_ins_defaults_anew() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("10.yaml"), "maxPods: 5\n").unwrap();
        let merged = |body: &str| {
            let base = load(body).unwrap().config;
            merge_drop_ins(&base, folder.path(), &BTreeMap::new()).unwrap()
        };
        assert_eq!(merged("enforceNodeAllocatable: []").enforce_node_allocatable, ["pods"]);
        assert_eq!(merged("enforceNodeAllocatable: [none]").enforce_node_allocatable, ["none"]);
        let untouched = "maxPods: 20\nevictionHard: {}\n";
        assert_eq!(merged(untouched), load(untouched).unwrap().config);
    }

    #[test]
    fn report_period_follows_an_explicit_update_period() {
        assert_eq!(load("").unwrap().config.node_status_report_frequency.to_string(), "5m0s");
        assert_eq!(
            load("nodeStatusUpdateFrequency: 30s").unwrap().config.node_status_report_frequency.to_string(),
            "30s"
        );
    }

    #[test]
    fn serial_pulls_give_way_to_a_parallel_limit() {
        assert!(load("").unwrap().config.serialize_image_pulls.unwrap());
        assert!(load("maxParallelImagePulls: 1").unwrap().config.serialize_image_pulls.unwrap());
        assert!(!load("maxParallelImagePulls: 2").unwrap().config.serialize_image_pulls.unwrap());
    }

    #[test]
    fn eviction_hard_is_all_or_nothing_unless_merged() {
        assert_eq!(load("").unwrap().config.eviction_hard.len(), 5);
        assert_eq!(load("evictionHard: {}").unwrap().config.eviction_hard.len(), 0);
        assert_eq!(load("evictionHard: null").unwrap().config.eviction_hard.len(), 5);
        assert_eq!(load("evictionHard: {pid.available: 5%}").unwrap().config.eviction_hard.len(), 1);
        let merged = load("evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true").unwrap().config;
        assert_eq!(merged.eviction_hard.len(), 5);
        assert_eq!(merged.eviction_hard["memory.available"], "1Gi");
    }

    #[test]
    fn enforcement_can_be_emptied() {
        assert_eq!(load("").unwrap().config.enforce_node_allocatable, ["pods"]);
        assert!(load("enforceNodeAllocatable: []").unwrap().config.enforce_node_allocatable.is_empty());
    }

    #[test]
    fn unknown_and_duplicate_fields_warn_one_by_one() {
        let loaded = load("maxPods: 5\nmaxPods: 7\nnope: 1\nauthentication: {webhook: {colour: red}}\n").unwrap();
        assert_eq!(loaded.config.max_pods, 7);
        assert_eq!(loaded.warnings.len(), 3);
        for name in ["nope", "authentication.webhook.colour", "maxPods"] {
            assert!(
                loaded.warnings.iter().any(|line| line.contains(&format!("{name:?}"))),
                "{name}: {:?}",
                loaded.warnings
            );
        }
    }

    #[test]
    fn wrong_types_are_named_all_at_once() {
        let message = refusal(
            "maxPods: many\nsyncFrequency: 60\nclusterDNS: 10.96.0.10\nkubeReserved: {cpu: 1}\nport: 99999999999\nsyncFrequencyX: 1\nrunOnce: \"true\"\n",
        );
        for part in [
            "config.yaml",
            "maxPods: invalid value \"many\": must be a whole number",
            "syncFrequency: invalid value 60: must be a duration string",
            "clusterDNS: invalid value \"10.96.0.10\": must be a list",
            "kubeReserved[cpu]: invalid value 1: must be a string",
            "port: invalid value 99999999999: must be a whole number from -2147483648 to 2147483647",
            "runOnce: invalid value \"true\": must be true or false",
        ] {
            assert!(message.contains(part), "{part} not in {message}");
        }
        assert!(refusal("fileCheckFrequency: 5 parsecs").contains("unknown unit"));
        assert!(refusal("maxPods: 1e3").contains("maxPods"));
        assert!(
            refusal("reservedMemory: [{numaNode: 0, limits: {memory: x}}]")
                .contains("reservedMemory[0].limits[memory]")
        );
    }

    #[test]
    fn wrong_kinds_and_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.yaml");
        let attempt = |text: &str| {
            fs::write(&path, text).unwrap();
            load_file(&path, &BTreeMap::new()).unwrap_err().to_string()
        };
        assert!(attempt("").contains("is empty"));
        assert!(attempt("---\n").contains("is empty"));
        assert!(
            attempt("kind: KubeletConfiguration")
                .contains("apiVersion: invalid value (not set): must be \"kubelet.config.k8s.io/v1beta1\"")
        );
        assert!(attempt(&format!("apiVersion: {API_VERSION}\nkind: Pod")).contains("kind: invalid value \"Pod\""));
        assert!(attempt("apiVersion: kubelet.config.k8s.io/v1\nkind: KubeletConfiguration").contains("apiVersion"));
        assert!(attempt("a: [").contains("neither YAML nor JSON"));
        assert!(attempt("just text").contains("must be an object"));
        assert_eq!(attempt("[]").matches("invalid value").count(), 1, "{}", attempt("[]"));
        let missing = load_file(&folder.path().join("none"), &BTreeMap::new()).unwrap_err();
        assert!(missing.to_string().contains("none"));
    }

    #[test]
    fn seven_relative_paths_follow_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.yaml");
        fs::write(&path, format!("apiVersion: {API_VERSION}\nkind: {KIND}\nstaticPodPath: manifests/../m\nauthentication: {{x509: {{clientCAFile: ca}}}}\ntlsCertFile: c\ntlsPrivateKeyFile: k\nresolvConf: r\nvolumePluginDir: v\npodLogsDir: l\nkubeletCgroups: rel\n")).unwrap();
        let config = load_file(&path, &BTreeMap::new()).unwrap().config;
        let at = |name: &str| folder.path().join(name).display().to_string();
        assert_eq!(config.static_pod_path, at("m"));
        assert_eq!(config.authentication.x509.client_ca_file, at("ca"));
        assert_eq!((config.tls_cert_file, config.tls_private_key_file), (at("c"), at("k")));
        assert_eq!(config.resolv_conf, Some(at("r")));
        assert_eq!((config.volume_plugin_dir, config.pod_logs_dir), (at("v"), at("l")));
        assert_eq!(config.kubelet_cgroups, "rel");
    }

    #[test]
    fn drop_ins_merge_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let head = format!("apiVersion: {API_VERSION}\nkind: {KIND}\n");
        let put = |name: &str, body: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{head}{body}")).unwrap();
        };
        put(
            "10-a.conf",
            "maxPods: 20\nsystemReserved: {cpu: 100m}\nclusterDNS: [1.1.1.1]\nevictionHard: {memory.available: 1Gi}\n",
        );
        put("20-dir/x.conf", "systemReserved: {memory: 1Gi}\nclusterDNS: [2.2.2.2]\nnoSuchField: 1\n");
        put(
            "30.conf",
            "maxPods: 30\nstaticPodPath: relative\nfeatureGates: {EventedPLEG: true}\nevictionHard: {nodefs.available: null}\n",
        );
        put("40.conf.bak", "maxPods: 40\n");
        put("50.yaml", "maxPods: 50\n");
        let base = load("systemReserved: {pid: \"100\"}\nfeatureGates: {PodsAPI: true}\n").unwrap().config;
        let merged = merge_drop_ins(&base, folder.path(), &BTreeMap::new()).unwrap();
        assert_eq!(merged.max_pods, 30);
        assert_eq!(merged.system_reserved.len(), 3);
        assert_eq!(merged.cluster_dns, ["2.2.2.2"]);
        assert_eq!(merged.static_pod_path, "relative");
        assert_eq!(merged.feature_gates.len(), 2);
        assert_eq!(merged.eviction_hard["memory.available"], "1Gi");
        assert_eq!(merged.eviction_hard.len(), 4);
        // Of two spellings the one that sorts last counts.
        put("55.conf", "maxpods: 55\nMaxPods: 54\nclusterDns: [3.3.3.3]\nauthentication: {webhook: {cacheTtl: 7s}}\n");
        let folded = merge_drop_ins(&base, folder.path(), &BTreeMap::new()).unwrap();
        assert_eq!((folded.max_pods, folded.cluster_dns), (55, vec!["3.3.3.3".to_owned()]));
        assert_eq!(folded.authentication.webhook.cache_ttl, bulkhead_types::GoDuration::from_secs(7));
        put("55.conf", "maxPods: 1\nmaxPods: 2\n");
        let twice = merge_drop_ins(&base, folder.path(), &BTreeMap::new()).unwrap_err().to_string();
        assert!(twice.contains("55.conf") && twice.contains("maxPods") && twice.contains("more than once"), "{twice}");
        fs::remove_file(folder.path().join("55.conf")).unwrap();
        fs::write(folder.path().join("60.conf"), "maxPods: 5\n").unwrap();
        let refused = merge_drop_ins(&base, folder.path(), &BTreeMap::new()).unwrap_err().to_string();
        assert!(refused.contains("60.conf") && refused.contains("apiVersion"), "{refused}");
        fs::write(folder.path().join("60.conf"), " \n").unwrap();
        assert!(merge_drop_ins(&base, folder.path(), &BTreeMap::new()).unwrap_err().to_string().contains("is empty"));
        put("60.conf", "maxPods: x\n");
        assert!(merge_drop_ins(&base, folder.path(), &BTreeMap::new()).unwrap_err().to_string().contains("60.conf"));
        assert!(merge_drop_ins(&base, Path::new("/no/such/folder"), &BTreeMap::new()).is_err());
    }
}
