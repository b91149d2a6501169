//! The command line: one table drives parsing and `--help`; the rules are those of Go's pflag.
//!
//! `--flag=value` and `--flag value`; a bare boolean means true and takes no next word; `_` equals `-` in names; the
//! first occurrence of a list or map replaces what was there, later ones add.

mod config_table;
mod help;
mod show;
mod table;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use bulkhead_types::GoDuration;

use crate::defaults::flag_defaults;
use crate::kubelet::{KubeletConfiguration, TextMap};
use crate::kubelet_flags::KubeletFlags;
use crate::path_text;

pub use help::help;
pub use show::effective;

/// Everything that flags set.
#[derive(Debug, Clone)]
pub struct Settings {
    pub help: bool,
    pub version: VersionRequest,
    pub flags: KubeletFlags,
    pub kubelet: KubeletConfiguration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            help: false,
            version: VersionRequest::None,
            flags: KubeletFlags::default(),
            kubelet: flag_defaults(),
        }
    }
}

/// What `--version` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionRequest {
    None,
    Short,
    Raw,
    /// Report this one from now on.
    Report(String),
}

/// Heading in `--help`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    Node,
    Configuration,
    Logging,
    Global,
}

/// Why a flag should no longer be used.
#[derive(Debug, Clone, Copy)]
enum Deprecation {
    UseConfigFile,
    Because(&'static str),
}

impl Deprecation {
    fn text(self) -> &'static str {
        match self {
            Deprecation::UseConfigFile => "set it in the file given with --config instead",
            Deprecation::Because(why) => why,
        }
    }
}

/// Type of a flag that is read, checked and then used by nothing.
#[derive(Debug, Clone, Copy)]
enum IgnoredType {
    Bool,
    Int,
    Span,
    Text,
}

type Place<T> = fn(&mut Settings) -> &mut T;
type Parse = fn(&mut Settings, &str, bool) -> Result<(), String>;

/// Type of a flag and where its value goes.
#[derive(Debug, Clone, Copy)]
enum Set {
    Bool(Place<bool>),
    OptBool(Place<Option<bool>>),
    I32(Place<i32>),
    OptI32(Place<Option<i32>>),
    I64(Place<i64>),
    OptI64(Place<Option<i64>>),
    Text(Place<String>),
    OptText(Place<Option<String>>),
    /// An absolute one is cleaned: upstream cleans it or joins it to others, which does so, wherever it uses it.
    Path(Place<PathBuf>),
    Ip(Place<String>),
    Span(Place<GoDuration>),
    OptSpan(Place<Option<GoDuration>>),
    Strings(Place<Vec<String>>),
    Map(Place<TextMap>),
    /// A key alone has the empty value (upstream `cliflag.ConfigurationMap`).
    MapOrKeys(Place<TextMap>),
    /// Pairs with `<` between signal and value.
    MapLess(Place<TextMap>),
    /// One pair for each occurrence: commas belong to the value.
    MapOnePair(Place<TextMap>),
    Custom(&'static str, Parse),
    Ignored(IgnoredType),
}

/// One flag.
#[derive(Debug, Clone, Copy)]
struct Flag {
    name: &'static str,
    short: Option<char>,
    set: Set,
    /// As `--help` shows it; empty for a zero value.
    default: &'static str,
    usage: &'static str,
    group: Group,
    deprecated: Option<Deprecation>,
}

impl Flag {
    const fn because_ignored(mut self) -> Self {
        self.deprecated = Some(Deprecation::Because("it never did anything for the node agent and will be removed"));
        self
    }

    /// Value of the bare flag; None: a value must follow.
    fn bare(&self) -> Option<&'static str> {
        match self.set {
            Set::Bool(_) | Set::OptBool(_) | Set::Ignored(IgnoredType::Bool) => Some("true"),
            Set::Custom("version", _) => Some("true"),
            _ => None,
        }
    }

    fn apply(&self, settings: &mut Settings, text: &str, first: bool) -> Result<(), String> {
        let span = |text: &str| GoDuration::parse(text).map_err(|error| error.to_string());
        let small = |text: &str| values::integer(text, 32).map(|value| value as i32);
        match self.set {
            Set::Bool(place) => *place(settings) = values::boolean(text)?,
            Set::OptBool(place) => *place(settings) = Some(values::boolean(text)?),
            Set::I32(place) => *place(settings) = small(text)?,
            Set::OptI32(place) => *place(settings) = Some(small(text)?),
            Set::I64(place) => *place(settings) = values::integer(text, 64)?,
            Set::OptI64(place) => *place(settings) = Some(values::integer(text, 64)?),
            Set::Text(place) => text.clone_into(place(settings)),
            Set::OptText(place) => *place(settings) = Some(text.to_owned()),
            Set::Path(place) if text.starts_with('/') => *place(settings) = PathBuf::from(path_text::clean(text)),
            Set::Path(place) => *place(settings) = PathBuf::from(text),
            Set::Ip(place) => {
                if !text.is_empty() && bulkhead_types::ip::parse_sloppy(text).is_none() {
                    return Err(format!("{text:?} is not a valid IP address"));
                }
                // An empty one sets nothing (upstream `pkg/util/flag` IPVar).
                if !text.is_empty() {
                    text.clone_into(place(settings));
                }
            }
            Set::Span(place) => *place(settings) = span(text)?,
            Set::OptSpan(place) => *place(settings) = Some(span(text)?),
            Set::Strings(place) => {
                let list = values::strings(text)?;
                if first {
                    *place(settings) = list;
                } else {
                    place(settings).extend(list);
                }
            }
            Set::Map(place) => extend(place(settings), values::pairs(text, '=', true)?, first),
            Set::MapOrKeys(place) => extend(place(settings), values::pairs_or_keys(text), first),
            Set::MapLess(place) => extend(place(settings), values::pairs(text, '<', true)?, first),
            Set::MapOnePair(place) => extend(place(settings), values::pairs(text, '=', false)?, first),
            Set::Custom(_, parse) => parse(settings, text, first)?,
            Set::Ignored(kind) => {
                match kind {
                    IgnoredType::Bool => drop(values::boolean(text)?),
                    IgnoredType::Int => drop(values::integer(text, 64)?),
                    IgnoredType::Span => drop(span(text)?),
                    IgnoredType::Text => {}
                }
                settings.flags.cadvisor.insert(self.name.to_owned(), text.to_owned());
            }
        }
        Ok(())
    }
}

fn extend(map: &mut BTreeMap<String, String>, pairs: Vec<(String, String)>, first: bool) {
    if first {
        map.clear();
    }
    map.extend(pairs);
}

fn all() -> impl Iterator<Item = &'static Flag> {
    table::FLAGS.iter().chain(config_table::FLAGS)
}

/// Why the command line is refused; texts are pflag's and upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    #[error("failed to parse kubelet flag: unknown flag: --{0}")]
    Unknown(String),
    #[error("failed to parse kubelet flag: unknown shorthand flag: '{short}' in -{group}")]
    UnknownShort { short: char, group: String },
    #[error("failed to parse kubelet flag: flag needs an argument: {0}")]
    NeedsArgument(String),
    #[error("failed to parse kubelet flag: bad flag syntax: {0}")]
    Syntax(String),
    #[error("failed to parse kubelet flag: invalid argument {value:?} for \"{flag}\" flag: {why}")]
    Invalid { value: String, flag: String, why: String },
    #[error("unknown command {0}")]
    Positional(String),
}

/// Applies the words of a command line (without the program's name) to `settings`. Gives the deprecation lines.
///
/// # Errors
/// The first mistake, as upstream.
pub fn parse(words: &[String], settings: &mut Settings) -> Result<Vec<String>, FlagError> {
    let mut seen = BTreeSet::new();
    let mut notes = Vec::new();
    let mut positional = None;
    let mut set = |flag: &'static Flag, value: &str| {
        let first = seen.insert(flag.name);
        if let Some(deprecation) = flag.deprecated {
            notes.push(format!("Flag --{} has been deprecated, {}", flag.name, deprecation.text()));
        }
        flag.apply(settings, value, first).map_err(|why| {
            let shown =
                flag.short.map_or_else(|| format!("--{}", flag.name), |short| format!("-{short}, --{}", flag.name));
            // A header may be a secret.
            let value = if flag.name == "manifest-url-header" { "(masked)" } else { value };
            FlagError::Invalid { value: value.to_owned(), flag: shown, why }
        })
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == "--" {
            positional = positional.or_else(|| words.next().cloned());
            break;
        }
        if let Some(body) = word.strip_prefix("--") {
            let (name, value) = body.split_once('=').map_or((body, None), |(name, value)| (name, Some(value)));
            if name.is_empty() || name.starts_with('-') {
                return Err(FlagError::Syntax(word.clone()));
            }
            let name = name.replace('_', "-");
            let flag = all().find(|flag| flag.name == name).ok_or(FlagError::Unknown(name))?;
            match value.or(flag.bare()) {
                Some(value) => set(flag, value)?,
                None => {
                    let value = words.next().ok_or_else(|| FlagError::NeedsArgument(word.clone()))?;
                    set(flag, value)?;
                }
            }
        } else if let Some(group) = word.strip_prefix('-').filter(|group| !group.is_empty()) {
            let mut rest = group;
            while let Some(short) = rest.chars().next() {
                rest = &rest[short.len_utf8()..];
                let flag = all()
                    .find(|flag| flag.short == Some(short))
                    .ok_or_else(|| FlagError::UnknownShort { short, group: group.to_owned() })?;
                if let Some(value) = rest.strip_prefix('=') {
                    set(flag, value)?;
                    break;
                }
                if let Some(bare) = flag.bare() {
                    set(flag, bare)?;
                    continue;
                }
                if rest.is_empty() {
                    let missing = || FlagError::NeedsArgument(format!("'{short}' in -{group}"));
                    set(flag, words.next().ok_or_else(missing)?)?;
                } else {
                    set(flag, rest)?;
                }
                break;
            }
        } else if positional.is_none() {
            positional = Some(word.clone());
        }
    }
    match positional {
        Some(word) => Err(FlagError::Positional(word)),
        None => Ok(notes),
    }
}

#[cfg(test)]
mod tests;
