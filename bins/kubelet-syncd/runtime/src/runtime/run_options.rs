//! What the container manager gives a container beside its spec: devices, claims, CPUs and memory of its own (upstream
//! `pkg/kubelet/container` RunContainerOptions, `pkg/kubelet/cm` GetResources and the internal container lifecycle).

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_cri::v1;
use bulkhead_types::ContainerId;
use futures_util::future::BoxFuture;
use kubelet_model::v1::{Container, Pod};

use super::result::ActionError;

/// The record of what was allocated to one container. The request is made of it, and the second check compares the request
/// with it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunContainerOptions {
    /// Before those of block volumes.
    pub devices: Vec<v1::Device>,
    /// Before those of the spec.
    pub mounts: Vec<v1::Mount>,
    /// Before those of the spec, which win where both have a name.
    pub envs: Vec<(String, Vec<u8>)>,
    pub annotations: BTreeMap<String, String>,
    /// Fully qualified names (`vendor.com/class=name`).
    pub cdi_devices: Vec<String>,
    /// CPUs that the container may run on, in the kernel's list format. Empty: all.
    pub cpuset_cpus: String,
    /// NUMA nodes that its memory may come from, likewise.
    pub cpuset_mems: String,
    /// The container has CPUs for itself alone, and no CFS quota.
    pub without_quota: bool,
}

impl RunContainerOptions {
    /// Puts what another manager gives behind what is there.
    pub fn append(&mut self, other: RunContainerOptions) {
        let RunContainerOptions { devices, mounts, envs, annotations, cdi_devices, .. } = other;
        self.devices.extend(devices);
        self.mounts.extend(mounts);
        self.envs.extend(envs);
        self.annotations.extend(annotations);
        self.cdi_devices.extend(cdi_devices);
    }
}

/// What of a pod no CFS quota holds, for it has CPUs that nobody else has (gate DisableCPUQuotaWithExclusiveCPUs, upstream
/// ContainerHasExclusiveCPUs and PodHasExclusiveCPUs).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WithoutQuota {
    /// By name.
    pub containers: BTreeSet<String>,
    /// The pod as a whole: its cgroup and its sandbox.
    pub pod: bool,
}

/// The container manager as the executor meets it.
pub trait ContainerManager: Send + Sync {
    /// Before a pod's sandbox is made (upstream PrepareDynamicResources). The error's text follows `prepare dynamic resources: `.
    fn prepare_dynamic_resources<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), String>>;

    /// What was allocated to a container that is about to be created (upstream GetResources and PreCreateContainer). The error
    /// is the container's waiting reason.
    fn run_options<'a>(
        &'a self,
        pod: &'a Pod,
        container: &'a Container,
    ) -> BoxFuture<'a, Result<RunContainerOptions, ActionError>>;

    /// What of the pod no CFS quota holds as things stand.
    fn without_quota(&self, pod: &Pod) -> WithoutQuota;

    /// The runtime has made the container with these options (upstream PreStartContainer).
    fn created(&self, pod: &Pod, container: &Container, id: &ContainerId, options: &RunContainerOptions);
}

/// Gives nothing to anybody.
#[derive(Debug, Default)]
pub struct NoContainerManager;

impl ContainerManager for NoContainerManager {
    fn prepare_dynamic_resources<'a>(&'a self, _: &'a Pod) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    fn run_options<'a>(
        &'a self,
        _: &'a Pod,
        _: &'a Container,
    ) -> BoxFuture<'a, Result<RunContainerOptions, ActionError>> {
        Box::pin(async { Ok(RunContainerOptions::default()) })
    }

    fn without_quota(&self, _: &Pod) -> WithoutQuota {
        WithoutQuota::default()
    }

    fn created(&self, _: &Pod, _: &Container, _: &ContainerId, _: &RunContainerOptions) {}
}
