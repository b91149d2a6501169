//! Where answers go: a table for a person, JSON or YAML for a program, remarks to the side.

use std::io::Write;

use serde::Serialize;

use crate::Failure;

/// `-o`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Table,
    Json,
    Yaml,
}

impl Format {
    /// clap has checked the text.
    pub(crate) fn of(text: &str) -> Self {
        match text {
            "json" => Format::Json,
            "yaml" => Format::Yaml,
            _ => Format::Table,
        }
    }
}

/// Prints one command's answer.
pub(crate) struct Printer<'a> {
    pub(crate) format: Format,
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
}

impl<'a> Printer<'a> {
    pub(crate) fn new(format: Format, out: &'a mut dyn Write, err: &'a mut dyn Write) -> Self {
        Printer { format, out, err }
    }

    /// Prints the value, or the table that shows it.
    pub(crate) fn print(&mut self, value: &impl Serialize, table: impl FnOnce() -> String) -> Result<(), Failure> {
        let text = match self.format {
            Format::Table => table(),
            Format::Json => {
                let problem = |error: serde_json::Error| Failure::Encode { format: "JSON", problem: error.to_string() };
                serde_json::to_string_pretty(value).map_err(problem)? + "\n"
            }
            Format::Yaml => {
                // Through JSON values: one set of names and one meaning of "absent" for both formats.
                let problem = |problem: String| Failure::Encode { format: "YAML", problem };
                let value = serde_json::to_value(value).map_err(|error| problem(error.to_string()))?;
                let mut text = serde_saphyr::to_string(&value).map_err(|error| problem(error.to_string()))?;
                if !text.ends_with('\n') {
                    text.push('\n');
                }
                text
            }
        };
        self.text(&text)
    }

    /// One of many values: a line of JSON, a YAML document.
    pub(crate) fn stream(&mut self, value: &impl Serialize, row: impl FnOnce() -> String) -> Result<(), Failure> {
        match self.format {
            Format::Json => {
                let problem = |error: serde_json::Error| Failure::Encode { format: "JSON", problem: error.to_string() };
                let line = serde_json::to_string(value).map_err(problem)? + "\n";
                self.text(&line)
            }
            Format::Yaml => {
                self.text("---\n")?;
                self.print(value, row)
            }
            Format::Table => self.print(value, row),
        }
    }

    pub(crate) fn text(&mut self, text: &str) -> Result<(), Failure> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()?;
        Ok(())
    }

    /// A remark beside the answer.
    pub(crate) fn note(&mut self, text: &str) {
        // Nobody reads remarks from a closed terminal.
        let _ = writeln!(self.err, "{text}");
    }
}
