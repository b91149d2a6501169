//! From `tracing` spans to recorded ones: identity, parent, whether to record, times, attributes.

use std::cell::RefCell;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use crate::context::TraceParent;
use crate::recorder::{FinishedSpan, Kind, Recorder, Value};
use crate::{ERROR_FIELD, KIND_FIELD, NAME_FIELD, PARENT_FIELD, TARGET};

/// A value's length at most, bytes: an exporter's batch is bounded by this and the number of spans.
const TEXT_MAX: usize = 512;

thread_local! {
    /// Open spans that this thread is in, innermost last.
    static ENTERED: RefCell<Vec<TraceParent>> = const { RefCell::new(Vec::new()) };
}

/// The innermost open span of what runs now: what a call to somebody else carries. `None` outside of any, and while
/// nobody records.
pub fn current() -> Option<TraceParent> {
    ENTERED.with_borrow(|entered| entered.last().copied())
}

/// Records spans of [`TARGET`].
#[derive(Debug)]
pub struct TraceLayer {
    recorder: Recorder,
    /// A new trace is recorded when the upper half of its id, halved, is below: OpenTelemetry's `TraceIdRatioBased`.
    bound: u64,
}

/// `per_million`: how many of a million traces that begin here are recorded (`samplingRatePerMillion`). A trace that
/// somebody else began is recorded when that one says so.
pub fn layer(recorder: Recorder, per_million: u32) -> TraceLayer {
    let bound = (u128::from(per_million.min(1_000_000)) << 63) / 1_000_000;
    TraceLayer { recorder, bound: u64::try_from(bound).unwrap_or(u64::MAX) }
}

/// A span between its beginning and its end.
struct Open {
    identity: TraceParent,
    parent: Option<[u8; 8]>,
    start: u64,
    noted: Noted,
}

/// What its fields say.
#[derive(Default)]
struct Noted {
    remote: Option<TraceParent>,
    name: Option<String>,
    kind: Option<Kind>,
    error: Option<String>,
    attributes: Vec<(&'static str, Value)>,
}

impl Noted {
    fn text(&mut self, field: &Field, text: &str) {
        let mut end = text.len().min(TEXT_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let short = &text[..end];
        match field.name() {
            PARENT_FIELD => self.remote = TraceParent::parse(text),
            NAME_FIELD => self.name = Some(short.to_owned()),
            ERROR_FIELD => self.error = Some(short.to_owned()),
            KIND_FIELD => {
                self.kind = match text {
                    "server" => Some(Kind::Server),
                    "client" => Some(Kind::Client),
                    _ => None,
                }
            }
            name => self.attributes.push((name, Value::Text(short.to_owned()))),
        }
    }
}

impl Visit for Noted {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.attributes.push((field.name(), Value::Number(value)));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.attributes.push((field.name(), Value::Number(i64::try_from(value).unwrap_or(i64::MAX))));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.attributes.push((field.name(), Value::Flag(value)));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field, &format!("{value:?}"));
    }
}

impl TraceLayer {
    fn begin(&self, noted: Noted) -> Open {
        let mut random = [0; 24];
        // Without random numbers the ids are zero, which no reader takes for a trace: nothing worse.
        let _ = getrandom::fill(&mut random);
        let (mut trace, mut span) = ([0; 16], [0; 8]);
        trace.copy_from_slice(&random[..16]);
        span.copy_from_slice(&random[16..]);
        let parent = noted.remote.or_else(current);
        let identity = match parent {
            Some(parent) => TraceParent { span, ..parent },
            None => TraceParent { trace, span, sampled: self.is_sampled(&trace) },
        };
        Open { identity, parent: parent.map(|parent| parent.span), start: now(), noted }
    }

    fn is_sampled(&self, trace: &[u8; 16]) -> bool {
        let mut upper = [0; 8];
        upper.copy_from_slice(&trace[8..]);
        u64::from_be_bytes(upper) >> 1 < self.bound
    }
}

impl<S> Layer<S> for TraceLayer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.target() == TARGET
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id).filter(|span| span.metadata().target() == TARGET) else { return };
        let mut noted = Noted::default();
        attributes.record(&mut noted);
        span.extensions_mut().replace(self.begin(noted));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(open) = span.extensions_mut().get_mut::<Open>()
        {
            values.record(&mut open.noted);
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(open) = span.extensions().get::<Open>()
        {
            ENTERED.with_borrow_mut(|entered| entered.push(open.identity));
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(open) = span.extensions().get::<Open>()
        {
            ENTERED.with_borrow_mut(|entered| {
                if let Some(place) = entered.iter().rposition(|identity| *identity == open.identity) {
                    entered.remove(place);
                }
            });
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(open) = span.extensions_mut().remove::<Open>() else { return };
        if !open.identity.sampled {
            return;
        }
        let noted = open.noted;
        self.recorder.keep(FinishedSpan {
            trace: open.identity.trace,
            span: open.identity.span,
            parent: open.parent,
            name: noted.name.unwrap_or_else(|| span.metadata().name().to_owned()),
            kind: noted.kind.unwrap_or(Kind::Internal),
            start: open.start,
            end: now().max(open.start),
            attributes: noted.attributes,
            error: noted.error,
        });
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Instrument as _;
    use tracing::field::Empty;
    use tracing_subscriber::layer::SubscriberExt as _;

    fn recording(per_million: u32, work: impl FnOnce()) -> Vec<FinishedSpan> {
        let recorder = Recorder::default();
        let layer = layer(recorder.clone(), per_million).with_filter(tracing_subscriber::filter::filter_fn(is_ours));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), work);
        recorder.take_now(usize::MAX)
    }

    fn is_ours(metadata: &Metadata<'_>) -> bool {
        metadata.target() == TARGET
    }

    #[test]
    fn children_know_their_parents_and_others_are_not_seen() {
        let spans = recording(1_000_000, || {
            let outer = tracing::info_span!(target: TARGET, "outer", pod = "p", count = 3, error = Empty);
            outer.in_scope(|| {
                let log = tracing::info_span!("of a log line");
                log.in_scope(|| {
                    tracing::info_span!(target: TARGET, "inner", { NAME_FIELD } = "shown", { KIND_FIELD } = "client")
                        .in_scope(|| assert!(current().is_some_and(|current| current.sampled)));
                });
            });
            outer.record("error", "no");
            assert_eq!(current(), None);
        });
        let [inner, outer] = spans.as_slice() else { panic!("{spans:?}") };
        assert_eq!((outer.name.as_str(), outer.parent, outer.error.as_deref()), ("outer", None, Some("no")));
        assert_eq!(outer.attributes, [("pod", Value::Text("p".into())), ("count", Value::Number(3))]);
        assert_eq!((inner.name.as_str(), inner.kind), ("shown", Kind::Client));
        assert_eq!((inner.trace, inner.parent), (outer.trace, Some(outer.span)));
        assert!(outer.start <= inner.start && inner.end <= outer.end);
    }

    #[test]
    fn somebody_elses_trace_is_continued_as_it_says() {
        let header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let spans = recording(0, || {
            drop(tracing::info_span!(target: TARGET, "own root"));
            drop(tracing::info_span!(target: TARGET, "continued", { PARENT_FIELD } = header));
            drop(tracing::info_span!(target: TARGET, "not recorded", { PARENT_FIELD } = &header[..53].to_owned()));
        });
        let [one] = spans.as_slice() else { panic!("{spans:?}") };
        assert_eq!(one.name, "continued");
        assert_eq!(one.parent, TraceParent::parse(header).map(|parent| parent.span));
    }

    #[test]
    fn tasks_that_take_turns_keep_their_own() {
        let spans = recording(1_000_000, || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(async {
                let task = |name: &'static str| {
                    let span = tracing::info_span!(target: TARGET, "task", { NAME_FIELD } = name);
                    async move {
                        for _ in 0..3 {
                            let before = current();
                            tokio::task::yield_now().await;
                            assert_eq!(before, current());
                        }
                        drop(tracing::info_span!(target: TARGET, "child"));
                    }
                    .instrument(span)
                };
                tokio::join!(task("a"), task("b"));
            });
        });
        for child in spans.iter().filter(|span| span.name == "child") {
            let parent = spans.iter().find(|span| Some(span.span) == child.parent).expect("its parent");
            assert_eq!(parent.trace, child.trace);
        }
        assert_eq!(spans.len(), 4);
    }

    #[test]
    fn the_rate_is_met() {
        let layer = layer(Recorder::default(), 250_000);
        let sampled = |top: u64| {
            let mut trace = [0; 16];
            trace[8..].copy_from_slice(&top.to_be_bytes());
            layer.is_sampled(&trace)
        };
        assert!(sampled(0) && sampled((1 << 62) - 1) && !sampled(1 << 62) && !sampled(u64::MAX));
    }
}
