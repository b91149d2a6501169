//! Whether somebody may: everybody everything, or as the API server says (upstream `cmd/kubelet/app/auth.go`).

pub mod attributes;
pub mod cache;

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use self::attributes::Attributes;
use self::cache::{AccessCache, Key};
use super::authn::identity::Identity;
use super::review_metrics::ReviewMetrics;
use super::reviews::{AccessSpec, AccessStatus, ResourceAttributes, ReviewError, Reviews};

/// Why it is not known.
#[derive(Debug, thiserror::Error)]
pub enum Undecided {
    #[error(transparent)]
    Review(#[from] ReviewError),
    #[error("webhook subject access review returned both allow and deny response")]
    Both,
    #[error("the question cannot be put")]
    Question(#[from] serde_json::Error),
}

/// What somebody was refused.
#[derive(Debug)]
pub enum Unauthorised {
    Forbidden,
    /// Which of the sub-resources it is not known for.
    Undecided {
        subresource: &'static str,
        source: Undecided,
    },
}

/// See the module.
#[derive(Debug, Clone)]
pub enum Authorizer {
    AlwaysAllow,
    Webhook(Arc<Webhook>),
}

/// Asks, and remembers the answers.
#[derive(Debug)]
pub struct Webhook {
    pub reviews: Reviews,
    pub cache: Mutex<AccessCache>,
    pub metrics: ReviewMetrics,
}

impl Authorizer {
    /// Whether `who` may do `what` on the node of this name; the first sub-resource that is allowed is enough.
    ///
    /// # Errors
    /// See [`Unauthorised`].
    pub async fn authorize(
        &self,
        who: &Identity,
        what: &Attributes,
        node: &str,
        path: &str,
    ) -> Result<(), Unauthorised> {
        let Authorizer::Webhook(webhook) = self else { return Ok(()) };
        for subresource in what.subresources {
            let spec = AccessSpec {
                resource_attributes: ResourceAttributes {
                    verb: what.verb,
                    version: "v1",
                    resource: "nodes",
                    subresource,
                    name: node.to_owned(),
                },
                user: who.name.clone(),
                groups: who.groups.clone(),
                extra: who.extra.clone(),
                uid: who.uid.clone(),
            };
            let status = match webhook.review(&spec, path).await {
                Ok(AccessStatus { allowed: true, denied: true }) => Err(Undecided::Both),
                other => other,
            };
            match status {
                Ok(AccessStatus { allowed: true, .. }) => return Ok(()),
                Ok(AccessStatus { .. }) => {}
                Err(source) => {
                    if let Undecided::Review(_) = &source {
                        webhook.metrics.no_opinion("error");
                    }
                    return Err(Unauthorised::Undecided { subresource, source });
                }
            }
        }
        Err(Unauthorised::Forbidden)
    }
}

impl Webhook {
    async fn review(&self, spec: &AccessSpec, path: &str) -> Result<AccessStatus, Undecided> {
        let key = Key::of(&serde_json::to_vec(spec)?);
        let lock = || self.cache.lock();
        if let Some(status) = lock().get(key, Instant::now()) {
            return Ok(status);
        }
        let status = self.reviews.access(spec).await?;
        let asked = &spec.resource_attributes;
        let chosen = [asked.verb, asked.version, asked.resource, asked.subresource, &asked.name, path];
        if cache::may_remember(chosen.iter().map(|text| text.len()).sum()) {
            lock().put(key, status.clone(), Instant::now());
        }
        Ok(status)
    }
}
