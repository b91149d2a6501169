//! Credentials that the operator or the control plane put on the disk: the kubeconfigs, the files that their current
//! contexts name, what the HTTPS server shows and whose clients it believes, the pairs that were signed for the node, and
//! registry credentials in docker's formats. All by rule 1: a credential that others than root could
//! replace, or whose way they could change, is not passed on.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use bulkhead_ipc::volnetd::credential::Kind;
use bulkhead_sys::open::{self, FileKind};

use super::BrokerError;
use super::pairs::{self, Prefix};
use crate::node::Node;
use crate::{kubeconfig, validate};

/// Opens one credential for reading. The kubeconfig is read anew each time: it may name other files by now.
pub fn open(node: &Node, kind: Kind) -> Result<OwnedFd, BrokerError> {
    let configured = || {
        let path = node.settings.kubeconfig.as_deref();
        path.ok_or(BrokerError::NotConfigured { what: "--kubeconfig" })
    };
    let bootstrap = || {
        let path = node.settings.certificates.bootstrap.as_deref();
        path.ok_or(BrokerError::NotConfigured { what: "--bootstrap-kubeconfig" })
    };
    let named_by = |path: &Path, what: &'static str, pick: fn(kubeconfig::NamedFiles) -> Option<PathBuf>| {
        pick(kubeconfig::read(path)?).ok_or(BrokerError::NotNamed { what })
    };
    let named = |what, pick| named_by(configured()?, what, pick);
    let begun_with = |what, pick| named_by(bootstrap()?, what, pick);
    let certificates = &node.settings.certificates;
    let path = match kind {
        Kind::Kubeconfig => configured()?.to_owned(),
        Kind::ClientCertificate => named("client-certificate", |files| files.client_certificate)?,
        Kind::ClientKey => named("client-key", |files| files.client_key)?,
        Kind::ClusterCa => named("certificate-authority", |files| files.cluster_ca)?,
        Kind::Token => named("tokenFile", |files| files.token)?,
        Kind::ServingCertificate => node.settings.serving.certificate.clone(),
        Kind::ServingKey => node.settings.serving.key.clone(),
        Kind::ClientCa => {
            let path = node.settings.client_ca.clone();
            path.ok_or(BrokerError::NotConfigured { what: "authentication.x509.clientCAFile" })?
        }
        Kind::BootstrapKubeconfig => bootstrap()?.to_owned(),
        Kind::BootstrapClientCertificate => begun_with("client-certificate", |files| files.client_certificate)?,
        Kind::BootstrapClientKey => begun_with("client-key", |files| files.client_key)?,
        Kind::BootstrapClusterCa => begun_with("certificate-authority", |files| files.cluster_ca)?,
        Kind::BootstrapToken => begun_with("tokenFile", |files| files.token)?,
        Kind::ClientPair if certificates.client => return pairs::open(&certificates.folder, Prefix::Client),
        Kind::ServingPair if certificates.serving => return pairs::open(&certificates.folder, Prefix::Server),
        Kind::PendingClientKey if certificates.bootstrap.is_some() => return pairs::open_pending(&certificates.folder),
        Kind::ClientPair => {
            return Err(BrokerError::NotConfigured { what: "rotateCertificates or --bootstrap-kubeconfig" });
        }
        Kind::ServingPair => return Err(BrokerError::NotConfigured { what: "serverTLSBootstrap" }),
        Kind::PendingClientKey => return Err(BrokerError::NotConfigured { what: "--bootstrap-kubeconfig" }),
        Kind::Unspecified => return Err(validate::bad("kind", "unspecified", "one of the named kinds").into()),
    };
    Ok(open::operator(&path, FileKind::RegularFile)?)
}

/// Opens one place of upstream's search order for registry credentials.
pub fn registry_config(node: &Node, index: u32) -> Result<OwnedFd, BrokerError> {
    let paths = &node.settings.registry_configs;
    let path = usize::try_from(index).ok().and_then(|index| paths.get(index));
    let path = path.ok_or(BrokerError::PastTheLast { index, count: paths.len() })?;
    Ok(open::operator(path, FileKind::RegularFile)?)
}
