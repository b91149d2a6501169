//! Text to an untyped value, with the habits of the YAML 1.1 reader that upstream uses: `yes` is a boolean, `0644` is
//! octal, `1e3` is the whole number 1000, equal keys are allowed, the first document counts.

use std::borrow::Cow;

use serde_json::{Number, Value};

use super::DecodeError;

/// Maps of text to text, where a null is an empty text; elsewhere it is an absent field.
const TEXT_MAPS: [&str; 4] = ["labels", "annotations", "nodeSelector", "matchLabels"];
/// Floats from here on are printed with an exponent in JSON, which an integer field does not take.
const EXPONENT_FROM: f64 = 1e21;

pub fn to_text(bytes: &[u8]) -> Result<Cow<'_, str>, DecodeError> {
    let wide = |rest: &[u8], unit: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = rest.chunks_exact(2).map(|pair| unit([pair[0], pair[1]])).collect();
        String::from_utf16(&units).map(Cow::Owned).map_err(|_| DecodeError::NotText)
    };
    match bytes {
        [0xef, 0xbb, 0xbf, rest @ ..] => std::str::from_utf8(rest).map(Cow::Borrowed).map_err(|_| DecodeError::NotText),
        [0xff, 0xfe, rest @ ..] if rest.len() % 2 == 0 => wide(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] if rest.len() % 2 == 0 => wide(rest, u16::from_be_bytes),
        _ => std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| DecodeError::NotText),
    }
}

/// The first document, and whether there are more.
pub fn read(text: &str) -> Result<(Value, bool), DecodeError> {
    // JSON is nearly always meant as such; what its parser refuses (comments, a trailing comma) may still be YAML.
    if text.trim_start().starts_with('{')
        && let Ok(value) = serde_json::from_str(text)
    {
        return Ok((value, false));
    }
    let (first, more) = first_document(text);
    if !first.lines().any(has_content) {
        return Ok((Value::Null, more));
    }
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        strict_booleans: false,
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::LastWins,
        with_snippet: false,
    };
    match serde_saphyr::from_str_with_options(first, options) {
        Ok(value) => Ok((value, more)),
        Err(e) => Err(DecodeError::Syntax(one_line(&e.to_string()))),
    }
}

/// Parser messages end up in a state list and a log line.
fn one_line(message: &str) -> String {
    let line: String = message.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(300).collect()
}

fn is_marker(line: &str, marker: &str) -> bool {
    line.strip_prefix(marker).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

fn has_content(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with('#') && line != "---" && line != "..."
}

/// Cuts at the marker that ends the first document. A marker at the start of a line is never content in YAML.
fn first_document(text: &str) -> (&str, bool) {
    let (mut started, mut at) = (false, 0);
    for line in text.split_inclusive('\n') {
        let opens = is_marker(line, "---");
        if started && (opens || is_marker(line, "...")) {
            let rest = &text[at..];
            return (&text[..at], rest.lines().any(has_content));
        }
        let line_trimmed = line.trim();
        started |= opens || !(line_trimmed.is_empty() || line_trimmed.starts_with('#') || line.starts_with('%'));
        at += line.len();
    }
    (text, false)
}

/// Whole floats become integers and nulls in text maps empty texts: the way the value would come out of upstream's
/// conversion to JSON.
pub fn normalise(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(float) = number.as_f64().filter(|_| number.is_f64())
                && float.fract() == 0.0
                && float.abs() < EXPONENT_FROM
            {
                let whole = float as i128;
                let whole = i64::try_from(whole).map(Number::from).or_else(|_| u64::try_from(whole).map(Number::from));
                if let Ok(whole) = whole {
                    *number = whole;
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normalise),
        Value::Object(fields) => {
            for (key, field) in fields {
                if TEXT_MAPS.contains(&key.as_str())
                    && let Value::Object(texts) = field
                {
                    texts.values_mut().filter(|t| t.is_null()).for_each(|t| *t = Value::String(String::new()));
                }
                normalise(field);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}
