//! The table of fields behind [`crate::encode`], in `core_v1.txt`; what its marks mean stands at its head.

use std::collections::HashMap;
use std::sync::LazyLock;

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Text,
    Bool,
    /// int32 and int64 look alike on the wire.
    Int,
    /// RFC 3339 in JSON; seconds alone on the wire.
    Time,
    /// A text in JSON, and in a message of its own on the wire.
    Quantity,
    IntOrString,
    /// Any JSON, of which the text is on the wire.
    Fields,
    /// By its place in [`Schema::messages`].
    Message(usize),
}

/// When a field is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    WhereSet,
    /// Also where nothing is set: no pointer in upstream's struct.
    Always,
    /// The same, of a message whose fields stand in JSON beside those of the one that has it.
    Inlined,
    Repeated,
    /// Entries by key.
    Map,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    pub number: u32,
    /// In JSON.
    pub name: &'static str,
    pub kind: Kind,
    pub rule: Rule,
}

/// A message's name, and its fields by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub name: &'static str,
    pub fields: Vec<Field>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Schema {
    pub messages: Vec<Message>,
}

/// The whole table. The first message is Pod.
pub fn core_v1() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(|| parse(include_str!("core_v1.txt")).unwrap_or_default());
    &SCHEMA
}

/// # Errors
/// The line, or what is missing, and why.
fn parse(text: &'static str) -> Result<Schema, String> {
    let lines = || text.lines().filter(|line| !line.starts_with('#'));
    let names: HashMap<&str, usize> =
        lines().filter(|line| !line.starts_with(' ')).enumerate().map(|(place, name)| (name, place)).collect();
    let mut messages: Vec<Message> = Vec::new();
    for line in lines() {
        let Some(fields) = line.strip_prefix("    ") else {
            messages.push(Message { name: line, fields: Vec::new() });
            continue;
        };
        let message = messages.last_mut().ok_or("a field before the first message")?;
        for field in fields.split(',').map(str::trim).filter(|field| !field.is_empty()) {
            let field = parse_field(field, &names).ok_or_else(|| format!("{}: {field}", message.name))?;
            message.fields.push(field);
        }
    }
    Ok(Schema { messages })
}

fn parse_field(text: &'static str, names: &HashMap<&str, usize>) -> Option<Field> {
    let mut words = text.split(' ');
    let (number, name, kind) = (words.next()?.parse().ok()?, words.next()?, words.next()?);
    let bare = kind.trim_end_matches(['!', '*', '%', '^']);
    let rule = match &kind[bare.len()..] {
        "" => Rule::WhereSet,
        "!" => Rule::Always,
        "^" => Rule::Inlined,
        "*" => Rule::Repeated,
        "%" => Rule::Map,
        _ => return None,
    };
    let kind = match bare {
        "string" => Kind::Text,
        "bool" => Kind::Bool,
        "int" => Kind::Int,
        "Time" => Kind::Time,
        "Quantity" => Kind::Quantity,
        "IntOrString" => Kind::IntOrString,
        "FieldsV1" => Kind::Fields,
        message => Kind::Message(*names.get(message)?),
    };
    Some(Field { number, name, kind, rule })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_can_be_read_and_hangs_together() {
        let schema = parse(include_str!("core_v1.txt")).unwrap();
        assert_eq!(schema.messages[0].name, "Pod");
        assert_eq!(&schema, core_v1());
        let mut reached = vec![false; schema.messages.len()];
        reached[0] = true;
        for (place, message) in schema.messages.iter().enumerate() {
            assert!(reached[place], "{} is reached from none before it", message.name);
            assert!(message.fields.is_sorted_by(|a, b| a.number < b.number), "{}", message.name);
            for field in &message.fields {
                if let Kind::Message(inner) = field.kind {
                    reached[inner] = true;
                }
            }
        }
    }

    #[test]
    fn what_is_no_table() {
        for text in ["    1 a string", "M\n    1 a", "M\n    x a string", "M\n    1 a Nothing", "M\n    1 a string!!"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
