//! One signing request at the API server: posted, or found there from before, and waited for (client-go
//! `util/certificate/csr`).

use std::time::Duration;

use bulkhead_apiclient::watch::{self, Change, Scope};
use bulkhead_apiclient::{ApiClient, Bare, Lane};
use futures_util::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::prelude::{FromDer as _, X509CertificationRequest};

use super::key::{Key, KeyError};
use super::leaf::{Chain, Subject};
use crate::api_writer::ANSWER_DEADLINE;

/// How long one request is waited for.
const WAIT: Duration = Duration::from_secs(15 * 60);

/// Who signs, and for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signer {
    Client,
    Serving,
}

impl Signer {
    pub const fn name(self) -> &'static str {
        match self {
            Signer::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            Signer::Serving => "kubernetes.io/kubelet-serving",
        }
    }

    /// Of keys on elliptic curves, which encipher nothing.
    pub const fn usages(self) -> [&'static str; 2] {
        match self {
            Signer::Client => ["digital signature", "client auth"],
            Signer::Serving => ["digital signature", "server auth"],
        }
    }
}

/// What is asked for.
#[derive(Debug)]
pub struct Wish<'a> {
    pub signer: Signer,
    pub key: &'a Key,
    pub subject: &'a Subject,
    pub name: String,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("the certificate signing request cannot be sent: {0}")]
    Post(String),
    #[error("the certificate signing request {name} cannot be read: {why}")]
    Get { name: String, why: String },
    #[error("the certificate signing request {name} that is there already {why}")]
    Another { name: String, why: &'static str },
    #[error("certificate signing request {name} is denied, reason: {reason}, message: {message}")]
    Denied { name: String, reason: String, message: String },
    #[error("certificate signing request {name} failed, reason: {reason}, message: {message}")]
    Failed { name: String, reason: String, message: String },
    #[error("certificate signing request {name} was deleted")]
    Deleted { name: String },
    #[error("certificate signing request {name} changed its uid")]
    Replaced { name: String },
    #[error("certificate signing request {name} was not signed within {} minutes", WAIT.as_secs() / 60)]
    Late { name: String },
    #[error("the certificate that was issued for {name} is none for the key that asked")]
    Unfit { name: String },
}

impl RequestError {
    /// The same request again would come to the same.
    pub fn needs_new_key(&self) -> bool {
        matches!(
            self,
            RequestError::Another { .. }
                | RequestError::Denied { .. }
                | RequestError::Failed { .. }
                | RequestError::Unfit { .. }
        )
    }
}

/// What the server says of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestState {
    Waiting { approved: bool },
    Issued(Vec<u8>),
    Denied { reason: String, message: String },
    Failed { reason: String, message: String },
}

/// Reads a request's status.
pub fn verdict(request: &CertificateSigningRequest) -> RequestState {
    let status = request.status.clone().unwrap_or_default();
    let mut approved = false;
    for condition in status.conditions.unwrap_or_default() {
        let words = (condition.reason.unwrap_or_default(), condition.message.unwrap_or_default());
        match condition.type_.as_str() {
            "Denied" => return RequestState::Denied { reason: words.0, message: words.1 },
            "Failed" => return RequestState::Failed { reason: words.0, message: words.1 },
            "Approved" => approved = true,
            _ => {}
        }
    }
    match status.certificate {
        Some(ByteString(pem)) if approved && !pem.is_empty() => RequestState::Issued(pem),
        _ => RequestState::Waiting { approved },
    }
}

/// Whether a request that is there already is the one that we would post: what is wrong with it, if anything.
fn misfit(there: &CertificateSigningRequest, wish: &Wish<'_>, now: Timestamp) -> Option<&'static str> {
    if there.spec.signer_name != wish.signer.name() {
        return Some("is for another signer");
    }
    let Ok(der) = CertificateSigningRequestDer::from_pem_slice(&there.spec.request.0) else {
        return Some("cannot be read");
    };
    let Ok((_, parsed)) = X509CertificationRequest::from_der(&der) else { return Some("cannot be read") };
    let info = &parsed.certification_request_info;
    if info.subject_pki.raw != wish.key.public() {
        return Some("has another key");
    }
    let common_name = info.subject.iter_common_name().filter_map(|name| name.as_str().ok());
    let organizations = info.subject.iter_organization().filter_map(|name| name.as_str().ok());
    let subject = (common_name.collect::<String>(), organizations.map(str::to_owned).collect());
    if subject != (wish.subject.common_name.clone(), wish.subject.organizations.clone()) {
        return Some("has another subject");
    }
    if let RequestState::Issued(pem) = verdict(there)
        && Chain::parse(&pem).is_none_or(|chain| chain.first_end <= now)
    {
        return Some("has a certificate that has ended");
    }
    None
}

/// The server's own words, or what kept us from having any.
fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} ({} {})", status.message, status.code, status.reason),
        other => bulkhead_types::chain(other),
    }
}

fn object(wish: &Wish<'_>) -> Result<CertificateSigningRequest, RequestError> {
    Ok(CertificateSigningRequest {
        metadata: ObjectMeta { name: Some(wish.name.clone()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(wish.key.request(wish.subject)?.into_bytes()),
            signer_name: wish.signer.name().to_owned(),
            usages: Some(wish.signer.usages().map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    })
}

/// A request's answer, for which the client's own retries do not wait for ever. The error is in words.
async fn answered<T>(call: impl Future<Output = T>) -> Result<T, String> {
    let answer = tokio::time::timeout(ANSWER_DEADLINE, call).await;
    answer.map_err(|_| format!("no answer within {} s", ANSWER_DEADLINE.as_secs()))
}

/// Asks and waits: the certificate, in PEM.
///
/// # Errors
/// See [`RequestError`].
pub async fn obtain(api: &ApiClient, wish: &Wish<'_>) -> Result<Vec<u8>, RequestError> {
    let requests: Api<Bare<CertificateSigningRequest>> = Api::all(api.client(Lane::Main));
    let (params, wanted) = (PostParams::default(), Bare(object(wish)?));
    let posted = match answered(requests.create(&params, &wanted)).await.map_err(RequestError::Post)? {
        Ok(Bare(posted)) => {
            tracing::info!(
                csr = posted.metadata.name,
                signer = wish.signer.name(),
                "certificate signing request created"
            );
            posted
        }
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            let name = wish.name.clone();
            let read = answered(requests.get(&name)).await.and_then(|read| read.map_err(|error| words(&error)));
            let Bare(there) = read.map_err(|why| RequestError::Get { name: name.clone(), why })?;
            if let Some(why) = misfit(&there, wish, Timestamp::now()) {
                return Err(RequestError::Another { name, why });
            }
            tracing::info!(csr = name, "the certificate signing request is there already and still good");
            there
        }
        Err(error) => return Err(RequestError::Post(words(&error))),
    };
    let name = wish.name.clone();
    let waiting = wait(api, &requests, posted);
    let pem = tokio::time::timeout(WAIT, waiting).await.map_err(|_| RequestError::Late { name: name.clone() })??;
    if wish.key.fits(&pem) { Ok(pem) } else { Err(RequestError::Unfit { name }) }
}

async fn wait(
    api: &ApiClient,
    requests: &Api<Bare<CertificateSigningRequest>>,
    posted: CertificateSigningRequest,
) -> Result<Vec<u8>, RequestError> {
    let name = posted.metadata.name.clone().unwrap_or_default();
    let uid = posted.metadata.uid.clone();
    let mut told = false;
    let mut judge = |request: &CertificateSigningRequest| -> Option<Result<Vec<u8>, RequestError>> {
        let name = name.clone();
        if request.metadata.uid != uid {
            return Some(Err(RequestError::Replaced { name }));
        }
        match verdict(request) {
            RequestState::Issued(pem) => Some(Ok(pem)),
            RequestState::Denied { reason, message } => Some(Err(RequestError::Denied { name, reason, message })),
            RequestState::Failed { reason, message } => Some(Err(RequestError::Failed { name, reason, message })),
            RequestState::Waiting { approved } => {
                if !std::mem::replace(&mut told, true) {
                    tracing::info!(csr = name, approved, "waiting for the certificate");
                }
                None
            }
        }
    };
    if let Some(end) = judge(&posted) {
        return end;
    }
    let scope = Scope { field_selector: format!("metadata.name={name}"), ..Scope::default() };
    let mut changes = watch::watch::<CertificateSigningRequest>(api, Lane::Main, scope);
    loop {
        let end = match changes.next().await {
            // It is there, and what it says may be seen later.
            Some(Change::Restarted(all)) if !all.undecodable.is_empty() => None,
            Some(Change::Restarted(all)) => match all.objects.first() {
                Some(request) => judge(request),
                // A list may be older than the request.
                None => match answered(requests.get_opt(&name)).await {
                    Ok(Ok(Some(Bare(request)))) => judge(&request),
                    Ok(Ok(None)) => Some(Err(RequestError::Deleted { name: name.clone() })),
                    Ok(Err(_)) | Err(_) => None,
                },
            },
            Some(Change::Applied(request)) => judge(&request),
            Some(Change::Deleted(_)) => Some(Err(RequestError::Deleted { name: name.clone() })),
            Some(Change::Failed(_)) => None,
            None => std::future::pending().await,
        };
        if let Some(end) = end {
            return end;
        }
    }
}
