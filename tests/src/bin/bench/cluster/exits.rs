//! From a container's end until the API server knows of it.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use bulkhead_testkit::apiserver::request_log::Record;
use bulkhead_testkit::wait::eventually;
use bulkhead_testkit::{Cluster, LONG, processes};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::agents::Agent;
use super::{NAMESPACE, condition, progress, until_each};

/// Kills one container after the other, at most `count`, and takes the time until the server has the request that tells of it.
///
/// # Errors
/// One was not told of, or did not run again.
pub fn exits(count: usize, cluster: &Cluster, agent: &Agent) -> Result<Vec<Duration>> {
    let cri = agent.cri()?;
    // Each is killed once: the second time its restart is held back, which is another thing.
    let victims: Vec<(String, i32)> = cri
        .containers()?
        .into_iter()
        .filter(|container| container.running)
        .take(count)
        .map(|container| Ok((container.pod.clone(), cri.pid(&container.id)?)))
        .collect::<Result<_>>()?;
    progress(&format!("{}: {} exits", agent.name(), victims.len()));
    let mut told = Vec::with_capacity(victims.len());
    for (pod, pid) in victims {
        told.push(exit(cluster, &pod, pid)?);
        // The restart must be over before the next one is killed.
        cluster.wait_for("pods", NAMESPACE, &pod, "it runs again", |pod| {
            pod["status"]["containerStatuses"][0]["restartCount"] == 1 && condition(pod, "Ready")
        })?;
    }
    Ok(told)
}

/// Kills a container; the time until the server knows.
fn exit(cluster: &Cluster, pod: &str, pid: i32) -> Result<Duration> {
    if !cluster.is_stand_in() {
        let mut events = cluster.watch("pods", Some(NAMESPACE), "")?;
        let begin = Instant::now();
        processes::signal(pid, Signal::SIGKILL);
        let times =
            until_each(&mut events, &[pod.to_owned()], begin, "the API server is told of the exit", |_, pod| {
                has_ended_once(pod)
            })?;
        return times.into_iter().next().context("nothing was told");
    }
    let log = cluster.log()?;
    let mark = log.mark();
    let begin = SystemTime::now();
    processes::signal(pid, Signal::SIGKILL);
    let told = eventually("the API server is told of the exit", LONG, || {
        let records = log.after(mark);
        let told = records.iter().find(|record| record.name == pod && is_told(record));
        told.map(|record| SystemTime::from(record.time)).context("nothing was told")
    })?;
    Ok(told.duration_since(begin).unwrap_or_default())
}

fn is_told(record: &Record) -> bool {
    record.what() == "patch pods/status" && record.body.as_ref().is_some_and(has_ended_once)
}

fn has_ended_once(pod: &Value) -> bool {
    pod["status"]["containerStatuses"].as_array().into_iter().flatten().any(|one| {
        ["state", "lastState"].iter().any(|state| one[state].get("terminated").is_some_and(|it| !it.is_null()))
    })
}
