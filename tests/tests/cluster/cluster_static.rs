//! Static pods on a cluster: their mirror pods show them, and nothing that is done to a mirror pod reaches the pod.

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::{Cluster, LONG, Pod, eventually};
use bulkhead_tests::history::{condition, pod_only_advances};
use bulkhead_tests::joined::{Member, NODE, is_true, main_of, wait_event, wait_node, wait_ready};
use bulkhead_tests::lab;
use serde_json::{Value, json};

const MIRROR: &str = "kubernetes.io/config.mirror";

/// Waits for a mirror pod that is ready and is another than `former`.
fn wait_other(cluster: &Cluster, name: &str, former: &Value) -> Result<Value> {
    cluster.wait_for("pods", "default", name, "another mirror pod is ready", |pod| {
        pod["metadata"]["uid"] != former["metadata"]["uid"] && is_true(pod, "Ready")
    })
}

#[test]
fn mirror_pods_follow_their_static_pods() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Member { cluster, mut node } = Member::start(&lab, &[], |node| node)?;
    node.write(&Pod::idle("web"))?;
    let name = node.pod_name("web");
    let mirror = wait_ready(&cluster, &name)?;
    let annotations = &mirror["metadata"]["annotations"];
    ensure!(annotations[MIRROR] == annotations["kubernetes.io/config.hash"], "{annotations:#}");
    ensure!(annotations["kubernetes.io/config.source"] == "file", "{annotations:#}");
    let of_node = cluster.get("nodes", "", NODE)?;
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": of_node["metadata"]["uid"], "controller": true}]);
    ensure!(mirror["metadata"]["ownerReferences"] == owner, "{:#}", mirror["metadata"]);
    let toleration = json!({"operator": "Exists", "effect": "NoExecute"});
    ensure!(
        mirror["spec"]["tolerations"].as_array().is_some_and(|all| all.contains(&toleration)),
        "{:#}",
        mirror["spec"]
    );
    let status = &mirror["status"];
    ensure!(
        status["podIP"].is_string() && status["hostIP"] == lab.netns().address().to_string().as_str(),
        "{status:#}"
    );
    for kind in ["PodScheduled", "Initialized", "ContainersReady"] {
        ensure!(condition(&mirror, kind)?["status"] == "True", "{status:#}");
    }
    let main = node.wait_running("web", 1)?.main().identity();
    // Events are about the static pod, by the uid that its sandbox has.
    let hash = annotations[MIRROR].as_str().context("no hash")?;
    let about = json!({"metadata": {"uid": hash, "name": name}});
    wait_event(&cluster, &about, "Normal Started spec.containers{main} Container started (1)")?;

    // Deleted, gracefully or not: another one comes, and the pod knows nothing of it.
    cluster.kubectl(&["delete", "pod", &name, "--wait=false"])?;
    let second = wait_other(&cluster, &name, &mirror)?;
    ensure!(main_of(&second)["containerID"] == main_of(&mirror)["containerID"], "{second:#}");
    ensure!(second["status"]["startTime"] == mirror["status"]["startTime"], "{second:#}");
    cluster.delete("pods", "default", &name, Some(0))?;
    let third = wait_other(&cluster, &name, &second)?;
    ensure!(main_of(&third)["containerID"] == main_of(&mirror)["containerID"], "{third:#}");
    ensure!(node.wait_running("web", 1)?.main().identity() == main, "the pod was touched");

    // A restart of everything: nothing is written.
    node.stop()?;
    node.launch()?;
    node.wait_healthy()?;
    node.wait_pod("web", "it is known again", |pod| pod.phase == "Running" && pod.api.is_some())?;
    let same = wait_ready(&cluster, &name)?;
    ensure!(same["metadata"]["uid"] == third["metadata"]["uid"], "the mirror pod was made again");
    ensure!(same["status"] == third["status"], "{:#}\nbecame\n{:#}", third["status"], same["status"]);
    ensure!(node.wait_running("web", 1)?.main().identity() == main, "the pod was touched");

    // Another manifest: another pod, another mirror pod.
    node.write(&Pod::idle("web").annotation("version", "2"))?;
    let changed = wait_other(&cluster, &name, &third)?;
    ensure!(changed["metadata"]["annotations"]["version"] == "2", "{:#}", changed["metadata"]);
    ensure!(changed["metadata"]["annotations"][MIRROR] != annotations[MIRROR], "{:#}", changed["metadata"]);
    ensure!(main_of(&changed)["containerID"] != main_of(&third)["containerID"], "{changed:#}");

    // No manifest: no pod, no mirror pod.
    node.remove("web")?;
    cluster.wait_gone("pods", "default", &name)?;
    node.wait_gone("web")?;
    pod_only_advances(&cluster.history("pods", "default", &name)?)?;
    node.finish()
}

/// A cloud names the node's address, and has taken it away when the node begins anew: nobody knows it then.
#[test]
fn a_static_pod_keeps_the_hosts_address_that_nobody_names() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Member { cluster, mut node } =
        Member::start(&lab, &[], |node| node.argument("--cloud-provider=external").argument("--node-ip="))?;
    wait_node(&cluster, "True")?;
    let named =
        |addresses: Value| cluster.patch_status("nodes", "", NODE, &json!({"status": {"addresses": addresses}}));
    named(json!([{"type": "InternalIP", "address": "192.0.2.7"}]))?;
    node.write(&Pod::idle("own"))?;
    node.write(&Pod::idle("hosts").host_network())?;
    let names = [node.pod_name("own"), node.pod_name("hosts")];
    let has_address = |pod: &Value| pod["status"]["hostIP"] == "192.0.2.7" && is_true(pod, "Ready");
    for name in &names {
        cluster.wait_for("pods", "default", name, "it has the host's address", has_address)?;
    }
    named(json!([{"type": "Hostname", "address": NODE}]))?;
    node.stop()?;
    node.launch()?;
    node.wait_healthy()?;
    // When the mirror pod of a new one shows that it runs, those of the others have been compared.
    node.write(&Pod::idle("later"))?;
    let later = wait_ready(&cluster, &node.pod_name("later"))?;
    ensure!(later["status"]["hostIP"].is_null(), "the node has an address: {later:#}");
    for name in &names {
        let statuses = cluster.statuses("pods", "default", name)?;
        for address in ["hostIP", "podIP"] {
            let all = statuses.iter().map(|status| &status[address]);
            let mut told: Vec<&Value> = all.skip_while(|ip| ip.is_null()).collect();
            told.dedup();
            ensure!(told.len() == 1, "{name} {address}: {told:?}");
        }
    }
    node.finish()
}

/// Upstream's mirror_pod_test.go, "should successfully recreate when file is removed and recreated".
#[test]
fn a_manifest_that_is_removed_and_written_again_restarts_its_pod() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Member { cluster, node } = Member::start(&lab, &[], |node| node)?;
    let pod = Pod::idle("web");
    node.write(&pod)?;
    let name = node.pod_name("web");
    let mut mirror = wait_ready(&cluster, &name)?;
    for count in 1..3 {
        node.remove("web")?;
        node.write(&pod)?;
        let before = main_of(&mirror)["containerID"].clone();
        mirror = cluster.wait_for("pods", "default", &name, "its container runs again", |pod| {
            is_true(pod, "Ready") && main_of(pod)["containerID"] != before
        })?;
        ensure!(main_of(&mirror)["restartCount"] == count, "{mirror:#}");
    }
    // Moved away and back, as `kubeadm upgrade` and editors do: nothing has happened.
    let identity = node.wait_running("web", 1)?.main().identity();
    std::fs::rename(node.manifests().join("web.yaml"), node.manifests().join(".web.yaml"))?;
    node.write(&pod)?;
    node.write(&Pod::idle("later"))?;
    node.wait_running("later", 1)?;
    ensure!(node.wait_running("web", 1)?.main().identity() == identity, "the pod was touched");
    node.finish()
}

#[test]
fn mirror_pods_without_a_static_pod_and_a_node_that_goes() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    // Mirror pods of a Node that is gone are garbage, and a controller's to remove.
    let cluster = lab.cluster_with_controllers()?;
    let mut node = lab.node(NODE).joins(&cluster)?.start()?;
    node.write(&Pod::idle("orphan"))?;
    node.write(&Pod::idle("kept"))?;
    let (orphan, kept) = (node.pod_name("orphan"), node.pod_name("kept"));
    wait_ready(&cluster, &orphan)?;
    let before = wait_ready(&cluster, &kept)?;
    // Its manifest goes while nobody looks.
    node.stop()?;
    node.remove("orphan")?;
    node.launch()?;
    node.wait_healthy()?;
    cluster.wait_gone("pods", "default", &orphan)?;
    node.wait_gone("orphan")?;
    ensure!(
        cluster.get("pods", "default", &kept)?["metadata"]["uid"] == before["metadata"]["uid"],
        "kept was made again"
    );

    // Under a static pod's name stands somebody's pod: it is left alone, and the static pod runs.
    let theirs = Pod::idle(&node.pod_name("taken")).spec("nodeName", json!("beta"));
    let theirs = cluster.create(theirs.value())?;
    node.write(&Pod::idle("taken"))?;
    node.wait_running("taken", 1)?;
    let still = cluster.get("pods", "default", &node.pod_name("taken"))?;
    ensure!(still == theirs, "{still:#}");
    cluster.delete("pods", "default", &node.pod_name("taken"), Some(0))?;
    wait_ready(&cluster, &node.pod_name("taken"))?;

    // The Node is deleted and made again: mirror pods belong to the new one.
    let old = wait_node(&cluster, "True")?;
    let main = node.wait_running("kept", 1)?.main().identity();
    cluster.kubectl(&["delete", "node", NODE])?;
    node.stop()?;
    node.launch()?;
    node.wait_healthy()?;
    let new = wait_node(&cluster, "True")?;
    ensure!(new["metadata"]["uid"] != old["metadata"]["uid"], "the Node is the old one");
    eventually("the mirror pod has the new Node as owner", LONG, || {
        let mirror = cluster.get("pods", "default", &kept)?;
        let owner = &mirror["metadata"]["ownerReferences"][0];
        ensure!(owner["uid"] == new["metadata"]["uid"] && is_true(&mirror, "Ready"), "{mirror:#}");
        Ok(())
    })?;
    ensure!(node.wait_running("kept", 1)?.main().identity() == main, "the pod was touched");
    let lease = cluster.wait_for("leases", "kube-node-lease", NODE, "it is the new Node's", |lease| {
        lease["metadata"]["ownerReferences"][0]["uid"] == new["metadata"]["uid"]
    })?;
    ensure!(lease["spec"]["holderIdentity"] == NODE, "{lease:#}");
    node.finish()
}
