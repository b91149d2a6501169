//! Lifecycle hooks: what a handler asks for, doing it, and preStop's being done once for each container.
//!
//! * [`run`]: one handler, against the runtime, over HTTP, or by waiting (upstream `pkg/kubelet/lifecycle/handlers.go`).
//! * [`pre_stop`]: a container's preStop, which goes on while the grace period of whoever waits for it shrinks, and is not
//!   begun a second time.
//! * [`annotated`]: what a container's annotations say of its hook, when nothing else is known of its pod.
//!
//! When a hook is due and what follows from its failure is `runtime::start`'s and `runtime::end`'s to decide.

pub mod annotated;
mod http;
pub mod metrics;
pub mod pre_stop;
pub mod run;

use std::net::IpAddr;

use bulkhead_types::ContainerId;
use k8s_openapi::api::core::v1::{ContainerPort, LifecycleHandler};

use kubelet_model::pod::spec::{ContainerKind, PodIdentity};

/// One hook of one container instance.
#[derive(Debug, Clone)]
pub struct Hook {
    /// None: only the runtime knows of the pod, and not by a proper name.
    pub pod: Option<PodIdentity>,
    pub kind: ContainerKind,
    /// The container's name.
    pub container: String,
    pub id: ContainerId,
    /// Where a request may go by a port's name.
    pub ports: Vec<ContainerPort>,
    /// The pod's primary address: where a request goes that names no host.
    pub ip: Option<IpAddr>,
    pub handler: LifecycleHandler,
}

impl Hook {
    /// Upstream's `format.Pod`.
    fn pod_text(&self) -> String {
        self.pod.as_ref().map(ToString::to_string).unwrap_or_default()
    }
}
