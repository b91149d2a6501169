//! Markdown has one sentence a line, so that a change of a sentence is a change of a line.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::structure::documents;
use bulkhead_testkit::build::workspace_root;

/// Words that end in a full stop within a sentence.
const ABBREVIATIONS: &[&str] = &["e.g.", "i.e.", "etc.", "cf.", "vs."];

/// The text of a line without code and the targets of links, in which a full stop ends nothing.
fn prose(line: &str) -> String {
    let mut outside = String::new();
    for (index, part) in line.split('`').enumerate() {
        outside.push_str(if index % 2 == 0 { part } else { "code" });
    }
    let mut links = outside.split("](");
    let mut text = links.next().unwrap_or_default().to_owned();
    for rest in links {
        text.push(']');
        text.push_str(rest.split_once(')').map_or("", |(_, after)| after));
    }
    text
}

/// Whether a word ends a sentence; what follows it may be a closing bracket, quotation mark or emphasis.
fn ends(word: &str) -> bool {
    let bare = word.trim_end_matches([')', '"', '\'', '*', '_']);
    bare.ends_with(['.', '!', '?']) && !ABBREVIATIONS.contains(&bare.trim_start_matches('('))
}

/// Whether the line holds the end of a sentence and more behind it. Sentences in brackets stay with their line.
fn holds_two(line: &str) -> bool {
    let text = prose(line);
    let (mut open, mut words) = (0_i32, text.split_whitespace().peekable());
    while let Some(word) = words.next() {
        for c in word.chars() {
            open += i32::from(c == '(') - i32::from(c == ')');
        }
        if words.peek().is_some() && open <= 0 && ends(word) {
            return true;
        }
    }
    false
}

/// What stands before the text of an item of a list, in bytes; `None` if the line begins none.
fn marker(line: &str) -> Option<usize> {
    let text = line.trim_start();
    let number = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let rest = match number.strip_prefix(". ").filter(|_| number.len() < text.len()) {
        Some(rest) => rest,
        None => ["* ", "- ", "+ "].iter().find_map(|bullet| text.strip_prefix(bullet))?,
    };
    Some(line.len() - rest.len())
}

/// Lines that are no running text: headings, tables, what is between lines of backticks, HTML (a comment is one line),
/// definitions of links.
fn is_text(line: &str) -> bool {
    let start = line.trim_start();
    let is_definition = start.starts_with('[') && start.contains("]: ");
    !(start.is_empty() || start.starts_with(['|', '#', '<']) || start == "---" || is_definition)
}

/// The lines that break within a sentence or hold more than one, each with its number.
fn wrong(text: &str) -> Vec<String> {
    let (mut found, mut code, mut before) = (Vec::new(), false, None::<&str>);
    for (index, line) in text.lines().enumerate() {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        if fence || code || !is_text(line) {
            before = None;
            continue;
        }
        let item = marker(line);
        if let (Some(last), None) = (before, item)
            && !prose(last).split_whitespace().next_back().is_some_and(ends)
        {
            found.push(format!("{index}: breaks within a sentence: {last}"));
        }
        let own = &line[item.unwrap_or(0)..];
        if holds_two(own) {
            found.push(format!("{}: more than one sentence: {line}", index + 1));
        }
        before = Some(own);
    }
    found
}

#[test]
fn documents_have_one_sentence_a_line() -> Result<()> {
    let (root, mut all, mut found) = (workspace_root(), Vec::new(), Vec::new());
    documents(&root, &mut all)?;
    ensure!(all.iter().any(|path| path.ends_with(Path::new("docs/operators-guide.md"))), "{all:?}");
    for document in &all {
        let shown = document.strip_prefix(&root).unwrap_or(document).display();
        found.extend(wrong(&std::fs::read_to_string(document)?).into_iter().map(|line| format!("{shown}:{line}")));
    }
    ensure!(found.is_empty(), "{found:#?}");
    Ok(())
}

#[test]
fn sentences_are_told_apart() {
    for fine in [
        "One sentence.\nAnother one.",
        "* an item without a stop\n* another\n  1. a third",
        "A path (`a. b`), a [link](https://a.example/b. c), an abbreviation, e.g. this one.",
        "# A heading. Its second part\ntext follows",
        "```\na\nb. c\n```",
        "| a. b | c |\n|---|---|",
        "What stands (in brackets. Two sentences) stays.",
    ] {
        assert!(wrong(fine).is_empty(), "{fine}: {:?}", wrong(fine));
    }
    for bad in [
        "A line that\nbreaks.",
        "One. Two.",
        "* an item that\n  breaks",
        "* One. kubelet-syncd two.",
        "1. First.\n   Second. Third.",
        "Bold **ends.** Another.",
    ] {
        assert_eq!(wrong(bad).len(), 1, "{bad}: {:?}", wrong(bad));
    }
}
