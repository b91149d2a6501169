//! Volumes: exactly one source each, and the fields of the sources that a node makes itself.
//!
//! Sources that a static pod may not have (claims, CSI, service account tokens, trust bundles, pod certificates) are
//! refused right after validation in any case; of their fields only the names that the refusal depends on are checked.

use std::collections::{BTreeMap, BTreeSet};

use crate::v1::{PodSpec, Volume};
use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, ProjectedVolumeSource};

use super::field::{Errors, Path, items, text};
use super::security::{local_non_reserved_path, no_backsteps};
use super::{env, legacy_volumes, names, resources};

const FILE_MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const ONE_TYPE: &str = "may not specify more than 1 volume type";
const HOST_PATH_TYPES: [&str; 8] =
    ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];

/// Checks all volumes and returns the valid ones by name: what containers may mount.
pub fn validate<'a>(
    spec: &'a PodSpec,
    pod_name: &str,
    path: &Path,
    errors: &mut Errors,
) -> BTreeMap<&'a str, &'a Volume> {
    let volumes = items(&spec.volumes);
    let created_claims: BTreeSet<String> = volumes
        .iter()
        .filter(|v| v.ephemeral.is_some() && !pod_name.is_empty())
        .map(|v| format!("{pod_name}-{}", v.name))
        .collect();
    let mut valid = BTreeMap::new();
    for (index, volume) in volumes.iter().enumerate() {
        let indexed = path.index(index);
        let mut own = Errors::default();
        source(volume, pod_name, &indexed, &mut own);
        let name_path = indexed.child("name");
        if volume.name.is_empty() {
            own.required(&name_path, "");
        } else {
            own.invalid_each(&name_path, &volume.name[..], names::dns_label(&volume.name));
        }
        if valid.contains_key(volume.name.as_str()) {
            own.duplicate(&name_path, &volume.name[..]);
        }
        if own.is_empty() {
            valid.insert(volume.name.as_str(), volume);
        } else {
            errors.append(own);
        }
        if let Some(claim) = &volume.persistent_volume_claim
            && created_claims.contains(&claim.claim_name)
        {
            errors.invalid(
                &indexed.child("persistentVolumeClaim").child("claimName"),
                &claim.claim_name[..],
                "must not reference a PVC that gets created for an ephemeral volume",
            );
        }
    }
    valid
}

/// Counts sources; the first is checked, further ones are refused.
pub struct OneSource {
    found: bool,
}

impl OneSource {
    /// Path to check the source at, when it is the first; `field` is its name in errors.
    pub fn first(&mut self, set: bool, field: &str, path: &Path, errors: &mut Errors) -> Option<Path> {
        if !set {
            return None;
        }
        if self.found {
            errors.forbidden(&path.child(field), ONE_TYPE);
            return None;
        }
        self.found = true;
        Some(path.child(field))
    }
}

fn source(volume: &Volume, pod_name: &str, path: &Path, errors: &mut Errors) {
    let mut one = OneSource { found: false };
    if let Some(empty_dir) = &volume.empty_dir {
        one.found = true;
        if empty_dir.size_limit.as_ref().is_some_and(|s| resources::amount(s).is_negative()) {
            errors.forbidden(
                &path.child("emptyDir").child("sizeLimit"),
                "SizeLimit field must be a valid resource quantity",
            );
        }
    }
    if let Some(at) = one.first(volume.host_path.is_some(), "hostPath", path, errors)
        && let Some(host_path) = &volume.host_path
    {
        if host_path.path.is_empty() {
            errors.required(&at.child("path"), "");
        } else {
            no_backsteps(&host_path.path, &at.child("path"), errors);
            errors.one_of(&at.child("type"), text(&host_path.type_), &HOST_PATH_TYPES);
        }
    }
    if let Some(at) = one.first(volume.secret.is_some(), "secret", path, errors)
        && let Some(secret) = &volume.secret
    {
        errors.require(&at.child("secretName"), text(&secret.secret_name));
        mode(secret.default_mode, &at.child("defaultMode"), errors);
        keys_to_paths(items(&secret.items), &at.child("items"), errors);
    }
    if let Some(at) = one.first(volume.config_map.is_some(), "configMap", path, errors)
        && let Some(config_map) = &volume.config_map
    {
        errors.require(&at.child("name"), &config_map.name);
        mode(config_map.default_mode, &at.child("defaultMode"), errors);
        keys_to_paths(items(&config_map.items), &at.child("items"), errors);
    }
    if let Some(at) = one.first(volume.downward_api.is_some(), "downwardAPI", path, errors)
        && let Some(downward) = &volume.downward_api
    {
        mode(downward.default_mode, &at.child("defaultMode"), errors);
        for file in items(&downward.items) {
            downward_file(file, &at, errors);
        }
    }
    if let Some(at) = one.first(volume.projected.is_some(), "projected", path, errors)
        && let Some(projection) = &volume.projected
    {
        projected(projection, &at, errors);
    }
    if let Some(at) = one.first(volume.persistent_volume_claim.is_some(), "persistentVolumeClaim", path, errors)
        && let Some(claim) = &volume.persistent_volume_claim
    {
        errors.require(&at.child("claimName"), &claim.claim_name);
    }
    if let Some(at) = one.first(volume.ephemeral.is_some(), "ephemeral", path, errors)
        && let Some(ephemeral) = &volume.ephemeral
    {
        if ephemeral.volume_claim_template.is_none() {
            errors.required(&at.child("volumeClaimTemplate"), "");
        }
        let claim = format!("{pod_name}-{}", volume.name);
        for message in names::dns_subdomain(&claim) {
            errors.invalid(&path.child("name"), &volume.name[..], &format!("PVC name \"{claim}\": {message}"));
        }
    }
    if let Some(at) = one.first(volume.image.is_some(), "image", path, errors)
        && let Some(image) = &volume.image
    {
        errors.required_one_of(&at.child("pullPolicy"), text(&image.pull_policy), &["Always", "IfNotPresent", "Never"]);
    }
    legacy_volumes::validate(volume, &mut one, path, errors);
    if !one.found {
        errors.required(path, "must specify a volume type");
    }
}

fn mode(mode: Option<i32>, path: &Path, errors: &mut Errors) {
    if let Some(mode) = mode.filter(|m| !(0..=0o777).contains(m)) {
        errors.invalid(path, mode, FILE_MODE);
    }
}

fn keys_to_paths(list: &[KeyToPath], path: &Path, errors: &mut Errors) {
    for (index, item) in list.iter().enumerate() {
        let path = path.index(index);
        errors.require(&path.child("key"), &item.key);
        errors.require(&path.child("path"), &item.path);
        local_non_reserved_path(&item.path, &path.child("path"), errors);
        mode(item.mode, &path.child("mode"), errors);
    }
}

fn downward_file(file: &DownwardAPIVolumeFile, path: &Path, errors: &mut Errors) {
    errors.require(&path.child("path"), &file.path);
    local_non_reserved_path(&file.path, &path.child("path"), errors);
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(field), resource) => {
            env::field_selector(field, &env::VOLUME_FIELDS, &path.child("fieldRef"), errors);
            if resource.is_some() {
                errors.invalid(path, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously");
            }
        }
        (None, Some(resource)) => {
            env::resource_selector(resource, true, &path.child("resourceFieldRef"), errors);
        }
        (None, None) => errors.required(path, "one of fieldRef and resourceFieldRef is required"),
    }
    mode(file.mode, &path.child("mode"), errors);
}

fn projected(projection: &ProjectedVolumeSource, path: &Path, errors: &mut Errors) {
    mode(projection.default_mode, &path.child("defaultMode"), errors);
    let mut paths: BTreeSet<&str> = BTreeSet::new();
    let unique = |target: &str, shown: &str, errors: &mut Errors, paths: &BTreeSet<&str>| {
        if !target.is_empty() && paths.contains(target) {
            errors.invalid(path, shown, "conflicting duplicate paths");
        }
    };
    for (index, source) in items(&projection.sources).iter().enumerate() {
        let at = path.child("sources").index(index);
        let mut count = 0;
        let objects = [
            ("secret", source.secret.as_ref().map(|s| (&s.name, items(&s.items)))),
            ("configMap", source.config_map.as_ref().map(|c| (&c.name, items(&c.items)))),
        ];
        for (field, object) in objects {
            let Some((name, keys)) = object else { continue };
            count += 1;
            errors.require(&at.child(field).child("name"), name);
            keys_to_paths(keys, &at.child(field).child("items"), errors);
            for key in keys {
                unique(&key.path, name, errors, &paths);
                paths.insert(&key.path);
            }
        }
        if let Some(downward) = &source.downward_api {
            count += 1;
            for file in items(&downward.items) {
                downward_file(file, &at.child("downwardAPI"), errors);
                unique(&file.path, &file.path, errors, &paths);
                paths.insert(&file.path);
            }
        }
        if let Some(token) = &source.service_account_token {
            count += 1;
            errors.require(&path.child("path"), &token.path);
        }
        count += usize::from(source.cluster_trust_bundle.is_some()) + usize::from(source.pod_certificate.is_some());
        if count > 1 {
            errors.forbidden(&at, "may not specify more than 1 volume type per source");
        }
    }
}
