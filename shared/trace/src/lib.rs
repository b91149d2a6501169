//! Traces: which piece of work belongs to which, how long it took, over all processes.
//!
//! A span is a `tracing` span of the target [`TARGET`], made by `tracing::info_span!(target: TARGET, "name", ...)`. While
//! nobody records (the configuration names no `tracing`), making one costs a comparison. The identity of the innermost
//! open span travels with every call as W3C Trace Context ([`current`], [`PARENT_FIELD`]); what has ended waits in a
//! bounded [`Recorder`] for whoever sends it to a collector.
//!
//! Invariant: no I/O, and no text of a secret: attributes are ids, names and counts.

mod context;
mod layer;
mod recorder;

pub use context::TraceParent;
pub use layer::{TraceLayer, current, layer};
pub use recorder::{FinishedSpan, Kind, Recorder, Value};

/// Target of the `tracing` spans that are recorded. Log lines do not show them.
pub const TARGET: &str = "trace";
/// Header and gRPC metadata key of the context (W3C Trace Context).
pub const HEADER: &str = "traceparent";
/// Field of a span that continues a trace of somebody else: the header's text.
pub const PARENT_FIELD: &str = "trace.parent";
/// Field with the name to show where the name of the `tracing` span is not it (that one is fixed at build time).
pub const NAME_FIELD: &str = "trace.name";
/// Field with the kind of span: `server` or `client`; all else is internal.
pub const KIND_FIELD: &str = "trace.kind";
/// Field that says why the work failed.
pub const ERROR_FIELD: &str = "error";
