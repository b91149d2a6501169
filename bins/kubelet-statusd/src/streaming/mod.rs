//! `/exec`, `/attach`, `/portForward`, `/run`, `/checkpoint`: what a client does inside a pod.
//!
//! A request becomes a call to kubelet-syncd, which asks the runtime where it serves this one stream ([`syncd`]); the
//! answer is dialed once and by nobody else ([`target`], [`dial`]). What the runtime speaks itself is passed through
//! ([`proxy`], [`relay`]), what it does not is translated ([`translate`]). A client that offers a newer protocol beside older
//! ones gets the newer one.

mod checkpoint;
pub mod dial;
pub mod headers;
pub mod options;
pub mod proxy;
pub mod relay;
mod run;
mod syncd;
pub mod target;
pub mod translate;

use std::sync::Arc;
use std::time::Duration;

use bulkhead_config::{Feature, NodeConfig};
use bulkhead_ipc::client::Link;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use prometheus::Registry;
use tokio::sync::Semaphore;

use crate::routes::{ContainerPath, PodPath};
use crate::server::answer::{self, Answer};
use options::{OptionsError, StreamOptions, wants_stream_close, wants_tunnel};
use proxy::{Allowance, pass_through};
use syncd::{Refusal, Syncd};
use target::StreamUrl;
use translate::{Subresource, TranslateMetrics};

/// Streams at once. Each is two connections and a task.
const STREAMS: usize = 4096;

/// Answers requests for streams, and holds what all of them share.
#[derive(Debug)]
pub struct Streams {
    syncd: Syncd,
    metrics: TranslateMetrics,
    slots: Arc<Semaphore>,
    idle: Option<Duration>,
    /// Gate ExtendWebSocketsToKubelet.
    translates: bool,
}

impl Streams {
    /// # Errors
    /// A family of metrics of the same name exists already.
    pub fn new(config: &NodeConfig, syncd: Link, registry: &Registry) -> Result<Self, prometheus::Error> {
        let idle = config.kubelet.streaming_connection_idle_timeout.to_std();
        Ok(Streams {
            syncd: Syncd::new(syncd, config.runtime_request_timeout()),
            metrics: TranslateMetrics::register(registry)?,
            slots: Arc::new(Semaphore::new(STREAMS)),
            idle: (!idle.is_zero()).then_some(idle),
            translates: config.feature_gates().enabled(Feature::ExtendWebSocketsToKubelet),
        })
    }

    fn allowance(&self, request: &Request<Incoming>) -> Result<Allowance, Refusal> {
        let slot = self.slots.clone().try_acquire_owned().map_err(|_| Refusal::TooMany)?;
        Ok(Allowance::new(self.idle, slot, request.extensions().get().cloned()))
    }

    /// A command in a container.
    pub async fn exec(&self, place: &ContainerPath, request: Request<Incoming>) -> Answer {
        let query = request.uri().query().unwrap_or_default();
        let options = match options::streams(query) {
            Ok(options) => options,
            Err(error) => return bad_request(&error),
        };
        let command = options::command(query);
        let target = async {
            let allowance = self.allowance(&request)?;
            Ok::<_, Refusal>((self.syncd.exec(place, command, options).await?, allowance))
        };
        match target.await {
            Ok((target, allowance)) => {
                self.remote_command(Subresource::Exec, request, target, options, allowance).await
            }
            Err(refusal) => refusal.answer(),
        }
    }

    /// The container's own process.
    pub async fn attach(&self, place: &ContainerPath, request: Request<Incoming>) -> Answer {
        let options = match options::streams(request.uri().query().unwrap_or_default()) {
            Ok(options) => options,
            Err(error) => return bad_request(&error),
        };
        let target = async {
            let allowance = self.allowance(&request)?;
            Ok::<_, Refusal>((self.syncd.attach(place, options).await?, allowance))
        };
        match target.await {
            Ok((target, allowance)) => {
                self.remote_command(Subresource::Attach, request, target, options, allowance).await
            }
            Err(refusal) => refusal.answer(),
        }
    }

    /// Connections to ports of a pod.
    pub async fn port_forward(&self, place: &PodPath, request: Request<Incoming>) -> Answer {
        let tunnel = self.translates && wants_tunnel(request.headers());
        let ports = if tunnel {
            Vec::new()
        } else {
            match options::ports(request.uri().query().unwrap_or_default(), request.headers()) {
                Ok(ports) => ports,
                Err(error) => return bad_request(&error),
            }
        };
        let target = async {
            let allowance = self.allowance(&request)?;
            Ok::<_, Refusal>((self.syncd.port_forward(place, ports).await?, allowance))
        };
        match target.await {
            Ok((target, allowance)) if tunnel => {
                translate::port_forward(&self.metrics, request, target, allowance).await
            }
            Ok((target, allowance)) => pass_through(request, &target, allowance).await,
            Err(refusal) => refusal.answer(),
        }
    }

    /// What the client's protocol needs: the runtime's own is passed through.
    async fn remote_command(
        &self,
        subresource: Subresource,
        request: Request<Incoming>,
        target: StreamUrl,
        options: StreamOptions,
        allowance: Allowance,
    ) -> Answer {
        if self.translates && wants_stream_close(request.headers()) {
            return translate::remote_command(&self.metrics, subresource, request, target, options, allowance);
        }
        pass_through(request, &target, allowance).await
    }

    /// A command to its end, and what it wrote.
    pub async fn run(&self, place: &ContainerPath, request: Request<Incoming>) -> Answer {
        run::serve(&self.syncd, place, request).await
    }

    /// A container's state, written into an archive by the runtime.
    pub async fn checkpoint(&self, place: &ContainerPath, request: Request<Incoming>) -> Answer {
        checkpoint::serve(&self.syncd, place, request).await
    }
}

fn bad_request(error: &OptionsError) -> Answer {
    answer::text(StatusCode::BAD_REQUEST, error.to_string())
}
