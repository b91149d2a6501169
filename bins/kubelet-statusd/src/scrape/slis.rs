//! `/metrics/slis`: how each health check has ended, last and so far (upstream `component-base/metrics/prometheus/slis`).

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::exposition::{Family, Kind, Sample};

/// What is known of one check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    healthy: bool,
    success: u64,
    error: u64,
}

/// Counted at each request for health; nobody else runs the checks.
#[derive(Debug, Default)]
pub struct HealthCounts {
    checks: Mutex<BTreeMap<String, Counts>>,
}

impl HealthCounts {
    /// A check has ended. The names are those of our own checks.
    pub fn observe(&self, name: &str, healthy: bool) {
        let mut checks = self.checks.lock();
        let counts = checks.entry(name.to_owned()).or_default();
        counts.healthy = healthy;
        *(if healthy { &mut counts.success } else { &mut counts.error }) += 1;
    }

    /// Forgets everything, as DELETE demands.
    pub fn reset(&self) {
        self.checks.lock().clear();
    }

    /// The families; those without a series are absent.
    pub fn families(&self) -> Vec<Family> {
        let checks = self.checks.lock();
        let sample = |name: &str, check: &str, status: Option<&str>, value: f64| {
            let mut labels = vec![("name".to_owned(), check.to_owned())];
            labels.extend(status.map(|status| ("status".to_owned(), status.to_owned())));
            labels.push(("type".to_owned(), "healthz".to_owned()));
            Sample { name: name.to_owned(), labels, value, timestamp: None }
        };
        let mut last = Vec::new();
        let mut total = Vec::new();
        for (check, counts) in checks.iter() {
            last.push(sample("kubernetes_healthcheck", check, None, if counts.healthy { 1.0 } else { 0.0 }));
            for (status, count) in [("error", counts.error), ("success", counts.success)] {
                if count > 0 {
                    #[allow(clippy::cast_precision_loss, reason = "the format has floating point numbers alone")]
                    total.push(sample("kubernetes_healthchecks_total", check, Some(status), count as f64));
                }
            }
        }
        let family = |name: &str, help: &str, kind, samples| Family {
            name: name.to_owned(),
            help: help.to_owned(),
            kind,
            samples,
        };
        let mut families = vec![
            family(
                "kubernetes_healthcheck",
                "[STABLE] This metric records the result of a single healthcheck.",
                Kind::Gauge,
                last,
            ),
            family(
                "kubernetes_healthchecks_total",
                "[STABLE] This metric records the results of all healthcheck.",
                Kind::Counter,
                total,
            ),
        ];
        families.retain(|family| !family.samples.is_empty());
        families
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scrape::exposition::render;

    #[test]
    fn counted_and_forgotten() {
        let counts = HealthCounts::default();
        assert!(counts.families().is_empty());
        counts.observe("ping", true);
        counts.observe("pleg", true);
        counts.observe("pleg", false);
        let text = render(&counts.families());
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                "kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1",
                "kubernetes_healthcheck{name=\"pleg\",type=\"healthz\"} 0",
                "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"healthz\"} 1",
                "kubernetes_healthchecks_total{name=\"pleg\",status=\"error\",type=\"healthz\"} 1",
                "kubernetes_healthchecks_total{name=\"pleg\",status=\"success\",type=\"healthz\"} 1",
            ]
        );
        counts.reset();
        assert!(counts.families().is_empty());
    }
}
