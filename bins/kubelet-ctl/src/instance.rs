//! Which node on this machine: the folder of its sockets.

use std::path::{Path, PathBuf};

use bulkhead_types::{InstancePaths, Process};

/// One node's sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    pub run_dir: PathBuf,
    /// Nodes whose sockets were found elsewhere, for the message when this one has none.
    others: Vec<Found>,
    /// The node is reached over vsock instead.
    vsock: Option<Vsock>,
}

/// A machine and the first of its node's four ports (`--vsock-port`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Vsock {
    cid: u32,
    first_port: u32,
}

/// Another node on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    run_dir: PathBuf,
    /// "node-a, root directory /tmp/a", as far as its configuration can be read.
    what: String,
}

/// Why no node can be looked into.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    #[error("no node has its sockets in {}{others}", run_dir.display())]
    NoSockets { run_dir: PathBuf, others: String },
    #[error("root directory {} cannot be resolved: {source}", root_dir.display())]
    RootDir { root_dir: PathBuf, source: std::io::Error },
    #[error("{text:?} is no machine and port: CID:PORT, as in 3:10240")]
    Vsock { text: String },
}

impl Instance {
    /// `run_dir`, or what follows from `root_dir`, or the default node's. `run` is /run, where nodes are looked for
    /// when that one has no socket.
    ///
    /// # Errors
    /// There is no node; the message says which others there are.
    pub fn find(run_dir: Option<&str>, root_dir: Option<&str>, run: &Path) -> Result<Self, InstanceError> {
        let run_dir = match (run_dir, root_dir) {
            (Some(run_dir), _) => PathBuf::from(run_dir),
            (None, Some(root_dir)) => {
                // The launcher derives it from the name that it is given, which may be a link or lead to one.
                let named = bulkhead_config::run_dir_for(Path::new(root_dir));
                if has_sockets(&named) {
                    named
                } else {
                    let resolved = std::fs::canonicalize(root_dir)
                        .map_err(|source| InstanceError::RootDir { root_dir: root_dir.into(), source })?;
                    bulkhead_config::run_dir_for(&resolved)
                }
            }
            (None, None) => run.join("kubelet"),
        };
        let instance = Instance { others: others(run, &run_dir), run_dir, vsock: None };
        if has_sockets(&instance.run_dir) {
            return Ok(instance);
        }
        Err(InstanceError::NoSockets { others: instance.hint(), run_dir: instance.run_dir })
    }

    /// The node of a machine that is reached over vsock, from `CID:PORT`.
    ///
    /// # Errors
    /// That is not what the text is.
    pub fn over_vsock(text: &str) -> Result<Self, InstanceError> {
        let parsed = text.split_once(':').and_then(|(cid, port)| Some((cid.parse().ok()?, port.parse().ok()?)));
        let (cid, first_port) = parsed.ok_or_else(|| InstanceError::Vsock { text: text.to_owned() })?;
        Ok(Instance { run_dir: PathBuf::new(), others: Vec::new(), vsock: Some(Vsock { cid, first_port }) })
    }

    /// CID and port of a process that is reached over vsock.
    pub fn vsock(&self, process: Process) -> Option<(u32, u32)> {
        let Vsock { cid, first_port } = self.vsock?;
        let place = Process::ALL.iter().position(|one| *one == process)?;
        Some((cid, first_port.checked_add(u32::try_from(place).ok()?)?))
    }

    /// Where a process listens, for people where it is no file.
    pub fn socket(&self, process: Process) -> PathBuf {
        if let Some((cid, port)) = self.vsock(process) {
            return PathBuf::from(format!("vsock:{cid}:{port}"));
        }
        let paths =
            InstancePaths { root_dir: PathBuf::new(), run_dir: self.run_dir.clone(), pod_logs_dir: PathBuf::new() };
        paths.socket(process)
    }

    fn hint(&self) -> String {
        if self.others.is_empty() {
            return ": is `kubelet` running, and are you root? Another node's folder is named with --run-dir or --root-dir"
                .into();
        }
        let mut text = String::from("; nodes found on this machine:");
        for found in &self.others {
            text.push_str(&format!("\n  --run-dir {}   ({})", found.run_dir.display(), found.what));
        }
        text
    }
}

fn has_sockets(run_dir: &Path) -> bool {
    Process::ALL.iter().any(|process| run_dir.join(format!("{}.sock", process.name())).exists())
}

fn others(run: &Path, not: &Path) -> Vec<Found> {
    let mut found: Vec<Found> = std::fs::read_dir(run)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let name = path.file_name()?.to_str()?;
            let named = name == "kubelet" || name.starts_with("kubelet-");
            (named && path != not && has_sockets(&path)).then(|| Found { what: describe(&path), run_dir: path })
        })
        .collect();
    found.sort_by(|a, b| a.run_dir.cmp(&b.run_dir));
    found
}

fn describe(run_dir: &Path) -> String {
    let config = std::fs::read(run_dir.join("config.json")).unwrap_or_default();
    let config: serde_json::Value = serde_json::from_slice(&config).unwrap_or_default();
    let text = |pointer: &str| config.pointer(pointer).and_then(|value| value.as_str()).map(crate::table::printable);
    match (text("/node_name"), text("/paths/root_dir")) {
        (Some(node), Some(root)) => format!("{node}, root directory {root}"),
        _ => "its configuration cannot be read".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_node_or_a_hint_at_others() {
        let run = tempfile::tempdir().unwrap();
        let error = Instance::find(None, None, run.path()).unwrap_err().to_string();
        assert!(error.contains("is `kubelet` running"), "{error}");

        let other = run.path().join("kubelet-0a1b2c3d");
        std::fs::create_dir(&other).unwrap();
        std::fs::create_dir(run.path().join("kubelet.claims")).unwrap();
        std::fs::write(other.join("kubelet-syncd.sock"), "").unwrap();
        std::fs::write(other.join("config.json"), r#"{"node_name": "b", "paths": {"root_dir": "/tmp/b"}}"#).unwrap();
        let error = Instance::find(None, None, run.path()).unwrap_err().to_string();
        assert!(error.contains("kubelet-0a1b2c3d   (b, root directory /tmp/b)"), "{error}");

        let found = Instance::find(other.to_str(), None, run.path()).unwrap();
        assert_eq!(found.socket(Process::Volnetd), other.join("kubelet-volnetd.sock"));

        std::fs::create_dir(run.path().join("kubelet")).unwrap();
        std::fs::write(run.path().join("kubelet/kubelet-volnetd.sock"), "").unwrap();
        assert_eq!(Instance::find(None, None, run.path()).unwrap().run_dir, run.path().join("kubelet"));
    }

    #[test]
    fn a_machine_has_a_port_for_each_process() {
        let instance = Instance::over_vsock("3:10240").unwrap();
        assert_eq!(Process::ALL.map(|process| instance.vsock(process).unwrap().1), [10240, 10241, 10242, 10243]);
        assert_eq!(instance.socket(Process::Syncd), Path::new("vsock:3:10241"));
        for bad in ["", "3", "3:", ":1", "a:1", "3:-1", "3:1:2"] {
            assert!(matches!(Instance::over_vsock(bad), Err(InstanceError::Vsock { .. })), "{bad}");
        }
        assert_eq!(Instance::over_vsock("3:4294967295").unwrap().vsock(Process::Syncd), None);
    }

    #[test]
    fn the_root_directory_names_the_folder() {
        let root = tempfile::tempdir().unwrap();
        let error = Instance::find(None, root.path().to_str(), Path::new("/nonexistent")).unwrap_err().to_string();
        assert!(error.contains("/run/kubelet-"), "{error}");
        assert!(matches!(
            Instance::find(None, Some("/no/such/root"), Path::new("/run")),
            Err(InstanceError::RootDir { .. })
        ));
    }
}
