//! IP addresses as upstream reads them where it validates nothing more strictly.

use std::net::IpAddr;

/// Reads an address as upstream's `k8s.io/utils/net` ParseIPSloppy does: leading zeros of an octet or a group count for
/// nothing (`01.2.3.004` is `1.2.3.4`, never octal), and an IPv4 address that is mapped into IPv6 is the IPv4 address.
/// None for anything else, blanks and a zone (`fe80::1%eth0`) included.
pub fn parse_sloppy(text: &str) -> Option<IpAddr> {
    let mut plain = String::with_capacity(text.len());
    for piece in text.split_inclusive([':', '.']) {
        let (number, separator) = match piece.strip_suffix([':', '.']) {
            Some(number) => (number, &piece[number.len()..]),
            None => (piece, ""),
        };
        let significant = number.trim_start_matches('0');
        plain.push_str(if significant.is_empty() && !number.is_empty() { "0" } else { significant });
        plain.push_str(separator);
    }
    plain.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn as_upstream_reads_them() {
        let cases = [
            ("1.2.3.4", "1.2.3.4"),
            ("01.2.3.004", "1.2.3.4"),
            ("000.0.00.0", "0.0.0.0"),
            ("00000000010.0.0.255", "10.0.0.255"),
            ("::", "::"),
            ("fd00::1", "fd00::1"),
            ("FD00:0:0::000001", "fd00::1"),
            ("1:2:3:4:5:6:7::", "1:2:3:4:5:6:7:0"),
            ("::ffff:1.2.3.4", "1.2.3.4"),
            ("::ffff:01.2.3.04", "1.2.3.4"),
            ("64:ff9b::1.2.3.4", "64:ff9b::102:304"),
        ];
        for (text, address) in cases {
            assert_eq!(parse_sloppy(text), address.parse().ok(), "{text}");
        }
        let refused = [
            "",
            "1",
            "00",
            "1.2.3",
            "1.2.3.256",
            "1.2.3.4.5",
            "1.2.3.4.",
            ".1.2.3.4",
            "1..2.3",
            "0x1.2.3.4",
            "0+1.2.3.4",
            " 1.2.3.4",
            "1.2.3.4 ",
            "1.2.3.4/8",
            ":::",
            "1::2::3",
            "1:2:3:4:5:6:7",
            "1:2:3:4:5:6:7::8",
            "::10000",
            "fe80::1%eth0",
            "localhost",
        ];
        for text in refused {
            assert_eq!(parse_sloppy(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(address: IpAddr) {
            prop_assert_eq!(parse_sloppy(&address.to_string()), Some(address.to_canonical()));
        }

        #[test]
        fn no_text_panics(text in "[0-9a-f:.%/ é]{0,40}") {
            let _ = parse_sloppy(&text);
        }
    }
}
