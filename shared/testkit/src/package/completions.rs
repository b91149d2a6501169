//! Completions for a program that does not make its own: its options with what they do, and files behind them.

use super::help::{Entry, Help};

/// For bash: the options, and file names where a value is typed.
pub fn bash(program: &str, help: &Help) -> String {
    let words: Vec<_> = help.options().filter_map(Entry::long).map(|name| format!("--{name}")).collect();
    let function = program.replace('-', "_");
    format!(
        "# bash completion for {program}\n\
         _{function}() {{\n    \
             local word=${{COMP_WORDS[COMP_CWORD]}}\n    \
             if [[ $word == -* && $word != *=* ]]; then\n        \
                 mapfile -t COMPREPLY < <(compgen -W '{}' -- \"$word\")\n    \
             else\n        \
                 mapfile -t COMPREPLY < <(compgen -f -- \"${{word#*=}}\")\n    \
             fi\n\
         }}\n\
         complete -o filenames -F _{function} {program}\n",
        words.join(" ")
    )
}

/// For zsh.
pub fn zsh(program: &str, help: &Help) -> String {
    let mut out = format!("#compdef {program}\n\n_arguments \\\n");
    for entry in help.options() {
        let Some(name) = entry.long() else { continue };
        let text = quoted(&first_sentence(&entry.text)).replace('[', "(").replace(']', ")").replace(':', "\\:");
        let (equals, value) = if entry.takes_value() { ("=", ":value:_files") } else { ("", "") };
        out.push_str(&format!("    '--{name}{equals}[{text}]{value}' \\\n"));
    }
    out.push_str("    && return 0\n");
    out
}

/// For fish.
pub fn fish(program: &str, help: &Help) -> String {
    let mut out = format!("# fish completion for {program}\n");
    for entry in help.options() {
        let Some(name) = entry.long() else { continue };
        let short = entry.short().map(|short| format!(" -s {short}")).unwrap_or_default();
        let value = if entry.takes_value() { " -r" } else { "" };
        let text = first_sentence(&entry.text).replace('\\', "\\\\").replace('\'', "\\'");
        out.push_str(&format!("complete -c {program}{short} -l {name}{value} -d '{text}'\n"));
    }
    out
}

/// Up to the first full stop that ends a sentence, a hint being no place for more.
fn first_sentence(text: &str) -> String {
    text.split_once(". ").map_or(text, |(first, _)| first).trim_end_matches('.').to_owned()
}

/// Within single quotes of a POSIX shell.
fn quoted(text: &str) -> String {
    text.replace('\'', "'\\''")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_shells() {
        let help = Help::parse(
            "X\n\nUsage:\n  x\n\nFlags:\n      --file string\n          A node's [file]. More.\n  -v, --v Level\n          Says.\n",
        );
        assert!(bash("x", &help).contains("compgen -W '--file --v'"));
        assert!(zsh("x", &help).contains(r"'--file=[A node'\''s (file)]:value:_files' \"));
        assert!(fish("x", &help).contains(r"complete -c x -l file -r -d 'A node\'s [file]'"));
        assert!(fish("x", &help).contains("complete -c x -s v -l v -r -d 'Says'"));
    }
}
