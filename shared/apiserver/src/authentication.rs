//! Who shows what: a client certificate first, then a bearer token, else nobody
//! (`apiserver/pkg/authentication/request`).

use rustls::pki_types::{CertificateDer, UnixTime};

use super::Shared;
use super::authority;
use super::identity::User;
use super::status::ApiError;
use super::tokens::ISSUER;

/// A token that is known from the start.
#[derive(Debug, Clone)]
pub struct StaticToken {
    pub token: String,
    pub user: User,
}

/// Finds the user of a request.
///
/// # Errors
/// 401 for something that was shown and is not valid.
pub(super) fn authenticate(
    shared: &Shared,
    certificates: &[CertificateDer<'static>],
    authorization: &str,
) -> Result<User, ApiError> {
    if let Some((own, between)) = certificates.split_first() {
        let now = UnixTime::since_unix_epoch(shared.clock.since_epoch());
        let revoked = shared.revoked().iter().any(|one| one == own);
        if revoked || shared.verifier.verify_client_cert(own, between, now).is_err() {
            return Err(ApiError::unauthorized());
        }
        return authority::user_of(own).ok_or_else(ApiError::unauthorized);
    }
    if let Some(token) = authorization.strip_prefix("Bearer ") {
        return user_of_token(shared, token.trim(), &[]).map(|(user, _)| user).map_err(|_| ApiError::unauthorized());
    }
    shared.config.anonymous.clone().ok_or_else(ApiError::unauthorized)
}

/// Whose token this is, and for which of the audiences it is good.
///
/// # Errors
/// Why it is not accepted.
pub(super) fn user_of_token(shared: &Shared, token: &str, audiences: &[String]) -> Result<(User, Vec<String>), String> {
    let known = shared.static_tokens().iter().find(|one| one.token == token).map(|one| one.user.clone());
    if let Some(user) = known {
        return Ok((user, if audiences.is_empty() { vec![ISSUER.to_owned()] } else { audiences.to_vec() }));
    }
    shared.tokens.recognise(&shared.store(), token, audiences, shared.clock.now())
}
