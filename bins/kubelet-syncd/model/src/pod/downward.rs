//! What a pod may be told about itself: fields (`fieldRef`) and amounts (`resourceFieldRef`), for variables and for
//! files (upstream `pkg/fieldpath`, `pkg/api/v1/resource`, `pkg/kubelet/kubelet_resources.go`).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::v1::{Container, Pod};
use bulkhead_types::Quantity;
use bulkhead_types::resource_name::is_huge_page;
use k8s_openapi::api::core::v1::ResourceFieldSelector;

use super::resources::{Amounts, amount};
use super::spec::{self, ContainerKind};
use crate::node_facts::NodeFacts;
use crate::validation::env::{field_label, subscripted};
use crate::validation::field::quote;
use crate::validation::names::qualified_name;

/// A field or an amount that cannot be told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DownwardError {
    #[error("unsupported fieldPath: {0}")]
    FieldPath(String),
    #[error("fieldPath {0:?} does not support subscript")]
    NoSubscript(String),
    #[error("{0}")]
    Label(String),
    #[error("invalid key subscript in {path}: {}", .why.join(";"))]
    Subscript { path: String, why: Vec<String> },
    #[error("host IP unknown; known addresses: []")]
    HostIpUnknown,
    #[error("unsupported container resource : {0}")]
    Resource(String),
    #[error("container {0} not found")]
    NoSuchContainer(String),
    #[error("divisor {0:?} of resource {1} is not a quantity")]
    Divisor(String, String),
}

/// A field of the object's own metadata: all that a file may show.
pub fn object_field(pod: &Pod, path: &str) -> Result<String, DownwardError> {
    let meta = &pod.metadata;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    if let Some((map, key)) = subscripted(path) {
        // Annotation keys are compared without regard to case where they are checked, and only there.
        let (map, why) = match map {
            "metadata.labels" => (&meta.labels, qualified_name(key)),
            "metadata.annotations" => (&meta.annotations, qualified_name(&key.to_lowercase())),
            _ => return Err(DownwardError::NoSubscript(path.to_owned())),
        };
        return match why.is_empty() {
            true => Ok(map.as_ref().and_then(|m| m.get(key)).cloned().unwrap_or_default()),
            false => Err(DownwardError::Subscript { path: path.to_owned(), why }),
        };
    }
    match path {
        "metadata.name" => Ok(text(&meta.name)),
        "metadata.namespace" => Ok(text(&meta.namespace)),
        "metadata.uid" => Ok(text(&meta.uid)),
        "metadata.labels" => Ok(lines(meta.labels.as_ref())),
        "metadata.annotations" => Ok(lines(meta.annotations.as_ref())),
        _ => Err(DownwardError::FieldPath(path.to_owned())),
    }
}

/// A field as a variable may show it: the metadata, and what is known where the container starts.
pub fn variable_field(pod: &Pod, path: &str, pod_ips: &[IpAddr], facts: &NodeFacts) -> Result<String, DownwardError> {
    let path = field_label(path).map_err(DownwardError::Label)?;
    let join = |ips: &[IpAddr]| ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",");
    let pod_ips = facts.sort_pod_ips(pod_ips);
    let spec = spec::spec(pod);
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    Ok(match path {
        "spec.nodeName" => text(&spec.node_name),
        "spec.serviceAccountName" => text(&spec.service_account_name),
        "status.hostIP" => facts.host_ips.first().ok_or(DownwardError::HostIpUnknown)?.to_string(),
        "status.hostIPs" if facts.host_ips.is_empty() => return Err(DownwardError::HostIpUnknown),
        "status.hostIPs" => join(&facts.host_ips),
        "status.podIP" => pod_ips.first().map(IpAddr::to_string).unwrap_or_default(),
        "status.podIPs" => join(&pod_ips),
        path => object_field(pod, path)?,
    })
}

/// `key="value"`, one a line, by key.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> = map.into_iter().flatten().map(|(key, value)| format!("{key}={}", quote(value))).collect();
    lines.join("\n")
}

/// Limits that count as set where a container sets none. Pages are never defaulted.
const DEFAULTED: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// An amount for a variable of `own`. Without a limit the pod's counts, without that what the node can give to pods;
/// an init container that is named gets no default, as upstream has it.
pub fn variable_resource(
    selector: &ResourceFieldSelector,
    pod: &Pod,
    own: &Container,
    facts: &NodeFacts,
) -> Result<String, DownwardError> {
    let mut defaults: Amounts = DEFAULTED
        .iter()
        .filter_map(|name| facts.allocatable.get_key_value(*name))
        .map(|(n, q)| (n.clone(), *q))
        .collect();
    let of_pod = pod.spec.as_ref().and_then(|s| s.resources.as_ref()?.limits.as_ref());
    for name in ["cpu", "memory"] {
        let own = amount(of_pod, name).filter(|q| !q.is_zero());
        if let (Some(amount), Some(default)) = (own, defaults.get_mut(name)) {
            *default = amount;
        }
    }
    match selector.container_name.as_deref().filter(|n| !n.is_empty()) {
        None => value(selector, own, &defaults),
        Some(name) => match spec::find_container(pod, name) {
            Some((ContainerKind::Regular, container)) => value(selector, &container, &defaults),
            Some((ContainerKind::Init, container)) => value(selector, &container, &Amounts::new()),
            Some((ContainerKind::Ephemeral, _)) | None => Err(DownwardError::NoSuchContainer(name.to_owned())),
        },
    }
}

/// An amount for a file. Without a limit what the node can give to pods counts.
pub fn file_resource(selector: &ResourceFieldSelector, pod: &Pod, facts: &NodeFacts) -> Result<String, DownwardError> {
    let name = selector.container_name.as_deref().unwrap_or_default();
    match spec::find_container(pod, name) {
        Some((ContainerKind::Regular | ContainerKind::Init, container)) => {
            value(selector, &container, &facts.allocatable)
        }
        Some((ContainerKind::Ephemeral, _)) | None => Err(DownwardError::NoSuchContainer(name.to_owned())),
    }
}

fn value(
    selector: &ResourceFieldSelector,
    container: &Container,
    limit_defaults: &Amounts,
) -> Result<String, DownwardError> {
    let unsupported = || DownwardError::Resource(selector.resource.clone());
    let (list, name) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let has_default = DEFAULTED.contains(&name);
    if !has_default && !is_huge_page(name) {
        return Err(unsupported());
    }
    let own = container.resources.as_ref();
    let found = match list {
        "limits" => amount(own.and_then(|r| r.limits.as_ref()), name)
            .filter(|q| !q.is_zero())
            .or_else(|| limit_defaults.get(name).copied().filter(|_| has_default)),
        "requests" => amount(own.and_then(|r| r.requests.as_ref()), name),
        _ => return Err(unsupported()),
    };
    let amount = found.unwrap_or(Quantity::ZERO);
    let divisor = divisor(selector)?;
    let (amount, divisor) =
        if name == "cpu" { (amount.milli_value(), divisor.milli_value()) } else { (amount.value(), divisor.value()) };
    let divisor = if divisor <= 0 { 1 } else { divisor };
    // Rounded up.
    Ok((i128::from(amount) + i128::from(divisor) - 1).div_euclid(i128::from(divisor)).to_string())
}

fn divisor(selector: &ResourceFieldSelector) -> Result<Quantity, DownwardError> {
    let one = Quantity::from_i64(1);
    let Some(text) = selector.divisor.as_ref().map(|q| Cow::Borrowed(q.0.as_str())) else { return Ok(one) };
    if text.is_empty() {
        return Ok(one);
    }
    match Quantity::parse(&text) {
        Ok(divisor) if divisor.is_zero() => Ok(one),
        Ok(divisor) => Ok(divisor),
        Err(_) => Err(DownwardError::Divisor(text.into_owned(), selector.resource.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_facts::HostFacts;

    fn pod() -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u",
                         "labels": {"b": "2", "a/x": "1"},
                         "annotations": {"k": "line\n\"q\"\t\u{e9}\u{200b}", "Upper": "U"}},
            "spec": {
                "resources": {"limits": {"memory": "1Gi"}},
                "initContainers": [{"name": "i"}],
                "ephemeralContainers": [{"name": "e"}],
                "containers": [
                    {"name": "a", "resources": {"limits": {"cpu": "1500m", "hugepages-2Mi": "4Mi"}, "requests": {"cpu": "250m"}}},
                    {"name": "b", "resources": {"limits": {"cpu": "0"}}}],
            },
        }))
        .unwrap()
    }

    fn facts() -> NodeFacts {
        let mut facts = NodeFacts::new(HostFacts::default());
        for (name, amount) in [("cpu", "2"), ("memory", "4Gi"), ("ephemeral-storage", "10G"), ("hugepages-2Mi", "8Mi")]
        {
            facts.allocatable.insert(name.to_owned(), Quantity::parse(amount).unwrap());
        }
        facts
    }

    #[test]
    fn fields() {
        let field = |path: &str| object_field(&pod(), path).map_err(|e| e.to_string());
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!(field("metadata.name"), ok("p"));
        assert_eq!(field("metadata.uid"), ok("u"));
        assert_eq!(field("metadata.labels"), ok("a/x=\"1\"\nb=\"2\""));
        assert_eq!(field("metadata.annotations"), ok("Upper=\"U\"\nk=\"line\\n\\\"q\\\"\\t\u{e9}\\u200b\""));
        assert_eq!(field("metadata.labels['a/x']"), ok("1"));
        assert_eq!(field("metadata.labels['none']"), ok(""));
        assert_eq!(field("metadata.annotations['Upper']"), ok("U"));
        assert_eq!(field("status.podIP"), Err("unsupported fieldPath: status.podIP".into()));
        assert_eq!(field("spec.x['a']"), Err("fieldPath \"spec.x['a']\" does not support subscript".into()));
        assert!(
            field("metadata.labels['a b']")
                .unwrap_err()
                .starts_with("invalid key subscript in metadata.labels['a b']: ")
        );
    }

    #[test]
    fn fields_of_variables() {
        let mut pod = pod();
        pod.spec.as_mut().unwrap().node_name = Some("node-a".to_owned());
        let ips = ["fd00::5", "10.88.0.5"].map(|ip| ip.parse().unwrap());
        let field = |path: &str| variable_field(&pod, path, &ips, &facts()).map_err(|e| e.to_string());
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!((field("spec.nodeName"), field("spec.host")), (ok("node-a"), ok("node-a")));
        assert_eq!(field("status.podIPs"), ok("10.88.0.5,fd00::5"));
        assert_eq!(field("metadata.labels['a/x']"), ok("1"));
        assert_eq!(field("spec.restartPolicy"), Err("unsupported fieldPath: spec.restartPolicy".into()));
        assert_eq!(field("spec.x"), Err("field label not supported: spec.x".into()));
        assert_eq!(field("spec.x['a']"), Err("field label does not support subscript: spec.x['a']".into()));
        // In a file it is what it always was: nothing.
        assert_eq!(object_field(&pod, "spec.host"), Err(DownwardError::FieldPath("spec.host".to_owned())));
    }

    #[test]
    fn amounts_of_files_and_variables() {
        let selector = |container: &str, resource: &str, divisor: &str| -> ResourceFieldSelector {
            serde_json::from_value(
                serde_json::json!({"containerName": container, "resource": resource, "divisor": divisor}),
            )
            .unwrap()
        };
        let file =
            |c: &str, r: &str, d: &str| file_resource(&selector(c, r, d), &pod(), &facts()).map_err(|e| e.to_string());
        let own = spec::find_container(&pod(), "b").unwrap().1.into_owned();
        let variable = |c: &str, r: &str, d: &str| {
            variable_resource(&selector(c, r, d), &pod(), &own, &facts()).map_err(|e| e.to_string())
        };
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!(file("a", "limits.cpu", "0"), ok("2"));
        assert_eq!(file("a", "limits.cpu", "1m"), ok("1500"));
        assert_eq!(file("a", "requests.cpu", "1m"), ok("250"));
        assert_eq!(file("a", "requests.cpu", ""), ok("1"));
        assert_eq!(file("b", "limits.cpu", "1m"), ok("2000"));
        assert_eq!(file("b", "limits.memory", "1Mi"), ok("4096"));
        assert_eq!(file("i", "limits.memory", "1Mi"), ok("4096"));
        assert_eq!(file("b", "requests.memory", "1"), ok("0"));
        assert_eq!(file("a", "limits.hugepages-2Mi", "1Mi"), ok("4"));
        assert_eq!(file("b", "limits.hugepages-2Mi", "1Mi"), ok("0"));
        assert_eq!(file("e", "limits.cpu", "1"), Err("container e not found".into()));
        assert_eq!(file("a", "limits.gpu", "1"), Err("unsupported container resource : limits.gpu".into()));
        assert_eq!(file("a", "other.cpu", "1"), Err("unsupported container resource : other.cpu".into()));
        assert_eq!(file("a", "limits.cpu", "x"), Err("divisor \"x\" of resource limits.cpu is not a quantity".into()));
        // The pod's own limit comes before the node's.
        assert_eq!(variable("", "limits.memory", "1Mi"), ok("1024"));
        assert_eq!(variable("a", "limits.memory", "1Mi"), ok("1024"));
        assert_eq!(variable("", "limits.ephemeral-storage", "1M"), ok("10000"));
        assert_eq!(variable("i", "limits.memory", "1Mi"), ok("0"));
        assert_eq!(variable("e", "limits.memory", "1Mi"), Err("container e not found".into()));
    }
}
