//! From the words of the command line to one effective configuration, in upstream's order of steps.
//!
//! Defaults, then the file, then drop-ins, then the whole command line once more; feature gates merge. Nothing here
//! starts, creates or looks at anything but the named configuration files.

use std::path::{Path, PathBuf};

use crate::field::FieldError;
use crate::flags::{self, FlagError, Settings, VersionRequest};
use crate::gates::{self, GateError};
use crate::kubelet::KubeletConfiguration;
use crate::kubelet_flags::KubeletFlags;
use crate::load::{self, LoadError};
use crate::{validate, version};

/// What the command line asks for.
#[derive(Debug)]
pub enum Request {
    /// Print this and succeed.
    Print(String),
    Run(Box<Effective>),
}

/// A configuration that keeps all limits that do not depend on the machine.
#[derive(Debug)]
pub struct Effective {
    pub flags: KubeletFlags,
    pub kubelet: KubeletConfiguration,
    /// What the node reports as its version.
    pub version: String,
    /// Where the configuration came from, for messages.
    pub origin: String,
    /// Lines worth a warning: unknown fields, gates that settle, odd combinations.
    pub warnings: Vec<String>,
}

/// Why nothing is started.
#[derive(Debug, thiserror::Error)]
pub enum CommandLineError {
    #[error(transparent)]
    Flag(#[from] FlagError),
    #[error("failed to set feature gates from the command line:{}", list(.0))]
    FlagGates(Vec<GateError>),
    #[error("failed to validate kubelet flags:{}", list(.0))]
    Flags(Vec<String>),
    #[error("failed to load kubelet config file, path: {path:?}")]
    File { path: PathBuf, source: LoadError },
    #[error("failed to merge kubelet configs, path: {path:?}")]
    DropIns { path: PathBuf, source: LoadError },
    #[error("failed to validate kubelet configuration, path: {origin}:{}", list(errors))]
    Invalid { origin: String, errors: Vec<FieldError> },
}

fn list<T: std::fmt::Display>(errors: &[T]) -> String {
    errors.iter().map(|error| format!("\n  {error}")).collect()
}

/// Works out the effective configuration. `notes` takes lines that are to be printed even if an error follows
/// (deprecated flags; with a refusal, what was odd in the file).
///
/// # Errors
/// Everything that makes upstream exit with 1 before it looks at the machine.
pub fn evaluate(words: &[String], notes: &mut Vec<String>) -> Result<Request, CommandLineError> {
    let mut settings = Settings::default();
    notes.extend(flags::parse(words, &mut settings)?);
    if settings.help {
        return Ok(Request::Print(flags::help()));
    }
    let reported = match &settings.version {
        VersionRequest::Short => return Ok(Request::Print(format!("Kubernetes {}\n", version::reported()))),
        VersionRequest::Raw => return Ok(Request::Print(format!("{}\n", version::raw()))),
        VersionRequest::Report(version) => version.clone(),
        VersionRequest::None => version::reported(),
    };
    let process_gates = settings.kubelet.feature_gates.clone();
    gates::check(&process_gates).map_err(CommandLineError::FlagGates)?;
    let errors = settings.flags.validate();
    if !errors.is_empty() {
        return Err(CommandLineError::Flags(errors));
    }
    let (config, config_dir) = (settings.flags.config.clone(), settings.flags.config_dir.clone());
    let mut warnings = Vec::new();
    let mut kubelet = settings.kubelet.clone();
    if !config.is_empty() {
        let path = PathBuf::from(&config);
        let loaded =
            load::load_file(&path, &process_gates).map_err(|source| CommandLineError::File { path, source })?;
        warnings.extend(loaded.warnings);
        kubelet = loaded.config;
    }
    if !config_dir.is_empty() {
        let path = PathBuf::from(&config_dir);
        kubelet = load::merge_drop_ins(&kubelet, Path::new(&config_dir), &process_gates)
            .map_err(|source| CommandLineError::DropIns { path, source })?;
    }
    if !config.is_empty() || !config_dir.is_empty() {
        kubelet = overlay(words, kubelet)?;
    }
    let origin = match (config.is_empty(), config_dir.is_empty()) {
        (true, true) => "(command line)".to_owned(),
        (false, true) => format!("{config:?}"),
        (true, false) => format!("{config_dir:?}"),
        (false, false) => format!("{config:?} with {config_dir:?}"),
    };
    let errors = validate::validate(&kubelet);
    if !errors.is_empty() {
        // A misspelt field is often the reason for the refusal.
        notes.append(&mut warnings);
        return Err(CommandLineError::Invalid { origin, errors });
    }
    warnings.extend(validate::remarks(&kubelet));
    Ok(Request::Run(Box::new(Effective { flags: settings.flags, kubelet, version: reported, origin, warnings })))
}

/// The command line once more, over a loaded configuration; gates that it does not name survive.
fn overlay(words: &[String], loaded: KubeletConfiguration) -> Result<KubeletConfiguration, CommandLineError> {
    let mut gates = loaded.feature_gates.clone();
    let mut settings = Settings { kubelet: loaded, ..Settings::default() };
    settings.kubelet.feature_gates.clear();
    flags::parse(words, &mut settings)?;
    gates.append(&mut settings.kubelet.feature_gates);
    settings.kubelet.feature_gates = gates;
    Ok(settings.kubelet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            Folder(tempfile::tempdir().unwrap())
        }

        fn file(&self, name: &str, body: &str) -> String {
            let path = self.0.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{body}"))
                .unwrap();
            path.display().to_string()
        }

        fn path(&self, name: &str) -> String {
            self.0.path().join(name).display().to_string()
        }
    }

    fn evaluated(line: &[String]) -> Result<Request, String> {
        evaluate(line, &mut Vec::new()).map_err(|error| {
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(&error);
            while let Some(inner) = cause {
                text.push_str(&format!(": {inner}"));
                cause = inner.source();
            }
            text
        })
    }

    fn run(line: &[String]) -> Effective {
        match evaluated(line) {
            Ok(Request::Run(effective)) => *effective,
            other => panic!("{line:?}: {other:?}"),
        }
    }

    fn refused(line: &[&str]) -> String {
        evaluated(&line.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).expect_err(&format!("{line:?}"))
    }

    #[test]
    fn legacy_defaults_without_a_file() {
        let kubelet = run(&[]).kubelet;
        assert_eq!(kubelet.authentication.anonymous.enabled, Some(true));
        assert_eq!(kubelet.authentication.webhook.enabled, Some(false));
        assert_eq!((kubelet.authorization.mode.as_str(), kubelet.read_only_port), ("AlwaysAllow", 10255));
        assert!(kubelet.eviction_hard.is_empty());
    }

    #[test]
    fn a_file_discards_them_and_drop_ins_alone_do_not() {
        let folder = Folder::new();
        let config = folder.file("config.yaml", "");
        let kubelet = run(&[format!("--config={config}")]).kubelet;
        assert_eq!(kubelet.authentication.anonymous.enabled, Some(false));
        assert_eq!((kubelet.authorization.mode.as_str(), kubelet.read_only_port), ("Webhook", 0));
        assert_eq!(kubelet.eviction_hard.len(), 5);
        folder.file("conf.d/a.conf", "maxPods: 9\n");
        let kubelet = run(&[format!("--config-dir={}", folder.path("conf.d"))]).kubelet;
        assert_eq!((kubelet.max_pods, kubelet.read_only_port), (9, 10255));
        assert!(kubelet.eviction_hard.is_empty());
    }

    #[test]
    fn flags_win_over_drop_ins_over_file() {
        let folder = Folder::new();
        let config = folder.file(
            "config.yaml",
            "maxPods: 1\npodsPerCore: 1\nport: 1001\nclusterDNS: [1.1.1.1]\nfeatureGates: {EventedPLEG: true, PodsAPI: true}\nkubeReserved: {cpu: 1m}\n",
        );
        folder.file("conf.d/a.conf", "podsPerCore: 2\nport: 1002\nfeatureGates: {CRIListStreaming: true}\n");
        let effective = run(&[
            format!("--config={config}"),
            format!("--config-dir={}", folder.path("conf.d")),
            "--port=1003".into(),
            "--cluster-dns=2.2.2.2".into(),
            "--feature-gates=EventedPLEG=false".into(),
            "--kube-reserved=memory=1Gi".into(),
            "--node-labels=a=b".into(),
        ]);
        let kubelet = &effective.kubelet;
        assert_eq!((kubelet.max_pods, kubelet.pods_per_core, kubelet.port), (1, 2, 1003));
        assert_eq!(kubelet.cluster_dns, ["2.2.2.2"]);
        assert_eq!(kubelet.kube_reserved.len(), 1);
        let gates = &kubelet.feature_gates;
        assert_eq!((gates["EventedPLEG"], gates["PodsAPI"], gates["CRIListStreaming"]), (false, true, true));
        assert_eq!(effective.flags.node_labels["a"], "b");
    }

    #[test]
    fn bad_input_is_refused_by_name() {
        assert_eq!(refused(&["--nope"]), "failed to parse kubelet flag: unknown flag: --nope");
        assert_eq!(refused(&["x"]), "unknown command x");
        assert!(refused(&["--feature-gates=Nope=true"]).contains("unrecognized feature gate: Nope"));
        assert!(refused(&["--feature-gates=NodeSwap=false"]).contains("locked to true"));
        assert!(refused(&["--root-dir=x/"]).contains("--root-dir"));
        assert!(refused(&["--config=/no/such"]).contains("failed to load kubelet config file, path: \"/no/such\""));
        assert!(refused(&["--config-dir=/no/such"]).contains("/no/such"));
        assert!(
            refused(&["--max-pods=-1", "--kube-reserved=gpu=1"])
                .contains("kubeReserved[gpu]: invalid value \"1\": cannot reserve \"gpu\" resource")
        );
        let folder = Folder::new();
        let config = folder.file("c.yaml", "maxPods: -1\nport: 0x1\nhairpinMode: q\n");
        let text = refused(&[&format!("--config={config}")]);
        assert!(
            text.contains("maxPods: invalid value -1") && text.contains("hairpinMode") && text.contains("c.yaml"),
            "{text}"
        );
    }

    #[test]
    fn a_refusal_comes_with_what_was_odd_in_the_file() {
        let folder = Folder::new();
        let config = folder.file("c.yaml", "maxPod: 5\nmaxPods: -1\n");
        let mut notes = Vec::new();
        evaluate(&[format!("--config={config}")], &mut notes).unwrap_err();
        assert!(notes.iter().any(|line| line.contains("unknown field \"maxPod\"")), "{notes:?}");
    }

    #[test]
    fn help_and_version_come_before_the_rest() {
        for (line, start) in [
            (vec!["--help", "--root-dir=bad"], "The node agent"),
            (vec!["--version", "--config=/none"], "Kubernetes v1.36.0-bulkhead."),
            (vec!["--version=raw"], "version.Info{Major:\"1\", Minor:\"36\""),
        ] {
            match evaluated(&line.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>()) {
                Ok(Request::Print(text)) => assert!(text.starts_with(start), "{text}"),
                other => panic!("{line:?}: {other:?}"),
            }
        }
        assert_eq!(run(&["--version=v1.36.0-mine".into()]).version, "v1.36.0-mine");
        assert!(refused(&["--help", "--nope"]).contains("unknown flag"));
    }
}
