//! The one credential that is written here: the serving certificate that the node makes for itself, where the operator
//! configured none. It never takes the place of one that is there, and what is written is PEM of the two kinds and
//! nothing else.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_ipc::volnetd::ServingPair as Content;
use bulkhead_ipc::volnetd::credential::Kind;
use bulkhead_sys::memfd;
use bulkhead_sys::open::{self, OpenError, Wanted};
use prost::Message as _;

use super::BrokerError;
use crate::node::Node;
use crate::{journal, validate};

/// A chain of two certificates and a key have 4 KiB.
const MAX_BYTES: u64 = 64 << 10;

/// Writes the pair: the key first, so that a certificate that is there has its key.
pub fn put(node: &Node, kind: Kind, content: OwnedFd) -> Result<(), BrokerError> {
    if kind != Kind::ServingCertificate {
        return Err(validate::bad("kind", kind.as_str_name(), "KIND_SERVING_CERTIFICATE").into());
    }
    let serving = &node.settings.serving;
    let Some(folder) = serving.own_folder() else {
        return Err(BrokerError::NotConfigured { what: "a serving certificate of the node's own" });
    };
    let name = "the serving certificate";
    let bytes = memfd::read_sealed(&content, MAX_BYTES).map_err(|source| BrokerError::Memfd { name, source })?;
    let pair = Content::decode(&*bytes)
        .map_err(|_| BrokerError::from(validate::bad("content", "bytes that are none", "a ServingPair")))?;
    let pem = |content: &[u8], what: &'static str, labels: &[&str], most: usize| {
        let blocks = pem_blocks(content, labels).filter(|blocks| (1..=most).contains(blocks));
        blocks
            .map(|_| ())
            .ok_or_else(|| BrokerError::from(validate::bad(what, "(not shown)", "blocks of PEM of its kind")))
    };
    pem(&pair.certificates, "certificates", &["CERTIFICATE"], 8)?;
    pem(&pair.private_key, "private_key", &["PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY"], 1)?;
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
fn make_folder(folder: &Path) -> Result<OwnedFd, BrokerError> {
    for ancestor in folder.ancestors() {
        match open::operator(ancestor, Wanted::Directory) {
            Ok(dir) => {
                let rest = folder.strip_prefix(ancestor).unwrap_or(Path::new(""));
                return Ok(open::create_dirs_beneath(dir.as_fd(), rest, 0o755)?);
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(BrokerError::NotConfigured { what: "an absolute --cert-dir" })
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
