//! Shapes of names and values (`apimachinery/pkg/util/validation`). Each function returns what is wrong, in upstream's
//! words; an empty list means that the value is fine.

use std::net::IpAddr;

use bulkhead_types::ip::parse_sloppy;
use bulkhead_types::resource_name::is_key_shape;
use bulkhead_types::{is_dns1123_label, is_dns1123_subdomain};

const LABEL_FORM: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN_FORM: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const UNDERSCORE_FORM: &str = r"_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*";
const KEY_FORM: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const KEY_WORDS: &str =
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

fn max_len(length: usize) -> String {
    format!("must be no more than {length} characters")
}

fn form(message: &str, regex: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples.iter().map(|e| format!("'{e}', ")).collect();
    format!("{message} (e.g. {}regex used for validation is '{regex}')", examples.join("or "))
}

pub fn between(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

/// A label of lower-case letters, digits and `-`: container and volume names.
pub fn dns_label(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > 63 {
        wrong.push(max_len(63));
    }
    if !(is_dns1123_label(value) || is_long_label(value)) {
        // The length was reported above, so the shape alone counts here.
        if is_subdomain_shape(value) {
            wrong.push("must not contain dots".to_owned());
        } else {
            wrong.push(form(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
                LABEL_FORM,
                &["my-name", "123-abc"],
            ));
        }
    }
    wrong
}

fn lower(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

fn is_long_label(value: &str) -> bool {
    value.bytes().all(|b| lower(b) || b == b'-')
        && value.bytes().next().is_some_and(lower)
        && value.bytes().last().is_some_and(lower)
}

fn is_subdomain_shape(value: &str) -> bool {
    value.split('.').all(is_long_label)
}

/// Dotted labels: pod, node and most object names.
pub fn dns_subdomain(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > 253 {
        wrong.push(max_len(253));
    }
    if !(is_dns1123_subdomain(value) || is_subdomain_shape(value)) {
        wrong.push(form(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            SUBDOMAIN_FORM,
            &["example.com"],
        ));
    }
    wrong
}

/// As [`dns_subdomain`], with `_` inside and in front: DNS search domains.
pub fn dns_subdomain_with_underscore(value: &str) -> Vec<String> {
    let label = |label: &str| {
        let label = label.strip_prefix('_').unwrap_or(label);
        label.bytes().all(|b| lower(b) || b == b'-' || b == b'_')
            && label.bytes().next().is_some_and(lower)
            && label.bytes().last().is_some_and(lower)
    };
    let mut wrong = Vec::new();
    if value.len() > 253 {
        wrong.push(max_len(253));
    }
    if !value.split('.').all(label) {
        wrong.push(form(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character",
            UNDERSCORE_FORM,
            &["example.com"],
        ));
    }
    wrong
}

/// `[prefix/]name`: keys of labels and annotations, resource names, conditions.
pub fn qualified_name(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let parts: Vec<&str> = value.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                wrong.push("prefix part must be non-empty".to_owned());
            } else {
                wrong.extend(dns_subdomain(prefix).into_iter().map(|m| format!("prefix part {m}")));
            }
            name
        }
        _ => {
            wrong.push(format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                form(KEY_WORDS, KEY_FORM, &["MyName", "my.name", "123-abc"])
            ));
            return wrong;
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        wrong.push(format!("name part {}", max_len(63)));
    }
    if !is_key_shape(name) {
        wrong.push(format!("name part {}", form(KEY_WORDS, KEY_FORM, &["MyName", "my.name", "123-abc"])));
    }
    wrong
}

pub fn label_value(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > 63 {
        wrong.push(max_len(63));
    }
    if !value.is_empty() && !is_key_shape(value) {
        wrong.push(form(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?",
            &["MyValue", "my_value", "12345"],
        ));
    }
    wrong
}

pub fn port_number(port: i64) -> Vec<String> {
    if (1..=65535).contains(&port) { Vec::new() } else { vec![between(1, 65535)] }
}

/// Name of a port (IANA_SVC_NAME).
pub fn port_name(name: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if name.len() > 15 {
        wrong.push(max_len(15));
    }
    if name.is_empty() || !name.bytes().all(|b| lower(b) || b == b'-') {
        wrong.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !name.bytes().any(|b| b.is_ascii_lowercase()) {
        wrong.push("must contain at least one letter (a-z)".to_owned());
    }
    if name.contains("--") {
        wrong.push("must not contain consecutive hyphens".to_owned());
    }
    if name.starts_with('-') || name.ends_with('-') {
        wrong.push("must not begin or end with a hyphen".to_owned());
    }
    wrong
}

/// User and group ids: 0 to 2^31-1.
pub fn numeric_id(id: i64) -> Vec<String> {
    if (0..=i64::from(i32::MAX)).contains(&id) { Vec::new() } else { vec![between(0, i64::from(i32::MAX))] }
}

/// Names of environment variables: printable ASCII without `=`.
pub fn env_name(value: &str) -> Vec<String> {
    if value.is_empty() {
        return vec!["environment variable name must be non-empty".to_owned()];
    }
    if value.bytes().all(|b| (0x20..0x7f).contains(&b) && b != b'=') {
        return Vec::new();
    }
    vec!["a valid environment variable name must consist only of printable ASCII characters other than '='".to_owned()]
}

/// Keys inside configMaps and secrets.
pub fn config_key(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > 253 {
        wrong.push(max_len(253));
    }
    if value.is_empty() || !value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
        wrong.push(form(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    match value {
        "." => wrong.push("must not be '.'".to_owned()),
        ".." => wrong.push("must not be '..'".to_owned()),
        _ if value.starts_with("..") => wrong.push("must not start with '..'".to_owned()),
        _ => {}
    }
    wrong
}

pub fn http_header(name: &str) -> Vec<String> {
    if !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Vec::new();
    }
    vec![form(
        "a valid HTTP header must consist of alphanumeric characters or '-'",
        "[-A-Za-z0-9]+",
        &["X-Header-Name"],
    )]
}

/// An IP address; `strict` (gate StrictIPCIDRValidation): without leading zeros, and no IPv4-mapped IPv6 (upstream
/// `apimachinery/pkg/util/validation/ip.go`, IsValidIPForLegacyField).
pub fn ip_address(value: &str, strict: bool) -> Vec<String> {
    let why = match (value.parse::<IpAddr>(), parse_sloppy(value)) {
        (_, None) => "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        (Err(_), Some(_)) if strict => "must not have leading 0s",
        (Ok(IpAddr::V6(ip)), _) if strict && ip.to_ipv4_mapped().is_some() => "must not be an IPv4-mapped IPv6 address",
        _ => return Vec::new(),
    };
    vec![why.to_owned()]
}

/// `[segment separator]* segment` with `.` or `/` between, at most 253 bytes.
pub fn is_sysctl(name: &str) -> bool {
    name.len() <= 253
        && name.split(['.', '/']).all(|segment| {
            segment.bytes().all(|b| lower(b) || b == b'-' || b == b'_')
                && segment.bytes().next().is_some_and(lower)
                && segment.bytes().last().is_some_and(lower)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        for (value, label, subdomain) in [
            ("a", true, true),
            ("a-b", true, true),
            ("a.b", false, true),
            ("A", false, false),
            ("-a", false, false),
            ("a-", false, false),
            ("", false, false),
            ("a..b", false, false),
            ("0", true, true),
            (&"x".repeat(63), true, true),
            (&"x".repeat(64), false, true),
            (&"x".repeat(254), false, false),
        ] {
            assert_eq!(dns_label(value).is_empty(), label, "label {value:?}");
            assert_eq!(dns_subdomain(value).is_empty(), subdomain, "subdomain {value:?}");
        }
        assert_eq!(dns_label("a.b"), ["must not contain dots"]);
        assert_eq!(dns_label(&"x".repeat(64)), ["must be no more than 63 characters"]);
        assert!(dns_subdomain_with_underscore("_sip._tcp.example").is_empty());
        assert!(!dns_subdomain_with_underscore("a_").is_empty());
        for (value, ok) in [
            ("app", true),
            ("example.com/app", true),
            ("Example.com/app", false),
            ("/app", false),
            ("a/", false),
            ("a/b/c", false),
            ("_a", false),
            ("a_b.c", true),
        ] {
            assert_eq!(qualified_name(value).is_empty(), ok, "qualified {value:?}");
        }
        for (value, ok) in [("", true), ("v1.2_3", true), ("-x", false), ("a b", false)] {
            assert_eq!(label_value(value).is_empty(), ok, "label value {value:?}");
        }
        for (value, ok) in
            [("http", true), ("a--b", false), ("123", false), ("http-metrics-long", false), ("-a", false), ("", false)]
        {
            assert_eq!(port_name(value).is_empty(), ok, "port name {value:?}");
        }
        for (value, ok) in [("A=b", false), ("a b", true), ("1", true), ("ä", false), ("", false), ("\t", false)] {
            assert_eq!(env_name(value).is_empty(), ok, "env {value:?}");
        }
        // (address, whether it is taken in strict form, and otherwise)
        for (value, strict, sloppy) in [
            ("10.0.0.1", true, true),
            ("10.0.0.01", false, true),
            ("::ffff:1.2.3.4", false, true),
            ("::ffff:01.2.3.4", false, true),
            ("::1", true, true),
            ("x", false, false),
            ("10.0.0.256", false, false),
            ("10.0.0.0256", false, false),
            ("10.0.0", false, false),
        ] {
            assert_eq!(ip_address(value, true).is_empty(), strict, "ip {value:?}");
            assert_eq!(ip_address(value, false).is_empty(), sloppy, "ip {value:?}, sloppy");
        }
        assert_eq!(ip_address("010.0.0.1", true), ["must not have leading 0s"]);
        assert_eq!(ip_address("::ffff:1.2.3.4", true), ["must not be an IPv4-mapped IPv6 address"]);
        for (value, ok) in [
            ("kernel.shm_rmid_forced", true),
            ("net/ipv4/tcp_syncookies", true),
            ("a..b", false),
            ("net.", false),
            ("*", false),
        ] {
            assert_eq!(is_sysctl(value), ok, "sysctl {value:?}");
        }
    }
}
