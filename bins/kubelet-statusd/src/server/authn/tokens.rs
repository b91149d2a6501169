//! Whose token it is: remembered, or asked for. Requests that bring the same token at the same time wait for one answer,
//! and a request that goes away does not take the others' answer with it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::presented::Token;
use super::shares::{Share, Shares};
use super::token_cache::{Authenticated, Key, TokenCache};
use crate::server::review_metrics::ReviewMetrics;
use crate::server::reviews::{ReviewError, Reviews, TokenAnswer};
use crate::server::source::Source;

/// Different tokens that are asked about at once; whoever sends more has to come again. With the known ones fewer than an
/// HTTP/2 connection has streams where a load balancer allows least (100).
const AT_ONCE: usize = 64;
/// The same for tokens that were good before, which strangers cannot take.
const KNOWN_AT_ONCE: usize = 32;

/// Why it is not known whose a token is. Not remembered.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TokenError {
    #[error("{0}")]
    Review(String),
    #[error("too many tokens are being asked about")]
    Busy,
}

type Outcome = Result<Authenticated, TokenError>;
type Waiting = watch::Receiver<Option<Outcome>>;

/// See the module. Cheap to clone; all clones remember together.
#[derive(Debug, Clone)]
pub struct Tokens {
    reviews: Reviews,
    metrics: ReviewMetrics,
    cache: Arc<Mutex<TokenCache>>,
    asking: Arc<Mutex<HashMap<Key, Waiting>>>,
    unknown: Shares,
    known: Shares,
}

impl Tokens {
    /// `secret`: random; `lifetime`: of what is remembered.
    pub fn new(reviews: Reviews, metrics: ReviewMetrics, secret: [u8; 32], lifetime: Duration) -> Self {
        let cache = Arc::new(Mutex::new(TokenCache::new(secret, lifetime)));
        let (unknown, known) = (Shares::new(AT_ONCE), Shares::new(KNOWN_AT_ONCE));
        Tokens { reviews, metrics, cache, asking: Arc::default(), unknown, known }
    }

    /// Whose token it is that came from there; None: nobody's.
    ///
    /// # Errors
    /// It is not known.
    pub async fn identify(&self, token: &Token, source: Source) -> Outcome {
        let begun = Instant::now();
        let key = self.cache.lock().key(token);
        if let Some(verdict) = self.cache.lock().get(key, begun) {
            self.metrics.token(true, begun.elapsed());
            return Ok(verdict);
        }
        let blocked = self.metrics.active("blocked");
        let mut waiting = self.ask(key, token, source)?;
        let outcome = match waiting.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or(Err(TokenError::Busy)),
            // Whoever asked is gone without an answer, which only the end of the process does.
            Err(_) => Err(TokenError::Review("authentication failed unexpectedly".to_owned())),
        };
        drop(blocked);
        self.metrics.token(false, begun.elapsed());
        outcome
    }

    /// Joins those who wait for this token's answer, or begins to ask.
    fn ask(&self, key: Key, token: &Token, source: Source) -> Result<Waiting, TokenError> {
        let mut asking = self.asking.lock();
        if let Some(waiting) = asking.get(&key) {
            return Ok(waiting.clone());
        }
        let (known, share) = self.share(key, source).ok_or(TokenError::Busy)?;
        let (sender, waiting) = watch::channel(None);
        asking.insert(key, waiting.clone());
        let (this, token) = (self.clone(), token.clone());
        tokio::spawn(async move {
            let in_flight = this.metrics.active("in_flight");
            let outcome = verdict(this.reviews.token(&token, known).await);
            drop(in_flight);
            this.metrics.fetched(outcome.is_ok());
            if let Ok(verdict) = &outcome {
                this.cache.lock().put(key, verdict.clone(), Instant::now());
            }
            // In this order: who comes in between finds the answer, or asks again.
            this.asking.lock().remove(&key);
            sender.send_replace(Some(outcome));
            drop(share);
        });
        Ok(waiting)
    }

    /// A share of those for tokens that were good before, where this is one and there is room, else of the others'.
    fn share(&self, key: Key, source: Source) -> Option<(bool, Share)> {
        let known = self.cache.lock().was_good(key).then(|| self.known.take(source)).flatten();
        known.map(|share| (true, share)).or_else(|| Some((false, self.unknown.take(source)?)))
    }
}

fn verdict(answer: Result<TokenAnswer, ReviewError>) -> Outcome {
    match answer {
        Ok(TokenAnswer::Known(identity)) => Ok(Some(identity)),
        Ok(TokenAnswer::Unknown) => Ok(None),
        Ok(TokenAnswer::Error(why)) => Err(TokenError::Review(why)),
        Err(error) => {
            tracing::error!(error = bulkhead_types::chain(&error), "Failed to make webhook authenticator request");
            Err(TokenError::Review(error.to_string()))
        }
    }
}
