//! Whether a pod may run here: upstream's handlers in upstream's order, the first refusal counts (upstream
//! `pkg/kubelet/kubelet.go`, `pkg/kubelet/lifecycle`).
//!
//! Pure: a pod, the pods that count beside it, the node and the settings in; a [`Decision`] out. The main loop acts on it.
//! What the container manager gives is asked for where upstream asks ([`admit_and_give`]). What is asked of resizes beforehand is
//! [`kubelet_runtime::allocation::feasibility`].

pub mod affinity;
pub mod apparmor;
pub mod features;
pub mod node_info;
pub mod os;
pub mod ports;
pub mod preemption;
pub mod pressure;
pub mod resources;
pub mod sysctls;
pub mod taints;

use std::borrow::Cow;
use std::sync::Arc;

use bulkhead_config::NodeConfig;
use bulkhead_types::PodUid;
use kubelet_model::v1::Pod;

pub use node_info::NodeInfo;
pub use pressure::Pressure;
pub use resources::Shortage;

use features::Features;
use kubelet_model::pod::spec::is_critical;
use sysctls::Allowlist;

/// Why a pod is refused: `status.reason`, and what stands behind `Pod was rejected: ` in `status.message`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    pub reason: String,
    pub message: String,
}

impl Rejection {
    pub fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Rejection { reason: reason.into(), message: message.into() }
    }
}

/// What is settled when the process starts.
#[derive(Debug, Clone)]
pub struct Settings {
    pub sysctls: Allowlist,
    pub features: Features,
    /// The kernel has AppArmor switched on.
    pub apparmor: bool,
}

/// Label of `kubelet_admission_rejections_total`: the reasons that upstream lists, and two for all others (upstream
/// `kubelet.go`, `admissionRejectionReasons`; it lists the words of an untolerated taint too, which are no reason anywhere:
/// that one is `TaintToleration`, and counts as `Other`).
pub fn metric_label(reason: &str) -> &str {
    const KNOWN: [&str; 20] = [
        "AppArmor",
        "PodOSSelectorNodeLabelDoesNotMatch",
        "PodOSNotSupported",
        "InvalidNodeInfo",
        "InitContainerRestartPolicyForbidden",
        "SupplementalGroupsPolicyNotSupported",
        "UnexpectedAdmissionError",
        "UnknownReason",
        "UnexpectedPredicateFailureType",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfephemeral-storage",
        "OutOfpods",
        "PodLevelResourcesNotSupported",
        "PodFeatureUnsupported",
        "Evicted",
        "SysctlForbidden",
        "TopologyAffinityError",
        "NodeShutdown",
        "VolumeAttachmentLimitExceeded",
    ];
    if KNOWN.contains(&reason) {
        reason
    } else if reason.starts_with("OutOf") {
        "OutOfExtendedResources"
    } else {
        "Other"
    }
}

impl Settings {
    /// Reads the kernel's version and whether it has AppArmor; what cannot be read counts as absent.
    pub fn of(config: &NodeConfig) -> Self {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok();
        let kernel = kernel.and_then(|release| sysctls::kernel_version(&release));
        Settings {
            sysctls: Allowlist::new(kernel, &config.kubelet.allowed_unsafe_sysctls),
            features: Features::of(&config.feature_gates()),
            apparmor: apparmor::is_enabled(),
        }
    }
}

/// What changes while it runs, beside the node.
#[derive(Debug, Clone, Copy, Default)]
pub struct Context {
    pub pressure: Pressure,
    /// The machine is going down.
    pub shutting_down: bool,
}

/// What becomes of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Admit,
    /// Admit once these pods have ended: they make room for a critical one. Never empty.
    Preempt {
        victims: Vec<PodUid>,
        /// First resource that was short, for the metric.
        resource: String,
    },
    Reject(Rejection),
    /// Refused only because the node's labels do not match: they may have changed a moment ago, so the node is to be looked
    /// at anew before this counts.
    RejectByLabels(Rejection),
}

/// One thing that keeps a pod off the node; the general filter gathers all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    Short(Shortage),
    /// A predicate by its name, and its own words.
    Predicate {
        name: &'static str,
        message: &'static str,
    },
}

impl Obstacle {
    fn rejection(&self) -> Rejection {
        match self {
            Obstacle::Short(short) => Rejection::new(format!("OutOf{}", short.resource), short.to_string()),
            Obstacle::Predicate { name, message } => {
                Rejection::new(*name, format!("Predicate {name} failed: {message}"))
            }
        }
    }
}

/// Decides. `others`: pods that count as using the node, by the rule of upstream's `GetActivePods`, without the pod itself.
pub fn admit(pod: &Pod, others: &[Arc<Pod>], node: &NodeInfo, settings: &Settings, circumstances: Context) -> Decision {
    admit_and_give(pod, others, node, settings, circumstances, || Ok(()))
}

/// The same. `give` gives the pod CPUs, memory and devices that it is to have for itself, or refuses it; it is asked at most once, and
/// what follows may still refuse the pod.
pub fn admit_and_give(
    pod: &Pod,
    others: &[Arc<Pod>],
    node: &NodeInfo,
    settings: &Settings,
    circumstances: Context,
    give: impl FnOnce() -> Result<(), Rejection>,
) -> Decision {
    let before = pressure::check(pod, circumstances.pressure)
        .or_else(|| sysctls::check(pod, &settings.sysctls))
        .or_else(|| give().err())
        .or_else(|| os::check(pod, node));
    if let Some(rejection) = before {
        return Decision::Reject(rejection);
    }
    let admitted = match predicates(pod, others, node, settings) {
        refused @ (Decision::Reject(_) | Decision::RejectByLabels(_)) => return refused,
        admitted => admitted,
    };
    let after = apparmor::check(pod, settings.apparmor)
        .or_else(|| features::check(pod, &settings.features))
        .or_else(|| circumstances.shutting_down.then(shutdown));
    after.map_or(admitted, Decision::Reject)
}

/// The machine goes down.
pub fn shutdown() -> Rejection {
    Rejection::new("NodeShutdown", "Pod was rejected as the node is shutting down.")
}

fn predicates(pod: &Pod, others: &[Arc<Pod>], node: &NodeInfo, settings: &Settings) -> Decision {
    let obstacles = general_filter(pod, others, node, settings);
    if obstacles.is_empty() {
        return Decision::Admit;
    }
    if !is_critical(pod) {
        return refuse(&obstacles);
    }
    // Want of room is no reason to refuse a critical pod; everything else is.
    let (short, rest): (Vec<_>, Vec<_>) = obstacles.into_iter().partition(|o| matches!(o, Obstacle::Short(_)));
    if !rest.is_empty() {
        return refuse(&rest);
    }
    let short: Vec<Shortage> = short
        .into_iter()
        .filter_map(|o| match o {
            Obstacle::Short(short) => Some(short),
            Obstacle::Predicate { .. } => None,
        })
        .collect();
    let resource = short.first().map(|s| s.resource.clone()).unwrap_or_default();
    match preemption::victims(pod, others, &short) {
        Ok(victims) if victims.is_empty() => Decision::Admit,
        Ok(victims) => Decision::Preempt { victims, resource },
        Err(error) => Decision::Reject(Rejection::new(
            "UnexpectedAdmissionError",
            format!(
                "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: {error}"
            ),
        )),
    }
}

fn general_filter(pod: &Pod, others: &[Arc<Pod>], node: &NodeInfo, settings: &Settings) -> Vec<Obstacle> {
    let own = if settings.features.extended_by_claims { resources::without_claims(pod) } else { Cow::Borrowed(pod) };
    let mut obstacles: Vec<Obstacle> =
        resources::shortages(&own, others, node).into_iter().map(Obstacle::Short).collect();
    let predicates = [
        affinity::check(pod, node),
        affinity::check_name(pod, node),
        ports::check(pod, others),
        taints::check(pod, node, settings.features.comparing_tolerations),
    ];
    obstacles.extend(predicates.into_iter().flatten());
    obstacles
}

fn refuse(obstacles: &[Obstacle]) -> Decision {
    let by_labels = |o: &Obstacle| matches!(o, Obstacle::Predicate { name: affinity::NAME, .. });
    match obstacles {
        [] => Decision::Admit,
        [first, ..] if obstacles.iter().all(by_labels) => Decision::RejectByLabels(first.rejection()),
        [first, ..] => Decision::Reject(first.rejection()),
    }
}

#[cfg(test)]
mod tests;
