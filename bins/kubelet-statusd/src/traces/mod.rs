//! Traces on their way to the collector: spans are taken from every process, and sent in batches to the collector that
//! `tracing.endpoint` names, by OTLP over gRPC without TLS (upstream `component-base/tracing`).
//!
//! A collector that is away costs nothing but spans: batches are tried again for a minute, then the oldest go.

mod endpoint;
mod otlp;
mod queue;

use std::sync::Arc;
use std::time::Duration;

use bulkhead_config::NodeConfig;
use bulkhead_daemon::wire_span;
use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::common::TakeSpansRequest;
use bulkhead_ipc::common::traces_client::TracesClient;
use bulkhead_ipc::context::CallContext;
use bulkhead_trace::Recorder;
use bulkhead_types::Process;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use prometheus::{IntCounterVec, Opts, Registry};
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use self::endpoint::Collector;
use self::queue::Queue;

/// A batch waits for more spans this long (`OTEL_BSP_SCHEDULE_DELAY`).
const DELAY: Duration = Duration::from_secs(5);
/// Of one try.
const EXPORT_DEADLINE: Duration = Duration::from_secs(10);
/// Pauses between tries of a batch, and when it is given up (the OTLP exporter's defaults).
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));
const GIVE_UP: Duration = Duration::from_secs(60);
/// Before a process is asked again that did not answer.
const TAKE_AGAIN: Duration = Duration::from_secs(1);
const TAKE_DEADLINE: Duration = Duration::from_secs(5);

/// What becomes of spans.
#[derive(Debug, Clone)]
struct Counted(IntCounterVec);

impl Counted {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let opts = Opts::new(
            "bulkhead_trace_spans_total",
            "[ALPHA] Spans by what became of them: sent, refused by the collector, or lost because a queue was full or the collector away.",
        );
        let spans = IntCounterVec::new(opts, &["result"])?;
        registry.register(Box::new(spans.clone()))?;
        Ok(Counted(spans))
    }

    /// A process that made spans had no room for some: `now` of them since its start, of which `known` were counted.
    fn lost_before(&self, known: &mut u64, now: u64) {
        // Fewer than before are another life's.
        let new = if now < *known { now } else { now - *known };
        *known = now;
        self.0.with_label_values(&["lost"]).inc_by(new);
    }

    fn add(&self, result: &str, count: usize) {
        self.0.with_label_values(&[result]).inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }
}

/// Takes and sends for as long as the process lives. `own`: this process's spans.
///
/// # Errors
/// The endpoint is none, or a metric's name is taken.
pub async fn run(
    config: &NodeConfig,
    own: Recorder,
    links: [(Process, Link); 3],
    registry: &Registry,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let endpoint = config.kubelet.tracing.as_ref().and_then(|tracing| tracing.endpoint.as_deref());
    let collector = Collector::parse(endpoint)?;
    let channel = collector.channel()?;
    let counted = Counted::register(registry)?;
    let queue = Arc::new(Queue::default());
    tracing::info!(?collector, "traces are sent");
    let [a, b, c] = links.map(|(process, link)| follow(process, link, &queue, &counted));
    let ours = async {
        let mut dropped = 0;
        loop {
            let spans = own.take(queue::BATCH).await.into_iter().map(wire_span).collect();
            counted.lost_before(&mut dropped, own.dropped());
            counted.add("lost", queue.add(Process::Statusd, spans));
        }
    };
    let send = send(config, channel, &queue, &counted);
    tokio::join!(a, b, c, ours, send);
    Ok(())
}

/// Takes the spans of another process.
async fn follow(process: Process, link: Link, queue: &Queue, counted: &Counted) {
    let mut dropped = 0;
    loop {
        link.ready().await;
        let mut client = TracesClient::new(link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let asked = client.take(CallContext::new().streaming_request(TakeSpansRequest {}));
        match tokio::time::timeout(TAKE_DEADLINE, asked).await {
            Ok(Ok(stream)) => {
                let mut stream = stream.into_inner();
                while let Ok(Some(batch)) = stream.message().await {
                    counted.lost_before(&mut dropped, batch.dropped);
                    counted.add("lost", queue.add(process, batch.spans));
                }
            }
            Ok(Err(status)) => {
                tracing::debug!(%process, code = ?status.code(), "no spans: {}", status.message());
            }
            Err(_) => tracing::debug!(%process, "no spans in time"),
        }
        tokio::time::sleep(TAKE_AGAIN).await;
    }
}

/// Sends what has come together.
async fn send(config: &NodeConfig, channel: Channel, queue: &Queue, counted: &Counted) {
    let node = config.node_name.as_str();
    loop {
        queue.some().await;
        tokio::select! {
            () = tokio::time::sleep(DELAY) => {}
            () = queue.full() => {}
        }
        let batch = queue.batch();
        let count = batch.iter().map(|(_, spans)| spans.len()).sum();
        let resource_spans = batch
            .into_iter()
            .map(|(process, spans)| otlp::resource_spans(node, process.name(), env!("CARGO_PKG_VERSION"), spans))
            .collect();
        let result = match export(&channel, &ExportTraceServiceRequest { resource_spans }).await {
            Ok(refused) => {
                let refused = usize::try_from(refused).unwrap_or(0).min(count);
                counted.add("refused", refused);
                counted.add("sent", count - refused);
                continue;
            }
            Err(status) if is_worth_a_try(status.code()) => {
                tracing::warn!(code = ?status.code(), spans = count, "traces are lost: {}", status.message());
                "lost"
            }
            Err(status) => {
                tracing::warn!(code = ?status.code(), spans = count, "traces are refused: {}", status.message());
                "refused"
            }
        };
        counted.add(result, count);
    }
}

/// One batch, until it is taken, refused, or too old. Answers how many of it the collector did not want.
async fn export(channel: &Channel, request: &ExportTraceServiceRequest) -> Result<i64, Status> {
    let began = Instant::now();
    let (mut pause, longest) = RETRY;
    loop {
        match export_once(channel.clone(), request.clone()).await {
            Ok(reply) => {
                let partial = reply.partial_success.unwrap_or_default();
                if partial.rejected_spans > 0 {
                    tracing::warn!(spans = partial.rejected_spans, "spans are refused: {}", partial.error_message);
                }
                return Ok(partial.rejected_spans);
            }
            Err(status) if is_worth_a_try(status.code()) && began.elapsed() + pause < GIVE_UP => {
                tracing::debug!(code = ?status.code(), "the collector does not take traces now: {}", status.message());
            }
            Err(status) => return Err(status),
        }
        tokio::time::sleep(pause).await;
        pause = pause.mul_f64(1.5).min(longest);
    }
}

async fn export_once(
    channel: Channel,
    request: ExportTraceServiceRequest,
) -> Result<ExportTraceServiceResponse, Status> {
    let mut request = Request::new(request);
    request.set_timeout(EXPORT_DEADLINE);
    let mut client = TraceServiceClient::new(channel);
    let call = async { client.export(request).await.map(tonic::Response::into_inner) };
    tokio::time::timeout(EXPORT_DEADLINE, call)
        .await
        .unwrap_or_else(|_| Err(Status::deadline_exceeded("the collector does not answer")))
}

/// Codes that OTLP's specification calls retryable.
fn is_worth_a_try(code: Code) -> bool {
    matches!(
        code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
            | Code::ResourceExhausted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_had_no_room_for_is_counted_once_over_their_restarts() {
        let counted = Counted::register(&Registry::new()).unwrap();
        let mut known = 0;
        for now in [0, 5, 5, 7, 2, 2, 3] {
            counted.lost_before(&mut known, now);
        }
        assert_eq!(counted.0.with_label_values(&["lost"]).get(), 10);
    }
}
