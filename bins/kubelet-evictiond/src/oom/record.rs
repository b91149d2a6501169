//! One record of the kernel's log, as a read of `/dev/kmsg` gives it: `6,421,297454065,-;text`, then lines of properties that begin
//! with a space. The kernel has written everything but printable ASCII as `\xNN`, a backslash too. Pure.

/// A record that can be told from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Counts up from the boot on.
    pub sequence: u64,
    /// The kernel's own word: whoever writes to `/dev/kmsg` gets another facility, whichever it names.
    pub by_kernel: bool,
    /// Without properties and the newline; escaped.
    pub text: &'a str,
}

/// `None`: it is no record.
pub fn parse(bytes: &[u8]) -> Option<Record<'_>> {
    let line = bytes.split(|byte| *byte == b'\n').next()?;
    let (head, text) = std::str::from_utf8(line).ok()?.split_once(';')?;
    let mut fields = head.split(',');
    // The level is in the lowest three bits, the facility above them; that of the kernel is 0.
    let priority: u32 = fields.next()?.parse().ok()?;
    let sequence = fields.next()?.parse().ok()?;
    Some(Record { sequence, by_kernel: priority >> 3 == 0, text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn records_of_kernel_and_others() {
        for (bytes, expected) in [
            (&b"6,421,297454065,-;hello; world\n"[..], Some((421, true, "hello; world"))),
            (b"3,422,297454108,-,caller=T10771;killed\n SUBSYSTEM=pci\n DEVICE=+pci:0\n", Some((422, true, "killed"))),
            (b"4,9,1,c;piece\n", Some((9, true, "piece"))),
            // facility user (1), level warning: the least that a write to /dev/kmsg gets.
            (
                b"12,5,1,-;oom-kill:constraint=CONSTRAINT_NONE\n",
                Some((5, false, "oom-kill:constraint=CONSTRAINT_NONE")),
            ),
            (b"30,18446744073709551615,1,-;systemd[1]: x", Some((u64::MAX, false, "systemd[1]: x"))),
            (b"6,7,1,-;\n", Some((7, true, ""))),
            (b"6,7,1,-\n", None),
            (b"6;x\n", None),
            (b"x,7,1,-;x\n", None),
            (b"6,18446744073709551616,1,-;x\n", None),
            (b"-6,7,1,-;x\n", None),
            (b"6,7,1,-;\xff\n", None),
            (b"", None),
        ] {
            let found = parse(bytes).map(|record| (record.sequence, record.by_kernel, record.text));
            assert_eq!(found, expected, "{}", String::from_utf8_lossy(bytes));
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_is_one_line_or_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(record) = parse(&bytes) {
                prop_assert!(!record.text.contains('\n') && record.text.len() <= bytes.len());
            }
        }
    }
}
