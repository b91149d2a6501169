//! An object of the API server without its `managedFields`, which are not decoded with it.
//!
//! Whoever may write an object sets them as other managers', and the server looks neither at their times nor at how deep their
//! `fieldsV1` nest: a time of the last day of the year 9999 is more than a `jiff::Timestamp` holds, and 126 levels are more than a
//! recursive decoder takes. Nobody here decides anything by them. They are skipped while the object is read, which has no bound of
//! depth, or kept as their text.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::value::CowStrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize, forward_to_deserialize_any};
use serde_json::value::RawValue;

/// Where they lie in an object.
const MANAGED_FIELDS: &[&str] = &["metadata", "managedFields"];

/// An object, and apart from it its `managedFields`; an [`IgnoredAny`] for them only says whether there are any.
#[derive(Debug, Clone)]
pub struct Parted<K, M> {
    pub object: K,
    /// Null is what is not there.
    pub managed_fields: Option<M>,
}

/// The same with their text, which is known to be JSON and no more.
pub type Whole<K> = Parted<K, Box<RawValue>>;

impl<'de, K: Deserialize<'de>, M: Deserialize<'de>> Deserialize<'de> for Parted<K, M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut managed_fields = None;
        let object = K::deserialize(Without { inner: deserializer, path: MANAGED_FIELDS, found: &mut managed_fields })?;
        Ok(Parted { object, managed_fields })
    }
}

/// An object as requests of `kube::Api` answer it: with `Api<Bare<K>>` for `Api<K>` no answer fails for its `managedFields`.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct Bare<K>(pub K);

impl<'de, K: Deserialize<'de>> Deserialize<'de> for Bare<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Parted::<K, IgnoredAny>::deserialize(deserializer).map(|parted| Bare(parted.object))
    }
}

impl<K: Resource> Resource for Bare<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::kind(dynamic)
    }

    fn group(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::group(dynamic)
    }

    fn version(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::version(dynamic)
    }

    fn plural(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

/// Which object it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// Empty: its kind has none.
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// What is read of an object whatever else it may be.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Outline {
    metadata: OutlineMeta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct OutlineMeta {
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
}

impl Outline {
    /// Which object it is, and its resource version. None: it has no name, so that it is none.
    pub(crate) fn named(self) -> Option<(ObjectRef, String)> {
        let OutlineMeta { namespace, name, uid, resource_version } = self.metadata;
        (!name.is_empty()).then_some((ObjectRef { namespace, name, uid }, resource_version))
    }
}

/// Reads `inner` without the field at `path`, whose value goes to `found`. It stands for a deserializer, for the visitor within, and
/// for what decodes a field's value on the way there.
struct Without<'a, T, M> {
    inner: T,
    path: &'static [&'static str],
    found: &'a mut Option<M>,
}

impl<'de, D: Deserializer<'de>, M: Deserialize<'de>> Deserializer<'de> for Without<'_, D, M> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(Without { inner: visitor, path: self.path, found: self.found })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_map(Without { inner: visitor, path: self.path, found: self.found })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_struct(name, fields, Without { inner: visitor, path: self.path, found: self.found })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_option(Without { inner: visitor, path: self.path, found: self.found })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_newtype_struct(name, Without { inner: visitor, path: self.path, found: self.found })
    }

    /// What is skipped as a whole is skipped with them.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_ignored_any(visitor)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct enum identifier
    }
}

impl<'de, V: Visitor<'de>, M: Deserialize<'de>> Visitor<'de> for Without<'_, V, M> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Without { inner: deserializer, path: self.path, found: self.found })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(Without { inner: deserializer, path: self.path, found: self.found })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Fields { inner: map, path: self.path, found: self.found, on_the_way: None })
    }
}

impl<'de, S: DeserializeSeed<'de>, M: Deserialize<'de>> DeserializeSeed<'de> for Without<'_, S, M> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Without { inner: deserializer, path: self.path, found: self.found })
    }
}

/// The fields of a map but the one that `path` leads to.
struct Fields<'a, A, M> {
    inner: A,
    path: &'static [&'static str],
    found: &'a mut Option<M>,
    /// The field whose value is next has it within, so far down.
    on_the_way: Option<&'static [&'static str]>,
}

#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de, A: MapAccess<'de>, M: Deserialize<'de>> MapAccess<'de> for Fields<'_, A, M> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        while let Some(Key(key)) = self.inner.next_key::<Key<'de>>()? {
            let rest = self.path.split_first().filter(|(first, _)| **first == key).map(|(_, rest)| rest);
            if rest.is_some_and(<[_]>::is_empty) {
                *self.found = self.inner.next_value()?;
                continue;
            }
            self.on_the_way = rest;
            return seed.deserialize(CowStrDeserializer::new(key)).map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        match self.on_the_way.take() {
            Some(path) => self.inner.next_value_seed(Without { inner: seed, path, found: &mut *self.found }),
            None => self.inner.next_value_seed(seed),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Service};
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::*;

    /// So deep that no recursive decoder takes it.
    fn deep(levels: usize) -> String {
        format!("{}{{}}{}", "{\"f:a\":".repeat(levels), "}".repeat(levels))
    }

    fn hostile() -> [String; 5] {
        [
            r#"[{"manager":"x","time":"9999-12-31T00:00:00Z","fieldsV1":{"f:a":{}}}]"#.to_owned(),
            format!(r#"[{{"manager":"x","fieldsV1":{}}}]"#, deep(125)),
            format!(r#"[{{"manager":"x","fieldsV1":{}}}]"#, deep(100_000)),
            r#""no list""#.to_owned(),
            "7".to_owned(),
        ]
    }

    #[test]
    fn objects_are_decoded_whatever_was_noted_of_their_managers() {
        fn both<K: DeserializeOwned + PartialEq + fmt::Debug>(before: &str, after: &str) {
            let without: K = serde_json::from_str(&format!("{before}\"name\":\"n\"{after}")).unwrap();
            for managed in hostile() {
                let text = format!("{before}\"name\":\"n\",\"managedFields\":{managed}{after}");
                assert!(serde_json::from_str::<K>(&text).is_err(), "{text:.200}");
                let Bare(object) = serde_json::from_str::<Bare<K>>(&text).unwrap();
                assert_eq!(object, without);
                let whole: Whole<K> = serde_json::from_slice(text.as_bytes()).unwrap();
                assert_eq!(whole.object, without);
                assert_eq!(whole.managed_fields.unwrap().get(), managed);
                let twice = format!("{before}\"managedFields\":{managed},\"name\":\"n\",\"managedFields\":null{after}");
                let whole: Whole<K> = serde_json::from_str(&twice).unwrap();
                assert!(whole.object == without && whole.managed_fields.is_none());
            }
        }
        both::<Pod>(r#"{"kind":"Pod","apiVersion":"v1","metadata":{"#, r#"},"spec":{"containers":[]},"status":{}}"#);
        both::<Service>(r#"{"spec":{"clusterIP":"1"},"metadata":{"#, "}}");
        both::<Node>(r#"{"unknown":{"managedFields":7},"metadata":{"labels":{"managedFields":"l"},"#, "}}");
        both::<ConfigMap>(r#"{"data":{"managedFields":"d","metadata":"m"},"metadata":{"#, "}}");
    }

    #[test]
    fn what_else_is_wrong_stays_wrong() {
        for text in [
            r#"{"metadata":7}"#,
            r#"{"metadata":{"name":7}}"#,
            r#"{"kind":"Node"}"#,
            r#"{"metadata":{"managedFields":[}}"#,
            r#"{"metadata":{"creationTimestamp":"9999-12-31T00:00:00Z"}}"#,
            "7",
            "[]",
        ] {
            assert!(serde_json::from_str::<Bare<Pod>>(text).is_err(), "{text}");
        }
        for text in ["{}", r#"{"metadata":null}"#, r#"{"metadata":{}}"#, r#"{"metadata":{"managedFields":null}}"#] {
            let whole: Whole<Pod> = serde_json::from_str(text).unwrap();
            assert!(whole.object == Pod::default() && whole.managed_fields.is_none(), "{text}");
        }
    }

    #[test]
    fn a_bare_object_is_written_and_found_as_its_kind() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}})).unwrap();
        assert_eq!(serde_json::to_value(Bare(pod.clone())).unwrap(), serde_json::to_value(&pod).unwrap());
        assert_eq!(Bare::<Pod>::url_path(&(), Some("ns")), "/api/v1/namespaces/ns/pods");
    }

    #[test]
    fn which_object_it_is() {
        let of = |text: &str| serde_json::from_str::<Outline>(text).ok().and_then(Outline::named);
        let text = format!(
            r#"{{"kind":7,"metadata":{{"managedFields":{},"name":"n","namespace":"ns","uid":"u","resourceVersion":"3",
            "creationTimestamp":"soon"}},"spec":7}}"#,
            deep(1000)
        );
        let named = ObjectRef { namespace: "ns".into(), name: "n".into(), uid: "u".into() };
        assert_eq!(of(&text), Some((named, "3".into())));
        for text in ["7", "{}", r#"{"metadata":{"uid":"u"}}"#, r#"{"metadata":{"name":7}}"#] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
