//! A pod that asks for AppArmor needs a kernel that has it; only pods that have not run are asked (upstream
//! `pkg/security/apparmor`).

use k8s_openapi::api::core::v1::{AppArmorProfile, Pod, SecurityContext};

use super::Rejection;
use crate::runtime::podspec::{containers, ephemeral_containers, init_containers};

const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// The kernel has AppArmor and it is on.
pub fn is_enabled() -> bool {
    std::fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|text| text.starts_with('Y'))
}

fn own(context: Option<&SecurityContext>) -> Option<&AppArmorProfile> {
    context?.app_armor_profile.as_ref()
}

/// The profile of each container as far as one is named in fields; the container's own wins over the pod's.
fn profiles(pod: &Pod) -> Vec<&AppArmorProfile> {
    let of_pod = pod.spec.as_ref().and_then(|s| s.security_context.as_ref()?.app_armor_profile.as_ref());
    let ordinary = init_containers(pod).iter().chain(containers(pod)).map(|c| own(c.security_context.as_ref()));
    let ephemeral = ephemeral_containers(pod).iter().map(|c| own(c.security_context.as_ref()));
    ordinary.chain(ephemeral).filter_map(|profile| profile.or(of_pod)).collect()
}

fn is_required(pod: &Pod) -> bool {
    let of_pod = pod.spec.as_ref().and_then(|s| s.security_context.as_ref()?.app_armor_profile.as_ref());
    if of_pod.into_iter().chain(profiles(pod)).any(|p| p.type_ != "Unconfined") {
        return true;
    }
    let annotations = pod.metadata.annotations.iter().flatten();
    annotations.filter(|(key, _)| key.starts_with(ANNOTATION)).any(|(_, value)| value != "unconfined")
}

pub(super) fn check(pod: &Pod, enabled: bool) -> Option<Rejection> {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Pending");
    if phase != "Pending" || !is_required(pod) {
        return None;
    }
    let reject = |why: &str| Some(Rejection::new("AppArmor", format!("Cannot enforce AppArmor: {why}")));
    if !enabled {
        return reject("AppArmor is not enabled on the host");
    }
    let nameless =
        |p: &&AppArmorProfile| p.type_ == "Localhost" && p.localhost_profile.as_deref().unwrap_or("").trim().is_empty();
    if profiles(pod).iter().any(nameless) { reject("invalid empty AppArmor profile name") } else { None }
}
