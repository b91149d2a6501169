//! What a line of a watch and a page of a list say. Pure. An object that cannot be decoded is told by its name, and the others of
//! its list count.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::core::Status;
use kube::core::watch::Bookmark;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::decide::Failure;
use crate::object::{ObjectRef, Outline, Parted};

/// An object that is there.
#[derive(Debug)]
pub(super) enum Item<K, M> {
    Read(Parted<K, M>),
    Undecodable(Undecodable),
}

/// An object of which this much is known.
#[derive(Debug)]
pub(super) struct Undecodable {
    pub(super) object: ObjectRef,
    pub(super) resource_version: String,
    /// Why, and where in its text.
    pub(super) error: Failure,
}

/// What one line says.
#[derive(Debug)]
pub(super) enum Said<K, M> {
    Applied(Item<K, M>),
    /// Its name and resource version.
    Deleted(ObjectRef, String),
    Bookmark {
        resource_version: String,
        /// A streamed list is complete with it.
        ends_list: bool,
    },
    Error(Box<Status>),
}

#[derive(Deserialize)]
#[serde(tag = "type", content = "object", rename_all = "UPPERCASE")]
#[serde(bound(deserialize = "K: Deserialize<'de>, M: Deserialize<'de>"))]
enum Event<K, M> {
    Added(Parted<K, M>),
    Modified(Parted<K, M>),
    /// What it was does not matter any more.
    Deleted(Outline),
    Bookmark(Bookmark),
    Error(Box<Status>),
}

#[derive(Deserialize)]
struct RawEvent<'a> {
    #[serde(rename = "type", borrow)]
    event_type: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Page<I> {
    #[serde(default)]
    metadata: ListMeta,
    /// Null for none.
    items: Option<Vec<I>>,
}

/// A line of a watch.
pub(super) fn line<K: DeserializeOwned, M: DeserializeOwned>(line: &[u8]) -> Result<Said<K, M>, Failure> {
    let failure = match serde_json::from_slice(line) {
        Ok(Event::Added(object) | Event::Modified(object)) => return Ok(Said::Applied(Item::Read(object))),
        Ok(Event::Deleted(outline)) => {
            let (object, version) = outline.named().ok_or(Failure::Undecodable { line: 1, column: 1 })?;
            return Ok(Said::Deleted(object, version));
        }
        Ok(Event::Bookmark(Bookmark { metadata, .. })) => {
            let ends_list = metadata.annotations.get("k8s.io/initial-events-end").is_some_and(|value| value == "true");
            return Ok(Said::Bookmark { resource_version: metadata.resource_version, ends_list });
        }
        Ok(Event::Error(status)) => return Ok(Said::Error(status)),
        Err(error) => Failure::undecodable(&error),
    };
    // Only now, and seldom, the text is gone through twice.
    match serde_json::from_slice::<RawEvent<'_>>(line) {
        Ok(event) if matches!(&*event.event_type, "ADDED" | "MODIFIED") => item(event.object).map(Said::Applied),
        Ok(_) | Err(_) => Err(failure),
    }
}

/// A page of a list, with what the list says of itself.
pub(super) fn page<K: DeserializeOwned, M: DeserializeOwned>(
    text: &[u8],
) -> Result<(Vec<Item<K, M>>, ListMeta), Failure> {
    if let Ok(Page { metadata, items }) = serde_json::from_slice::<Page<Parted<K, M>>>(text) {
        return Ok((items.unwrap_or_default().into_iter().map(Item::Read).collect(), metadata));
    }
    // Only now, and seldom, the text is gone through twice.
    let page: Page<&RawValue> = serde_json::from_slice(text).map_err(|error| Failure::undecodable(&error))?;
    let items = page.items.unwrap_or_default().into_iter().map(item).collect::<Result<_, _>>()?;
    Ok((items, page.metadata))
}

fn item<K: DeserializeOwned, M: DeserializeOwned>(text: &RawValue) -> Result<Item<K, M>, Failure> {
    let error = match serde_json::from_str(text.get()) {
        Ok(object) => return Ok(Item::Read(object)),
        Err(error) => Failure::undecodable(&error),
    };
    match serde_json::from_str::<Outline>(text.get()).ok().and_then(Outline::named) {
        Some((object, resource_version)) => Ok(Item::Undecodable(Undecodable { object, resource_version, error })),
        None => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde::de::IgnoredAny;
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, wrong: bool) -> Value {
        let started = if wrong { "9999-12-31T00:00:00Z" } else { "2026-01-01T00:00:00Z" };
        json!({"metadata": {"namespace": "ns", "name": name, "uid": format!("uid-{name}"), "resourceVersion": "7",
            "managedFields": [{"time": "9999-12-31T00:00:00Z"}]}, "spec": {"containers": []}, "status": {"startTime": started}})
    }

    fn shown(item: &Item<Pod, IgnoredAny>) -> String {
        match item {
            Item::Read(parted) => {
                assert!(parted.managed_fields.is_some() && parted.object.metadata.managed_fields.is_none());
                parted.object.metadata.name.clone().unwrap()
            }
            Item::Undecodable(one) => {
                let ObjectRef { namespace, name, uid } = &one.object;
                let error = one.error.to_string();
                assert!(error.contains("cannot be decoded (line 1, column ") && !error.contains("9999"), "{error}");
                format!("not {namespace}/{name} {uid}@{}", one.resource_version)
            }
        }
    }

    #[test]
    fn lines() {
        let bookmark = |annotations: Value| {
            json!({"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1",
            "metadata": {"resourceVersion": "9", "annotations": annotations}}})
        };
        let cases = [
            (json!({"type": "ADDED", "object": pod("a", false)}), "applied a"),
            (json!({"type": "MODIFIED", "object": pod("a", false)}), "applied a"),
            (json!({"type": "ADDED", "object": pod("a", true)}), "applied not ns/a uid-a@7"),
            (json!({"type": "MODIFIED", "object": pod("a", true)}), "applied not ns/a uid-a@7"),
            (json!({"type": "DELETED", "object": pod("a", false)}), "deleted ns/a@7"),
            (json!({"type": "DELETED", "object": pod("a", true)}), "deleted ns/a@7"),
            (bookmark(json!({})), "bookmark 9 false"),
            (bookmark(json!({"k8s.io/initial-events-end": "true"})), "bookmark 9 true"),
            (json!({"type": "ERROR", "object": {"code": 410}}), "error 410"),
            (json!({"type": "ADDED", "object": 7}), "nothing"),
            (json!({"type": "ADDED", "object": {"metadata": {"name": 7}}}), "nothing"),
            (json!({"type": "DELETED", "object": {}}), "nothing"),
            (json!({"type": "OTHER", "object": pod("a", true)}), "nothing"),
        ];
        for (value, expected) in cases {
            let (kind, object) = (&value["type"], &value["object"]);
            // The server's order, and the other one.
            for text in
                [format!("{{\"type\":{kind},\"object\":{object}}}"), format!("{{\"object\":{object},\"type\":{kind}}}")]
            {
                let said = match line::<Pod, IgnoredAny>(text.as_bytes()) {
                    Ok(Said::Applied(item)) => format!("applied {}", shown(&item)),
                    Ok(Said::Deleted(object, version)) => {
                        format!("deleted {}/{}@{version}", object.namespace, object.name)
                    }
                    Ok(Said::Bookmark { resource_version, ends_list }) => {
                        format!("bookmark {resource_version} {ends_list}")
                    }
                    Ok(Said::Error(status)) => format!("error {}", status.code),
                    Err(failure) => {
                        assert!(matches!(failure, Failure::Undecodable { .. }));
                        "nothing".to_owned()
                    }
                };
                assert_eq!(said, expected, "{text}");
            }
        }
        assert!(
            line::<Pod, IgnoredAny>(b"{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"a\"}").is_err(),
            "cut off"
        );
    }

    #[test]
    fn the_text_of_what_managers_did_is_kept_in_either_order() {
        for text in [
            r#"{"type":"ADDED","object":{"metadata":{"managedFields":[ 7 ]}}}"#,
            r#"{"object":{"metadata":{"managedFields":[ 7 ]}},"type":"ADDED"}"#,
        ] {
            let said = line::<Pod, Box<RawValue>>(text.as_bytes());
            let Ok(Said::Applied(Item::Read(whole))) = said else { panic!("{said:?}") };
            assert_eq!(whole.managed_fields.unwrap().get(), "[ 7 ]");
        }
    }

    #[test]
    fn pages() {
        let read = |items: Value| {
            let text =
                json!({"kind": "PodList", "metadata": {"resourceVersion": "9", "continue": "c"}, "items": items});
            let (items, list) = page::<Pod, IgnoredAny>(text.to_string().as_bytes()).ok()?;
            assert_eq!((list.resource_version.as_deref(), list.continue_.as_deref()), (Some("9"), Some("c")));
            Some(items.iter().map(shown).collect::<Vec<_>>())
        };
        assert_eq!(read(Value::Null).unwrap(), Vec::<String>::new());
        assert_eq!(read(json!([pod("a", false), pod("b", false)])).unwrap(), ["a", "b"]);
        let mixed = read(json!([pod("a", true), pod("b", false), pod("c", true)])).unwrap();
        assert_eq!(mixed, ["not ns/a uid-a@7", "b", "not ns/c uid-c@7"]);
        assert_eq!(read(json!([pod("a", false), 7])), None, "without a name nobody knows what is left out");
        assert!(page::<Pod, IgnoredAny>(b"{\"metadata\":{},\"items\":[").is_err());
    }
}
