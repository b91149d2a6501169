//! Host name and domain of a pod, and what its /etc/hosts says (volnetd writes the file).

use std::net::IpAddr;

use bulkhead_types::{is_dns1123_label, is_dns1123_subdomain};
use k8s_openapi::api::core::v1::Pod;

use super::podspec::{PodIdentity, host_network};

/// Why a pod can have no host name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostnameError {
    #[error("pod {field} {value:?} is not a valid DNS {kind}")]
    Invalid { field: &'static str, value: String, kind: &'static str },
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
pub fn host_name(pod: &Pod, identity: &PodIdentity, cluster_domain: &str) -> Result<HostName, HostnameError> {
    let set = |value: &Option<String>| value.clone().filter(|v| !v.is_empty());
    let spec = pod.spec.as_ref();
    if let Some(value) = spec.and_then(|s| s.hostname_override.clone()) {
        if !is_dns1123_subdomain(&value) {
            return Err(HostnameError::Invalid { field: "HostnameOverride", value, kind: "subdomain" });
        }
        return Ok(HostName { hostname: cut(identity, &value)?, domain: String::new() });
    }
    let hostname = match spec.and_then(|s| set(&s.hostname)) {
        Some(value) if !is_dns1123_label(&value) => {
            return Err(HostnameError::Invalid { field: "Hostname", value, kind: "label" });
        }
        Some(value) => value,
        None => identity.name.to_string(),
    };
    let domain = match spec.and_then(|s| set(&s.subdomain)) {
        Some(value) if !is_dns1123_label(&value) => {
            return Err(HostnameError::Invalid { field: "Subdomain", value, kind: "label" });
        }
        Some(value) => format!("{value}.{}.svc.{cluster_domain}", identity.namespace),
        None => String::new(),
    };
    Ok(HostName { hostname: cut(identity, &hostname)?, domain })
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

    fn run(name: &str, spec: serde_json::Value) -> Result<(HostName, String), HostnameError> {
        let mut spec = spec;
        spec["containers"] = serde_json::json!([]);
        let pod: Pod = serde_json::from_value(
            serde_json::json!({"metadata": {"name": name, "namespace": "golden", "uid": "u"}, "spec": spec}),
        )
        .unwrap();
        let host = host_name(&pod, &PodIdentity::of(&pod).unwrap(), "cluster.local")?;
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
        let (host, sandbox) = run("x", overridden).unwrap();
        assert_eq!((host.domain.as_str(), sandbox.as_str()), ("", "a.b"));
        let too_long = serde_json::json!({"hostname": "h".repeat(60), "subdomain": "s", "setHostnameAsFQDN": true});
        assert!(matches!(run("x", too_long), Err(HostnameError::FqdnTooLong { .. })));
        assert!(run("x", serde_json::json!({"subdomain": "A B"})).is_err());
    }
}
