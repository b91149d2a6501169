//! The container runtime as a kubelet sees it: CRI v1, and containerd's own events where the CRI has none.
//!
//! `v1` is the generated protocol (our own text of the 1.36 wire format, see `proto/`). Which process may hold a
//! connection, and how it gets one, is the caller's business: the client is built over a [`Connector`].

mod client;
mod error;
mod events;
mod first_output;
mod in_flight;
mod redact;
mod tasks;

pub use client::{
    CallObserver, ConnectFuture, Connector, CriClient, CriDeadlines, DirectConnector, MESSAGE_BYTES_MAX,
    STREAMED_BYTES_MAX,
};
pub use error::{CriError, go_name};
pub use events::{EventStream, ExecEnd, ExecEndStream, RuntimeEvent, RuntimeEventKind};
pub use first_output::OUTPUT_BYTES_MAX;
pub use tonic::Code;

/// containerd's name for what its CRI side made.
pub const CONTAINERD_NAMESPACE: &str = "k8s.io";

/// CRI `runtime.v1`: messages, clients, and servers for tests that stand in for a runtime.
#[allow(missing_debug_implementations, clippy::large_enum_variant, clippy::doc_lazy_continuation)]
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}

impl v1::PodSandboxNetworkStatus {
    /// Its addresses, the primary one first; what is none is left out (upstream determinePodSandboxIPs).
    pub fn addresses(&self) -> Vec<std::net::IpAddr> {
        let more = self.additional_ips.iter().map(|ip| ip.ip.as_str());
        std::iter::once(self.ip.as_str()).chain(more).filter_map(bulkhead_types::ip::parse_sloppy).collect()
    }
}

/// containerd's own services that we use, as generated.
#[allow(missing_debug_implementations, clippy::doc_lazy_continuation)]
pub mod containerd {
    /// `containerd.services.events.v1`
    pub mod service {
        tonic::include_proto!("containerd.services.events.v1");
    }
    /// `containerd.services.tasks.v1`
    pub mod tasks {
        tonic::include_proto!("containerd.services.tasks.v1");
    }
    /// `containerd.events`
    pub mod payload {
        tonic::include_proto!("containerd.events");
    }
}
