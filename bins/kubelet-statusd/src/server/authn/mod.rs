//! Who sent a request, by upstream's rules (`apiserver/pkg/authentication/authenticatorfactory`): the client certificate,
//! the bearer token, the token among a WebSocket's sub-protocols, in this order and the first that proves something
//! counts. Whoever shows something that is wrong, and nothing that is right, is refused; whoever shows nothing is
//! anonymous where that is allowed.

pub mod identity;
pub mod presented;
pub mod shares;
pub mod token_cache;
pub mod tokens;
pub mod x509;

use http::HeaderMap;
use rustls::pki_types::CertificateDer;

use self::identity::Identity;
use self::presented::{ProtocolError, Token};
use self::tokens::{TokenError, Tokens};
use self::x509::CertificateError;
use super::review_metrics::ReviewMetrics;
use super::source::Source;
use super::tls::Serving;

/// Why nobody was recognised. For our log; the client is told nothing.
#[derive(Debug, thiserror::Error)]
pub enum Unauthenticated {
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("invalid bearer token")]
    Token,
    #[error("whose bearer token it is is not known: {0}")]
    Review(#[from] TokenError),
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    #[error("nothing was shown that says who it is")]
    Nothing,
}

impl Unauthenticated {
    /// Nobody was asked, because too many are being asked about.
    pub fn is_busy(&self) -> bool {
        matches!(self, Unauthenticated::Review(TokenError::Busy))
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Authenticator {
    /// Whose certificates are believed.
    pub serving: Option<Serving>,
    /// None: tokens are not looked at.
    pub tokens: Option<Tokens>,
    pub anonymous: bool,
    pub metrics: ReviewMetrics,
}

impl Authenticator {
    /// Who it is. Whatever was shown is taken out of the headers.
    ///
    /// # Errors
    /// See [`Unauthenticated`]; of several reasons the first, but for a token that nobody could be asked about: to come
    /// again helps.
    pub async fn authenticate(
        &self,
        headers: &mut HeaderMap,
        certificates: &[CertificateDer<'_>],
        source: Source,
    ) -> Result<Identity, Unauthenticated> {
        let mut problem = None;
        let found = match self.certificate(certificates) {
            Ok(Some(identity)) => Some(identity),
            other => {
                problem = other.err();
                self.token(headers, source, &mut problem).await
            }
        };
        let identity = match (found, problem) {
            (Some(identity), _) => identity.authenticated(),
            (None, None) if self.anonymous => Identity::anonymous(),
            (None, problem) => return Err(problem.unwrap_or(Unauthenticated::Nothing)),
        };
        presented::strip(headers);
        Ok(identity)
    }

    fn certificate(&self, chain: &[CertificateDer<'_>]) -> Result<Option<Identity>, Unauthenticated> {
        let Some(authority) = self.serving.as_ref().and_then(Serving::authority) else { return Ok(None) };
        if let Some(seconds) = chain.first().and_then(|own| x509::seconds_left(own, jiff::Timestamp::now())) {
            self.metrics.certificate(seconds);
        }
        Ok(authority.identify(chain)?)
    }

    async fn token(
        &self,
        headers: &HeaderMap,
        source: Source,
        problem: &mut Option<Unauthenticated>,
    ) -> Option<Identity> {
        let tokens = self.tokens.as_ref()?;
        let from_protocol = presented::sub_protocol(headers);
        for token in [Ok(presented::bearer(headers)), from_protocol] {
            let outcome = match token {
                Ok(None) => continue,
                Ok(Some(token)) => self.review(tokens, &token, source).await,
                Err(error) => Err(error.into()),
            };
            match outcome {
                Ok(identity) => return Some(identity),
                Err(error) if error.is_busy() => *problem = Some(error),
                Err(error) => *problem = problem.take().or(Some(error)),
            }
        }
        None
    }

    async fn review(&self, tokens: &Tokens, token: &Token, source: Source) -> Result<Identity, Unauthenticated> {
        tokens.identify(token, source).await?.ok_or(Unauthenticated::Token)
    }
}
