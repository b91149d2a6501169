//! Counters and histograms that several processes have, added up so that the sum falls only when this process restarts.
//! Pure.
//!
//! Prometheus takes a counter that falls for one that began anew, and counts the whole of what it shows as growth. A plain
//! sum falls partway when one of the processes restarts or does not answer in time, and the others' lives would be that
//! growth. So of each process and series what it told last is kept, and what it had told before it began anew. After our
//! own restart these are gone: a process that had been there long before is counted from what it tells first, so that the
//! sum begins anew near 0, which is what who reads it takes it for.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::exposition::{Family, Kind, Sample};
use super::lines::parse_value;

/// Processes that started within so many seconds of us started with us: all that they tell is told whole.
const STARTED_TOGETHER: f64 = 60.0;

/// What is kept from scrape to scrape. It grows with the series of those families alone that several processes have.
#[derive(Debug, Default)]
pub struct Sums {
    families: BTreeMap<Box<str>, HashMap<Labels, Vec<Told>>>,
    /// Processes that have been heard in our life.
    heard: BTreeSet<&'static str>,
    /// Of these, who is heard for the first time, and had counted before our life.
    older: BTreeSet<&'static str>,
}

/// The labels of a series without `le`, in order: the series of a histogram that have them begin anew together.
type Labels = Box<str>;

/// What one process has told of the series that share their labels.
#[derive(Debug)]
struct Told {
    process: &'static str,
    parts: Vec<(Part, Count)>,
}

/// A series among those that share their labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Part {
    Counter,
    /// By the bits of its bound.
    Bucket(u64),
    Sum,
    Count,
}

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    last: f64,
    /// What it had counted before it began anew; below 0 for what it had counted before our own life.
    before: f64,
}

impl Count {
    fn total(self) -> f64 {
        self.before + self.last
    }

    fn begins_anew(&mut self) {
        *self = Count { last: 0.0, before: self.total() };
    }
}

impl Sums {
    /// A scrape begins: who answered, and when each started. `own`: when we did.
    pub fn begin(&mut self, own: Option<f64>, answered: impl Iterator<Item = (&'static str, Option<f64>)>) {
        self.older.clear();
        for (process, started) in answered {
            let is_older = own.zip(started).is_some_and(|(own, started)| own - started > STARTED_TOGETHER);
            if self.heard.insert(process) && is_older {
                self.older.insert(process);
            }
        }
    }

    /// Whether a family is added up here; `processes`: how many tell it now. One that only one process has is that
    /// process's alone, and begins anew with it as upstream's does.
    pub fn keeps(&self, name: &str, kind: Kind, processes: usize) -> bool {
        // Series of ours name the process themselves.
        matches!(kind, Kind::Counter | Kind::Histogram)
            && !name.starts_with("bulkhead_")
            && (processes > 1 || is_of_several(name) || self.families.contains_key(name))
    }

    /// The families of one name and kind, one of each process that tells it, as one. It has the series that are told now,
    /// each with what processes that are silent have counted.
    pub fn add_up(&mut self, told: Vec<(&'static str, Family)>) -> Option<Family> {
        let (_, first) = told.first()?;
        let mut whole =
            Family { name: first.name.clone(), help: first.help.clone(), kind: first.kind, samples: vec![] };
        let kept = self.families.entry(whole.name.as_str().into()).or_default();
        let mut samples = Vec::new();
        for (process, family) in told {
            let mut values: HashMap<Labels, BTreeMap<Part, f64>> = HashMap::new();
            for sample in family.samples {
                let (labels, part) = place(&whole.name, &sample);
                // Nothing that counts is that; it would be in the sum for ever.
                if sample.value.is_finite() && sample.value >= 0.0 {
                    values.entry(labels.clone()).or_default().insert(part, sample.value);
                }
                samples.push((labels, part, sample));
            }
            let is_older = self.older.contains(process);
            for (labels, values) in values {
                note(kept.entry(labels).or_default(), process, &values, is_older);
            }
        }
        let mut shown = HashSet::new();
        for (labels, part, sample) in samples {
            if let Some(value) = kept.get(&labels).and_then(|told| total(told, part))
                && shown.insert((labels, part))
            {
                whole.samples.push(Sample { value, ..sample });
            }
        }
        (!whole.samples.is_empty()).then_some(whole)
    }
}

/// Families that several processes have, whoever has told them so far: after our restart only one may have answered yet,
/// and what it alone tells is no sum.
fn is_of_several(name: &str) -> bool {
    name == "process_cpu_seconds_total"
        || name == "storage_operation_duration_seconds"
        || name.starts_with("rest_client_")
}

/// A process's new values. `is_older`: it had counted before our life.
fn note(told: &mut Vec<Told>, process: &'static str, values: &BTreeMap<Part, f64>, is_older: bool) {
    let index = told.iter().position(|one| one.process == process);
    let index = index.unwrap_or_else(|| {
        let counted =
            |(part, value): (&Part, &f64)| (*part, Count { last: 0.0, before: if is_older { -value } else { 0.0 } });
        told.push(Told { process, parts: values.iter().map(counted).collect() });
        told.len() - 1
    });
    let Some(Told { parts, .. }) = told.get_mut(index) else { return };
    if parts.iter().any(|(part, count)| values.get(part).is_some_and(|value| *value < count.last)) {
        parts.iter_mut().for_each(|(_, count)| count.begins_anew());
    }
    for (part, value) in values {
        match parts.iter_mut().find(|(known, _)| known == part) {
            Some((_, count)) => count.last = *value,
            None => parts.push((*part, Count { last: *value, before: 0.0 })),
        }
    }
}

fn total(told: &[Told], part: Part) -> Option<f64> {
    let counts = told.iter().flat_map(|one| one.parts.iter().filter(|(known, _)| *known == part));
    counts.map(|(_, count)| count.total()).reduce(|sum, next| sum + next)
}

/// Which series it is, whatever the order of its labels.
fn place(family: &str, sample: &Sample) -> (Labels, Part) {
    let mut part = match sample.name.strip_prefix(family) {
        Some("_sum") => Part::Sum,
        Some("_count") => Part::Count,
        _ => Part::Counter,
    };
    let mut labels = Vec::with_capacity(sample.labels.len());
    for (name, value) in &sample.labels {
        if name == "le"
            && let Some(bound) = parse_value(value)
        {
            part = Part::Bucket(bound.to_bits());
        } else {
            labels.push(format!("{name}={value:?}"));
        }
    }
    labels.sort();
    (labels.join(",").into(), part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scrape::exposition::parse;
    use proptest::prelude::*;

    const OWN: &str = "kubelet-statusd";

    /// A scrape: each process's text, and when it started. The first is ours.
    fn scrape(sums: &mut Sums, told: &[(&'static str, f64, &str)]) -> Vec<(String, f64)> {
        let own = told.iter().find(|(process, ..)| *process == OWN).map(|(_, started, _)| *started);
        sums.begin(own, told.iter().map(|(process, started, _)| (*process, Some(*started))));
        let families = told.iter().filter_map(|(process, _, text)| Some((*process, parse(text).unwrap().pop()?)));
        let whole = sums.add_up(families.collect());
        let series = whole.into_iter().flat_map(|family| family.samples);
        let series = series.map(|sample| {
            let labels: Vec<String> = sample.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
            (format!("{}{{{}}}", sample.name, labels.join(",")), sample.value)
        });
        series.collect()
    }

    fn counter(value: u32) -> String {
        format!("# TYPE x_total counter\nx_total {value}\n")
    }

    fn sum(sums: &mut Sums, own: u32, others: &[(&'static str, f64, u32)]) -> f64 {
        let texts: Vec<_> =
            others.iter().map(|(process, started, value)| (*process, *started, counter(*value))).collect();
        let own = counter(own);
        let mut told = vec![(OWN, 1000.0, own.as_str())];
        told.extend(texts.iter().map(|(process, started, text)| (*process, *started, text.as_str())));
        scrape(sums, &told)[0].1
    }

    #[test]
    fn who_restarts_or_is_silent_keeps_what_it_has_counted() {
        let sums = &mut Sums::default();
        for (own, others, expected) in [
            (5, &[("a", 990.0, 100), ("b", 990.0, 10)][..], 115.0),
            (6, &[("a", 990.0, 101)], 117.0),
            (6, &[("a", 990.0, 101), ("b", 990.0, 12)], 119.0),
            // b is another process now.
            (6, &[("a", 990.0, 101), ("b", 2000.0, 3)], 122.0),
            (6, &[("b", 2000.0, 4)], 123.0),
            (6, &[("a", 3000.0, 0), ("b", 2000.0, 4)], 123.0),
            (6, &[("a", 3000.0, 2), ("b", 2000.0, 4), ("c", 3000.0, 7)], 132.0),
        ] {
            assert!((sum(sums, own, others) - expected).abs() < 1e-9, "{others:?}");
        }
    }

    #[test]
    fn after_our_restart_the_sum_begins_anew() {
        let sums = &mut Sums::default();
        let text = |value: u32, other: u32| {
            format!("# TYPE x_total counter\nx_total{{k=\"1\"}} {value}\nx_total{{k=\"2\"}} {other}\n")
        };
        let (first, second) = (counter(100), counter(130));
        // Older than we; it may answer late.
        assert!((sum(sums, 1, &[]) - 1.0).abs() < 1e-9);
        assert!((sum(sums, 1, &[("a", 900.0, 100)]) - 1.0).abs() < 1e-9);
        assert!((sum(sums, 1, &[("a", 900.0, 104)]) - 5.0).abs() < 1e-9);
        // Its restart leaves what it counted in our life.
        assert!((sum(sums, 1, &[("a", 2000.0, 3)]) - 8.0).abs() < 1e-9);
        // Younger than we: all that it tells it has counted in our life.
        assert!((sum(sums, 1, &[("b", 1500.0, 7)]) - 15.0).abs() < 1e-9);
        // It started with us.
        assert!((sum(sums, 1, &[("c", 950.0, 2)]) - 17.0).abs() < 1e-9);
        // A series that an older one did not have before began in our life.
        let sums = &mut Sums::default();
        let _ = scrape(sums, &[(OWN, 1000.0, ""), ("a", 1.0, &first)]);
        assert_eq!(scrape(sums, &[(OWN, 1000.0, ""), ("a", 1.0, &second)]), [("x_total{}".to_owned(), 30.0)]);
        let series = scrape(sums, &[(OWN, 1000.0, ""), ("a", 1.0, &text(4, 5))]);
        assert_eq!(series, [("x_total{k=1}".to_owned(), 4.0), ("x_total{k=2}".to_owned(), 5.0)]);
    }

    #[test]
    fn the_series_of_a_histogram_begin_anew_together() {
        let of = |low: u32, all: u32, sum: u32| {
            format!(
                "# TYPE h histogram\nh_bucket{{l=\"a\",le=\"1\"}} {low}\nh_bucket{{l=\"a\",le=\"+Inf\"}} {all}\n\
                 h_sum{{l=\"a\"}} {sum}\nh_count{{l=\"a\"}} {all}\n"
            )
        };
        let sums = &mut Sums::default();
        let values = |series: Vec<(String, f64)>| series.into_iter().map(|(_, value)| value).collect::<Vec<f64>>();
        let (own, first, second) = (of(1, 2, 9), of(5, 10, 100), of(6, 8, 200));
        let shown = scrape(sums, &[(OWN, 0.0, &own), ("a", 0.0, &first)]);
        assert_eq!(shown[0].0, "h_bucket{l=a,le=1}");
        assert_eq!(values(shown), [6.0, 12.0, 109.0, 12.0]);
        // Only two of its four figures have fallen.
        assert_eq!(values(scrape(sums, &[(OWN, 0.0, &own), ("a", 0.0, &second)])), [12.0, 20.0, 309.0, 20.0]);
    }

    #[test]
    fn what_is_kept_and_what_is_shown() {
        let mut sums = Sums::default();
        for (name, kind, processes, kept) in [
            ("rest_client_requests_total", Kind::Counter, 1, true),
            ("storage_operation_duration_seconds", Kind::Histogram, 1, true),
            ("process_cpu_seconds_total", Kind::Counter, 2, true),
            ("x_total", Kind::Counter, 2, true),
            ("x_total", Kind::Counter, 1, false),
            ("x", Kind::Gauge, 2, false),
            ("x", Kind::Untyped, 2, false),
            ("bulkhead_peer_refusals_total", Kind::Counter, 4, false),
        ] {
            assert_eq!(sums.keeps(name, kind, processes), kept, "{name} {processes}");
        }
        let labels = |k: u32| format!("# TYPE x_total counter\nx_total{{k=\"{k}\",l=\"1\"}} 1\n");
        let other = "# TYPE x_total counter\nx_total{l=\"1\",k=\"1\"} 2\nx_total{k=\"3\"} -1\nx_total{k=\"4\"} NaN\n";
        let shown = scrape(&mut sums, &[("a", 0.0, &labels(1)), ("b", 0.0, other)]);
        assert_eq!(
            shown,
            [("x_total{k=1,l=1}".to_owned(), 3.0)],
            "labels have no order, and a count is no such number"
        );
        assert!(sums.keeps("x_total", Kind::Counter, 1), "whoever tells it from now on");
        // What nobody tells any more is not shown, and is there when it is told again.
        assert_eq!(scrape(&mut sums, &[("a", 0.0, &labels(2))]), [("x_total{k=2,l=1}".to_owned(), 1.0)]);
        assert_eq!(scrape(&mut sums, &[("a", 0.0, &labels(1))]), [("x_total{k=1,l=1}".to_owned(), 3.0)]);
        assert_eq!(scrape(&mut sums, &[]), []);
    }

    /// What happens to a process between two scrapes.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        Counts(u32),
        Restarts,
        Silent,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![(0..5_u32).prop_map(Step::Counts), Just(Step::Restarts), Just(Step::Silent)]
    }

    proptest! {
        /// Whatever the processes do, no sum falls in our life, and none is more than what was counted in all.
        #[test]
        fn no_sum_falls(
            older in 0..200_u32,
            steps in proptest::collection::vec((0..3_usize, 0..2_usize, step()), 0..60),
        ) {
            const OTHERS: [&str; 3] = ["a", "b", "c"];
            let mut sums = Sums::default();
            let mut counted = [[0_u32; 2]; 3];
            counted[0] = [older, older];
            let mut started = [900.0, 990.0, 990.0];
            let mut in_all = [0_u32; 2];
            let mut shown = [0.0; 2];
            for (process, series, what) in steps {
                let mut silent = None;
                match what {
                    Step::Counts(more) => {
                        counted[process][series] += more;
                        in_all[series] += more;
                    }
                    Step::Restarts => {
                        counted[process] = [0; 2];
                        started[process] += 1000.0;
                    }
                    Step::Silent => silent = Some(process),
                }
                let texts: Vec<String> = counted.iter().map(|counted| {
                    // A process has the series that it has counted something in.
                    let lines = counted.iter().enumerate().filter(|(_, value)| **value > 0);
                    let lines: String = lines.map(|(k, value)| format!("x_total{{k=\"{k}\"}} {value}\n")).collect();
                    format!("# TYPE x_total counter\n{lines}")
                }).collect();
                let mut told = vec![(OWN, 1000.0, "")];
                told.extend((0..3).filter(|one| silent != Some(*one)).map(|one| (OTHERS[one], started[one], texts[one].as_str())));
                for (name, value) in scrape(&mut sums, &told) {
                    let series = usize::from(name == "x_total{k=1}");
                    prop_assert!(value >= shown[series], "{name} fell from {} to {value}", shown[series]);
                    prop_assert!(value <= f64::from(in_all[series]), "{name} is {value} of {in_all:?}");
                    shown[series] = value;
                }
            }
        }
    }
}
