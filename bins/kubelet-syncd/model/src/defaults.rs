//! API defaulting of a v1 Pod (`pkg/apis/core/v1/defaults.go` and the generated defaults), with what upstream's
//! conversion to its internal form changes on the way (`pkg/apis/core/v1/conversion.go`).

use crate::v1::{Container, Pod, PodSpec, Volume};
use bulkhead_types::resource_name::{is_huge_page, is_pod_level};
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, HTTPGetAction, LifecycleHandler, ObjectFieldSelector, Probe};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::pod::image_reference::is_latest;
use crate::validation::resources::{self, Kind, ResourceList};

/// Mode of files in configMap, secret, downward API and projected volumes.
const FILE_MODE: i32 = 0o644;
const TERMINATION_GRACE_SECONDS: i64 = 30;
const TOKEN_SECONDS: i64 = 3600;
/// Where init containers were kept before they had a field; upstream drops these.
const OLD_INIT_ANNOTATIONS: [&str; 4] = [
    "pod.beta.kubernetes.io/init-containers",
    "pod.alpha.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-container-statuses",
    "pod.alpha.kubernetes.io/init-container-statuses",
];

fn set<T>(field: &mut Option<T>, value: T) {
    if field.is_none() {
        *field = Some(value);
    }
}

/// Sets a text that is absent or empty; in the API the two are the same.
fn set_text(field: &mut Option<String>, value: &str) {
    if field.as_deref().unwrap_or("").is_empty() {
        *field = Some(value.to_owned());
    }
}

/// Sets a number that is absent or zero.
fn set_number(field: &mut Option<i32>, value: i32) {
    if field.unwrap_or(0) == 0 {
        *field = Some(value);
    }
}

/// Fills in every default. Doing it twice changes nothing more.
pub fn apply(pod: &mut Pod) {
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.retain(|key, _| !OLD_INIT_ANNOTATIONS.contains(&key.as_str()));
    }
    let spec = pod.spec.get_or_insert_default();
    requests_from_limits(spec);
    pod_level_resources(spec);
    set(&mut spec.enable_service_links, true);
    if spec.host_network == Some(true) {
        for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
            for port in container.ports.iter_mut().flatten() {
                set_number(&mut port.host_port, port.container_port);
            }
        }
    }
    set_text(&mut spec.dns_policy, "ClusterFirst");
    set_text(&mut spec.restart_policy, "Always");
    set(&mut spec.security_context, Default::default());
    set(&mut spec.termination_grace_period_seconds, TERMINATION_GRACE_SECONDS);
    if spec.termination_grace_period_seconds.is_some_and(|s| s < 0) {
        spec.termination_grace_period_seconds = Some(1);
    }
    set_text(&mut spec.scheduler_name, "default-scheduler");
    // The old name of the field fills the new one, and follows it.
    if spec.service_account_name.as_deref().unwrap_or("").is_empty() {
        spec.service_account_name = spec.service_account.take().filter(|s| !s.is_empty());
    }
    spec.service_account = spec.service_account_name.clone();
    spec.volumes.iter_mut().flatten().for_each(volume);
    for own in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        container(own);
    }
    if let Some(overhead) = &mut spec.overhead {
        round(overhead);
    }
    if let Some(resources) = &mut spec.resources {
        resources.limits.iter_mut().chain(resources.requests.iter_mut()).for_each(round);
    }
}

fn requests_from_limits(spec: &mut PodSpec) {
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        let resources = container.resources.get_or_insert_default();
        if let Some(limits) = &resources.limits {
            let requests = resources.requests.get_or_insert_default();
            for (name, limit) in limits {
                requests.entry(name.clone()).or_insert_with(|| limit.clone());
            }
        }
    }
}

/// Where the pod as a whole is given resources, what it leaves out comes from its containers.
fn pod_level_resources(spec: &mut PodSpec) {
    let Some(own) = &spec.resources else { return };
    let given = |list: &Option<ResourceList>| list.as_ref().is_some_and(|l| !l.is_empty());
    if !given(&own.limits) && !given(&own.requests) {
        return;
    }
    let mut limits = own.limits.clone().unwrap_or_default();
    let mut requests = own.requests.clone().unwrap_or_default();
    for (name, sum) in resources::sum_over_containers(spec, Kind::Limits) {
        if is_huge_page(&name) && !requests.contains_key(&name) {
            limits.entry(name).or_insert_with(|| ApiQuantity(sum.to_string()));
        }
    }
    if !limits.is_empty() {
        for (name, sum) in resources::sum_over_containers(spec, Kind::Requests) {
            if is_pod_level(&name) && resources::is_overcommit_allowed(&name) {
                requests.entry(name).or_insert_with(|| ApiQuantity(sum.to_string()));
            }
        }
        for (name, limit) in &limits {
            if is_pod_level(name) {
                requests.entry(name.clone()).or_insert_with(|| limit.clone());
            }
        }
    }
    if let Some(own) = &mut spec.resources {
        own.limits = Some(limits).filter(|l| !l.is_empty());
        own.requests = Some(requests).filter(|l| !l.is_empty());
    }
}

/// Up to thousandths, as upstream does with every resource list.
fn round(list: &mut ResourceList) {
    for quantity in list.values_mut() {
        quantity.0 = resources::amount(quantity).round_up_to_milli().to_string();
    }
}

fn pull_policy(image: &str) -> &'static str {
    if is_latest(image) { "Always" } else { "IfNotPresent" }
}

fn container(container: &mut Container) {
    let policy = pull_policy(container.image.as_deref().unwrap_or(""));
    set_text(&mut container.image_pull_policy, policy);
    set_text(&mut container.termination_message_path, "/dev/termination-log");
    set_text(&mut container.termination_message_policy, "File");
    for port in container.ports.iter_mut().flatten() {
        set_text(&mut port.protocol, "TCP");
    }
    for from in container.env.iter_mut().flatten().filter_map(|v| v.value_from.as_mut()) {
        from.field_ref.iter_mut().for_each(field_ref);
        if let Some(key) = &mut from.file_key_ref {
            set(&mut key.optional, false);
        }
    }
    if let Some(resources) = &mut container.resources {
        resources.limits.iter_mut().chain(resources.requests.iter_mut()).for_each(round);
    }
    for own in [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe] {
        own.iter_mut().for_each(|own| probe(own));
    }
    if let Some(lifecycle) = &mut container.lifecycle {
        for LifecycleHandler { http_get, .. } in lifecycle.post_start.iter_mut().chain(lifecycle.pre_stop.iter_mut()) {
            http_get.iter_mut().for_each(http_get_action);
        }
    }
}

fn probe(probe: &mut Probe) {
    set_number(&mut probe.timeout_seconds, 1);
    set_number(&mut probe.period_seconds, 10);
    set_number(&mut probe.success_threshold, 1);
    set_number(&mut probe.failure_threshold, 3);
    probe.http_get.iter_mut().for_each(http_get_action);
    if let Some(grpc) = &mut probe.grpc {
        set(&mut grpc.service, String::new());
    }
}

fn http_get_action(action: &mut HTTPGetAction) {
    set_text(&mut action.path, "/");
    set_text(&mut action.scheme, "HTTP");
}

fn field_ref(selector: &mut ObjectFieldSelector) {
    set_text(&mut selector.api_version, "v1");
}

fn volume(volume: &mut Volume) {
    let bare = Volume { name: std::mem::take(&mut volume.name), ..Default::default() };
    let name = bare.name.clone();
    volume.name.clone_from(&name);
    if *volume == bare {
        volume.empty_dir = Some(Box::new(EmptyDirVolumeSource::default()));
    }
    if let Some(image) = &mut volume.image {
        let policy = pull_policy(image.reference.as_deref().unwrap_or(""));
        set_text(&mut image.pull_policy, policy);
    }
    if let Some(host_path) = &mut volume.host_path {
        set(&mut host_path.type_, String::new());
    }
    if let Some(secret) = &mut volume.secret {
        set(&mut secret.default_mode, FILE_MODE);
    }
    if let Some(config_map) = &mut volume.config_map {
        set(&mut config_map.default_mode, FILE_MODE);
    }
    if let Some(downward) = &mut volume.downward_api {
        set(&mut downward.default_mode, FILE_MODE);
        downward.items.iter_mut().flatten().filter_map(|f| f.field_ref.as_mut()).for_each(field_ref);
    }
    if let Some(projected) = &mut volume.projected {
        set(&mut projected.default_mode, FILE_MODE);
        for source in projected.sources.iter_mut().flatten() {
            if let Some(downward) = &mut source.downward_api {
                downward.items.iter_mut().flatten().filter_map(|f| f.field_ref.as_mut()).for_each(field_ref);
            }
            if let Some(token) = &mut source.service_account_token {
                set(&mut token.expiration_seconds, TOKEN_SECONDS);
            }
        }
    }
    network_volume(volume);
}

fn network_volume(volume: &mut Volume) {
    if let Some(iscsi) = &mut volume.iscsi {
        set_text(&mut iscsi.iscsi_interface, "default");
    }
    if let Some(rbd) = &mut volume.rbd {
        set_text(&mut rbd.pool, "rbd");
        set_text(&mut rbd.user, "admin");
        set_text(&mut rbd.keyring, "/etc/ceph/keyring");
    }
    if let Some(disk) = &mut volume.azure_disk {
        set(&mut disk.caching_mode, "ReadWrite".to_owned());
        set(&mut disk.fs_type, "ext4".to_owned());
        set(&mut disk.read_only, false);
        set(&mut disk.kind, "Shared".to_owned());
    }
    if let Some(scale_io) = &mut volume.scale_io {
        set_text(&mut scale_io.storage_mode, "ThinProvisioned");
        set_text(&mut scale_io.fs_type, "xfs");
    }
    if let Some(template) = volume.ephemeral.as_mut().and_then(|e| e.volume_claim_template.as_mut()) {
        set(&mut template.spec.volume_mode, "Filesystem".to_owned());
    }
}
