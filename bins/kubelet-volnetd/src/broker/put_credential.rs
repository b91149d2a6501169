//! The credentials that are written here: the serving certificate that the node makes for itself, where the operator
//! configured none; pairs that were signed for it, and the key of a request that is not answered yet ([`pairs`]); the
//! kubeconfig that shows such a pair ([`kubeconfig`]). Every place is known from the configuration, and what is written is
//! PEM of the two kinds, or made here from what root wrote, and nothing else. A client pair is this node's ([`client_pair`]).
//!
//! [`pairs`]: super::pairs
//! [`kubeconfig`]: super::joined

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_ipc::volnetd::ServingPair as Content;
use bulkhead_ipc::volnetd::credential::Kind;
use bulkhead_sys::memfd;
use bulkhead_sys::open::{self, FileKind, OpenError};
use prost::Message as _;

use super::pairs::{self, Prefix};
use super::{BrokerError, client_pair, joined};
use crate::node::Node;
use crate::{journal, validate};

/// A chain of two certificates and a key have 4 KiB.
const MAX_BYTES: u64 = 64 << 10;

/// Writes one credential, from what the sealed memfd holds.
pub fn put(node: &Node, kind: Kind, content: OwnedFd) -> Result<(), BrokerError> {
    let kubelet = &node.settings.certificates;
    match kind {
        Kind::ServingCertificate => own_serving(node, &content),
        Kind::ClientPair if kubelet.client => {
            let pair = read(&content, "the client pair")?;
            let now = jiff::Timestamp::now().as_second();
            client_pair::check(&pair.certificates, &pair.private_key, &node.settings.node_name, now)?;
            pairs::put(&kubelet.folder, Prefix::Client, &node.client_pair, &pair.certificates, &pair.private_key)
        }
        Kind::ServingPair if kubelet.serving => {
            let pair = read(&content, "the serving pair")?;
            pairs::put(&kubelet.folder, Prefix::Server, &node.serving_pair, &pair.certificates, &pair.private_key)
        }
        Kind::PendingClientKey if kubelet.bootstrap.is_some() => {
            let pair = decode(&content, "the pending key")?;
            private_key(&pair)?;
            pairs::put_pending(&kubelet.folder, &pair.private_key)
        }
        Kind::Kubeconfig => match (&kubelet.bootstrap, &node.settings.kubeconfig) {
            (Some(bootstrap), Some(path)) => {
                joined::write(bootstrap, path, &pairs::current(&kubelet.folder, Prefix::Client))
            }
            _ => Err(BrokerError::NotConfigured { what: "--bootstrap-kubeconfig" }),
        },
        Kind::ClientPair => Err(BrokerError::NotConfigured { what: "rotateCertificates or --bootstrap-kubeconfig" }),
        Kind::ServingPair => Err(BrokerError::NotConfigured { what: "serverTLSBootstrap" }),
        Kind::PendingClientKey => Err(BrokerError::NotConfigured { what: "--bootstrap-kubeconfig" }),
        other => {
            let allowed = "KIND_SERVING_CERTIFICATE, KIND_CLIENT_PAIR, KIND_SERVING_PAIR, KIND_PENDING_CLIENT_KEY or KIND_KUBECONFIG";
            Err(validate::bad("kind", other.as_str_name(), allowed).into())
        }
    }
}

fn decode(content: &OwnedFd, name: &'static str) -> Result<Content, BrokerError> {
    let bytes = memfd::read_sealed(content, MAX_BYTES).map_err(|source| BrokerError::Memfd { name, source })?;
    Content::decode(&*bytes).map_err(|_| validate::bad("content", "bytes that are none", "a ServingPair").into())
}

fn read(content: &OwnedFd, name: &'static str) -> Result<Content, BrokerError> {
    let pair = decode(content, name)?;
    pem(&pair.certificates, "certificates", &["CERTIFICATE"], 8)?;
    private_key(&pair)?;
    Ok(pair)
}

fn private_key(pair: &Content) -> Result<(), BrokerError> {
    pem(&pair.private_key, "private_key", &["PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY"], 1)
}

fn pem(content: &[u8], what: &'static str, labels: &[&str], most: usize) -> Result<(), BrokerError> {
    match pem_blocks(content, labels) {
        Some(blocks) if (1..=most).contains(&blocks) => Ok(()),
        _ => Err(validate::bad(what, "(not shown)", "blocks of PEM of its kind").into()),
    }
}

/// The pair that the node signs itself, once: the key first, so that a certificate that is there has its key.
fn own_serving(node: &Node, content: &OwnedFd) -> Result<(), BrokerError> {
    let serving = &node.settings.serving;
    let Some(folder) = serving.own_folder() else {
        return Err(BrokerError::NotConfigured { what: "a serving certificate of the node's own" });
    };
    let pair = read(content, "the serving certificate")?;
    let dir = make_folder(folder)?;
    if exists(&serving.certificate)? {
        return Err(BrokerError::Exists { path: serving.certificate.clone() });
    }
    for (path, content, mode) in
        [(&serving.key, &pair.private_key, 0o600), (&serving.certificate, &pair.certificates, 0o644)]
    {
        let name = path.file_name().map(PathBuf::from).unwrap_or_default();
        journal::replace(dir.as_fd(), &name, content, mode)
            .map_err(|source| BrokerError::PutState { path: path.clone(), source })?;
    }
    Ok(())
}

/// The folder, made where it is missing, below what is root's already.
pub(super) fn make_folder(folder: &Path) -> Result<OwnedFd, BrokerError> {
    for ancestor in folder.ancestors() {
        match open::operator(ancestor, FileKind::Directory) {
            Ok(dir) => {
                let rest = folder.strip_prefix(ancestor).unwrap_or(Path::new(""));
                return Ok(open::create_dirs_beneath(dir.as_fd(), rest, 0o755)?);
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(BrokerError::NotConfigured { what: "an absolute path" })
}

/// Whether anything stands under the name, whoever put it there.
fn exists(path: &Path) -> Result<bool, BrokerError> {
    match open::resolve_trusted(path) {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(OpenError::Untrusted { .. } | OpenError::TooManyLinks { .. }) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// How many blocks there are, when there is nothing but blocks with these labels.
fn pem_blocks(content: &[u8], labels: &[&str]) -> Option<usize> {
    let mut open: Option<&str> = None;
    let mut blocks = 0;
    for line in std::str::from_utf8(content).ok()?.lines() {
        let label =
            |prefix: &str| line.strip_prefix(prefix)?.strip_suffix("-----").filter(|label| labels.contains(label));
        open = match open {
            None => Some(label("-----BEGIN ")?),
            Some(begun) if line.starts_with('-') => {
                (label("-----END ")? == begun).then_some(())?;
                blocks += 1;
                None
            }
            Some(begun) => {
                let base64 = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=');
                line.bytes().all(base64).then_some(())?;
                Some(begun)
            }
        };
    }
    open.is_none().then_some(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_whole_blocks_of_the_kind() {
        let labels = ["CERTIFICATE"];
        let block = "-----BEGIN CERTIFICATE-----\nTUlJ\nQg==\n-----END CERTIFICATE-----\n";
        assert_eq!(pem_blocks(block.as_bytes(), &labels), Some(1));
        assert_eq!(pem_blocks(block.repeat(3).as_bytes(), &labels), Some(3));
        assert_eq!(pem_blocks(b"", &labels), Some(0));
        for bad in [
            "x",
            "-----BEGIN CERTIFICATE-----\nTUlJ\n",
            "-----BEGIN CERTIFICATE-----\nTU lJ\n-----END CERTIFICATE-----\n",
            "-----BEGIN PRIVATE KEY-----\nTUlJ\n-----END PRIVATE KEY-----\n",
            "-----BEGIN CERTIFICATE-----\nTUlJ\n-----END PRIVATE KEY-----\n",
            "-----END CERTIFICATE-----\n",
        ] {
            assert_eq!(pem_blocks(bad.as_bytes(), &labels), None, "{bad}");
        }
        assert_eq!(pem_blocks(&[0xff, 0xfe], &labels), None);
        assert_eq!(pem_blocks(format!("{block}#!/bin/sh\n").as_bytes(), &labels), None);
    }
}
