//! From a decoded manifest to the pod that the node runs: defaults, uid, name with the node's suffix, annotations, the
//! toleration, validation, and no reference to API objects (upstream `pkg/kubelet/config/common.go`).

#[cfg(test)]
mod tests;

use bulkhead_types::{NodeName, PodUid};
use k8s_openapi::api::core::v1::{PodStatus, Toleration};
use kubelet_model::v1::Pod;

use super::uids::{UidChoice, Uids, content_digest, generated_uid};
use kubelet_model::annotations::CONFIG_HASH;
use kubelet_model::defaults;

use super::references;
use kubelet_model::validation::field::text;
use kubelet_model::validation::{Errors, Gates, validate_pod};

/// Where a manifest comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin<'a> {
    /// Full path of the file.
    File(&'a str),
    Url(&'a str),
}

/// What static pods are built for.
#[derive(Debug, Clone)]
pub struct ForNode {
    pub name: NodeName,
    /// How strictly they are checked.
    pub gates: Gates,
}

/// With the gates as they are by default: for tests. What runs says them (`run/stages.rs`).
impl From<NodeName> for ForNode {
    fn from(name: NodeName) -> Self {
        ForNode { name, gates: Gates::default() }
    }
}

/// Why a decoded pod is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RefusedPod {
    #[error("invalid pod: name is needed for the pod")]
    NoName,
    #[error("invalid pod: {0}")]
    Invalid(Errors),
    #[error("static pods may not reference {0}")]
    References(&'static str),
    #[error("metadata.uid {0:?} cannot name a directory: letters, digits, '-', '_' and '.' are, 128 at most")]
    UnsafeUid(String),
}

/// A static pod and what its uid rests on.
#[derive(Debug, Clone)]
pub struct StaticPod {
    pub pod: Pod,
    /// Key of the choice in the record.
    pub origin: String,
    pub digest: String,
}

impl StaticPod {
    /// What the record keeps of it.
    pub fn choice(&self) -> UidChoice {
        let uid = text(&self.pod.metadata.uid).to_owned();
        UidChoice { digest: self.digest.clone(), uid, pod: Box::new(self.pod.clone()) }
    }

    /// The pod that was last built from there, when it was built for this node.
    pub fn from_record(origin: &str, choice: &UidChoice, node: &NodeName) -> Option<StaticPod> {
        let pod = (*choice.pod).clone();
        let for_node = pod.spec.as_ref().is_some_and(|s| text(&s.node_name) == node.as_str());
        for_node.then(|| StaticPod { pod, origin: origin.to_owned(), digest: choice.digest.clone() })
    }
}

/// Key of the uid choice.
pub fn choice_key(origin: Origin<'_>, namespace: &str, name: &str) -> String {
    match origin {
        Origin::File(path) => format!("file:{path}"),
        Origin::Url(url) => format!("url:{url}#{namespace}/{name}"),
    }
}

/// Builds the pod, or says why upstream would not take it.
pub fn build(mut pod: Pod, origin: Origin<'_>, node: &ForNode, uids: &Uids) -> Result<StaticPod, RefusedPod> {
    let ForNode { name: node, gates } = node;
    defaults::apply(&mut pod);
    let name = text(&pod.metadata.name).to_owned();
    if name.is_empty() {
        return Err(RefusedPod::NoName);
    }
    let given_uid = text(&pod.metadata.uid).to_owned();
    let digest = content_digest(&pod);
    let generated = given_uid.is_empty().then(|| match origin {
        Origin::File(path) => generated_uid(&pod, &format!("host:{node}file:{path}")),
        Origin::Url(url) => generated_uid(&pod, &format!("url:{url}")),
    });

    pod.metadata.name = Some(format!("{name}-{}", node.as_str().to_lowercase()));
    if text(&pod.metadata.namespace).is_empty() {
        pod.metadata.namespace = Some("default".to_owned());
    }
    let key = choice_key(origin, text(&pod.metadata.namespace), &name);
    let uid = match generated {
        Some(generated) => {
            let same = uids.recorded(&key).filter(|choice| choice.digest != digest);
            let same = same.filter(|choice| is_of_earlier_version(choice, &pod, origin, node));
            uids.choose(&key, same.map_or(&digest, |choice| &choice.digest), &generated, &pod)
        }
        None => given_uid,
    };
    if PodUid::parse(&uid).is_err() {
        return Err(RefusedPod::UnsafeUid(uid));
    }
    let pod = finish(pod, uid, origin, node);
    let errors = validate_pod(&pod, *gates);
    if !errors.is_empty() {
        return Err(RefusedPod::Invalid(errors));
    }
    if let Some(kind) = pod.spec.as_ref().and_then(references::first) {
        return Err(RefusedPod::References(kind));
    }
    Ok(StaticPod { pod, origin: key, digest })
}

/// What the node adds to the manifest.
fn finish(mut pod: Pod, uid: String, origin: Origin<'_>, node: &NodeName) -> Pod {
    pod.metadata.annotations.get_or_insert_default().insert(CONFIG_HASH.to_owned(), uid.clone());
    pod.metadata.uid = Some(uid);
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node.as_str().to_owned());
    if matches!(origin, Origin::File(_)) {
        tolerate_no_execute(spec.tolerations.get_or_insert_default());
    }
    pod.status.get_or_insert_with(PodStatus::default).phase = Some("Pending".to_owned());
    pod
}

/// Whether the recorded pod is this one but for defaults that a later version has come to know: then the digest differs and
/// the manifest does not, and an upgrade must not make the pod anew.
fn is_of_earlier_version(choice: &UidChoice, pod: &Pod, origin: Origin<'_>, node: &NodeName) -> bool {
    let mut recorded = (*choice.pod).clone();
    defaults::apply(&mut recorded);
    content_digest(&recorded) == content_digest(&finish(pod.clone(), choice.uid.clone(), origin, node))
}

/// A pod from a file stays through every NoExecute taint; an equal toleration with a time limit is replaced.
fn tolerate_no_execute(tolerations: &mut Vec<Toleration>) {
    let ours =
        Toleration { operator: Some("Exists".to_owned()), effect: Some("NoExecute".to_owned()), ..Default::default() };
    let mut replaced = false;
    for own in tolerations.iter_mut() {
        let same = text(&own.operator) == "Exists"
            && text(&own.effect) == "NoExecute"
            && text(&own.key).is_empty()
            && text(&own.value).is_empty();
        if same {
            *own = ours.clone();
            replaced = true;
        }
    }
    if !replaced {
        tolerations.push(ours);
    }
}
