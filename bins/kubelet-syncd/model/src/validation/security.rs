//! Security contexts of pod and container, sysctls, profiles, and the path rules that several fields share.

use std::collections::BTreeSet;

use crate::v1::PodSpec;
use k8s_openapi::api::core::v1::{AppArmorProfile, PodSecurityContext, SeccompProfile, SecurityContext};

use super::field::{AsJson, Errors, Path, items};
use super::sysctl::{Namespace, normalize};
use super::{containers, names, windows};

const PROFILE_TYPES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];
/// PATH_MAX - 1.
const APPARMOR_PROFILE_MAX: usize = 4095;

/// No component of the path is `..`.
pub fn no_backsteps(target: &str, path: &Path, errors: &mut Errors) {
    if target.split('/').any(|part| part == "..") {
        errors.invalid(path, target, "must not contain '..'");
    }
}

/// Relative and without `..`.
pub fn local_descending_path(target: &str, path: &Path, errors: &mut Errors) {
    if target.starts_with('/') {
        errors.invalid(path, target, "must be a relative path");
    }
    no_backsteps(target, path, errors);
}

/// As [`local_descending_path`], and no first component that begins with `..` (the atomic writer owns those).
pub fn local_non_reserved_path(target: &str, path: &Path, errors: &mut Errors) {
    local_descending_path(target, path, errors);
    if target.starts_with("..") && !target.starts_with("../") {
        errors.invalid(path, target, "must not start with '..'");
    }
}

pub fn pod(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    let empty = PodSecurityContext::default();
    let context = spec.security_context.as_ref().unwrap_or(&empty);
    for (field, id) in
        [("fsGroup", context.fs_group), ("runAsUser", context.run_as_user), ("runAsGroup", context.run_as_group)]
    {
        if let Some(id) = id {
            errors.invalid_each(&path.child(field), id, names::numeric_id(id));
        }
    }
    for (index, gid) in items(&context.supplemental_groups).iter().enumerate() {
        errors.invalid_each(&path.child("supplementalGroups").index(index), *gid, names::numeric_id(*gid));
    }
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        errors.invalid(
            &path.child("shareProcessNamespace"),
            true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
    sysctls(context, spec, &path.child("sysctls"), errors);
    if let Some(policy) = &context.fs_group_change_policy {
        errors.one_of(&path.child("fsGroupChangePolicy"), policy, &["Always", "OnRootMismatch"]);
    }
    if let Some(profile) = &context.seccomp_profile {
        seccomp(profile, &path.child("seccompProfile"), errors);
    }
    if let Some(options) = &context.windows_options {
        windows::options(options, &path.child("windowsOptions"), errors);
    }
    if let Some(profile) = &context.app_armor_profile {
        apparmor(profile, &path.child("appArmorProfile"), errors);
    }
    if let Some(policy) = &context.supplemental_groups_policy {
        errors.one_of(&path.child("supplementalGroupsPolicy"), policy, &["Merge", "Strict"]);
    }
    if let Some(policy) = &context.se_linux_change_policy {
        // MountOption needs the gate SELinuxMount, off in 1.36.
        errors.one_of(&path.child("seLinuxChangePolicy"), policy, &["Recursive"]);
    }
}

pub fn container(context: &SecurityContext, host_users: bool, path: &Path, errors: &mut Errors) {
    for (field, id) in [("runAsUser", context.run_as_user), ("runAsGroup", context.run_as_group)] {
        if let Some(id) = id {
            errors.invalid_each(&path.child(field), id, names::numeric_id(id));
        }
    }
    if let Some(mount) = &context.proc_mount {
        let path = path.child("procMount");
        errors.one_of(&path, mount, &["Default", "Unmasked"]);
        if host_users && mount == "Unmasked" {
            errors.invalid(&path, mount, "`hostUsers` must be false to use `Unmasked`");
        }
    }
    if let Some(profile) = &context.seccomp_profile {
        seccomp(profile, &path.child("seccompProfile"), errors);
    }
    if context.allow_privilege_escalation == Some(false) {
        if context.privileged == Some(true) {
            errors.invalid(
                path,
                AsJson(context),
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            );
        }
        let added = context.capabilities.as_ref().map_or(&[][..], |c| items(&c.add));
        for _ in added.iter().filter(|c| *c == "CAP_SYS_ADMIN") {
            errors.invalid(
                path,
                AsJson(context),
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            );
        }
    }
    if let Some(options) = &context.windows_options {
        windows::options(options, &path.child("windowsOptions"), errors);
    }
    if let Some(profile) = &context.app_armor_profile {
        apparmor(profile, &path.child("appArmorProfile"), errors);
    }
}

fn seccomp(profile: &SeccompProfile, path: &Path, errors: &mut Errors) {
    let type_path = path.child("type");
    if profile.type_.is_empty() {
        errors.required(&type_path, "type is required when seccompProfile is set");
    } else {
        errors.one_of(&type_path, &profile.type_, &PROFILE_TYPES);
    }
    let path = path.child("localhostProfile");
    match (profile.type_ == "Localhost", &profile.localhost_profile) {
        (true, None) => errors.required(&path, "must be set when seccomp type is Localhost"),
        (true, Some(local)) => local_descending_path(local, &path, errors),
        (false, Some(_)) => {
            errors.invalid(&path, AsJson(profile), "can only be set when seccomp type is Localhost");
        }
        (false, None) => {}
    }
}

fn apparmor(profile: &AppArmorProfile, path: &Path, errors: &mut Errors) {
    let local_path = path.child("localhostProfile");
    match (profile.type_.as_str(), &profile.localhost_profile) {
        ("Localhost", None) => errors.required(&local_path, "must be set when AppArmor type is Localhost"),
        ("Localhost", Some(local)) => {
            if local.trim() != local {
                errors.invalid(&local_path, local, "must not be padded with whitespace");
            } else if local.is_empty() {
                errors.required(&local_path, "must be set when AppArmor type is Localhost");
            }
            if local.len() > APPARMOR_PROFILE_MAX {
                errors.too_long(&local_path, APPARMOR_PROFILE_MAX);
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(local)) => {
            errors.invalid(&local_path, local, "can only be set when AppArmor type is Localhost");
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("", _) => errors.required(&path.child("type"), "type is required when appArmorProfile is set"),
        (other, _) => errors.not_supported(&path.child("type"), other, &PROFILE_TYPES),
    }
}

fn sysctls(context: &PodSecurityContext, spec: &PodSpec, path: &Path, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, sysctl) in items(&context.sysctls).iter().enumerate() {
        let path = path.index(index).child("name");
        if sysctl.name.is_empty() {
            errors.required(&path, "");
        } else if !names::is_sysctl(&sysctl.name) {
            errors.invalid(
                &path,
                &sysctl.name[..],
                r"must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$",
            );
        } else if seen.contains(&sysctl.name) {
            errors.duplicate(&path, &sysctl.name[..]);
        }
        let name = normalize(&sysctl.name);
        match Namespace::of(name.split('*').next().unwrap_or_default()) {
            Some(Namespace::Net) if spec.host_network == Some(true) => {
                errors.invalid(&path, &sysctl.name[..], "may not be specified when 'hostNetwork' is true");
            }
            Some(Namespace::Ipc) if spec.host_ipc == Some(true) => {
                errors.invalid(&path, &sysctl.name[..], "may not be specified when 'hostIPC' is true");
            }
            _ => {}
        }
        seen.insert(&sysctl.name);
    }
}

/// A pod with a user namespace of its own shares no other namespace with the host, and maps no raw devices.
pub fn host_users(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    if spec.host_users != Some(false) {
        return;
    }
    for (field, shared) in [("hostNetwork", spec.host_network), ("HostPID", spec.host_pid), ("HostIPC", spec.host_ipc)]
    {
        if shared == Some(true) {
            errors.forbidden(&path.child(field), "when `hostUsers` is false");
        }
    }
    for (path, container) in containers::all(spec) {
        if !items(&container.volume_devices).is_empty() {
            errors.forbidden(&path.child("volumeDevices"), "when `hostUsers` is false");
        }
    }
}
