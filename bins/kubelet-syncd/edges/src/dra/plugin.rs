//! One registered plugin of a driver, and the calls to it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_dra::health::v1alpha1 as health;
use bulkhead_dra::health::v1alpha1::dra_resource_health_client::DraResourceHealthClient;
use bulkhead_dra::v1;
use bulkhead_dra::v1::dra_plugin_client::DraPluginClient;
use bulkhead_dra::v1beta1;
use bulkhead_types::FAR;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};

use super::connection::Connection;
use crate::csi::connection::{ANSWER_BYTES_MAX, as_grpc_go};
use crate::csi::{CallObserver, Dial};

/// How long a driver has to answer (upstream `defaultClientCallTimeout`), the connection included.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(45);

/// A version of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    V1,
    V1Beta1,
}

impl Service {
    /// As upstream names them in its refusal, newest first.
    const SUPPORTED: [(&'static str, Service); 2] = [(v1::SERVICE, Service::V1), (v1beta1::SERVICE, Service::V1Beta1)];

    /// The first one of a plugin's list that this kubelet has.
    ///
    /// # Errors
    /// Upstream's words: there is none.
    pub fn chosen(offered: &[String]) -> Result<Self, String> {
        if offered.is_empty() {
            return Err("empty list of supported gRPC services (aka supported versions)".to_owned());
        }
        let known = |name: &String| Self::SUPPORTED.iter().find(|(supported, _)| supported == name);
        let chosen = offered.iter().find_map(known).map(|(_, service)| *service);
        chosen.ok_or_else(|| {
            let quoted = |names: &[&str]| {
                let all: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
                format!("[{}]", all.join(" "))
            };
            let offered: Vec<&str> = offered.iter().map(String::as_str).collect();
            let supported = Self::SUPPORTED.map(|(name, _)| name);
            format!(
                "none of services supported by the plugin ({}) are supported by the kubelet ({})",
                quoted(&offered),
                quoted(&supported)
            )
        })
    }

    fn method(self, name: &'static str) -> &'static str {
        match (self, name) {
            (Service::V1, "NodePrepareResources") => "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            (Service::V1, _) => "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
            (Service::V1Beta1, "NodePrepareResources") => {
                "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources"
            }
            (Service::V1Beta1, _) => "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources",
        }
    }
}

/// See the module. It ends when this is dropped.
#[derive(Debug)]
pub struct Plugin {
    driver: String,
    endpoint: String,
    service: Service,
    timeout: Duration,
    observer: Option<Arc<dyn CallObserver>>,
    connection: Connection,
}

/// What every plugin is made with.
#[derive(Debug, Clone)]
pub struct Calls {
    pub dial: Arc<dyn Dial>,
    /// How long a driver has to answer.
    pub timeout: Duration,
    pub observer: Option<Arc<dyn CallObserver>>,
}

impl Plugin {
    /// `endpoint`: absolute path of its socket. Must be called within a tokio runtime.
    pub(super) fn new(
        calls: &Calls,
        driver: &str,
        endpoint: &str,
        service: Service,
        changed: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Plugin {
            driver: driver.to_owned(),
            endpoint: endpoint.to_owned(),
            service,
            timeout: calls.timeout,
            observer: calls.observer.clone(),
            connection: Connection::begin(calls.dial.clone(), endpoint, changed),
        }
    }

    pub fn driver(&self) -> &str {
        &self.driver
    }

    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub fn is_connected(&self) -> bool {
        self.connection.is_connected()
    }

    /// Cancelled when it is registered no more.
    pub fn gone(&self) -> CancellationToken {
        self.connection.stop()
    }

    /// Has claims made ready.
    ///
    /// # Errors
    /// The driver's status; UNAVAILABLE when it was not reached, DEADLINE_EXCEEDED.
    pub async fn prepare(&self, claims: Vec<v1::Claim>) -> Result<v1::NodePrepareResourcesResponse, Status> {
        match self.service {
            Service::V1 => {
                self.call("NodePrepareResources", async |channel| {
                    let request = self.request(v1::NodePrepareResourcesRequest { claims });
                    client(channel).node_prepare_resources(request).await
                })
                .await
            }
            Service::V1Beta1 => {
                let claims = claims.into_iter().map(older).collect();
                let answer = self
                    .call("NodePrepareResources", async |channel| {
                        let request = self.request(v1beta1::NodePrepareResourcesRequest { claims });
                        older_client(channel).node_prepare_resources(request).await
                    })
                    .await?;
                let claims = answer.claims.into_iter().map(|(uid, answer)| (uid, newer(answer)));
                Ok(v1::NodePrepareResourcesResponse { claims: claims.collect() })
            }
        }
    }

    /// Its opposite.
    ///
    /// # Errors
    /// As [`Plugin::prepare`].
    pub async fn unprepare(&self, claims: Vec<v1::Claim>) -> Result<v1::NodeUnprepareResourcesResponse, Status> {
        match self.service {
            Service::V1 => {
                self.call("NodeUnprepareResources", async |channel| {
                    let request = self.request(v1::NodeUnprepareResourcesRequest { claims });
                    client(channel).node_unprepare_resources(request).await
                })
                .await
            }
            Service::V1Beta1 => {
                let claims = claims.into_iter().map(older).collect();
                let answer = self
                    .call("NodeUnprepareResources", async |channel| {
                        let request = self.request(v1beta1::NodeUnprepareResourcesRequest { claims });
                        older_client(channel).node_unprepare_resources(request).await
                    })
                    .await?;
                let claims = answer.claims.into_iter();
                let claims = claims.map(|(uid, one)| (uid, v1::NodeUnprepareResourceResponse { error: one.error }));
                Ok(v1::NodeUnprepareResourcesResponse { claims: claims.collect() })
            }
        }
    }

    /// The health of its devices as it changes. The stream has no end of its own.
    ///
    /// # Errors
    /// UNIMPLEMENTED where it does not tell, and as [`Plugin::prepare`].
    pub async fn watch_health(&self) -> Result<Streaming<health::NodeWatchResourcesResponse>, Status> {
        let begun = async {
            let channel = self.connection.channel().await?;
            let mut client = DraResourceHealthClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
            client.node_watch_resources(health::NodeWatchResourcesRequest {}).await.map_err(as_grpc_go)
        };
        match tokio::time::timeout(self.timeout, begun).await {
            Ok(begun) => begun.map(Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded("context deadline exceeded")),
        }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout.min(FAR));
        request
    }

    async fn call<R>(
        &self,
        method: &'static str,
        call: impl AsyncFnOnce(Channel) -> Result<Response<R>, Status>,
    ) -> Result<R, Status> {
        let began = Instant::now();
        let bounded = async {
            let channel = self.connection.channel().await?;
            call(channel).await.map(Response::into_inner).map_err(as_grpc_go)
        };
        let outcome = match tokio::time::timeout(self.timeout, bounded).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Status::deadline_exceeded("context deadline exceeded")),
        };
        if let Some(observer) = &self.observer {
            let code = outcome.as_ref().map_or_else(Status::code, |_| Code::Ok);
            observer.call_ended(&self.driver, self.service.method(method), code, began.elapsed());
        }
        outcome
    }
}

fn client(channel: Channel) -> DraPluginClient<Channel> {
    DraPluginClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

fn older_client(channel: Channel) -> v1beta1::dra_plugin_client::DraPluginClient<Channel> {
    v1beta1::dra_plugin_client::DraPluginClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

fn older(claim: v1::Claim) -> v1beta1::Claim {
    v1beta1::Claim { namespace: claim.namespace, uid: claim.uid, name: claim.name }
}

fn newer(answer: v1beta1::NodePrepareResourceResponse) -> v1::NodePrepareResourceResponse {
    let device = |device: v1beta1::Device| v1::Device {
        request_names: device.request_names,
        pool_name: device.pool_name,
        device_name: device.device_name,
        cdi_device_ids: device.cdi_device_ids,
        share_id: None,
    };
    v1::NodePrepareResourceResponse { devices: answer.devices.into_iter().map(device).collect(), error: answer.error }
}
