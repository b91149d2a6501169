//! What holds up pods before the first of them is known: an API server that streams no lists, one that brings none at all,
//! one that says nothing of the Node.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::apiserver::Config;
use bulkhead_testkit::apiserver::faults::{Action, Rule};
use bulkhead_testkit::apiserver::request_log::Record;
use bulkhead_testkit::cluster::Storage;
use bulkhead_testkit::{IDLE, LONG, Node, eventually};
use bulkhead_tests::joined::{NAMESPACE, NODE, condition, idle, pod, process_of, wait_ready};
use bulkhead_tests::lab;
use serde_json::json;

const READ_ONLY: u16 = 10255;
const SILENT: &str = "bulkhead_pod_source_silent_seconds{source=\"api\"}";

/// A server that answers so to whatever lists or watches that.
fn refuses(resource: &str, code: u16) -> Rule {
    Rule::new(Action::Answer { code, retry_after_seconds: None }).verb("list").verb("watch").resource(resource)
}

/// For how long the API source has been silent, as the metric says.
fn silent_seconds(node: &Node) -> Result<f64> {
    let (code, text) = node.http_get(Ipv4Addr::LOCALHOST.into(), READ_ONLY, "/metrics")?;
    ensure!(code == 200, "{code}");
    let line = text.lines().find_map(|line| line.strip_prefix(SILENT)).context("no such series")?;
    line.trim().parse().with_context(|| line.to_owned())
}

#[test]
fn a_storage_that_streams_no_lists_holds_up_no_pod() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.stand_in(Config::default())?;
    cluster.faults()?.add(Rule::no_streamed_lists());
    let node = lab.node(NODE).joins(&cluster)?.start()?;
    cluster.create(&idle(&node, "first"))?;
    wait_ready(&cluster, "first")?;
    let requests = cluster.requests()?;
    let of_pods = |verb: &str, streamed: bool| {
        let is = |record: &&Record| {
            record.verb == verb
                && record.uri.starts_with("/api/v1/pods?")
                && record.uri.contains("sendInitialEvents=true") == streamed
                && process_of(record) == "kubelet-syncd"
        };
        requests.iter().filter(is).count()
    };
    // The refusal of one list is enough for all: pods are watched after the Node.
    ensure!((of_pods("watch", true), of_pods("list", false)) == (0, 1), "{requests:#?}");
    // Changes come by the watch that goes on from the list.
    cluster.create(&idle(&node, "second"))?;
    wait_ready(&cluster, "second")?;
    for name in ["first", "second"] {
        cluster.delete("pods", NAMESPACE, name, None)?;
        cluster.wait_gone("pods", NAMESPACE, name)?;
    }
    node.finish()
}

/// On the real thing where it is at hand.
#[test]
fn an_etcd_without_watch_progress_holds_up_no_pod() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let storage = Storage::WithoutWatchProgress;
    let cluster = if storage.is_there() {
        let cluster = lab.cluster_on(storage)?;
        // It is what this test is about: the server refuses a streamed list after it has granted the watch.
        let streamed = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        let refused = cluster.watch("pods", None, streamed)?.expect(LONG)?;
        ensure!(refused.kind == "ERROR" && refused.object["code"] == 500, "{refused:?}");
        cluster
    } else {
        let cluster = lab.stand_in(Config::default())?;
        cluster.faults()?.add(Rule::no_streamed_lists());
        cluster
    };
    let node = lab.node(NODE).joins(&cluster)?.start()?;
    // No controller makes what a token's volume needs.
    cluster.create(&pod(&node, "old-storage", IDLE, &json!({"automountServiceAccountToken": false})))?;
    wait_ready(&cluster, "old-storage")?;
    cluster.delete("pods", NAMESPACE, "old-storage", None)?;
    cluster.wait_gone("pods", NAMESPACE, "old-storage")?;
    node.finish()
}

#[test]
fn a_source_that_delivers_nothing_is_named() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.stand_in(Config::default())?;
    let rule = cluster.faults()?.add(refuses("pods", 500));
    let node = lab.node(NODE).config("readOnlyPort", json!(READ_ONLY)).joins(&cluster)?.start()?;
    cluster.create(&idle(&node, "held-up"))?;
    cluster.wait_for("nodes", "", NODE, "Ready", |node| condition(node, "Ready") == "True")?;
    let event = eventually("an event names the silent source", LONG, || {
        let events = cluster.list("events", Some("default"))?;
        events.into_iter().find(|event| event["reason"] == "PodSourceSilent").context("no such event")
    })?;
    ensure!(event["type"] == "Warning" && event["involvedObject"]["kind"] == "Node", "{event}");
    let message = event["message"].as_str().unwrap_or_default();
    for part in ["Pod source api", "the API server's list of the pods of this node", "500"] {
        ensure!(message.contains(part), "{message}");
    }
    ensure!(silent_seconds(&node)? >= 60.0);
    let output = node.ctl_command(&["health"])?.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(!output.status.success() && text.contains("NOT HEALTHY"), "{text}");
    for part in ["api, SILENT for ", "waits for the API server's list", "failed: the server answered 500"] {
        ensure!(text.contains(part), "{part}: {text}");
    }

    cluster.faults()?.remove(rule);
    wait_ready(&cluster, "held-up")?;
    eventually("the source is heard of", LONG, || {
        ensure!(silent_seconds(&node)? == 0.0);
        node.ctl(&["health"]).map(drop)
    })?;
    cluster.delete("pods", NAMESPACE, "held-up", None)?;
    cluster.wait_gone("pods", NAMESPACE, "held-up")?;
    node.finish()
}

#[test]
fn pods_wait_for_the_watch_of_the_node_only_for_a_while() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.stand_in(Config::default())?;
    let rule = cluster.faults()?.add(refuses("nodes", 403));
    let node = lab.node(NODE).joins(&cluster)?.start()?;
    cluster.create(&idle(&node, "anywhere"))?;
    wait_ready(&cluster, "anywhere")?;
    // What depends on labels that nobody has seen waits; a refusal would be for good.
    let mut choosy = idle(&node, "choosy");
    choosy["spec"]["nodeSelector"] = json!({"color": "blue"});
    cluster.create(&choosy)?;
    cluster.patch("nodes", "", NODE, &json!({"metadata": {"labels": {"color": "blue"}}}))?;
    eventually("the pod says what it waits for", LONG, || {
        let text = node.ctl(&["pods", "-o", "json"])?;
        ensure!(text.contains("waits for the node's newest labels"), "{text}");
        Ok(())
    })?;
    cluster.faults()?.remove(rule);
    wait_ready(&cluster, "choosy")?;
    for name in ["anywhere", "choosy"] {
        cluster.delete("pods", NAMESPACE, name, None)?;
        cluster.wait_gone("pods", NAMESPACE, name)?;
    }
    node.finish()
}
