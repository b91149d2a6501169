//! Collections: which version a list shows, and pages of it (`apiserver/pkg/storage`, semantics of resourceVersion,
//! resourceVersionMatch, limit and continue).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::request::Request;
use super::resources::Resource;
use super::status::{ApiError, FieldError};
use super::storage::{Key, Object, Store};

/// One answer to a list.
#[derive(Debug)]
pub struct Page {
    pub version: u64,
    pub items: Vec<Object>,
    /// Token for the next page; empty on the last.
    pub next: String,
    pub remaining: Option<usize>,
}

const EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. You can start a \
    new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the \
    results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or \
    deleted between the time the first chunk was returned and now may show up in the list.";

/// Answers a list.
///
/// # Errors
/// 400, 410 (expired), 422, 504 (a version of the future).
pub fn page(store: &Store, resource: &Resource, request: &Request) -> Result<Page, ApiError> {
    let query = &request.query;
    let version = query.get("resourceVersion");
    let matching = query.get("resourceVersionMatch");
    let token = query.get("continue");
    let number = parse_version(version)?;
    check_match(matching, version, token)?;
    // What comes out of the cache, whatever its version, comes as a whole.
    let cached = version == "0" && token.is_empty();
    let limit =
        query.number("limit").filter(|limit| *limit > 0 && !cached).and_then(|limit| usize::try_from(limit).ok());
    let selected = |objects: &mut dyn Iterator<Item = (Key, Object)>, after: Option<&Key>| {
        objects
            .filter(|((namespace, _), _)| request.namespace.is_empty() || *namespace == request.namespace)
            .filter(|(key, _)| after.is_none_or(|after| key > after))
            .filter(|(_, object)| request.selector.matches(resource, &object.value))
            .collect::<Vec<_>>()
    };
    let now = |after: Option<&Key>| {
        let mut all = store.list(resource, None).map(|object| (super::storage::key_of(&object.value), object.clone()));
        selected(&mut all, after)
    };
    let (shown, found) = if token.is_empty() {
        if number > store.version() {
            return Err(ApiError::too_large(number, store.version()));
        }
        // A page of an exact version is a page of the past; everything else shows what is there now.
        let exact = matching == "Exact" || (limit.is_some() && number > 0 && matching.is_empty());
        if exact && number < store.version() {
            let past = store
                .list_at(resource, number)
                .ok_or_else(|| ApiError::expired("The resourceVersion for the provided list is too old."))?;
            (number, selected(&mut past.into_iter(), None))
        } else {
            (store.version(), now(None))
        }
    } else {
        let (at, after) = decode_token(token)?;
        match at {
            Some(at) => {
                let past = store.list_at(resource, at).ok_or_else(|| {
                    let mut error = ApiError::expired(EXPIRED);
                    error.metadata = json!({"continue": encode_token(None, &after)});
                    error
                })?;
                (at, selected(&mut past.into_iter(), Some(&after)))
            }
            None => (store.version(), now(Some(&after))),
        }
    };
    let total = found.len();
    let items: Vec<(Key, Object)> = found.into_iter().take(limit.unwrap_or(usize::MAX)).collect();
    let (mut next, mut remaining) = (String::new(), None);
    if items.len() < total
        && let Some((last, _)) = items.last()
    {
        next = encode_token(Some(shown), last);
        // Counting what a selector leaves is not promised.
        remaining = request.selector.is_empty().then_some(total - items.len());
    }
    Ok(Page { version: shown, items: items.into_iter().map(|(_, object)| object).collect(), next, remaining })
}

impl Page {
    /// Metadata of the list object.
    pub fn metadata(&self) -> Value {
        let mut metadata = json!({"resourceVersion": self.version.to_string()});
        if !self.next.is_empty() {
            metadata["continue"] = json!(self.next);
        }
        if let Some(remaining) = self.remaining {
            metadata["remainingItemCount"] = json!(remaining);
        }
        metadata
    }
}

/// A `resourceVersion` parameter; empty is 0.
///
/// # Errors
/// 400.
pub fn parse_version(text: &str) -> Result<u64, ApiError> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| {
        ApiError::bad_request(format!("Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"))
    })
}

fn check_match(matching: &str, version: &str, token: &str) -> Result<(), ApiError> {
    let refuse = |error: FieldError| Err(ApiError::invalid("meta.k8s.io", "ListOptions", "", &[error]));
    let field = "resourceVersionMatch";
    match matching {
        "" => Ok(()),
        "Exact" | "NotOlderThan" if version.is_empty() => {
            refuse(FieldError::forbidden(field, "resourceVersionMatch is forbidden unless resourceVersion is provided"))
        }
        "Exact" | "NotOlderThan" if !token.is_empty() => {
            refuse(FieldError::forbidden(field, "resourceVersionMatch is forbidden when continue is provided"))
        }
        "Exact" if version == "0" => refuse(FieldError::forbidden(
            field,
            "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
        )),
        "Exact" | "NotOlderThan" => Ok(()),
        other => refuse(FieldError::unsupported(field, &json!(other), &["Exact", "NotOlderThan", ""])),
    }
}

/// `at`: the version of the first page; none continues with what is there now.
fn encode_token(at: Option<u64>, after: &Key) -> String {
    let rv = at.map_or(-1, |at| i64::try_from(at).unwrap_or(-1));
    URL_SAFE_NO_PAD
        .encode(json!({"v": "meta.k8s.io/v1", "rv": rv, "start": format!("{}/{}\u{0}", after.0, after.1)}).to_string())
}

fn decode_token(token: &str) -> Result<(Option<u64>, Key), ApiError> {
    let refuse = || {
        ApiError::bad_request(
            "continue key is not valid: incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
        )
    };
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| refuse())?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|_| refuse())?;
    let (namespace, name) = value["start"].as_str().and_then(|start| start.split_once('/')).ok_or_else(refuse)?;
    let at = value["rv"].as_i64().ok_or_else(refuse)?;
    Ok((u64::try_from(at).ok(), (namespace.to_owned(), name.trim_end_matches('\u{0}').to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::named;

    fn list(store: &Store, query: &str) -> Result<Page, ApiError> {
        page(store, named("configmaps"), &Request::parse("GET", "/api/v1/configmaps", query).unwrap())
    }

    fn filled(size: usize) -> Store {
        let mut store = Store::new(size);
        for name in ["a", "b", "c"] {
            store.put(named("configmaps"), json!({"metadata": {"namespace": "n", "name": name}}));
        }
        store
    }

    fn names(page: &Page) -> Vec<String> {
        page.items.iter().map(|one| one.value["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn pages_show_one_version_although_things_change() {
        let mut store = filled(100);
        let first = list(&store, "limit=2").unwrap();
        assert_eq!((names(&first), first.remaining), (vec!["a".to_owned(), "b".to_owned()], Some(1)));
        store.put(named("configmaps"), json!({"metadata": {"namespace": "n", "name": "d"}}));
        let second = list(&store, &format!("limit=2&continue={}", first.next)).unwrap();
        assert_eq!((names(&second), second.version), (vec!["c".to_owned()], first.version));
        assert_eq!(names(&list(&store, "").unwrap()).len(), 4);
    }

    #[test]
    fn a_page_of_a_forgotten_version_is_gone_and_offers_the_rest() {
        let mut store = filled(100);
        let first = list(&store, "limit=1").unwrap();
        store.put(named("configmaps"), json!({"metadata": {"namespace": "n", "name": "d"}}));
        store.compact();
        let error = list(&store, &format!("continue={}", first.next)).unwrap_err();
        assert_eq!((error.code, error.reason), (410, "Expired"));
        let token = error.metadata["continue"].as_str().unwrap().to_owned();
        assert_eq!(names(&list(&store, &format!("continue={token}")).unwrap()), ["b", "c", "d"]);
    }

    #[test]
    fn versions() {
        let store = filled(100);
        assert_eq!(list(&store, "resourceVersion=0").unwrap().items.len(), 3);
        assert_eq!(list(&store, "resourceVersion=2&resourceVersionMatch=Exact").unwrap().items.len(), 1);
        assert_eq!(list(&store, "resourceVersion=2&resourceVersionMatch=NotOlderThan").unwrap().items.len(), 3);
        for (query, code) in [
            ("resourceVersion=x", 400),
            ("resourceVersion=99", 504),
            ("resourceVersionMatch=Exact", 422),
            ("resourceVersion=1&resourceVersionMatch=Other", 422),
            ("continue=x", 400),
        ] {
            assert_eq!(list(&store, query).unwrap_err().code, code, "{query}");
        }
    }
}
