//! Text of a configuration file into a JSON value, YAML or JSON, with duplicate keys noted instead of refused.
//!
//! The value comes first and the type second, as upstream does it: decoded straight into a string field, `yes` and
//! `0644` would stay text where upstream refuses them.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// A parsed document.
#[derive(Debug)]
pub struct Document {
    pub value: Value,
    /// Paths of keys that were written more than once; the last one counts.
    pub duplicates: Vec<String>,
}

/// The text is neither YAML nor JSON.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SyntaxError(String);

/// Parses one YAML or JSON document.
pub fn parse(text: &str) -> Result<Document, SyntaxError> {
    let duplicates = RefCell::new(Vec::new());
    let seed = || ValueSeed { path: String::new(), duplicates: &duplicates };
    if text.trim_start().starts_with('{') {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        if let Ok(value) = seed().deserialize(&mut deserializer)
            && deserializer.end().is_ok()
        {
            return Ok(Document { value, duplicates: duplicates.into_inner() });
        }
        // Not JSON after all: YAML's flow style starts alike.
        duplicates.borrow_mut().clear();
    }
    let text = first_document(text);
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::LastWins,
        with_snippet: false,
    };
    let value = serde_saphyr::with_deserializer_from_str_with_options(text, options, |deserializer| {
        seed().deserialize(deserializer)
    })
    .map_err(|error| SyntaxError(error.to_string()))?;
    Ok(Document { value, duplicates: duplicates.into_inner() })
}

/// The part before the second document: upstream reads the first one alone. A marker at the start of a line is one
/// wherever it stands, even in a block of text.
fn first_document(text: &str) -> &str {
    let mut has_content = false;
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let is_marker = |marker: &str| {
            line.strip_prefix(marker).is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
        };
        let (start, end) = (is_marker("---"), is_marker("..."));
        if has_content && (start || end) {
            return &text[..offset];
        }
        let trimmed = line.trim();
        // A marker may have content behind it on its line.
        let behind = if start { trimmed[3..].trim() } else { trimmed };
        has_content |= !end && !behind.is_empty() && !behind.starts_with(['#', '%']);
        offset += line.len();
    }
    text
}

struct ValueSeed<'a> {
    path: String,
    duplicates: &'a RefCell<Vec<String>>,
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let seed = ValueSeed { path: format!("{}[{}]", self.path, list.len()), duplicates: self.duplicates };
            match items.next_element_seed(seed)? {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let path = crate::field::join(&self.path, &key);
            let seed = ValueSeed { path: path.clone(), duplicates: self.duplicates };
            let value = entries.next_value_seed(seed)?;
            if map.insert(key, value).is_some() {
                self.duplicates.borrow_mut().push(path);
            }
        }
        Ok(Value::Object(map))
    }
}

/// RFC 7396: objects merge key by key, anything else replaces, `null` deletes.
pub fn merge_patch(target: &mut Value, patch: &Value) {
    let Value::Object(patch_entries) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    if let Value::Object(entries) = target {
        for (key, value) in patch_entries {
            if value.is_null() {
                entries.remove(key);
            } else {
                merge_patch(entries.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn yaml_and_json_alike() {
        let yaml = "a: 1\nb: [x, yes]\nc:\n  d: 0644\n  e: 1.5\n  f: \"0644\"\ng: null\n";
        let value = json!({"a": 1, "b": ["x", true], "c": {"d": 420, "e": 1.5, "f": "0644"}, "g": null});
        assert_eq!(parse(yaml).unwrap().value, value);
        assert_eq!(parse(&value.to_string()).unwrap().value, value);
        assert_eq!(parse("{a: 1, b: two}").unwrap().value, json!({"a": 1, "b": "two"}));
    }

    #[test]
    fn the_first_document_counts() {
        for text in [
            "a: 1",
            "---\na: 1\n",
            "# x\n--- # y\na: 1\n...\n",
            "a: 1\n---\nb: 2\n",
            "---\na: 1\n---\n[\n",
            "--- {a: 1}\n--- b\n",
        ] {
            assert_eq!(parse(text).unwrap().value, json!({"a": 1}), "{text:?}");
        }
    }

    #[test]
    fn duplicates_are_named_and_the_last_wins() {
        for text in ["a: 1\nb:\n  c: 1\n  c: 2\na: 3\n", r#"{"a":1,"b":{"c":1,"c":2},"a":3}"#] {
            let document = parse(text).unwrap();
            assert_eq!(document.value, json!({"a": 3, "b": {"c": 2}}), "{text}");
            assert_eq!(document.duplicates, ["b.c", "a"], "{text}");
        }
    }

    #[test]
    fn rfc_7396_appendix() {
        let table = [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
            (json!({"a":{"b":"c"}}), json!({"a":{"b":"d","c":null}}), json!({"a":{"b":"d"}})),
            (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a":"foo"}), json!(null), json!(null)),
            (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
            (json!([1, 2]), json!({"a":"b","c":null}), json!({"a":"b"})),
            (json!({}), json!({"a":{"bb":{"ccc":null}}}), json!({"a":{"bb":{}}})),
        ];
        for (mut target, patch, expected) in table {
            merge_patch(&mut target, &patch);
            assert_eq!(target, expected, "patch {patch}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,200}") {
            let _ = parse(&text);
        }
    }
}
