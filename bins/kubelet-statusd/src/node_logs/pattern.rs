//! Whether the pattern of a log query is a regular expression (upstream checks it by Go's `regexp/syntax`, and journalctl reads it by
//! PCRE2). Both take more than the parser here does: what they read as plain characters is marked as such before it is checked.

/// Why it is none.
pub(super) fn problem(pattern: &str) -> Option<String> {
    let problem = regex_syntax::Parser::new().parse(&in_full(pattern)).err()?;
    // The first line of the library's text draws the expression; the reason stands alone in its kind.
    let kind = match problem {
        regex_syntax::Error::Parse(error) => error.kind().to_string(),
        regex_syntax::Error::Translate(error) => error.kind().to_string(),
        other => other.to_string(),
    };
    Some(format!("error parsing regexp: {kind}"))
}

/// The same expression, with a backslash before each character that stands for itself there and would mean something else here.
fn in_full(pattern: &str) -> String {
    let name_end = pattern.rfind(":]").map(|end| pattern.len() - end);
    let mut full = InFull { text: String::with_capacity(pattern.len()), rest: pattern, name_end };
    while let Some(next) = full.rest.chars().next() {
        match next {
            '\\' if full.rest.starts_with("\\Q") => full.quoted(),
            '\\' => full.escape(),
            '[' => full.class(),
            '{' if !is_repeat(full.rest) => full.mark(next),
            _ => full.copy(next.len_utf8()),
        }
    }
    full.text
}

/// `{n}`, `{n,}` or `{n,m}`; other braces stand for themselves.
fn is_repeat(text: &str) -> bool {
    let number = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let least = number(&text[1..]);
    let after = &text[1 + least..];
    let after = after.strip_prefix(',').map_or(after, |most| &most[number(most)..]);
    least > 0 && after.starts_with('}')
}

struct InFull<'a> {
    text: String,
    rest: &'a str,
    /// How far before the end the last `:]` begins: it is looked for once, so that many brackets do not each read to the end.
    name_end: Option<usize>,
}

impl InFull<'_> {
    fn copy(&mut self, bytes: usize) {
        let (copied, rest) = self.rest.split_at(bytes);
        self.text.push_str(copied);
        self.rest = rest;
    }

    /// One character, which stands for itself.
    fn mark(&mut self, next: char) {
        self.text.push('\\');
        self.copy(next.len_utf8());
    }

    /// `\Q...\E`, or to the end.
    fn quoted(&mut self) {
        let inner = &self.rest["\\Q".len()..];
        let (plain, rest) = inner.split_once("\\E").unwrap_or((inner, ""));
        regex_syntax::escape_into(plain, &mut self.text);
        self.rest = rest;
    }

    /// A backslash and what belongs to it; braces of `\x{41}` and `\p{Greek}` are no repeats.
    fn escape(&mut self) {
        self.copy(1);
        let Some(escaped) = self.rest.chars().next() else { return };
        self.copy(escaped.len_utf8());
        if matches!(escaped, 'x' | 'p' | 'P') && self.rest.starts_with('{') {
            self.copy(1);
        }
    }

    /// `[...]`. There is no class inside of a class but `[:name:]`, and no operators.
    fn class(&mut self) {
        self.copy(1);
        if self.rest.starts_with('^') {
            self.copy(1);
        }
        if self.rest.starts_with(']') {
            self.mark(']');
        }
        while let Some(next) = self.rest.chars().next() {
            match next {
                ']' => return self.copy(1),
                '\\' => self.escape(),
                '[' => match self.name_of_class() {
                    Some(bytes) => self.copy(bytes),
                    None => self.mark(next),
                },
                '&' | '~' => self.mark(next),
                // The second of two, which ends a range.
                '-' if self.text.ends_with('-') && !self.text.ends_with("\\-") => self.mark(next),
                _ => self.copy(next.len_utf8()),
            }
        }
    }

    /// Bytes of the `[:name:]` that comes next.
    fn name_of_class(&self) -> Option<usize> {
        let inner = self.rest.strip_prefix("[:")?;
        self.name_end.filter(|end| *end <= inner.len())?;
        Some("[:".len() + inner.find(":]")? + ":]".len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_go_and_pcre2_take_is_taken() {
        for pattern in [
            "",
            "(?i)fail|error",
            "{\"level\":\"error\"",
            "{\"level\":\"error\"}",
            "map[a-z]{x",
            "a{2,3}b{4}c{5,}",
            "a{2,",
            "a{,3}",
            "{}",
            "a{b}{2}",
            "[[]",
            "[^[]{2}",
            "[]a]",
            "[^]a]",
            "[[:alpha:][]",
            "[[:]",
            "[{]",
            "[a&&b~~c]",
            "[+--]",
            "[--a]",
            "[\\--a]",
            "\\Q{[(\\E+",
            "\\Q*",
            "\\{",
            "\\x{41}{2}",
            "[\\x{41}[]",
            "\\p{Greek}{x",
            "\\b{foo}",
            "]}",
            "ü{",
        ] {
            assert_eq!(problem(pattern), None, "{pattern}");
        }
    }

    #[test]
    fn what_is_broken_is_refused() {
        for pattern in [
            "(",
            ")",
            "[a",
            "[",
            "[^",
            "[^]",
            "[]",
            "[[:alpha:]",
            "[[:[:digit:]]",
            "a{3,2}",
            "*",
            "{2}",
            "\\",
            "\\E",
            "[\\Qa]",
            "\\x{zz}",
            "[b-a]",
            "[a--b]",
            "\\Q\\E*",
        ] {
            let problem = problem(pattern);
            assert!(problem.is_some_and(|text| text.starts_with("error parsing regexp: ")), "{pattern}");
        }
    }

    #[test]
    fn what_means_the_same_stays() {
        for pattern in ["(?i)a+?[^b-d[:alpha:]\\]\\d]{2,3}$", "\\x{41}\\p{Greek}\\pN[\\x{41}-]", "^\\Aü.*\\z"] {
            assert_eq!(in_full(pattern), pattern);
        }
        assert_eq!(in_full("a{b[[&-]{1}\\Q.{\\E"), "a\\{b[\\[\\&-]{1}\\.\\{");
    }

    #[test]
    fn brackets_and_braces_are_read_once() {
        for pattern in [
            "[".repeat(100_000),
            "{1".repeat(50_000),
            "[[:".repeat(30_000),
            "\\x{".repeat(30_000),
            "[a]".repeat(30_000),
        ] {
            assert!(in_full(&pattern).len() <= 2 * pattern.len());
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics(pattern in "[\\[\\]{}\\\\QExp:a^&~,0-9-]{0,20}", any in "\\PC{0,30}") {
            problem(&any);
            problem(&pattern);
        }
    }
}
