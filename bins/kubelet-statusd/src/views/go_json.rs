//! Pods as JSON exactly as upstream's encoder writes them: the fields in the order of the Go types, those that are never
//! left out, and its escapes. The order and the zero values stand in `pod_fields.txt`.

use std::collections::HashMap;
use std::sync::OnceLock;

use serde_json::{Map, Value};

#[derive(Debug, Clone, Copy)]
struct Field {
    name: &'static str,
    /// Type of the object, or of the list's elements.
    kind: Option<&'static str>,
    /// Written when the field is not set.
    zero: Option<&'static str>,
}

type Table = HashMap<&'static str, Vec<Field>>;

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| parse(include_str!("pod_fields.txt")))
}

fn parse(text: &'static str) -> Table {
    let field = |word: &'static str| {
        let (word, zero) = word.split_once('!').map_or((word, None), |(word, zero)| (word, Some(zero)));
        let (name, kind) = word.split_once('=').map_or((word, None), |(name, kind)| (name, Some(kind)));
        Field { name, kind, zero }
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.split_once(':'))
        .map(|(kind, words)| (kind, words.split(' ').filter(|w| !w.is_empty()).map(field).collect()))
        .collect()
}

/// Writes `value`, a v1.Pod without kind and apiVersion, at the end of `out`.
pub fn write_pod(value: &Value, out: &mut String) {
    let start = out.len();
    write(Some("Pod"), value, out);
    let escaped = escaped(&out[start..]);
    if let Some(escaped) = escaped {
        out.truncate(start);
        out.push_str(&escaped);
    }
}

/// Go's encoder writes some characters as escapes that others leave alone. All of them occur in texts alone, so a whole
/// document can be treated at once. `None`: there is none of them in it.
pub fn escaped(json: &str) -> Option<String> {
    const ESCAPES: [(char, &str); 5] =
        [('<', "\\u003c"), ('>', "\\u003e"), ('&', "\\u0026"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")];
    let special = |c: char| ESCAPES.iter().find(|(special, _)| *special == c).map(|(_, escape)| *escape);
    json.contains(|c| special(c).is_some()).then(|| {
        let mut out = String::with_capacity(json.len() + 64);
        for c in json.chars() {
            match special(c) {
                Some(escape) => out.push_str(escape),
                None => out.push(c),
            }
        }
        out
    })
}

fn write(kind: Option<&str>, value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => match kind.and_then(|kind| table().get(kind)) {
            Some(fields) => write_fields(fields, map, out),
            None => {
                out.push('{');
                for (i, (key, value)) in map.iter().enumerate() {
                    separate(i == 0, key, out);
                    write(None, value, out);
                }
                out.push('}');
            }
        },
        Value::Array(list) => {
            out.push('[');
            for (i, value) in list.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write(kind, value, out);
            }
            out.push(']');
        }
        plain => out.push_str(&plain.to_string()),
    }
}

fn separate(first: bool, key: &str, out: &mut String) {
    if !first {
        out.push(',');
    }
    out.push_str(&Value::from(key).to_string());
    out.push(':');
}

fn write_fields(fields: &[Field], map: &Map<String, Value>, out: &mut String) {
    out.push('{');
    let mut first = true;
    for field in fields {
        match (map.get(field.name).filter(|value| !value.is_null()), field.zero) {
            (Some(value), _) => {
                separate(std::mem::take(&mut first), field.name, out);
                write(field.kind, value, out);
            }
            (None, Some("{}")) => {
                separate(std::mem::take(&mut first), field.name, out);
                write(field.kind, &Value::Object(Map::new()), out);
            }
            (None, Some(zero)) => {
                separate(std::mem::take(&mut first), field.name, out);
                out.push_str(zero);
            }
            (None, None) => {}
        }
    }
    // What a newer API has and this table has not.
    for (key, value) in map.iter().filter(|(key, _)| !fields.iter().any(|field| field.name == key.as_str())) {
        separate(std::mem::take(&mut first), key, out);
        write(None, value, out);
    }
    out.push('}');
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    fn written(pod: &Value) -> String {
        let mut out = String::new();
        write_pod(pod, &mut out);
        out
    }

    #[test]
    fn every_type_that_is_named_is_there() {
        let fields = table().values().flatten();
        let missing: Vec<&str> = fields.filter_map(|f| f.kind).filter(|kind| !table().contains_key(kind)).collect();
        assert_eq!(missing, Vec::<&str>::new());
        assert!(table().len() > 100);
    }

    #[test]
    fn byte_for_byte_what_upstream_wrote() {
        let golden = include_str!("../../tests/golden/pods.json");
        let list: Value = serde_json::from_str(golden).unwrap();
        // By way of the typed object, as the pod comes here.
        let pod: Pod = serde_json::from_value(list["items"][0].clone()).unwrap();
        let mut value = serde_json::to_value(&pod).unwrap();
        value.as_object_mut().unwrap().retain(|key, _| key != "kind" && key != "apiVersion");
        let expected = golden.trim_end().split_once("\"items\":[").unwrap().1.strip_suffix("]}").unwrap();
        assert_eq!(written(&value), expected);
    }

    #[test]
    fn what_is_never_left_out_and_what_is_escaped() {
        let pod = json!({"spec": {"containers": [{"name": "<&>\u{2028}", "later": {"b": 1, "a": [true, null]}}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [{"name": "c"}]}});
        assert_eq!(
            written(&pod),
            r#"{"metadata":{},"spec":{"containers":[{"name":"\u003c\u0026\u003e\u2028","resources":{},"later":{"a":[true,null],"b":1}}]},"status":{"conditions":[{"type":"Ready","status":"True","lastProbeTime":null,"lastTransitionTime":null}],"containerStatuses":[{"name":"c","state":{},"lastState":{},"ready":false,"restartCount":0,"image":"","imageID":""}]}}"#
        );
        assert_eq!(written(&json!({})), r#"{"metadata":{},"spec":{"containers":null},"status":{}}"#);
    }
}
