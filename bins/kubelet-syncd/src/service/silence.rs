//! Sources of pods that deliver nothing: what each waits for, and who is told when that takes too long - the log, a metric,
//! and an event on the Node, which reaches the API server as soon as that can be written to.
//!
//! A node whose API source is silent looks well from everywhere else: it is Ready, and its pods stay Pending.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_apiclient::Reachability;
use bulkhead_ipc::syncd as api;
use prometheus::{GaugeVec, Opts, Registry};

use super::node_view::NodeView;
use crate::sync_loop::events::Reporter;
use kubelet_model::events::{EventSink as _, EventType, NodeEvent};
use kubelet_model::pod::source::SourceKind;

/// A source that has delivered nothing for so long is silent: a start takes seconds.
pub const SILENT_AFTER: Duration = Duration::from_secs(60);
/// The first line in the log.
const WAITING_AFTER: Duration = Duration::from_secs(10);
/// The line is repeated this often.
const REPEAT: Duration = Duration::from_secs(300);
/// Sources are looked at this often until each has delivered.
const LOOK: Duration = Duration::from_secs(1);
/// Reason of the event.
const REASON: &str = "PodSourceSilent";

/// What the API server's pods wait for. Pure.
pub fn api_waits_for(reachability: &Reachability, node_synced: bool) -> String {
    match reachability {
        Reachability::Unknown => "credentials for the API server".to_owned(),
        Reachability::Unreachable { reason, .. } => format!("an answer of the API server ({reason})"),
        Reachability::Reachable { .. } if !node_synced => "the API server's word on this Node".to_owned(),
        Reachability::Reachable { .. } => "the API server's list of the pods of this node".to_owned(),
    }
}

/// What the sources of static pods wait for. Pure.
pub fn static_waits_for(source: SourceKind) -> &'static str {
    match source {
        SourceKind::Http => "an answer of staticPodURL",
        SourceKind::File | SourceKind::Api => "kubelet-volnetd to read staticPodPath",
    }
}

/// What is to be said of a source at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Say {
    Waiting,
    /// With the event.
    Silent,
    Still,
    /// After something was said.
    Delivered,
}

/// What was said of one source.
#[derive(Debug, Default)]
struct LastReport {
    last: Option<Duration>,
}

impl LastReport {
    fn next(&mut self, state: &api::SourceState) -> Option<Say> {
        if state.seen {
            return self.last.take().map(|_| Say::Delivered);
        }
        let silent = Duration::try_from_secs_f64(state.silent_seconds).unwrap_or_default();
        let say = match self.last {
            None if silent >= SILENT_AFTER => Say::Silent,
            None if silent >= WAITING_AFTER => Say::Waiting,
            Some(last) if last < SILENT_AFTER && silent >= SILENT_AFTER => Say::Silent,
            Some(last) if last >= SILENT_AFTER && silent >= last + REPEAT => Say::Still,
            _ => return None,
        };
        self.last = Some(silent);
        Some(say)
    }
}

/// The metric of [`tell`].
///
/// # Errors
/// The name is taken.
pub fn register(registry: &Registry) -> Result<GaugeVec, prometheus::Error> {
    let help =
        "Seconds for which a source of pods (api, file, http) has delivered nothing since the start; 0 once it has.";
    let metric = GaugeVec::new(Opts::new("bulkhead_pod_source_silent_seconds", help), &["source"])?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

/// Looks until every source has delivered; none falls silent after that, as what it has delivered stays.
pub async fn tell(view: Arc<NodeView>, reporter: Arc<Reporter>, metric: GaugeVec) {
    let mut said: BTreeMap<String, LastReport> = BTreeMap::new();
    loop {
        let states = view.source_states();
        for state in &states {
            metric.with_label_values(&[&state.name]).set(state.silent_seconds);
            match said.entry(state.name.clone()).or_default().next(state) {
                None => {}
                Some(Say::Waiting) => {
                    tracing::info!(source = state.name, waits_for = state.waits_for, "waiting for pod source to sync");
                }
                Some(Say::Silent) => {
                    reporter.emit_node(NodeEvent { kind: EventType::Warning, reason: REASON, message: message(state) });
                }
                Some(Say::Still) => tracing::warn!(source = state.name, "{}", message(state)),
                Some(Say::Delivered) => tracing::info!(source = state.name, "pod source synced"),
            }
        }
        if !states.is_empty() && states.iter().all(|state| state.seen) {
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn message(state: &api::SourceState) -> String {
    let last = state.errors.last().map(|error| format!("; last error: {error}")).unwrap_or_default();
    format!(
        "Pod source {} has delivered nothing for {:.0}s, so no pod of it is started or removed: it waits for {}{last}",
        state.name, state.silent_seconds, state.waits_for
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    fn at(seconds: f64) -> api::SourceState {
        api::SourceState { name: "api".into(), silent_seconds: seconds, waits_for: "w".into(), ..Default::default() }
    }

    #[test]
    fn a_silent_source_is_reported_once_a_period() {
        let mut said = LastReport::default();
        let seen = api::SourceState { seen: true, ..at(0.0) };
        let story = [
            (at(1.0), None),
            (at(10.0), Some(Say::Waiting)),
            (at(59.0), None),
            (at(60.0), Some(Say::Silent)),
            (at(61.0), None),
            (at(359.0), None),
            (at(360.0), Some(Say::Still)),
            (at(361.0), None),
            (seen.clone(), Some(Say::Delivered)),
            (seen.clone(), None),
        ];
        for (state, expected) in story {
            assert_eq!(said.next(&state), expected, "{state:?}");
        }
        assert_eq!(LastReport::default().next(&seen), None, "a start that is none worth a line");
        assert_eq!(LastReport::default().next(&at(70.0)), Some(Say::Silent), "looked at late");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_waited_for() {
        let since = Instant::now();
        let refused = Reachability::Unreachable { since, reason: "connection refused".into() };
        let answers = Reachability::Reachable { since };
        assert_eq!(api_waits_for(&Reachability::Unknown, false), "credentials for the API server");
        assert_eq!(api_waits_for(&refused, true), "an answer of the API server (connection refused)");
        assert_eq!(api_waits_for(&answers, false), "the API server's word on this Node");
        assert_eq!(api_waits_for(&answers, true), "the API server's list of the pods of this node");
        let state = api::SourceState { errors: vec!["500".into()], ..at(75.4) };
        assert_eq!(
            message(&state),
            "Pod source api has delivered nothing for 75s, so no pod of it is started or removed: it waits for w; \
             last error: 500"
        );
    }
}
