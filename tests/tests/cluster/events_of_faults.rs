//! What the node says in events when something goes wrong that no pod has done.

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::Pod;
use bulkhead_testkit::immutable::{Immutable, LACK};
use bulkhead_testkit::skip::skip_this_test;
use bulkhead_tests::golden::Proxy;
use bulkhead_tests::joined::{Member, NODE, create, main_of, wait_event, wait_node, wait_ready};
use bulkhead_tests::lab;
use serde_json::json;

/// A runtime that lists a pod's container and fails over its status.
#[test]
fn failed_sync_when_the_runtime_cannot_describe_a_pod() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let proxy = Proxy::start(&lab.folder().join("faulty.sock"), &lab.containerd().socket())?;
    let Member { cluster, node } =
        Member::start(&lab, &[], |node| node.config("containerRuntimeEndpoint", json!(proxy.endpoint())))?;
    wait_node(&cluster, "True")?;
    create(&cluster, Pod::idle("obscure"))?;
    let before = wait_ready(&cluster, "obscure")?;

    proxy.refuse(Some("ContainerStatus"));
    let container = node.cri()?.containers()?.pop().context("no container")?;
    node.cri()?.stop_container(&container.id)?;
    let line = wait_event(&cluster, &before, "Warning FailedSync  error determining status: ")?;
    ensure!(line.contains("refused by the test"), "{line}");
    let during = cluster.get("pods", "default", "obscure")?;
    ensure!(during["status"]["phase"] == "Running", "what is not known is not told: {during:#}");

    proxy.refuse(None);
    let after = cluster.wait_for("pods", "default", "obscure", "it runs again", |pod| {
        main_of(pod)["restartCount"] == 1 && main_of(pod)["state"]["running"].is_object()
    })?;
    ensure!(main_of(&after)["containerID"] != main_of(&before)["containerID"], "{after:#}");
    node.finish()
}

/// The logs of a pod that is gone cannot be removed: the collection says so.
#[test]
fn container_gc_failed_when_a_collection_fails() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Member { cluster, mut node } = Member::start(&lab, &[], |node| node)?;
    wait_node(&cluster, "True")?;
    node.stop()?;
    let folder = node.pod_logs().join("default_gone_0a1b2c3d-0000-4000-8000-000000000000");
    std::fs::create_dir_all(&folder)?;
    let log = folder.join("0.log");
    std::fs::write(&log, "")?;
    let Some(held) = Immutable::make(&log)? else { return skip_this_test(LACK) };
    node.launch()?;
    node.wait_healthy()?;
    let object = cluster.get("nodes", "", NODE)?;
    let line = wait_event(&cluster, &object, "Warning ContainerGCFailed  ")?;
    ensure!(line.contains("default_gone_"), "it names what it could not remove: {line}");
    drop(held);
    std::fs::remove_dir_all(&folder)?;
    node.finish()
}
