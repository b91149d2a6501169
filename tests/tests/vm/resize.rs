//! A pod of the API server's is resized where it runs.

use anyhow::{Result, ensure};
use bulkhead_tests::history::condition;
use serde_json::json;

use crate::node::{MIB, NAMESPACE, Node, PODS, TREE, World, expect, weight};
use crate::tree::agree;

/// What the burstable pod requests from then on, bytes.
pub const REQUEST: u64 = 24 * MIB;

/// Limits and requests of CPU and memory: the kernel has them, systemd knows them, the API server shows them, and nothing was
/// restarted.
pub fn in_place(world: &mut World, node: &Node) -> Result<()> {
    let wanted = json!({"requests": {"cpu": "200m", "memory": "24Mi"}, "limits": {"cpu": "500m", "memory": "96Mi"}});
    let patch = json!({"spec": {"containers": [{"name": "main", "resources": wanted}]}});
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/burstable/resize");
    world.cluster.client().patch(&path, "strategic-merge-patch", &patch)?.success()?;
    let pod = world.wait("burstable", "it is resized", |pod| {
        pod["status"]["observedGeneration"] == pod["metadata"]["generation"]
            && pod["status"]["containerStatuses"][0]["resources"]["limits"]["memory"] == "96Mi"
            && ["PodResizePending", "PodResizeInProgress"].iter().all(|kind| condition(pod, kind).is_err())
    })?;
    let status = &pod["status"]["containerStatuses"][0];
    ensure!(status["resources"] == wanted && status["allocatedResources"] == wanted["requests"], "{status}");
    let (slice, unit, scope) = (&node.slices["burstable"], node.unit("burstable"), &node.scopes["burstable"]);
    let own = crate::node::last(scope);
    let cpu = || ("50000 100000".to_owned(), "500ms".to_owned());
    let table: Vec<_> = [(slice.as_str(), unit), (scope.as_str(), own)]
        .into_iter()
        .flat_map(|(folder, unit)| {
            let same = |value: u64| (value.to_string(), value.to_string());
            [
                ("memory.max", same(96 * MIB), "MemoryMax"),
                ("cpu.weight", same(weight(200)), "CPUWeight"),
                ("cpu.max", cpu(), "CPUQuotaPerSecUSec"),
            ]
            .map(|(file, (value, told), property)| (folder, unit, file, value, property, told))
        })
        .collect();
    agree(&mut world.vm, &table)?;
    // What is kept and where throttling begins follow the new sizes.
    expect(
        &mut world.vm,
        &[
            (format!("{slice}/memory.low"), REQUEST.to_string()),
            (format!("{scope}/memory.low"), REQUEST.to_string()),
            (format!("{scope}/memory.high"), (60 * MIB).to_string()),
        ],
    )?;
    let levels = format!(
        "cd {TREE}; [ $(cat memory.min) = {} ]; cd kubepods-burstable.slice; [ $(cat memory.low) = {REQUEST} ]; [ $(cat cpu.weight) = {} ]",
        64 * MIB + REQUEST,
        weight(200)
    );
    world.vm.until("the levels follow", PODS, &levels)?;
    ensure!(world.node()?.running == node.running, "something was restarted: {pod:#}");
    Ok(())
}
