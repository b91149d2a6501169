//! What fences a container in: seccomp, AppArmor, SELinux, and which parts of /proc and /sys are hidden or read-only.

use bulkhead_cri::v1;
use bulkhead_cri::v1::security_profile::ProfileType;
use k8s_openapi::api::core::v1::SELinuxOptions;

use super::{Checked, RequestContext, Starting, must};

const HIDDEN: &str = "/proc/asound /proc/acpi /proc/interrupts /proc/kcore /proc/keys /proc/latency_stats \
    /proc/timer_list /proc/timer_stats /proc/sched_debug /proc/scsi /sys/firmware /sys/devices/virtual/powercap";
const READ_ONLY: &str = "/proc/bus /proc/fs /proc/irq /proc/sys /proc/sysrq-trigger";

/// The least that a profile has to be.
#[derive(Debug, Clone, PartialEq)]
enum Fence {
    /// Nothing is asked for.
    Open,
    Default,
    /// Exactly this one.
    Named(String),
    /// The spec names one that cannot be: whatever is asked is wrong.
    Broken,
}

impl Fence {
    /// `unset`: what a profile that the request leaves out comes to.
    fn check(&self, field: &'static str, asked: Option<&v1::SecurityProfile>, unset: Fence) -> Checked {
        let asked = match asked.map(|p| (p.profile_type, p.localhost_ref.clone())) {
            None => unset,
            Some((kind, _)) if kind == i32::from(ProfileType::RuntimeDefault) => Fence::Default,
            Some((kind, name)) if kind == i32::from(ProfileType::Localhost) => Fence::Named(name),
            Some(_) => Fence::Open,
        };
        let fits = match (self, &asked) {
            (Fence::Broken, _) => false,
            (Fence::Named(wanted), Fence::Named(name)) => name == wanted && !name.is_empty(),
            (Fence::Named(_), _) | (_, Fence::Named(_)) => false,
            (Fence::Default, asked) => *asked == Fence::Default,
            (Fence::Open, _) => true,
        };
        must(fits, field, asked, format!("{self:?}"))
    }
}

pub(super) fn container(
    known: &RequestContext<'_>,
    starting: &Starting<'_>,
    asked: &v1::LinuxContainerSecurityContext,
) -> Checked {
    seccomp(known, starting, asked)?;
    app_armor(known, starting, asked)?;
    let own = starting.context().se_linux_options;
    selinux("selinux_options", own.or(known.context().se_linux_options).as_ref(), asked.selinux_options.as_ref())?;
    if starting.context().proc_mount.as_deref() == Some("Unmasked") {
        return Ok(());
    }
    let cpus = &known.facts.host.thermal_throttle_cpus;
    let throttles = cpus.iter().map(|cpu| format!("/sys/devices/system/cpu/cpu{cpu}/thermal_throttle"));
    let seen = HIDDEN.split_whitespace().map(str::to_owned).chain(throttles).find(|p| !asked.masked_paths.contains(p));
    must(seen.is_none(), "masked_paths", seen.as_deref().unwrap_or_default(), "hidden")?;
    let writable = READ_ONLY.split_whitespace().find(|path| !asked.readonly_paths.iter().any(|p| p == path));
    must(writable.is_none(), "readonly_paths", writable.unwrap_or_default(), "read-only")
}

#[allow(deprecated)]
fn seccomp(known: &RequestContext<'_>, starting: &Starting<'_>, asked: &v1::LinuxContainerSecurityContext) -> Checked {
    let old = asked.seccomp_profile_path.as_str();
    must(old.is_empty(), "seccomp_profile_path", old, "none")?;
    let wanted = starting.context().seccomp_profile.or(known.context().seccomp_profile);
    let fence = match &wanted {
        None if known.facts.seccomp_default => Fence::Default,
        None => Fence::Open,
        Some(profile) => match (profile.type_.as_str(), profile.localhost_profile.as_deref().unwrap_or_default()) {
            ("Unconfined", _) => Fence::Open,
            ("RuntimeDefault", _) => Fence::Default,
            ("Localhost", name) if is_below(name) => {
                let parts = name.split('/').filter(|part| !part.is_empty() && *part != ".");
                Fence::Named(
                    parts.fold(known.facts.seccomp_root.clone(), |path, part| path.join(part)).display().to_string(),
                )
            }
            _ => Fence::Broken,
        },
    };
    // A runtime confines nothing where it is told nothing.
    fence.check("seccomp", asked.seccomp.as_ref(), Fence::Open)
}

/// A name that stays below the folder of profiles.
fn is_below(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('/') && name.split('/').all(|part| part != "..")
}

#[allow(deprecated)]
fn app_armor(
    known: &RequestContext<'_>,
    starting: &Starting<'_>,
    asked: &v1::LinuxContainerSecurityContext,
) -> Checked {
    let own = starting.context().app_armor_profile.map(|p| (p.type_, p.localhost_profile));
    let pod = known.context().app_armor_profile.map(|p| (p.type_, p.localhost_profile));
    let wanted = own.or_else(|| annotated(known, &starting.container.name)).or(pod);
    let fence = match wanted.as_ref().map(|(kind, name)| (kind.as_str(), name.as_deref().unwrap_or_default())) {
        // Left out, the runtime's default holds.
        None | Some(("RuntimeDefault", _)) => Fence::Default,
        Some(("Unconfined", _)) => Fence::Open,
        Some(("Localhost", name)) if !name.trim().is_empty() => Fence::Named(name.to_owned()),
        Some(_) => Fence::Broken,
    };
    fence.check("apparmor", asked.apparmor.as_ref(), Fence::Default)?;
    // The form of before the typed one, which older runtimes read alone.
    let old = match asked.apparmor_profile.as_str() {
        "" => None,
        "runtime/default" => Some((ProfileType::RuntimeDefault, "")),
        "unconfined" => Some((ProfileType::Unconfined, "")),
        other => Some((ProfileType::Localhost, other.strip_prefix("localhost/").unwrap_or_default())),
    };
    let old = old.map(|(kind, name)| v1::SecurityProfile { profile_type: kind.into(), localhost_ref: name.to_owned() });
    fence.check("apparmor_profile", old.as_ref(), Fence::Default)
}

fn annotated(known: &RequestContext<'_>, container: &str) -> Option<(String, Option<String>)> {
    let key = format!("container.apparmor.security.beta.kubernetes.io/{container}");
    match known.pod.metadata.annotations.as_ref()?.get(&key)?.split_once('/') {
        Some(("runtime", "default")) => Some(("RuntimeDefault".to_owned(), None)),
        Some(("localhost", name)) => Some(("Localhost".to_owned(), Some(name.to_owned()))),
        Some(_) => None,
        None => (known.pod.metadata.annotations.as_ref()?.get(&key)? == "unconfined")
            .then(|| ("Unconfined".to_owned(), None)),
    }
}

fn selinux(field: &'static str, wanted: Option<&SELinuxOptions>, asked: Option<&v1::SeLinuxOption>) -> Checked {
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    let wanted = wanted.map(|o| [text(&o.user), text(&o.role), text(&o.type_), text(&o.level)]).unwrap_or_default();
    let asked = asked.map(|o| [&o.user, &o.role, &o.r#type, &o.level].map(Clone::clone)).unwrap_or_default();
    must(asked == wanted, field, asked, format!("{wanted:?}"))
}

#[allow(deprecated)]
pub(super) fn sandbox(known: &RequestContext<'_>, asked: &v1::LinuxSandboxSecurityContext) -> Checked {
    Fence::Default.check("sandbox.seccomp", asked.seccomp.as_ref(), Fence::Open)?;
    let old = asked.seccomp_profile_path.as_str();
    must(old.is_empty(), "sandbox.seccomp_profile_path", old, "none")?;
    Fence::Default.check("sandbox.apparmor", asked.apparmor.as_ref(), Fence::Default)?;
    let wanted = known.context().se_linux_options;
    selinux("sandbox.selinux_options", wanted.as_ref(), asked.selinux_options.as_ref())
}
