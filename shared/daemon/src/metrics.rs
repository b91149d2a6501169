//! A process's metrics as text.

use prometheus::{Encoder as _, Registry, TextEncoder};

use crate::process_metrics;

/// All families of the registry, and `process_*` of this process, in the text format 0.0.4.
pub fn encode(registry: &Registry) -> String {
    let mut text = gathered(registry);
    text.push_str(&process_metrics::of(None));
    text
}

/// All families of a registry that is served apart, with the start of this process: what its counters are counted since.
pub(crate) fn encode_apart(registry: &Registry) -> String {
    let mut text = gathered(registry);
    if let Some(started) = process_metrics::start_time() {
        let name = "process_start_time_seconds";
        let help = "[ALPHA] Start time of the process since unix epoch in seconds.";
        text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name} {started}\n"));
    }
    text
}

fn gathered(registry: &Registry) -> String {
    let mut text = Vec::new();
    match TextEncoder::new().encode(&registry.gather(), &mut text) {
        Ok(()) => String::from_utf8(text).unwrap_or_default(),
        Err(error) => {
            tracing::warn!(%error, "metrics could not be encoded");
            String::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apart_comes_with_the_start_alone() {
        let registry = Registry::new();
        let counter = prometheus::IntCounter::new("x_total", "x").unwrap();
        registry.register(Box::new(counter)).unwrap();
        let names = |text: String| -> Vec<String> {
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next().map(str::to_owned)).collect()
        };
        assert_eq!(names(encode_apart(&registry)), ["x_total", "process_start_time_seconds"]);
        assert!(names(encode(&registry)).contains(&"process_cpu_seconds_total".to_owned()));
    }
}
