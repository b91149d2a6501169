//! Variables in a container's command, arguments, environment and subPaths.

/// With its variables put in the text would be longer than it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too long with its variables put in")]
pub struct TooLong;

/// `$(NAME)` becomes its value, or stays when there is none; `$$` is one `$`
/// (upstream `third_party/forked/golang/expansion`).
///
/// # Errors
/// [`TooLong`] as soon as there are more than `max` bytes: a few bytes of text can name a long value many times.
pub fn expand<'a>(
    text: &str,
    max: usize,
    mut value_of: impl FnMut(&str) -> Option<&'a [u8]>,
) -> Result<Vec<u8>, TooLong> {
    let mut out = Bounded { bytes: Vec::with_capacity(text.len().min(max)), max };
    let mut rest = text;
    // What closes no reference here closes none further on: it is looked for once.
    let mut closes = true;
    while let Some(at) = rest.find('$') {
        out.put(&rest.as_bytes()[..at])?;
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.put(b"$")?;
            rest = after;
            continue;
        }
        let reference = rest.strip_prefix('(').filter(|_| closes).map(|inner| inner.split_once(')'));
        closes &= reference != Some(None);
        let Some((name, after)) = reference.flatten() else {
            out.put(b"$")?;
            continue;
        };
        match value_of(name) {
            Some(value) => out.put(value)?,
            None => [&b"$("[..], name.as_bytes(), b")"].into_iter().try_for_each(|part| out.put(part))?,
        }
        rest = after;
    }
    out.put(rest.as_bytes())?;
    Ok(out.bytes)
}

struct Bounded {
    bytes: Vec<u8>,
    max: usize,
}

impl Bounded {
    fn put(&mut self, more: &[u8]) -> Result<(), TooLong> {
        if more.len() > self.max - self.bytes.len() {
            return Err(TooLong);
        }
        self.bytes.extend_from_slice(more);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_kept() {
        let value_of = |name: &str| (name == "A").then_some(&b"12345"[..]);
        let of = |text: &str, max: usize| expand(text, max, value_of).map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(of("a$(A)b$(A)", 12), Ok("a12345b12345".to_owned()));
        for text in ["a$(A)b$(A)", "0123456789ab", "$(A)$(A)$$$$", "$(NO)$(NO)xy", "0123456789$("] {
            let max = if text == "a$(A)b$(A)" { 12 } else { of(text, 100).unwrap().len() };
            assert!(of(text, max).is_ok() && of(text, max - 1) == Err(TooLong), "{text}");
        }
        // Eight levels of twenty would be 10^10 times the first.
        let mut value = vec![b'x'; 100];
        let mut levels = 0;
        while let Ok(next) = expand(&"$(V)".repeat(20), 1 << 20, |_| Some(&value)) {
            value = next;
            levels += 1;
        }
        assert_eq!((levels, value.len()), (3, 800_000));
    }

    #[test]
    fn references_that_nothing_closes_stay() {
        for text in ["$(", "$($($(", "$(A)$(A", "$(A)$($$("] {
            let expected = text.replace("$$", "$").replace("$(A)", "x");
            let value_of = |name: &str| (name == "A").then_some(&b"x"[..]);
            assert_eq!(expand(text, 100, value_of), Ok(expected.into_bytes()), "{text}");
        }
        let many = "$(".repeat(500_000);
        assert_eq!(expand(&many, many.len(), |_| None), Ok(many.clone().into_bytes()));
    }
}
