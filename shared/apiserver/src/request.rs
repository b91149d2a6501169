//! What a request asks for: verb, resource, namespace, name, subresource (`apiserver/pkg/endpoints/request`).

use percent_encoding::percent_decode_str;

use super::resources::{self, Resource};
use super::selectors::Selector;
use super::status::ApiError;

/// A request, taken apart.
#[derive(Debug, Clone)]
pub struct Request {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; the method in lower case for
    /// what is no resource.
    pub verb: &'static str,
    pub path: String,
    pub query: Query,
    /// `None` for what is no resource, or one that is not served.
    pub resource: Option<&'static Resource>,
    pub subresource: String,
    /// Empty for all namespaces and for what has none.
    pub namespace: String,
    /// Empty for collections, but for lists that select one name.
    pub name: String,
    pub selector: Selector,
    /// A path below `/api` or `/apis` that names a resource which is not served.
    pub unknown_resource: bool,
}

/// The query's parameters, in order.
#[derive(Debug, Clone, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(text: &str) -> Self {
        Self(form_urlencoded::parse(text.as_bytes()).into_owned().collect())
    }

    /// Empty where it is missing.
    pub fn get(&self, key: &str) -> &str {
        self.0.iter().find(|(name, _)| name == key).map_or("", |(_, value)| value.as_str())
    }

    /// All values of a key, in order.
    pub fn all<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    pub fn flag(&self, key: &str) -> bool {
        matches!(self.get(key), "true" | "1")
    }

    pub fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(name, _)| name == key)
    }

    pub fn number(&self, key: &str) -> Option<u64> {
        self.get(key).parse().ok()
    }
}

/// A segment of a path without its escapes; what is no valid UTF-8 becomes U+FFFD.
fn decoded(segment: &str) -> String {
    percent_decode_str(segment).decode_utf8_lossy().into_owned()
}

impl Request {
    /// Takes a method and a path with query apart.
    ///
    /// # Errors
    /// 400 for selectors that cannot be read.
    pub fn parse(method: &str, path: &str, query: &str) -> Result<Self, ApiError> {
        let query = Query::parse(query);
        let mut request = Self {
            verb: plain_verb(method),
            path: path.to_owned(),
            query,
            resource: None,
            subresource: String::new(),
            namespace: String::new(),
            name: String::new(),
            selector: Selector::default(),
            unknown_resource: false,
        };
        let segments: Vec<String> = path.split('/').filter(|segment| !segment.is_empty()).map(decoded).collect();
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let (group, version, rest) = match segments.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
            ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
            _ => return Ok(request),
        };
        let (namespace, plural, rest) = match rest {
            // A namespace's own subresources.
            ["namespaces", name, sub @ ("status" | "finalize")] => ("", "namespaces", vec![*name, *sub]),
            ["namespaces", namespace, plural, rest @ ..] => (*namespace, *plural, rest.to_vec()),
            [plural, rest @ ..] => ("", *plural, rest.to_vec()),
            [] => return Ok(request),
        };
        let Some(resource) = resources::find(group, version, plural) else {
            request.unknown_resource = true;
            return Ok(request);
        };
        request.resource = Some(resource);
        request.namespace = if resource.namespaced { namespace.to_owned() } else { String::new() };
        request.name = rest.first().copied().unwrap_or_default().to_owned();
        request.subresource = rest.get(1).copied().unwrap_or_default().to_owned();
        // Objects of a namespaced resource have no address outside of a namespace, and none has parts of parts (but what
        // is behind a proxy).
        let misplaced = (resource.namespaced && namespace.is_empty() && !request.name.is_empty())
            || (!resource.namespaced && !namespace.is_empty())
            || (rest.len() > 2 && request.subresource != "proxy")
            || (!request.subresource.is_empty() && !resource.has_subresource(&request.subresource));
        if misplaced {
            request.resource = None;
            request.unknown_resource = true;
            return Ok(request);
        }
        let collection = request.name.is_empty();
        if collection {
            let (labels, fields) = (request.query.get("labelSelector"), request.query.get("fieldSelector"));
            request.selector = Selector::parse(resource, labels, fields)?;
        }
        request.verb = match method {
            "GET" | "HEAD" if request.query.flag("watch") && request.subresource.is_empty() => "watch",
            "GET" | "HEAD" if collection => "list",
            "GET" | "HEAD" => "get",
            "POST" => "create",
            "PUT" => "update",
            "PATCH" => "patch",
            "DELETE" if collection => "deletecollection",
            "DELETE" => "delete",
            _ => request.verb,
        };
        if request.verb == "watch" && !collection {
            // The old way to watch one object.
            let field = format!("metadata.name={}", request.name);
            request.selector = Selector::parse(resource, "", &field)?;
        }
        if collection && let Some(name) = request.selector.exact("metadata.name") {
            request.name = name.to_owned();
        }
        Ok(request)
    }

    /// Whether the query asks for a try only.
    pub fn dry_run(&self) -> bool {
        self.query.get("dryRun") == "All"
    }
}

fn plain_verb(method: &str) -> &'static str {
    match method {
        "GET" => "get",
        "HEAD" => "head",
        "POST" => "post",
        "PUT" => "put",
        "PATCH" => "patch",
        "DELETE" => "delete",
        "OPTIONS" => "options",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        for (method, path, query, expected) in [
            ("GET", "/api/v1/pods", "", ("list", "pods", "", "", "")),
            ("GET", "/api/v1/namespaces/n/pods/a", "", ("get", "pods", "n", "a", "")),
            ("PATCH", "/api/v1/namespaces/n/pods/a/status", "", ("patch", "pods", "n", "a", "status")),
            ("GET", "/api/v1/namespaces/n", "", ("get", "namespaces", "", "n", "")),
            ("PUT", "/api/v1/namespaces/n/finalize", "", ("update", "namespaces", "", "n", "finalize")),
            ("POST", "/apis/storage.k8s.io/v1/csinodes", "", ("create", "csinodes", "", "", "")),
            ("GET", "/api/v1/nodes", "watch=true&fieldSelector=metadata.name%3Da", ("watch", "nodes", "", "a", "")),
            ("DELETE", "/api/v1/namespaces/n/pods", "", ("deletecollection", "pods", "n", "", "")),
            ("GET", "/api/v1/namespaces/n/pods/a/log", "follow=true", ("get", "pods", "n", "a", "log")),
            ("POST", "/api/v1/namespaces/n/pods/a/exec", "command=x", ("create", "pods", "n", "a", "exec")),
            ("GET", "/api/v1/nodes/a/proxy/logs/x/", "watch=true", ("get", "nodes", "", "a", "proxy")),
        ] {
            let request = Request::parse(method, path, query).unwrap();
            let plural = request.resource.map_or("", |resource| resource.plural);
            let seen =
                (request.verb, plural, request.namespace.as_str(), request.name.as_str(), request.subresource.as_str());
            assert_eq!(seen, expected, "{method} {path}");
        }
        for path in ["/api/v1/pods/a", "/api/v1/namespaces/n/nodes", "/apis/x/v1/y", "/api/v1/namespaces/n/pods/a/b"] {
            assert!(Request::parse("GET", path, "").unwrap().unknown_resource, "{path}");
        }
        assert!(!Request::parse("GET", "/healthz", "").unwrap().unknown_resource);
    }

    #[test]
    fn encoded_queries() {
        let query = Query::parse("fieldSelector=spec.clusterIP%21%3DNone&labelSelector=a+in+(b)&watch=true&x=%zz");
        assert_eq!(query.get("fieldSelector"), "spec.clusterIP!=None");
        assert_eq!(query.get("labelSelector"), "a in (b)");
        assert!(query.flag("watch"));
        assert_eq!(query.get("x"), "%zz");
    }
}
