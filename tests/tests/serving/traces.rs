//! Traces as a collector gets them: what was done for a pod is one trace through all processes and the runtime's calls.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::{LONG, Lab, eventually};
use bulkhead_tests::collector::{Collector, Seen, text};
use bulkhead_tests::lab;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use serde_json::json;

fn node_with(lab: &Lab, tracing: serde_json::Value) -> Result<(bulkhead_testkit::Cluster, bulkhead_testkit::Node)> {
    let cluster = lab.cluster()?;
    let node = lab.node("alpha").config("tracing", tracing).joins(&cluster)?.start()?;
    Ok((cluster, node))
}

/// What is done for a pod, and who does it.
const STAGES: [(&str, &str); 12] = [
    ("prepare", "kubelet-syncd"),
    ("kubelet.volnetd.v1.Volumes/PreparePod", "kubelet-volnetd"),
    ("kubelet.volnetd.v1.Cgroups/EnsurePod", "kubelet-volnetd"),
    ("sandbox", "kubelet-syncd"),
    ("runtime.v1.RuntimeService/RunPodSandbox", "kubelet-syncd"),
    ("image", "kubelet-syncd"),
    ("container", "kubelet-syncd"),
    ("runtime.v1.RuntimeService/CreateContainer", "kubelet-syncd"),
    ("runtime.v1.RuntimeService/StartContainer", "kubelet-syncd"),
    ("post_start", "kubelet-syncd"),
    ("patch_status", "kubelet-statusd"),
    ("measurePod", "kubelet-evictiond"),
];

#[test]
fn the_work_on_a_pod_is_one_trace_through_all_processes() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let collector = Collector::of("alpha");
    let (endpoint, serving) = collector.serve(lab.netns().gateway())?;
    let (cluster, node) = node_with(&lab, json!({"endpoint": endpoint, "samplingRatePerMillion": 1_000_000}))?;
    let container = json!({"name": "main", "image": node.image(), "command": ["sleep", "1000"],
        "lifecycle": {"postStart": {"exec": {"command": ["true"]}}}});
    cluster.create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"nodeName": "alpha", "terminationGracePeriodSeconds": 0, "containers": [container]}}))?;
    let pod = cluster.wait_for("pods", "default", "web", "it runs", |pod| pod["status"]["phase"] == "Running")?;
    let uid = pod["metadata"]["uid"].as_str().context("no uid")?.to_owned();

    let wanted = ["kubelet-evictiond", "kubelet-statusd", "kubelet-syncd", "kubelet-volnetd"];
    let trace = eventually("one trace has spans of all four processes", LONG, || {
        // Measured is what somebody asks for, and not twice within ten seconds.
        node.ctl(&["stats"])?;
        let mut traces: BTreeMap<Vec<u8>, Vec<Seen>> = BTreeMap::new();
        for seen in collector.all() {
            traces.entry(seen.span.trace_id.clone()).or_default().push(seen);
        }
        let processes = |spans: &[Seen]| spans.iter().map(|seen| seen.process.clone()).collect::<BTreeSet<_>>();
        let shown: Vec<_> = traces.values().map(|spans| (spans.len(), processes(spans))).collect();
        let whole = traces.into_values().find(|spans| processes(spans).iter().eq(wanted.iter()));
        let whole = whole.with_context(|| format!("{shown:?}"))?;
        // Each process's spans come in their own time, and a span comes when it has ended.
        for (stage, process) in STAGES {
            let found: Vec<&Seen> = whole.iter().filter(|seen| seen.span.name == stage).collect();
            ensure!(found.iter().any(|seen| seen.process == process), "no span {stage} of {process}");
        }
        let wanted = |seen: &&Seen| STAGES.iter().any(|(stage, _)| seen.span.name == *stage);
        let known = |id: &[u8]| whole.iter().any(|seen| seen.span.span_id == id);
        let lost = whole.iter().filter(wanted).find(|seen| !known(&seen.span.parent_span_id));
        ensure!(lost.is_none(), "no parent of {lost:?}");
        ensure!(whole.iter().any(|seen| seen.span.parent_span_id.is_empty()), "no root");
        Ok(whole)
    })?;

    let of = |name: &str| trace.iter().filter(|seen| seen.span.name == name).collect::<Vec<_>>();
    let parent_of = |seen: &Seen| trace.iter().find(|one| one.span.span_id == seen.span.parent_span_id).cloned();
    let roots: Vec<&Seen> = trace.iter().filter(|seen| seen.span.parent_span_id.is_empty()).collect();
    ensure!(roots.len() == 1, "{roots:#?}");
    let root = roots[0];
    ensure!((root.process.as_str(), root.span.name.as_str()) == ("kubelet-syncd", "syncPod"), "{root:#?}");
    for (key, value) in [
        ("k8s.pod.uid", uid.as_str()),
        ("k8s.pod", "default/web"),
        ("k8s.pod.name", "web"),
        ("k8s.namespace.name", "default"),
        ("k8s.pod.update_type", "create"),
    ] {
        ensure!(text(&root.span.attributes, key) == value, "{key}: {:?}", root.span.attributes);
    }
    for (stage, _) in STAGES {
        for seen in of(stage) {
            let parent = parent_of(seen).with_context(|| format!("{stage} has no parent in the trace"))?;
            ensure!(
                parent.span.start_time_unix_nano <= seen.span.start_time_unix_nano,
                "{stage} began before {parent:?}"
            );
        }
    }
    let parent_name = |name: &str| of(name).first().and_then(|seen| parent_of(seen)).map(|parent| parent.span.name);
    ensure!(parent_name("runtime.v1.RuntimeService/RunPodSandbox").as_deref() == Some("sandbox"));
    ensure!(parent_name("kubelet.volnetd.v1.Volumes/PreparePod").as_deref() == Some("prepare"));
    let kind = |name: &str| of(name).first().map(|seen| seen.span.kind());
    ensure!(kind("runtime.v1.RuntimeService/RunPodSandbox") == Some(SpanKind::Client));
    ensure!(kind("kubelet.volnetd.v1.Volumes/PreparePod") == Some(SpanKind::Server));
    ensure!(kind("sandbox") == Some(SpanKind::Internal));

    // A deletion is a trace of its own.
    cluster.delete("pods", "default", "web", None)?;
    cluster.wait_gone("pods", "default", "web")?;
    eventually("the pod's end is told", LONG, || {
        let all = collector.all();
        for name in ["syncTerminatingPod", "syncTerminatedPod"] {
            let is_it = |seen: &&Seen| seen.span.name == name && text(&seen.span.attributes, "k8s.pod.uid") == uid;
            let one = all.iter().find(is_it).with_context(|| format!("no {name}"))?;
            ensure!(one.span.trace_id != root.span.trace_id, "{name} belongs to the pod's start");
        }
        Ok(())
    })?;
    node.finish()?;
    drop(serving);
    Ok(())
}

#[test]
fn a_collector_that_is_away_holds_up_nothing() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    // Nobody listens there.
    let (cluster, node) = node_with(&lab, json!({"endpoint": "127.0.0.1:1", "samplingRatePerMillion": 1_000_000}))?;
    cluster.create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"nodeName": "alpha", "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": node.image(), "command": ["sleep", "1000"]}]}}))?;
    cluster.wait_for("pods", "default", "web", "it runs", |pod| pod["status"]["phase"] == "Running")?;
    cluster.delete("pods", "default", "web", None)?;
    cluster.wait_gone("pods", "default", "web")?;
    node.finish()
}
