//! What a driver is told that nobody else may see: secrets and service-account tokens. They are read for one call, and are in no
//! log, event or error.

use kubelet_model::objects::TokenWanted;
use kubelet_model::pod::spec::PodIdentity;

use super::driver_facts::DriverFacts;
use super::{Failure, Phase};
use crate::csi::requests::{Pairs, PodInfo, TOKENS};
use crate::pod_facts::PodFacts;
use crate::ports::ClusterReader;
use crate::spec::ObjectRef;

/// Where a request for a token says nothing.
const TOKEN_SECONDS: i64 = 3600;

/// The pod as drivers and token requests name it.
pub fn pod_info(pod: &PodFacts) -> PodInfo {
    let name = |of: fn(&PodIdentity) -> String| pod.identity.as_ref().map(of).unwrap_or_default();
    PodInfo {
        name: name(|identity| identity.name.to_string()),
        namespace: name(|identity| identity.namespace.to_string()),
        uid: name(|identity| identity.uid.to_string()),
        service_account: pod.service_account.clone(),
    }
}

/// The field of a PersistentVolume that names the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretField {
    Stage,
    Publish,
    Expand,
}

impl SecretField {
    /// In the words of upstream's csi_attacher.go, csi_mounter.go and expander.go.
    fn failed(self, namespace: &str, name: &str, why: &str) -> String {
        match self {
            SecretField::Stage => format!("fetching NodeStageSecretRef {namespace}/{name} failed: {why}"),
            SecretField::Publish => format!("fetching NodePublishSecretRef {namespace}/{name} failed: {why}"),
            SecretField::Expand => {
                format!("expander.NodeExpand failed to get NodeExpandSecretRef {namespace}/{name}: {why}")
            }
        }
    }
}

/// What a secret of the driver's holds; nothing where no field names one.
///
/// # Errors
/// It cannot be read, or a value of it is no text.
pub async fn secret(
    reader: &dyn ClusterReader,
    reference: Option<&ObjectRef>,
    field: SecretField,
    phase: Phase,
) -> Result<Pairs, Failure> {
    let Some(ObjectRef { namespace, name }) = reference else { return Ok(Pairs::new()) };
    let failed = |why: String| field.failed(namespace, name, &why);
    let secret = reader.secret(namespace, name).await.map_err(|error| {
        let why = format!("failed to find the secret {name} in the namespace {namespace} with error: {error}");
        Failure::object(phase, failed(why), &error)
    })?;
    let mut pairs = Pairs::new();
    for (key, value) in secret.data.unwrap_or_default() {
        let Ok(text) = String::from_utf8(value.0) else {
            return Err(Failure::new(phase, failed(format!("the value of key {key:?} is not valid UTF-8"))));
        };
        pairs.insert(key, text);
    }
    Ok(pairs)
}

/// The tokens that a driver asks for; empty where it asks for none.
pub async fn tokens(reader: &dyn ClusterReader, facts: &DriverFacts, pod: &PodInfo) -> Result<Pairs, Failure> {
    if facts.token_requests.is_empty() {
        return Ok(Pairs::new());
    }
    let mut parts = std::collections::BTreeMap::new();
    for (audience, seconds) in &facts.token_requests {
        let wanted = TokenWanted {
            namespace: pod.namespace.clone(),
            service_account: pod.service_account.clone(),
            audiences: Some(audience.clone()).filter(|audience| !audience.is_empty()).into_iter().collect(),
            expiration_seconds: seconds.unwrap_or(TOKEN_SECONDS),
            pod_name: pod.name.clone(),
            pod_uid: pod.uid.clone(),
        };
        let token = reader.token(&wanted).await.map_err(|error| {
            let what = "mounter.SetUpAt failed to get service account token attributes";
            Failure::object(Phase::SetUp, format!("kubernetes.io/csi: {what}: {error}"), &error)
        })?;
        // As Go writes a time with whole seconds.
        let expires = jiff::Timestamp::from_second(token.expires.as_second()).unwrap_or(token.expires);
        let text = |text: &str| serde_json::Value::String(text.to_owned()).to_string();
        let status =
            format!("{{\"token\":{},\"expirationTimestamp\":{}}}", text(&token.token), text(&expires.to_string()));
        parts.insert(text(audience), status);
    }
    let parts: Vec<String> = parts.into_iter().map(|(audience, status)| format!("{audience}:{status}")).collect();
    Ok([(TOKENS.to_owned(), format!("{{{}}}", parts.join(",")))].into())
}
