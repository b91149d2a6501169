//! One request about a pod: how it is put, and what its answer means.

use std::time::Duration;

use bulkhead_types::PodUid;
use http::{Method, Request, header};
use kube::Client;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tracing::Instrument as _;

use super::copies::ApiCopy;
use crate::api_writer::{ANSWER_DEADLINE, retry_after};

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Strategic merge patch of the status. `minor`: it could have waited; `makes`: fingerprint of the status that it leads to.
    Patch {
        body: Vec<u8>,
        minor: bool,
        makes: u64,
    },
    /// The final DELETE of a pod.
    DeletePod,
    DeleteMirror,
    /// DELETE of a mirror pod without a static pod.
    DeleteOrphan,
    Create {
        body: Vec<u8>,
    },
    /// GET: it is not known what stands under the name.
    Look,
}

impl Action {
    /// For metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Action::Patch { .. } => "patch_status",
            Action::DeletePod => "delete",
            Action::DeleteMirror | Action::DeleteOrphan => "delete_mirror",
            Action::Create { .. } => "create_mirror",
            Action::Look => "get",
        }
    }
}

/// A request to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Uid of the pod as kubelet-syncd names it; `None` for an orphaned mirror pod.
    pub pod: Option<PodUid>,
    pub namespace: String,
    pub name: String,
    /// Uid of the API object, where there is one.
    pub target: Option<PodUid>,
    /// Of the wish that is written.
    pub fingerprint: u64,
    /// The span that this request is made because of; empty where there is none.
    pub trace_parent: String,
    pub action: Action,
}

impl Job {
    /// For logs and spans: the pod's uid, or its mirror's.
    pub fn uid(&self) -> &str {
        self.pod.as_ref().or(self.target.as_ref()).map_or("", PodUid::as_str)
    }
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The object as it is now.
    Object(ApiCopy),
    /// It was deleted.
    Done,
    /// 404.
    Missing,
    /// 409, or 422 for the uid: the uid is another's, the name is taken, or two wrote at once.
    Conflict,
    /// The server is there and wants to be asked again, perhaps not before some time.
    Later(Option<Duration>),
    /// The server says no, and would again.
    Refused,
    /// No answer: nothing is known of the effect.
    Silent,
}

impl Outcome {
    /// For metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Outcome::Object(_) | Outcome::Done => "ok",
            Outcome::Missing => "not_found",
            Outcome::Conflict => "conflict",
            Outcome::Later(_) => "later",
            Outcome::Refused => "refused",
            Outcome::Silent => "no_answer",
        }
    }
}

/// A request that cannot be put.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("{0:?} cannot be a name on the API server")]
    Name(String),
    #[error("nothing is deleted without the uid of the object that is meant")]
    NoTarget,
    #[error("request cannot be put")]
    Http(#[from] http::Error),
}

/// The request for a job.
///
/// # Errors
/// [`RequestError`].
pub fn request(job: &Job) -> Result<Request<Vec<u8>>, RequestError> {
    for name in [&job.namespace, &job.name] {
        let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
        if name.is_empty() || name.starts_with('.') || !name.bytes().all(fits) {
            return Err(RequestError::Name(name.clone()));
        }
    }
    let pods = format!("/api/v1/namespaces/{}/pods", job.namespace);
    let pod = format!("{pods}/{}", job.name);
    let json = |method: Method, path: String, kind: &str, body: Vec<u8>| {
        Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, kind).body(body)
    };
    Ok(match &job.action {
        Action::Patch { body, .. } => {
            json(Method::PATCH, format!("{pod}/status"), "application/strategic-merge-patch+json", body.clone())?
        }
        Action::DeletePod | Action::DeleteMirror | Action::DeleteOrphan => {
            let target = job.target.as_ref().ok_or(RequestError::NoTarget)?;
            let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0,
                "preconditions": {"uid": target.as_str()}});
            json(Method::DELETE, pod, "application/json", options.to_string().into_bytes())?
        }
        Action::Create { body } => json(Method::POST, pods, "application/json", body.clone())?,
        Action::Look => Request::get(pod).body(Vec::new())?,
    })
}

/// Sends it and waits for the answer, for [`ANSWER_DEADLINE`] at most.
pub async fn send(client: &Client, job: &Job) -> Outcome {
    let span = match job.trace_parent.as_str() {
        "" => tracing::Span::none(),
        parent => tracing::info_span!(
            target: bulkhead_trace::TARGET,
            "request",
            { bulkhead_trace::NAME_FIELD } = job.action.name(),
            { bulkhead_trace::KIND_FIELD } = "client",
            { bulkhead_trace::PARENT_FIELD } = parent,
            k8s.pod.uid = job.uid(),
            k8s.pod.name = job.name,
            k8s.namespace.name = job.namespace,
            outcome = tracing::field::Empty,
        ),
    };
    let outcome = send_it(client, job).instrument(span.clone()).await;
    span.record("outcome", outcome.name());
    outcome
}

async fn send_it(client: &Client, job: &Job) -> Outcome {
    let mut request = match request(job) {
        Ok(request) => request,
        Err(error) => {
            tracing::warn!(pod_uid = job.uid(), %error, "failed to send request");
            return Outcome::Refused;
        }
    };
    if let Some(value) = bulkhead_trace::current().and_then(|current| current.to_string().parse().ok()) {
        request.headers_mut().insert(bulkhead_trace::HEADER, value);
    }
    let answer = tokio::time::timeout(ANSWER_DEADLINE, client.request_text(request)).await;
    let outcome = match &answer {
        Ok(answer) => outcome(&job.action, answer),
        Err(_) => Outcome::Silent,
    };
    if let Ok(Err(error)) = &answer
        && !matches!(outcome, Outcome::Missing | Outcome::Conflict)
    {
        tracing::warn!(pod_uid = job.uid(), name = %job.name, namespace = %job.namespace, action = job.action.name(), %error,
            "API server rejected request");
    }
    outcome
}

/// What an answer means.
pub fn outcome(action: &Action, answer: &Result<String, kube::Error>) -> Outcome {
    let is_delete = matches!(action, Action::DeletePod | Action::DeleteMirror | Action::DeleteOrphan);
    match answer {
        // The answer to a DELETE shows the pod as it was; only a finalizer keeps it.
        Ok(text) if is_delete && !has_finalizers(text) => Outcome::Done,
        Ok(text) => match ApiCopy::answered(text.as_bytes()) {
            Some(copy) => Outcome::Object(copy),
            None => Outcome::Later(None),
        },
        Err(kube::Error::Api(status)) => refusal(status),
        Err(_) => Outcome::Silent,
    }
}

fn refusal(status: &kube::core::Status) -> Outcome {
    let after = retry_after(status);
    match status.code {
        404 => Outcome::Missing,
        409 => Outcome::Conflict,
        // A PATCH has no precondition of its own (upstream `registry/rest/update.go`, DefaultUpdatedObjectInfo without an
        // object): another pod's uid in it is a change of a field that never changes.
        422 if is_other_uid(status) => Outcome::Conflict,
        // A proxy without anybody behind it.
        502..=504 if after.is_none() => Outcome::Silent,
        401 | 408 | 429 | 500.. => Outcome::Later(after),
        _ => Outcome::Refused,
    }
}

fn is_other_uid(status: &kube::core::Status) -> bool {
    let causes = status.details.as_ref().map_or(&[][..], |details| &details.causes);
    causes.iter().any(|cause| cause.field == "metadata.uid")
}

/// Of the rest of an answer nothing is looked at: others decide what is in it, and how deep that nests.
fn has_finalizers(text: &str) -> bool {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Answer {
        metadata: Metadata,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Metadata {
        finalizers: Option<Vec<IgnoredAny>>,
    }
    let answer: Answer = serde_json::from_str(text).unwrap_or_default();
    answer.metadata.finalizers.is_some_and(|finalizers| !finalizers.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn job(action: Action) -> Job {
        Job {
            pod: PodUid::parse("u").ok(),
            namespace: "d".into(),
            name: "p".into(),
            target: PodUid::parse("u").ok(),
            fingerprint: 0,
            trace_parent: String::new(),
            action,
        }
    }

    #[test]
    fn requests_are_upstreams() {
        let patch = request(&job(Action::Patch { body: b"{}".to_vec(), minor: false, makes: 0 })).unwrap();
        assert_eq!((patch.method().as_str(), patch.uri().path()), ("PATCH", "/api/v1/namespaces/d/pods/p/status"));
        assert_eq!(patch.headers()["content-type"], "application/strategic-merge-patch+json");
        let delete = request(&job(Action::DeletePod)).unwrap();
        let body: Value = serde_json::from_slice(delete.body()).unwrap();
        assert_eq!((delete.method().as_str(), delete.uri().path()), ("DELETE", "/api/v1/namespaces/d/pods/p"));
        assert_eq!((&body["gracePeriodSeconds"], &body["preconditions"]["uid"]), (&json!(0), &json!("u")));
        let create = request(&job(Action::Create { body: b"{}".to_vec() })).unwrap();
        assert_eq!((create.method().as_str(), create.uri().path()), ("POST", "/api/v1/namespaces/d/pods"));
        assert_eq!(request(&job(Action::Look)).unwrap().method(), Method::GET);
    }

    #[test]
    fn nothing_is_deleted_without_a_uid() {
        for action in [Action::DeletePod, Action::DeleteMirror, Action::DeleteOrphan] {
            assert!(matches!(request(&Job { target: None, ..job(action) }), Err(RequestError::NoTarget)));
        }
    }

    #[test]
    fn a_name_is_no_path() {
        for name in ["", "../x", "a/b", "a?b", "a%2f", ".."] {
            assert!(request(&Job { name: name.into(), ..job(Action::Look) }).is_err(), "{name}");
            assert!(request(&Job { namespace: name.into(), ..job(Action::Look) }).is_err(), "{name}");
        }
    }

    #[test]
    fn another_pods_uid_is_a_conflict_in_every_form_of_the_answer() {
        let invalid = |fields: &[&str]| {
            let causes: Vec<Value> = fields
                .iter()
                .map(|field| json!({"reason": "FieldValueInvalid", "message": "field is immutable", "field": field}))
                .collect();
            let answer = json!({"status": "Failure", "reason": "Invalid", "code": 422, "details": {"causes": causes}});
            let status: kube::core::Status = serde_json::from_value(answer).unwrap();
            outcome(&Action::Patch { body: Vec::new(), minor: false, makes: 0 }, &Err(kube::Error::Api(status.boxed())))
        };
        assert_eq!(invalid(&["metadata.uid"]), Outcome::Conflict);
        assert_eq!(invalid(&["status.phase", "metadata.uid"]), Outcome::Conflict);
        assert_eq!(invalid(&["status.podIP"]), Outcome::Refused);
    }

    #[test]
    fn answers_mean_what_they_say() {
        let failed = |code: u16, after: u32| {
            let answer = json!({"status": "Failure", "code": code, "details": {"retryAfterSeconds": after}});
            let status: kube::core::Status = serde_json::from_value(answer).unwrap();
            outcome(&Action::Look, &Err(kube::Error::Api(status.boxed())))
        };
        assert_eq!(failed(404, 0), Outcome::Missing);
        assert_eq!(failed(409, 0), Outcome::Conflict);
        assert_eq!(failed(429, 7), Outcome::Later(Some(Duration::from_secs(7))));
        assert_eq!(failed(500, 0), Outcome::Later(None));
        assert_eq!(failed(503, 0), Outcome::Silent);
        assert_eq!(failed(503, 2), Outcome::Later(Some(Duration::from_secs(2))));
        assert_eq!(failed(403, 0), Outcome::Refused);
        assert_eq!(failed(422, 0), Outcome::Refused);
        let pod = r#"{"kind":"Pod","metadata":{"uid":"u","resourceVersion":"1"},"status":{}}"#;
        assert!(matches!(outcome(&Action::Look, &Ok(pod.into())), Outcome::Object(_)));
        assert_eq!(outcome(&Action::DeletePod, &Ok(pod.into())), Outcome::Done);
        let held = r#"{"kind":"Pod","metadata":{"uid":"u","finalizers":["x"]},"status":{}}"#;
        assert!(matches!(outcome(&Action::DeletePod, &Ok(held.into())), Outcome::Object(_)));
        // Whatever was noted of its managers: too deep for a recursive decoder.
        let deep = format!(r#"{{"managedFields":{}{},"#, "[".repeat(200), "]".repeat(200));
        let held = held.replacen(r#""metadata":{"#, &format!(r#""metadata":{deep}"#), 1);
        assert!(matches!(outcome(&Action::DeletePod, &Ok(held)), Outcome::Object(_)));
        assert_eq!(outcome(&Action::Look, &Ok("<html>".into())), Outcome::Later(None));
    }
}
