//! What a PATCH makes of an object, by content type.

pub mod apply;
pub mod merge;
pub mod strategic;
pub mod strategy;

use serde_json::Value;

use super::resources::Resource;
use super::status::ApiError;

/// Content types of a PATCH, as the real server lists them when it refuses another.
pub const CONTENT_TYPES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// The real server's bound on a JSON patch.
const MAX_OPERATIONS: usize = 10_000;

/// How to read a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchType {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchType {
    /// From the header, parameters already cut off.
    ///
    /// # Errors
    /// 415.
    pub fn parse(content_type: &str) -> Result<Self, ApiError> {
        match content_type {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" => Ok(Self::Strategic),
            "application/apply-patch+yaml" => Ok(Self::Apply),
            _ => Err(ApiError::unsupported_media_type(CONTENT_TYPES)),
        }
    }
}

/// The object after the patch; the object itself where the patch changes nothing.
///
/// # Errors
/// 400 for what is no patch, 422 for one that cannot be applied to this object.
pub fn patched(resource: &Resource, kind: PatchType, object: &Value, body: &[u8]) -> Result<Value, ApiError> {
    let patch: Value = serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))?;
    match kind {
        PatchType::Json => json_patch(object, patch),
        PatchType::Merge => {
            expect_object(&patch)?;
            Ok(merge::merged(object, &patch))
        }
        PatchType::Strategic => {
            expect_object(&patch)?;
            strategic::merged(strategy::of(resource), object, &patch)
                .map_err(|error| ApiError::bad_request(error.to_string()))
        }
        PatchType::Apply => {
            expect_object(&patch)?;
            Ok(apply::applied(strategy::of(resource), object, &patch))
        }
    }
}

fn expect_object(patch: &Value) -> Result<(), ApiError> {
    if patch.is_object() {
        Ok(())
    } else {
        Err(ApiError::bad_request("error decoding patch: a JSON object is expected"))
    }
}

fn json_patch(object: &Value, patch: Value) -> Result<Value, ApiError> {
    let operations: json_patch::Patch = serde_json::from_value(patch)
        .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))?;
    if operations.0.len() > MAX_OPERATIONS {
        let why =
            format!("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}", operations.0.len());
        let mut error = ApiError::too_large_body(0);
        error.message = format!("Request entity too large: {why}");
        return Err(error);
    }
    let mut changed = object.clone();
    json_patch::patch(&mut changed, &operations.0).map_err(|error| {
        let mut refused = ApiError::bad_request("the server rejected our request due to an error in our request");
        (refused.code, refused.reason) = (422, "Invalid");
        refused.details = serde_json::json!({"causes": [{"message": error.to_string()}]});
        refused
    })?;
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::resources::named;

    #[test]
    fn json_patch_applies_or_changes_nothing() {
        let object = json!({"metadata": {"name": "a"}, "data": {"k": "1"}});
        let run = |patch: Value| patched(named("configmaps"), PatchType::Json, &object, patch.to_string().as_bytes());
        let changed = run(json!([
            {"op": "test", "path": "/data/k", "value": "1"},
            {"op": "replace", "path": "/data/k", "value": "2"},
            {"op": "add", "path": "/data/a~1b", "value": "x"},
        ]))
        .unwrap();
        assert_eq!(changed["data"], json!({"k": "2", "a/b": "x"}));
        assert_eq!(run(json!([{"op": "test", "path": "/data/k", "value": "9"}])).unwrap_err().code, 422);
        assert_eq!(run(json!({"data": {}})).unwrap_err().code, 400);
    }

    #[test]
    fn unknown_content_types_are_refused() {
        let error = PatchType::parse("application/vnd.kubernetes.protobuf").unwrap_err();
        assert_eq!((error.code, error.reason), (415, "UnsupportedMediaType"));
    }
}
