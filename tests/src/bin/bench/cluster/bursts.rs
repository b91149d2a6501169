//! Pods of one agent, one alone and many at once: created until Running, and deleted until the object is gone, as a watch of the
//! API server shows it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bulkhead_testkit::Cluster;

use super::agents::{Agent, pod};
use super::{NAMESPACE, QUIET, until_each};
use crate::measure::{self, Usage};

/// Many at once.
#[derive(Debug, Clone, Default)]
pub struct Burst {
    /// Each pod's time from the common beginning.
    pub started: Vec<Duration>,
    /// What the agent's programs have used until the last one ran.
    pub start_use: BTreeMap<String, Usage>,
    /// Requests to the runtime for each pod, by operation, until all was quiet.
    pub start_requests: BTreeMap<String, f64>,
    /// Each object's end, from the first request.
    pub deleted: Vec<Duration>,
    pub delete_use: BTreeMap<String, Usage>,
    pub delete_requests: BTreeMap<String, f64>,
}

impl Burst {
    /// Creates the pods.
    ///
    /// # Errors
    /// One did not run in time.
    pub fn start(&mut self, cluster: &Cluster, agent: &mut Agent, names: &[String]) -> Result<()> {
        let requests = agent.runtime_requests(cluster)?;
        let before = agent.usage()?;
        let node = agent.name();
        self.started = all(
            cluster,
            names,
            "all pods are Running on the API server",
            |name| cluster.create(&pod(node, name)).map(drop),
            |_, pod| pod["status"]["phase"] == "Running",
        )?;
        self.start_use = measure::since(&before, &agent.usage()?);
        self.start_requests = for_each(names.len(), cluster, agent, &requests)?;
        Ok(())
    }

    /// Deletes the pods.
    ///
    /// # Errors
    /// One was not gone in time.
    pub fn delete(&mut self, cluster: &Cluster, agent: &mut Agent, names: &[String]) -> Result<()> {
        let requests = agent.runtime_requests(cluster)?;
        let before = agent.usage()?;
        self.deleted = all(
            cluster,
            names,
            "all pods are gone",
            |name| cluster.delete("pods", NAMESPACE, name, None),
            |kind, _| kind == "DELETED",
        )?;
        self.delete_use = measure::since(&before, &agent.usage()?);
        self.delete_requests = for_each(names.len(), cluster, agent, &requests)?;
        Ok(())
    }
}

/// What the runtime was asked since `before`, for each pod, when what follows the pods has been asked as well.
fn for_each(
    pods: usize,
    cluster: &Cluster,
    agent: &Agent,
    before: &BTreeMap<String, f64>,
) -> Result<BTreeMap<String, f64>> {
    std::thread::sleep(QUIET);
    let after = agent.runtime_requests(cluster)?;
    let of = |(operation, count): (String, f64)| {
        let asked = count - before.get(&operation).copied().unwrap_or(0.0);
        (operation, asked / pods.max(1) as f64)
    };
    Ok(after.into_iter().map(of).filter(|(_, count)| *count > 0.0).collect())
}

/// One pod: until it runs, and, deleted then, until it is gone.
///
/// # Errors
/// It did not run or go in time.
pub fn one(cluster: &Cluster, agent: &Agent, name: &str) -> Result<(Duration, Duration)> {
    let names = [name.to_owned()];
    let node = agent.name();
    let started = all(
        cluster,
        &names,
        "the pod is Running on the API server",
        |name| cluster.create(&pod(node, name)).map(drop),
        |_, pod| pod["status"]["phase"] == "Running",
    )?;
    let deleted = all(
        cluster,
        &names,
        "the pod is gone",
        |name| cluster.delete("pods", NAMESPACE, name, None),
        |kind, _| kind == "DELETED",
    )?;
    let only = |times: Vec<Duration>| times.into_iter().next().context("no time was taken");
    Ok((only(started)?, only(deleted)?))
}

/// Asks for something for each name, and waits until a watch that stood before has shown each as it is wanted: each one's time.
///
/// # Errors
/// Asking failed, or some were not in time.
pub fn all(
    cluster: &Cluster,
    names: &[String],
    what: &str,
    ask: impl Fn(&str) -> Result<()> + Send + Sync,
    wanted: impl Fn(&str, &serde_json::Value) -> bool,
) -> Result<Vec<Duration>> {
    let mut events = cluster.watch_changes("pods", NAMESPACE)?;
    let begin = Instant::now();
    let (asked, times) = std::thread::scope(|scope| {
        let asker = scope.spawn(|| names.iter().try_for_each(|name| ask(name)));
        let times = until_each(&mut events, names, begin, what, wanted);
        (asker.join(), times)
    });
    asked.map_err(|_| anyhow::anyhow!("asking panicked"))??;
    times
}
