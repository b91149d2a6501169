//! Whether the kubeconfig takes its credentials from a program: decides what the daemons' filters allow, so it has to be
//! known before they start. Nothing else of it is kept.

use std::io::Read as _;
use std::path::Path;

use bulkhead_config::kubeconfig::{Kubeconfig, MAX_BYTES};
use bulkhead_sys::open::{self, Wanted};
use bulkhead_types::chain;

/// False also when there is no kubeconfig yet, or none that can be used: then nothing is started, and the two processes
/// that read it say what is wrong with it.
pub fn runs_program(path: &Path) -> bool {
    let file = match open::operator(path, Wanted::RegularFile) {
        Ok(file) => std::fs::File::from(file),
        Err(error) => {
            tracing::info!(path = %path.display(), error = chain(&error), "no kubeconfig that can be read, waiting for it");
            return false;
        }
    };
    let mut bytes = Vec::new();
    if let Err(error) = file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes) {
        tracing::warn!(path = %path.display(), %error, "the kubeconfig cannot be read");
        return false;
    }
    Kubeconfig::parse(&bytes).is_ok_and(|config| config.runs_program())
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
}
