//! Removal of what pods that are gone have left on the disk and in cgroups, and of their logs.

use std::collections::HashSet;

use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::volnetd as api;
use bulkhead_types::PodUid;

use crate::sync_loop::node::NodeContext;

/// Removes from disk and cgroups what belongs to pods that are not in `keep`. False when something is left.
pub async fn prune(node: &NodeContext, keep: &HashSet<PodUid>) -> bool {
    let known: Vec<String> = keep.iter().map(ToString::to_string).collect();
    let mut all = true;
    match node.volnetd.prune(known.clone()).await {
        Ok(steps) => {
            for step in steps.iter().filter(|step| step.action == "kept") {
                all = false;
                tracing::debug!(
                    pod_uid = step.pod_uid,
                    what = step.what,
                    error = step.error,
                    "failed to remove a leftover, the next housekeeping tries again"
                );
            }
            for step in steps.iter().filter(|step| step.action != "kept") {
                tracing::info!(
                    pod_uid = step.pod_uid,
                    what = step.what,
                    error = step.error,
                    "leftover: {}",
                    step.action
                );
            }
        }
        Err(error) => {
            all = false;
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to remove leftovers of pods");
        }
    }
    prune_logs(node, known).await.is_ok() && all
}

/// Log folders of pods that are not in `known`.
///
/// # Errors
/// Some may be left; with a text where something is wrong, and not only somebody away.
pub async fn prune_logs(node: &NodeContext, known: Vec<String>) -> Result<(), Option<String>> {
    let guard = match node.volnetd.guard("prune_logs") {
        Ok(guard) => guard,
        Err(error) => {
            tracing::debug!(%error, "log directories are not removed yet, the next housekeeping tries again");
            return Err(None);
        }
    };
    let request = api::PruneLogsRequest { known_pod_uids: known, guard: Some(guard) };
    match node.volnetd.prune_logs(&CallContext::new(), request).await {
        Ok(reply) if reply.removed.is_empty() => Ok(()),
        Ok(reply) => {
            tracing::info!(removed = reply.removed.len(), "removed log directories of pods that are gone");
            Ok(())
        }
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to remove log folders of pods");
            Err((!error.is_transient()).then(|| error.to_string()))
        }
    }
}
