//! A manual page from its template in `deploy/man` and the program's own help: the lines `.\" @OPTIONS@` and `.\" @COMMANDS@` are
//! replaced. groff_man(7) says how a page is written.

use anyhow::{Result, bail};

use super::help::{Help, Section};

/// Where the options of the program go.
pub const OPTIONS: &str = ".\\\" @OPTIONS@";
const COMMANDS: &str = ".\\\" @COMMANDS@";

/// The finished page. `asked` holds the help of the program (under the empty name) and of its sub-commands.
///
/// # Errors
/// The template has no place for what the program says of itself.
pub fn page(template: &str, asked: &[(String, Help)]) -> Result<String> {
    let Some((_, main)) = asked.first() else { bail!("no help was given") };
    if main.options().next().is_some() && !template.lines().any(|line| line == OPTIONS) {
        bail!("the template has no line {OPTIONS}");
    }
    if asked.len() > 1 && !template.lines().any(|line| line == COMMANDS) {
        bail!("the template has no line {COMMANDS}");
    }
    let mut out = String::new();
    for line in template.lines() {
        match line {
            OPTIONS => main.sections.iter().filter(|section| is_options(section)).for_each(|section| {
                if section.title != "Options" {
                    out.push_str(&format!(".SS {}\n", escaped(&section.title)));
                }
                entries(&mut out, section);
            }),
            COMMANDS => asked.iter().skip(1).for_each(|(name, help)| command(&mut out, name, main, help)),
            line => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    Ok(out)
}

fn is_options(section: &Section) -> bool {
    section.entries.iter().any(|entry| entry.words.starts_with('-'))
}

fn command(out: &mut String, name: &str, main: &Help, help: &Help) {
    let about = main.sections.iter().flat_map(|section| &section.entries).find(|entry| entry.words == name);
    out.push_str(&format!(".SS {}\n", escaped(&help.usage)));
    out.push_str(&format!("{}.\n", escaped(about.map_or("", |entry| &entry.text).trim_end_matches('.'))));
    let everywhere: Vec<_> = main.options().map(|entry| entry.words.as_str()).collect();
    for section in &help.sections {
        let mut own = section.clone();
        // Options that all sub-commands have are described once.
        own.entries.retain(|entry| !everywhere.contains(&entry.words.as_str()));
        if section.title == "Options" || section.title == "Arguments" {
            entries(out, &own);
        }
    }
}

fn entries(out: &mut String, section: &Section) {
    for entry in &section.entries {
        out.push_str(&format!(".TP\n.B {}\n{}\n", escaped(&entry.words), escaped(&entry.text)));
    }
}

/// Text as roff takes it literally: backslashes, dashes that are no hyphens, and a dot or quote that begins a line.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_take_their_place() {
        let help = Help::parse("X\n\nUsage: x\n\nNode flags:\n      --a-b string\n          .Text\n");
        let asked = [(String::new(), help)];
        let page = page(".TH X 8\n.SH OPTIONS\n.\\\" @OPTIONS@\n.SH FILES\n", &asked).unwrap();
        assert_eq!(page, ".TH X 8\n.SH OPTIONS\n.SS Node flags\n.TP\n.B \\-\\-a\\-b string\n\\&.Text\n.SH FILES\n");
        assert!(super::page(".TH X 8\n", &asked).is_err(), "nothing is left out in silence");
    }
}
