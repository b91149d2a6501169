//! A claim's status after the node's part of an expansion (upstream `MarkFSResizeFinished`, `MarkNodeExpansionInfeasible` and
//! `MarkNodeExpansionInProgress` in `pkg/volume/util/resize_util.go`). Pure.

use bulkhead_ipc::syncd::ClaimStatus;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimCondition};
use serde_json::{Map, Value, json};

use crate::api_writer::seconds;

/// Conditions that an expansion that is over takes out.
const RESIZE_CONDITIONS: [&str; 4] = ["Resizing", "FileSystemResizePending", "ControllerResizeError", ERROR];
/// Condition of an expansion that has failed on the node.
const ERROR: &str = "NodeResizeError";

/// The merge patch of the status, or none when it says all of that already; it is refused when somebody has written since.
///
/// # Errors
/// The claim of that name is another one.
pub fn patch(claim: &PersistentVolumeClaim, wanted: &ClaimStatus, now: Timestamp) -> Result<Option<Value>, String> {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    if uid != wanted.uid {
        return Err(format!(
            "claim {}/{} has the uid {uid} now, and not {}",
            wanted.namespace, wanted.name, wanted.uid
        ));
    }
    let status = claim.status.clone().unwrap_or_default();
    let mut changes = Map::new();
    let has = status.capacity.as_ref().and_then(|capacity| capacity.get("storage")).map(|quantity| quantity.0.as_str());
    if !wanted.capacity.is_empty() && has != Some(wanted.capacity.as_str()) {
        changes.insert("capacity".to_owned(), json!({"storage": wanted.capacity}));
    }
    let resize = status.allocated_resource_statuses.as_ref().and_then(|all| all.get("storage")).map(String::as_str);
    let wants = (!wanted.resize_status.is_empty()).then_some(wanted.resize_status.as_str());
    if resize != wants {
        changes.insert("allocatedResourceStatuses".to_owned(), json!({"storage": wants}));
    }
    let conditions = status.conditions.unwrap_or_default();
    if wanted.resize_done {
        let stay: Vec<_> =
            conditions.iter().filter(|condition| !RESIZE_CONDITIONS.contains(&condition.type_.as_str())).collect();
        if stay.len() != conditions.len() {
            changes.insert("conditions".to_owned(), json!(stay));
        }
    }
    if !wanted.resize_error.is_empty() {
        // One that is there already keeps its time and its message, as upstream.
        let has = |condition: &PersistentVolumeClaimCondition| condition.type_ == ERROR && condition.status == "True";
        if !conditions.iter().any(has) {
            let mut all: Vec<Value> = conditions
                .iter()
                .filter(|condition| condition.type_ != ERROR)
                .map(|condition| json!(condition))
                .collect();
            all.push(json!({
                "type": ERROR, "status": "True", "lastTransitionTime": seconds(now), "message": wanted.resize_error,
            }));
            changes.insert("conditions".to_owned(), json!(all));
        }
    }
    if changes.is_empty() {
        return Ok(None);
    }
    let metadata = json!({"uid": uid, "resourceVersion": claim.metadata.resource_version});
    Ok(Some(json!({"metadata": metadata, "status": changes})))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "ns", "uid": "u", "resourceVersion": "5"},
            "status": {
                "capacity": {"storage": "1Gi"},
                "allocatedResourceStatuses": {"storage": "NodeResizeInProgress"},
                "conditions": [
                    {"type": "FileSystemResizePending", "status": "True"}, {"type": "Other", "status": "True"},
                ],
            },
        }))
        .unwrap()
    }

    fn wanted(capacity: &str, resize_status: &str, resize_done: bool) -> ClaimStatus {
        ClaimStatus {
            namespace: "ns".into(),
            name: "c".into(),
            uid: "u".into(),
            capacity: capacity.into(),
            resize_status: resize_status.into(),
            resize_done,
            resize_error: String::new(),
        }
    }

    #[test]
    fn what_is_done_in_progress_and_infeasible() {
        let metadata = json!({"uid": "u", "resourceVersion": "5"});
        for (status, expected) in [
            (
                wanted("2Gi", "", true),
                Some(json!({
                    "capacity": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": null},
                    "conditions": [{"type": "Other", "status": "True"}],
                })),
            ),
            (wanted("", "NodeResizeInProgress", false), None),
            (
                wanted("", "NodeResizeInfeasible", false),
                Some(json!({"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}})),
            ),
        ] {
            let expected = expected.map(|status| json!({"metadata": metadata, "status": status}));
            assert_eq!(patch(&claim(), &status, Timestamp::UNIX_EPOCH), Ok(expected), "{status:?}");
        }
        let other = ClaimStatus { uid: "old".into(), ..wanted("2Gi", "", true) };
        assert_eq!(
            patch(&claim(), &other, Timestamp::UNIX_EPOCH).unwrap_err(),
            "claim ns/c has the uid u now, and not old"
        );
    }
    #[test]
    fn a_failure_is_a_condition_until_it_is_over() {
        let mut claim = claim();
        let failed = ClaimStatus {
            resize_error: "failed to expand pvc with x".into(),
            ..wanted("", "NodeResizeInfeasible", false)
        };
        let written = patch(&claim, &failed, Timestamp::UNIX_EPOCH).unwrap().unwrap();
        let error = json!({"type": "NodeResizeError", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z",
            "message": "failed to expand pvc with x"});
        assert_eq!(
            written["status"],
            json!({
                "allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"},
                "conditions": [
                    {"type": "FileSystemResizePending", "status": "True"}, {"type": "Other", "status": "True"}, error,
                ],
            })
        );
        let status = claim.status.as_mut().unwrap();
        status.conditions = Some(vec![serde_json::from_value(error).unwrap()]);
        let again = ClaimStatus { resize_error: "other".into(), ..wanted("", "NodeResizeInProgress", false) };
        assert_eq!(patch(&claim, &again, Timestamp::UNIX_EPOCH), Ok(None));
        let done = patch(&claim, &wanted("2Gi", "", true), Timestamp::UNIX_EPOCH).unwrap().unwrap();
        assert_eq!(done["status"]["conditions"], json!([]));
    }
}
