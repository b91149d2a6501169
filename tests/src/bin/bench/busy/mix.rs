//! Which pod is probed how, and how long the probes took whose node says it in buckets.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use bulkhead_tests::scrape::Scrape;

/// The kinds of probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Exec,
    Http,
    Tcp,
    Grpc,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Exec, Kind::Http, Kind::Tcp, Kind::Grpc];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Exec => "exec",
            Kind::Http => "http",
            Kind::Tcp => "tcp",
            Kind::Grpc => "grpc",
        }
    }
}

/// One kind for each pod, in the order in which a second's probes are made: `execs` of them are commands, spread over the others, which
/// take turns.
pub fn mix(pods: usize, execs: usize) -> Vec<Kind> {
    let execs = execs.min(pods);
    let mut others = [Kind::Http, Kind::Tcp, Kind::Grpc].into_iter().cycle();
    (0..pods)
        .map(|index| {
            let is_exec = index * execs / pods != (index + 1) * execs / pods;
            if is_exec { Kind::Exec } else { others.next().unwrap_or(Kind::Tcp) }
        })
        .collect()
}

/// Probes by how long they took: for each bound, in seconds, how many took no longer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Histogram(Vec<(f64, f64)>);

impl Histogram {
    /// Of all probes of pods whose name begins so.
    ///
    /// # Errors
    /// A bound is no number.
    pub fn of(scrape: &Scrape, pods: &str) -> Result<Self> {
        let mut sums = BTreeMap::<String, f64>::new();
        for series in scrape.all("prober_probe_duration_seconds_bucket", &[]) {
            let label = |name: &str| series.labels.get(name).map(String::as_str).unwrap_or_default();
            if label("pod").starts_with(pods) {
                *sums.entry(label("le").to_owned()).or_default() += series.value;
            }
        }
        let bound = |text: &str| match text {
            "+Inf" => Ok(f64::INFINITY),
            text => text.parse::<f64>().with_context(|| format!("a bound of a histogram: {text:?}")),
        };
        let mut bounds = sums.into_iter().map(|(text, sum)| Ok((bound(&text)?, sum))).collect::<Result<Vec<_>>>()?;
        bounds.sort_by(|one, other| one.0.total_cmp(&other.0));
        Ok(Self(bounds))
    }

    /// What came after `before`.
    pub fn since(&self, before: &Self) -> Self {
        let earlier = |bound: f64| before.0.iter().find(|(of, _)| *of == bound).map_or(0.0, |(_, sum)| *sum);
        Self(self.0.iter().map(|(bound, sum)| (*bound, sum - earlier(*bound))).collect())
    }

    /// The time below which `share` of all lie, in seconds, as Prometheus guesses it: evenly spread within a bucket. Of what lies above
    /// all bounds, the highest.
    pub fn quantile(&self, share: f64) -> f64 {
        let all = self.0.last().map_or(0.0, |(_, sum)| *sum);
        if all <= 0.0 {
            return 0.0;
        }
        let (mut low, mut below) = (0.0, 0.0);
        for (bound, sum) in &self.0 {
            if *sum >= all * share && *sum > below {
                let within = (all * share - below) / (sum - below);
                return if bound.is_finite() { low + (bound - low) * within } else { low };
            }
            (low, below) = (*bound, *sum);
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_tests::scrape::Format;

    use super::*;

    #[test]
    fn commands_are_spread_over_the_others() {
        use Kind::{Exec, Grpc, Http, Tcp};
        assert_eq!(mix(8, 2), [Http, Tcp, Grpc, Exec, Http, Tcp, Grpc, Exec]);
        assert_eq!(mix(3, 0), [Http, Tcp, Grpc]);
        assert_eq!(mix(2, 9), [Exec, Exec]);
        assert_eq!(mix(0, 9), []);
        let many = mix(100, 10);
        let counts = Kind::ALL.map(|kind| many.iter().filter(|one| **one == kind).count());
        assert_eq!(counts, [10, 30, 30, 30]);
    }

    #[test]
    fn what_lies_between_bounds_is_guessed() {
        let of = |sums: [f64; 3]| Histogram([0.005, 0.01, f64::INFINITY].into_iter().zip(sums).collect());
        for (sums, share, expected) in [
            ([0.0, 0.0, 0.0], 0.5, 0.0),
            ([10.0, 10.0, 10.0], 0.5, 0.0025),
            ([0.0, 10.0, 10.0], 0.5, 0.0075),
            ([5.0, 10.0, 10.0], 0.5, 0.005),
            ([0.0, 0.0, 10.0], 0.99, 0.01),
            ([0.0, 99.0, 100.0], 0.99, 0.01),
        ] {
            let found = of(sums).quantile(share);
            assert!((found - expected).abs() < 1e-9, "{sums:?} {share}: {found}");
        }
        assert_eq!(of([3.0, 4.0, 5.0]).since(&of([1.0, 1.0, 1.0])), of([2.0, 3.0, 4.0]));
    }

    #[test]
    fn probes_of_the_pods_that_are_meant() {
        let line = |pod: &str, le: &str, count: u8| {
            format!(
                "prober_probe_duration_seconds_bucket{{container=\"main\",namespace=\"default\",pod=\"{pod}\",\
                 probe_type=\"Readiness\",le=\"{le}\"}} {count}\n"
            )
        };
        let mut text =
            "# HELP prober_probe_duration_seconds [ALPHA] x\n# TYPE prober_probe_duration_seconds histogram\n"
                .to_owned();
        for pod in ["exec-0", "exec-1", "http-0"] {
            text += &[line(pod, "0.005", 1), line(pod, "0.01", 2), line(pod, "+Inf", 3)].concat();
            for (name, value) in [("sum", "0.5"), ("count", "3")] {
                let labels = format!("container=\"main\",namespace=\"default\",pod=\"{pod}\",probe_type=\"Readiness\"");
                text += &format!("prober_probe_duration_seconds_{name}{{{labels}}} {value}\n");
            }
        }
        let found = Histogram::of(&Scrape::read(&text, Format::Prometheus).unwrap(), "exec-").unwrap();
        assert_eq!(found, Histogram(vec![(0.005, 2.0), (0.01, 4.0), (f64::INFINITY, 6.0)]));
    }
}
