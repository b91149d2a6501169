//! The identity of a span as it travels: W3C Trace Context level 1, `00-<trace id>-<span id>-<flags>`.

use std::fmt;

/// Which trace, which span of it, and whether it is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    pub trace: [u8; 16],
    pub span: [u8; 8],
    pub sampled: bool,
}

impl TraceParent {
    /// Reads the header. `None` for what is not one: such a header counts as absent.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let [version] = bytes::<1>(version)?;
        // A later version may have more parts; version 0 has none, and 255 is no version.
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let (trace, span, [flags]) = (bytes::<16>(trace)?, bytes::<8>(span)?, bytes::<1>(flags)?);
        let some = trace.iter().any(|byte| *byte != 0) && span.iter().any(|byte| *byte != 0);
        some.then_some(TraceParent { trace, span, sampled: flags & 1 == 1 })
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("00-")?;
        self.trace.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("-")?;
        self.span.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "-{:02x}", u8::from(self.sampled))
    }
}

/// Exactly `N` bytes of lower-case hex.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != N * 2 {
        return None;
    }
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(out)
}

fn digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn headers() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent = TraceParent::parse(text).expect("the example of the specification");
        assert_eq!((parent.to_string().as_str(), parent.sampled), (text, true));
        assert!(TraceParent::parse("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-more").is_some());
        for wrong in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333-01",
        ] {
            assert_eq!(TraceParent::parse(wrong), None, "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(trace in any::<[u8; 16]>(), span in any::<[u8; 8]>(), sampled in any::<bool>()) {
            prop_assume!(trace != [0; 16] && span != [0; 8]);
            let parent = TraceParent { trace, span, sampled };
            prop_assert_eq!(TraceParent::parse(&parent.to_string()), Some(parent));
        }

        #[test]
        fn nothing_panics(text in any::<String>()) {
            let _ = TraceParent::parse(&text);
        }
    }
}
