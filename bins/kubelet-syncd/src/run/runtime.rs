//! The container runtime: the connection to it, and how it wants cgroups named.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_config::{Feature, NodeConfig};
use bulkhead_cri::{ConnectFuture, Connector, CriClient, CriDeadlines, v1};
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::volnetd::RuntimeSocket;
use bulkhead_ipc::volnetd::open_request::Kind;
use prometheus::{IntGaugeVec, Opts, Registry};
use tokio::net::UnixStream;

/// Pause between questions to a runtime that does not answer yet.
pub const RUNTIME_RETRY: Duration = Duration::from_millis(100);
/// So often the runtime is asked for its cgroup driver.
const DRIVER_TRIES: usize = 3;

/// The runtime, by connections that the broker opens: its socket is root's.
pub fn runtime_client(broker: &BrokerClient, config: &NodeConfig) -> CriClient {
    let connector = |image_service: bool| -> Arc<dyn Connector> {
        let broker = broker.clone();
        Arc::new(move || -> ConnectFuture {
            let broker = broker.clone();
            Box::pin(async move {
                let socket = broker.open(Kind::RuntimeSocket(RuntimeSocket { image_service })).await;
                let stream = std::os::unix::net::UnixStream::from(socket.map_err(std::io::Error::other)?);
                stream.set_nonblocking(true)?;
                UnixStream::from_std(stream)
            })
        })
    };
    let deadlines = CriDeadlines { request: config.runtime_request_timeout() };
    let client = if config.image_socket == config.runtime_socket {
        CriClient::new(connector(false), deadlines)
    } else {
        CriClient::with_image_service(connector(false), connector(true), deadlines)
    };
    if config.feature_gates().enabled(Feature::CRIListStreaming) { client.with_streamed_lists() } else { client }
}

/// The cgroup driver that the runtime is set up for. Empty where it does not tell (containerd before 2.0): then the
/// configured one counts (upstream `cmd/kubelet/app/server.go`, getCgroupDriverFromCRI).
///
/// A runtime that does not know the question is named in `kubelet_cri_losing_support` of the registry, with the version
/// of Kubernetes that will not run with it.
pub async fn cgroup_driver(cri: &CriClient, registry: &Registry) -> String {
    for _ in 0..DRIVER_TRIES {
        match cri.runtime_config(v1::RuntimeConfigRequest {}).await {
            Ok(reply) => return driver_name(&reply).to_owned(),
            Err(error) if error.is_unimplemented() => {
                if let Err(error) = losing_support(registry) {
                    tracing::warn!(%error, "what the runtime lacks is not told in the metrics");
                }
                break;
            }
            Err(error) => tracing::debug!(%error, "the runtime's cgroup driver could not be asked"),
        }
        tokio::time::sleep(RUNTIME_RETRY).await;
    }
    tracing::debug!("the runtime does not tell its cgroup driver, the configured one is used");
    String::new()
}

fn losing_support(registry: &Registry) -> Result<(), prometheus::Error> {
    let versions = IntGaugeVec::new(
        Opts::new(
            "kubelet_cri_losing_support",
            "[ALPHA] the Kubernetes version that the currently running CRI implementation will lose support on if not \
             upgraded.",
        ),
        &["version"],
    )?;
    versions.with_label_values(&["1.37.0"]).set(1);
    registry.register(Box::new(versions))
}

fn driver_name(reply: &v1::RuntimeConfigResponse) -> &'static str {
    // Systemd is the number 0: an absent block must not be taken for it.
    match reply.linux.as_ref().map(|linux| v1::CgroupDriver::try_from(linux.cgroup_driver)) {
        Some(Ok(v1::CgroupDriver::Systemd)) => "systemd",
        Some(Ok(v1::CgroupDriver::Cgroupfs)) => "cgroupfs",
        Some(Err(_)) | None => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_drivers() {
        let of = |driver| {
            let linux = Some(v1::LinuxRuntimeConfiguration { cgroup_driver: driver });
            driver_name(&v1::RuntimeConfigResponse { linux })
        };
        assert_eq!([of(0), of(1), of(7)], ["systemd", "cgroupfs", ""]);
        assert_eq!(driver_name(&v1::RuntimeConfigResponse { linux: None }), "");
    }
}
