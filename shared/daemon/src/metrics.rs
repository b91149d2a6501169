//! A process's metrics as text.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Encoder as _, IntGaugeVec, Opts, Registry, TextEncoder};

use crate::process_metrics;

/// `bulkhead_tasks{process}`: tasks of the process's runtime that have not ended, counted when somebody asks. A number that
/// grows and grows is a leak; upstream's `go_goroutines` is read for the same.
#[derive(Debug)]
pub(crate) struct Tasks {
    process: &'static str,
    alive: IntGaugeVec,
}

impl Tasks {
    pub(crate) fn new(process: &'static str) -> Result<Self, prometheus::Error> {
        let help = "[ALPHA] Number of tasks of the asynchronous runtime that have not ended.";
        Ok(Tasks { process, alive: IntGaugeVec::new(Opts::new("bulkhead_tasks", help), &["process"])? })
    }
}

impl Collector for Tasks {
    fn desc(&self) -> Vec<&Desc> {
        self.alive.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let alive = i64::try_from(runtime.metrics().num_alive_tasks()).unwrap_or(i64::MAX);
            self.alive.with_label_values(&[self.process]).set(alive);
        }
        self.alive.collect()
    }
}

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

    #[tokio::test]
    async fn tasks_that_have_not_ended() {
        let registry = Registry::new();
        registry.register(Box::new(Tasks::new("kubelet-x").unwrap())).unwrap();
        let shown = || {
            let text = encode(&registry);
            let line = text.lines().find_map(|line| line.strip_prefix("bulkhead_tasks{process=\"kubelet-x\"} "));
            line.unwrap().parse::<u32>().unwrap()
        };
        let before = shown();
        let task = tokio::spawn(std::future::pending::<()>());
        assert_eq!(shown(), before + 1);
        task.abort();
        let _ = task.await;
        assert_eq!(shown(), before);
    }

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
