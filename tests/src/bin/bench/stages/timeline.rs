//! What a pod waited for at each moment between a request and what it was for: from the spans of all processes and three moments
//! that are seen from outside. Pure.

use bulkhead_tests::collector::{Seen, number, text};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;

/// Who had the pod in hand. The server's part is told apart from the node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// A request that the API server has not answered yet.
    ApiServer,
    /// No request and no work of ours: an event of the API server is on its way, to the node or from it to whoever watches.
    Watch,
    /// Work that waits for its turn among other pods.
    Queue,
    /// A call of the container runtime.
    Runtime,
    /// kubelet-volnetd: volumes, folders, control groups.
    Volnetd,
    /// All else that the node does.
    Node,
    /// The node waits: for an event of the runtime, or for a moment.
    Waits,
}

impl Owner {
    pub const ALL: [Self; 7] =
        [Self::ApiServer, Self::Watch, Self::Queue, Self::Runtime, Self::Volnetd, Self::Node, Self::Waits];

    pub const fn name(self) -> &'static str {
        match self {
            Self::ApiServer => "API server",
            Self::Watch => "event of a watch",
            Self::Queue => "queue",
            Self::Runtime => "runtime",
            Self::Volnetd => "volnetd",
            Self::Node => "node",
            Self::Waits => "wait",
        }
    }
}

/// Three moments as an observer sees them, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub struct Moments {
    pub asked: u64,
    pub answered: u64,
    /// The watch shows that it is done.
    pub shown: u64,
}

/// A piece of the time between `asked` and `shown`: one follows the other without a gap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    pub owner: Owner,
    pub what: String,
    pub begin: u64,
    pub end: u64,
}

impl Slice {
    pub const fn took(&self) -> u64 {
        self.end - self.begin
    }
}

/// A span as it is judged here.
#[derive(Debug)]
struct Work {
    owner: Owner,
    what: String,
    begin: u64,
    end: u64,
    /// Of two at the same time the higher one is what the other waits for.
    rank: u8,
}

impl Work {
    fn of(seen: &Seen) -> Self {
        let name = seen.span.name.as_str();
        let last = name.rsplit('/').next().unwrap_or(name).to_owned();
        let (owner, rank) = match (seen.process.as_str(), seen.span.kind()) {
            (_, SpanKind::Client) if name.starts_with("runtime.v1.") => (Owner::Runtime, 3),
            ("kubelet-statusd", SpanKind::Client) => (Owner::ApiServer, 2),
            ("kubelet-volnetd", _) => (Owner::Volnetd, 3),
            // A turn in the middle of work.
            (_, SpanKind::Internal) if name == "queue" => (Owner::Queue, 1),
            _ => (Owner::Node, 1),
        };
        let what = if owner == Owner::Queue { "for a turn".to_owned() } else { last };
        Self { owner, what, begin: seen.span.start_time_unix_nano, end: seen.span.end_time_unix_nano, rank }
    }

    /// For what a piece of work waited before it began.
    fn queue(seen: &Seen) -> Option<Self> {
        let waited = u64::try_from(number(&seen.span.attributes, "queued_us")?).ok()?.saturating_mul(1000);
        let end = seen.span.start_time_unix_nano;
        let what = format!("before {}", seen.span.name);
        Some(Self { owner: Owner::Queue, what, begin: end.saturating_sub(waited), end, rank: 0 })
    }

    const fn covers(&self, begin: u64, end: u64) -> bool {
        self.begin <= begin && end <= self.end
    }

    /// What began last lies within the rest.
    const fn rank(&self) -> (u8, u64) {
        (self.rank, self.begin)
    }
}

/// The spans of the traces that work on this pod began, other pods' excepted.
pub fn of_pod<'a>(all: &'a [Seen], uid: &str) -> Vec<&'a Seen> {
    let uid_of = |seen: &Seen| text(&seen.span.attributes, "k8s.pod.uid");
    let traces: Vec<&[u8]> = all.iter().filter(|seen| uid_of(seen) == uid).map(|seen| &*seen.span.trace_id).collect();
    let of_it = |seen: &&Seen| {
        let other = uid_of(seen);
        traces.contains(&&*seen.span.trace_id) && (other.is_empty() || other == uid)
    };
    all.iter().filter(of_it).collect()
}

/// Who had the pod in hand, from `asked` to `shown`.
pub fn slices(spans: &[&Seen], moments: Moments) -> Vec<Slice> {
    let mut works: Vec<Work> = spans.iter().map(|seen| Work::of(seen)).collect();
    works.extend(spans.iter().filter_map(|seen| Work::queue(seen)));
    let ours = |work: &&Work| work.end > moments.asked && work.begin < moments.shown;
    let first = works.iter().filter(ours).map(|work| work.begin).min().unwrap_or(moments.shown);
    let last = works.iter().filter(ours).map(|work| work.end).max().unwrap_or(moments.shown);
    let within = |at: &u64| *at > moments.asked && *at < moments.shown;
    let mut cuts: Vec<u64> =
        works.iter().flat_map(|work| [work.begin, work.end]).chain([moments.answered]).filter(within).collect();
    cuts.extend([moments.asked, moments.shown]);
    cuts.sort_unstable();
    cuts.dedup();

    let mut slices: Vec<Slice> = Vec::new();
    for pair in cuts.windows(2) {
        let (begin, end) = (pair[0], pair[1]);
        let at_work = works.iter().filter(|work| work.covers(begin, end)).max_by_key(|work| work.rank());
        let (owner, what) = match at_work {
            Some(work) => (work.owner, work.what.as_str()),
            None if end <= moments.answered => (Owner::ApiServer, "the request"),
            None if end <= first => (Owner::Watch, "to the node"),
            None if begin >= last => (Owner::Watch, "to whoever watches"),
            None => (Owner::Waits, "between pieces of work"),
        };
        match slices.last_mut() {
            Some(before) if before.owner == owner && before.what == what => before.end = end,
            _ => slices.push(Slice { owner, what: what.to_owned(), begin, end }),
        }
    }
    slices
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
    use opentelemetry_proto::tonic::trace::v1::Span;

    use super::*;

    fn attribute(key: &str, value: any_value::Value) -> KeyValue {
        KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
    }

    fn seen(process: &str, name: &str, kind: SpanKind, (begin, end): (u64, u64)) -> Seen {
        let span = Span {
            trace_id: vec![1],
            name: name.to_owned(),
            kind: kind.into(),
            start_time_unix_nano: begin,
            end_time_unix_nano: end,
            ..Span::default()
        };
        Seen { process: process.to_owned(), span }
    }

    fn shown(slices: &[Slice]) -> Vec<(Owner, &str, u64)> {
        slices.iter().map(|slice| (slice.owner, slice.what.as_str(), slice.took())).collect()
    }

    #[test]
    fn every_moment_has_one_owner() {
        let mut root = seen("kubelet-syncd", "syncPod", SpanKind::Internal, (5000, 9000));
        root.span.attributes.push(attribute("queued_us", any_value::Value::IntValue(1)));
        let spans = [
            root,
            seen("kubelet-syncd", "sandbox", SpanKind::Internal, (6000, 8000)),
            seen("kubelet-syncd", "queue", SpanKind::Internal, (6200, 6500)),
            seen("kubelet-syncd", "runtime.v1.RuntimeService/RunPodSandbox", SpanKind::Client, (6500, 7500)),
            seen("kubelet-statusd", "patch_status", SpanKind::Client, (7000, 7800)),
            seen("kubelet-statusd", "patch_status", SpanKind::Client, (9500, 9900)),
        ];
        let spans: Vec<&Seen> = spans.iter().collect();
        let slices = slices(&spans, Moments { asked: 1000, answered: 2000, shown: 10_000 });
        assert_eq!(
            shown(&slices),
            [
                (Owner::ApiServer, "the request", 1000),
                (Owner::Watch, "to the node", 2000),
                (Owner::Queue, "before syncPod", 1000),
                (Owner::Node, "syncPod", 1000),
                (Owner::Node, "sandbox", 200),
                (Owner::Queue, "for a turn", 300),
                (Owner::Runtime, "RunPodSandbox", 1000),
                (Owner::ApiServer, "patch_status", 300),
                (Owner::Node, "sandbox", 200),
                (Owner::Node, "syncPod", 1000),
                (Owner::Waits, "between pieces of work", 500),
                (Owner::ApiServer, "patch_status", 400),
                (Owner::Watch, "to whoever watches", 100),
            ]
        );
        assert_eq!(slices.iter().map(Slice::took).sum::<u64>(), 9000);
    }

    #[test]
    fn a_pod_s_spans_are_those_of_its_traces() {
        let mut root = seen("kubelet-syncd", "syncPod", SpanKind::Internal, (1, 2));
        root.span.attributes.push(attribute("k8s.pod.uid", any_value::Value::StringValue("a".to_owned())));
        let child = seen("kubelet-syncd", "sandbox", SpanKind::Internal, (1, 2));
        let mut foreign = seen("kubelet-syncd", "syncPod", SpanKind::Internal, (1, 2));
        foreign.span.trace_id = vec![2];
        foreign.span.attributes.push(attribute("k8s.pod.uid", any_value::Value::StringValue("b".to_owned())));
        let all = [root, child, foreign];
        let names = |uid| of_pod(&all, uid).iter().map(|seen| seen.span.name.clone()).collect::<Vec<_>>();
        assert_eq!(names("a"), ["syncPod", "sandbox"]);
        assert_eq!(names("b"), ["syncPod"]);
        assert!(names("c").is_empty());
    }

    #[test]
    fn without_a_span_all_is_the_server_s() {
        let slices = slices(&[], Moments { asked: 0, answered: 4, shown: 10 });
        assert_eq!(shown(&slices), [(Owner::ApiServer, "the request", 4), (Owner::Watch, "to the node", 6)]);
    }
}
