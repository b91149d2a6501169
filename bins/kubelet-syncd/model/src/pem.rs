//! PEM as Go reads it: what stands between blocks, and headers in them, is left out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";
/// Letters in a line of base64.
const LINE: usize = 64;

/// The contents of all blocks, whatever they are called. One that is damaged is left out.
pub fn blocks(text: &str) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut block: Option<String> = None;
    for line in text.lines().map(str::trim_end) {
        if line.starts_with(BEGIN) && line.ends_with(DASHES) {
            block = Some(String::new());
        } else if line.starts_with(END) {
            let done = block.take().and_then(|base64| STANDARD.decode(base64).ok());
            found.extend(done);
        } else if let Some(base64) = &mut block
            // A header: base64 has no colon.
            && !line.contains(':')
        {
            base64.push_str(line.trim());
        }
    }
    found
}

/// A block with that content.
pub fn block(label: &str, content: &[u8]) -> String {
    let base64 = STANDARD.encode(content);
    let mut text = format!("{BEGIN}{label}{DASHES}\n");
    let mut rest = base64.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at_checked(LINE).unwrap_or((rest, ""));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text + &format!("{END}{label}{DASHES}\n")
}

/// Certificates alone, each in the plainest form, in their order.
pub fn certificates(text: &str) -> String {
    blocks(text).iter().map(|content| block("CERTIFICATE", content)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_stands_between_blocks_is_left_out() {
        let one = block("CERTIFICATE", &[7; 60]);
        let with_headers = "-----BEGIN X509 CRL-----\r\nProc-Type: 4\r\n\r\nAQID\r\n-----END X509 CRL-----\r\n";
        let damaged = "-----BEGIN A-----\n*\n-----END A-----\n";
        let text = format!("subject=x\n{one}between\n{with_headers}{damaged}-----BEGIN B-----\nAQ==");
        assert_eq!(blocks(&text), [vec![7; 60], vec![1, 2, 3]]);
        assert_eq!(certificates(&text), format!("{one}{}", block("CERTIFICATE", &[1, 2, 3])));
        assert!(blocks("").is_empty());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(contents in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..200), 0..5)) {
            let text: String = contents.iter().map(|content| block("CERTIFICATE", content)).collect();
            prop_assert!(text.lines().all(|line| line.len() <= LINE));
            prop_assert_eq!(blocks(&text), contents);
        }

        #[test]
        fn no_text_is_too_much(text in ".{0,300}") {
            let _ = certificates(&text);
        }
    }
}
