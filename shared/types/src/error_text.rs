//! Errors as one line of text: what was being done, and why it failed.

use std::collections::HashSet;
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

/// Errors as upstream's aggregate of them is written (`apimachinery/pkg/util/errors`): each text once, one alone as it is, several as
/// `[a, b]`; None: there is none.
pub fn go_aggregate<T: AsRef<str>>(errors: impl IntoIterator<Item = T>) -> Option<String> {
    let errors: Vec<T> = errors.into_iter().collect();
    let mut seen = HashSet::new();
    let texts: Vec<&str> = errors.iter().map(AsRef::as_ref).filter(|text| seen.insert(*text)).collect();
    match texts.as_slice() {
        [] => None,
        [one] => Some((*one).to_owned()),
        several => Some(format!("[{}]", several.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggregates() {
        let cases: [(&[&str], Option<&str>); 6] = [
            (&[], None),
            (&["a"], Some("a")),
            (&["a", "a"], Some("a")),
            (&["b", "a"], Some("[b, a]")),
            (&["a", "b", "a", "c", "b"], Some("[a, b, c]")),
            (&[""], Some("")),
        ];
        for (errors, text) in cases {
            assert_eq!(go_aggregate(errors).as_deref(), text, "{errors:?}");
        }
        assert_eq!(go_aggregate(["a".to_owned(), "b".to_owned()]).as_deref(), Some("[a, b]"));
    }

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
