//! How objects go: graceful deletion of pods, finalizers, preconditions
//! (`apiserver/pkg/registry/rest/delete.go`, `generic/registry/store.go`, the pods' strategy).

use jiff::Timestamp;
use serde_json::{Value, json};

use super::clock::{later, stamp};
use super::node_restriction::{Operation, Write};
use super::registry::Context;
use super::resources::Resource;
use super::status::{ApiError, FieldError};
use super::storage::{Object, Store, Stored};

/// `DeleteOptions`, as far as they matter.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Options {
    pub grace_period_seconds: Option<i64>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub dry_run: bool,
}

impl Options {
    /// From a body (which may be empty) and the query.
    ///
    /// # Errors
    /// 400 for what is no JSON object.
    pub fn parse(body: &[u8], query: &super::request::Query) -> Result<Self, ApiError> {
        let options: Value = if body.is_empty() {
            json!({})
        } else {
            serde_json::from_slice(body)
                .map_err(|error| ApiError::bad_request(format!("unable to decode DeleteOptions: {error}")))?
        };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let dry_run = options["dryRun"].as_array().is_some_and(|list| list.iter().any(|one| one == "All"));
        Ok(Self {
            grace_period_seconds: options["gracePeriodSeconds"]
                .as_i64()
                .or_else(|| query.get("gracePeriodSeconds").parse().ok()),
            uid: text(&options["preconditions"]["uid"]),
            resource_version: text(&options["preconditions"]["resourceVersion"]),
            dry_run: dry_run || query.get("dryRun") == "All",
        })
    }
}

/// What a deletion does to an object.
#[derive(Debug, Clone, PartialEq)]
pub enum DeletionOutcome {
    /// It stays as it is: its end is pending already.
    Pending,
    /// It is marked with this time and period; gone at once where the period is 0 and nothing holds it.
    Mark { timestamp: String, grace_period_seconds: i64, bump_generation: bool },
    /// It goes now.
    Remove,
}

/// Decides, without changing anything.
///
/// # Errors
/// 409 where a precondition does not hold.
pub fn decide(
    resource: &Resource,
    object: &Value,
    options: &Options,
    now: Timestamp,
) -> Result<DeletionOutcome, ApiError> {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    let own = |field: &str| metadata[field].as_str().unwrap_or_default();
    if let Some(uid) = options.uid.as_deref().filter(|uid| *uid != own("uid")) {
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted \
             and then recreated",
            own("uid")
        );
        return Err(ApiError::conflict(resource.group, resource.kind, name, &why));
    }
    if let Some(version) = options.resource_version.as_deref().filter(|version| *version != own("resourceVersion")) {
        let why = format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). The \
             object might have been modified",
            own("resourceVersion")
        );
        return Err(ApiError::conflict(resource.group, resource.kind, name, &why));
    }
    if resource.kind != "Pod" {
        return Ok(DeletionOutcome::Remove);
    }
    // A negative period means one second.
    let asked = options.grace_period_seconds.map(|seconds| if seconds < 0 { 1 } else { seconds });
    if let Some(marked) = metadata["deletionTimestamp"].as_str() {
        let current = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        if current == 0 {
            return Ok(DeletionOutcome::Remove);
        }
        let Some(asked) = asked.filter(|asked| *asked < current) else { return Ok(DeletionOutcome::Pending) };
        let begun = marked.parse::<Timestamp>().unwrap_or(now);
        let (mut timestamp, mut period) = (later(begun, asked - current), asked);
        if timestamp < now {
            timestamp = now;
            // Still graceful: whoever looks after the pod has the last word.
            period = i64::from(asked != 0);
        }
        let timestamp = stamp(timestamp);
        return Ok(DeletionOutcome::Mark { timestamp, grace_period_seconds: period, bump_generation: false });
    }
    let ended = matches!(object["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
    let unscheduled = object["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
    let own_period = object["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(0);
    let period = match asked.unwrap_or(own_period) {
        _ if ended || unscheduled => 0,
        negative if negative < 0 => 1,
        period => period,
    };
    let timestamp = stamp(later(now, period));
    Ok(DeletionOutcome::Mark { timestamp, grace_period_seconds: period, bump_generation: true })
}

/// Deletes an object: its last content, and whether it is gone.
///
/// # Errors
/// 403, 404, 409.
pub fn delete(
    store: &mut Store,
    context: Context<'_>,
    resource: &'static Resource,
    namespace: &str,
    name: &str,
    options: &Options,
) -> Result<(Object, bool), ApiError> {
    let Some(existing) = store.get(resource, namespace, name) else {
        return Err(ApiError::not_found(resource, name));
    };
    context.admit(
        store,
        Write {
            operation: Operation::Delete,
            resource,
            subresource: "",
            namespace,
            name,
            new: None,
            old: Some(&existing.value),
        },
    )?;
    if resource.plural == "namespaces" && ["default", "kube-system", "kube-public"].contains(&name) {
        return Err(ApiError::forbidden(resource, name, "this namespace may not be deleted"));
    }
    if options.grace_period_seconds.is_some_and(|seconds| seconds < 0) && resource.kind != "Pod" {
        let error = FieldError::invalid("gracePeriodSeconds", &json!(options.grace_period_seconds), "must be >= 0");
        return Err(ApiError::invalid("meta.k8s.io", "DeleteOptions", "", &[error]));
    }
    let verdict = decide(resource, &existing.value, options, context.now)?;
    let held = existing.value["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty())
        || resource.plural == "namespaces";
    let mut object = existing.value.clone();
    let dry_run = options.dry_run || context.dry_run;
    match verdict {
        DeletionOutcome::Pending => return Ok((existing, false)),
        DeletionOutcome::Mark { timestamp, grace_period_seconds, bump_generation } => {
            object["metadata"]["deletionTimestamp"] = json!(timestamp);
            object["metadata"]["deletionGracePeriodSeconds"] = json!(grace_period_seconds);
            if bump_generation && let Some(generation) = object["metadata"]["generation"].as_i64() {
                object["metadata"]["generation"] = json!(generation + 1);
            }
            if dry_run {
                return Ok((Stored::detached(object), grace_period_seconds == 0));
            }
            // The mark is stored even where the object goes right after it: watchers see both.
            let marked = store.put(resource, object);
            if held || grace_period_seconds > 0 {
                return Ok((marked, false));
            }
        }
        DeletionOutcome::Remove if held => {
            if object["metadata"]["deletionTimestamp"].is_string() {
                return Ok((existing, false));
            }
            object["metadata"]["deletionTimestamp"] = json!(stamp(context.now));
            object["metadata"]["deletionGracePeriodSeconds"] = json!(0);
            if let Some(generation) = object["metadata"]["generation"].as_i64() {
                object["metadata"]["generation"] = json!(generation + 1);
            }
            if resource.plural == "namespaces" {
                object["status"]["phase"] = json!("Terminating");
            }
            return Ok((if dry_run { Stored::detached(object) } else { store.put(resource, object) }, false));
        }
        DeletionOutcome::Remove if dry_run => return Ok((existing, true)),
        DeletionOutcome::Remove => {}
    }
    let gone = store.remove(resource, namespace, name).unwrap_or(existing);
    Ok((gone, true))
}

/// Whether this update took away the last thing that held an object which is to go.
pub fn ends_with_this_update(new: &Value, old: &Value) -> bool {
    let finalizers = |object: &Value| object["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
    !finalizers(new)
        && old["metadata"]["deletionTimestamp"].is_string()
        && old["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && (finalizers(old) || old["spec"]["finalizers"].is_null())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::named;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn pod(phase: &str, node: &str) -> Value {
        json!({
            "metadata": {"name": "p", "uid": "u", "generation": 1},
            "spec": {"nodeName": node, "terminationGracePeriodSeconds": 30},
            "status": {"phase": phase},
        })
    }

    fn marked(period: i64) -> Value {
        let mut pod = pod("Running", "a");
        pod["metadata"]["deletionTimestamp"] = json!(stamp(at(period)));
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(period);
        pod
    }

    fn grace(object: &Value, asked: Option<i64>, now: i64) -> Option<(i64, String)> {
        let options = Options { grace_period_seconds: asked, ..Options::default() };
        match decide(named("pods"), object, &options, at(now)).unwrap() {
            DeletionOutcome::Mark { timestamp, grace_period_seconds, .. } => Some((grace_period_seconds, timestamp)),
            DeletionOutcome::Pending => None,
            DeletionOutcome::Remove => Some((-1, String::new())),
        }
    }

    #[test]
    fn the_period_of_a_first_deletion() {
        assert_eq!(grace(&pod("Running", "a"), None, 0), Some((30, stamp(at(30)))));
        assert_eq!(grace(&pod("Running", "a"), Some(5), 0), Some((5, stamp(at(5)))));
        assert_eq!(grace(&pod("Running", "a"), Some(-3), 0), Some((1, stamp(at(1)))));
        assert_eq!(grace(&pod("Pending", ""), None, 0), Some((0, stamp(at(0)))), "never scheduled");
        assert_eq!(grace(&pod("Succeeded", "a"), None, 0), Some((0, stamp(at(0)))), "ended");
        assert_eq!(grace(&pod("Failed", "a"), Some(9), 0), Some((0, stamp(at(0)))));
    }

    #[test]
    fn the_period_only_shrinks() {
        assert_eq!(grace(&marked(30), None, 3), None);
        assert_eq!(grace(&marked(30), Some(30), 3), None);
        assert_eq!(grace(&marked(30), Some(60), 3), None);
        assert_eq!(grace(&marked(30), Some(10), 3), Some((10, stamp(at(10)))));
        assert_eq!(grace(&marked(30), Some(2), 20), Some((1, stamp(at(20)))), "not into the past, still graceful");
        assert_eq!(grace(&marked(30), Some(0), 20), Some((0, stamp(at(20)))), "the node's last word");
        assert_eq!(grace(&marked(0), Some(0), 20), Some((-1, String::new())));
    }

    #[test]
    fn preconditions() {
        let with = |uid: &str| Options { uid: Some(uid.to_owned()), ..Options::default() };
        assert!(decide(named("pods"), &pod("", "a"), &with("u"), at(0)).is_ok());
        let error = decide(named("pods"), &pod("", "a"), &with("other"), at(0)).unwrap_err();
        assert_eq!(
            (error.code, error.message.as_str()),
            (
                409,
                "Operation cannot be fulfilled on Pod \"p\": the UID in the precondition (other) does not match the UID \
                 in record (u). The object might have been deleted and then recreated"
            )
        );
    }
}
