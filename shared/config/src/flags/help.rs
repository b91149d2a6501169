//! `--help`: every flag under its heading, with type, default and deprecation.

use std::fmt::Write;

use super::{Flag, Group, IgnoredType, Set, all};

const WIDTH: usize = 100;
const INDENT: &str = "          ";

const INTRO: &str = "\
The node agent of Kubernetes, as four small processes with only the privileges that each needs.

`kubelet` takes the command line and the configuration file of the Kubernetes kubelet, works out the effective
configuration, and starts and supervises kubelet-volnetd, kubelet-syncd, kubelet-evictiond and kubelet-statusd, which
it finds beside its own executable or in ../libexec/bulkhead from there. Flags win over drop-in files, those over the
configuration file, that over defaults.
";

impl Flag {
    fn type_name(&self) -> &'static str {
        match self.set {
            Set::Bool(_) | Set::OptBool(_) | Set::Ignored(IgnoredType::Bool) => "",
            Set::I32(_) | Set::OptI32(_) => "int32",
            Set::I64(_) | Set::OptI64(_) => "int64",
            Set::Ignored(IgnoredType::Int) => "int",
            Set::Text(_) | Set::OptText(_) | Set::Path(_) | Set::Ignored(IgnoredType::Text) => "string",
            Set::Ip(_) => "ip",
            Set::Span(_) | Set::OptSpan(_) | Set::Ignored(IgnoredType::Span) => "duration",
            Set::Strings(_) => "strings",
            Set::Map(_) | Set::MapOrKeys(_) | Set::MapLess(_) | Set::MapOnePair(_) => "mapStringString",
            Set::Custom("version", _) => "version[=true]",
            Set::Custom(name, _) => name,
        }
    }

    fn is_text(&self) -> bool {
        matches!(self.set, Set::Text(_) | Set::OptText(_) | Set::Path(_) | Set::Ignored(IgnoredType::Text))
    }
}

/// The whole help text.
pub fn help() -> String {
    let mut out = String::from(INTRO);
    out.push_str("\nUsage:\n  kubelet [flags]\n");
    let groups = [
        (Group::Node, "Node flags (not in the configuration file)"),
        (Group::Configuration, "Configuration flags (fields of the configuration file)"),
        (Group::Logging, "Logging flags"),
        (Group::Global, "Global flags"),
    ];
    for (group, title) in groups {
        let _ = write!(out, "\n{title}:\n");
        for flag in all().filter(|flag| flag.group == group) {
            write_flag(&mut out, flag);
        }
    }
    out
}

fn write_flag(out: &mut String, flag: &Flag) {
    let short = flag.short.map_or_else(|| "    ".to_owned(), |short| format!("-{short}, "));
    let line = format!("  {short}--{} {}", flag.name, flag.type_name());
    let _ = writeln!(out, "{}", line.trim_end());
    let mut text = format!("{}.", flag.usage);
    if flag.name == "feature-gates" {
        text.pop();
        text.push(':');
    }
    if !flag.default.is_empty() {
        let quote = if flag.is_text() { "\"" } else { "" };
        let _ = write!(text, " (default {quote}{}{quote})", flag.default);
    }
    if let Some(deprecation) = flag.deprecated {
        let _ = write!(text, " (DEPRECATED: {})", deprecation.text());
    }
    wrap(out, &text);
    if flag.name == "feature-gates" {
        for line in crate::gates::help_lines() {
            let _ = writeln!(out, "{INDENT}{line}");
        }
    }
}

fn wrap(out: &mut String, text: &str) {
    let mut column = 0;
    for word in text.split(' ') {
        if column > 0 && column + 1 + word.len() > WIDTH {
            out.push('\n');
            column = 0;
        }
        if column == 0 {
            out.push_str(INDENT);
            column = INDENT.len();
        } else {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += word.len();
    }
    out.push('\n');
}
