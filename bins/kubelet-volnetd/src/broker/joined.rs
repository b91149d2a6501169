//! The kubeconfig of a node that asks for its certificate (upstream `pkg/kubelet/certificate/bootstrap`,
//! writeKubeconfigFromBootstrapping): the cluster of the bootstrap kubeconfig, and the link to the pair that is asked for. No
//! word of it comes from another process.

use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use super::BrokerError;
use super::put_credential::make_folder;
use crate::journal;
use crate::kubeconfig::{self, Authority, Cluster};

/// Writes the kubeconfig, mode 0600, unless it says the same already.
pub fn write(bootstrap: &Path, path: &Path, pair: &Path) -> Result<(), BrokerError> {
    let text = text(&kubeconfig::read_cluster(bootstrap)?, pair);
    if std::fs::read(path).is_ok_and(|there| there == text.as_bytes()) {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().map(PathBuf::from).unwrap_or_default();
    let dir = make_folder(folder)?;
    journal::replace(dir.as_fd(), &name, text.as_bytes(), 0o600)
        .map_err(|source| BrokerError::PutState { path: path.to_owned(), source })
}

/// Names and order as upstream writes them. Pure.
fn text(cluster: &Cluster, pair: &Path) -> String {
    let mut text = String::from("apiVersion: v1\nclusters:\n- cluster:\n");
    let mut field = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "    {name}: {}", scalar(value));
    };
    match &cluster.authority {
        Some(Authority::File(path)) => field("certificate-authority", &path.to_string_lossy()),
        Some(Authority::Data(data)) => field("certificate-authority-data", data),
        None => {}
    }
    if cluster.insecure_skip_tls_verify {
        field("insecure-skip-tls-verify", "true");
    }
    field("server", &cluster.server);
    if let Some(name) = &cluster.tls_server_name {
        field("tls-server-name", name);
    }
    let pair = scalar(&pair.to_string_lossy());
    text + "  name: default-cluster\n\
            contexts:\n- context:\n    cluster: default-cluster\n    namespace: default\n    user: default-auth\n\
            \x20 name: default-context\ncurrent-context: default-context\nkind: Config\nusers:\n- name: default-auth\n  user:\n"
        + &format!("    client-certificate: {pair}\n    client-key: {pair}\n")
}

/// As it is where that cannot be mistaken for anything else, quoted (JSON's rules are YAML's) otherwise.
fn scalar(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/:.-_+=[]%".contains(&byte);
    let begins = value.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'/');
    if begins && !value.ends_with(':') && value.bytes().all(plain) {
        return value.to_owned();
    }
    serde_json::Value::from(value).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Cluster {
        Cluster {
            server: "https://[fd00::1]:6443".to_owned(),
            tls_server_name: None,
            insecure_skip_tls_verify: false,
            authority: Some(Authority::Data("QUJD".to_owned())),
        }
    }

    #[test]
    fn as_upstream_writes_it() {
        let pair = Path::new("/var/lib/kubelet/pki/kubelet-client-current.pem");
        assert_eq!(
            text(&cluster(), pair),
            "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: QUJD\n    server: https://[fd00::1]:6443\n  \
             name: default-cluster\ncontexts:\n- context:\n    cluster: default-cluster\n    namespace: default\n    user: \
             default-auth\n  name: default-context\ncurrent-context: default-context\nkind: Config\nusers:\n- name: \
             default-auth\n  user:\n    client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem\n    client-key: \
             /var/lib/kubelet/pki/kubelet-client-current.pem\n"
        );
    }

    #[test]
    fn what_is_written_is_read_as_it_was() {
        let path = Path::new("/etc/kubernetes/kubelet.conf");
        for cluster in [
            cluster(),
            Cluster { authority: Some(Authority::File("/pki/my ca: \"x\".crt".into())), ..cluster() },
            Cluster { authority: None, insecure_skip_tls_verify: true, ..cluster() },
            Cluster { server: "1.2.3.4:6443".to_owned(), tls_server_name: Some("true".to_owned()), ..cluster() },
            Cluster { server: "'#{}*&!|>%@`".to_owned(), ..cluster() },
        ] {
            let text = text(&cluster, Path::new("/p/a b.pem"));
            assert_eq!(kubeconfig::parse_cluster(&text, path).unwrap(), cluster, "{text}");
            let files = kubeconfig::parse(&text, path).unwrap();
            assert_eq!(files.client_key, Some("/p/a b.pem".into()));
            assert_eq!(files.client_certificate, files.client_key);
        }
    }
}
