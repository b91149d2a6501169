//! In which form an answer goes out and a body comes in: JSON, in one of three shapes, and nothing else
//! (`apiserver/pkg/endpoints/handlers/negotiation`).

use serde_json::{Value, json};

use super::status::ApiError;

/// Shapes of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    Json,
    /// Columns for people (`as=Table`).
    Table,
    /// Metadata alone (`as=PartialObjectMetadata`, or `...List`).
    Metadata,
}

const ACCEPTED: &[&str] = &["application/json"];

/// The first wish of an `Accept` header that can be granted.
///
/// # Errors
/// 406 where only other forms are wished for.
pub fn output(accept: &str) -> Result<Output, ApiError> {
    if accept.trim().is_empty() {
        return Ok(Output::Json);
    }
    for wish in accept.split(',') {
        let mut parts = wish.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        if !matches!(media, "application/json" | "*/*" | "application/*") {
            continue;
        }
        let parameters: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
        let parameter = |key: &str| parameters.iter().find(|(name, _)| *name == key).map_or("", |(_, value)| *value);
        let meta = parameter("g") == "meta.k8s.io" && parameter("v") == "v1";
        return Ok(match parameter("as") {
            "" => Output::Json,
            "Table" if meta => Output::Table,
            "PartialObjectMetadata" | "PartialObjectMetadataList" if meta => Output::Metadata,
            // Another version of a shape: the client lists what it takes instead.
            _ => continue,
        });
    }
    Err(ApiError::not_acceptable(ACCEPTED))
}

/// The media type of a body, without parameters.
pub fn media_type(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

/// Refuses bodies that are no JSON; a body without a type is taken for it.
///
/// # Errors
/// 415.
pub fn expect_json(content_type: &str) -> Result<(), ApiError> {
    match media_type(content_type) {
        "" | "application/json" | "*/*" => Ok(()),
        _ => Err(ApiError::unsupported_media_type(ACCEPTED)),
    }
}

/// An object without all but its metadata.
pub fn metadata_of(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        for (accept, expected) in [
            ("", Some(Output::Json)),
            ("*/*", Some(Output::Json)),
            ("application/vnd.kubernetes.protobuf, application/json", Some(Output::Json)),
            (table, Some(Output::Table)),
            ("application/json;as=Table;v=v9;g=meta.k8s.io,application/json", Some(Output::Json)),
            ("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", Some(Output::Metadata)),
            ("application/vnd.kubernetes.protobuf", None),
            ("application/yaml", None),
        ] {
            assert_eq!(output(accept).ok(), expected, "{accept}");
        }
        assert_eq!(output("application/vnd.kubernetes.protobuf").unwrap_err().code, 406);
        assert_eq!(expect_json("application/vnd.kubernetes.protobuf").unwrap_err().code, 415);
        assert!(expect_json("application/json; charset=utf-8").is_ok());
    }
}
