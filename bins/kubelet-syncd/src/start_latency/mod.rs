//! How long pods of the API server take from their creation until the watch shows that all their containers have started
//! (upstream `pkg/kubelet/util/pod_startup_latency_tracker.go`): `kubelet_pod_start_total_duration_seconds`, and
//! `kubelet_pod_start_sli_duration_seconds` without the time for images and init containers.
//!
//! Counted are pods whose start this process has seen from before their first status on, and that the scheduler placed at
//! once. Static pods are not on the server, so they are not counted.

mod pull_time;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bulkhead_types::PodUid;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, PodStatus};
use kubelet_model::v1::Pod;
use parking_lot::Mutex;
use prometheus::{Gauge, Histogram, HistogramOpts, Registry};
use tokio::time::Instant;

use self::pull_time::PullTime;
use crate::metrics::STARTUP_BUCKETS;
use kubelet_model::pod::spec;

/// One for the node.
#[derive(Debug)]
pub struct StartTimes {
    inner: Mutex<Inner>,
    total: Histogram,
    sli: Histogram,
    first_network: Gauge,
}

#[derive(Debug, Default)]
struct Inner {
    /// Pods that have not started yet.
    starting: HashMap<PodUid, PullTime>,
    /// Pods that had to wait for the scheduler; they are never counted.
    excluded: HashSet<PodUid>,
    network_seen: bool,
}

/// What a look at a pod's copy on the server says of its start. Pure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sight {
    /// It is over: its start is of no interest any more.
    Over,
    /// It was not placed at once.
    Unscheduled,
    /// Nobody has said anything about it yet.
    New,
    Starting,
    Started,
}

impl StartTimes {
    /// # Errors
    /// A name that is taken; each is registered once.
    pub fn register(registry: &Registry) -> Result<Arc<Self>, prometheus::Error> {
        let histogram = |name: &str, help: &str| -> Result<Histogram, prometheus::Error> {
            let histogram = Histogram::with_opts(HistogramOpts::new(name, help).buckets(STARTUP_BUCKETS.to_vec()))?;
            registry.register(Box::new(histogram.clone()))?;
            Ok(histogram)
        };
        let first_network = Gauge::new(
            "kubelet_first_network_pod_start_sli_duration_seconds",
            "[INTERNAL] Duration in seconds to start the first network pod, excluding time to pull images and run init \
             containers, measured from pod creation timestamp to when all its containers are reported as started and \
             observed via watch",
        )?;
        registry.register(Box::new(first_network.clone()))?;
        Ok(Arc::new(StartTimes {
            inner: Mutex::default(),
            total: histogram(
                "kubelet_pod_start_total_duration_seconds",
                "[ALPHA] Duration in seconds to start a pod since creation, including time to pull images and run init \
                 containers, measured from pod creation timestamp to when all its containers are reported as started \
                 and observed via watch",
            )?,
            sli: histogram(
                "kubelet_pod_start_sli_duration_seconds",
                "[ALPHA] Duration in seconds to start a pod, excluding time to pull images and run init containers, \
                 measured from pod creation timestamp to when all its containers are reported as started and observed \
                 via watch",
            )?,
            first_network,
        }))
    }

    /// The watch shows the pod like this.
    pub fn observed(&self, uid: &PodUid, pod: &Pod, now: Timestamp) {
        let mut inner = self.inner.lock();
        let tracked = inner.starting.contains_key(uid);
        match sight(pod) {
            Sight::Over => {
                inner.starting.remove(uid);
            }
            Sight::Unscheduled => {
                // One that is on the node already may be told of late.
                if inner.starting.remove(uid).is_some() || is_new(pod) {
                    inner.excluded.insert(uid.clone());
                }
            }
            Sight::New if !tracked && !inner.excluded.contains(uid) => {
                inner.starting.insert(uid.clone(), PullTime::default());
            }
            Sight::Started => {
                let Some(pulls) = inner.starting.remove(uid) else { return };
                // Once is enough: what restarts later has started before.
                let Some(created) = pod.metadata.creation_timestamp.as_ref() else { return };
                let total = now.duration_since(created.0).as_secs_f64();
                self.total.observe(total);
                if is_stateful(pod) {
                    return;
                }
                let sli = total - pulls.total().as_secs_f64() - init_seconds(pod.status.as_ref());
                self.sli.observe(sli);
                if !spec::host_network(pod) && !std::mem::replace(&mut inner.network_seen, true) {
                    self.first_network.set(sli);
                }
            }
            Sight::New | Sight::Starting => {}
        }
    }

    /// The pod is not on the server any more.
    pub fn forget(&self, uid: &PodUid) {
        let mut inner = self.inner.lock();
        inner.starting.remove(uid);
        inner.excluded.remove(uid);
    }

    /// A pull of an image for the pod begins; one that has failed and begins again is still the same wait.
    pub fn pull_began(&self, uid: &PodUid, image: &str) {
        if let Some(pulls) = self.inner.lock().starting.get_mut(uid) {
            pulls.began(image, Instant::now());
        }
    }

    /// The image is there: pulled, or found to be.
    pub fn image_is_there(&self, uid: &PodUid, image: &str) {
        if let Some(pulls) = self.inner.lock().starting.get_mut(uid) {
            pulls.ended(image, Instant::now());
        }
    }
}

fn is_new(pod: &Pod) -> bool {
    pod.status.as_ref().is_none_or(|status| status.start_time.is_none())
}

fn sight(pod: &Pod) -> Sight {
    let status = pod.status.as_ref();
    if status.is_some_and(spec::is_phase_terminal) {
        return Sight::Over;
    }
    let mut conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default().iter();
    if conditions.any(|condition| condition.type_ == "PodScheduled" && condition.status == "False") {
        return Sight::Unscheduled;
    }
    if is_new(pod) {
        return Sight::New;
    }
    let statuses = status.and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    let up = |state: &ContainerState| state.running.as_ref().is_some_and(|running| running.started_at.is_some());
    let all = !statuses.is_empty() && statuses.iter().all(|container| container.state.as_ref().is_some_and(up));
    if all { Sight::Started } else { Sight::Starting }
}

/// Has volumes of other kinds than those that are made anew for each pod.
fn is_stateful(pod: &Pod) -> bool {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    volumes.iter().any(|volume| {
        volume.secret.is_none()
            && volume.config_map.is_none()
            && volume.downward_api.is_none()
            && volume.empty_dir.is_none()
            && volume.projected.is_none()
    })
}

/// For how long init containers that have ended ran, one after the other.
fn init_seconds(status: Option<&PodStatus>) -> f64 {
    let statuses = status.and_then(|status| status.init_container_statuses.as_deref()).unwrap_or_default();
    let states = statuses.iter().flat_map(|container| [&container.state, &container.last_state]);
    let ended = states.filter_map(|state| state.as_ref()?.terminated.as_ref());
    let times = ended.filter_map(|ended| ended.started_at.as_ref().zip(ended.finished_at.as_ref()));
    times.map(|(from, to)| to.0.duration_since(from.0).as_secs_f64().max(0.0)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::time::Duration;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn pod(spec: Value, status: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "creationTimestamp": at(0).to_string()},
            "spec": spec, "status": status
        }))
        .unwrap()
    }

    fn bare() -> Value {
        json!({"containers": [{"name": "c"}]})
    }

    fn started(init: Value) -> Value {
        json!({
            "phase": "Running", "startTime": at(1).to_string(),
            "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": at(9).to_string()}}}],
            "initContainerStatuses": init
        })
    }

    struct World(Arc<StartTimes>, PodUid);

    impl World {
        fn new() -> Self {
            World(StartTimes::register(&Registry::new()).unwrap(), PodUid::parse("u1").unwrap())
        }
        fn sees(&self, spec: &Value, status: Value, second: i64) {
            self.0.observed(&self.1, &pod(spec.clone(), status), at(second));
        }
        /// Total: count and sum; SLI: count and sum; the first network pod's.
        fn shows(&self) -> (u64, f64, u64, f64, f64) {
            let StartTimes { total, sli, first_network, .. } = &*self.0;
            (
                total.get_sample_count(),
                total.get_sample_sum(),
                sli.get_sample_count(),
                sli.get_sample_sum(),
                first_network.get(),
            )
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_without_images_and_init_containers() {
        let world = World::new();
        world.sees(&bare(), json!({"phase": "Pending"}), 0);
        world.0.pull_began(&world.1, "i");
        tokio::time::advance(Duration::from_secs(2)).await;
        // It failed, and was tried again.
        world.0.pull_began(&world.1, "i");
        tokio::time::advance(Duration::from_secs(1)).await;
        world.0.image_is_there(&world.1, "i");
        world.sees(&bare(), json!({"phase": "Pending", "startTime": at(1).to_string()}), 2);
        let init = json!([{"name": "i", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"terminated": {"exitCode": 0, "startedAt": at(3).to_string(), "finishedAt": at(7).to_string()}}}]);
        world.sees(&bare(), started(init.clone()), 10);
        assert_eq!(world.shows(), (1, 10.0, 1, 3.0, 3.0));
        world.sees(&bare(), started(init), 20);
        assert_eq!(world.shows().0, 1, "once");
    }

    #[test]
    fn what_is_not_counted() {
        // On the node before this process was.
        let world = World::new();
        world.sees(&bare(), started(json!([])), 10);
        assert_eq!(world.shows().0, 0);
        // Had to wait for the scheduler.
        let waiting = json!({"conditions": [{"type": "PodScheduled", "status": "False"}]});
        let world = World::new();
        world.sees(&bare(), waiting.clone(), 0);
        world.sees(&bare(), json!({}), 1);
        world.sees(&bare(), started(json!([])), 10);
        assert_eq!(world.shows().0, 0);
        world.0.forget(&world.1);
        // That is learned late.
        world.sees(&bare(), json!({}), 1);
        world.sees(&bare(), waiting, 2);
        world.sees(&bare(), started(json!([])), 10);
        assert_eq!(world.shows().0, 0);
        // Ended before it had started.
        let world = World::new();
        world.sees(&bare(), json!({}), 0);
        world.sees(&bare(), json!({"phase": "Failed"}), 1);
        world.sees(&bare(), started(json!([])), 10);
        assert_eq!(world.shows().0, 0);
    }

    #[test]
    fn with_volumes_that_last_only_the_total_counts() {
        let world = World::new();
        let spec = json!({"containers": [{"name": "c"}], "volumes": [{"name": "v", "hostPath": {"path": "/x"}}]});
        world.sees(&spec, json!({}), 0);
        world.sees(&spec, started(json!([])), 4);
        assert_eq!(world.shows(), (1, 4.0, 0, 0.0, 0.0));
        let world = World::new();
        let spec =
            json!({"hostNetwork": true, "containers": [{"name": "c"}], "volumes": [{"name": "v", "emptyDir": {}}]});
        world.sees(&spec, json!({}), 0);
        world.sees(&spec, started(json!([])), 4);
        assert_eq!(world.shows(), (1, 4.0, 1, 4.0, 0.0));
    }
}
