//! Decoding a JSON value into a typed field: which Go type takes which JSON value, with every mismatch collected.
//!
//! serde stops at its first error and cannot name a path; operators want all of them at once, each with field, value
//! and what is allowed. Unknown fields are collected apart: upstream starts with them, after a warning.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use bulkhead_types::{GoDuration, Quantity};
use serde_json::{Map, Value};

/// One value that is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// JSON path from the root of the configuration: `authentication.webhook.cacheTTL`, `reservedMemory[0].limits`.
    pub path: String,
    /// The value as written, shortened.
    pub value: String,
    /// What is allowed there.
    pub allowed: String,
}

impl FieldError {
    pub fn new(path: impl Into<String>, value: impl fmt::Display, allowed: impl Into<String>) -> Self {
        FieldError { path: path.into(), value: shorten(&value.to_string()), allowed: allowed.into() }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: invalid value {}: {}", self.path, self.value, self.allowed)
    }
}

/// Long values (a whole pasted object) must not drown the message.
fn shorten(text: &str) -> String {
    const LIMIT: usize = 160;
    if text.chars().count() <= LIMIT {
        return text.to_owned();
    }
    let head: String = text.chars().take(LIMIT).collect();
    format!("{head}...")
}

/// What decoding found besides the value itself.
#[derive(Debug, Default)]
pub struct Findings {
    pub errors: Vec<FieldError>,
    /// Paths of fields that the schema does not have.
    pub unknown: Vec<String>,
    /// Names of fields count in upper and lower case alike, as Go's `encoding/json` has it.
    pub any_case: bool,
}

impl Findings {
    fn mismatch(&mut self, path: &str, value: &Value, allowed: impl Into<String>) {
        self.errors.push(FieldError::new(path, value, allowed));
    }
}

/// The entries under the names that `fields` has, where `any_case`; else as they are. Of two that become one the one that sorts
/// last counts, and objects are joined.
pub fn folded<'a>(entries: &'a Map<String, Value>, fields: &[&str], any_case: bool) -> Cow<'a, Map<String, Value>> {
    if !any_case || entries.keys().all(|key| fields.contains(&key.as_str())) {
        return Cow::Borrowed(entries);
    }
    let mut sorted: Vec<_> = entries.iter().collect();
    sorted.sort_unstable_by_key(|(key, _)| *key);
    let mut folded = Map::new();
    for (key, value) in sorted {
        let name = fields.iter().find(|field| field.eq_ignore_ascii_case(key)).map_or(key.as_str(), |field| *field);
        match (folded.get_mut(name), value) {
            (Some(Value::Object(known)), Value::Object(more)) => {
                known.extend(more.iter().map(|(key, value)| (key.clone(), value.clone())));
            }
            _ => {
                folded.insert(name.to_owned(), value.clone());
            }
        }
    }
    Cow::Owned(folded)
}

/// A type that a configuration field can have. `null` is Go's zero value everywhere.
pub trait Field: Default {
    fn decode(value: &Value, path: &str, findings: &mut Findings) -> Self;
}

/// Go's `omitempty`: structs and durations (a struct there) are never empty.
pub trait Omit {
    fn omit(&self) -> bool {
        false
    }
}

/// `parent.child`, or `child` at the root.
pub fn join(parent: &str, child: &str) -> String {
    if parent.is_empty() { child.to_owned() } else { format!("{parent}.{child}") }
}

impl Field for bool {
    fn decode(value: &Value, path: &str, findings: &mut Findings) -> Self {
        match value {
            Value::Null => false,
            Value::Bool(flag) => *flag,
            _ => {
                findings.mismatch(path, value, "must be true or false");
                false
            }
        }
    }
}

impl Omit for bool {
    fn omit(&self) -> bool {
        !*self
    }
}

impl Field for String {
    fn decode(value: &Value, path: &str, findings: &mut Findings) -> Self {
        match value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            _ => {
                findings.mismatch(path, value, "must be a string (quote it)");
                String::new()
            }
        }
    }
}

impl Omit for String {
    fn omit(&self) -> bool {
        self.is_empty()
    }
}

macro_rules! integer_field {
    ($($type:ty),*) => {$(
        impl Field for $type {
            fn decode(value: &Value, path: &str, findings: &mut Findings) -> Self {
                let number = match value {
                    Value::Null => return 0,
                    Value::Number(number) => number,
                    _ => {
                        findings.mismatch(path, value, "must be a whole number");
                        return 0;
                    }
                };
                let fitting = number.as_i64().and_then(|n| <$type>::try_from(n).ok());
                fitting.unwrap_or_else(|| {
                    let range = format!("must be a whole number from {} to {}", <$type>::MIN, <$type>::MAX);
                    findings.mismatch(path, value, range);
                    0
                })
            }
        }

        impl Omit for $type {
            fn omit(&self) -> bool {
                *self == 0
            }
        }
    )*};
}

integer_field!(i32, i64, u32);

impl Field for f64 {
    fn decode(value: &Value, path: &str, findings: &mut Findings) -> Self {
        match value {
            Value::Null => 0.0,
            Value::Number(number) => number.as_f64().unwrap_or(0.0),
            _ => {
                findings.mismatch(path, value, "must be a number");
                0.0
            }
        }
    }
}

impl Omit for f64 {
    fn omit(&self) -> bool {
        *self == 0.0
    }
}

impl Field for GoDuration {
    fn decode(value: &Value, path: &str, findings: &mut Findings) -> Self {
        let text = match value {
            Value::Null => return GoDuration::ZERO,
            Value::String(text) => text,
            _ => {
                findings.mismatch(path, value, "must be a duration string such as 30s, 1m0s or 100ms");
                return GoDuration::ZERO;
            }
        };
        GoDuration::parse(text).unwrap_or_else(|error| {
            findings.mismatch(path, value, format!("must be a duration string such as 30s, 1m0s or 100ms: {error}"));
            GoDuration::ZERO
        })
    }
}

impl Omit for GoDuration {}

impl Field for Quantity {
    fn decode(value: &Value, path: &str, findings: &mut Findings) -> Self {
        let text = match value {
            Value::Null => return Quantity::ZERO,
            Value::String(text) => text.trim().to_owned(),
            Value::Number(number) => number.to_string(),
            _ => {
                findings.mismatch(path, value, "must be a quantity such as 100m or 1Gi");
                return Quantity::ZERO;
            }
        };
        Quantity::parse(&text).unwrap_or_else(|error| {
            findings.mismatch(path, value, format!("must be a quantity such as 100m or 1Gi: {error}"));
            Quantity::ZERO
        })
    }
}

impl Omit for Quantity {}

impl<T: Field> Field for Option<T> {
    fn decode(value: &Value, path: &str, findings: &mut Findings) -> Self {
        if value.is_null() { None } else { Some(T::decode(value, path, findings)) }
    }
}

impl<T> Omit for Option<T> {
    fn omit(&self) -> bool {
        self.is_none()
    }
}

impl<T: Field> Field for Vec<T> {
    fn decode(value: &Value, path: &str, findings: &mut Findings) -> Self {
        match value {
            Value::Null => Vec::new(),
            Value::Array(items) => items
                .iter()
                .enumerate()
                .map(|(index, item)| T::decode(item, &format!("{path}[{index}]"), findings))
                .collect(),
            _ => {
                findings.mismatch(path, value, "must be a list");
                Vec::new()
            }
        }
    }
}

impl<T> Omit for Vec<T> {
    fn omit(&self) -> bool {
        self.is_empty()
    }
}

impl<T: Field> Field for BTreeMap<String, T> {
    fn decode(value: &Value, path: &str, findings: &mut Findings) -> Self {
        match value {
            Value::Null => BTreeMap::new(),
            Value::Object(entries) => entries
                .iter()
                .map(|(key, item)| (key.clone(), T::decode(item, &format!("{path}[{key}]"), findings)))
                .collect(),
            _ => {
                findings.mismatch(path, value, "must be a map");
                BTreeMap::new()
            }
        }
    }
}

impl<T> Omit for BTreeMap<String, T> {
    fn omit(&self) -> bool {
        self.is_empty()
    }
}

/// `logging.flushFrequency`: a duration string or, for old files and kubeadm's zero values, whole nanoseconds. It is written as
/// it was read (upstream `component-base/logs/api/v1`, TimeOrMetaDuration).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(from = "WrittenDuration", into = "WrittenDuration")]
pub struct DurationOrNanos {
    pub duration: GoDuration,
    /// Read from a duration string, and written as one.
    pub as_text: bool,
}

/// How JSON has it.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
enum WrittenDuration {
    Nanos(i64),
    Text(GoDuration),
}

impl From<WrittenDuration> for DurationOrNanos {
    fn from(written: WrittenDuration) -> Self {
        match written {
            WrittenDuration::Nanos(nanos) => {
                DurationOrNanos { duration: GoDuration::from_nanos(nanos), as_text: false }
            }
            WrittenDuration::Text(duration) => DurationOrNanos { duration, as_text: true },
        }
    }
}

impl From<DurationOrNanos> for WrittenDuration {
    fn from(read: DurationOrNanos) -> Self {
        match read.as_text {
            true => WrittenDuration::Text(read.duration),
            false => WrittenDuration::Nanos(read.duration.as_nanos()),
        }
    }
}

impl Field for DurationOrNanos {
    fn decode(value: &Value, path: &str, findings: &mut Findings) -> Self {
        let duration = match value.is_number() {
            true => GoDuration::from_nanos(i64::decode(value, path, findings)),
            false => GoDuration::decode(value, path, findings),
        };
        DurationOrNanos { duration, as_text: value.is_string() }
    }
}

impl Omit for DurationOrNanos {}

/// Declares an object of the configuration: the struct, its JSON names, `omitempty`, and its decoding.
/// A field marked `always` is written even when it is empty, as upstream's tags without `omitempty` do.
macro_rules! config_object {
    (@skip) => { "Omit::omit" };
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$field_meta:meta])* $field:ident : $type:ty = $json:literal $($always:ident)?,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Default, serde::Deserialize)]
        #[serde(default)]
        pub struct $name {
            $($(#[$field_meta])* #[serde(rename = $json)] pub $field: $type,)*
        }

        impl $name {
            /// JSON names of the fields, in order.
            pub const FIELDS: &'static [&'static str] = &[$($json),*];
        }

        impl $crate::field::Field for $name {
            fn decode(value: &serde_json::Value, path: &str, findings: &mut $crate::field::Findings) -> Self {
                let mut object = $name::default();
                let entries = match value {
                    serde_json::Value::Null => return object,
                    serde_json::Value::Object(entries) => entries,
                    _ => {
                        let allowed = format!("must be an object with fields {}", Self::FIELDS.join(", "));
                        findings.errors.push($crate::field::FieldError::new(path, value, allowed));
                        return object;
                    }
                };
                let entries = $crate::field::folded(entries, Self::FIELDS, findings.any_case);
                for (key, item) in entries.as_ref() {
                    let item_path = $crate::field::join(path, key);
                    match key.as_str() {
                        $($json => object.$field = $crate::field::Field::decode(item, &item_path, findings),)*
                        _ => findings.unknown.push(item_path),
                    }
                }
                object
            }
        }

        impl $crate::field::Omit for $name {}

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeMap;
                let mut map = serializer.serialize_map(None)?;
                $(if $crate::field::written!(self.$field $(, $always)?) {
                    map.serialize_entry($json, &self.$field)?;
                })*
                map.end()
            }
        }
    };
}

macro_rules! written {
    ($self:ident . $field:ident) => {
        !$crate::field::Omit::omit(&$self.$field)
    };
    ($self:ident . $field:ident, always) => {
        true
    };
}

pub(crate) use {config_object, written};
