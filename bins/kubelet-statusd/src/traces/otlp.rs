//! OTLP over gRPC, as far as spans need it: `opentelemetry.proto.collector.trace.v1.TraceService/Export`. Field numbers
//! are those of OpenTelemetry's protocol 1.x. Pure.

use bulkhead_ipc::common::span::Kind;
use bulkhead_ipc::common::span_attribute::Value;
use bulkhead_ipc::common::{Span as OurSpan, SpanAttribute};

/// Path of the call.
pub const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

#[derive(Clone, PartialEq, prost::Message)]
pub struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ExportReply {
    #[prost(message, optional, tag = "1")]
    pub partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub rejected_spans: i64,
    #[prost(string, tag = "2")]
    pub error_message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<Span>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Scope {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub name: String,
    #[prost(int32, tag = "6")]
    pub kind: i32,
    #[prost(fixed64, tag = "7")]
    pub start_unix_nanos: u64,
    #[prost(fixed64, tag = "8")]
    pub end_unix_nanos: u64,
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    pub status: Option<Status>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Status {
    #[prost(string, tag = "2")]
    pub message: String,
    /// 2 is an error; 0 says nothing.
    #[prost(int32, tag = "3")]
    pub code: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct KeyValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct AnyValue {
    #[prost(oneof = "any_value::Value", tags = "1, 2, 3")]
    pub value: Option<any_value::Value>,
}

/// The kinds of values that are sent.
pub mod any_value {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Value {
        #[prost(string, tag = "1")]
        Text(String),
        #[prost(bool, tag = "2")]
        Flag(bool),
        #[prost(int64, tag = "3")]
        Number(i64),
    }
}

/// One process's spans: the service and host as upstream names them, and which of our processes it was.
pub fn resource_spans(node: &str, process: &str, version: &str, spans: Vec<OurSpan>) -> ResourceSpans {
    let text = |key: &str, value: &str| KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(any_value::Value::Text(value.to_owned())) }),
    };
    let attributes =
        vec![text("service.name", "kubelet"), text("host.name", node), text("process.executable.name", process)];
    let scope = Scope { name: process.to_owned(), version: version.to_owned() };
    ResourceSpans {
        resource: Some(Resource { attributes }),
        scope_spans: vec![ScopeSpans { scope: Some(scope), spans: spans.into_iter().map(span).collect() }],
    }
}

fn span(span: OurSpan) -> Span {
    let kind = match span.kind() {
        Kind::Server => 2,
        Kind::Client => 3,
        Kind::Internal | Kind::Unspecified => 1,
    };
    Span {
        trace_id: span.trace_id,
        span_id: span.span_id,
        parent_span_id: span.parent_span_id,
        name: span.name,
        kind,
        start_unix_nanos: span.start_unix_nanos,
        end_unix_nanos: span.end_unix_nanos,
        attributes: span.attributes.into_iter().map(attribute).collect(),
        status: span.error.map(|message| Status { message, code: 2 }),
    }
}

fn attribute(attribute: SpanAttribute) -> KeyValue {
    let value = attribute.value.map(|value| match value {
        Value::Text(text) => any_value::Value::Text(text),
        Value::Number(number) => any_value::Value::Number(number),
        Value::Flag(flag) => any_value::Value::Flag(flag),
    });
    KeyValue { key: attribute.key, value: Some(AnyValue { value }) }
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
