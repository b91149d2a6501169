//! The form of a record on the disk: one line for each promise, so that what a release added can be read from a diff.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};

use super::{Api, Enum, Field, Message, Method, Record, Reserved};

const HEAD: &str = "# The internal API of a released version. Written by `cargo xtask record-api`, compared by\n\
                    # tests/tests/files/compatibility.rs;\n\
                    # never changed afterwards: peers of this version are out there.\n";

impl Record {
    /// The file's contents.
    pub fn to_text(&self) -> String {
        let mut text = format!("{HEAD}version {}\nrevision {}\n", self.version, self.revision);
        for (name, message) in &self.api.messages {
            line(&mut text, format_args!("message {name}"));
            for (number, field) in &message.fields {
                let Field { name, kind, cardinality, json, oneof } = field;
                let oneof = oneof.as_ref().map(|oneof| format!(" oneof={oneof}")).unwrap_or_default();
                line(&mut text, format_args!("  field {number} {name} {kind} {cardinality} json={json}{oneof}"));
            }
            reserved_lines(&mut text, &message.reserved);
        }
        for (name, described) in &self.api.enums {
            line(&mut text, format_args!("enum {name}"));
            let mut values: Vec<_> = described.values.iter().map(|(name, number)| (number, name)).collect();
            values.sort();
            for (number, name) in values {
                line(&mut text, format_args!("  value {number} {name}"));
            }
            reserved_lines(&mut text, &described.reserved);
        }
        for (name, methods) in &self.api.services {
            line(&mut text, format_args!("service {name}"));
            for (name, method) in methods {
                let many = |streams| if streams { "stream" } else { "one" };
                let (sent, answered) = (many(method.input_streams), many(method.output_streams));
                let Method { input, output, .. } = method;
                line(&mut text, format_args!("  method {name} {sent} {input} {answered} {output}"));
            }
        }
        text
    }

    /// # Errors
    /// A line that is none of ours, or no version or revision.
    pub fn from_text(text: &str) -> Result<Self> {
        let mut record = Record { version: String::new(), revision: String::new(), api: Api::default() };
        let mut inside = Inside::Nothing;
        for (index, raw) in text.lines().enumerate() {
            if raw.starts_with('#') || raw.trim().is_empty() {
                continue;
            }
            read_line(&mut record, &mut inside, raw).with_context(|| format!("line {}: {raw:?}", index + 1))?;
        }
        ensure!(!record.version.is_empty() && !record.revision.is_empty(), "no version or no revision");
        Ok(record)
    }
}

/// What the indented lines belong to.
enum Inside {
    Nothing,
    Message(String),
    Enum(String),
    Service(String),
}

fn read_line(record: &mut Record, inside: &mut Inside, raw: &str) -> Result<()> {
    let words: Vec<&str> = raw.split_whitespace().collect();
    let api = &mut record.api;
    match (words.as_slice(), &*inside) {
        (["version", version], Inside::Nothing) => record.version = (*version).to_owned(),
        (["revision", revision], Inside::Nothing) => record.revision = (*revision).to_owned(),
        (["message", name], _) => {
            api.messages.insert((*name).to_owned(), Message::default());
            *inside = Inside::Message((*name).to_owned());
        }
        (["enum", name], _) => {
            api.enums.insert((*name).to_owned(), Enum::default());
            *inside = Inside::Enum((*name).to_owned());
        }
        (["service", name], _) => {
            api.services.insert((*name).to_owned(), std::collections::BTreeMap::new());
            *inside = Inside::Service((*name).to_owned());
        }
        (["field", number, name, kind, cardinality, rest @ ..], Inside::Message(message)) => {
            let named = |prefix| rest.iter().find_map(|word| word.strip_prefix(prefix)).map(str::to_owned);
            let field = Field {
                name: (*name).to_owned(),
                kind: (*kind).to_owned(),
                cardinality: (*cardinality).to_owned(),
                json: named("json=").context("no JSON name")?,
                oneof: named("oneof="),
            };
            let message = api.messages.get_mut(message).context("no message")?;
            ensure!(message.fields.insert(number.parse()?, field).is_none(), "this number stands twice");
        }
        (["value", number, name], Inside::Enum(within)) => {
            let described = api.enums.get_mut(within).context("no enum")?;
            described.values.insert((*name).to_owned(), number.parse()?);
        }
        (["method", name, sent, input, answered, output], Inside::Service(service)) => {
            let method = Method {
                input: (*input).to_owned(),
                input_streams: *sent == "stream",
                output: (*output).to_owned(),
                output_streams: *answered == "stream",
            };
            api.services.get_mut(service).context("no service")?.insert((*name).to_owned(), method);
        }
        (["reserved", first, last], within) => {
            reserved_of(api, within)?.ranges.insert((first.parse()?, last.parse()?));
        }
        (["reserved-name", name], within) => {
            reserved_of(api, within)?.names.insert((*name).to_owned());
        }
        _ => bail!("not understood here"),
    }
    Ok(())
}

fn reserved_of<'a>(api: &'a mut Api, inside: &Inside) -> Result<&'a mut Reserved> {
    match inside {
        Inside::Message(name) => api.messages.get_mut(name).map(|message| &mut message.reserved),
        Inside::Enum(name) => api.enums.get_mut(name).map(|described| &mut described.reserved),
        Inside::Nothing | Inside::Service(_) => None,
    }
    .context("nothing is reserved here")
}

fn reserved_lines(text: &mut String, reserved: &Reserved) {
    for (first, last) in &reserved.ranges {
        line(text, format_args!("  reserved {first} {last}"));
    }
    for name in &reserved.names {
        line(text, format_args!("  reserved-name {name}"));
    }
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{line}");
}
