//! An error as one line of text: what was being done, and why it failed.

use std::error::Error;

/// The error with its causes, each once: layers often repeat the text of the one below.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.ends_with(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Layer>>,
    }

    #[test]
    fn causes_are_named_once() {
        let layer = |text, source: Option<Layer>| Layer { text, source: source.map(Box::new) };
        let inner = || Some(layer("connecting", Some(layer("refused", None))));
        assert_eq!(chain(&layer("asking", inner())), "asking: connecting: refused");
        assert_eq!(chain(&layer("asking: connecting", inner())), "asking: connecting: refused");
        assert_eq!(chain(&layer("alone", None)), "alone");
    }
}
