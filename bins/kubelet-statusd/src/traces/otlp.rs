//! From our spans to OTLP's messages (`opentelemetry.proto.trace.v1`). Pure.

use bulkhead_ipc::common::span::Kind;
use bulkhead_ipc::common::span_attribute::Value;
use bulkhead_ipc::common::{Span as OurSpan, SpanAttribute};
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};

/// One process's spans: the service and host as upstream names them, and which of our processes it was.
pub fn resource_spans(node: &str, process: &str, version: &str, spans: Vec<OurSpan>) -> ResourceSpans {
    let text =
        |key: &str, value: &str| key_value(key.to_owned(), Some(any_value::Value::StringValue(value.to_owned())));
    let attributes =
        vec![text("service.name", "kubelet"), text("host.name", node), text("process.executable.name", process)];
    let scope = InstrumentationScope {
        name: process.to_owned(),
        version: version.to_owned(),
        ..InstrumentationScope::default()
    };
    let spans = spans.into_iter().map(span).collect();
    ResourceSpans {
        resource: Some(Resource { attributes, ..Resource::default() }),
        scope_spans: vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }],
        ..ResourceSpans::default()
    }
}

fn span(span: OurSpan) -> Span {
    let kind = match span.kind() {
        Kind::Server => SpanKind::Server,
        Kind::Client => SpanKind::Client,
        Kind::Internal | Kind::Unspecified => SpanKind::Internal,
    };
    Span {
        trace_id: span.trace_id,
        span_id: span.span_id,
        parent_span_id: span.parent_span_id,
        name: span.name,
        kind: kind.into(),
        start_time_unix_nano: span.start_unix_nanos,
        end_time_unix_nano: span.end_unix_nanos,
        attributes: span.attributes.into_iter().map(attribute).collect(),
        status: span.error.map(|message| Status { message, code: StatusCode::Error.into() }),
        ..Span::default()
    }
}

fn attribute(attribute: SpanAttribute) -> KeyValue {
    let value = attribute.value.map(|value| match value {
        Value::Text(text) => any_value::Value::StringValue(text),
        Value::Number(number) => any_value::Value::IntValue(number),
        Value::Flag(flag) => any_value::Value::BoolValue(flag),
    });
    key_value(attribute.key, value)
}

fn key_value(key: String, value: Option<any_value::Value>) -> KeyValue {
    KeyValue { key, value: Some(AnyValue { value }), ..KeyValue::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;

    #[test]
    fn the_wire_format() {
        let ours = OurSpan {
            trace_id: vec![7; 16],
            span_id: vec![8; 8],
            name: "syncPod".into(),
            kind: Kind::Client.into(),
            start_unix_nanos: 1,
            end_unix_nanos: 2,
            attributes: vec![SpanAttribute { key: "n".into(), value: Some(Value::Number(3)) }],
            error: Some("no".into()),
            ..OurSpan::default()
        };
        let bytes = span(ours).encode_to_vec();
        let mut expected = vec![0x0a, 16];
        expected.extend([7; 16]);
        expected.extend([0x12, 8]);
        expected.extend([8; 8]);
        expected.extend([0x2a, 7]);
        expected.extend(b"syncPod");
        expected.extend([0x30, 3, 0x39, 1, 0, 0, 0, 0, 0, 0, 0, 0x41, 2, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend([0x4a, 7, 0x0a, 1, b'n', 0x12, 2, 0x18, 3]);
        expected.extend([0x7a, 6, 0x12, 2, b'n', b'o', 0x18, 2]);
        assert_eq!(bytes, expected);
    }
}
