//! Which pod waits for a volume that the node has no place for (upstream `VerifyExhaustedResource` of `pkg/volume/csi`).

use bulkhead_types::PodUid;
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};

use crate::context::{Context, State};
use crate::names;
use crate::operations::driver_facts::allocatable_period;
use crate::reconciler::is_attached;

/// The driver of such a volume of the pod. Only drivers count that are asked for their limit from time to time: the pod is refused,
/// and with another limit the scheduler sends no more here.
pub(crate) async fn exhausted(context: &Context, uid: &PodUid) -> Option<String> {
    let unattached = unattached(&context.state(), uid);
    let ports = &context.ports;
    for (driver, handle) in unattached {
        let object = ports.reader.driver(&driver).ok().flatten();
        if !counts(object.as_deref()) {
            continue;
        }
        let name = names::attachment(&handle, &driver, &ports.node_name);
        match ports.reader.attachment(&name).await {
            Ok(attachment) if is_exhausted(&attachment) => return Some(driver),
            Ok(_) => {}
            Err(error) => tracing::warn!(attachment = name, "Failed to get volume attachment: {error}"),
        }
    }
    None
}

/// Driver and handle of what the pod's volumes wait for.
fn unattached(state: &State, uid: &PodUid) -> Vec<(String, String)> {
    let volumes = state.desired.pods.get(uid).into_iter().flat_map(|pod| &pod.volumes);
    let waiting =
        volumes.filter(|(unique, volume)| volume.attachable && !is_attached(&state.attacher, &state.node, unique));
    let sources = waiting.filter_map(|(_, volume)| volume.spec.csi());
    sources.map(|source| (source.driver.clone(), source.handle.clone())).collect()
}

fn counts(driver: Option<&CSIDriver>) -> bool {
    driver.and_then(allocatable_period).is_some()
}

/// What the driver's controller part has answered: RESOURCE_EXHAUSTED.
fn is_exhausted(attachment: &VolumeAttachment) -> bool {
    let error = attachment.status.as_ref().and_then(|status| status.attach_error.as_ref());
    error.and_then(|error| error.error_code) == Some(tonic::Code::ResourceExhausted as i32)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_that_code_says_so() {
        let of = |status| {
            let attachment = json!({"metadata": {"name": "a"}, "spec": {"attacher": "d", "nodeName": "n", "source": {}},
                "status": status});
            is_exhausted(&serde_json::from_value(attachment).unwrap())
        };
        assert!(of(json!({"attached": false, "attachError": {"errorCode": 8, "message": "full"}})));
        assert!(!of(json!({"attached": false, "attachError": {"errorCode": 13, "message": "ResourceExhausted"}})));
        assert!(!of(json!({"attached": false, "attachError": {"message": "ResourceExhausted"}})));
        assert!(!of(json!({"attached": false})) && !of(json!(null)));
    }

    #[test]
    fn only_drivers_with_a_period_count() {
        let of =
            |spec| counts(Some(&serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap()));
        assert!(of(json!({"nodeAllocatableUpdatePeriodSeconds": 10})));
        assert!(!of(json!({"nodeAllocatableUpdatePeriodSeconds": 0})) && !of(json!({})) && !counts(None));
    }
}
