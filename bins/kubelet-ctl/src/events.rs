//! `events`: what happened to the pods lately, newest last. Read from the pods, so that looking takes no event away
//! from the one who records them.

use bulkhead_ipc::syncd::PodState;
use jiff::Timestamp;

use crate::instance::Instance;
use crate::output::{Format, Printer};
use crate::table::Table;
use crate::view::{Pod, PodEvent};
use crate::{Exit, Failure, age, pods};

/// `events`.
pub(crate) async fn list(
    instance: &Instance,
    namespace: Option<&str>,
    printer: &mut Printer<'_>,
) -> Result<Exit, Failure> {
    let events = collect(pods::all(instance, namespace).await?);
    if events.is_empty() && printer.format == Format::Table {
        printer.note("No recent events.");
        return Ok(Exit::Success);
    }
    printer.print(&events, || table(&events, Timestamp::now()))?;
    Ok(Exit::Success)
}

fn collect(pods: Vec<PodState>) -> Vec<PodEvent> {
    let mut events: Vec<PodEvent> = pods.into_iter().flat_map(|pod| Pod::new(pod, false).events).collect();
    let time = |event: &PodEvent| event.time.parse::<Timestamp>().unwrap_or(Timestamp::MIN);
    events.sort_by_key(time);
    events
}

fn table(events: &[PodEvent], now: Timestamp) -> String {
    let mut table = Table::new(&["AGE", "NAMESPACE", "POD", "TYPE", "REASON", "ABOUT", "MESSAGE"]);
    for event in events {
        let age = age::since(&event.time, now);
        let cells: [&str; 7] =
            [&age, &event.namespace, &event.pod, &event.r#type, &event.reason, &event.field_path, &event.message];
        table.row(cells);
    }
    table.render(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_ipc::syncd::Event;

    #[test]
    fn newest_last_over_all_pods() {
        let pod = |name: &str, times: &[&str]| PodState {
            namespace: "default".into(),
            name: name.into(),
            recent_events: times
                .iter()
                .map(|time| Event {
                    time: (*time).into(),
                    r#type: "Normal".into(),
                    reason: "Started".into(),
                    message: "Container started".into(),
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        };
        let events = collect(vec![
            pod("a", &["2026-01-01T00:00:01Z", "2026-01-01T00:00:03.5Z"]),
            pod("b", &["2026-01-01T00:00:02Z"]),
        ]);
        assert_eq!(
            table(&events, "2026-01-01T00:00:10Z".parse().unwrap()),
            "\
AGE   NAMESPACE   POD   TYPE     REASON    ABOUT   MESSAGE
9s    default     a     Normal   Started   -       Container started
8s    default     b     Normal   Started   -       Container started
7s    default     a     Normal   Started   -       Container started
"
        );
    }
}
