//! The tour of a node in a cluster: an API server in memory, a node that joins it, a pod made with kubectl.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result};
use bulkhead_testkit::{Cluster, Lab, Node, build, cluster, image, netns};
use serde_json::{Value, json};

use crate::demo::{Tour, print_indented};

const GREETING: &str = "Hello from a pod of the cluster";
const PORT: u16 = 8080;

/// The tour.
///
/// # Errors
/// The step that failed and why.
pub fn show(tour: &mut Tour, lab: &Lab) -> Result<Node> {
    tour.step("Control plane: an API server of the kind that the tests use");
    cluster::ensure_kubectl(&|line| tour.say(line))?;
    if let Some(folder) = cluster::programs() {
        let folder = folder.display();
        tour.say(&if cluster::controllers_are_there() {
            format!("upstream's programs in {folder} start, which takes some seconds")
        } else {
            format!(
                "{folder} lacks kube-apiserver, etcd, kube-controller-manager or kube-scheduler: one in memory instead"
            )
        });
    }
    // Somebody has to bind the pod.
    let cluster = lab.cluster_with_controllers()?;
    tour.say(&format!(
        "{} ({})",
        cluster.url(),
        if cluster.is_stand_in() { "in memory" } else { "kube-apiserver and etcd" }
    ));
    let kubectl = format!("kubectl --kubeconfig {}", cluster.admin_kubeconfig()?.display());
    tour.say(&kubectl);

    tour.step("Node: the kubelet joins with a certificate of its own");
    let began = Instant::now();
    let node = lab.node("demo").joins(&cluster)?.start()?;
    tour.say(&node.command_line()?.join(" "));
    cluster.wait_for("nodes", "", "demo", "the node is Ready", is_ready)?;
    tour.say(&format!("Ready after {:.2} s; its log is {}", began.elapsed().as_secs_f64(), node.log().display()));

    tour.step("Pod: created over the API");
    let before = cluster.log().map(|log| log.mark()).unwrap_or_default();
    let manifest = cluster.folder().join("hello.json");
    std::fs::write(&manifest, format!("{:#}", pod()))?;
    let began = Instant::now();
    // Not every build of the API server describes what it takes in the form that kubectl asks for, and none does at once.
    print_indented(&cluster.kubectl(&["create", "--validate=false", "-f", &manifest.display().to_string()])?);
    let running = cluster.wait_for("pods", "default", "hello", "the pod is Ready", is_ready)?;
    tour.say(&format!("Ready after {:.2} s; kubectl get nodes,pods -A -o wide:", began.elapsed().as_secs_f64()));
    print_indented(&cluster.kubectl(&["get", "nodes,pods", "-A", "-o", "wide"])?);
    node.wait_for_log_of(&running, "main", GREETING)?;

    tour.step("Logs, commands, ports: kubectl, the API server, the node's HTTPS server, the runtime");
    for (said, arguments) in [
        ("kubectl logs hello", &["logs", "hello"][..]),
        ("kubectl exec hello -- id", &["exec", "hello", "--", "id"]),
        ("kubectl get --raw /api/v1/nodes/demo/proxy/healthz", &["get", "--raw", "/api/v1/nodes/demo/proxy/healthz"]),
    ] {
        tour.say(&format!("{said}:"));
        cluster.kubectl(arguments)?.lines().for_each(|line| tour.quote(line));
    }
    forward(tour, &cluster)?;

    tour.step("What was said about it");
    tour.say("kubectl get events:");
    print_indented(&cluster.kubectl(&["get", "events", "--sort-by=.metadata.creationTimestamp"])?);
    if let Ok(log) = cluster.log() {
        tour.say("requests of the node since the pod was created:");
        print_indented(&counts(
            log.after(before).iter().filter(|one| one.user == "system:node:demo").map(|one| one.what()),
        ));
    }

    tour.step("The pod goes: deleted over the API, its grace period observed, removed by the node's last word");
    let began = Instant::now();
    print_indented(&cluster.kubectl(&["delete", "pod", "hello", "--wait=false"])?);
    cluster.wait_gone("pods", "default", "hello")?;
    tour.say(&format!("gone after {:.2} s", began.elapsed().as_secs_f64()));
    look_inside(&cluster, &node, &kubectl)?;
    Ok(node)
}

/// A page of the pod through `kubectl port-forward`.
fn forward(tour: &Tour, cluster: &Cluster) -> Result<()> {
    let ports = format!(":{PORT}");
    let mut forward = cluster
        .kubectl_command(&["port-forward", "pod/hello", &ports, "--address", "127.0.0.1"])?
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    // Kept until the end: kubectl dies when nobody takes what it says.
    let mut said = BufReader::new(forward.stdout.take().context("kubectl's output")?);
    let read = said.read_line(&mut line);
    let local = line.split_whitespace().nth(2).and_then(|place| place.parse().ok());
    let page = read
        .map_err(anyhow::Error::from)
        .and_then(|_| netns::http_get(local.with_context(|| format!("kubectl port-forward said {line:?}"))?, "/"));
    let _ = forward.kill();
    let _ = forward.wait();
    tour.say(&format!("kubectl port-forward pod/hello {ports} ({}), GET / there:", line.trim()));
    page?.1.lines().for_each(|line| tour.quote(line));
    Ok(())
}

fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

fn pod() -> Value {
    let script = format!(
        "mkdir -p /tmp/www; echo '{GREETING}' | tee /tmp/www/index.html; httpd -f -p {PORT} -h /tmp/www & \
         trap 'exit 0' TERM; wait"
    );
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "hello", "labels": {"app": "hello"}},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "containers": [{"name": "main", "image": image::BUSYBOX, "command": ["/bin/sh", "-c", script]}],
        },
    })
}

/// One line for each kind of request, the most frequent first.
fn counts(requests: impl Iterator<Item = String>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for what in requests {
        *counts.entry(what).or_default() += 1;
    }
    let mut sorted: Vec<_> = counts.into_iter().collect();
    sorted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    sorted.iter().map(|(what, count)| format!("{count:>4}  {what}\n")).collect()
}

fn look_inside(cluster: &Cluster, node: &Node, kubectl: &str) -> Result<()> {
    let manifest = cluster.folder().join("hello.json");
    let ctl = build::bin_dir().context("where the programs are")?.join("kubelet-ctl").display().to_string();
    println!();
    for (what, command) in [
        ("the node as the cluster sees it", format!("{kubectl} describe node demo")),
        ("another pod", format!("{kubectl} create --validate=false -f {}", manifest.display())),
        ("what happens to it", format!("{kubectl} get pods -w")),
        ("a shell in it", format!("{kubectl} exec -it hello -- sh")),
        ("its log as it grows", format!("{kubectl} logs -f hello")),
        ("the node as it sees itself", format!("{ctl} pods --root-dir {}", node.root_dir().display())),
    ] {
        println!("   {what:<32} {command}");
    }
    Ok(())
}
