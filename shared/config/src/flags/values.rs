//! Texts of flag values into values, by the rules of Go's pflag and strconv, error texts included.

use std::collections::BTreeMap;

use bulkhead_types::Quantity;
use bulkhead_types::resource_name::is_memory;

use super::{Settings, VersionRequest};
use crate::kubelet::{MemoryReservation, Taint, VModuleItem};
use crate::kubelet_flags::{check_label_value, check_qualified_name};

/// strconv.ParseBool.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(format!("strconv.ParseBool: parsing {text:?}: invalid syntax")),
    }
}

/// strconv.ParseInt with base 0: 0x, 0o, 0b prefixes, legacy octal, underscores between digits.
pub(super) fn integer(text: &str, bits: u32) -> Result<i64, String> {
    let syntax = || format!("strconv.ParseInt: parsing {text:?}: invalid syntax");
    let (negative, unsigned) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = unsigned.to_ascii_lowercase();
    let (radix, digits, prefixed) = if let Some(rest) = lower.strip_prefix("0x") {
        (16, rest, true)
    } else if let Some(rest) = lower.strip_prefix("0b") {
        (2, rest, true)
    } else if let Some(rest) = lower.strip_prefix("0o") {
        (8, rest, true)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, &lower[1..], true)
    } else {
        (10, lower.as_str(), false)
    };
    let misplaced = digits.ends_with('_') || digits.contains("__") || (digits.starts_with('_') && !prefixed);
    let plain = digits.replace('_', "");
    if plain.is_empty() || misplaced || !plain.chars().all(|c| c.is_digit(radix)) {
        return Err(syntax());
    }
    let magnitude = i128::from_str_radix(&plain, radix).unwrap_or(i128::MAX);
    let value = if negative { -magnitude } else { magnitude };
    let (min, max) = (-(1_i128 << (bits - 1)), (1_i128 << (bits - 1)) - 1);
    if value < min || value > max {
        return Err(format!("strconv.ParseInt: parsing {text:?}: value out of range"));
    }
    i64::try_from(value).map_err(|_| syntax())
}

/// One CSV record, as pflag's string slices take it; the empty text is the empty list.
pub(super) fn strings(text: &str) -> Result<Vec<String>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut fields = Vec::new();
    let mut rest = text;
    loop {
        if let Some(quoted) = rest.strip_prefix('"') {
            let mut field = String::new();
            let mut chars = quoted.char_indices();
            let end = loop {
                match chars.next() {
                    None => return Err("parse error on line 1: extraneous or missing \" in quoted-field".to_owned()),
                    Some((at, '"')) if quoted[at + 1..].starts_with('"') => {
                        field.push('"');
                        chars.next();
                    }
                    Some((at, '"')) => break at + 1,
                    Some((_, c)) => field.push(c),
                }
            };
            fields.push(field);
            match quoted[end..].strip_prefix(',') {
                Some(after) => rest = after,
                None if end == quoted.len() => return Ok(fields),
                None => return Err("parse error on line 1: extraneous or missing \" in quoted-field".to_owned()),
            }
            continue;
        }
        let (field, after) = rest.split_once(',').map_or((rest, None), |(field, after)| (field, Some(after)));
        if field.contains('"') {
            return Err("parse error on line 1: bare \" in non-quoted-field".to_owned());
        }
        fields.push(field.to_owned());
        match after {
            Some(after) => rest = after,
            None => return Ok(fields),
        }
    }
}

/// `k=v,k2=v2` (or another separator): blanks trimmed, empty segments skipped.
pub(super) fn pairs(text: &str, separator: char, split: bool) -> Result<Vec<(String, String)>, String> {
    let segments: Vec<&str> = if split { text.split(',').collect() } else { vec![text] };
    let pair = |segment: &str| {
        let (key, value) = segment
            .split_once(separator)
            .ok_or_else(|| format!("malformed pair {segment:?}, expect string{separator}string"))?;
        Ok((key.trim().to_owned(), value.trim().to_owned()))
    };
    segments.into_iter().filter(|segment| !segment.is_empty()).map(pair).collect()
}

/// The same of `k=v` and of keys alone, whose values are empty.
pub(super) fn pairs_or_keys(text: &str) -> Vec<(String, String)> {
    let segments = text.split(',').filter(|segment| !segment.is_empty());
    let pair = |segment: &str| {
        let (key, value) = segment.split_once('=').unwrap_or((segment, ""));
        (key.trim().to_owned(), value.trim().to_owned())
    };
    segments.map(pair).collect()
}

pub(super) fn feature_gates(settings: &mut Settings, text: &str, first: bool) -> Result<(), String> {
    if first {
        settings.kubelet.feature_gates.clear();
    }
    for (name, value) in pairs(text, '=', true).map_err(|error| error.replace("=string", "=bool"))? {
        let value = boolean(&value).map_err(|error| format!("invalid value of {name}: {value}, err: {error}"))?;
        settings.kubelet.feature_gates.insert(name, value);
    }
    Ok(())
}

pub(super) fn headers(settings: &mut Settings, text: &str, first: bool) -> Result<(), String> {
    let headers = &mut settings.kubelet.static_pod_url_header;
    if first {
        headers.clear();
    }
    // The message must not repeat the text: a header may be a secret.
    let pairs = pairs(text, ':', true).map_err(|_| "malformed pair, expect string:string".to_owned())?;
    for (name, value) in pairs {
        headers.entry(name).or_default().push(value);
    }
    Ok(())
}

pub(super) fn taints(settings: &mut Settings, text: &str, _first: bool) -> Result<(), String> {
    let mut taints: Vec<Taint> = Vec::new();
    for spec in text.split(',').filter(|_| !text.is_empty()) {
        // A removal is checked, and nothing is there to be removed (upstream `pkg/util/taints` ParseTaints).
        if let Some(removed) = spec.strip_suffix('-') {
            taint(removed)?;
            continue;
        }
        let taint = taint(spec)?;
        if taint.effect.is_empty() {
            return Err(format!("invalid taint spec: {spec}"));
        }
        if taints.iter().any(|earlier| (&earlier.key, &earlier.effect) == (&taint.key, &taint.effect)) {
            return Err(format!("duplicated taints with the same key and effect: {}:{}", taint.key, taint.effect));
        }
        taints.push(taint);
    }
    settings.kubelet.register_with_taints = taints;
    Ok(())
}

/// `key=value:Effect`, `key:Effect`, or `key` alone, whose effect is empty.
fn taint(text: &str) -> Result<Taint, String> {
    let invalid = || format!("invalid taint spec: {text}");
    let (key, value, effect) = match text.split_once(':') {
        None => (text, "", ""),
        Some((_, effect)) if effect.contains(':') => return Err(invalid()),
        Some((_, effect)) if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") => {
            return Err(format!("invalid taint effect: {effect}, unsupported taint effect"));
        }
        Some((pair, effect)) => {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if value.contains('=') {
                return Err(invalid());
            }
            (key, value, effect)
        }
    };
    check_label_value(value).map_err(|why| format!("{}, {why}", invalid()))?;
    check_qualified_name(key).map_err(|why| format!("{}, {why}", invalid()))?;
    Ok(Taint { key: key.to_owned(), value: value.to_owned(), effect: effect.to_owned(), time_added: None })
}

pub(super) fn reserved_memory(settings: &mut Settings, text: &str, first: bool) -> Result<(), String> {
    let list = &mut settings.kubelet.reserved_memory;
    if first {
        list.clear();
    }
    for node in text.split(';').filter(|_| !text.is_empty()) {
        let (number, limits_text) = match node.split_once(':') {
            Some((number, limits)) if !limits.is_empty() && !limits.contains(':') => (number, limits),
            _ => {
                return Err(format!(
                    "the reserved memory has incorrect format, expected numaNodeID:type=quantity[,type=quantity...], got {node}"
                ));
            }
        };
        let numa_node: i32 = number
            .parse()
            .map_err(|_| format!("failed to convert the NUMA node ID, expected integer, got {number}"))?;
        let mut limits = BTreeMap::new();
        for limit in limits_text.split(',') {
            let (kind, amount) =
                limit.split_once('=').filter(|(_, amount)| !amount.contains('=')).ok_or_else(|| {
                    format!("the reserved limit has incorrect value, expected type=quantity, got {limit}")
                })?;
            if !is_memory(kind) {
                return Err(format!("memory type conversion error, unknown type: {kind:?}"));
            }
            let amount = Quantity::parse(amount)
                .map_err(|_| format!("failed to parse the quantity, expected quantity, got {amount}"))?;
            limits.insert(kind.to_owned(), amount);
        }
        list.push(MemoryReservation { numa_node, limits });
    }
    Ok(())
}

fn level(text: &str) -> Result<u32, String> {
    let value = text.parse::<u32>().ok().filter(|value| i32::try_from(*value).is_ok());
    value.ok_or_else(|| format!("strconv.ParseUint: parsing {text:?}: must be a whole number from 0 to 2147483647"))
}

pub(super) fn verbosity(settings: &mut Settings, text: &str, _first: bool) -> Result<(), String> {
    settings.kubelet.logging.verbosity = level(text)?;
    Ok(())
}

pub(super) fn vmodule(settings: &mut Settings, text: &str, first: bool) -> Result<(), String> {
    let list = &mut settings.kubelet.logging.vmodule;
    if first {
        list.clear();
    }
    for item in text.split(',').filter(|item| !item.is_empty()) {
        let (pattern, number) = item
            .split_once('=')
            .filter(|(pattern, number)| !pattern.is_empty() && !number.is_empty() && !number.contains('='))
            .ok_or_else(|| format!("{item:?} does not have the pattern=N format"))?;
        let verbosity = level(number).map_err(|error| format!("parsing verbosity in {item:?}: {error}"))?;
        list.push(VModuleItem { file_pattern: pattern.to_owned(), verbosity });
    }
    Ok(())
}

fn quantity(text: &str) -> Result<Quantity, String> {
    Quantity::parse(text).map_err(|error| error.to_string())
}

pub(super) fn text_buffer(settings: &mut Settings, text: &str, _first: bool) -> Result<(), String> {
    settings.kubelet.logging.options.text.info_buffer_size = quantity(text)?;
    Ok(())
}

pub(super) fn json_buffer(settings: &mut Settings, text: &str, _first: bool) -> Result<(), String> {
    settings.kubelet.logging.options.json.info_buffer_size = quantity(text)?;
    Ok(())
}

pub(super) fn version(settings: &mut Settings, text: &str, _first: bool) -> Result<(), String> {
    settings.version = if text == "raw" {
        VersionRequest::Raw
    } else if text.starts_with('v') {
        let base = crate::version::KUBERNETES;
        let rest = text.strip_prefix(base).filter(|rest| rest.is_empty() || rest.starts_with(['-', '+']));
        if rest.is_none() {
            return Err(format!("version must match major/minor/patch of default version {base:?}"));
        }
        VersionRequest::Report(text.to_owned())
    } else if boolean(text)? {
        VersionRequest::Short
    } else {
        VersionRequest::None
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn integers() {
        for (text, value) in [
            ("7", 7),
            ("-7", -7),
            ("+7", 7),
            ("0x1F", 31),
            ("0b101", 5),
            ("0o17", 15),
            ("017", 15),
            ("1_000", 1000),
            ("0", 0),
            ("0x_1", 1),
        ] {
            assert_eq!(integer(text, 32), Ok(value), "{text}");
        }
        for text in ["", "x", "1.5", "1e3", "--1", "0x", "1__0", "_1", "1_", "08", " 1"] {
            assert!(integer(text, 32).unwrap_err().ends_with("invalid syntax"), "{text}");
        }
        assert_eq!(
            integer("2147483648", 32).unwrap_err(),
            "strconv.ParseInt: parsing \"2147483648\": value out of range"
        );
        assert_eq!(integer("-9223372036854775808", 64), Ok(i64::MIN));
        assert!(integer("9223372036854775808", 64).is_err());
    }

    #[test]
    fn csv() {
        let list = |text: &str| strings(text).map(|fields| fields.join("|"));
        assert_eq!(list("").as_deref(), Ok(""));
        assert_eq!(list("a,b,,c").as_deref(), Ok("a|b||c"));
        assert_eq!(list("\"a,b\",c").as_deref(), Ok("a,b|c"));
        assert_eq!(list("\"a\"\"b\"").as_deref(), Ok("a\"b"));
        assert!(list("a\"b").is_err() && list("\"a").is_err() && list("\"a\"b").is_err());
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "\\PC{0,40}") {
            let mut settings = Settings::default();
            let _ = (boolean(&text), integer(&text, 32), strings(&text), pairs(&text, '=', true));
            for parse in [feature_gates, headers, taints, reserved_memory, verbosity, vmodule, text_buffer, version] {
                let _ = parse(&mut settings, &text, true);
            }
        }

        #[test]
        fn integers_round_trip(value: i64) {
            prop_assert_eq!(integer(&value.to_string(), 64), Ok(value));
        }
    }
}
