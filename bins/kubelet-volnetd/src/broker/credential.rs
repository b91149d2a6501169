//! Credentials that the operator or the control plane put on the disk: the kubeconfig, the files that its current
//! context names, what the HTTPS server shows and whose clients it believes, and registry credentials in docker's
//! formats. All by rule 1: a credential that others than root could
//! replace, or whose way they could change, is not passed on.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use bulkhead_ipc::volnetd::credential::Kind;
use bulkhead_sys::open::{self, Wanted};

use super::BrokerError;
use crate::node::Node;
use crate::{kubeconfig, validate};

/// Opens one credential for reading. The kubeconfig is read anew each time: it may name other files by now.
pub fn open(node: &Node, kind: Kind) -> Result<OwnedFd, BrokerError> {
    let configured = || {
        let path = node.settings.kubeconfig.as_deref();
        path.ok_or(BrokerError::NotConfigured { what: "--kubeconfig" })
    };
    let named = |what: &'static str, pick: fn(kubeconfig::NamedFiles) -> Option<PathBuf>| {
        pick(kubeconfig::read(configured()?)?).ok_or(BrokerError::NotNamed { what })
    };
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
        Kind::Unspecified => return Err(validate::bad("kind", "unspecified", "one of the named kinds").into()),
    };
    Ok(open::operator(&path, Wanted::RegularFile)?)
}

/// Opens one place of upstream's search order for registry credentials.
pub fn registry_config(node: &Node, index: u32) -> Result<OwnedFd, BrokerError> {
    let paths = &node.settings.registry_configs;
    let path = usize::try_from(index).ok().and_then(|index| paths.get(index));
    let path = path.ok_or(BrokerError::PastTheLast { index, count: paths.len() })?;
    Ok(open::operator(path, Wanted::RegularFile)?)
}
