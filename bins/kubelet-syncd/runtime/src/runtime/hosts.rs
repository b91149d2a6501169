//! Host name and domain of a pod, and what its /etc/hosts says (volnetd writes the file).

use std::net::IpAddr;

use kubelet_model::v1::Pod;

use kubelet_model::node_facts::NodeFacts;
use kubelet_model::pod::spec::{PodIdentity, host_network};
use kubelet_model::validation::field::quote;
use kubelet_model::validation::names::{dns_label, dns_subdomain};

/// Why a pod can have no host name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostnameError {
    #[error("pod {field} {} is not a valid DNS {kind}: {}", quote(.value), .why.join(";"))]
    Invalid { field: &'static str, value: String, kind: &'static str, why: Vec<String> },
    #[error("hostname for pod {pod:?} was invalid: {hostname:?}")]
    Empty { pod: String, hostname: String },
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long (64 characters is the max, {} characters requested)",
        fqdn.len()
    )]
    FqdnTooLong { fqdn: String },
}

/// Host name and domain; the domain may be empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostName {
    pub hostname: String,
    pub domain: String,
}

/// Name and domain of the pod (upstream GeneratePodHostNameAndDomain).
pub fn host_name(pod: &Pod, identity: &PodIdentity, facts: &NodeFacts) -> Result<HostName, HostnameError> {
    let set = |value: &Option<String>| value.clone().filter(|v| !v.is_empty());
    let label = |field: &'static str, value: String| match dns_label(&value) {
        why if why.is_empty() => Ok(value),
        why => Err(HostnameError::Invalid { field, value, kind: "label", why }),
    };
    let spec = pod.spec.as_ref();
    if let Some(value) = spec.and_then(|s| s.hostname_override.clone()).filter(|_| facts.hostname_override) {
        return match dns_subdomain(&value) {
            why if why.is_empty() => Ok(HostName { hostname: cut(identity, &value)?, domain: String::new() }),
            why => Err(HostnameError::Invalid { field: "HostnameOverride", value, kind: "subdomain", why }),
        };
    }
    let hostname = match spec.and_then(|s| set(&s.hostname)) {
        Some(value) => label("Hostname", value)?,
        None => identity.name.to_string(),
    };
    let hostname = cut(identity, &hostname)?;
    let domain = match spec.and_then(|s| set(&s.subdomain)) {
        Some(value) => {
            let subdomain = label("Subdomain", value)?;
            format!("{subdomain}.{}.svc.{}", identity.namespace, facts.cluster_domain)
        }
        None => String::new(),
    };
    Ok(HostName { hostname, domain })
}

/// 63 characters are what the kernel takes; no dash or dot is left at the end.
fn cut(identity: &PodIdentity, hostname: &str) -> Result<String, HostnameError> {
    if hostname.len() <= 63 {
        return Ok(hostname.to_owned());
    }
    let cut = hostname.get(..63).unwrap_or(hostname).trim_end_matches(['-', '.']);
    if cut.is_empty() {
        return Err(HostnameError::Empty { pod: identity.name.to_string(), hostname: hostname.to_owned() });
    }
    Ok(cut.to_owned())
}

/// CRI's `hostname` of the sandbox: empty with host network, the full name with setHostnameAsFQDN.
pub fn sandbox_hostname(pod: &Pod, name: &HostName) -> Result<String, HostnameError> {
    if host_network(pod) {
        return Ok(String::new());
    }
    let as_fqdn = pod.spec.as_ref().and_then(|s| s.set_hostname_as_fqdn) == Some(true);
    if !as_fqdn || name.domain.is_empty() {
        return Ok(name.hostname.clone());
    }
    let fqdn = format!("{}.{}", name.hostname, name.domain);
    if fqdn.len() > 64 { Err(HostnameError::FqdnTooLong { fqdn }) } else { Ok(fqdn) }
}

/// Content of a pod's /etc/hosts, as volnetd's WriteEtcHosts takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcHosts {
    pub host_network: bool,
    pub pod_ips: Vec<IpAddr>,
    pub hostname: String,
    pub domain: String,
    /// Address as the pod gives it, and its names.
    pub aliases: Vec<(String, Vec<String>)>,
}

/// The hosts file of the pod, or None where there is to be none: no address yet and no host network.
pub fn etc_hosts(pod: &Pod, name: &HostName, pod_ips: &[IpAddr]) -> Option<EtcHosts> {
    let host_network = host_network(pod);
    if !host_network && pod_ips.is_empty() {
        return None;
    }
    let aliases = pod.spec.as_ref().and_then(|s| s.host_aliases.as_deref()).unwrap_or(&[]);
    Some(EtcHosts {
        host_network,
        pod_ips: pod_ips.to_vec(),
        hostname: name.hostname.clone(),
        domain: name.domain.clone(),
        aliases: aliases.iter().map(|a| (a.ip.clone(), a.hostnames.clone().unwrap_or_default())).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubelet_model::node_facts::HostFacts;

    fn run(name: &str, spec: serde_json::Value) -> Result<(HostName, String), HostnameError> {
        run_with(name, spec, true)
    }

    fn run_with(name: &str, spec: serde_json::Value, gate: bool) -> Result<(HostName, String), HostnameError> {
        let mut spec = spec;
        spec["containers"] = serde_json::json!([]);
        let pod: Pod = serde_json::from_value(
            serde_json::json!({"metadata": {"name": name, "namespace": "golden", "uid": "u"}, "spec": spec}),
        )
        .unwrap();
        let mut facts = NodeFacts::new(HostFacts::default());
        facts.cluster_domain = "cluster.local".to_owned();
        facts.hostname_override = gate;
        let host = host_name(&pod, &PodIdentity::of(&pod).unwrap(), &facts)?;
        let sandbox = sandbox_hostname(&pod, &host)?;
        Ok((host, sandbox))
    }

    #[test]
    fn names() {
        let (host, sandbox) = run("basic", serde_json::json!({})).unwrap();
        assert_eq!((host.hostname.as_str(), host.domain.as_str(), sandbox.as_str()), ("basic", "", "basic"));
        let fqdn = serde_json::json!({"hostname": "my-host", "subdomain": "sub", "setHostnameAsFQDN": true});
        let (host, sandbox) = run("fqdn", fqdn).unwrap();
        assert_eq!((host.hostname.as_str(), sandbox.as_str()), ("my-host", "my-host.sub.golden.svc.cluster.local"));
        assert_eq!(run("x", serde_json::json!({"hostNetwork": true})).unwrap().1, "");
        let long = format!("{}-b", "a".repeat(62));
        assert_eq!(run(&long, serde_json::json!({})).unwrap().1, "a".repeat(62));
        let overridden = serde_json::json!({"hostnameOverride": "a.b", "subdomain": "sub", "setHostnameAsFQDN": true});
        let (host, sandbox) = run("x", overridden.clone()).unwrap();
        assert_eq!((host.domain.as_str(), sandbox.as_str()), ("", "a.b"));
        assert_eq!(run_with("x", overridden, false).unwrap().1, "x.sub.golden.svc.cluster.local");
        let long = serde_json::json!({"hostnameOverride": format!("{}.-b", "a".repeat(62)).replace("-b", "b")});
        assert_eq!(run("x", long).unwrap().1, "a".repeat(62));
        // 64 characters are as many as the kernel takes; the host network has no name of its own to be too long.
        let of = |length: usize, host_network: bool| {
            let hostname = "h".repeat(length - ".s.golden.svc.cluster.local".len());
            run(
                "x",
                serde_json::json!({"hostname": hostname, "subdomain": "s", "setHostnameAsFQDN": true, "hostNetwork": host_network}),
            )
        };
        assert_eq!(of(64, false).unwrap().1.len(), 64);
        let fqdn = format!("{}.s.golden.svc.cluster.local", "h".repeat(38));
        assert_eq!(
            of(65, false).unwrap_err().to_string(),
            format!(
                "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long (64 characters is the max, 65 characters requested)"
            )
        );
        assert_eq!(of(65, true).unwrap().1, "");
    }

    #[test]
    fn names_that_are_none() {
        let why = |spec: serde_json::Value| run("x", spec).unwrap_err().to_string();
        let form = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name', or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
        assert_eq!(
            why(serde_json::json!({"subdomain": "A \"B"})),
            format!("pod Subdomain \"A \\\"B\" is not a valid DNS label: {form}")
        );
        assert_eq!(
            why(serde_json::json!({"hostname": "a.b"})),
            "pod Hostname \"a.b\" is not a valid DNS label: must not contain dots"
        );
        assert!(
            why(serde_json::json!({"hostnameOverride": ""}))
                .starts_with("pod HostnameOverride \"\" is not a valid DNS subdomain: ")
        );
    }
}
