//! What passes between processes of different versions: the version before is the one of the newest record of the internal API
//! (`proto/recorded`), and the one after it is one that says more than anybody knows. Pure: messages in, messages out.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Which version a process is of.
pub use crate::versions_schedule::Age;

/// Fields and values that no version has.
const UNKNOWN_NUMBER: u64 = 4_095;
const UNKNOWN_TEXT: u64 = 4_096;
const UNKNOWN_VALUE: u64 = 99;

/// What a field holds, as far as it matters.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Holds {
    Plain,
    Message(String),
}

/// What a released version has.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// By message and number.
    messages: BTreeMap<String, BTreeMap<u64, Holds>>,
    /// By path: what is asked and answered.
    methods: BTreeMap<String, (String, String)>,
}

/// What is done to messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// What the version before does not have goes.
    Cut,
    /// Fields that nobody knows come.
    Add,
}

/// What goes over a connection, by the versions at its ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ends {
    pub of_sender: Age,
    pub of_receiver: Age,
}

impl Ends {
    /// Neither end knows what came since.
    pub fn is_before(self) -> bool {
        self.of_sender == Age::Before || self.of_receiver == Age::Before
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7f).unwrap_or_default() | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap_or_default());
}

fn put_text(bytes: &mut Vec<u8>, field: u64, content: &[u8]) {
    put(bytes, field << 3 | 2);
    put(bytes, content.len() as u64);
    bytes.extend_from_slice(content);
}

fn take<'a>(bytes: &mut &'a [u8], length: u64) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(usize::try_from(length).ok()?)?;
    *bytes = rest;
    Some(taken)
}

impl Record {
    /// The newest one of a workspace.
    ///
    /// # Errors
    /// There is none.
    pub fn newest(workspace: &Path) -> Result<Self> {
        let folder = workspace.join("proto/recorded");
        let mut found: Option<(Vec<u64>, std::path::PathBuf)> = None;
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let version: Option<Vec<u64>> = name.split('.').map(|part| part.parse().ok()).collect();
            let Some(version) = version else { continue };
            if found.as_ref().is_none_or(|(newest, _)| *newest < version) {
                found = Some((version, path));
            }
        }
        let (_, path) = found.context("there is no record of a released version")?;
        Ok(Record::read(&std::fs::read_to_string(&path).with_context(|| path.display().to_string())?))
    }

    /// What `cargo xtask record-api` has written.
    pub fn read(text: &str) -> Self {
        let mut record = Record::default();
        let (mut kind, mut name) = ("", String::new());
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                [head @ ("message" | "service" | "enum"), of] => {
                    (kind, name) = (head, (*of).to_owned());
                    if kind == "message" {
                        record.messages.entry(name.clone()).or_default();
                    }
                }
                ["field", number, _, of, ..] if kind == "message" => {
                    let holds = if of.contains('.') { Holds::Message((*of).to_owned()) } else { Holds::Plain };
                    if let Ok(number) = number.parse() {
                        record.messages.entry(name.clone()).or_default().insert(number, holds);
                    }
                }
                ["method", method, _, asked, _, answered] if kind == "service" => {
                    let types = ((*asked).to_owned(), (*answered).to_owned());
                    record.methods.insert(format!("/{name}/{method}"), types);
                }
                _ => {}
            }
        }
        record
    }

    /// Whether the version before serves it. What is no service of ours is everybody's.
    pub fn has(&self, path: &str) -> bool {
        !path.starts_with("/kubelet.") || self.methods.contains_key(path)
    }

    /// What goes over the wire in place of a message, as the receiver understands it, and what follows it. `is_answer`: and not what is
    /// asked.
    pub fn passes(&self, path: &str, is_answer: bool, message: &[u8], ends: Ends) -> Vec<Vec<u8>> {
        let types = self.methods.get(path);
        let name = types.map_or("", |(asked, answered)| if is_answer { answered } else { asked });
        let how = match ends {
            ends if ends.is_before() => How::Cut,
            Ends { of_sender: Age::After, .. } => How::Add,
            Ends { .. } => return vec![message.to_vec()],
        };
        // What cannot be read is its receiver's to refuse.
        let first = self.rewrite(name, message, how).unwrap_or_else(|| message.to_vec());
        let follows = (how == How::Add && is_answer).then(|| self.unheard_of(path, message)).flatten();
        std::iter::once(first).chain(follows).collect()
    }

    /// Of a stream: a message of a kind that nobody knows.
    fn unheard_of(&self, path: &str, before: &[u8]) -> Option<Vec<u8>> {
        let mut message = Vec::new();
        match path {
            // Where it stands in the stream, and something that is neither a pod nor the end of one.
            "/kubelet.syncd.v1.Pods/Watch" => {
                let mut rest = before;
                let tag = varint(&mut rest)?;
                let cursor = (tag == (1 << 3 | 2)).then(|| varint(&mut rest)).flatten()?;
                put_text(&mut message, 1, take(&mut rest, cursor)?);
                put_text(&mut message, UNKNOWN_TEXT, b"later");
            }
            "/kubelet.volnetd.v1.Watches/Watch" => {
                put(&mut message, 1 << 3);
                put(&mut message, UNKNOWN_VALUE);
                put_text(&mut message, 2, b"later.json");
            }
            _ => return None,
        }
        Some(message)
    }

    /// A message of this name as the version before reads it.
    pub fn cut(&self, name: &str, message: &[u8]) -> Vec<u8> {
        self.rewrite(name, message, How::Cut).unwrap_or_else(|| message.to_vec())
    }

    /// None: it is no message.
    fn rewrite(&self, name: &str, mut bytes: &[u8], how: How) -> Option<Vec<u8>> {
        let fields = self.messages.get(name);
        let mut made = Vec::with_capacity(bytes.len());
        while !bytes.is_empty() {
            let tag = varint(&mut bytes)?;
            let known = fields.and_then(|fields| fields.get(&(tag >> 3)));
            let mut field = Vec::new();
            put(&mut field, tag);
            match tag & 7 {
                0 => put(&mut field, varint(&mut bytes)?),
                1 => field.extend_from_slice(take(&mut bytes, 8)?),
                5 => field.extend_from_slice(take(&mut bytes, 4)?),
                2 => {
                    let length = varint(&mut bytes)?;
                    let content = take(&mut bytes, length)?;
                    match known {
                        Some(Holds::Message(of)) if self.messages.contains_key(of) => {
                            field.clear();
                            put_text(&mut field, tag >> 3, &self.rewrite(of, content, how)?);
                        }
                        _ => {
                            put(&mut field, length);
                            field.extend_from_slice(content);
                        }
                    }
                }
                _ => return None,
            }
            if known.is_some() || how == How::Add || fields.is_none() {
                made.append(&mut field);
            }
        }
        if how == How::Add {
            put(&mut made, UNKNOWN_NUMBER << 3);
            put(&mut made, UNKNOWN_VALUE);
            put_text(&mut made, UNKNOWN_TEXT, b"later");
        }
        Some(made)
    }
}

#[cfg(test)]
#[path = "versions_tests.rs"]
mod tests;
