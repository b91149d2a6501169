//! With which SELinux label a volume is mounted, so that the runtime need not label each of its files (upstream
//! `pkg/volume/util/selinux.go` and `pkg/kubelet/volumemanager/cache/desired_state_of_world.go`). Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{SELinuxOptions, SecurityContext, VolumeMount};
use kubelet_model::selinux::SeLinux;
use kubelet_model::v1::Pod;

use crate::metrics::SeLinuxMetrics;
use crate::spec::VolumeSpec;

/// What a node with SELinux needs to know.
#[derive(Debug, Clone)]
pub struct SeLinuxMount {
    pub machine: SeLinux,
    /// Gate SELinuxMount: volumes of every access mode, and not those of ReadWriteOncePod alone.
    pub every_mode: bool,
    pub metrics: SeLinuxMetrics,
}

/// The label of a volume as a pod wants it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Label {
    /// Given to the driver; empty: the volume is mounted without, and labelled by the runtime.
    pub mount: String,
    /// What it would be if volumes of every access mode were mounted so; that of the first pod that wanted the volume.
    pub wanted: String,
}

/// The SELinux options of the containers that mount a volume, each its own or its pod's.
fn options(pod: &Pod, volume: &str) -> Vec<SELinuxOptions> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let common = spec.security_context.as_ref().and_then(|context| context.se_linux_options.as_ref());
    let of = |mounts: &Option<Vec<VolumeMount>>, context: Option<&SecurityContext>| {
        let is_mounted = mounts.iter().flatten().any(|mount| mount.name == volume);
        let own = context.and_then(|context| context.se_linux_options.clone());
        own.or_else(|| common.cloned()).filter(|_| is_mounted)
    };
    let regular = spec.init_containers.iter().flatten().chain(&spec.containers);
    let regular = regular.filter_map(|one| of(&one.volume_mounts, one.security_context.as_deref()));
    let debugging = spec.ephemeral_containers.iter().flatten();
    let debugging = debugging.filter_map(|one| of(&one.volume_mounts, one.security_context.as_ref()));
    regular.chain(debugging).collect()
}

/// The labels that a pod's containers give a volume's files, each once.
fn labels(machine: &SeLinux, pod: &Pod, volume: &str) -> BTreeSet<String> {
    options(pod, volume).iter().map(|options| machine.file_label(options)).collect()
}

fn is_recursive(pod: &Pod) -> bool {
    let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    context.and_then(|context| context.se_linux_change_policy.as_deref()) == Some("Recursive")
}

/// The highest of a volume's access modes, as metrics name it.
fn access_mode(spec: &VolumeSpec) -> &'static str {
    if spec.claim.is_none() {
        return "inline";
    }
    let modes =
        [("ReadWriteMany", "RWX"), ("ReadOnlyMany", "ROX"), ("ReadWriteOnce", "RWO"), ("ReadWriteOncePod", "RWOP")];
    let has = |mode: &str| spec.access_modes.iter().any(|one| one == mode);
    modes.into_iter().find(|(mode, _)| has(mode)).map_or("", |(_, short)| short)
}

impl SeLinuxMount {
    /// Whether a volume of these access modes is mounted with a label at all.
    fn may_be_mounted_so(&self, spec: &VolumeSpec) -> bool {
        spec.claim.is_some() && (self.every_mode || spec.access_modes == ["ReadWriteOncePod"])
    }

    /// The label of a pod's volume. `supported`: its driver mounts with a label (CSIDriver `seLinuxMount`). `first`: what another
    /// pod wants of the same volume already.
    ///
    /// # Errors
    /// The pod may not have it so, in upstream's words.
    pub fn label(
        &self,
        pod: &Pod,
        volume: &str,
        spec: &VolumeSpec,
        supported: bool,
        first: Option<&Label>,
    ) -> Result<Label, String> {
        let (plugin, mode) = (spec.plugin().replacen(':', "/", 1), access_mode(spec));
        let mounted_so = self.may_be_mounted_so(spec);
        let labels = labels(&self.machine, pod, volume);
        let mut supported = supported;
        let wanted = match labels.len() {
            0 => String::new(),
            1 if !supported || is_recursive(pod) => String::new(),
            1 => labels.first().cloned().unwrap_or_default(),
            _ => {
                let all: Vec<String> = labels.into_iter().collect();
                let text = format!("multiple SELinux labels found: {}", all.join(","));
                self.metrics.pod_mismatch(mode, mounted_so);
                if mounted_so {
                    return Err(text);
                }
                tracing::debug!(volume = spec.name, "{text}");
                supported = false;
                String::new()
            }
        };
        let Some(first) = first else {
            if !wanted.is_empty() {
                self.metrics.admitted(&plugin, mode);
            }
            let mount = if mounted_so { wanted.clone() } else { String::new() };
            return Ok(Label { mount, wanted });
        };
        if supported && wanted != first.wanted {
            let (name, one) = (&spec.name, &first.wanted);
            let text = format!("conflicting SELinux labels of volume {name}: {one:?} and {wanted:?}");
            self.metrics.volume_mismatch(&plugin, mode, mounted_so);
            if mounted_so {
                return Err(text);
            }
            tracing::debug!("{text}");
        }
        Ok(first.clone())
    }

    /// A volume of another manager's, which is never mounted with a label: a pod whose containers label it in different ways is
    /// counted.
    pub fn count_other(&self, pod: &Pod, volume: &str) {
        if labels(&self.machine, pod, volume).len() > 1 {
            self.metrics.pod_mismatch("inline", false);
        }
    }
}

#[cfg(test)]
#[path = "selinux_tests.rs"]
mod tests;
