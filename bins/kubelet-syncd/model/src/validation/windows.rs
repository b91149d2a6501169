//! Fields for Windows pods. This node runs none of them, but a manifest that upstream's validation refuses is refused.

use crate::v1::PodSpec;
use k8s_openapi::api::core::v1::WindowsSecurityContextOptions;

use super::field::{Errors, Path};
use super::{containers, names};

const GMSA_SPEC_MAX: usize = 64 * 1024;

pub fn options(options: &WindowsSecurityContextOptions, path: &Path, errors: &mut Errors) {
    if let Some(name) = &options.gmsa_credential_spec_name {
        errors.invalid_each(&path.child("gmsaCredentialSpecName"), name, names::dns_subdomain(name));
    }
    if let Some(spec) = &options.gmsa_credential_spec {
        let path = path.child("gmsaCredentialSpec");
        if spec.is_empty() {
            errors.invalid(&path, spec, "gmsaCredentialSpec cannot be an empty string");
        } else if spec.len() > GMSA_SPEC_MAX {
            errors.invalid(&path, spec, "gmsaCredentialSpec size must be under 64 KiB");
        }
    }
    if let Some(name) = &options.run_as_user_name {
        run_as_user_name(name, &path.child("runAsUserName"), errors);
    }
}

fn run_as_user_name(name: &str, path: &Path, errors: &mut Errors) {
    let parts: Vec<&str> = name.split('\\').collect();
    let (domain, user) = match parts.as_slice() {
        _ if name.is_empty() => return errors.invalid(path, name, "runAsUserName cannot be an empty string"),
        _ if name.bytes().any(|b| b.is_ascii_control()) => {
            return errors.invalid(path, name, "runAsUserName cannot contain control characters");
        }
        [user] => (None, *user),
        [domain, user] => (Some(*domain), *user),
        _ => return errors.invalid(path, name, "runAsUserName cannot contain more than one backslash"),
    };
    if let Some(domain) = domain {
        if domain.len() >= 256 {
            errors.invalid(path, name, "runAsUserName's Domain length must be under 256 characters");
        }
        let netbios = |c: char| !r#"\/:*?"<>|"#.contains(c);
        let is_netbios =
            (1..=15).contains(&domain.chars().count()) && domain.chars().all(netbios) && !domain.starts_with('.');
        let is_dns = domain.split('.').all(|label| names::dns_label(&label.to_ascii_lowercase()).is_empty());
        if !is_netbios && !is_dns {
            errors.invalid(path, name, "runAsUserName's Domain doesn't match the NetBios nor the DNS format");
        }
    }
    if user.is_empty() {
        errors.invalid(path, name, "runAsUserName's User cannot be empty");
    } else if user.len() > 104 {
        errors.invalid(path, name, "runAsUserName's User length must not be longer than 104 characters");
    }
    if !user.is_empty() && user.chars().all(|c| c == '.' || c == ' ') {
        errors.invalid(path, name, "runAsUserName's User cannot contain only periods or spaces");
    }
    if user.contains(|c: char| r#""/\:;|=,+*?<>@[]"#.contains(c)) {
        errors.invalid(path, name, r#"runAsUserName's User cannot contain the following characters: "/\:;|=,+*?<>@[]"#);
    }
}

/// Host-process containers: all or none, and with host network.
pub fn host_process(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    let of_pod = spec.security_context.as_ref().and_then(|s| s.windows_options.as_ref()).and_then(|w| w.host_process);
    let (mut total, mut host_processes) = (0, 0);
    for (path, container) in containers::all(spec) {
        total += 1;
        let own =
            container.security_context.as_ref().and_then(|s| s.windows_options.as_ref()).and_then(|w| w.host_process);
        if let (Some(pod), Some(own)) = (of_pod, own)
            && pod != own
        {
            let why = format!("pod hostProcess value must be identical if both are specified, was {pod}");
            errors.invalid(&path.child("securityContext").child("windowsOptions").child("hostProcess"), own, &why);
        }
        host_processes += usize::from(own.or(of_pod) == Some(true));
    }
    if host_processes == 0 {
        return;
    }
    if host_processes != total {
        errors.invalid(
            path,
            "",
            "If pod contains any hostProcess containers then all containers must be HostProcess containers",
        );
    }
    if spec.host_network != Some(true) {
        errors.invalid(
            &path.child("hostNetwork"),
            false,
            "hostNetwork must be true if pod contains any hostProcess containers",
        );
    }
}

/// `spec.os`, and the fields that the other system has.
pub fn os(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    let Some(os) = &spec.os else { return };
    match os.name.as_str() {
        "" => errors.required(&path.child("os").child("name"), ""),
        "linux" => {
            let why = "windows options cannot be set for a linux pod";
            if spec.security_context.as_ref().is_some_and(|s| s.windows_options.is_some()) {
                errors.forbidden(&path.child("securityContext").child("windowsOptions"), why);
            }
            for (path, container) in containers::all(spec) {
                if container.security_context.as_ref().is_some_and(|s| s.windows_options.is_some()) {
                    errors.forbidden(&path.child("securityContext").child("windowsOptions"), why);
                }
            }
        }
        "windows" => linux_only_fields(spec, path, errors),
        other => errors.not_supported(&path.child("os"), other, &["linux", "windows"]),
    }
}

fn linux_only_fields(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    let mut refuse = |path: Path, set: bool| {
        if set {
            errors.forbidden(&path, "cannot be set for a windows pod");
        }
    };
    let context = path.child("securityContext");
    for (field, set) in [
        ("hostUsers", spec.host_users.is_some()),
        ("hostPID", spec.host_pid == Some(true)),
        ("hostIPC", spec.host_ipc == Some(true)),
        ("shareProcessNamespace", spec.share_process_namespace.is_some()),
    ] {
        refuse(path.child(field), set);
    }
    if let Some(s) = &spec.security_context {
        for (field, set) in [
            ("appArmorProfile", s.app_armor_profile.is_some()),
            ("seLinuxOptions", s.se_linux_options.is_some()),
            ("seccompProfile", s.seccomp_profile.is_some()),
            ("fsGroup", s.fs_group.is_some()),
            ("fsGroupChangePolicy", s.fs_group_change_policy.is_some()),
            ("sysctls", s.sysctls.as_ref().is_some_and(|l| !l.is_empty())),
            ("runAsUser", s.run_as_user.is_some()),
            ("runAsGroup", s.run_as_group.is_some()),
            ("supplementalGroups", s.supplemental_groups.is_some()),
            ("supplementalGroupsPolicy", s.supplemental_groups_policy.is_some()),
            ("seLinuxChangePolicy", s.se_linux_change_policy.is_some()),
        ] {
            refuse(context.child(field), set);
        }
    }
    for (path, container) in containers::all(spec) {
        let Some(s) = &container.security_context else { continue };
        let path = path.child("securityContext");
        for (field, set) in [
            ("appArmorProfile", s.app_armor_profile.is_some()),
            ("seLinuxOptions", s.se_linux_options.is_some()),
            ("seccompProfile", s.seccomp_profile.is_some()),
            ("capabilities", s.capabilities.is_some()),
            ("readOnlyRootFilesystem", s.read_only_root_filesystem.is_some()),
            ("privileged", s.privileged.is_some()),
            ("allowPrivilegeEscalation", s.allow_privilege_escalation.is_some()),
            ("procMount", s.proc_mount.is_some()),
            ("runAsUser", s.run_as_user.is_some()),
            ("runAsGroup", s.run_as_group.is_some()),
        ] {
            refuse(path.child(field), set);
        }
    }
}
