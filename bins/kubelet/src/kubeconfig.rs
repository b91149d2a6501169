//! Whether a kubeconfig takes its credentials from a program: decides what the daemons' filters allow, so it has to be
//! known before they start. And whether a node that begins with a bootstrap kubeconfig has anything to begin with. Nothing
//! else of them is kept.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use bulkhead_config::kubeconfig::{Kubeconfig, KubeconfigError, MAX_BYTES, Material};
use bulkhead_sys::open::{self, FileKind, OpenError};
use bulkhead_types::chain;

/// Why a kubeconfig cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("failed to read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}")]
    Parse { path: PathBuf, source: KubeconfigError },
}

/// The node could never speak to its API server; in upstream's words (`cmd/kubelet/app`, `pkg/kubelet/certificate/bootstrap`).
#[derive(Debug, thiserror::Error)]
#[error("failed to run Kubelet: unable to load bootstrap kubeconfig")]
pub struct NoCredentials(#[source] ReadError);

/// False also when there is no kubeconfig yet, or none that can be used: then nothing is started, and the two processes
/// that read it say what is wrong with it.
pub fn runs_program(path: &Path) -> bool {
    match read(path) {
        Ok(config) => config.runs_program(),
        Err(ReadError::Parse { .. }) => false,
        Err(error) => {
            tracing::info!(path = %path.display(), error = chain(&error), "failed to read kubeconfig, waiting for it");
            false
        }
    }
}

/// The same of the bootstrap kubeconfig, whose absence is nothing to speak of.
pub fn bootstrap_runs_program(path: &Path) -> bool {
    read(path).is_ok_and(|config| config.runs_program())
}

/// A node that is to begin with a bootstrap kubeconfig needs it, or a kubeconfig whose files are there.
///
/// # Errors
/// It has neither; as upstream it then ends at once and is started again by its supervisor.
pub fn check_bootstrap(kubeconfig: &Path, bootstrap: &Path) -> Result<(), NoCredentials> {
    if read(kubeconfig).is_ok_and(|config| has_its_files(&config, kubeconfig)) {
        return Ok(());
    }
    read(bootstrap).map(|_| ()).map_err(NoCredentials)
}

fn has_its_files(config: &Kubeconfig, path: &Path) -> bool {
    let folder = path.parent().unwrap_or(Path::new("/"));
    [&config.user.client_certificate, &config.user.client_key].into_iter().flatten().all(|material| match material {
        Material::Data(_) => true,
        Material::File(name) => folder.join(name).exists(),
    })
}

fn read(path: &Path) -> Result<Kubeconfig, ReadError> {
    let path = std::path::absolute(path).map_err(|source| ReadError::Read { path: path.to_owned(), source })?;
    let file = std::fs::File::from(open::operator(&path, FileKind::RegularFile)?);
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| ReadError::Read { path: path.clone(), source })?;
    Kubeconfig::parse(&bytes).map_err(|source| ReadError::Parse { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_program_in_the_current_context_counts() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        // Below a folder that only root may write, as an operator's.
        let folder = tempfile::tempdir_in("/root").unwrap();
        let path = folder.path().join("kubelet.conf");
        assert!(!runs_program(&path));
        let text = "current-context: a\ncontexts:\n- {name: a, context: {cluster: c, user: u}}\n- {name: b, context: {cluster: \
                    c, user: v}}\nclusters: [{name: c, cluster: {server: 'https://x'}}]\nusers:\n- {name: v, user: {token: t}}\n\
                    - name: u\n  user: {exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: x}}\n";
        for (text, runs) in [
            (text.to_owned(), true),
            (text.replace("current-context: a", "current-context: b"), false),
            (text.replace("current-context: a", "current-context: c"), false),
            ("junk".to_owned(), false),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(runs_program(&path), runs);
        }
    }
    #[test]
    fn a_node_needs_something_to_begin_with() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir_in("/root").unwrap();
        let (kubeconfig, bootstrap) =
            (folder.path().join("kubelet.conf"), folder.path().join("bootstrap-kubelet.conf"));
        let check = || check_bootstrap(&kubeconfig, &bootstrap);
        let message = chain(&check().unwrap_err());
        assert!(message.starts_with("failed to run Kubelet: unable to load bootstrap kubeconfig: "), "{message}");
        assert!(message.contains("bootstrap-kubelet.conf"), "{message}");
        let text = "current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\nclusters: [{name: c, cluster: \
                    {server: 'https://x'}}]\nusers: [{name: u, user: {client-certificate: pair.pem, client-key: pair.pem}}]\n";
        std::fs::write(&kubeconfig, text).unwrap();
        assert!(check().is_err(), "its certificate is missing");
        std::fs::write(&bootstrap, text).unwrap();
        check().unwrap();
        std::fs::remove_file(&bootstrap).unwrap();
        std::fs::write(folder.path().join("pair.pem"), "").unwrap();
        check().unwrap();
        std::fs::write(&kubeconfig, "junk").unwrap();
        assert!(check().is_err());
    }
}
