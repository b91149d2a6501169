//! `--node-ip`: one address, or one of each family; an unspecified one alone picks the preferred family.

use std::net::IpAddr;

use bulkhead_types::ip::parse_sloppy;

/// Why the flag is refused; what cannot be parsed at all is skipped with a warning instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("bad --node-ip {value:?}: {why}")]
pub struct NodeIpError {
    value: String,
    why: &'static str,
}

/// What the flag says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeIps {
    /// At most one of each family. `0.0.0.0` or `::` alone means: detect, of this family.
    pub addresses: Vec<IpAddr>,
    /// Entries that are no addresses; upstream logs and ignores them.
    pub ignored: Vec<String>,
}

/// Parses the flag (upstream `component-helpers/node/util/ips.go`).
pub fn parse(value: &str) -> Result<NodeIps, NodeIpError> {
    let refuse = |why| Err(NodeIpError { value: value.to_owned(), why });
    let mut ips = NodeIps::default();
    if value.is_empty() {
        return Ok(ips);
    }
    for entry in value.split(',') {
        let entry = entry.trim();
        match parse_sloppy(entry) {
            Some(address) => ips.addresses.push(address),
            None => ips.ignored.push(entry.to_owned()),
        }
    }
    match ips.addresses.as_slice() {
        [] | [_] => Ok(ips),
        [first, second] if first.is_ipv4() != second.is_ipv4() => {
            if first.is_unspecified() || second.is_unspecified() {
                return refuse("dual-stack node IP cannot include '0.0.0.0' or '::'");
            }
            Ok(ips)
        }
        _ => refuse("must contain either a single IP or a dual-stack pair of IPs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        let good =
            ["", "1.2.3.4", "::1", "0.0.0.0", "::", "1.2.3.4,fd00::1", "fd00::1, 1.2.3.4", "junk", "junk,1.2.3.4"];
        for value in good {
            assert!(parse(value).is_ok(), "{value}");
        }
        let (number, unspecified) = (
            "must contain either a single IP or a dual-stack pair of IPs",
            "dual-stack node IP cannot include '0.0.0.0' or '::'",
        );
        for (value, why) in [
            ("1.1.1.1,2.2.2.2", number),
            ("::1,::2", number),
            ("1.1.1.1,::ffff:2.2.2.2", number),
            ("1.1.1.1,::1,2.2.2.2", number),
            ("0.0.0.0,::1", unspecified),
            ("1.1.1.1,::", unspecified),
        ] {
            assert_eq!(parse(value).unwrap_err().to_string(), format!("bad --node-ip {value:?}: {why}"));
        }
        assert_eq!(parse(" junk ,1.2.3.4").unwrap().ignored, ["junk"]);
        assert_eq!(parse("01.2.3.004").unwrap().addresses, [IpAddr::from([1, 2, 3, 4])]);
        assert_eq!(parse("fd00::1,1.2.3.4").unwrap().addresses.len(), 2);
    }
}
