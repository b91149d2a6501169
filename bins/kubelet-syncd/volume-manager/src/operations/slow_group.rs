//! Word to a pod whose volume takes long to be given to its fsGroup (upstream `pkg/volume/volume_linux.go`, VolumeOwnership).

use std::time::Duration;

use kubelet_model::events::EventType;

use crate::context::Context;
use crate::pod_facts::PodFacts;

/// Until the first word, and between it and each further one (upstream initialTimeoutDuration, progressReportDuration).
const FIRST: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_secs(60);

/// Waits for what gives `folder` to the group, and says how long it takes. `folder`: from the pod's uid on, as upstream names it.
pub async fn said<T>(context: &Context, pod: &PodFacts, folder: &str, work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    let mut wait = FIRST;
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(wait) => {}
        }
        let message = format!(
            "Setting volume ownership for {folder} is taking longer than expected, consider using OnRootMismatch - \
             https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods"
        );
        context.event(pod, EventType::Warning, "VolumePermissionChangeInProgress", message);
        wait = AGAIN;
    }
}
