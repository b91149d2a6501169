//! A directory as a page of links (Go's `net/http` dirList). Pure.

use std::fmt::Write as _;

use crate::routes::encode_path;

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    pub name: String,
    /// Itself, not what a link leads to.
    pub is_dir: bool,
}

/// The page; names come sorted.
pub fn page(mut names: Vec<Name>) -> String {
    names.sort();
    let mut page = String::from("<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n");
    for Name { name, is_dir } in names {
        let name = if is_dir { format!("{name}/") } else { name };
        let mut link = encode_path(&name);
        // A colon in the first segment would make it a scheme.
        if link.split('/').next().is_some_and(|first| first.contains(':')) {
            link.insert_str(0, "./");
        }
        // Writing to a String cannot fail.
        let _ = writeln!(page, "<a href=\"{}\">{}</a>", html(&link), html(&name));
    }
    page.push_str("</pre>\n");
    page
}

fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_text_and_not_markup() {
        let names = [("pods", true), ("a b?#", false), ("<script>", false), ("x:y", false)];
        let page = page(names.map(|(name, is_dir)| Name { name: name.to_owned(), is_dir }).to_vec());
        assert_eq!(
            page,
            "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n\
             <a href=\"%3Cscript%3E\">&lt;script&gt;</a>\n<a href=\"a%20b%3F%23\">a b?#</a>\n<a href=\"pods/\">pods/</a>\n\
             <a href=\"./x:y\">x:y</a>\n</pre>\n"
        );
    }
}
