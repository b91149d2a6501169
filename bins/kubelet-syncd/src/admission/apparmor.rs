//! A pod that asks for AppArmor needs a kernel that has it; only pods that have not run are asked (upstream
//! `pkg/security/apparmor`).

use k8s_openapi::api::core::v1::AppArmorProfile;
use kubelet_model::v1::Pod;

use super::Rejection;
use kubelet_model::pod::spec::{containers, ephemeral_as_container, ephemeral_containers, init_containers};
use kubelet_runtime::runtime::security::{APP_ARMOR_ANNOTATION as ANNOTATION, app_armor_profile};

/// The kernel has AppArmor and it is on.
pub fn is_enabled() -> bool {
    std::path::Path::new("/sys/kernel/security/apparmor").exists()
        && std::fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|text| text.starts_with('Y'))
}

/// The profile of each container that has one.
fn profiles(pod: &Pod) -> impl Iterator<Item = AppArmorProfile> {
    let ordinary = init_containers(pod).iter().chain(containers(pod)).map(|c| app_armor_profile(pod, c));
    let ephemeral = ephemeral_containers(pod).iter().map(|c| app_armor_profile(pod, &ephemeral_as_container(c)));
    ordinary.chain(ephemeral).flatten()
}

fn is_required(pod: &Pod) -> bool {
    let of_pod = pod.spec.as_ref().and_then(|s| s.security_context.as_ref()?.app_armor_profile.clone());
    if of_pod.into_iter().chain(profiles(pod)).any(|p| p.type_ != "Unconfined") {
        return true;
    }
    let annotations = pod.metadata.annotations.iter().flatten();
    annotations.filter(|(key, _)| key.starts_with(ANNOTATION)).any(|(_, value)| value != "unconfined")
}

/// As upstream prints a profile.
fn text(profile: &AppArmorProfile) -> String {
    let name = profile.localhost_profile.as_ref().map_or_else(|| "nil".to_owned(), |name| format!("*{name}"));
    format!("&AppArmorProfile{{Type:{},LocalhostProfile:{name},}}", profile.type_)
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
        |p: &AppArmorProfile| p.type_ == "Localhost" && p.localhost_profile.as_deref().unwrap_or("").trim().is_empty();
    let nameless = profiles(pod).find(nameless)?;
    reject(&format!("invalid empty AppArmor profile name: {:?}", text(&nameless)))
}
