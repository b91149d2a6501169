//! From a request about a pod to the path that the node is asked for: container, options, their order and encoding
//! (`pkg/registry/core/pod/strategy.go`: LogLocation, streamLocation, PortForwardLocation). Pure.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::clock::stamp;
use crate::request::Request;
use crate::status::{ApiError, FieldError};

const NUMBERS: [&str; 3] = ["sinceSeconds", "tailLines", "limitBytes"];

/// As options of the API are read: anything but these words is true, nothing at all too.
fn is_set(request: &Request, key: &str) -> bool {
    request.query.has(key) && !matches!(request.query.get(key).to_lowercase().as_str(), "false" | "0")
}

fn number(request: &Request, key: &str) -> Option<Result<i64, String>> {
    let text = request.query.get(key);
    let wrong = || format!("strconv.ParseInt: parsing {text:?}: invalid syntax");
    request.query.has(key).then(|| text.parse().map_err(|_| wrong()))
}

/// What is wrong with the options of a log, if anything.
pub(super) fn refusal(request: &Request) -> Option<ApiError> {
    let mut complaints = Vec::new();
    for key in NUMBERS {
        let value = match number(request, key) {
            None => continue,
            Some(Err(wrong)) => return Some(ApiError::bad_request(wrong)),
            Some(Ok(value)) => value,
        };
        if key == "tailLines" && value < 0 {
            complaints.push(FieldError::invalid(key, &json!(value), "must be greater than or equal to 0"));
        }
        if key != "tailLines" && value < 1 {
            complaints.push(FieldError::invalid(key, &json!(value), "must be greater than 0"));
        }
    }
    if request.query.has("sinceTime") {
        let text = request.query.get("sinceTime");
        if let Err(error) = text.parse::<Timestamp>() {
            return Some(ApiError::bad_request(format!("parsing time {text:?}: {error}")));
        }
        if request.query.has("sinceSeconds") {
            let both = "at most one of `sinceTime` or `sinceSeconds` may be specified";
            complaints.push(FieldError::forbidden("", both));
        }
    }
    if request.query.has("stream") {
        complaints.push(FieldError::forbidden("stream", "may not be specified"));
    }
    (!complaints.is_empty()).then(|| ApiError::invalid("", "PodLogOptions", &request.name, &complaints))
}

/// The path at the node, with query.
///
/// # Errors
/// 400: the container is not named and there are several, or is none of the pod's.
pub(super) fn path(pod: &Value, request: &Request) -> Result<String, ApiError> {
    let mut query: Vec<(&str, String)> = Vec::new();
    let place = format!("{}/{}", request.namespace, request.name);
    let path = match request.subresource.as_str() {
        "log" => {
            for key in ["follow", "previous", "timestamps"] {
                if is_set(request, key) {
                    query.push((key, "true".to_owned()));
                }
            }
            for key in NUMBERS {
                if let Some(Ok(value)) = number(request, key) {
                    query.push((key, value.to_string()));
                }
            }
            if let Ok(since) = request.query.get("sinceTime").parse::<Timestamp>() {
                query.push(("sinceTime", stamp(since)));
            }
            format!("/containerLogs/{place}/{}", container(pod, request)?)
        }
        "portforward" => {
            let ports: Vec<&str> = request.query.all("ports").filter(|port| !port.is_empty()).collect();
            if let Some(wrong) = ports.iter().find(|port| port.parse::<i32>().is_err()) {
                let message = format!("strconv.ParseInt: parsing {wrong:?}: invalid syntax");
                return Err(ApiError::bad_request(message));
            }
            if !ports.is_empty() {
                query.push(("port", ports.join(",")));
            }
            format!("/portForward/{place}")
        }
        what => {
            for (key, name) in [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")] {
                if is_set(request, key) {
                    query.push((name, "1".to_owned()));
                }
            }
            query.extend(request.query.all("command").map(|word| ("command", word.to_owned())));
            format!("/{what}/{place}/{}", container(pod, request)?)
        }
    };
    query.sort_by_key(|(key, _)| *key);
    let pairs: Vec<String> = query.iter().map(|(key, value)| format!("{key}={}", escaped(value))).collect();
    Ok(if pairs.is_empty() { path } else { format!("{path}?{}", pairs.join("&")) })
}

/// The container that is meant.
fn container(pod: &Value, request: &Request) -> Result<String, ApiError> {
    let names = |list: &str| -> Vec<String> {
        let all = pod["spec"][list].as_array().into_iter().flatten();
        all.filter_map(|one| one["name"].as_str().map(str::to_owned)).collect()
    };
    let regular = names("containers");
    let all: Vec<String> =
        ["initContainers", "containers", "ephemeralContainers"].iter().flat_map(|list| names(list)).collect();
    let wanted = request.query.get("container");
    let pod = &request.name;
    match (wanted, regular.as_slice()) {
        ("", [only]) => Ok(only.clone()),
        ("", _) => Err(ApiError::bad_request(format!(
            "a container name must be specified for pod {pod}, choose one of: [{}]",
            all.join(" ")
        ))),
        (wanted, _) if all.iter().any(|one| one == wanted) => Ok(wanted.to_owned()),
        (wanted, _) => Err(ApiError::bad_request(format!("container {wanted} is not valid for pod {pod}"))),
    }
}

/// As a form's value is written.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            b' ' => out.push('+'),
            // Writing to a string does not fail.
            _ => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}

/// `/api/v1/nodes/{name}/proxy` and what follows it.
pub(super) fn proxied(path: &str) -> (&str, &str) {
    let end = path.match_indices('/').nth(5).map_or(path.len(), |(at, _)| at);
    path.split_at(end)
}
