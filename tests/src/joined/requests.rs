//! The requests that the API server got: who sent them, and that they were not too many.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_testkit::apiserver::request_log::Record;

/// Who asked: the process behind a request.
pub fn process_of(record: &Record) -> &str {
    record.agent.rsplit(' ').next().unwrap_or_default()
}

/// Whether a request begins with everything that there is: a list, or a watch that starts with one.
pub fn is_list(record: &Record) -> bool {
    record.verb == "list" || (record.verb == "watch" && record.uri.contains("sendInitialEvents=true"))
}

/// The most requests of those that came within any `window`.
pub fn busiest<'a>(records: impl IntoIterator<Item = &'a Record>, window: Duration) -> usize {
    let times: Vec<_> = records.into_iter().map(|record| record.time.as_millisecond()).collect();
    let window = i64::try_from(window.as_millis()).unwrap_or(i64::MAX);
    (0..times.len())
        .map(|first| times[first..].iter().take_while(|time| **time - times[first] < window).count())
        .max()
        .unwrap_or(0)
}

/// No process asks faster than it may, and nobody lists again and again. `qps`, `burst`: of each process.
///
/// # Errors
/// What was too much.
pub fn is_no_storm(records: &[Record], qps: usize, burst: usize) -> Result<()> {
    let heartbeat = |one: &&Record| matches!(one.resource, "leases" | "nodes" | "csinodes");
    for process in ["kubelet-syncd", "kubelet-statusd"] {
        let of_process = records.iter().filter(|one| process_of(one) == process && !heartbeat(one));
        let (events, main): (Vec<&Record>, Vec<&Record>) = of_process.partition(|one| one.resource == "events");
        let most = busiest(main, Duration::from_secs(1));
        ensure!(most <= burst + qps, "{process} sent {most} requests within a second");
        let most = busiest(events, Duration::from_secs(1));
        ensure!(most <= 150, "{process} sent {most} events within a second");
    }
    // A start asks for each of these once or twice, and a test may start a node twice within a second: what makes a storm is
    // the same request over and over.
    let heartbeats: Vec<&Record> = records.iter().filter(heartbeat).collect();
    let kinds: BTreeSet<(&str, &str)> = heartbeats.iter().map(|one| (one.verb, one.resource)).collect();
    for (verb, resource) in kinds {
        let same = heartbeats.iter().copied().filter(|one| (one.verb, one.resource) == (verb, resource));
        let most = busiest(same, Duration::from_secs(1));
        ensure!(most <= 6, "{verb} of {resource} {most} times within a second");
    }
    let lists: Vec<String> = records.iter().filter(|one| is_list(one)).map(|one| one.uri.clone()).collect();
    let distinct: BTreeSet<&String> = lists.iter().collect();
    ensure!(lists.len() <= distinct.len() * 2, "lists again and again: {lists:#?}");
    Ok(())
}
