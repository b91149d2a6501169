//! A collector of traces: it takes what the node exports by OTLP over gRPC, and keeps all of it.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::Result;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use tonic::{Request, Response, Status};

/// A span, and the process that it comes from.
#[derive(Debug, Clone)]
pub struct Seen {
    pub process: String,
    pub span: Span,
}

/// Keeps all that the kubelet of one node sends.
#[derive(Debug, Clone)]
pub struct Collector {
    node: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut seen = self.seen.lock();
        for resource in request.into_inner().resource_spans {
            let attributes = resource.resource.unwrap_or_default().attributes;
            if text(&attributes, "service.name") != "kubelet" || text(&attributes, "host.name") != self.node {
                return Err(Status::invalid_argument(format!("whose are these? {attributes:?}")));
            }
            let process = text(&attributes, "process.executable.name");
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            seen.extend(spans.map(|span| Seen { process: process.clone(), span }));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// The text of an attribute; empty where there is none.
pub fn text(attributes: &[KeyValue], key: &str) -> String {
    match value(attributes, key) {
        Some(Attribute::StringValue(text)) => text,
        _ => String::new(),
    }
}

/// The number of an attribute.
pub fn number(attributes: &[KeyValue], key: &str) -> Option<i64> {
    match value(attributes, key) {
        Some(Attribute::IntValue(number)) => Some(number),
        _ => None,
    }
}

fn value(attributes: &[KeyValue], key: &str) -> Option<Attribute> {
    attributes.iter().find(|one| one.key == key).and_then(|one| one.value.clone()?.value)
}

impl Collector {
    /// Of the node of that name; what another one sends is refused.
    pub fn of(node: &str) -> Self {
        Self { node: node.to_owned(), seen: Arc::default() }
    }

    /// Listens where the node reaches it; answers the place and what keeps it alive.
    ///
    /// # Errors
    /// There is no such address here.
    pub fn serve(&self, at: Ipv4Addr) -> Result<(String, tokio::runtime::Runtime)> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind((at, 0)))?;
        let address = listener.local_addr()?.to_string();
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let service = TraceServiceServer::new(self.clone());
        runtime.spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
        Ok((address, runtime))
    }

    /// All that came so far.
    pub fn all(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }
}
