//! Which pods' first measurement after a change is a span of that change's trace. Pure but for the spans.

use std::collections::HashMap;

use bulkhead_types::PodUid;
use tracing::Span;

use crate::pods::Pod;

/// Per pod the trace that a measurement has been shown in already.
#[derive(Debug, Default)]
pub struct Traced(HashMap<PodUid, String>);

impl Traced {
    /// A span for each pod whose newest change has not been measured yet. They end when they are dropped.
    pub fn begin(&mut self, pods: &[Pod]) -> Vec<Span> {
        let is_new = |pod: &&Pod| !pod.trace_parent.is_empty() && self.0.get(&pod.uid) != Some(&pod.trace_parent);
        let spans = pods.iter().filter(is_new).map(span).collect();
        self.0 = pods
            .iter()
            .filter(|pod| !pod.trace_parent.is_empty())
            .map(|pod| (pod.uid.clone(), pod.trace_parent.clone()))
            .collect();
        spans
    }
}

fn span(pod: &Pod) -> Span {
    tracing::info_span!(
        target: bulkhead_trace::TARGET,
        "measurePod",
        { bulkhead_trace::PARENT_FIELD } = pod.trace_parent,
        k8s.pod.uid = pod.uid.as_str(),
        k8s.pod.name = pod.name.as_str(),
        k8s.namespace.name = pod.namespace.as_str(),
    )
}
