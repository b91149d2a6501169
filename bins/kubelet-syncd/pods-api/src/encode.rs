//! A pod as upstream's `Marshal` writes it, byte for byte: fields by number, maps by key, and what is no pointer there always.

use jiff::Timestamp;
use serde_json::Value;

use crate::schema::{Kind, Rule, Schema, core_v1};

/// A value that is of another type than its field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{message}.{field} is not of its type")]
pub struct EncodeError {
    pub message: &'static str,
    pub field: &'static str,
}

/// The bytes of a pod, from its JSON. What the table does not know is left out.
///
/// # Errors
/// A value is not of its field's type.
pub fn pod(json: &Value) -> Result<Vec<u8>, EncodeError> {
    let mut out = Vec::new();
    message(core_v1(), 0, json, &mut out)?;
    Ok(out)
}

/// Types of the wire.
const VARINT: u64 = 0;
const BYTES: u64 = 2;

fn varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn key(number: u32, wire: u64, out: &mut Vec<u8>) {
    varint(u64::from(number) << 3 | wire, out);
}

fn bytes(number: u32, content: &[u8], out: &mut Vec<u8>) {
    key(number, BYTES, out);
    varint(content.len() as u64, out);
    out.extend_from_slice(content);
}

fn integer(number: u32, value: i64, out: &mut Vec<u8>) {
    key(number, VARINT, out);
    // A negative one is its 64 bits.
    varint(value.cast_unsigned(), out);
}

fn message(schema: &Schema, place: usize, json: &Value, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let Some(message) = schema.messages.get(place) else { return Ok(()) };
    for field in &message.fields {
        let wrong = EncodeError { message: message.name, field: field.name };
        let set = json.get(field.name).filter(|value| !value.is_null());
        match (field.rule, set) {
            (Rule::Inlined, _) => value(schema, field.number, field.kind, json, wrong, out)?,
            (Rule::Always, _) => value(schema, field.number, field.kind, set.unwrap_or(&Value::Null), wrong, out)?,
            (_, None) => {}
            (Rule::WhereSet, Some(set)) => value(schema, field.number, field.kind, set, wrong, out)?,
            (Rule::Repeated, Some(set)) => {
                for one in set.as_array().ok_or(wrong)? {
                    value(schema, field.number, field.kind, one, wrong, out)?;
                }
            }
            (Rule::Map, Some(set)) => {
                let mut entries: Vec<(&String, &Value)> = set.as_object().ok_or(wrong)?.iter().collect();
                entries.sort_by_key(|(name, _)| *name);
                for (name, one) in entries {
                    let mut entry = Vec::new();
                    bytes(1, name.as_bytes(), &mut entry);
                    value(schema, 2, field.kind, one, wrong, &mut entry)?;
                    bytes(field.number, &entry, out);
                }
            }
        }
    }
    Ok(())
}

/// One value with its key; of null what nothing set is. `wrong`: it is of another type.
fn value(
    schema: &Schema,
    number: u32,
    kind: Kind,
    json: &Value,
    wrong: EncodeError,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let text = |zero: &'static str| if json.is_null() { Some(zero) } else { json.as_str() };
    let int = || if json.is_null() { Some(0) } else { json.as_i64() };
    let mut inner = Vec::new();
    match kind {
        Kind::Text => {
            bytes(number, text("").ok_or(wrong)?.as_bytes(), out);
            return Ok(());
        }
        Kind::Bool => {
            let set = if json.is_null() { Some(false) } else { json.as_bool() };
            integer(number, i64::from(set.ok_or(wrong)?), out);
            return Ok(());
        }
        Kind::Int => {
            integer(number, int().ok_or(wrong)?, out);
            return Ok(());
        }
        Kind::Time if json.is_null() => {}
        Kind::Time => {
            let time: Timestamp = json.as_str().and_then(|text| text.parse().ok()).ok_or(wrong)?;
            integer(1, time.as_second(), &mut inner);
            integer(2, 0, &mut inner);
        }
        Kind::Quantity => bytes(1, text("0").ok_or(wrong)?.as_bytes(), &mut inner),
        Kind::IntOrString => {
            let is_text = json.is_string();
            integer(1, i64::from(is_text), &mut inner);
            integer(2, if is_text { 0 } else { int().ok_or(wrong)? }, &mut inner);
            bytes(3, json.as_str().unwrap_or_default().as_bytes(), &mut inner);
        }
        Kind::Fields => bytes(1, json.to_string().as_bytes(), &mut inner),
        Kind::Message(_) if !json.is_null() && !json.is_object() => return Err(wrong),
        Kind::Message(place) => message(schema, place, json, &mut inner)?,
    }
    bytes(number, &inner, out);
    Ok(())
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
