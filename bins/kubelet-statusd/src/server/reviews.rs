//! What the API server is asked about a request: whose token it is (TokenReview), and whether somebody may
//! (SubjectAccessReview). Asked again where upstream asks again (`apiserver/pkg/util/webhook`).

use std::collections::BTreeMap;
use std::time::Duration;

use bulkhead_apiclient::{ApiClient, CallError, Lane, random_fraction};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::authn::identity::Identity;
use super::authn::presented::Token;
use super::review_metrics::ReviewMetrics;

/// First pause, factor, jitter and tries (`apiserver/pkg/server/options`, DefaultAuthWebhookRetryBackoff).
const PAUSE: Duration = Duration::from_millis(500);
const FACTOR: f64 = 1.5;
const JITTER: f64 = 0.2;
const TRIES: u32 = 5;
/// All tries together (`authentication/token/cache`, sharedLookupTimeout).
const LIMIT: Duration = Duration::from_secs(30);
/// Far above any review.
const MAX_ANSWER: usize = 1 << 20;

/// Why it is not known. None of the texts holds what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// `lost`: the connection stood, and was lost under the question.
    #[error("the API server was not reached: {text}")]
    NoAnswer { text: String, lost: bool },
    #[error("the API server answered {status}: {message}")]
    Refused { status: StatusCode, reason: String, message: String, retry_after: bool },
    #[error("the API server's answer is no review")]
    Unreadable,
    #[error("the API server did not answer within {} s", LIMIT.as_secs())]
    TooLate,
}

impl ReviewError {
    /// Whether the same question may have another answer soon (upstream's DefaultShouldRetry: a connection that was reset or lost,
    /// none that was refused).
    fn is_passing(&self) -> bool {
        match self {
            ReviewError::NoAnswer { lost, .. } => *lost,
            ReviewError::Refused { status, reason, retry_after, .. } => {
                *retry_after
                    || *status == StatusCode::TOO_MANY_REQUESTS
                    || matches!(reason.as_str(), "InternalError" | "Timeout" | "TooManyRequests")
            }
            ReviewError::Unreadable | ReviewError::TooLate => false,
        }
    }

    /// For metrics.
    fn result(&self) -> &'static str {
        match self {
            ReviewError::TooLate => "timeout",
            ReviewError::Refused { status, reason, .. }
                if *status == StatusCode::GATEWAY_TIMEOUT || reason == "Timeout" =>
            {
                "timeout"
            }
            _ => "error",
        }
    }
}

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    Token,
    Access,
}

impl Question {
    const fn path(self) -> &'static str {
        match self {
            Question::Token => "/apis/authentication.k8s.io/v1/tokenreviews",
            Question::Access => "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        }
    }

    const fn kind(self) -> (&'static str, &'static str) {
        match self {
            Question::Token => ("TokenReview", "authentication.k8s.io/v1"),
            Question::Access => ("SubjectAccessReview", "authorization.k8s.io/v1"),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a, T> {
    kind: &'static str,
    api_version: &'static str,
    spec: &'a T,
}

#[derive(Deserialize)]
struct Answered<T> {
    status: T,
}

#[derive(Serialize)]
struct TokenSpec<'a> {
    token: &'a str,
}

#[derive(Debug, Deserialize)]
struct TokenStatus {
    #[serde(default)]
    authenticated: bool,
    #[serde(default)]
    user: Option<User>,
    #[serde(default)]
    error: String,
}

#[derive(Debug, Default, Deserialize)]
struct User {
    #[serde(default)]
    username: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    groups: Option<Vec<String>>,
    #[serde(default)]
    extra: Option<BTreeMap<String, Vec<String>>>,
}

/// What the API server says of a token.
#[derive(Debug, PartialEq, Eq)]
pub enum TokenAnswer {
    Known(Identity),
    /// Nobody's.
    Unknown,
    /// Nobody's, and why: an error of its own, which is not remembered.
    Error(String),
}

/// What somebody wants to do, as the API server is asked; also what an answer is remembered by.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AccessSpec {
    pub resource_attributes: ResourceAttributes,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

#[derive(Debug, Clone, Serialize)]
pub struct ResourceAttributes {
    #[serde(skip_serializing_if = "str::is_empty")]
    pub verb: &'static str,
    pub version: &'static str,
    pub resource: &'static str,
    pub subresource: &'static str,
    pub name: String,
}

/// What the API server says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct AccessStatus {
    #[serde(default)]
    pub allowed: bool,
    #[serde(default)]
    pub denied: bool,
}

/// Asks. Each kind of question has a lane of its own.
#[derive(Clone)]
pub struct Reviews {
    tokens: kube::Client,
    known_tokens: kube::Client,
    access: kube::Client,
    metrics: ReviewMetrics,
}

impl std::fmt::Debug for Reviews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reviews").finish_non_exhaustive()
    }
}

impl Reviews {
    pub fn new(api: &ApiClient, metrics: ReviewMetrics) -> Self {
        Reviews {
            tokens: api.client(Lane::TokenReviews),
            known_tokens: api.client(Lane::KnownTokenReviews),
            access: api.client(Lane::AccessReviews),
            metrics,
        }
    }

    /// Whose token it is. `known`: it was somebody's before.
    ///
    /// # Errors
    /// It is not known.
    pub async fn token(&self, token: &Token, known: bool) -> Result<TokenAnswer, ReviewError> {
        let client = if known { &self.known_tokens } else { &self.tokens };
        let status: TokenStatus = self.ask(client, Question::Token, &TokenSpec { token: &token.0 }).await?;
        if !status.authenticated {
            return Ok(if status.error.is_empty() { TokenAnswer::Unknown } else { TokenAnswer::Error(status.error) });
        }
        let user = status.user.unwrap_or_default();
        Ok(TokenAnswer::Known(Identity {
            name: user.username,
            uid: user.uid,
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        }))
    }

    /// Whether somebody may.
    ///
    /// # Errors
    /// It is not known.
    pub async fn access(&self, spec: &AccessSpec) -> Result<AccessStatus, ReviewError> {
        self.ask(&self.access, Question::Access, spec).await
    }

    async fn ask<S: Serialize, T: for<'de> Deserialize<'de>>(
        &self,
        client: &kube::Client,
        question: Question,
        spec: &S,
    ) -> Result<T, ReviewError> {
        let (kind, api_version) = question.kind();
        // Nothing in a review fails to be JSON.
        let body = serde_json::to_vec(&Review { kind, api_version, spec }).map_err(|_| ReviewError::Unreadable)?;
        let tries = async {
            let mut pause = PAUSE;
            for left in (0..TRIES).rev() {
                match self.try_once(client, question, body.clone()).await {
                    Err(error) if error.is_passing() && left > 0 => {
                        tracing::debug!(%error, kind, "asking the API server again");
                        tokio::time::sleep(pause.mul_f64(1.0 + JITTER * random_fraction())).await;
                        pause = pause.mul_f64(FACTOR);
                    }
                    outcome => return outcome,
                }
            }
            Err(ReviewError::TooLate)
        };
        tokio::time::timeout(LIMIT, tries).await.unwrap_or(Err(ReviewError::TooLate))
    }

    async fn try_once<T: for<'de> Deserialize<'de>>(
        &self,
        client: &kube::Client,
        question: Question,
        body: Vec<u8>,
    ) -> Result<T, ReviewError> {
        let begun = Instant::now();
        let request = Request::builder()
            .method(Method::POST)
            .uri(question.path())
            .header(header::CONTENT_TYPE, "application/json")
            .body(kube::client::Body::from(body))
            .map_err(|_| ReviewError::Unreadable)?;
        let (status, outcome) = match client.send(request).await {
            Err(error) => {
                let (text, lost) = (bulkhead_types::chain(&error), CallError::is_lost_connection(&error));
                (None, Err(ReviewError::NoAnswer { text, lost }))
            }
            Ok(response) => {
                let (head, body) = response.into_parts();
                let body = Limited::new(body, MAX_ANSWER).collect().await;
                let outcome = match body {
                    Err(error) => Err(ReviewError::NoAnswer { text: error.to_string(), lost: true }),
                    Ok(body) => read(head.status, head.headers.contains_key(header::RETRY_AFTER), &body.to_bytes()),
                };
                (Some(head.status), outcome)
            }
        };
        let result = outcome.as_ref().err().map_or("success", ReviewError::result);
        self.metrics.asked(question, status.map(|status| status.as_u16()), result, begun.elapsed());
        outcome
    }
}

fn read<T: for<'de> Deserialize<'de>>(status: StatusCode, retry_after: bool, body: &[u8]) -> Result<T, ReviewError> {
    #[derive(Default, Deserialize)]
    struct Refusal {
        #[serde(default)]
        reason: String,
        #[serde(default)]
        message: String,
    }
    if !status.is_success() {
        let refusal: Refusal = serde_json::from_slice(body).unwrap_or_default();
        let message = refusal.message.chars().take(256).collect();
        return Err(ReviewError::Refused { status, reason: refusal.reason, message, retry_after });
    }
    let answered: Answered<T> = serde_json::from_slice(body).map_err(|_| ReviewError::Unreadable)?;
    Ok(answered.status)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_question_is_upstreams() {
        let spec = AccessSpec {
            resource_attributes: ResourceAttributes {
                verb: "get",
                version: "v1",
                resource: "nodes",
                subresource: "metrics",
                name: "n".into(),
            },
            user: "u".into(),
            groups: vec!["g".into()],
            extra: BTreeMap::from([("k".into(), vec!["v".into()])]),
            uid: String::new(),
        };
        let (kind, api_version) = Question::Access.kind();
        let body = serde_json::to_value(Review { kind, api_version, spec: &spec }).unwrap();
        assert_eq!(
            body,
            json!({"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": {
                "resourceAttributes":
                    {"verb": "get", "version": "v1", "resource": "nodes", "subresource": "metrics", "name": "n"},
                "user": "u", "groups": ["g"], "extra": {"k": ["v"]}}})
        );
    }

    #[test]
    fn what_answers_mean() {
        let token = |status: u16, retry_after: bool, body: serde_json::Value| {
            let status = StatusCode::from_u16(status).unwrap();
            read::<TokenStatus>(status, retry_after, body.to_string().as_bytes())
        };
        assert!(token(201, false, json!({"status": {"authenticated": true, "user": {"username": "u"}}})).is_ok());
        assert!(matches!(token(201, false, json!({})), Err(ReviewError::Unreadable)));
        for (status, retry_after, reason, passing) in [
            (500, false, "InternalError", true),
            (500, false, "", false),
            (503, false, "ServiceUnavailable", false),
            (503, true, "ServiceUnavailable", true),
            (504, false, "Timeout", true),
            (429, false, "", true),
            (403, false, "Forbidden", false),
            (401, false, "Unauthorized", false),
        ] {
            let error = token(status, retry_after, json!({"reason": reason})).unwrap_err();
            assert_eq!(error.is_passing(), passing, "{status} {reason}");
        }
        for lost in [true, false] {
            assert_eq!(ReviewError::NoAnswer { text: "no".into(), lost }.is_passing(), lost);
        }
        assert!(matches!(read::<AccessStatus>(StatusCode::OK, false, b"<html>"), Err(ReviewError::Unreadable)));
        let long = json!({"message": "\u{e9}".repeat(1000)}).to_string();
        let error = read::<AccessStatus>(StatusCode::FORBIDDEN, false, long.as_bytes()).unwrap_err();
        assert!(error.to_string().len() < 600);
    }
}
