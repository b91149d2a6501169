//! Families as `io.prometheus.client.MetricFamily` messages, each behind its length (client_model `metrics.proto`). Pure.
//!
//! The only format in which the bounds of a histogram are numbers; Prometheus asks for it where it is told to.

use std::collections::HashMap;

use prost::Message;

use super::exposition::{Family, Kind, Sample};

#[derive(Clone, PartialEq, Message)]
struct LabelPair {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    value: Option<String>,
}

/// Gauges, counters and untyped metrics all have their value as field 1.
#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(double, optional, tag = "1")]
    value: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct Quantile {
    #[prost(double, optional, tag = "1")]
    quantile: Option<f64>,
    #[prost(double, optional, tag = "2")]
    value: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(uint64, optional, tag = "1")]
    sample_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    sample_sum: Option<f64>,
    #[prost(message, repeated, tag = "3")]
    quantile: Vec<Quantile>,
}

#[derive(Clone, PartialEq, Message)]
struct Bucket {
    #[prost(uint64, optional, tag = "1")]
    cumulative_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    upper_bound: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(uint64, optional, tag = "1")]
    sample_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    sample_sum: Option<f64>,
    #[prost(message, repeated, tag = "3")]
    bucket: Vec<Bucket>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(message, repeated, tag = "1")]
    label: Vec<LabelPair>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Value>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Value>,
    #[prost(message, optional, tag = "4")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "5")]
    untyped: Option<Value>,
    #[prost(int64, optional, tag = "6")]
    timestamp_ms: Option<i64>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct MetricFamily {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    help: Option<String>,
    /// COUNTER 0, GAUGE 1, SUMMARY 2, UNTYPED 3, HISTOGRAM 4.
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
    #[prost(message, repeated, tag = "4")]
    metric: Vec<Metric>,
}

/// All messages, one behind the other.
pub fn encode(families: &[Family]) -> Vec<u8> {
    families.iter().flat_map(|family| message(family).encode_length_delimited_to_vec()).collect()
}

fn message(family: &Family) -> MetricFamily {
    let kind = match family.kind {
        Kind::Counter => 0,
        Kind::Gauge => 1,
        Kind::Summary => 2,
        Kind::Untyped => 3,
        Kind::Histogram => 4,
    };
    let mut metrics: Vec<Metric> = Vec::new();
    // Samples that differ in their bound alone are one metric.
    let mut places: HashMap<Vec<(&str, &str)>, usize> = HashMap::new();
    for sample in &family.samples {
        let labels = own_labels(family.kind, sample);
        let place = *places.entry(labels.clone()).or_insert_with(|| {
            let pair = |(name, value): (&str, &str)| LabelPair { name: Some(name.into()), value: Some(value.into()) };
            metrics.push(Metric { label: labels.into_iter().map(pair).collect(), ..Metric::default() });
            metrics.len() - 1
        });
        if let Some(metric) = metrics.get_mut(place) {
            metric.timestamp_ms = sample.timestamp;
            put(family, sample, metric);
        }
    }
    MetricFamily { name: Some(family.name.clone()), help: Some(family.help.clone()), kind: Some(kind), metric: metrics }
}

const fn bound_label(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Histogram => Some("le"),
        Kind::Summary => Some("quantile"),
        Kind::Counter | Kind::Gauge | Kind::Untyped => None,
    }
}

fn own_labels(kind: Kind, sample: &Sample) -> Vec<(&str, &str)> {
    let bound = bound_label(kind);
    let labels = sample.labels.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    labels.filter(|(name, _)| Some(*name) != bound).collect()
}

fn put(family: &Family, sample: &Sample, metric: &mut Metric) {
    let value = Some(Value { value: Some(sample.value) });
    let bound = bound_label(family.kind)
        .and_then(|label| sample.labels.iter().find(|(name, _)| name == label))
        .and_then(|(_, text)| super::lines::parse_value(text));
    let part = sample.name.strip_prefix(family.name.as_str()).unwrap_or_default();
    match family.kind {
        Kind::Counter => metric.counter = value,
        Kind::Gauge => metric.gauge = value,
        Kind::Untyped => metric.untyped = value,
        Kind::Summary => {
            let summary = metric.summary.get_or_insert_default();
            match (part, bound) {
                ("_sum", _) => summary.sample_sum = Some(sample.value),
                ("_count", _) => summary.sample_count = Some(count(sample.value)),
                (_, Some(quantile)) => {
                    summary.quantile.push(Quantile { quantile: Some(quantile), value: Some(sample.value) });
                }
                _ => {}
            }
        }
        Kind::Histogram => {
            let histogram = metric.histogram.get_or_insert_default();
            match (part, bound) {
                ("_sum", _) => histogram.sample_sum = Some(sample.value),
                ("_count", _) => histogram.sample_count = Some(count(sample.value)),
                // The last bucket is the count.
                (_, Some(bound)) if bound.is_finite() => histogram
                    .bucket
                    .push(Bucket { cumulative_count: Some(count(sample.value)), upper_bound: Some(bound) }),
                _ => {}
            }
        }
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts are whole and not negative")]
fn count(value: f64) -> u64 {
    value as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scrape::exposition::parse;

    #[test]
    fn messages_say_what_the_text_says() {
        let text = "# HELP c_total n\n# TYPE c_total counter\nc_total{l=\"a\"} 3 17\nc_total{l=\"b\"} 4\n\
                    # HELP h n\n# TYPE h histogram\nh_bucket{l=\"a\",le=\"0.5\"} 1\nh_bucket{l=\"a\",le=\"+Inf\"} 2\n\
                    h_sum{l=\"a\"} 3.5\nh_count{l=\"a\"} 2\n\
                    # HELP s n\n# TYPE s summary\ns{quantile=\"0.5\"} 4\ns_sum 4\ns_count 1\n# TYPE g gauge\ng 1\n";
        let bytes = encode(&parse(text).unwrap());
        let mut rest = bytes.as_slice();
        let mut read = Vec::new();
        while !rest.is_empty() {
            read.push(MetricFamily::decode_length_delimited(&mut rest).unwrap());
        }
        let [c, h, s, g] = read.as_slice() else { panic!("{read:?}") };
        assert_eq!((c.name.as_deref(), c.kind, c.metric.len()), (Some("c_total"), Some(0), 2));
        assert_eq!((c.metric[0].counter.clone().unwrap().value, c.metric[0].timestamp_ms), (Some(3.0), Some(17)));
        let histogram = h.metric[0].histogram.clone().unwrap();
        assert_eq!((h.metric.len(), histogram.sample_count, histogram.sample_sum), (1, Some(2), Some(3.5)));
        assert_eq!(histogram.bucket, [Bucket { cumulative_count: Some(1), upper_bound: Some(0.5) }]);
        assert_eq!(h.metric[0].label.len(), 1);
        assert_eq!(s.metric[0].summary.clone().unwrap().quantile[0].value, Some(4.0));
        assert_eq!((g.kind, g.metric[0].gauge.clone().unwrap().value), (Some(1), Some(1.0)));
        // The first bytes, by hand: length, field 1, its length, the name.
        assert_eq!(&bytes[1..10], b"\x0a\x07c_total");
    }
}
