//! The named stages of work on a pod: each is a span of its trace and, while the pod starts, a part of its start time.

use std::future::Future;
use std::time::Instant;

use bulkhead_trace::TARGET;
use prometheus::HistogramVec;
use tracing::Instrument as _;

tokio::task_local! {
    /// Where the stages of a start are counted; not there in work on a pod that has started.
    static START: HistogramVec;
}

/// A stage. The names are those of the metric's label and of the spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// From the pod's being wanted to the first work on it: admission, a turn among others that start.
    Queue,
    /// A picture of the pod from the runtime that is new enough.
    Inspect,
    /// cgroup, folders, volumes.
    Prepare,
    /// The pod sandbox with its network.
    Sandbox,
    /// An image, from the check to the end of a pull.
    Image,
    /// Variables, files and the container itself, up to its start and the end of its postStart hook.
    Container,
    /// The postStart hook within that.
    PostStart,
}

impl Stage {
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Queue => "queue",
            Stage::Inspect => "inspect",
            Stage::Prepare => "prepare",
            Stage::Sandbox => "sandbox",
            Stage::Image => "image",
            Stage::Container => "container",
            Stage::PostStart => "post_start",
        }
    }
}

/// Does the work of a stage. Of one that is given up nothing is counted.
pub fn during<T>(stage: Stage, work: impl Future<Output = T>) -> impl Future<Output = T> {
    // Boxed: an async function holds what it is given beside what it awaits, so that a sync, of stages within others, would double
    // in size with each.
    let work = Box::pin(work);
    async move {
        let name = stage.name();
        let began = Instant::now();
        let done = work.instrument(span(name)).await;
        let _ = START.try_with(|times| times.with_label_values(&[name]).observe(began.elapsed().as_secs_f64()));
        done
    }
}

/// Waits for a turn in the middle of work, which a trace shows as time in the queue. The stage that needs the turn counts it as its own.
pub async fn waiting<T>(turn: impl Future<Output = T>) -> T {
    turn.instrument(span(Stage::Queue.name())).await
}

/// Within the span that is open; a trace does not begin with a stage.
fn span(name: &'static str) -> tracing::Span {
    match bulkhead_trace::current() {
        Some(_) => tracing::info_span!(target: TARGET, "stage", { bulkhead_trace::NAME_FIELD } = name),
        None => tracing::Span::none(),
    }
}

/// Work on a pod that starts: its stages are counted.
pub async fn of_a_start<T>(times: HistogramVec, work: impl Future<Output = T>) -> T {
    START.scope(times, work).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::HistogramOpts;

    #[tokio::test]
    async fn a_start_is_counted_by_its_stages_and_other_work_is_not() {
        let times = HistogramVec::new(HistogramOpts::new("times", "t"), &["stage"]).unwrap();
        let count = |stage: Stage| times.with_label_values(&[stage.name()]).get_sample_count();
        let work = async {
            during(Stage::Image, async {}).await;
            during(Stage::Image, async { during(Stage::Container, async {}).await }).await;
        };
        of_a_start(times.clone(), work).await;
        during(Stage::Sandbox, async {}).await;
        assert_eq!([Stage::Image, Stage::Container, Stage::Sandbox].map(count), [2, 1, 0]);
    }
}
