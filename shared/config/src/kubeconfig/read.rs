//! Typed reading of an untyped kubeconfig: absent, null and empty are the same, everything else has a type and a path.

use base64::Engine as _;
use serde_json::{Map, Value};

use super::{KubeconfigError, Material};

/// One mapping of the file and where it is.
#[derive(Debug, Clone)]
pub(super) struct Section<'a> {
    path: String,
    map: &'a Map<String, Value>,
}

impl<'a> Section<'a> {
    pub(super) fn root(value: &'a Value) -> Result<Self, KubeconfigError> {
        match value.as_object() {
            Some(map) => Ok(Section { path: String::new(), map }),
            None => Err(KubeconfigError::Type { path: "the file".into(), expected: "a mapping" }),
        }
    }

    /// Where a key of this section is.
    pub(super) fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn value(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn wrong(&self, key: &str, expected: &'static str) -> KubeconfigError {
        KubeconfigError::Type { path: self.path(key), expected }
    }

    pub(super) fn conflict(&self, first: &'static str, second: &'static str) -> KubeconfigError {
        KubeconfigError::Conflict { path: self.path.clone(), first, second }
    }

    /// None when absent or empty.
    pub(super) fn text(&self, key: &str) -> Result<Option<String>, KubeconfigError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok((!text.is_empty()).then(|| text.clone())),
            Some(_) => Err(self.wrong(key, "text")),
        }
    }

    pub(super) fn required(&self, key: &str, why: &'static str) -> Result<String, KubeconfigError> {
        self.text(key)?.ok_or_else(|| KubeconfigError::Missing { path: self.path(key), why })
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool, KubeconfigError> {
        match self.value(key) {
            None => Ok(false),
            Some(Value::Bool(value)) => Ok(*value),
            Some(_) => Err(self.wrong(key, "true or false")),
        }
    }

    fn list(&self, key: &str) -> Result<&'a [Value], KubeconfigError> {
        match self.value(key) {
            None => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(_) => Err(self.wrong(key, "a list")),
        }
    }

    pub(super) fn texts(&self, key: &str) -> Result<Vec<String>, KubeconfigError> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        self.list(key)?.iter().map(text).collect::<Option<_>>().ok_or_else(|| self.wrong(key, "a list of texts"))
    }

    pub(super) fn section(&self, key: &str) -> Result<Option<Section<'a>>, KubeconfigError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Section { path: self.path(key), map })),
            Some(_) => Err(self.wrong(key, "a mapping")),
        }
    }

    /// A mapping of text to lists of texts.
    pub(super) fn text_lists(&self, key: &str) -> Result<Vec<(String, Vec<String>)>, KubeconfigError> {
        let Some(section) = self.section(key)? else { return Ok(Vec::new()) };
        section.map.keys().map(|name| Ok((name.clone(), section.texts(name)?))).collect()
    }

    /// A list of `{name, value}`.
    pub(super) fn pairs(&self, key: &str) -> Result<Vec<(String, String)>, KubeconfigError> {
        self.entries(key)?
            .into_iter()
            .map(|entry| {
                let name = entry.required("name", "it is the variable's name")?;
                if name.contains(['=', '\0']) {
                    return Err(entry.wrong("name", "without '=' and NUL"));
                }
                Ok((name, entry.text("value")?.unwrap_or_default()))
            })
            .collect()
    }

    fn entries(&self, key: &str) -> Result<Vec<Section<'a>>, KubeconfigError> {
        self.list(key)?
            .iter()
            .enumerate()
            .map(|(index, item)| match item.as_object() {
                Some(map) => Ok(Section { path: format!("{}[{index}]", self.path(key)), map }),
                None => Err(self.wrong(&format!("{key}[{index}]"), "a mapping")),
            })
            .collect()
    }

    /// The body (`field`) of the one entry of a list that has this name; it must have one.
    pub(super) fn body(&self, key: &str, field: &str, name: &str) -> Result<Section<'a>, KubeconfigError> {
        let entry = self.entry(key, name)?;
        match entry.section(field)? {
            Some(body) => Ok(body),
            None => Err(KubeconfigError::Missing { path: entry.path(field), why: "the entry has nothing but a name" }),
        }
    }

    /// The same, None for an entry without a body.
    pub(super) fn body_or_none(
        &self,
        key: &str,
        field: &str,
        name: &str,
    ) -> Result<Option<Section<'a>>, KubeconfigError> {
        self.entry(key, name)?.section(field)
    }

    fn entry(&self, key: &str, name: &str) -> Result<Section<'a>, KubeconfigError> {
        let mut found = None;
        for entry in self.entries(key)? {
            if entry.text("name")?.as_deref() == Some(name) {
                if found.is_some() {
                    return Err(KubeconfigError::Duplicate { path: self.path(key), name: name.to_owned() });
                }
                found = Some(entry);
            }
        }
        found.ok_or_else(|| KubeconfigError::Unknown { path: self.path(key), name: name.to_owned() })
    }

    /// The content of a named extension.
    pub(super) fn extension(&self, name: &str) -> Result<Option<Value>, KubeconfigError> {
        for entry in self.entries("extensions")? {
            if entry.text("name")?.as_deref() == Some(name) {
                return Ok(entry.value("extension").cloned());
            }
        }
        Ok(None)
    }

    /// A file's name, or the same as base64 in the file.
    pub(super) fn material(
        &self,
        file_key: &'static str,
        data_key: &'static str,
    ) -> Result<Option<Material>, KubeconfigError> {
        match (self.text(file_key)?, self.text(data_key)?) {
            (None, None) => Ok(None),
            (Some(_), Some(_)) => Err(self.conflict(file_key, data_key)),
            (Some(name), None) => Ok(Some(Material::File(name))),
            (None, Some(text)) => {
                // Folded YAML text carries line ends.
                let text: String = text.split_whitespace().collect();
                base64::engine::general_purpose::STANDARD
                    .decode(text)
                    .map(|bytes| Some(Material::Data(bytes)))
                    .map_err(|_| KubeconfigError::Base64 { path: self.path(data_key) })
            }
        }
    }
}
