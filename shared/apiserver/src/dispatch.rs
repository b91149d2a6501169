//! From a request to an answer: the one place where verbs meet resources.

use serde_json::{Value, json};

use super::authorization;
use super::deletion::{self, Options};
use super::discovery::{self, Answer};
use super::identity::User;
use super::kubelets::{self, Passage, Way};
use super::negotiation::{self, Output};
use super::node_restriction::{Operation, Write};
use super::patch::PatchType;
use super::registry::{self, Context};
use super::request::Request;
use super::resources::{Resource, named};
use super::status::{self, ApiError};
use super::storage::{Object, Store};
use super::watches::Watch;
use super::{Shared, lists, reviews, table};

/// An answer before it is written.
#[derive(Debug)]
pub(super) enum Reply {
    Full { code: u16, content_type: &'static str, body: bytes::Bytes },
    Stream(Box<Watch>),
    Node(Box<Passage>),
}

/// What a request brought along.
#[derive(Debug, Clone, Copy)]
pub(super) struct Brought<'a> {
    pub accept: &'a str,
    pub content_type: &'a str,
    pub body: &'a [u8],
}

const JSON: &str = "application/json";

impl Reply {
    pub(super) fn json(code: u16, value: &Value) -> Self {
        Self::Full { code, content_type: JSON, body: value.to_string().into() }
    }
}

/// Answers an authenticated request.
///
/// # Errors
/// The refusal.
pub(super) fn dispatch(
    shared: &Shared,
    user: &User,
    request: Request,
    brought: Brought<'_>,
) -> Result<Reply, ApiError> {
    {
        let store = shared.store();
        let grants = shared.grants();
        authorization::authorize(&store, &grants, user, &request)?;
        if let Some(also) = also_asked(&request) {
            authorization::authorize(&store, &grants, user, &also)?;
        }
        match kubelets::way(&store, &request)? {
            Way::Own => {}
            Way::Empty => return Ok(Reply::Full { code: 204, content_type: "text/plain", body: bytes::Bytes::new() }),
            Way::Node(passage) => return Ok(Reply::Node(Box::new(passage))),
        }
    }
    let Some(resource) = request.resource else {
        if request.unknown_resource {
            return Err(ApiError::no_such_resource());
        }
        return Ok(match discovery::answer(&request.path, brought.accept, &shared.address())? {
            Answer::Json(value) => Reply::json(200, &value),
            Answer::Text(text) => {
                Reply::Full { code: 200, content_type: "text/plain; charset=utf-8", body: text.into() }
            }
            Answer::Binary(content_type, body) => Reply::Full { code: 200, content_type, body: body.into() },
        });
    };
    let output = negotiation::output(brought.accept)?;
    if request.verb == "watch" {
        return Ok(Reply::Stream(Box::new(Watch::new(resource, request, output)?)));
    }
    if matches!(request.verb, "create" | "update" | "delete" | "deletecollection") && !brought.body.is_empty() {
        negotiation::expect_json(brought.content_type)?;
    }
    if resource.question {
        return match request.verb {
            "create" => {
                let review = registry::decode(resource, resource.kind, brought.body)?;
                Ok(Reply::json(201, &reviews::answer(shared, user, resource, review)))
            }
            verb => Err(ApiError::method_not_allowed(resource, verb)),
        };
    }
    let context = Context {
        user,
        now: shared.clock.now(),
        dry_run: request.dry_run(),
        taint_new_nodes: shared.config.taint_new_nodes,
    };
    let mut store = shared.store();
    let view = View { resource, request: &request, output };
    match (request.verb, request.subresource.as_str()) {
        ("get", "" | "status" | "ephemeralcontainers" | "resize" | "approval") => {
            let version = lists::parse_version(request.query.get("resourceVersion"))?;
            if version > store.version() {
                return Err(ApiError::too_large(version, store.version()));
            }
            let found = store.get(resource, &request.namespace, &request.name);
            view.object(200, &found.ok_or_else(|| ApiError::not_found(resource, &request.name))?)
        }
        ("list", "") => {
            let page = lists::page(&store, resource, &request)?;
            Ok(view.list(&page))
        }
        ("create", "") if request.name.is_empty() => {
            let object = registry::decode(resource, resource.kind, brought.body)?;
            view.object(201, &registry::create(&mut store, context, resource, &request.namespace, object)?)
        }
        ("create", "binding") => binding(&mut store, context, &request, brought.body),
        ("create", "eviction") => eviction(&mut store, context, &request, brought.body),
        ("create", "token") => {
            let token = registry::decode(resource, "TokenRequest", brought.body)?;
            context.admit(&store, write_of(&request, resource, Operation::Create, &token))?;
            let issued = shared.tokens.issue(&store, &request.namespace, &request.name, token, context.now)?;
            Ok(Reply::json(201, &issued))
        }
        ("update", "" | "status" | "approval" | "finalize" | "ephemeralcontainers" | "resize") => {
            let object = registry::decode(resource, resource.kind, brought.body)?;
            let (object, new) = registry::replace(&mut store, context, resource, &request, object)?;
            view.object(if new { 201 } else { 200 }, &object)
        }
        ("patch", "" | "status" | "approval" | "ephemeralcontainers" | "resize") => {
            let kind = PatchType::parse(negotiation::media_type(brought.content_type))?;
            let (object, new) = registry::patch(&mut store, context, resource, &request, kind, brought.body)?;
            view.object(if new { 201 } else { 200 }, &object)
        }
        ("delete", "") => {
            let options = Options::parse(brought.body, &request.query)?;
            let (object, gone) =
                deletion::delete(&mut store, context, resource, &request.namespace, &request.name, &options)?;
            if gone && !resource.returns_deleted {
                let uid = object.value["metadata"]["uid"].as_str().unwrap_or_default();
                return Ok(Reply::json(200, &status::deleted(resource, &request.name, uid)));
            }
            view.object(200, &object)
        }
        ("deletecollection", "") => {
            let options = Options::parse(brought.body, &request.query)?;
            let page = lists::page(&store, resource, &request)?;
            let mut items = Vec::new();
            for object in &page.items {
                let (namespace, name) = super::storage::key_of(&object.value);
                items.push(deletion::delete(&mut store, context, resource, &namespace, &name, &options)?.0);
            }
            Ok(view.list(&lists::Page { version: store.version(), items, next: String::new(), remaining: None }))
        }
        (verb, _) => Err(ApiError::method_not_allowed(resource, verb)),
    }
}

/// Streams that begin with a GET need the right to create too (gate AuthorizePodWebsocketUpgradeCreatePermission).
fn also_asked(request: &Request) -> Option<Request> {
    let stream = matches!(request.subresource.as_str(), "exec" | "attach" | "portforward");
    (stream && request.verb == "get").then(|| Request { verb: "create", ..request.clone() })
}

fn write_of<'a>(request: &'a Request, resource: &'static Resource, operation: Operation, new: &'a Value) -> Write<'a> {
    Write {
        operation,
        resource,
        subresource: &request.subresource,
        namespace: &request.namespace,
        name: &request.name,
        new: Some(new),
        old: None,
    }
}

/// How objects are shown to this client.
struct View<'a> {
    resource: &'static Resource,
    request: &'a Request,
    output: Output,
}

impl View<'_> {
    fn object(&self, code: u16, object: &Object) -> Result<Reply, ApiError> {
        Ok(match self.output {
            Output::Json => Reply::Full { code, content_type: JSON, body: object.json() },
            Output::Metadata => Reply::json(code, &negotiation::metadata_of(&object.value)),
            Output::Table => {
                let metadata = json!({"resourceVersion": object.value["metadata"]["resourceVersion"]});
                Reply::json(code, &self.table(std::slice::from_ref(object), metadata))
            }
        })
    }

    fn table(&self, objects: &[Object], metadata: Value) -> Value {
        table::of(self.resource, objects, metadata, &self.request.query, std::time::SystemTime::now())
    }

    fn list(&self, page: &lists::Page) -> Reply {
        if self.output == Output::Table {
            return Reply::json(200, &self.table(&page.items, page.metadata()));
        }
        let metadata_only = self.output == Output::Metadata;
        let items: Vec<Value> = page
            .items
            .iter()
            .map(|object| {
                if metadata_only {
                    return negotiation::metadata_of(&object.value);
                }
                // Elements of a typed list do not repeat what the list says.
                let mut value = object.value.clone();
                if let Some(map) = value.as_object_mut() {
                    map.remove("kind");
                    map.remove("apiVersion");
                }
                value
            })
            .collect();
        let (kind, version) = match metadata_only {
            true => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
            false => (format!("{}List", self.resource.kind), self.resource.api_version()),
        };
        Reply::json(200, &json!({"kind": kind, "apiVersion": version, "metadata": page.metadata(), "items": items}))
    }
}

/// `pods/binding`: puts a pod on a node.
fn binding(store: &mut Store, context: Context<'_>, request: &Request, body: &[u8]) -> Result<Reply, ApiError> {
    let pods = named("pods");
    let binding = registry::decode(pods, "Binding", body)?;
    let name = binding["metadata"]["name"].as_str().unwrap_or_default();
    if !name.is_empty() && name != request.name {
        return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
    }
    context.admit(store, write_of(request, pods, Operation::Create, &binding))?;
    let pod =
        store.get(pods, &request.namespace, &request.name).ok_or_else(|| ApiError::not_found(pods, &request.name))?;
    let uid = pod.value["metadata"]["uid"].as_str().unwrap_or_default();
    if let Some(wanted) = binding["metadata"]["uid"].as_str().filter(|wanted| !wanted.is_empty() && *wanted != uid) {
        let why = registry::storage_precondition(pods, &request.namespace, &request.name, wanted, uid);
        return Err(ApiError::conflict("", "pods", &request.name, &why));
    }
    let bound =
        bound(&pod.value, &binding).map_err(|why| ApiError::conflict("", "pods/binding", &request.name, &why))?;
    if !context.dry_run {
        store.put(pods, bound);
    }
    Ok(Reply::json(
        201,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
    ))
}

/// The pod with its node and the condition that says so.
pub(super) fn bound(pod: &Value, binding: &Value) -> Result<Value, String> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    if pod["metadata"]["deletionTimestamp"].is_string() {
        return Err(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    if let Some(node) = pod["spec"]["nodeName"].as_str().filter(|node| !node.is_empty()) {
        return Err(format!("pod {name} is already assigned to node {node:?}"));
    }
    if pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
        return Err(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    let mut pod = pod.clone();
    pod["spec"]["nodeName"] = binding["target"]["name"].clone();
    for map in ["annotations", "labels"] {
        for (key, value) in binding["metadata"][map].as_object().into_iter().flatten() {
            pod["metadata"][map][key] = value.clone();
        }
    }
    if let Some(status) = pod["status"].as_object_mut() {
        status.remove("nominatedNodeName");
    }
    let now = super::clock::stamp(jiff::Timestamp::now());
    let condition = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now,
    });
    match pod["status"]["conditions"].as_array_mut() {
        Some(conditions) => {
            conditions.retain(|one| one["type"] != "PodScheduled");
            conditions.push(condition);
        }
        None => pod["status"]["conditions"] = json!([condition]),
    }
    // A binding is no change of the specification that its author made.
    Ok(pod)
}

/// `pods/eviction`: a deletion with the options of the eviction; there are no budgets here.
fn eviction(store: &mut Store, context: Context<'_>, request: &Request, body: &[u8]) -> Result<Reply, ApiError> {
    let pods = named("pods");
    let eviction = registry::decode(pods, "Eviction", body)?;
    context.admit(store, write_of(request, pods, Operation::Create, &eviction))?;
    let options = Options::parse(eviction["deleteOptions"].to_string().as_bytes(), &request.query).unwrap_or_default();
    deletion::delete(store, context, pods, &request.namespace, &request.name, &options)?;
    Ok(Reply::json(
        201,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
    ))
}
