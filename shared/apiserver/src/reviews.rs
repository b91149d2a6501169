//! Questions about users: TokenReview, SubjectAccessReview and their kin for oneself.

use serde_json::{Value, json};

use super::Shared;
use super::authentication::user_of_token;
use super::authorization::{self, Attributes};
use super::identity::User;
use super::request::{Query, Request};
use super::resources::Resource;
use super::selectors::Selector;

/// Answers a review.
pub(super) fn answer(shared: &Shared, user: &User, resource: &Resource, mut review: Value) -> Value {
    if let Some(metadata) = review["metadata"].as_object_mut() {
        metadata.entry("creationTimestamp").or_insert(Value::Null);
    }
    review["status"] = match resource.kind {
        "TokenReview" => token(shared, &review["spec"]),
        "SelfSubjectReview" => json!({"userInfo": user.to_json()}),
        "SelfSubjectAccessReview" => access(shared, user, &review["spec"]),
        _ => {
            let spec = &review["spec"];
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let asked = User {
                name: text(&spec["user"]),
                uid: text(&spec["uid"]),
                groups: spec["groups"].as_array().into_iter().flatten().map(text).collect(),
                extra: Vec::new(),
            };
            access(shared, &asked, spec)
        }
    };
    review
}

fn token(shared: &Shared, spec: &Value) -> Value {
    let audiences: Vec<String> =
        spec["audiences"].as_array().into_iter().flatten().filter_map(|one| one.as_str().map(str::to_owned)).collect();
    match user_of_token(shared, spec["token"].as_str().unwrap_or_default(), &audiences) {
        Ok((user, audiences)) => json!({"authenticated": true, "user": user.to_json(), "audiences": audiences}),
        Err(why) => json!({"user": {}, "error": format!("[invalid bearer token, {why}]")}),
    }
}

fn access(shared: &Shared, user: &User, spec: &Value) -> Value {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let asked = &spec["resourceAttributes"];
    let attributes = if asked.is_object() {
        Attributes {
            verb: text(&asked["verb"]),
            group: text(&asked["group"]),
            resource: text(&asked["resource"]),
            subresource: text(&asked["subresource"]),
            namespace: text(&asked["namespace"]),
            name: text(&asked["name"]),
            path: String::new(),
        }
    } else {
        let asked = &spec["nonResourceAttributes"];
        Attributes { verb: text(&asked["verb"]), path: text(&asked["path"]), ..Attributes::default() }
    };
    let request = authorization::as_request(&attributes).unwrap_or_else(|| Request {
        verb: "get",
        path: attributes.path.clone(),
        query: Query::default(),
        resource: None,
        subresource: attributes.subresource.clone(),
        namespace: attributes.namespace.clone(),
        name: attributes.name.clone(),
        selector: Selector::default(),
        unknown_resource: false,
    });
    match authorization::decide(&shared.store(), &shared.grants(), user, &attributes, &request) {
        Ok(()) => json!({"allowed": true}),
        Err(reason) if reason.is_empty() => json!({"allowed": false}),
        Err(reason) => json!({"allowed": false, "reason": reason}),
    }
}
