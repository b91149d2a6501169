//! Who may do what: masters everything, nodes what the node authorizer allows, everybody else what they were granted
//! (modes `Node,RBAC` of the real server, with grants instead of RBAC objects).

use super::identity::{AUTHENTICATED, CLUSTER_ADMINS, MASTERS, User};
use super::node_authorizer;
use super::request::Request;
use super::resources;
use super::status::ApiError;
use super::storage::Store;

/// What somebody wants to do.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Attributes {
    pub verb: String,
    pub group: String,
    /// Empty for a path that is no resource.
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub path: String,
}

/// Verbs on resources for a user or a group.
#[derive(Debug, Clone)]
pub struct Grant {
    /// A user's name or a group's.
    pub to: String,
    /// `*` for all.
    pub verbs: Vec<String>,
    /// As `pods`, `nodes/proxy`, `nodes/*`, `leases`; `*` for all.
    pub resources: Vec<String>,
}

impl Grant {
    pub fn new(to: &str, verbs: &[&str], resources: &[&str]) -> Self {
        let owned = |list: &[&str]| list.iter().map(|one| (*one).to_owned()).collect();
        Self { to: to.to_owned(), verbs: owned(verbs), resources: owned(resources) }
    }

    fn allows(&self, user: &User, attributes: &Attributes) -> bool {
        let sub =
            if attributes.subresource.is_empty() { String::new() } else { format!("/{}", attributes.subresource) };
        let resource = format!("{}{sub}", attributes.resource);
        (self.to == user.name || user.is_in(&self.to))
            && self.verbs.iter().any(|verb| verb == "*" || *verb == attributes.verb)
            && self.resources.iter().any(|one| {
                let all_parts = one.strip_suffix("/*").is_some_and(|plural| plural == attributes.resource);
                one == "*" || *one == resource || (all_parts && !attributes.subresource.is_empty())
            })
    }
}

impl Attributes {
    pub fn of(request: &Request) -> Self {
        let mut attributes = Self { verb: request.verb.to_owned(), path: request.path.clone(), ..Self::default() };
        if let Some(resource) = request.resource {
            attributes.group = resource.group.to_owned();
            attributes.resource = resource.plural.to_owned();
            attributes.subresource = request.subresource.clone();
            attributes.namespace = request.namespace.clone();
            attributes.name = request.name.clone();
        }
        attributes
    }
}

const PUBLIC: &[&str] = &["/healthz", "/livez", "/readyz", "/version"];
const DISCOVERY: &[&str] = &["/api", "/apis", "/openapi"];

/// Allowed, or the reason that goes into the refusal.
///
/// # Errors
/// The reason; empty for none.
pub fn decide(
    store: &Store,
    grants: &[Grant],
    user: &User,
    attributes: &Attributes,
    request: &Request,
) -> Result<(), String> {
    if user.is_in(MASTERS) || user.is_in(CLUSTER_ADMINS) || grants.iter().any(|grant| grant.allows(user, attributes)) {
        return Ok(());
    }
    let below = |paths: &[&str]| {
        paths.iter().any(|path| attributes.path == *path || attributes.path.starts_with(&format!("{path}/")))
    };
    if attributes.resource.is_empty() {
        let readable = below(PUBLIC) || (user.is_in(AUTHENTICATED) && below(DISCOVERY));
        return if readable && attributes.verb == "get" { Ok(()) } else { Err(String::new()) };
    }
    let about_self = matches!(attributes.resource.as_str(), "selfsubjectaccessreviews" | "selfsubjectreviews");
    if about_self && user.is_in(AUTHENTICATED) && attributes.verb == "create" {
        return Ok(());
    }
    let csr = attributes.resource == "certificatesigningrequests" && attributes.subresource.is_empty();
    if csr
        && user.is_in("system:bootstrappers")
        && ["create", "get", "list", "watch"].contains(&attributes.verb.as_str())
    {
        return Ok(());
    }
    match user.as_node() {
        Some("") => Err(format!("unknown node for user {:?}", user.name)),
        Some(node) => node_authorizer::authorize(store, node, request),
        None => Err(String::new()),
    }
}

/// As [`decide`], with the refusal that a client gets.
///
/// # Errors
/// 403.
pub fn authorize(store: &Store, grants: &[Grant], user: &User, request: &Request) -> Result<(), ApiError> {
    let attributes = Attributes::of(request);
    let Err(reason) = decide(store, grants, user, &attributes, request) else { return Ok(()) };
    let Some(resource) = request.resource else {
        return Err(ApiError::forbidden_path(&user.name, request.verb, &request.path));
    };
    let sub = if request.subresource.is_empty() { String::new() } else { format!("/{}", request.subresource) };
    let what = format!(
        "User {:?} cannot {} resource {:?} in API group {:?}",
        user.name,
        request.verb,
        format!("{}{sub}", resource.plural),
        resource.group
    );
    let place = match request.namespace.as_str() {
        "" => " at the cluster scope".to_owned(),
        namespace => format!(" in the namespace {namespace:?}"),
    };
    let reason = if reason.is_empty() { reason } else { format!(": {reason}") };
    Err(ApiError::forbidden(resource, &request.name, &format!("{what}{place}{reason}")))
}

/// The request that attributes stand for, as far as the node authorizer looks at it.
pub fn as_request(attributes: &Attributes) -> Option<Request> {
    let resource = resources::find(&attributes.group, "v1", &attributes.resource)?;
    let namespace = Some(attributes.namespace.as_str());
    let name = Some(attributes.name.as_str()).filter(|name| !name.is_empty());
    let mut request = Request::parse("GET", &resource.path(namespace.filter(|one| !one.is_empty()), name), "").ok()?;
    let verbs = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
    request.resource = Some(resource);
    request.verb = verbs.into_iter().find(|verb| *verb == attributes.verb).unwrap_or("unknown");
    request.subresource.clone_from(&attributes.subresource);
    Some(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(user: &User, method: &str, path: &str) -> String {
        let request = Request::parse(method, path, "").unwrap();
        let grants = [Grant::new("viewer", &["get", "list"], &["pods"])];
        authorize(&Store::new(1), &grants, user, &request).map_or_else(|error| error.message, |()| String::new())
    }

    #[test]
    fn refusals_are_worded_as_the_real_servers() {
        assert_eq!(
            refused(&User::anonymous(), "GET", "/api/v1/namespaces/default/pods"),
            "pods is forbidden: User \"system:anonymous\" cannot list resource \"pods\" in API group \"\" in the namespace \
             \"default\""
        );
        assert_eq!(
            refused(&User::node("a"), "GET", "/api/v1/nodes/b"),
            "nodes \"b\" is forbidden: User \"system:node:a\" cannot get resource \"nodes\" in API group \"\" at the cluster \
             scope: node 'a' cannot read 'b', only its own Node object"
        );
        assert_eq!(
            refused(&User::anonymous(), "GET", "/api"),
            "forbidden: User \"system:anonymous\" cannot get path \"/api\""
        );
    }

    #[test]
    fn who_may() {
        let admin = User::new("admin", &[MASTERS]);
        assert_eq!(refused(&admin, "DELETE", "/api/v1/nodes/a"), "");
        assert_eq!(refused(&User::anonymous(), "GET", "/healthz"), "");
        assert_eq!(refused(&User::node("a"), "GET", "/apis"), "");
        let viewer = User::new("viewer", &[]);
        assert_eq!(refused(&viewer, "GET", "/api/v1/pods"), "");
        assert_ne!(refused(&viewer, "DELETE", "/api/v1/namespaces/n/pods/a"), "");
        let joining = User::new("x", &["system:bootstrappers"]);
        assert_eq!(refused(&joining, "POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests"), "");
    }
}
