//! Validation errors in upstream's wording (`apimachinery/pkg/util/validation/field`): a path, what is wrong, the value.

use std::fmt;

/// Path of a field: `spec.containers[0].resources.limits[cpu]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path(String);

impl Path {
    pub fn new(root: &str) -> Self {
        Path(root.to_owned())
    }

    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() { Path(name.to_owned()) } else { Path(format!("{}.{name}", self.0)) }
    }

    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Path(format!("{}[{index}]", self.0))
    }

    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        Path(format!("{}[{key}]", self.0))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One field that is not as the API wants it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {body}")]
pub struct FieldError {
    pub field: String,
    /// `Required value`, `Invalid value: "x": must be ...`
    pub body: String,
}

/// A value as it is shown in an error: strings quoted, numbers and booleans plain, the rest as JSON.
pub trait Shown {
    fn shown(&self) -> String;
}

impl Shown for str {
    fn shown(&self) -> String {
        quote(self)
    }
}

impl Shown for &str {
    fn shown(&self) -> String {
        quote(self)
    }
}

impl Shown for &String {
    fn shown(&self) -> String {
        quote(self)
    }
}

impl Shown for String {
    fn shown(&self) -> String {
        quote(self)
    }
}

macro_rules! shown_plain {
    ($($t:ty),*) => { $(impl Shown for $t { fn shown(&self) -> String { self.to_string() } })* };
}
shown_plain!(i32, i64, usize, bool);

/// Anything that serialises, shown as JSON.
#[derive(Debug)]
pub struct AsJson<'a, T>(pub &'a T);

impl<T: serde::Serialize> Shown for AsJson<'_, T> {
    fn shown(&self) -> String {
        serde_json::to_string(self.0).unwrap_or_default()
    }
}

/// Quoted as Go's `%q` does it.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if is_printed(c) => out.push(c),
            c if u32::from(c) < 0x1_0000 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    out.push('"');
    out
}

/// Letters, marks, numbers, punctuation, symbols and the space. The standard library knows the same set, but escapes a
/// mark that begins a text: so something stands before it.
fn is_printed(c: char) -> bool {
    c.is_ascii() || {
        let text = format!("a{c}");
        text.escape_debug().eq(text.chars())
    }
}

/// All errors of an object, in the order in which they were found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Errors(Vec<FieldError>);

impl Errors {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &FieldError> {
        self.0.iter()
    }

    pub fn append(&mut self, mut other: Errors) {
        self.0.append(&mut other.0);
    }

    fn push(&mut self, path: &Path, head: &str, value: Option<String>, detail: &str) {
        let mut body = head.to_owned();
        for part in value.iter().map(String::as_str).chain((!detail.is_empty()).then_some(detail)) {
            body.push_str(": ");
            body.push_str(part);
        }
        self.0.push(FieldError { field: path.to_string(), body });
    }

    pub fn required(&mut self, path: &Path, detail: &str) {
        self.push(path, "Required value", None, detail);
    }

    pub fn forbidden(&mut self, path: &Path, detail: &str) {
        self.push(path, "Forbidden", None, detail);
    }

    pub fn invalid(&mut self, path: &Path, value: impl Shown, detail: &str) {
        self.push(path, "Invalid value", Some(value.shown()), detail);
    }

    /// One `Invalid value` for each message.
    pub fn invalid_each(&mut self, path: &Path, value: impl Shown, messages: Vec<String>) {
        for message in messages {
            self.push(path, "Invalid value", Some(value.shown()), &message);
        }
    }

    pub fn duplicate(&mut self, path: &Path, value: impl Shown) {
        self.push(path, "Duplicate value", Some(value.shown()), "");
    }

    pub fn not_found(&mut self, path: &Path, value: impl Shown, detail: &str) {
        self.push(path, "Not found", Some(value.shown()), detail);
    }

    /// `supported` is shown in the order given.
    pub fn not_supported(&mut self, path: &Path, value: &str, supported: &[&str]) {
        let list: Vec<String> = supported.iter().map(|s| quote(s)).collect();
        self.push(path, "Unsupported value", Some(quote(value)), &format!("supported values: {}", list.join(", ")));
    }

    /// `Unsupported value`, unless it is one of `supported`.
    pub fn one_of(&mut self, path: &Path, value: &str, supported: &[&str]) {
        if !supported.contains(&value) {
            self.not_supported(path, value, supported);
        }
    }

    /// Like [`Self::one_of`], with `Required value` for an empty one.
    pub fn required_one_of(&mut self, path: &Path, value: &str, supported: &[&str]) {
        if value.is_empty() {
            self.required(path, "");
        } else {
            self.one_of(path, value, supported);
        }
    }

    pub fn too_long(&mut self, path: &Path, max_bytes: usize) {
        self.push(path, "Too long", None, &format!("may not be more than {max_bytes} bytes"));
    }

    pub fn too_many(&mut self, path: &Path, actual: usize, max: usize) {
        self.push(path, "Too many", Some(actual.to_string()), &format!("must have at most {max} items"));
    }

    /// `Required value` when `value` is empty.
    pub fn require(&mut self, path: &Path, value: &str) {
        if value.is_empty() {
            self.required(path, "");
        }
    }
}

impl fmt::Display for Errors {
    /// As Go prints a list of errors: `[first second]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(" ")?;
            }
            write!(f, "{error}")?;
        }
        f.write_str("]")
    }
}

impl std::error::Error for Errors {}

/// Text of an optional field, absent and empty being the same in the API.
pub fn text(value: &Option<String>) -> &str {
    value.as_deref().unwrap_or("")
}

/// Items of an optional list.
pub fn items<T>(list: &Option<Vec<T>>) -> &[T] {
    list.as_deref().unwrap_or(&[])
}
