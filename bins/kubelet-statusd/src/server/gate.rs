//! Who is let through to what, before anything of a request is looked at: authentication, then authorisation, with
//! upstream's answers for those who are not (`pkg/kubelet/server/server.go`, InstallAuthFilter).

use std::net::SocketAddr;
use std::sync::Arc;

use bulkhead_apiclient::ApiClient;
use bulkhead_config::NodeConfig;
use http::{HeaderValue, Request, StatusCode, header};
use parking_lot::Mutex;
use prometheus::Registry;

use super::activity::Activity;
use super::answer::{self, Answer};
use super::authn::Authenticator;
use super::authn::identity::{ANONYMOUS, Identity};
use super::authn::tokens::Tokens;
use super::authz::attributes::{StreamRule, attributes};
use super::authz::cache::AccessCache;
use super::authz::{Authorizer, Unauthorised, Webhook};
use super::connection::PeerCertificates;
use super::review_metrics::ReviewMetrics;
use super::reviews::Reviews;
use super::source::Source;
use super::tls::Serving;
use crate::routes;

/// Why there is no gate; nothing is served without one.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    #[error(transparent)]
    Config(#[from] bulkhead_config::ServingError),
    #[error("failed to register metrics")]
    Metrics(#[from] prometheus::Error),
    #[error("no random numbers: {0}")]
    Random(getrandom::Error),
}

/// See the module. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Gate {
    authenticator: Authenticator,
    authorizer: Authorizer,
    rule: StreamRule,
    node: Arc<str>,
}

impl Gate {
    /// As the configuration says. `api`: None on a standalone node.
    ///
    /// # Errors
    /// See [`GateError`].
    pub fn new(
        config: &NodeConfig,
        serving: Serving,
        api: Option<&ApiClient>,
        registry: &Registry,
    ) -> Result<Self, GateError> {
        config.check_serving()?;
        let metrics = ReviewMetrics::register(registry)?;
        let reviews = api.map(|api| Reviews::new(api, metrics.clone()));
        let (authentication, authorization) = (&config.kubelet.authentication, &config.kubelet.authorization);
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(GateError::Random)?;
        let tokens = reviews
            .clone()
            .filter(|_| authentication.webhook.enabled.unwrap_or(false))
            .map(|reviews| Tokens::new(reviews, metrics.clone(), secret, authentication.webhook.cache_ttl.to_std()));
        let authorizer = match reviews.filter(|_| authorization.mode == "Webhook") {
            None => Authorizer::AlwaysAllow,
            Some(reviews) => {
                let lifetimes = &authorization.webhook;
                let (allowed, refused) =
                    (lifetimes.cache_authorized_ttl.to_std(), lifetimes.cache_unauthorized_ttl.to_std());
                let cache = Mutex::new(AccessCache::new(allowed, refused));
                Authorizer::Webhook(Arc::new(Webhook { reviews, cache, metrics: metrics.clone() }))
            }
        };
        let rule = if config.flags.allow_streaming_with_get { StreamRule::Method } else { StreamRule::Create };
        let authenticator = Authenticator {
            serving: Some(serving),
            tokens,
            anonymous: authentication.anonymous.enabled.unwrap_or(false),
            metrics,
        };
        Ok(Gate { authenticator, authorizer, rule, node: config.node_name.as_str().into() })
    }

    /// Lets the request through, with who sent it among its extensions and what proved it taken out.
    ///
    /// # Errors
    /// The answer for those who are not let through.
    pub async fn admit<B>(&self, request: Request<B>) -> Result<Request<B>, Answer> {
        let (mut head, body) = request.into_parts();
        let certificates = head.extensions.get::<PeerCertificates>().cloned();
        let certificates = certificates.as_ref().map_or(&[][..], |PeerCertificates(all)| all);
        let source = head.extensions.get::<SocketAddr>().map_or(Source::UNKNOWN, |from| Source::from(*from));
        let who = match self.authenticator.authenticate(&mut head.headers, certificates, source).await {
            Ok(who) => who,
            Err(error) if error.is_busy() => {
                tracing::debug!("too many tokens are being asked about");
                return Err(come_again());
            }
            Err(error) => {
                tracing::debug!(
                    error = bulkhead_types::chain(&error),
                    "Unable to authenticate the request due to an error"
                );
                return Err(answer::text(StatusCode::UNAUTHORIZED, "Unauthorized"));
            }
        };
        if who.name != ANONYMOUS
            && let Some(connection) = head.extensions.get::<Arc<Activity>>()
        {
            connection.prove();
        }
        // A path that cannot be decoded is no path of ours: as good as any unknown one.
        let path = routes::decode_path(head.uri.path()).unwrap_or_default();
        let what = attributes(self.rule, head.method.as_str(), &path);
        match self.authorizer.authorize(&who, &what, &self.node, &path).await {
            Ok(()) => {
                head.extensions.insert(who);
                Ok(Request::from_parts(head, body))
            }
            Err(refusal) => Err(refused(&who, what.verb, what.subresources, refusal)),
        }
    }
}

/// In upstream's words for it (`apiserver/pkg/server/filters`, tooManyRequests).
fn come_again() -> Answer {
    let mut answer = answer::text(StatusCode::TOO_MANY_REQUESTS, "Too many requests, please try again later.\n");
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

fn refused(who: &Identity, verb: &str, subresources: &[&str], refusal: Unauthorised) -> Answer {
    let user = &who.name;
    match refusal {
        Unauthorised::Forbidden => {
            let list = subresources.join(" ");
            tracing::debug!(user, verb, resource = "nodes", subresources = list, "Forbidden");
            let words = format!("Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{list}])\n");
            answer::text(StatusCode::FORBIDDEN, words)
        }
        Unauthorised::Undecided { subresource, source } => {
            tracing::error!(user, verb, subresource, error = bulkhead_types::chain(&source), "Authorization error");
            let words =
                format!("Authorization error (user={user}, verb={verb}, resource=nodes, subresource={subresource})");
            answer::text(StatusCode::INTERNAL_SERVER_ERROR, words)
        }
    }
}
