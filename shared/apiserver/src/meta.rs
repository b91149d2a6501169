//! An object's metadata: system fields, generated names, and what a name may look like
//! (`apiserver/pkg/registry/rest`, `apimachinery/pkg/api/validation`).

use serde_json::{Value, json};

use super::resources::Resource;
use super::status::{ApiError, FieldError};

/// Characters of generated names: no vowels, nothing that looks like another (`apimachinery/pkg/util/rand`).
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Five random characters for a generated name.
pub fn random_suffix() -> String {
    let mut bytes = [0u8; 5];
    // Without randomness names repeat and the next creation says AlreadyExists, which callers handle.
    let _ = getrandom::fill(&mut bytes);
    bytes.iter().map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect()
}

/// Fields that only the server writes, set for a new object.
pub fn fill_system_fields(object: &mut Value, now: &str) {
    let Some(metadata) = object["metadata"].as_object_mut() else { return };
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields", "generation"] {
        metadata.remove(field);
    }
    metadata.insert("uid".to_owned(), json!(uuid::Uuid::new_v4().to_string()));
    metadata.insert("creationTimestamp".to_owned(), json!(now));
    let name = metadata.get("name").and_then(Value::as_str).unwrap_or_default();
    let prefix = metadata.get("generateName").and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() && !prefix.is_empty() {
        // Names end at 63 characters; a long prefix is cut.
        let kept: String = prefix.chars().take(58).collect();
        metadata.insert("name".to_owned(), json!(format!("{kept}{}", random_suffix())));
    }
}

/// Makes the object's namespace that of the request.
///
/// # Errors
/// 400 where the object names another one.
pub fn set_namespace(object: &mut Value, namespace: &str) -> Result<(), ApiError> {
    let own = object["metadata"]["namespace"].as_str().unwrap_or_default();
    if own == namespace {
        return Ok(());
    }
    if namespace.is_empty() {
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("namespace");
        }
        return Ok(());
    }
    if !own.is_empty() {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    object["metadata"]["namespace"] = json!(namespace);
    Ok(())
}

/// Complaints about a new object's metadata.
pub fn complaints(resource: &Resource, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else if let Some(why) = bad_name(resource, name) {
        errors.push(FieldError::invalid("metadata.name", &json!(name), &why));
    }
    for map in ["labels", "annotations"] {
        let Some(entries) = object["metadata"][map].as_object() else { continue };
        for (key, value) in entries {
            let field = format!("metadata.{map}");
            if !is_qualified_name(key) {
                let why = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end \
                           with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for \
                           validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
                errors.push(FieldError::invalid(&field, &json!(key), why));
            }
            let text = value.as_str().unwrap_or_default();
            if map == "labels" && !(text.is_empty() || is_name_part(text)) {
                let why = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
                           and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or \
                           '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
                errors.push(FieldError::invalid(&field, value, why));
            }
        }
    }
    errors
}

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and \
    must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
    and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

fn bad_name(resource: &Resource, name: &str) -> Option<String> {
    // Only a label by itself is bounded; the parts of a subdomain are not.
    let label = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    match resource.plural {
        "namespaces" | "services" => (name.len() > 63 || !label(name)).then(|| LABEL.to_owned()),
        // Any name (`pkg/apis/certificates/validation`) that can be a part of a path.
        "certificatesigningrequests" => (name == "." || name == ".." || name.contains(['/', '%']))
            .then(|| "may not be '.' or '..' and may not contain '/' or '%'".to_owned()),
        _ => (name.len() > 253 || !name.split('.').all(label)).then(|| SUBDOMAIN.to_owned()),
    }
}

fn is_name_part(text: &str) -> bool {
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    text.len() <= 63
        && edge(text.bytes().next())
        && edge(text.bytes().last())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

fn is_qualified_name(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => !prefix.is_empty() && prefix.len() <= 253 && is_name_part(name),
        None => is_name_part(key),
    }
}

/// Removes what typed objects cannot hold: `null`s, but for the few fields that are written as `null`.
pub fn drop_nulls(value: &mut Value) {
    const WRITTEN: &[&str] =
        &["eventTime", "drivers", "names", "lastProbeTime", "lastTransitionTime", "lastHeartbeatTime", "audiences"];
    match value {
        Value::Object(map) => {
            map.retain(|key, value| !value.is_null() || WRITTEN.contains(&key.as_str()));
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::named;

    #[test]
    fn names() {
        let bad =
            |plural: &str, name: &str| !complaints(named(plural), &json!({"metadata": {"name": name}})).is_empty();
        assert!(
            !bad("pods", "a.b-1") && bad("pods", "A") && bad("pods", "-a") && bad("pods", "a..b") && bad("pods", "")
        );
        assert!(!bad("namespaces", "a-1") && bad("namespaces", "a.b"));
        assert!(!bad("pods", &"a".repeat(253)) && bad("pods", &"a".repeat(254)));
        assert!(!bad("namespaces", &"a".repeat(63)) && bad("namespaces", &"a".repeat(64)));
    }

    #[test]
    fn labels() {
        let count =
            |labels: Value| complaints(named("pods"), &json!({"metadata": {"name": "a", "labels": labels}})).len();
        assert_eq!(count(json!({"a": "b", "example.com/x": "", "x": "1.2_3"})), 0);
        assert_eq!(count(json!({"a": "b c"})), 1);
        assert_eq!(count(json!({"": "b", "/a": "b", "a/b/c": ""})), 3);
    }

    #[test]
    fn a_generated_name_and_system_fields() {
        let mut object = json!({"metadata": {"generateName": "csr-", "deletionTimestamp": "x", "uid": "mine"}});
        fill_system_fields(&mut object, "2026-01-01T00:00:00Z");
        let name = object["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with("csr-") && name.len() == 9);
        assert!(object["metadata"].get("deletionTimestamp").is_none());
        assert_ne!(object["metadata"]["uid"], "mine");
    }
}
