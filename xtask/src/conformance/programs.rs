//! Upstream's programs that the specs need: where they are, and what to say where they are not.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use bulkhead_testkit::cluster::ASSETS;

/// Each program, and where it comes from.
const NEEDED: &[(&str, &str)] = &[
    ("etcd", "etcd's release"),
    ("kube-apiserver", SERVER),
    ("kube-controller-manager", SERVER),
    ("kube-scheduler", SERVER),
    ("kube-proxy", SERVER),
    ("e2e.test", TEST),
    ("ginkgo", TEST),
];
const SERVER: &str = "kubernetes-server-linux-<arch>.tar.gz of the Kubernetes release";
const TEST: &str = "kubernetes-test-linux-<arch>.tar.gz of the Kubernetes release";

/// The folder with all of them.
#[derive(Debug)]
pub struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// The folder that the environment names.
    ///
    /// # Errors
    /// It names none, or programs are missing there: all of them, with where to get each.
    pub fn find() -> Result<Self> {
        let wanted = || NEEDED.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let folder = std::env::var_os(ASSETS).filter(|folder| !folder.is_empty()).with_context(|| {
            format!("{ASSETS} is not set: it has to name a folder with upstream's programs ({})", wanted())
        })?;
        Self::in_folder(Path::new(&folder))
    }

    fn in_folder(folder: &Path) -> Result<Self> {
        let missing: Vec<String> = NEEDED
            .iter()
            .filter(|(name, _)| !folder.join(name).is_file())
            .map(|(name, source)| format!("  {name} ({source})"))
            .collect();
        if !missing.is_empty() {
            bail!("{ASSETS}={} lacks, to be put there:\n{}", folder.display(), missing.join("\n"));
        }
        Ok(Self { folder: folder.to_owned() })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}
