//! Variables from files that another container of the pod wrote into an emptyDir (`fileKeyRef`): what such a file says
//! (upstream `pkg/kubelet/util/env`), and what came of reading it. volnetd reads it: nobody else opens what a pod writes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use k8s_openapi::api::core::v1::FileKeySelector;
use kubelet_model::v1::Container;

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
    /// Nobody has answered: nothing is known to be wrong with the pod.
    #[error("{0}")]
    Away(String),
}

/// A file as it was a moment ago.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct EnvFile {
    /// Its name on the host.
    pub path: PathBuf,
    pub bytes: Vec<u8>,
}

impl std::fmt::Debug for EnvFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnvFile").field("path", &self.path).field("bytes", &self.bytes.len()).finish()
    }
}

/// Volume and path in it.
pub type EnvFileName = (String, String);

/// What came of reading each file that an environment names.
pub type EnvFiles = BTreeMap<EnvFileName, Result<EnvFile, EnvFileError>>;

/// The files that a container's environment names, each once.
pub fn wanted(container: &Container) -> BTreeSet<EnvFileName> {
    let computed = container.env.iter().flatten().filter(|v| v.value.as_deref().unwrap_or("").is_empty());
    let sources = computed.filter_map(|v| v.value_from.as_ref()?.file_key_ref.as_ref());
    sources.map(name_of).collect()
}

fn name_of(selector: &FileKeySelector) -> EnvFileName {
    (selector.volume_name.clone(), selector.path.clone())
}

/// The variable's value; `None` where it is optional and not in the file. As upstream has it, a value without a
/// character counts as none, and a file that is not there is an error even for what is optional.
pub fn value(files: &EnvFiles, selector: &FileKeySelector) -> Result<Option<Vec<u8>>, EnvFileError> {
    let file = match files.get(&name_of(selector)) {
        Some(Ok(file)) => file,
        Some(Err(error)) => return Err(error.clone()),
        None => return Err(EnvFileError::Away(format!("the file {:?} has not been read", selector.path))),
    };
    let value = key_in(&file.bytes, &selector.key).map_err(|error| {
        tracing::info!(file = %file.path.display(), %error, "a file with variables cannot be used");
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

/// The value of the first variable of that name, or `None`. What stands after it is not looked at.
///
/// A subset of the shell's syntax: `NAME='value'`, where the value may go over lines and nothing in it is special;
/// blank lines and comments between; `NAME= 'value'` is empty.
fn key_in(bytes: &[u8], key: &str) -> Result<Option<Vec<u8>>, SyntaxError> {
    let mut lines = Lines { rest: bytes, number: 0 };
    while let Some(line) = lines.next()? {
        let line = trim_start(line);
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let at = lines.number;
        let equals = line.iter().position(|b| *b == b'=').ok_or(SyntaxError::NoEquals(at))?;
        let (name, value) = (&line[..equals], &line[equals + 1..]);
        match name.last() {
            None => return Err(SyntaxError::NoName(at)),
            Some(b' ' | b'\t') => return Err(SyntaxError::SpaceBeforeEquals(at)),
            Some(_) => {}
        }
        let found = name == key.as_bytes();
        if value.starts_with(b" ") || value.starts_with(b"\t") {
            if found {
                return Ok(Some(Vec::new()));
            }
            continue;
        }
        let Some(mut rest) = value.strip_prefix(b"'") else { return Err(SyntaxError::NotQuoted(at)) };
        let mut whole = Vec::new();
        loop {
            if let Some(end) = rest.iter().position(|b| *b == b'\'') {
                whole.extend_from_slice(&rest[..end]);
                let after = trim_start(&rest[end + 1..]);
                if !after.is_empty() && !after.starts_with(b"#") {
                    return Err(SyntaxError::AfterQuote(lines.number));
                }
                break;
            }
            whole.extend_from_slice(rest);
            whole.push(b'\n');
            rest = lines.next()?.ok_or(SyntaxError::Unclosed(at))?;
        }
        if found {
            return Ok(Some(whole));
        }
    }
    Ok(None)
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
        let value = key_in(text.as_bytes(), key).map_err(|error| error.to_string())?;
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
            let file = EnvFile { path: "/pods/v/dir/env".into(), bytes: bytes.to_vec() };
            EnvFiles::from([(name.clone(), Ok(file))])
        };
        let files = of(b"A='1'\nE=''\nBYTES='\xff'");
        assert_eq!(value(&files, &selector("A", false)), Ok(Some(b"1".to_vec())));
        assert_eq!(value(&files, &selector("BYTES", false)), Ok(Some(b"\xff".to_vec())));
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
        assert!(!format!("{files:?}").contains("BYTES"));
    }

    proptest::proptest! {
        /// What a writer quotes is read as it was, and nothing makes the reader panic.
        #[test]
        fn quoted_values_come_back(values in proptest::collection::vec("[^'\r\0]{1,20}", 1..5), noise: Vec<u8>) {
            let text: String = values.iter().enumerate().map(|(i, v)| format!("K{i}='{v}'\n")).collect();
            for (i, value) in values.iter().enumerate() {
                proptest::prop_assert_eq!(key(&text, &format!("K{i}")), Ok(Some(value.clone())));
            }
            let _ = key_in(&noise, "K");
        }
    }
}
