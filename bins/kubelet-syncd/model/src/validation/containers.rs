//! Containers and init containers: names, images, ports, mounts, devices, restart policies.

use std::collections::{BTreeMap, BTreeSet};

use crate::v1::{Container, PodSpec, Volume};
use k8s_openapi::api::core::v1::{ContainerPort, ContainerRestartRule, VolumeMount};

use super::field::{Errors, Path, items, text};
use super::security::{local_descending_path, no_backsteps};
use super::{env, handlers, names, resources, security};

const RESTART_POLICIES: [&str; 3] = ["Always", "Never", "OnFailure"];
/// More rules than this in one container are refused.
const RESTART_RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;

/// What a container is checked against.
#[derive(Debug)]
pub struct PodFacts<'a> {
    pub spec: &'a PodSpec,
    /// The pod's valid volumes by name.
    pub volumes: BTreeMap<&'a str, &'a Volume>,
    pub claim_names: BTreeSet<&'a str>,
    /// False when the pod asks for a user namespace.
    pub host_users: bool,
}

/// Init containers, then containers, each with its path. Ephemeral containers cannot be in a new pod.
pub fn all(spec: &PodSpec) -> impl Iterator<Item = (Path, &Container)> {
    let at = |field: &str| Path::new("spec").child(field);
    let (init, main) = (at("initContainers"), at("containers"));
    items(&spec.init_containers)
        .iter()
        .enumerate()
        .map(move |(i, c)| (init.index(i), c))
        .chain(spec.containers.iter().enumerate().map(move |(i, c)| (main.index(i), c)))
}

pub fn regular(facts: &PodFacts<'_>, path: &Path, errors: &mut Errors) {
    let containers = &facts.spec.containers;
    if containers.is_empty() {
        errors.required(path, "");
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, container) in containers.iter().enumerate() {
        let path = path.index(index);
        common(container, facts, &path, errors);
        if !seen.insert(&container.name) {
            errors.duplicate(&path.child("name"), &container.name[..]);
        }
        if let Some(lifecycle) = &container.lifecycle {
            handlers::lifecycle(lifecycle, facts.spec, &path.child("lifecycle"), errors);
        }
        handlers::container_probes(container, &path, errors);
        restart_policy(container, &path, errors);
    }
    unique_host_ports(containers, path, errors);
}

pub fn init(facts: &PodFacts<'_>, path: &Path, errors: &mut Errors) {
    let mut seen: BTreeSet<&str> = facts.spec.containers.iter().map(|c| c.name.as_str()).collect();
    for (index, container) in items(&facts.spec.init_containers).iter().enumerate() {
        let indexed = path.index(index);
        common(container, facts, &indexed, errors);
        restart_policy(container, &indexed, errors);
        if seen.contains(container.name.as_str()) {
            errors.duplicate(&indexed.child("name"), &container.name[..]);
        } else if !container.name.is_empty() {
            seen.insert(&container.name);
        }
        unique_host_ports(std::slice::from_ref(container), path, errors);
        let sidecar = container.restart_policy.as_deref() == Some("Always");
        if sidecar {
            if let Some(lifecycle) = &container.lifecycle {
                handlers::lifecycle(lifecycle, facts.spec, &indexed.child("lifecycle"), errors);
            }
            handlers::container_probes(container, &indexed, errors);
        } else {
            for (field, set) in [
                ("lifecycle", container.lifecycle.is_some()),
                ("livenessProbe", container.liveness_probe.is_some()),
                ("readinessProbe", container.readiness_probe.is_some()),
                ("startupProbe", container.startup_probe.is_some()),
            ] {
                if set {
                    errors.forbidden(
                        &indexed.child(field),
                        "may not be set for init containers without restartPolicy=Always",
                    );
                }
            }
            for (j, policy) in items(&container.resize_policy).iter().enumerate() {
                if policy.restart_policy == "RestartContainer" {
                    errors.invalid(
                        &indexed.child("resizePolicy").index(j).child("restartPolicy"),
                        &policy.restart_policy[..],
                        "must not be set to 'RestartContainer' for non-sidecar initContainers",
                    );
                }
            }
        }
    }
}

fn common(container: &Container, facts: &PodFacts<'_>, path: &Path, errors: &mut Errors) {
    let name_path = path.child("name");
    if container.name.is_empty() {
        errors.required(&name_path, "");
    } else {
        errors.invalid_each(&name_path, &container.name[..], names::dns_label(&container.name));
    }
    errors.require(&path.child("image"), text(&container.image));
    errors.required_one_of(
        &path.child("terminationMessagePolicy"),
        text(&container.termination_message_policy),
        &["File", "FallbackToLogsOnError"],
    );
    ports(items(&container.ports), &path.child("ports"), errors);
    env::validate(items(&container.env), &path.child("env"), errors);
    env::validate_from(items(&container.env_from), &path.child("envFrom"), errors);
    mounts(container, facts, &path.child("volumeMounts"), errors);
    devices(container, facts, &path.child("volumeDevices"), errors);
    errors.required_one_of(
        &path.child("imagePullPolicy"),
        text(&container.image_pull_policy),
        &["Always", "IfNotPresent", "Never"],
    );
    if let Some(resources) = &container.resources {
        resources::container(resources, &facts.claim_names, &path.child("resources"), errors);
    }
    resize_policy(container, facts.spec, &path.child("resizePolicy"), errors);
    if let Some(context) = &container.security_context {
        security::container(context, facts.host_users, &path.child("securityContext"), errors);
    }
}

/// Checks that upstream does for pods alone, not for templates.
pub fn image_whitespace(containers: &[Container], path: &Path, errors: &mut Errors) {
    for (index, container) in containers.iter().enumerate() {
        let image = text(&container.image);
        if image.trim() != image {
            errors.invalid(&path.index(index).child("image"), image, "must not have leading or trailing whitespace");
        }
    }
}

fn ports(ports: &[ContainerPort], path: &Path, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = path.index(index);
        let name = text(&port.name);
        if !name.is_empty() {
            let wrong = names::port_name(name);
            if !wrong.is_empty() {
                errors.invalid_each(&path.child("name"), name, wrong);
            } else if !seen.insert(name) {
                errors.duplicate(&path.child("name"), name);
            }
        }
        if port.container_port == 0 {
            errors.required(&path.child("containerPort"), "");
        } else {
            let wrong = names::port_number(port.container_port.into());
            errors.invalid_each(&path.child("containerPort"), port.container_port, wrong);
        }
        if let Some(host_port) = port.host_port.filter(|p| *p != 0) {
            errors.invalid_each(&path.child("hostPort"), host_port, names::port_number(host_port.into()));
        }
        errors.required_one_of(&path.child("protocol"), text(&port.protocol), &["SCTP", "TCP", "UDP"]);
    }
}

fn unique_host_ports(containers: &[Container], path: &Path, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (i, container) in containers.iter().enumerate() {
        for (j, port) in items(&container.ports).iter().enumerate() {
            let Some(host_port) = port.host_port.filter(|p| *p != 0) else { continue };
            let key = format!("{}/{}/{host_port}", text(&port.protocol), text(&port.host_ip));
            if seen.contains(&key) {
                errors.duplicate(&path.index(i).child("ports").index(j).child("hostPort"), key);
            } else {
                seen.insert(key);
            }
        }
    }
}

/// With host networking each given host port has to be the container port.
pub fn host_network_ports(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    if spec.host_network != Some(true) {
        return;
    }
    for (i, container) in spec.containers.iter().enumerate() {
        for (j, port) in items(&container.ports).iter().enumerate() {
            let host_port = port.host_port.unwrap_or(0);
            if host_port != 0 && host_port != port.container_port {
                errors.invalid(
                    &path.child("containers").index(i).child("ports").index(j).child("hostPort"),
                    host_port,
                    "must match `containerPort` when `hostNetwork` is true",
                );
            }
        }
    }
}

fn mounts(container: &Container, facts: &PodFacts<'_>, path: &Path, errors: &mut Errors) {
    let devices = items(&container.volume_devices);
    let mut targets = BTreeSet::new();
    for (index, mount) in items(&container.volume_mounts).iter().enumerate() {
        let indexed = path.index(index);
        errors.require(&indexed.child("name"), &mount.name);
        if !facts.volumes.contains_key(mount.name.as_str()) {
            errors.not_found(&indexed.child("name"), &mount.name[..], "");
        }
        errors.require(&indexed.child("mountPath"), &mount.mount_path);
        if !targets.insert(&mount.mount_path) {
            errors.invalid(&indexed.child("mountPath"), &mount.mount_path[..], "must be unique");
        }
        if devices.iter().any(|d| d.name == mount.name) {
            errors.invalid(&indexed.child("name"), &mount.name[..], "must not already exist in volumeDevices");
        }
        if devices.iter().any(|d| d.device_path == mount.mount_path) {
            errors.invalid(
                &indexed.child("mountPath"),
                &mount.mount_path[..],
                "must not already exist as a path in volumeDevices",
            );
        }
        let (sub_path, sub_path_expr) = (text(&mount.sub_path), text(&mount.sub_path_expr));
        if !sub_path.is_empty() {
            local_descending_path(sub_path, &path.child("subPath"), errors);
        }
        if !sub_path_expr.is_empty() {
            if !sub_path.is_empty() {
                errors.invalid(
                    &indexed.child("subPathExpr"),
                    sub_path_expr,
                    "subPathExpr and subPath are mutually exclusive",
                );
            }
            local_descending_path(sub_path_expr, &path.child("subPathExpr"), errors);
        }
        propagation(mount, container, &path.child("mountPropagation"), errors);
        recursive_read_only(mount, &path.child("recursiveReadOnly"), errors);
    }
}

fn propagation(mount: &VolumeMount, container: &Container, path: &Path, errors: &mut Errors) {
    let Some(propagation) = mount.mount_propagation.as_deref() else { return };
    errors.one_of(path, propagation, &["Bidirectional", "HostToContainer", "None"]);
    let privileged = container.security_context.as_ref().is_some_and(|s| s.privileged == Some(true));
    if propagation == "Bidirectional" && !privileged {
        errors.forbidden(path, "Bidirectional mount propagation is available only to privileged containers");
    }
}

fn recursive_read_only(mount: &VolumeMount, path: &Path, errors: &mut Errors) {
    match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if mount.read_only != Some(true) {
                errors.forbidden(path, "may only be specified when readOnly is true");
            }
            if mount.mount_propagation.as_deref().is_some_and(|p| p != "None") {
                errors.forbidden(path, "may only be specified when mountPropagation is None or not specified");
            }
        }
        Some(other) => errors.not_supported(path, other, &["Disabled", "Enabled", "IfPossible"]),
    }
}

fn devices(container: &Container, facts: &PodFacts<'_>, path: &Path, errors: &mut Errors) {
    let mounts = items(&container.volume_mounts);
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for (index, device) in items(&container.volume_devices).iter().enumerate() {
        let indexed = path.index(index);
        let (name_path, device_path) = (indexed.child("name"), indexed.child("devicePath"));
        errors.require(&name_path, &device.name);
        if names.contains(&device.name) {
            errors.invalid(&name_path, &device.name[..], "must be unique");
        }
        match facts.volumes.get(device.name.as_str()) {
            None => errors.not_found(&name_path, &device.name[..], ""),
            Some(volume) if volume.persistent_volume_claim.is_none() && volume.ephemeral.is_none() => errors.invalid(
                &name_path,
                &device.name[..],
                "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
            ),
            Some(_) => {}
        }
        errors.require(&device_path, &device.device_path);
        if paths.contains(&device.device_path) {
            errors.invalid(&device_path, &device.device_path[..], "must be unique");
        }
        let mut backsteps = Errors::default();
        no_backsteps(&device.device_path, &device_path, &mut backsteps);
        if backsteps.is_empty() {
            paths.insert(&device.device_path);
        } else {
            errors.invalid(&device_path, &device.device_path[..], "can not contain backsteps ('..')");
        }
        if mounts.iter().any(|m| m.name == device.name) {
            errors.invalid(&name_path, &device.name[..], "must not already exist in volumeMounts");
        }
        if mounts.iter().any(|m| m.mount_path == device.device_path) {
            errors.invalid(&device_path, &device.device_path[..], "must not already exist as a path in volumeMounts");
        }
        if !device.name.is_empty() {
            names.insert(&device.name);
        }
    }
}

fn resize_policy(container: &Container, spec: &PodSpec, path: &Path, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, policy) in items(&container.resize_policy).iter().enumerate() {
        if !seen.insert(&policy.resource_name) {
            errors.duplicate(&path.index(index), &policy.resource_name[..]);
        }
        errors.required_one_of(path, &policy.resource_name, &["cpu", "memory"]);
        errors.required_one_of(path, &policy.restart_policy, &["NotRequired", "RestartContainer"]);
        if text(&spec.restart_policy) == "Never" && policy.restart_policy != "NotRequired" {
            errors.invalid(
                path,
                &policy.restart_policy[..],
                "must be 'NotRequired' when pod `restartPolicy` is 'Never'",
            );
        }
    }
}

fn restart_policy(container: &Container, path: &Path, errors: &mut Errors) {
    let rules = items(&container.restart_policy_rules);
    let policy_path = path.child("restartPolicy");
    match container.restart_policy.as_deref() {
        None if rules.is_empty() => return,
        None => errors.required(&policy_path, "must specify restartPolicy when restart rules are used"),
        Some(policy) => errors.one_of(&policy_path, policy, &RESTART_POLICIES),
    }
    let rules_path = path.child("restartPolicyRules");
    if rules.len() > RESTART_RULES_MAX {
        errors.too_many(&rules_path, rules.len(), RESTART_RULES_MAX);
    }
    for (index, rule) in rules.iter().enumerate() {
        restart_rule(rule, &rules_path.index(index), errors);
    }
}

fn restart_rule(rule: &ContainerRestartRule, path: &Path, errors: &mut Errors) {
    errors.one_of(&path.child("action"), &rule.action, &["Restart", "RestartAllContainers"]);
    let path = path.child("exitCodes");
    let Some(codes) = &rule.exit_codes else {
        errors.required(&path, "must be specified");
        return;
    };
    errors.one_of(&path.child("operator"), &codes.operator, &["In", "NotIn"]);
    let count = items(&codes.values).len();
    if count > EXIT_CODES_MAX {
        errors.too_many(&path.child("values"), count, EXIT_CODES_MAX);
    }
}
