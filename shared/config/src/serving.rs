//! What the HTTPS server is configured with, and which configurations of it cannot be started.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use bulkhead_types::ip::parse_sloppy;

use crate::NodeConfig;

/// Files of the serving certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServingPair {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Made by the node itself when it is missing (upstream `cmd/kubelet/app/server.go`, InitializeTLS).
    pub own: bool,
}

impl ServingPair {
    /// The folder in which the node may put a pair of its own.
    pub fn own_folder(&self) -> Option<&Path> {
        self.certificate.parent().filter(|_| self.own)
    }

    /// Relative names are relative to the working directory.
    ///
    /// # Errors
    /// There is no working directory.
    pub fn absolute(self) -> io::Result<Self> {
        let (certificate, key) = (std::path::absolute(&self.certificate)?, std::path::absolute(&self.key)?);
        Ok(ServingPair { certificate, key, own: self.own })
    }
}

/// Why the HTTPS server cannot be started with this configuration, in upstream's words (`cmd/kubelet/app/auth.go`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ServingError {
    #[error(
        "no client provided, cannot use webhook authentication (without --kubeconfig set authentication.webhook.enabled: false)"
    )]
    WebhookAuthentication,
    #[error(
        "no client provided, cannot use webhook authorization (without --kubeconfig set authorization.mode: AlwaysAllow)"
    )]
    WebhookAuthorization,
}

impl NodeConfig {
    /// `enableServer`.
    pub fn serves_https(&self) -> bool {
        self.kubelet.enable_server.unwrap_or(true)
    }

    /// Where the HTTPS server listens; None: it is off.
    pub fn https_address(&self) -> Option<SocketAddr> {
        let port = u16::try_from(self.kubelet.port).ok().filter(|port| *port != 0)?;
        let address = parse_sloppy(&self.kubelet.address)?;
        self.serves_https().then_some(SocketAddr::new(address, port))
    }

    /// The configured pair, or the node's own in `--cert-dir`. With serverTLSBootstrap it is what is shown while no pair
    /// was signed for the node, and none is made (client-go `util/certificate`, NewFileStore).
    pub fn serving_pair(&self) -> ServingPair {
        let (certificate, key) = (&self.kubelet.tls_cert_file, &self.kubelet.tls_private_key_file);
        if certificate.is_empty() && key.is_empty() {
            let folder = &self.flags.cert_dir;
            if self.asks_for_serving() {
                let (certificate, key) = (folder.join("kubelet-server.crt"), folder.join("kubelet-server.key"));
                return ServingPair { certificate, key, own: false };
            }
            return ServingPair { certificate: folder.join("kubelet.crt"), key: folder.join("kubelet.key"), own: true };
        }
        ServingPair { certificate: certificate.into(), key: key.into(), own: false }
    }

    /// The serving certificate is asked for at the API server (serverTLSBootstrap; without an API server nobody is asked).
    pub fn asks_for_serving(&self) -> bool {
        self.kubelet.server_tls_bootstrap && !self.is_standalone()
    }

    /// The client certificate is renewed before it ends (rotateCertificates).
    pub fn rotates_client(&self) -> bool {
        self.kubelet.rotate_certificates && !self.is_standalone()
    }

    /// Where a node without a client certificate has the means to ask for one; None: it has none.
    pub fn bootstrap_kubeconfig(&self) -> Option<&Path> {
        let path = self.flags.bootstrap_kubeconfig.as_str();
        (!path.is_empty() && !self.is_standalone()).then(|| Path::new(path))
    }

    /// Whether clients could be asked about. That nobody could prove who he is is no error: every request is answered with
    /// 401 then. Upstream's "no authentication method configured" is never said by its kubelet, which gives the authenticator
    /// a provider of client CAs also where there is none (`cmd/kubelet/app/auth.go`, BuildAuthn).
    ///
    /// # Errors
    /// See [`ServingError`].
    pub fn check_serving(&self) -> Result<(), ServingError> {
        let (authentication, authorization) = (&self.kubelet.authentication, &self.kubelet.authorization);
        if !self.serves_https() {
            return Ok(());
        }
        if authentication.webhook.enabled.unwrap_or(false) && self.is_standalone() {
            return Err(ServingError::WebhookAuthentication);
        }
        if authorization.mode == "Webhook" && self.is_standalone() {
            return Err(ServingError::WebhookAuthorization);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(change: impl FnOnce(&mut NodeConfig)) -> NodeConfig {
        let mut config = NodeConfig::for_tests(Path::new("/t"));
        change(&mut config);
        config
    }

    #[test]
    fn a_node_that_would_ask_nobody_does_not_start() {
        let modes = |ca: &str, webhook: bool, anonymous: bool, mode: &str, kubeconfig: &str| {
            node(|config| {
                let authentication = &mut config.kubelet.authentication;
                ca.clone_into(&mut authentication.x509.client_ca_file);
                authentication.webhook.enabled = Some(webhook);
                authentication.anonymous.enabled = Some(anonymous);
                mode.clone_into(&mut config.kubelet.authorization.mode);
                kubeconfig.clone_into(&mut config.flags.kubeconfig);
            })
            .check_serving()
        };
        assert_eq!(modes("", false, true, "AlwaysAllow", ""), Ok(()));
        assert_eq!(modes("/ca", false, false, "AlwaysAllow", ""), Ok(()));
        assert_eq!(modes("", true, false, "Webhook", "/k"), Ok(()));
        assert_eq!(modes("", false, false, "AlwaysAllow", "/k"), Ok(()), "nobody is let in");
        assert_eq!(modes("", false, false, "AlwaysAllow", ""), Ok(()), "the guide to an etcd cluster of kubeadm's");
        assert_eq!(modes("/ca", true, true, "AlwaysAllow", ""), Err(ServingError::WebhookAuthentication));
        assert_eq!(modes("/ca", false, true, "Webhook", ""), Err(ServingError::WebhookAuthorization));
        let off = node(|config| {
            config.kubelet.enable_server = Some(false);
            config.kubelet.authentication.anonymous.enabled = Some(false);
        });
        assert_eq!((off.check_serving(), off.https_address()), (Ok(()), None));
    }

    #[test]
    fn the_pair_is_the_configured_one_or_the_nodes_own() {
        let own = node(|config| config.flags.cert_dir = "/pki".into()).serving_pair();
        assert_eq!(
            (own.certificate.as_path(), own.own_folder()),
            (Path::new("/pki/kubelet.crt"), Some(Path::new("/pki")))
        );
        let configured = node(|config| {
            config.kubelet.tls_cert_file = "/c".into();
            config.kubelet.tls_private_key_file = "/k".into();
        });
        assert_eq!(configured.serving_pair().own_folder(), None);
        let asking = node(|config| {
            config.kubelet.server_tls_bootstrap = true;
            config.flags.kubeconfig = "/k".into();
            config.flags.cert_dir = "/pki".into();
        });
        assert_eq!(asking.serving_pair().own_folder(), None);
        assert_eq!(asking.serving_pair().key, Path::new("/pki/kubelet-server.key"));
        let alone = node(|config| config.kubelet.server_tls_bootstrap = true);
        assert!(alone.serving_pair().own, "nobody can be asked");
        assert_eq!(configured.https_address().unwrap().to_string(), "0.0.0.0:10250");
    }
}
