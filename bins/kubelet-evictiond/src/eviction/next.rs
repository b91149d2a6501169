//! Who would go next, and why: what ranking says now, for the operator. Nobody is evicted by it.

use std::sync::Arc;

use bulkhead_ipc::evictiond::{RankedPod, Ranking};
use tonic::Status;

use super::rank::{self, Ranked};
use super::syncd::Syncd;
use bulkhead_config::eviction::{Signal, Threshold};

use super::judge;
use crate::pods::PodSource;
use crate::runtime::RuntimeSource;
use crate::sample::SampleScope;
use crate::service::StatsService;
use crate::signals::observation::{Observations, Resource};
use crate::signals::thresholds::Layout;

/// So many of each ranking are shown.
const SHOWN: usize = 5;

/// The signal of each resource that is nearest to its threshold, by share of the capacity: the one that pods would go for. Pure.
pub fn nearest(in_force: &[Threshold], seen: &Observations) -> Vec<Signal> {
    let mut nearest: Vec<(Resource, f64, Signal)> = Vec::new();
    for threshold in in_force {
        let Some(reading) = seen.get(&threshold.signal) else { continue };
        let margin = reading.available.saturating_sub(judge::required(threshold, reading.capacity, false));
        #[allow(clippy::cast_precision_loss, reason = "shares are compared")]
        let share = margin as f64 / reading.capacity.max(1) as f64;
        let resource = Resource::of(threshold.signal);
        match nearest.iter_mut().find(|(known, ..)| *known == resource) {
            Some(known) if known.1 > share => *known = (resource, share, threshold.signal),
            Some(_) => {}
            None => nearest.push((resource, share, threshold.signal)),
        }
    }
    nearest.into_iter().map(|(_, _, signal)| signal).collect()
}

/// Asks and measures when somebody wants to know.
#[derive(Debug)]
pub struct Ranker<P, R> {
    pub stats: Arc<StatsService<P, R>>,
    pub syncd: Syncd,
}

impl<P: PodSource, R: RuntimeSource> Ranker<P, R> {
    /// A ranking for each of the signals.
    ///
    /// # Errors
    /// kubelet-syncd does not answer, or not all pod sources have synced yet.
    pub async fn rankings(&self, signals: &[Signal], layout: Layout) -> Result<Vec<Ranking>, Status> {
        if signals.is_empty() {
            return Ok(Vec::new());
        }
        let disks = signals.iter().any(|signal| Resource::of(*signal) != Resource::Memory);
        let scope = SampleScope { disks, cgroups: false };
        let (pods, sample) = tokio::join!(self.syncd.candidates(false), self.stats.usage(scope));
        let (pods, sample) = (pods?, sample?);
        let mut pods: Vec<Ranked> = pods.into_iter().map(|pod| Ranked::of(pod, &sample.pods)).collect();
        Ok(signals.iter().map(|signal| ranking(&mut pods, *signal, layout)).collect())
    }
}

fn ranking(pods: &mut [Ranked], signal: Signal, layout: Layout) -> Ranking {
    rank::rank(pods, signal, layout);
    let goes = pods.iter().filter(|ranked| !ranked.pod.critical);
    let pods = goes.take(SHOWN).map(|ranked| {
        let usage = rank::usage(ranked, signal, layout);
        RankedPod {
            uid: ranked.pod.uid.clone(),
            namespace: ranked.pod.namespace.clone(),
            name: ranked.pod.name.clone(),
            priority: ranked.pod.priority,
            used: usage.map(|usage| usage.used),
            request: usage.map_or(0, |usage| usage.request),
        }
    });
    Ranking { signal: signal.as_str().to_owned(), pods: pods.collect() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bulkhead_config::eviction::Limit;
    use bulkhead_ipc::evictiond::{MemoryStats, PodStats};
    use bulkhead_ipc::syncd::Candidate;
    use bulkhead_types::Quantity;

    use super::*;
    use crate::signals::observation::Observation;

    #[test]
    fn one_signal_of_each_resource() {
        let threshold = |signal, amount| Threshold {
            signal,
            limit: Limit::Quantity(Quantity::from_i64(amount)),
            grace_period: Duration::ZERO,
            min_reclaim: None,
        };
        let reading = |available, capacity| Observation { available, capacity, at: Duration::ZERO };
        let seen = Observations::from([
            (Signal::MemoryAvailable, reading(900, 1000)),
            (Signal::AllocatableMemoryAvailable, reading(90, 100)),
            (Signal::NodeFsAvailable, reading(10, 100)),
        ]);
        let in_force = [
            threshold(Signal::MemoryAvailable, 100),
            threshold(Signal::AllocatableMemoryAvailable, 50),
            threshold(Signal::NodeFsAvailable, 10),
            threshold(Signal::PidAvailable, 10),
        ];
        let expected = [Signal::AllocatableMemoryAvailable, Signal::NodeFsAvailable];
        assert_eq!(nearest(&in_force, &seen), expected, "of tasks nothing is known");
    }

    #[test]
    fn critical_pods_are_not_shown() {
        let pod = |name: &str, critical, used| Ranked {
            pod: Candidate { name: name.into(), critical, memory_request: 10, ..Candidate::default() },
            stats: Some(PodStats {
                memory: Some(MemoryStats { working_set_bytes: Some(used), ..MemoryStats::default() }),
                ..PodStats::default()
            }),
        };
        let mut pods = [pod("static", true, 500), pod("small", false, 20), pod("large", false, 300)];
        let ranking = ranking(&mut pods, Signal::MemoryAvailable, Layout::Single);
        let names: Vec<_> = ranking.pods.iter().map(|pod| (pod.name.as_str(), pod.used, pod.request)).collect();
        assert_eq!(names, [("large", Some(300), 10), ("small", Some(20), 10)]);
    }
}
