//! What a pod needs before its first container: cgroup, folders, volumes.

use std::sync::Arc;

use bulkhead_ipc::volnetd as api;
use bulkhead_types::QosClass;
use k8s_openapi::api::core::v1::Pod;

use super::node::Prepared;
use super::view;
use super::work::{FAILED, One, Step, Stop};
use crate::pod_workers::Retry;
use crate::runtime::events::EventType;
use crate::runtime::resources::{pod_cgroup_resources, qos_class};
use crate::volumes;

impl One {
    /// cgroup, folders and volumes: asked for all at once, for none needs another's answer.
    pub(super) async fn prepare(&self, pod: &Arc<Pod>) -> Step<Prepared> {
        self.wait(self.node.safe_from_prune(&self.uid)).await?;
        let epoch = self.volnetd().await?;
        if let Some(prepared) = self.node.prepared(&self.uid, pod, epoch) {
            return Ok(prepared);
        }
        self.why("prepares cgroup, folders and volumes");
        let resources = pod_cgroup_resources(pod, &self.node.facts());
        let pod_memory = resources.memory_limit_bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(u64::MAX);
        let plans = volumes::plan(pod, self.node.allocatable_memory.min(pod_memory));
        let volnetd = &self.node.volnetd;
        let (cgroup, folders, outcomes) = tokio::join!(
            volnetd.ensure_pod(
                &self.context,
                api::EnsurePodRequest {
                    pod_uid: self.uid.to_string(),
                    qos: wire_qos(qos_class(pod)).into(),
                    resources: Some(wire_resources(resources)),
                },
            ),
            volnetd.prepare_pod(&self.context, api::PreparePodRequest { pod_uid: self.uid.to_string() }),
            volumes::set_up(volnetd, &self.context, &self.uid, plans),
        );
        let cgroup = match cgroup {
            Ok(cgroup) => cgroup,
            Err(error) => {
                if !error.is_transient() {
                    let message = format!("unable to ensure pod container exists: {error}");
                    self.event(pod, EventType::Warning, "FailedCreatePodContainer", message);
                }
                return Err(self.volnetd_failed("making the pod's cgroup", &error));
            }
        };
        if let Err(error) = folders {
            return Err(self.volnetd_failed("making the pod's folders", &error));
        }
        view::volumes(&self.node, &self.uid, &outcomes);
        self.node.hub.modify_known(&self.uid, |state| state.cgroup.clone_from(&cgroup.cgroup_parent));
        let failures: Vec<String> =
            outcomes.iter().filter_map(|(_, outcome)| outcome.as_ref().err().map(ToString::to_string)).collect();
        if !failures.is_empty() {
            let transient =
                outcomes.iter().all(|(_, o)| o.as_ref().err().is_none_or(volumes::VolumeError::is_transient));
            self.why(format!("waits for its volumes: {}", failures.join("; ")));
            if transient {
                return Err(Stop::Retry(Retry::PeerAway));
            }
            for error in outcomes.iter().filter_map(|(_, outcome)| outcome.as_ref().err()) {
                self.event(pod, EventType::Warning, "FailedMount", error.event_message());
            }
            return Err(FAILED);
        }
        let prepared = Prepared {
            epoch,
            pod: pod.clone(),
            cgroup_parent: cgroup.cgroup_parent,
            volumes: volumes::set_up::mounted(&outcomes),
        };
        self.node.set_prepared(&self.uid, prepared.clone());
        Ok(prepared)
    }
}

fn wire_qos(class: QosClass) -> api::Qos {
    match class {
        QosClass::Guaranteed => api::Qos::Guaranteed,
        QosClass::Burstable => api::Qos::Burstable,
        QosClass::BestEffort => api::Qos::BestEffort,
    }
}

fn wire_resources(r: crate::runtime::resources::CgroupResources) -> api::CgroupResources {
    api::CgroupResources {
        cpu_shares: r.cpu_shares,
        cpu_quota_us: r.cpu_quota_us,
        cpu_period_us: r.cpu_period_us,
        memory_limit_bytes: r.memory_limit_bytes,
        pids_limit: r.pids_limit,
        hugepage_limits: r.hugepage_limits.into_iter().collect(),
    }
}
