//! What kubelet-syncd is asked for a stream, and how its refusals are told to the client (upstream
//! `cri-streaming/pkg/streaming/errors.go`).

use std::error::Error as _;
use std::future::Future;
use std::time::Duration;

use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::syncd as api;
use bulkhead_ipc::syncd::streams_client::StreamsClient;
use http::{HeaderValue, StatusCode, header};
use tonic::Code;
use tonic::transport::Channel;

use super::options::StreamOptions;
use super::target::{StreamUrl, UrlError};
use crate::routes::{ContainerPath, PodPath};
use crate::server::answer::{self, Answer};

/// Longest wait for a URL: below that which kubelet-syncd gives any call.
const URL_DEADLINE: Duration = Duration::from_secs(110);
/// A restart of kubelet-syncd is waited for.
const RESTART: Duration = Duration::from_secs(10);
/// For who came when everything was taken, in seconds: upstream's life of a token.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("60");

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    Syncd(#[from] tonic::Status),
    #[error(transparent)]
    Url(#[from] UrlError),
    #[error("maximum number of in-flight requests exceeded")]
    TooMany,
}

impl Refusal {
    /// What the client is told.
    pub fn status_and_text(&self) -> (StatusCode, String) {
        let text = self.to_string();
        match self {
            Refusal::Url(_) => (StatusCode::INTERNAL_SERVER_ERROR, text),
            Refusal::TooMany => (StatusCode::TOO_MANY_REQUESTS, text),
            Refusal::Syncd(status) => {
                let text = status.message().to_owned();
                match status.code() {
                    Code::NotFound => (StatusCode::NOT_FOUND, text),
                    Code::ResourceExhausted => (StatusCode::TOO_MANY_REQUESTS, text),
                    // Its own words, or those of the transport, which are for the log.
                    Code::Unavailable if status.source().is_none() => (StatusCode::SERVICE_UNAVAILABLE, text),
                    Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown => {
                        (StatusCode::SERVICE_UNAVAILABLE, "kubelet-syncd does not answer".to_owned())
                    }
                    _ => (StatusCode::INTERNAL_SERVER_ERROR, text),
                }
            }
        }
    }

    pub fn answer(&self) -> Answer {
        let (status, text) = self.status_and_text();
        let mut answer = answer::text(status, text);
        if status == StatusCode::TOO_MANY_REQUESTS {
            answer.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        answer
    }
}

/// kubelet-syncd's service of streams.
#[derive(Debug)]
pub struct Syncd {
    link: Link,
    request_timeout: Duration,
}

impl Syncd {
    /// `request_timeout`: `runtimeRequestTimeout`.
    pub fn new(link: Link, request_timeout: Duration) -> Self {
        Syncd { link, request_timeout }
    }

    /// A client of the service, once kubelet-syncd is there: its socket takes connections for it while it is away.
    ///
    /// # Errors
    /// It is away for longer than a restart takes.
    pub async fn client(&self) -> Result<StreamsClient<Channel>, tonic::Status> {
        let link = &self.link;
        let ready = tokio::time::timeout(RESTART, link.ready()).await;
        ready.map_err(|_| tonic::Status::unavailable("kubelet-syncd does not answer"))?;
        Ok(StreamsClient::new(link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES))
    }

    /// Where the runtime serves the command's streams.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn exec(
        &self,
        place: &ContainerPath,
        command: Vec<String>,
        options: StreamOptions,
    ) -> Result<StreamUrl, Refusal> {
        let StreamOptions { stdin, stdout, stderr, tty } = options;
        let message = api::ExecRequest { place: container_place(place), command, stdin, stdout, stderr, tty };
        let mut client = self.client().await?;
        self.url(message, |request| client.exec(request)).await
    }

    /// Where the runtime serves the container's own streams.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn attach(&self, place: &ContainerPath, options: StreamOptions) -> Result<StreamUrl, Refusal> {
        let StreamOptions { stdin, stdout, stderr, .. } = options;
        let message = api::AttachRequest { place: container_place(place), stdin, stdout, stderr };
        let mut client = self.client().await?;
        self.url(message, |request| client.attach(request)).await
    }

    /// Where the runtime serves connections to the pod's ports.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn port_forward(&self, place: &PodPath, ports: Vec<i32>) -> Result<StreamUrl, Refusal> {
        let message = api::PortForwardRequest { pod: Some(pod_place(place)), ports };
        let mut client = self.client().await?;
        self.url(message, |request| client.port_forward(request)).await
    }

    async fn url<M, F>(&self, message: M, call: impl FnOnce(tonic::Request<M>) -> F) -> Result<StreamUrl, Refusal>
    where
        F: Future<Output = Result<tonic::Response<api::StreamUrl>, tonic::Status>>,
    {
        let deadline = self.request_timeout.min(URL_DEADLINE);
        let call = call(CallContext::new().request(message, deadline));
        // The server's own deadline does not help when nobody serves.
        let reply = tokio::time::timeout(deadline, call)
            .await
            .map_err(|_| tonic::Status::deadline_exceeded("kubelet-syncd does not answer"))??;
        Ok(StreamUrl::parse(&reply.into_inner().url)?)
    }
}

pub fn pod_place(place: &PodPath) -> api::PodPlace {
    api::PodPlace {
        namespace: place.namespace.clone(),
        name: place.pod.clone(),
        uid: place.uid.clone().unwrap_or_default(),
    }
}

pub fn container_place(place: &ContainerPath) -> Option<api::ContainerPlace> {
    Some(api::ContainerPlace { pod: Some(pod_place(&place.pod)), container: place.container.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_as_the_client_sees_them() {
        let of = |status: tonic::Status| Refusal::Syncd(status).status_and_text();
        let cases = [
            (tonic::Status::not_found("pod does not exist"), 404, "pod does not exist"),
            (tonic::Status::internal("container not found (\"x\")"), 500, "container not found (\"x\")"),
            (tonic::Status::resource_exhausted("later"), 429, "later"),
            (tonic::Status::unavailable("kubelet-syncd is starting"), 503, "kubelet-syncd is starting"),
            (tonic::Status::deadline_exceeded("x"), 503, "kubelet-syncd does not answer"),
            (tonic::Status::permission_denied("no"), 500, "no"),
        ];
        for (status, code, text) in cases {
            assert_eq!(of(status), (StatusCode::from_u16(code).unwrap(), text.to_owned()));
        }
        let broken = tonic::Status::from_error(Box::new(std::io::Error::other("/run/x.sock: gone")));
        assert_eq!(of(broken), (StatusCode::SERVICE_UNAVAILABLE, "kubelet-syncd does not answer".to_owned()));
        let busy = Refusal::TooMany.answer();
        assert_eq!((busy.status().as_u16(), busy.headers()["retry-after"].as_bytes()), (429, b"60".as_slice()));
    }
}
