//! What projected volumes show of certificates: trust bundles of the cluster, and a pod's own.

use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Which trust anchors are wanted.
#[derive(Debug, Clone, PartialEq)]
pub enum Anchors {
    /// Of the ClusterTrustBundle of this name.
    Named(String),
    /// Of all ClusterTrustBundles of a signer that are selected; no selector selects none, an empty one all.
    OfSigner { signer: String, selector: Option<LabelSelector> },
}

/// A `clusterTrustBundle` source of a volume.
#[derive(Debug, Clone, PartialEq)]
pub struct TrustBundleWanted {
    pub anchors: Anchors,
    /// That there is none is an empty file.
    pub optional: bool,
}

impl TrustBundleWanted {
    /// What the same answer is found by.
    pub fn key(&self) -> String {
        format!("{self:?}")
    }
}

/// A `podCertificate` source of a volume. All that is not of its pod or place is in it too: a pod does not change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CertificateWanted {
    pub namespace: String,
    pub pod_name: String,
    pub pod_uid: String,
    pub volume: String,
    /// Of the source among the volume's.
    pub index: usize,
    pub service_account: String,
    pub signer: String,
    pub key_type: String,
    pub max_expiration_seconds: Option<i32>,
    pub annotations: BTreeMap<String, String>,
}

/// A private key and the chain that was issued for it, both in PEM; `Debug` prints neither.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Credential {
    pub key: String,
    pub chain: String,
}

impl Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential").finish_non_exhaustive()
    }
}
