//! Whose a sandbox or container is and where it belongs: names, labels, cgroup, logs, handler, kernel parameters, ports.
//! A request under another pod's name, or into another pod's cgroup, would take what is that pod's.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use bulkhead_cri::v1;
use k8s_openapi::api::core::v1::ContainerPort;

use super::{Checked, RequestContext, Starting, must};

const CONTAINER_NAME: &str = "io.kubernetes.container.name";

pub(super) fn handler(known: &RequestContext<'_>, asked: &str) -> Checked {
    let class = known.pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref()).unwrap_or_default();
    let wanted = if class.is_empty() { "" } else { known.runtime.handler.as_str() };
    must(asked == wanted, "runtime_handler", asked, format!("{wanted:?}"))
}

pub(super) fn sandbox(known: &RequestContext<'_>, asked: &v1::PodSandboxConfig) -> Checked {
    let own = known.identity;
    let named = asked.metadata.clone().unwrap_or_default();
    let is_own =
        named.uid == own.uid.as_str() && named.name == own.name.as_str() && named.namespace == own.namespace.as_str();
    must(is_own, "metadata", (&named.namespace, &named.name, &named.uid), own.to_string())?;
    labels(known, &asked.labels, None)?;
    let annotations = known.pod.metadata.annotations.clone().unwrap_or_default();
    let foreign = asked.annotations.iter().find(|(key, value)| annotations.get(*key) != Some(*value));
    must(foreign.is_none(), "annotations", foreign.map(|(key, _)| key), "the pod's")?;
    let logs = format!("{}_{}_{}", own.namespace, own.name, own.uid);
    let logs = known.facts.pod_logs_dir.join(logs);
    must(Path::new(&asked.log_directory) == logs, "log_directory", &asked.log_directory, logs.display().to_string())?;
    let linux = asked.linux.clone().unwrap_or_default();
    cgroup(known, &linux.cgroup_parent)?;
    let wanted = known.context().sysctls.unwrap_or_default();
    let wanted: HashSet<_> = wanted.iter().map(|sysctl| (sysctl_path(&sysctl.name), &*sysctl.value)).collect();
    let more = linux.sysctls.iter().find(|(name, value)| !wanted.contains(&(sysctl_path(name), value.as_str())));
    must(more.is_none(), "sysctls", more, "those of the spec")?;
    let wanted = host_ports(known);
    let of = |port: &v1::PortMapping| (port.host_port, port.container_port, port.protocol, port.host_ip.clone());
    let more = asked.port_mappings.iter().find(|port| port.host_port != 0 && !wanted.contains(&of(port)));
    let shown = more.map(|port| format!("{}:{}", port.host_ip, port.host_port));
    must(more.is_none(), "port_mappings", shown, "the host ports of the spec")
}

/// The cgroup that volnetd made, and by its name this pod's, whichever driver names it. Where pods have none the runtime is
/// told of none.
fn cgroup(known: &RequestContext<'_>, asked: &str) -> Checked {
    let uid = known.identity.uid.as_str();
    let last = asked.rsplit('/').next().unwrap_or_default();
    let by_systemd = || {
        let name = last.strip_suffix(".slice")?.rsplit('-').next()?.strip_prefix("pod")?;
        Some(name == uid.replace('-', "_"))
    };
    let is_own = asked.is_empty() || last.strip_prefix("pod") == Some(uid) || by_systemd() == Some(true);
    must(is_own && asked == known.cgroup_parent, "cgroup_parent", asked, known.cgroup_parent)
}

/// The name as files below /proc/sys have it: `net/ipv4/conf/eth0.1/x` is `net.ipv4.conf.eth0/1.x`.
fn sysctl_path(name: &str) -> String {
    let by_dots = name.chars().find(|c| matches!(c, '.' | '/')) != Some('/');
    let swap = |c| match c {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    if by_dots { name.chars().map(swap).collect() } else { name.to_owned() }
}

/// Port of the host, port of the container, protocol and address.
type HostPort = (i32, i32, i32, String);

fn host_ports(known: &RequestContext<'_>) -> HashSet<HostPort> {
    let protocol = |port: &ContainerPort| match port.protocol.as_deref() {
        Some("UDP") => v1::Protocol::Udp,
        Some("SCTP") => v1::Protocol::Sctp,
        _ => v1::Protocol::Tcp,
    };
    let of = |port: &ContainerPort| {
        let address = port.host_ip.clone().unwrap_or_default();
        Some((port.host_port?, port.container_port, protocol(port).into(), address))
    };
    let containers =
        known.pod.spec.iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    containers.flat_map(|container| container.ports.iter().flatten()).filter_map(of).collect()
}

/// Labels say whose it is to everybody who looks at the runtime.
fn labels(known: &RequestContext<'_>, asked: &BTreeMap<String, String>, container: Option<&str>) -> Checked {
    let own = known.identity;
    let mut fixed = vec![
        ("io.kubernetes.pod.uid", own.uid.as_str()),
        ("io.kubernetes.pod.name", own.name.as_str()),
        ("io.kubernetes.pod.namespace", own.namespace.as_str()),
    ];
    fixed.extend(container.map(|name| (CONTAINER_NAME, name)));
    let wrong = fixed.into_iter().find(|(key, value)| asked.get(*key).map(String::as_str) != Some(value));
    must(wrong.is_none(), "labels", wrong.map(|(key, _)| asked.get(key)), wrong.map_or("", |(_, value)| value))
}

pub(super) fn container(known: &RequestContext<'_>, starting: &Starting<'_>, asked: &v1::ContainerConfig) -> Checked {
    let own = starting.container.name.as_str();
    let named = asked.metadata.clone().unwrap_or_default();
    must(named.name == own, "metadata", &named.name, own)?;
    labels(known, &asked.labels, Some(own))?;
    // Runtimes may be set up to act on annotations.
    let given = &starting.options.annotations;
    let is_own = |key: &str, value: &String| key.starts_with("io.kubernetes.") || given.get(key) == Some(value);
    let foreign = asked.annotations.iter().find(|(key, value)| !is_own(key, value)).map(|(key, _)| key);
    must(
        foreign.is_none(),
        "annotations",
        foreign,
        "those that describe the container, and those that were allocated",
    )?;
    let file = asked.log_path.strip_prefix(own).and_then(|rest| rest.strip_prefix('/'));
    let number = file.and_then(|file| file.strip_suffix(".log")).unwrap_or_default();
    let is_log = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
    must(is_log, "log_path", &asked.log_path, format!("{own}/<number>.log"))
}
