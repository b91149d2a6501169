//! What `--help` says, taken apart: the programs' own words are the one place where options are described, and manual
//! pages and completions follow from them.

/// An option or a sub-command with what it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// As printed: `-o, --output <FORMAT>`, `--config string`, `pods`.
    pub words: String,
    pub text: String,
}

impl Entry {
    /// The long name without dashes, where this is an option.
    pub fn long(&self) -> Option<&str> {
        let name = self.words.split([' ', ',', '=', '[']).find_map(|word| word.strip_prefix("--"))?;
        Some(name)
    }

    /// The one letter.
    pub fn short(&self) -> Option<char> {
        let rest = self.words.strip_prefix('-').filter(|rest| !rest.starts_with('-'))?;
        rest.chars().next()
    }

    /// Whether a value follows.
    pub fn takes_value(&self) -> bool {
        // An optional value (`--version version[=true]`) has to stand behind an equals sign: nothing follows it.
        self.long()
            .and_then(|long| self.words.split_once(long))
            .is_some_and(|(_, rest)| !rest.trim().is_empty() && !rest.contains("[="))
    }
}

/// One heading with what is below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    pub title: String,
    pub entries: Vec<Entry>,
    /// Lines that are no entries.
    pub prose: Vec<String>,
}

/// The help of one program or sub-command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Help {
    pub usage: String,
    pub sections: Vec<Section>,
    /// Lines before the first heading.
    pub intro: Vec<String>,
}

impl Help {
    /// Takes a text apart. A heading stands at the margin and ends with a colon; an entry begins with a dash, or is a word
    /// of the section `Commands`; what is further in goes on with it.
    pub fn parse(text: &str) -> Self {
        let mut help = Self::default();
        for line in text.lines() {
            let trimmed = line.trim();
            let indent = line.len() - line.trim_start().len();
            if let Some(usage) = line.strip_prefix("Usage: ") {
                help.usage = usage.to_owned();
            } else if indent == 0 && trimmed.ends_with(':') {
                let title = trimmed.trim_end_matches(':').to_owned();
                help.sections.push(Section { title, entries: Vec::new(), prose: Vec::new() });
            } else if indent == 0 && !trimmed.is_empty() && !help.sections.is_empty() {
                // Text at the margin ends a section: what follows is said of the whole.
                help.sections.push(Section {
                    title: String::new(),
                    entries: Vec::new(),
                    prose: vec![trimmed.to_owned()],
                });
            } else if trimmed.starts_with('-') && indent <= 8 {
                help.entry(trimmed);
            } else {
                match help.sections.last_mut() {
                    Some(section) if section.title == "Usage" && help.usage.is_empty() => {
                        help.usage = trimmed.to_owned();
                    }
                    Some(section) if section.title == "Commands" && indent == 2 => {
                        let (words, text) = split(trimmed);
                        section.entries.push(Entry { words, text });
                    }
                    Some(section) => match section.entries.last_mut() {
                        Some(entry) if !trimmed.is_empty() => {
                            let gap = if entry.text.is_empty() { "" } else { " " };
                            entry.text.push_str(gap);
                            entry.text.push_str(trimmed);
                        }
                        Some(_) => {}
                        None => section.prose.push(trimmed.to_owned()),
                    },
                    None => help.intro.push(trimmed.to_owned()),
                }
            }
        }
        help.sections
            .retain(|section| !section.entries.is_empty() || section.prose.iter().any(|line| !line.is_empty()));
        help
    }

    fn entry(&mut self, trimmed: &str) {
        let (words, text) = split(trimmed);
        let entry = Entry { words, text };
        match self.sections.last_mut() {
            Some(section) if section.title != "Usage" && !section.title.is_empty() => section.entries.push(entry),
            // Options under no heading of their own, or right after the usage.
            _ => self.sections.push(Section { title: "Options".to_owned(), entries: vec![entry], prose: Vec::new() }),
        }
    }

    /// All options.
    pub fn options(&self) -> impl Iterator<Item = &Entry> {
        self.sections.iter().flat_map(|section| &section.entries).filter(|entry| entry.words.starts_with('-'))
    }

    /// Names of the sub-commands.
    pub fn commands(&self) -> Vec<String> {
        let sections = self.sections.iter().filter(|section| section.title == "Commands");
        sections.flat_map(|section| &section.entries).map(|entry| entry.words.clone()).collect()
    }
}

/// Two blanks part the words from what they mean.
fn split(line: &str) -> (String, String) {
    match line.split_once("  ") {
        Some((words, text)) => (words.trim().to_owned(), text.trim().to_owned()),
        None => (line.to_owned(), String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_clap_program() {
        let help = Help::parse(
            "Looks into a node\n\nUsage: ctl [OPTIONS] <COMMAND>\n\nCommands:\n  pods  Lists pods [alias: ps]\n  pod   Shows one\n\n\
             Options:\n  -o, --output <FORMAT>  How to print [default: table]\n      --run-dir <DIR>    Folder\n  -h, --help             Print help\n\n\
             Exit codes: 0 done\n\nExamples:\n  ctl pods    all\n",
        );
        assert_eq!(help.usage, "ctl [OPTIONS] <COMMAND>");
        assert_eq!(help.commands(), ["pods", "pod"]);
        let options: Vec<_> = help.options().map(|entry| (entry.short(), entry.long(), entry.takes_value())).collect();
        assert_eq!(
            options,
            [(Some('o'), Some("output"), true), (None, Some("run-dir"), true), (Some('h'), Some("help"), false)]
        );
        let titles: Vec<_> = help.sections.iter().map(|section| section.title.as_str()).collect();
        assert_eq!(titles, ["Commands", "Options", "", "Examples"]);
    }

    #[test]
    fn the_words_of_the_kubelet() {
        let help = Help::parse(
            "The agent.\n\nUsage:\n  kubelet [flags]\n\nNode flags (x):\n      --config string\n          A file\n          of two lines.\n\
             \x20     --enable-server\n          On. (default true)\n  -v, --v Level\n          More.\n      --version version[=true]\n          Prints.\n",
        );
        assert_eq!(help.usage, "kubelet [flags]");
        let options: Vec<_> = help.options().collect();
        assert_eq!(options[0].text, "A file of two lines.");
        assert!(options[0].takes_value() && !options[1].takes_value() && !options[3].takes_value());
        assert_eq!((options[2].short(), options[2].long()), (Some('v'), Some("v")));
        assert!(options[2].takes_value());
    }
}
