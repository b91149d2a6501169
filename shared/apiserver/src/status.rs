//! What is said when a request is refused: the Status objects of the real server, word for word
//! (apimachinery `pkg/api/errors`, `pkg/util/validation/field`).

use bulkhead_types::go_aggregate;
use serde_json::{Value, json};

use super::resources::{Resource, qualified};

/// A refusal: HTTP code and the Status object that goes with it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{reason} ({code}): {message}")]
pub struct ApiError {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    /// `details` of the Status; `null` for none.
    pub details: Value,
    /// Extra fields of `metadata` (a continue token).
    pub metadata: Value,
}

/// One complaint about a field.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldError {
    /// `FieldValueInvalid`, `FieldValueRequired`, `FieldValueForbidden`...
    pub kind: &'static str,
    pub field: String,
    /// The text without the field's name.
    pub body: String,
}

impl FieldError {
    pub fn invalid(field: &str, value: &Value, detail: &str) -> Self {
        Self { kind: "FieldValueInvalid", field: field.to_owned(), body: format!("Invalid value: {value}: {detail}") }
    }

    pub fn required(field: &str, detail: &str) -> Self {
        let body = if detail.is_empty() { "Required value".to_owned() } else { format!("Required value: {detail}") };
        Self { kind: "FieldValueRequired", field: field.to_owned(), body }
    }

    pub fn not_found(field: &str, value: &Value) -> Self {
        Self { kind: "FieldValueNotFound", field: field.to_owned(), body: format!("Not found: {value}") }
    }

    pub fn forbidden(field: &str, detail: &str) -> Self {
        Self { kind: "FieldValueForbidden", field: field.to_owned(), body: format!("Forbidden: {detail}") }
    }

    pub fn unsupported(field: &str, value: &Value, supported: &[&str]) -> Self {
        let supported: Vec<String> = supported.iter().map(|one| format!("{one:?}")).collect();
        Self {
            kind: "FieldValueNotSupported",
            field: field.to_owned(),
            body: format!("Unsupported value: {value}: supported values: {}", supported.join(", ")),
        }
    }
}

impl ApiError {
    fn new(code: u16, reason: &'static str, message: String) -> Self {
        Self { code, reason, message, details: Value::Null, metadata: json!({}) }
    }

    fn about(mut self, group: &str, kind: &str, name: &str) -> Self {
        let mut details = serde_json::Map::new();
        for (key, value) in [("name", name), ("group", group), ("kind", kind)] {
            if !value.is_empty() {
                details.insert(key.to_owned(), json!(value));
            }
        }
        self.details = Value::Object(details);
        self
    }

    pub fn not_found(resource: &Resource, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} {name:?} not found", resource.qualified())).about(
            resource.group,
            resource.plural,
            name,
        )
    }

    /// A path or resource that is not served at all.
    pub fn no_such_resource() -> Self {
        let mut error =
            Self::new(404, "NotFound", "the server could not find the requested resource".to_owned()).about("", "", "");
        error.details = json!({});
        error
    }

    pub fn already_exists(resource: &Resource, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} {name:?} already exists", resource.qualified())).about(
            resource.group,
            resource.plural,
            name,
        )
    }

    /// `kind` is the resource's plural for storage conflicts and its kind for preconditions of a deletion.
    pub fn conflict(group: &str, kind: &str, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", qualified(group, kind));
        Self::new(409, "Conflict", message).about(group, kind, name)
    }

    /// The optimistic lock.
    pub fn modified(resource: &Resource, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource.group, resource.plural, name, why)
    }

    pub fn forbidden(resource: &Resource, name: &str, why: &str) -> Self {
        let qualified = resource.qualified();
        let message = if name.is_empty() {
            format!("{qualified} is forbidden: {why}")
        } else {
            format!("{qualified} {name:?} is forbidden: {why}")
        };
        Self::new(403, "Forbidden", message).about(resource.group, resource.plural, name)
    }

    /// A path that is no resource.
    pub fn forbidden_path(user: &str, verb: &str, path: &str) -> Self {
        let mut error = Self::new(403, "Forbidden", format!("forbidden: User {user:?} cannot {verb} path {path:?}"));
        error.details = json!({});
        error
    }

    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized".to_owned())
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message.into())
    }

    /// `kind` with its group as messages name it; several complaints are joined as the real server joins them.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let texts: Vec<String> = errors.iter().map(|error| format!("{}: {}", error.field, error.body)).collect();
        let all = go_aggregate(texts).unwrap_or_default();
        let message = format!("{} {name:?} is invalid: {all}", qualified(group, kind));
        let mut error = Self::new(422, "Invalid", message).about(group, kind, name);
        let causes: Vec<Value> = errors
            .iter()
            .map(|error| json!({"reason": error.kind, "message": error.body, "field": error.field}))
            .collect();
        error.details["causes"] = Value::Array(causes);
        error
    }

    pub fn invalid_object(resource: &Resource, name: &str, errors: &[FieldError]) -> Self {
        Self::invalid(resource.group, resource.kind, name, errors)
    }

    /// History no longer reaches back so far.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message.into())
    }

    pub fn too_old(asked: u64, oldest: u64) -> Self {
        Self::expired(format!("too old resource version: {asked} ({oldest})"))
    }

    /// A version that this server has not reached.
    pub fn too_large(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let mut error = Self::new(504, "Timeout", message);
        error.details = json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        });
        error
    }

    pub fn method_not_allowed(resource: &Resource, action: &str) -> Self {
        let message = format!("{action} is not supported on resources of kind {:?}", resource.qualified());
        Self::new(405, "MethodNotAllowed", message).about(resource.group, resource.plural, "")
    }

    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub fn not_acceptable(accepted: &[&str]) -> Self {
        let message = format!("only the following media types are accepted: {}", accepted.join(", "));
        Self::new(406, "NotAcceptable", message)
    }

    pub fn too_many_requests(retry_after_seconds: u32) -> Self {
        let message = "Too many requests, please try again later.".to_owned();
        let mut error = Self::new(429, "TooManyRequests", message);
        error.details = json!({"retryAfterSeconds": retry_after_seconds});
        error
    }

    pub fn internal(why: &str) -> Self {
        let mut error = Self::new(500, "InternalError", format!("Internal error occurred: {why}"));
        error.details = json!({"causes": [{"message": why}]});
        error
    }

    pub fn too_large_body(limit: usize) -> Self {
        Self::new(413, "RequestEntityTooLarge", format!("Request entity too large: limit is {limit}"))
    }

    /// Whatever a fault asks for.
    pub fn of(code: u16, reason: &'static str, message: String) -> Self {
        Self::new(code, reason, message)
    }

    /// Something that went wrong on the way to another server, in its own words.
    pub fn plain(message: String) -> Self {
        Self::new(500, "", message)
    }

    pub fn unavailable(why: &str) -> Self {
        Self::new(503, "ServiceUnavailable", why.to_owned())
    }

    /// Another server's refusal, as a client of it tells it.
    pub fn of_a_server(code: u16, what: &str, name: &str, said: &str) -> Self {
        let (reason, message) = match code {
            401 => ("Unauthorized", "the server has asked for the client to provide credentials".to_owned()),
            403 => ("Forbidden", said.to_owned()),
            404 => ("NotFound", "the server could not find the requested resource".to_owned()),
            405 => ("MethodNotAllowed", "the server does not allow this method on the requested resource".to_owned()),
            422 => ("Invalid", "the server rejected our request due to an error in our request".to_owned()),
            429 => (
                "TooManyRequests",
                "the server has received too many requests and has asked us to try again later".to_owned(),
            ),
            503 => ("ServiceUnavailable", "the server is currently unable to handle the request".to_owned()),
            500.. => (
                "InternalError",
                format!("an error on the server ({said:?}) has prevented the request from succeeding"),
            ),
            _ => ("", format!("the server responded with the status code {code} but did not return more information")),
        };
        Self::new(code, reason, format!("{message} ( {what} {name})")).about("", what, name)
    }

    /// Any other code, for injected faults.
    pub fn injected(code: u16) -> Self {
        match code {
            401 => Self::unauthorized(),
            410 => Self::new(410, "Expired", "too old resource version: injected".into()),
            429 => Self::too_many_requests(1),
            500 => Self::internal("injected"),
            503 => Self::new(503, "ServiceUnavailable", "the server is currently unable to handle the request".into()),
            504 => Self::new(504, "Timeout", "Timeout: request did not complete within requested timeout".into()),
            _ => Self::new(code, "Unknown", format!("injected answer {code}")),
        }
    }

    /// The Status object.
    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }

    /// Value of the header `Retry-After`, in seconds.
    pub fn retry_after(&self) -> Option<u64> {
        self.details["retryAfterSeconds"].as_u64()
    }
}

/// The Status of a deletion that left no object to show.
pub fn deleted(resource: &Resource, name: &str, uid: &str) -> Value {
    let mut details = json!({"name": name, "kind": resource.plural, "uid": uid});
    if !resource.group.is_empty() {
        details["group"] = json!(resource.group);
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::named;

    #[test]
    fn messages_are_those_of_the_real_server() {
        let status = ApiError::not_found(named("pods"), "x").status();
        assert_eq!(status["message"], "pods \"x\" not found");
        assert_eq!(status["details"], json!({"name": "x", "kind": "pods"}));
        let status = ApiError::modified(named("leases"), "a").status();
        assert_eq!(
            status["message"],
            "Operation cannot be fulfilled on leases.coordination.k8s.io \"a\": the object has been modified; please \
             apply your changes to the latest version and try again"
        );
        assert_eq!(status["details"], json!({"name": "a", "group": "coordination.k8s.io", "kind": "leases"}));
        let error = FieldError::invalid("metadata.uid", &json!("a"), "field is immutable");
        let status = ApiError::invalid_object(named("pods"), "x", &[error]).status();
        assert_eq!(status["message"], "Pod \"x\" is invalid: metadata.uid: Invalid value: \"a\": field is immutable");
        assert_eq!(ApiError::too_old(1, 5).message, "too old resource version: 1 (5)");
    }
}
