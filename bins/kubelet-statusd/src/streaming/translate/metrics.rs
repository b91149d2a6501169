//! How many streams were translated and how that went, in upstream's families.

use prometheus::{IntCounterVec, Opts, Registry};

/// Families that requests change. Copies count together.
#[derive(Debug, Clone)]
pub struct TranslateMetrics {
    requests: IntCounterVec,
    translations: IntCounterVec,
    tunnels: IntCounterVec,
}

/// What a stream is of. Its label is the name of upstream's subresource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subresource {
    Exec,
    Attach,
    PortForward,
}

impl TranslateMetrics {
    /// # Errors
    /// A family of the same name exists already.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let family = |name: &str, help: &str, label: &str| {
            let family = IntCounterVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(family.clone()))?;
            Ok::<_, prometheus::Error>(family)
        };
        Ok(TranslateMetrics {
            requests: family(
                "kubelet_websocket_streaming_requests_total",
                "[ALPHA] Total number of WebSocket streaming requests (exec/attach/portforward) received by the kubelet.",
                "subresource",
            )?,
            translations: family(
                "apiserver_stream_translator_requests_total",
                "[ALPHA] Total number of requests that were handled by the StreamTranslatorProxy, which processes \
                 streaming RemoteCommand/V5",
                "code",
            )?,
            tunnels: family(
                "apiserver_stream_tunnel_requests_total",
                "[ALPHA] Total number of requests that were handled by the StreamTunnelProxy, which processes streaming \
                 PortForward/V2",
                "code",
            )?,
        })
    }

    pub(super) fn requested(&self, subresource: Subresource) {
        let label = match subresource {
            Subresource::Exec => "exec",
            Subresource::Attach => "attach",
            Subresource::PortForward => "portforward",
        };
        self.requests.with_label_values(&[label]).inc();
    }

    pub(super) fn translated(&self, code: &str) {
        self.translations.with_label_values(&[code]).inc();
    }

    pub(super) fn tunnelled(&self, code: http::StatusCode) {
        self.tunnels.with_label_values(&[code.as_str()]).inc();
    }
}
