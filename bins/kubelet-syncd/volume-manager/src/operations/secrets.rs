//! What a driver is told that nobody else may see: secrets and service-account tokens. They are read for one call, and are in no
//! log, event or error.

use kubelet_model::objects::{ObjectError, TokenWanted};
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
    /// In the words of upstream's csi_attacher.go, csi_mounter.go and expander.go, and csi_block.go for a block volume.
    fn failed(self, block: bool, namespace: &str, name: &str, why: &str) -> String {
        let (what, between) = match (self, block) {
            (SecretField::Stage, false) => ("fetching NodeStageSecretRef", " failed"),
            (SecretField::Publish, false) => ("fetching NodePublishSecretRef", " failed"),
            (SecretField::Stage, true) => ("kubernetes.io/csi: failed to get NodeStageSecretRef", ""),
            (SecretField::Publish, true) => {
                ("kubernetes.io/csi: blockMapper.publishVolumeForBlock failed to get NodePublishSecretRef", "")
            }
            (SecretField::Expand, _) => ("expander.NodeExpand failed to get NodeExpandSecretRef", ""),
        };
        format!("{what} {namespace}/{name}{between}: {why}")
    }
}

/// In the words of upstream's csi_util.go.
fn not_found(namespace: &str, name: &str, error: &ObjectError) -> String {
    format!("kubernetes.io/csi: failed to find the secret {name} in the namespace {namespace} with error: {error}")
}

/// In the words of upstream's csi_mounter.go (SetUpAt); "accoount" is upstream's spelling.
fn no_tokens(error: &ObjectError) -> String {
    format!("kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes: {error}")
}

/// What a secret of the driver's holds; nothing where no field names one. `block`: for a volume without a file system.
///
/// # Errors
/// It cannot be read, or a value of it is no text.
pub async fn secret(
    reader: &dyn ClusterReader,
    reference: Option<&ObjectRef>,
    field: SecretField,
    phase: Phase,
    block: bool,
) -> Result<Pairs, Failure> {
    let Some(ObjectRef { namespace, name }) = reference else { return Ok(Pairs::new()) };
    let failed = |why: String| field.failed(block, namespace, name, &why);
    let secret = reader
        .secret(namespace, name)
        .await
        .map_err(|error| Failure::object(phase, failed(not_found(namespace, name, &error)), &error))?;
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
            service_account_uid: None,
            audiences: Some(audience.clone()).filter(|audience| !audience.is_empty()).into_iter().collect(),
            expiration_seconds: seconds.unwrap_or(TOKEN_SECONDS),
            pod_name: pod.name.clone(),
            pod_uid: pod.uid.clone(),
        };
        let token =
            reader.token(&wanted).await.map_err(|error| Failure::object(Phase::SetUp, no_tokens(&error), &error))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_are_refused_are_told_as_upstream_tells_it() {
        const WHY: &str = "kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes: no";
        assert_eq!(no_tokens(&ObjectError::NotFound("no".to_owned())), WHY);
    }

    #[test]
    fn a_secret_that_is_not_there_is_told_as_upstream_tells_it() {
        const WHY: &str =
            "kubernetes.io/csi: failed to find the secret s in the namespace n with error: secrets \"s\" not found";
        assert_eq!(not_found("n", "s", &ObjectError::NotFound("secrets \"s\" not found".to_owned())), WHY);
        for (field, block, expected) in [
            (SecretField::Stage, false, "fetching NodeStageSecretRef n/s failed: "),
            (SecretField::Publish, false, "fetching NodePublishSecretRef n/s failed: "),
            (SecretField::Expand, false, "expander.NodeExpand failed to get NodeExpandSecretRef n/s: "),
            (SecretField::Stage, true, "kubernetes.io/csi: failed to get NodeStageSecretRef n/s: "),
            (
                SecretField::Publish,
                true,
                "kubernetes.io/csi: blockMapper.publishVolumeForBlock failed to get NodePublishSecretRef n/s: ",
            ),
            (SecretField::Expand, true, "expander.NodeExpand failed to get NodeExpandSecretRef n/s: "),
        ] {
            assert_eq!(field.failed(block, "n", "s", WHY), format!("{expected}{WHY}"), "{field:?}, block: {block}");
        }
    }
}
