//! Which configMaps, secrets and tokens a part of a pod names, and what came of asking for them. Asking waits; what is
//! made of the answers (environments, files of volumes) is pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};

use super::certificates::{CertificateWanted, Credential, TrustBundleWanted};
use super::{ObjectError, Objects, Token, TokenWanted};

/// An answer that takes longer is none. Upstream gives its caches one second (`pkg/kubelet/util/manager`); a request
/// may take longer.
const DEADLINE: Duration = Duration::from_secs(10);

/// What is named.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ObjectReferences {
    pub config_maps: BTreeSet<String>,
    pub secrets: BTreeSet<String>,
    pub tokens: BTreeSet<TokenWanted>,
    /// By their keys.
    pub trust_bundles: BTreeMap<String, TrustBundleWanted>,
    pub certificates: BTreeSet<CertificateWanted>,
}

impl ObjectReferences {
    pub fn is_empty(&self) -> bool {
        let of_certificates = self.trust_bundles.is_empty() && self.certificates.is_empty();
        self.config_maps.is_empty() && self.secrets.is_empty() && self.tokens.is_empty() && of_certificates
    }
}

/// Why an object is not to be had, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// `configmap "x" not found`.
    #[error("{kind} {name:?} not found")]
    NotFound { kind: &'static str, name: String },
    #[error(transparent)]
    Other(ObjectError),
}

impl LookupError {
    /// Nobody has answered: nothing is known to be wrong with the pod.
    pub fn is_transient(&self) -> bool {
        matches!(self, LookupError::Other(ObjectError::Away(_)))
    }

    pub fn of(kind: &'static str, name: &str, error: ObjectError) -> Self {
        match error {
            ObjectError::NotFound(_) => LookupError::NotFound { kind, name: name.to_owned() },
            other => LookupError::Other(other),
        }
    }
}

/// An object, or why there is none.
pub type Lookup<T> = Result<T, LookupError>;

/// What came of asking. `Debug` shows no contents.
#[derive(Clone, Default)]
pub struct NamedObjects {
    pub config_maps: BTreeMap<String, Lookup<Arc<ConfigMap>>>,
    pub secrets: BTreeMap<String, Lookup<Arc<Secret>>>,
    pub tokens: BTreeMap<TokenWanted, Lookup<Token>>,
    pub trust_bundles: BTreeMap<String, Lookup<String>>,
    pub certificates: BTreeMap<CertificateWanted, Lookup<Credential>>,
}

impl Debug for NamedObjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NamedObjects")
            .field("config_maps", &self.config_maps.keys())
            .field("secrets", &self.secrets.keys())
            .field("tokens", &self.tokens.keys())
            .field("trust_bundles", &self.trust_bundles.keys())
            .field("certificates", &self.certificates.keys())
            .finish()
    }
}

fn never_asked<T>(kind: &str, name: &str) -> Lookup<T> {
    Err(LookupError::Other(ObjectError::Away(format!("{kind} {name:?} has not been asked for"))))
}

impl NamedObjects {
    /// # Errors
    /// [`LookupError`].
    pub fn config_map(&self, name: &str) -> Lookup<&ConfigMap> {
        match self.config_maps.get(name) {
            Some(found) => found.as_deref().map_err(Clone::clone),
            None => never_asked("configmap", name),
        }
    }

    /// # Errors
    /// [`LookupError`].
    pub fn secret(&self, name: &str) -> Lookup<&Secret> {
        match self.secrets.get(name) {
            Some(found) => found.as_deref().map_err(Clone::clone),
            None => never_asked("secret", name),
        }
    }

    /// # Errors
    /// [`LookupError`].
    pub fn token(&self, wanted: &TokenWanted) -> Lookup<Token> {
        self.tokens.get(wanted).cloned().unwrap_or_else(|| never_asked("token", &wanted.service_account))
    }

    /// In PEM.
    ///
    /// # Errors
    /// [`LookupError`].
    pub fn trust_anchors(&self, wanted: &TrustBundleWanted) -> Lookup<String> {
        let key = wanted.key();
        self.trust_bundles.get(&key).cloned().unwrap_or_else(|| never_asked("clustertrustbundle", &key))
    }

    /// # Errors
    /// [`LookupError`].
    pub fn certificate(&self, wanted: &CertificateWanted) -> Lookup<Credential> {
        let known = self.certificates.get(wanted).cloned();
        known.unwrap_or_else(|| never_asked("podcertificaterequest", &wanted.signer))
    }
}

impl NamedObjects {
    /// When the first of the tokens is to be replaced by a newer one.
    pub fn tokens_renew(&self) -> Option<jiff::Timestamp> {
        self.tokens.values().flatten().map(|token| token.renew).min()
    }
}

/// Asks for all of them at once, within ten seconds. Without a name in `wanted` it does not wait at all.
pub async fn fetch(objects: &dyn Objects, namespace: &str, wanted: ObjectReferences) -> NamedObjects {
    let config_maps = wanted.config_maps.into_iter().map(|name| async move {
        let got = in_time("configmap", objects.config_map(namespace, &name)).await;
        let got = got.map_err(|error| LookupError::of("configmap", &name, error));
        (name, got)
    });
    let secrets = wanted.secrets.into_iter().map(|name| async move {
        let got = in_time("secret", objects.secret(namespace, &name)).await;
        let got = got.map_err(|error| LookupError::of("secret", &name, error));
        (name, got)
    });
    let tokens = wanted.tokens.into_iter().map(|token| async move {
        // What was not found is said in the server's words: it may be the service account or the pod.
        let got = in_time("token", objects.token(&token)).await.map_err(LookupError::Other);
        (token, got)
    });
    let bundles = wanted.trust_bundles.into_iter().map(|(key, bundle)| async move {
        let got = in_time("clustertrustbundle", objects.trust_anchors(&bundle)).await.map_err(LookupError::Other);
        (key, got)
    });
    let certificates = wanted.certificates.into_iter().map(|certificate| async move {
        let got = in_time("podcertificaterequest", objects.pod_certificate(&certificate)).await;
        (certificate, got.map_err(LookupError::Other))
    });
    let (config_maps, secrets, tokens, trust_bundles, certificates) = tokio::join!(
        join_all(config_maps),
        join_all(secrets),
        join_all(tokens),
        join_all(bundles),
        join_all(certificates)
    );
    NamedObjects {
        config_maps: config_maps.into_iter().collect(),
        secrets: secrets.into_iter().collect(),
        tokens: tokens.into_iter().collect(),
        trust_bundles: trust_bundles.into_iter().collect(),
        certificates: certificates.into_iter().collect(),
    }
}

async fn in_time<T>(kind: &'static str, call: BoxFuture<'_, Result<T, ObjectError>>) -> Result<T, ObjectError> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(answer) => answer,
        Err(_) => Err(ObjectError::Away(format!("failed to sync {kind} cache: timed out waiting for the condition"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::FakeObjects;

    #[tokio::test(start_paused = true)]
    async fn everything_is_answered_and_silence_is_not_absence() {
        let objects = FakeObjects::default();
        objects.put_config_map("here", &[("k", "v")]);
        objects.put_secret("silent", &[]);
        objects.silence("silent");
        objects.put_token("for p");
        let token = TokenWanted {
            namespace: "ns".into(),
            service_account: "default".into(),
            service_account_uid: None,
            audiences: vec![],
            expiration_seconds: 600,
            pod_name: "p".into(),
            pod_uid: "u".into(),
        };
        let names = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect();
        let wanted = ObjectReferences {
            config_maps: names(&["here", "gone"]),
            secrets: names(&["silent"]),
            tokens: BTreeSet::from([token.clone()]),
            ..ObjectReferences::default()
        };
        let got = fetch(&objects, "ns", wanted).await;
        assert_eq!(got.config_map("here").unwrap().data.as_ref().unwrap()["k"], "v");
        let gone = got.config_map("gone").unwrap_err();
        assert_eq!((gone.to_string().as_str(), gone.is_transient()), ("configmap \"gone\" not found", false));
        let silent = got.secret("silent").unwrap_err();
        assert_eq!(silent.to_string(), "failed to sync secret cache: timed out waiting for the condition");
        assert!(silent.is_transient() && got.secret("other").unwrap_err().is_transient());
        assert_eq!(got.token(&token).unwrap().token, "for p");
        assert!(!format!("{got:?}").contains("\"v\""));
    }
}
