//! Variables from files that another container of the pod wrote into an emptyDir (`fileKeyRef`): what such a file says
//! (upstream `pkg/kubelet/util/env`), and what came of reading it. volnetd reads it: nobody else opens what a pod writes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use k8s_openapi::api::core::v1::FileKeySelector;
use kubelet_model::v1::Container;

use super::argument_list::ARGUMENT_LIST_MAX;
use kubelet_model::validation::field::quote;

/// The longest line, its end included (upstream reads by Go's `bufio.Scanner`).
const MAX_LINE: usize = 64 * 1024;

/// Why a variable has no value; upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvFileError {
    #[error("cannot find the volume {} referenced by FileKeyRef", quote(.0))]
    NoVolume(String),
    /// What is wrong with the file is in the log: it could tell about the host's files.
    #[error("couldn't parse env file")]
    Unusable,
    #[error("environment variable key {} not found in file {}", quote(.key), quote(&.file.to_string_lossy()))]
    NoKey { key: String, file: PathBuf },
    /// They would all be in one environment.
    #[error("argument list too long: the values in env files have more than {ARGUMENT_LIST_MAX} bytes")]
    TooLong,
    /// Nobody has answered: nothing is known to be wrong with the pod.
    #[error("{0}")]
    Away(String),
}

/// What a file said a moment ago of the variables that are wanted of it.
#[derive(Clone, PartialEq, Eq)]
pub struct EnvFile {
    /// Its name on the host.
    path: PathBuf,
    values: BTreeMap<String, Result<Option<Vec<u8>>, SyntaxError>>,
}

impl EnvFile {
    /// Reads it once, whatever number of variables is wanted. The first of each name counts, and what stands after it is not looked at.
    pub fn read(path: PathBuf, bytes: &[u8], wanted: &BTreeSet<String>) -> Self {
        let mut values = BTreeMap::new();
        let mut variables = Variables { lines: Lines { rest: bytes, number: 0 } };
        while values.len() < wanted.len() {
            let end = match variables.next() {
                Ok(Some((name, value))) => {
                    if let Some(name) = str::from_utf8(name).ok().and_then(|name| wanted.get(name)) {
                        values.entry(name.clone()).or_insert(Ok(Some(value)));
                    }
                    continue;
                }
                Ok(None) => Ok(None),
                Err(error) => Err(error),
            };
            for name in wanted {
                values.entry(name.clone()).or_insert_with(|| end.clone());
            }
        }
        EnvFile { path, values }
    }

    /// Bytes of the values.
    pub fn size(&self) -> usize {
        self.values.values().flatten().flatten().map(Vec::len).sum()
    }
}

impl std::fmt::Debug for EnvFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnvFile").field("path", &self.path).field("variables", &self.values.keys()).finish()
    }
}

/// Volume and path in it.
pub type EnvFileName = (String, String);

/// What came of reading each file that an environment names.
pub type EnvFiles = BTreeMap<EnvFileName, Result<EnvFile, EnvFileError>>;

/// The files that a container's environment names, each once, and the variables that it wants of each.
pub fn wanted(container: &Container) -> BTreeMap<EnvFileName, BTreeSet<String>> {
    let computed = container.env.iter().flatten().filter(|v| v.value.as_deref().unwrap_or("").is_empty());
    let mut wanted: BTreeMap<EnvFileName, BTreeSet<String>> = BTreeMap::new();
    for selector in computed.filter_map(|v| v.value_from.as_ref()?.file_key_ref.as_ref()) {
        wanted.entry(name_of(selector)).or_default().insert(selector.key.clone());
    }
    wanted
}

fn name_of(selector: &FileKeySelector) -> EnvFileName {
    (selector.volume_name.clone(), selector.path.clone())
}

/// The variable's value; `None` where it is optional and not in the file. As upstream has it, a value without a
/// character counts as none, and a file that is not there is an error even for what is optional.
pub fn value<'a>(files: &'a EnvFiles, selector: &FileKeySelector) -> Result<Option<&'a [u8]>, EnvFileError> {
    let not_read = || EnvFileError::Away(format!("the file {:?} has not been read", selector.path));
    let file = match files.get(&name_of(selector)) {
        Some(Ok(file)) => file,
        Some(Err(error)) => return Err(error.clone()),
        None => return Err(not_read()),
    };
    let value = file.values.get(&selector.key).ok_or_else(not_read)?.as_ref().map_err(|error| {
        tracing::info!(file = %file.path.display(), %error, "failed to use file of environment variables");
        EnvFileError::Unusable
    })?;
    match value {
        Some(value) if !value.is_empty() => Ok(Some(value)),
        _ if selector.optional == Some(true) => Ok(None),
        _ => Err(EnvFileError::NoKey { key: selector.key.clone(), file: file.path.clone() }),
    }
}

/// Why a file is no list of variables. Lines are counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    #[error("invalid environment variable format at line {0}: missing '='")]
    NoEquals(usize),
    #[error("invalid environment variable format at line {0}: empty variable name")]
    NoName(usize),
    #[error("invalid environment variable format at line {0}: whitespace before '=' is not allowed")]
    SpaceBeforeEquals(usize),
    #[error("invalid environment variable format at line {0}: value must be enclosed in single quotes")]
    NotQuoted(usize),
    #[error("invalid environment variable format at line {0}: unexpected content after closing quote")]
    AfterQuote(usize),
    #[error("invalid environment variable format starting at line {0}: unclosed single quote")]
    Unclosed(usize),
    #[error("line {0} is longer than {MAX_LINE} bytes")]
    LongLine(usize),
}

/// A variable's name and value.
type Variable<'a> = (&'a [u8], Vec<u8>);

/// The variables of a file, one after another.
///
/// A subset of the shell's syntax: `NAME='value'`, where the value may go over lines and nothing in it is special;
/// blank lines and comments between; `NAME= 'value'` is empty.
struct Variables<'a> {
    lines: Lines<'a>,
}

impl<'a> Variables<'a> {
    fn next(&mut self) -> Result<Option<Variable<'a>>, SyntaxError> {
        let line = loop {
            let Some(line) = self.lines.next()? else { return Ok(None) };
            let line = trim_start(line);
            if !line.is_empty() && !line.starts_with(b"#") {
                break line;
            }
        };
        let at = self.lines.number;
        let equals = line.iter().position(|b| *b == b'=').ok_or(SyntaxError::NoEquals(at))?;
        let (name, value) = (&line[..equals], &line[equals + 1..]);
        match name.last() {
            None => return Err(SyntaxError::NoName(at)),
            Some(b' ' | b'\t') => return Err(SyntaxError::SpaceBeforeEquals(at)),
            Some(_) => {}
        }
        if value.starts_with(b" ") || value.starts_with(b"\t") {
            return Ok(Some((name, Vec::new())));
        }
        let Some(mut rest) = value.strip_prefix(b"'") else { return Err(SyntaxError::NotQuoted(at)) };
        let mut whole = Vec::new();
        loop {
            if let Some(end) = rest.iter().position(|b| *b == b'\'') {
                whole.extend_from_slice(&rest[..end]);
                let after = trim_start(&rest[end + 1..]);
                if !after.is_empty() && !after.starts_with(b"#") {
                    return Err(SyntaxError::AfterQuote(self.lines.number));
                }
                return Ok(Some((name, whole)));
            }
            whole.extend_from_slice(rest);
            whole.push(b'\n');
            rest = self.lines.next()?.ok_or(SyntaxError::Unclosed(at))?;
        }
    }
}

fn trim_start(mut line: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = line {
        line = rest;
    }
    line
}

/// Lines without their ends, `\n` or `\r\n`.
struct Lines<'a> {
    rest: &'a [u8],
    /// Of the line that was given last.
    number: usize,
}

impl<'a> Lines<'a> {
    fn next(&mut self) -> Result<Option<&'a [u8]>, SyntaxError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        let end = self.rest.iter().position(|b| *b == b'\n');
        let line = &self.rest[..end.unwrap_or(self.rest.len())];
        if line.len() >= MAX_LINE {
            return Err(SyntaxError::LongLine(self.number));
        }
        self.rest = end.map_or(&[], |end| &self.rest[end + 1..]);
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str, key: &str) -> Result<Option<String>, String> {
        let file = EnvFile::read(PathBuf::new(), text.as_bytes(), &[key.to_owned()].into());
        let value = file.values[key].clone().map_err(|error| error.to_string())?;
        Ok(value.map(|bytes| String::from_utf8(bytes).unwrap()))
    }

    #[test]
    fn what_a_file_says() {
        let text = "# a comment = 'x'\n\n  \t\n  A='1'\nB='two words' # more\n\tC='line one\n  # no comment\nlast'  \n\
                    D= 'nothing'\nE=''\nF='$A \\n \"q\"'\r\nG='x\r\ny'\nA='again'\nSPACED NAME='ok'";
        let ok = |name: &str, value: &str| assert_eq!(key(text, name), Ok(Some(value.to_owned())), "{name}");
        ok("A", "1");
        ok("B", "two words");
        ok("C", "line one\n  # no comment\nlast");
        ok("D", "");
        ok("E", "");
        ok("F", "$A \\n \"q\"");
        ok("G", "x\ny");
        ok("SPACED NAME", "ok");
        assert_eq!(key(text, "Z"), Ok(None));
        assert_eq!(key("", "A"), Ok(None));
        // What comes after the key does not matter.
        assert_eq!(key("A='1'\nnonsense", "A"), Ok(Some("1".to_owned())));
    }

    #[test]
    fn what_is_no_file_with_variables() {
        let format = "invalid environment variable format";
        for (text, why) in [
            ("\nnonsense", "at line 2: missing '='"),
            ("='x'", "at line 1: empty variable name"),
            ("  ='x'", "at line 1: empty variable name"),
            ("B ='x'", "at line 1: whitespace before '=' is not allowed"),
            ("B\t='x'", "at line 1: whitespace before '=' is not allowed"),
            ("B=x", "at line 1: value must be enclosed in single quotes"),
            ("B=\"x\"", "at line 1: value must be enclosed in single quotes"),
            ("B=", "at line 1: value must be enclosed in single quotes"),
            ("B='x' y", "at line 1: unexpected content after closing quote"),
            ("B='x\ny'z", "at line 2: unexpected content after closing quote"),
            ("\nB='x\ny\n", "starting at line 2: unclosed single quote"),
        ] {
            assert_eq!(key(text, "A"), Err(format!("{format} {why}")), "{text:?}");
        }
        let long = |length: usize| format!("A='{}'", "x".repeat(length - 4));
        assert!(key(&long(MAX_LINE - 1), "A").is_ok());
        assert_eq!(key(&long(MAX_LINE), "A"), Err("line 1 is longer than 65536 bytes".to_owned()));
    }

    #[test]
    fn values_of_variables() {
        let selector = |key: &str, optional: bool| FileKeySelector {
            key: key.to_owned(),
            optional: Some(optional),
            path: "dir/env".to_owned(),
            volume_name: "v".to_owned(),
        };
        let name = ("v".to_owned(), "dir/env".to_owned());
        let of = |bytes: &[u8]| {
            let wanted = ["A", "E", "Z", "BYTES"].map(str::to_owned).into();
            let file = EnvFile::read("/pods/v/dir/env".into(), bytes, &wanted);
            EnvFiles::from([(name.clone(), Ok(file))])
        };
        let files = of(b"A='1'\nE=''\nBYTES='\xff'");
        assert_eq!(value(&files, &selector("A", false)), Ok(Some(&b"1"[..])));
        assert_eq!(value(&files, &selector("BYTES", false)), Ok(Some(&b"\xff"[..])));
        for absent in ["E", "Z"] {
            assert_eq!(value(&files, &selector(absent, true)), Ok(None));
            assert_eq!(
                value(&files, &selector(absent, false)).unwrap_err().to_string(),
                format!("environment variable key \"{absent}\" not found in file \"/pods/v/dir/env\"")
            );
        }
        assert_eq!(value(&of(b"x"), &selector("A", true)).unwrap_err().to_string(), "couldn't parse env file");
        for error in [EnvFileError::Unusable, EnvFileError::NoVolume("v".into()), EnvFileError::Away("x".into())] {
            let files = EnvFiles::from([(name.clone(), Err(error.clone()))]);
            assert_eq!(value(&files, &selector("A", true)), Err(error));
        }
        assert_eq!(
            EnvFileError::NoVolume("v".into()).to_string(),
            "cannot find the volume \"v\" referenced by FileKeyRef"
        );
        assert!(matches!(value(&EnvFiles::new(), &selector("A", true)), Err(EnvFileError::Away(_))));
        assert!(!format!("{files:?}").contains("255"));
        assert!(matches!(value(&files, &selector("NOT_WANTED", true)), Err(EnvFileError::Away(_))));
    }

    /// One pass gives what one search for each gives.
    #[test]
    fn many_variables_of_one_file() {
        let names: BTreeSet<String> = (0..5000).map(|index| format!("K{index}")).collect();
        let text: String = names.iter().rev().map(|name| format!("{name}='{name}'\n{name}='again'\n")).collect();
        let file = EnvFile::read(PathBuf::new(), text.as_bytes(), &names);
        assert!(names.iter().all(|name| file.values[name] == Ok(Some(name.clone().into_bytes()))));
        assert_eq!(file.size(), names.iter().map(String::len).sum::<usize>());
        // Before and after an error.
        let both = ["A", "Z"].map(str::to_owned).into();
        let file = EnvFile::read(PathBuf::new(), b"A='1'\nnonsense\nZ='2'", &both);
        assert_eq!((&file.values["A"], &file.values["Z"]), (&Ok(Some(b"1".to_vec())), &Err(SyntaxError::NoEquals(2))));
    }

    proptest::proptest! {
        /// What a writer quotes is read as it was, and nothing makes the reader panic.
        #[test]
        fn quoted_values_come_back(values in proptest::collection::vec("[^'\r\0]{1,20}", 1..5), noise: Vec<u8>) {
            let text: String = values.iter().enumerate().map(|(i, v)| format!("K{i}='{v}'\n")).collect();
            for (i, value) in values.iter().enumerate() {
                proptest::prop_assert_eq!(key(&text, &format!("K{i}")), Ok(Some(value.clone())));
            }
            let _ = EnvFile::read(PathBuf::new(), &noise, &["K".to_owned()].into());
        }
    }
}
