//! Traces of this process: whether they are recorded, and their way to kubelet-statusd, which sends them to a collector.

use bulkhead_config::NodeConfig;
use bulkhead_ipc::common::span::Kind as WireKind;
use bulkhead_ipc::common::span_attribute::Value as WireValue;
use bulkhead_ipc::common::traces_server::Traces;
use bulkhead_ipc::common::{Span, SpanAttribute, SpanBatch, TakeSpansRequest};
use bulkhead_trace::{FinishedSpan, Kind, Recorder, TraceLayer, Value};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// Spans in a message: with the longest attributes they stay below its limit.
const BATCH: usize = 32;

/// What records, where the configuration says so (`tracing`). Without a rate nothing begins a trace here, and what others
/// began is recorded (upstream `component-base/tracing`).
pub(crate) fn recording(config: &NodeConfig) -> Option<(Recorder, TraceLayer)> {
    let tracing = config.kubelet.tracing.as_ref()?;
    let recorder = Recorder::default();
    let per_million = tracing.sampling_rate_per_million.and_then(|rate| u32::try_from(rate).ok()).unwrap_or(0);
    Some((recorder.clone(), bulkhead_trace::layer(recorder, per_million)))
}

/// `kubelet.common.v1.Traces`.
#[derive(Debug)]
pub(crate) struct TracesService(pub(crate) Option<Recorder>);

#[tonic::async_trait]
impl Traces for TracesService {
    type TakeStream = ReceiverStream<Result<SpanBatch, Status>>;

    async fn take(&self, _: Request<TakeSpansRequest>) -> Result<Response<Self::TakeStream>, Status> {
        let Some(recorder) = self.0.clone() else {
            return Err(Status::failed_precondition("the configuration names no tracing"));
        };
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            // A place in the channel first: what is taken is gone, and whoever has left takes nothing more.
            while let Ok(place) = sender.reserve().await {
                let spans = tokio::select! {
                    spans = recorder.take(BATCH) => spans,
                    () = sender.closed() => return,
                };
                let spans = spans.into_iter().map(wire_span).collect();
                place.send(Ok(SpanBatch { spans, dropped: recorder.dropped() }));
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// A span as it crosses processes.
pub fn wire_span(span: FinishedSpan) -> Span {
    let kind = match span.kind {
        Kind::Internal => WireKind::Internal,
        Kind::Server => WireKind::Server,
        Kind::Client => WireKind::Client,
    };
    let attribute = |(key, value): (&str, Value)| SpanAttribute {
        key: key.to_owned(),
        value: Some(match value {
            Value::Text(text) => WireValue::Text(text),
            Value::Number(number) => WireValue::Number(number),
            Value::Flag(flag) => WireValue::Flag(flag),
        }),
    };
    Span {
        trace_id: span.trace.to_vec(),
        span_id: span.span.to_vec(),
        parent_span_id: span.parent.map(Vec::from).unwrap_or_default(),
        name: span.name,
        kind: kind.into(),
        start_unix_nanos: span.start,
        end_unix_nanos: span.end,
        attributes: span.attributes.into_iter().map(attribute).collect(),
        error: span.error,
    }
}
