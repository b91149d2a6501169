//! The texts of several processes as one: each family and each series once. What only one process has is passed on as
//! it stands; only families that several have are taken apart. Pure.

use std::collections::BTreeMap;
use std::collections::hash_map::{Entry, HashMap};

use bulkhead_types::Process;

use super::exposition::{Family, Kind, Sample};
use super::sums::Sums;
use crate::scrape::lines::{Block, parse_value};

/// The families of one process, by its name.
#[derive(Debug, Clone)]
pub struct Source<'a> {
    pub process: &'static str,
    pub blocks: Vec<Block<'a>>,
}

impl Source<'_> {
    /// When the process started, by its own word.
    fn started(&self) -> Option<f64> {
        let block = self.blocks.iter().find(|block| block.name == "process_start_time_seconds")?;
        block.lines.first().and_then(|line| parse_value(line.value))
    }
}

/// A family of the joined text.
#[derive(Debug, Clone, PartialEq)]
pub enum Joined<'a> {
    /// As a process wrote it.
    Text(Block<'a>),
    /// Made here, of several or besides them.
    Made(Family),
}

impl Joined<'_> {
    pub fn name(&self) -> &str {
        match self {
            Joined::Text(block) => block.name,
            Joined::Made(family) => &family.name,
        }
    }

    pub fn into_family(self) -> Family {
        match self {
            Joined::Text(block) => Family::from(&block),
            Joined::Made(family) => family,
        }
    }
}

/// How the same series of two processes becomes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Sum,
    Min,
    Max,
}

fn rule_of(family: &str) -> Rule {
    match family {
        // The node agent is as old as its oldest process; a younger one shows in bulkhead_process_start_time_seconds.
        "process_start_time_seconds" => Rule::Min,
        "process_virtual_memory_max_bytes" => Rule::Max,
        // They are the network namespace's, which all processes share.
        "process_network_receive_bytes_total" | "process_network_transmit_bytes_total" => Rule::Max,
        _ => Rule::Sum,
    }
}

/// Joins the texts of all processes, sorted by name. The same series in two of them is added up, counters with what is kept
/// of earlier scrapes; `process_*` is also given per process as `bulkhead_process_*{process="…"}`. A family that two
/// processes declare with different types is the first one's. Families without a series are left out.
pub fn join<'a>(sources: Vec<Source<'a>>, sums: &mut Sums) -> Vec<Joined<'a>> {
    // All of them as they stand in this scrape: a clock that is set moves them together.
    let own = sources.iter().find(|source| source.process == Process::Statusd.name()).and_then(Source::started);
    sums.begin(own, sources.iter().map(|source| (source.process, source.started())));
    let mut by_name: BTreeMap<&'a str, Vec<(&'static str, Block<'a>)>> = BTreeMap::new();
    for source in sources {
        for block in source.blocks.into_iter().filter(|block| !block.lines.is_empty()) {
            by_name.entry(block.name).or_default().push((source.process, block));
        }
    }
    let mut joined = Vec::with_capacity(by_name.len());
    for mut blocks in by_name.into_values() {
        let Some((_, first)) = blocks.first() else { continue };
        let of_one = first.name.starts_with("process_") && !first.name.starts_with("process_network_");
        if of_one && matches!(first.kind, Kind::Counter | Kind::Gauge) {
            joined.push(Joined::Made(per_process(&blocks)));
        }
        let is_kept = rule_of(first.name) == Rule::Sum && sums.keeps(first.name, first.kind, blocks.len());
        match (blocks.len(), blocks.pop()) {
            (1, Some((_, only))) if !is_kept => joined.push(Joined::Text(only)),
            (_, last) => {
                let families = of_one_kind(blocks.into_iter().chain(last));
                let whole = if is_kept { sums.add_up(families) } else { one_of(families) };
                joined.extend(whole.map(Joined::Made));
            }
        }
    }
    joined.sort_by(|a, b| a.name().cmp(b.name()));
    joined
}

/// Those that are of the first one's type.
fn of_one_kind<'a>(blocks: impl Iterator<Item = (&'static str, Block<'a>)>) -> Vec<(&'static str, Family)> {
    let mut families: Vec<(&'static str, Family)> = Vec::new();
    for (process, block) in blocks {
        if families.first().is_some_and(|(_, first)| first.kind != block.kind) {
            tracing::warn!(family = block.name, "two processes disagree on a metric's type, one of them is left out");
            continue;
        }
        families.push((process, Family::from(&block)));
    }
    families
}

fn one_of(families: Vec<(&'static str, Family)>) -> Option<Family> {
    let mut families = families.into_iter().map(|(_, family)| family);
    let mut whole = families.next()?;
    let rule = rule_of(&whole.name);
    let mut places: HashMap<Key, usize> =
        whole.samples.iter().enumerate().map(|(place, sample)| (key(sample), place)).collect();
    for family in families {
        for sample in family.samples {
            match places.entry(key(&sample)) {
                Entry::Vacant(vacant) => {
                    vacant.insert(whole.samples.len());
                    whole.samples.push(sample);
                }
                Entry::Occupied(place) => {
                    if let Some(known) = whole.samples.get_mut(*place.get()) {
                        known.value = match rule {
                            Rule::Sum => known.value + sample.value,
                            Rule::Min => known.value.min(sample.value),
                            Rule::Max => known.value.max(sample.value),
                        };
                    }
                }
            }
        }
    }
    Some(whole)
}

/// What makes a series that series, whatever the order of its labels.
type Key = (String, Vec<(String, String)>);

fn key(sample: &Sample) -> Key {
    let mut labels = sample.labels.clone();
    labels.sort();
    (sample.name.clone(), labels)
}

fn per_process(blocks: &[(&'static str, Block<'_>)]) -> Family {
    let mut whole = Family { name: String::new(), help: String::new(), kind: Kind::Gauge, samples: Vec::new() };
    for (process, block) in blocks {
        let family = Family::from(block);
        let name = format!("bulkhead_{}", family.name);
        whole.samples.extend(family.samples.into_iter().map(|mut sample| {
            sample.labels.push(("process".to_owned(), (*process).to_owned()));
            Sample { name: name.clone(), ..sample }
        }));
        whole.help = format!("{} Of one process of the node agent.", family.help);
        whole.kind = family.kind;
        whole.name = name;
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scrape::exposition::{parse, render};
    use crate::scrape::lines::scan;
    use proptest::prelude::*;

    fn source<'a>(process: &'static str, text: &'a str) -> Source<'a> {
        Source { process, blocks: scan(text).unwrap() }
    }

    fn text(sources: Vec<Source<'_>>) -> String {
        let families: Vec<Family> = join(sources, &mut Sums::default()).into_iter().map(Joined::into_family).collect();
        render(&families)
    }

    #[test]
    fn the_same_family_of_two_processes_becomes_one() {
        let joined = text(vec![
            source(
                "a",
                "# HELP x_total h\n# TYPE x_total counter\nx_total{k=\"1\",l=\"2\"} 1\nx_total{k=\"2\",l=\"2\"} 5\n",
            ),
            source("b", "# HELP x_total h\n# TYPE x_total counter\nx_total{l=\"2\",k=\"1\"} 2.5\n"),
            source("c", "# HELP x_total h\n# TYPE x_total gauge\nx_total 9\n# TYPE empty gauge\n"),
        ]);
        assert_eq!(
            joined,
            "# HELP x_total h\n# TYPE x_total counter\nx_total{k=\"1\",l=\"2\"} 3.5\nx_total{k=\"2\",l=\"2\"} 5\n"
        );
    }

    #[test]
    fn series_of_a_histogram_stay_together() {
        let of = |label: &str| {
            format!(
                "# TYPE h histogram\nh_bucket{{l=\"{label}\",le=\"+Inf\"}} 1\nh_sum{{l=\"{label}\"}} 2\nh_count{{l=\"{label}\"}} 1\n"
            )
        };
        let (a, b) = (of("a"), of("b"));
        let joined = text(vec![source("x", &a), source("y", &b), source("z", &a)]);
        let lines: Vec<&str> = joined.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "h_bucket{l=\"a\",le=\"+Inf\"} 2",
                "h_sum{l=\"a\"} 4",
                "h_count{l=\"a\"} 2",
                "h_bucket{l=\"b\",le=\"+Inf\"} 1",
                "h_sum{l=\"b\"} 2",
                "h_count{l=\"b\"} 1"
            ]
        );
    }

    #[test]
    fn process_metrics_are_summed_and_kept_apart() {
        let of = |cpu: u32, start: u32| {
            format!(
                "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total {cpu}\n\
                 # TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {start}\n"
            )
        };
        let (a, b) = (of(3, 90), of(4, 80));
        let out = text(vec![source("kubelet-syncd", &a), source("kubelet-volnetd", &b)]);
        for line in [
            "process_cpu_seconds_total 7",
            "process_start_time_seconds 80",
            "bulkhead_process_cpu_seconds_total{process=\"kubelet-syncd\"} 3",
            "bulkhead_process_start_time_seconds{process=\"kubelet-volnetd\"} 80",
        ] {
            assert!(out.lines().any(|l| l == line), "{line} in\n{out}");
        }
        parse(&out).unwrap();
    }

    #[test]
    fn counters_of_several_do_not_fall_with_one_of_them() {
        let of = |cpu: u32, start: u32| {
            format!(
                "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total {cpu}\n\
                 # TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes {cpu}\n\
                 # TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {start}\n"
            )
        };
        let mut sums = Sums::default();
        let mut shown = |told: &[(&'static str, &str)]| {
            let sources = told.iter().map(|(process, text)| source(process, text)).collect();
            let families = join(sources, &mut sums).into_iter().map(Joined::into_family);
            let value = |name: &str, family: &Family| (family.name == name).then(|| family.samples[0].value);
            let families: Vec<Family> = families.collect();
            let one = |name: &str| families.iter().find_map(|family| value(name, family)).unwrap();
            (one("process_cpu_seconds_total"), one("process_resident_memory_bytes"))
        };
        let (own, old, young) = (of(1, 1000), of(50, 10), of(3, 2000));
        let syncd = "kubelet-syncd";
        assert_eq!(shown(&[(syncd, &old), ("kubelet-statusd", &own)]), (1.0, 51.0), "it counts since our start");
        assert_eq!(shown(&[(syncd, &of(54, 10)), ("kubelet-statusd", &own)]), (5.0, 55.0));
        assert_eq!(shown(&[("kubelet-statusd", &own)]), (5.0, 1.0), "it is silent");
        assert_eq!(shown(&[(syncd, &young), ("kubelet-statusd", &own)]), (8.0, 4.0), "it has restarted");
    }

    proptest! {
        #[test]
        fn what_parses_stays_valid(text in "[a-c_]{0,2}[ -~\n]{0,80}") {
            if let Ok(blocks) = scan(&text) {
                let twice = vec![Source { process: "p", blocks: blocks.clone() }, Source { process: "q", blocks }];
                let rendered = super::tests::text(twice);
                prop_assert!(parse(&rendered).is_ok(), "{rendered}");
            }
        }
    }
}
