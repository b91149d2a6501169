//! Credentials as Docker writes them: `config.json` (`{"auths": {...}}`, secrets of type
//! kubernetes.io/dockerconfigjson) and `.dockercfg` (the inner map alone, kubernetes.io/dockercfg).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bulkhead_cri::v1::AuthConfig;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::matching::Pattern;

/// Go's `base64.StdEncoding` and `base64.RawStdEncoding`, which take any bits where the last character has some too many.
const PADDED: GeneralPurpose = base64_of(DecodePaddingMode::RequireCanonical);
const RAW: GeneralPurpose = base64_of(DecodePaddingMode::RequireNone);

const fn base64_of(padding: DecodePaddingMode) -> GeneralPurpose {
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(padding).with_decode_allow_trailing_bits(true);
    GeneralPurpose::new(&base64::alphabet::STANDARD, config)
}

/// A credential and what it is for. `Debug` shows no password: the CRI message's own does not.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub pattern: Pattern,
    pub auth: AuthConfig,
    /// No runtime is told, but it is part of what tells one credential from another.
    pub email: String,
}

/// The text is no such configuration. Says where, never what stands there: it may be a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DockerConfigError {
    #[error("is no JSON of the expected form (line {line}, column {column})")]
    Json { line: usize, column: usize },
    #[error("auth of {registry:?} is not base64 of user:password")]
    Auth { registry: String },
}

#[derive(Deserialize, Default)]
struct Registry {
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
    #[serde(default)]
    email: Option<String>,
    #[serde(default)]
    auth: Option<String>,
}

/// `config.json`; those that are wanted of it. A file may name more than there is memory for if each were kept.
pub fn config_json(text: &[u8], wanted: impl Fn(&Pattern) -> bool) -> Result<Vec<Entry>, DockerConfigError> {
    read(text, |json, registries| json.deserialize_map(File(registries)), wanted)
}

/// `.dockercfg`; those that are wanted of it.
pub fn dockercfg(text: &[u8], wanted: impl Fn(&Pattern) -> bool) -> Result<Vec<Entry>, DockerConfigError> {
    read(text, |json, registries| registries.deserialize(json), wanted)
}

type Json<'t> = serde_json::Deserializer<serde_json::de::SliceRead<'t>>;

fn read<'t, W: Fn(&Pattern) -> bool>(
    text: &'t [u8],
    read: impl FnOnce(&mut Json<'t>, &mut Registries<W>) -> serde_json::Result<()>,
    wanted: W,
) -> Result<Vec<Entry>, DockerConfigError> {
    let mut registries = Registries { wanted, found: BTreeMap::new(), bad: None };
    let mut json = serde_json::Deserializer::from_slice(text);
    read(&mut json, &mut registries)
        .and_then(|()| json.end())
        .map_err(|error| DockerConfigError::Json { line: error.line(), column: error.column() })?;
    match registries.bad {
        Some(registry) => Err(DockerConfigError::Auth { registry }),
        None => Ok(registries.found.into_values().collect()),
    }
}

/// The object around the map.
struct File<'a, W>(&'a mut Registries<W>);

impl<'de, W: Fn(&Pattern) -> bool> Visitor<'de> for File<'_, W> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object with auths")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(field) = map.next_key::<Cow<'de, str>>()? {
            if field == "auths" {
                map.next_value_seed(&mut *self.0)?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// What the map has of what is wanted, by its names: of a name that comes twice the last one counts.
struct Registries<W> {
    wanted: W,
    found: BTreeMap<String, Entry>,
    /// The first of which the credential cannot be read.
    bad: Option<String>,
}

impl<'de, W: Fn(&Pattern) -> bool> DeserializeSeed<'de> for &mut Registries<W> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, W: Fn(&Pattern) -> bool> Visitor<'de> for &mut Registries<W> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of registries")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((name, registry)) = map.next_entry::<String, Registry>()? {
            let of_auth = registry.auth.as_deref().filter(|auth| !auth.is_empty()).map(user_and_password);
            let (username, password) = match of_auth {
                Some(Some(both)) => both,
                Some(None) => {
                    self.bad.get_or_insert(name);
                    continue;
                }
                None => (registry.username.unwrap_or_default(), registry.password.unwrap_or_default()),
            };
            if let Some(pattern) = Pattern::of_credential(&name).filter(&self.wanted) {
                let auth = AuthConfig { username, password, ..AuthConfig::default() };
                self.found.insert(name, Entry { pattern, auth, email: registry.email.unwrap_or_default() });
            }
        }
        Ok(())
    }
}

/// Upstream `pkg/credentialprovider/config.go`, decodeDockerConfigFieldAuth. Padding may be missing, as some tools leave it out.
fn user_and_password(auth: &str) -> Option<(String, String)> {
    // Line breaks are no part of base64, as for Go's decoder: `base64` breaks its output after 76 characters.
    let auth: Cow<'_, str> = match auth.contains(['\r', '\n']) {
        true => auth.replace(['\r', '\n'], "").into(),
        false => auth.into(),
    };
    let engine = if auth.ends_with('=') { &PADDED } else { &RAW };
    let bytes = engine.decode(&*auth).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(_: &Pattern) -> bool {
        true
    }

    #[test]
    fn what_is_not_wanted_is_read_and_not_kept() {
        let mut text = String::from("{\"more\":[{}],\"auths\":{");
        (0..100_000).for_each(|number| text.push_str(&format!("\"{number}\":{{}},")));
        text.push_str(r#""r.test":{"username":"old"},"r.test":{"username":"new","password":"p"}}}"#);
        let entries = config_json(text.as_bytes(), |pattern| pattern.matches("r.test/app")).unwrap();
        assert_eq!(entries.iter().map(|entry| &*entry.auth.username).collect::<Vec<_>>(), ["new"]);
        assert!(config_json(br#"{"more":{}}"#, all).unwrap().is_empty());
        for bad in [r#"{"auths":[]}"#, r#"{"auths":{"r.test":1}}"#, r#"{"auths":{}} {}"#, r#"[]"#, r#"{"auths":{"#] {
            assert!(config_json(bad.as_bytes(), all).is_err(), "{bad}");
        }
    }

    #[test]
    fn both_forms() {
        let text = br#"{"auths":{"https://registry.test/v1/":{"auth":"dXNlcjpwYTpzcw=="},"b.test":{"username":"u","password":"p"}}}"#;
        let entries = config_json(text, all).unwrap();
        let of = |i: usize| (entries[i].auth.username.as_str(), entries[i].auth.password.as_str());
        assert_eq!([of(0), of(1)], [("u", "p"), ("user", "pa:ss")]);
        let entries = dockercfg(br#"{"registry.test":{"auth":"dXNlcjpwYTpzcw"}}"#, all).unwrap();
        assert_eq!(entries[0].auth.password, "pa:ss");
    }

    #[test]
    fn line_breaks_in_base64_are_none_of_it() {
        for auth in ["dXNlcjpwYTpzcw==\\n", "dXNl\\r\\ncjpwYTpzcw==", "dXNlcjpw\\nYTpzcw\\n", "\\ndXNlcjpwYTpzcw=\\n="]
        {
            let text = format!(r#"{{"r.test":{{"auth":"{auth}"}}}}"#);
            let entries = dockercfg(text.as_bytes(), all).unwrap();
            assert_eq!((&*entries[0].auth.username, &*entries[0].auth.password), ("user", "pa:ss"), "{auth}");
        }
        for auth in ["dXNl cjpwYTpzcw==", "dXNlcjpwYTpzcw== ", " dXNlcjpwYTpzcw", "dXNlcjpwYTpzcw\\t"] {
            let text = format!(r#"{{"r.test":{{"auth":"{auth}"}}}}"#);
            assert!(dockercfg(text.as_bytes(), all).is_err(), "{auth}: as for Go's");
        }
    }

    /// With the rows of upstream's config_test.go, `TestDecodeDockerConfigFieldAuth`.
    #[test]
    fn base64_as_go_reads_it() {
        let foo_bar = Some(("foo".to_owned(), "bar".to_owned()));
        for (auth, expected) in [
            ("Zm9vOmJhcg==", foo_bar.clone()),
            ("Zm9vOmJhcg", foo_bar.clone()),
            ("Zm9vOm\nJhcg==\n", foo_bar.clone()),
            // Bits beyond the last byte that are not zero.
            ("Zm9vOmJhch==", foo_bar.clone()),
            ("Zm9vOmJhci", foo_bar),
            // NULs belong to the password.
            ("Zm9vOmJhcgA=", Some(("foo".to_owned(), "bar\0".to_owned()))),
            ("Zm9vOmJhcg=", None),
            ("Zm9vOmJhcg== ", None),
            ("cGFudHM=", None),
            ("pants", None),
        ] {
            assert_eq!(user_and_password(auth), expected, "{auth:?}");
        }
    }

    #[test]
    fn errors_say_where_and_show_no_secret() {
        let error = config_json(br#"{"auths":{"r.test":{"auth":"hunter2!"}}}"#, |_| false).unwrap_err().to_string();
        assert!(error.contains("r.test") && !error.contains("hunter2"));
        assert!(config_json(b"{\"auths\": hunter2", all).unwrap_err().to_string().contains("line 1"));
        let shown = format!("{:?}", dockercfg(br#"{"r.test":{"username":"u","password":"hunter2"}}"#, all).unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = config_json(&bytes, all);
            let _ = dockercfg(&bytes, all);
        }
    }
}
