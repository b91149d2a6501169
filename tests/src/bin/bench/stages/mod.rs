//! Where the time of a pod goes: starts and deletions one by one and many at once, each taken apart by the spans of all processes,
//! which a collector here gets, and by what a watch of the API server shows.

mod picture;
mod timeline;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use bulkhead_testkit::{Cluster, Release};
use bulkhead_tests::collector::{Collector, Seen};
use serde_json::{Value, json};

use crate::cluster::{NAMESPACE, condition, each_by_name, pod};
use crate::measure;

pub use picture::svg;
pub use timeline::{Moments, Owner, Slice};

const NODE: &str = "bench";
/// Each process hands on what it has every five seconds, and the last of them sends it to the collector in its turn.
const SPANS_COME: Duration = Duration::from_secs(12);
/// What follows a pod's end must not run into the next one's turn.
const BETWEEN_ONES: Duration = Duration::from_millis(500);

/// How much of everything.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Pods that are started and deleted one by one.
    pub alone: usize,
    /// Pods that are started and deleted at once.
    pub pods: usize,
    pub picture: Option<PathBuf>,
}

/// Each pod's time, from the request to what it was for.
pub type Timelines = Vec<Vec<Slice>>;

#[derive(Debug, Clone, Default)]
pub struct Measurements {
    pub start_one: Timelines,
    pub delete_one: Timelines,
    pub start_many: Timelines,
    pub delete_many: Timelines,
}

fn progress(text: &str) {
    eprintln!("bench: stages: {text}");
}

/// Runs everything, and draws it where that is wanted.
///
/// # Errors
/// A pod did not start or end, a process ended meanwhile, or the picture cannot be written.
pub fn run(plan: &Plan) -> Result<Measurements> {
    progress("an API server, a collector, a node");
    let lab = measure::lab(Release::from_environment()?)?;
    let collector = Collector::of(NODE);
    let (endpoint, serving) = collector.serve(lab.netns().gateway())?;
    let cluster = lab.stock_cluster()?;
    let tracing = json!({"endpoint": endpoint, "samplingRatePerMillion": 1_000_000});
    let node = measure::member(&lab, NODE, &cluster)?.config("tracing", tracing).start()?;
    cluster.wait_for("nodes", "", NODE, "the node is ready", |node| condition(node, "Ready"))?;
    std::thread::sleep(measure::SETTLE);

    let (mut starts, mut deletions) = (Vec::new(), Vec::new());
    for index in 0..=plan.alone {
        progress(&format!("pod {index} of {}", plan.alone));
        let names = [format!("one-{index}")];
        let started = start(&cluster, &names)?;
        let deleted = delete(&cluster, &started)?;
        // The first start of a runtime reads its files from the disk: it counts for none.
        if index > 0 {
            starts.extend(started);
            deletions.extend(deleted);
        }
        std::thread::sleep(BETWEEN_ONES);
    }
    let names: Vec<String> = (0..plan.pods).map(|index| format!("many-{index}")).collect();
    progress(&format!("{} pods at once", plan.pods));
    let many = start(&cluster, &names)?;
    std::thread::sleep(SPANS_COME);
    progress(&format!("deletion of {} pods", plan.pods));
    let gone = delete(&cluster, &many)?;
    std::thread::sleep(SPANS_COME);

    let spans = collector.all();
    let taken_apart = |pods: &[Pod]| pods.iter().map(|pod| pod.slices(&spans)).collect();
    let measured = Measurements {
        start_one: taken_apart(&starts),
        delete_one: taken_apart(&deletions),
        start_many: taken_apart(&many),
        delete_many: taken_apart(&gone),
    };
    if let Some(path) = &plan.picture {
        std::fs::write(path, svg(&measured)).with_context(|| format!("writing {}", path.display()))?;
    }
    node.finish()?;
    drop(serving);
    Ok(measured)
}

/// What an observer saw of a pod.
#[derive(Debug)]
struct Pod {
    name: String,
    uid: String,
    moments: Moments,
}

impl Pod {
    fn slices(&self, spans: &[Seen]) -> Vec<Slice> {
        timeline::slices(&timeline::of_pod(spans, &self.uid), self.moments)
    }
}

fn start(cluster: &Cluster, names: &[String]) -> Result<Vec<Pod>> {
    let create = |name: &str| {
        let created = cluster.create(&pod(NODE, name))?;
        Ok(created["metadata"]["uid"].as_str().context("a pod without uid")?.to_owned())
    };
    let runs = |_: &str, pod: &Value| pod["status"]["phase"] == "Running";
    observed(cluster, names, "all pods are Running on the API server", create, runs)
}

fn delete(cluster: &Cluster, pods: &[Pod]) -> Result<Vec<Pod>> {
    let names: Vec<String> = pods.iter().map(|pod| pod.name.clone()).collect();
    let delete = |name: &str| {
        cluster.delete("pods", NAMESPACE, name, None)?;
        let pod = pods.iter().find(|pod| pod.name == name).context("no such pod")?;
        Ok(pod.uid.clone())
    };
    observed(cluster, &names, "all pods are gone", delete, |kind, _| kind == "DELETED")
}

/// Asks for something for each name, which answers its uid, and waits until a watch that stood before has shown each as it is wanted.
fn observed(
    cluster: &Cluster,
    names: &[String],
    what: &str,
    ask: impl Fn(&str) -> Result<String> + Send + Sync,
    wanted: impl Fn(&str, &Value) -> bool,
) -> Result<Vec<Pod>> {
    let mut events = cluster.watch("pods", Some(NAMESPACE), "")?;
    let (begin, begin_unix) = (Instant::now(), unix_nanos()?);
    let at = |time: Duration| begin_unix + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX - begin_unix);
    let (asked, shown) = std::thread::scope(|scope| {
        let asker = scope.spawn(|| {
            let one = |name: &String| {
                let asked = begin.elapsed();
                let uid = ask(name)?;
                Ok((name.clone(), uid, asked, begin.elapsed()))
            };
            names.iter().map(one).collect::<Result<Vec<_>>>()
        });
        let shown = each_by_name(&mut events, names, begin, what, wanted);
        (asker.join(), shown)
    });
    let shown: BTreeMap<String, Duration> = shown?.into_iter().collect();
    let asked = asked.map_err(|_| anyhow::anyhow!("asking panicked"))??;
    let pod = |(name, uid, asked, answered): (String, String, Duration, Duration)| {
        let shown = shown.get(&name).copied().context("not shown")?;
        let moments = Moments { asked: at(asked), answered: at(answered), shown: at(shown) };
        Ok(Pod { name, uid, moments })
    };
    asked.into_iter().map(pod).collect()
}

fn unix_nanos() -> Result<u64> {
    Ok(u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?)
}
