//! A monitoring stack's view of the node: Debian's Prometheus scrapes it as a service account, with the rules and alerts of the
//! Kubernetes monitoring mixin loaded, and promtool reads every endpoint. The rules are in `fixtures/prometheus/rules.yaml`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use bulkhead_testkit::apiserver::Grant;
use bulkhead_testkit::cluster::client::Credential;
use bulkhead_testkit::https::Https;
use bulkhead_testkit::{Cluster, LONG, Lab, Pod, build, eventually};
use bulkhead_tests::joined::{Member, NODE, create, wait_phase, wait_ready};
use bulkhead_tests::lab;
use serde_json::{Value, json};

/// What a monitoring stack scrapes of each node.
const PATHS: [&str; 5] = ["/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/slis", "/metrics/resource"];

/// Panels of the mixin's dashboards, each with what it asks: a panel without an answer would be an empty one.
const PANELS: [(&str, &str); 22] = [
    ("running kubelets", r#"sum(kubelet_node_name{job="kubelet", metrics_path="/metrics"})"#),
    ("running pods", r#"sum(kubelet_running_pods{job="kubelet", metrics_path="/metrics"})"#),
    ("running containers", r#"sum(kubelet_running_containers{container_state="running"})"#),
    ("actual volumes", r#"sum(volume_manager_total_volumes{state="actual_state_of_world"})"#),
    ("desired volumes", r#"sum(volume_manager_total_volumes{state="desired_state_of_world"})"#),
    ("operations", "sum by (operation_type, instance) (rate(kubelet_runtime_operations_total[1m]))"),
    ("operation errors", "sum by (instance, operation_type) (rate(kubelet_runtime_operations_errors_total[1m]))"),
    (
        "operation durations",
        "histogram_quantile(0.99, sum by (operation_type, le) (rate(kubelet_runtime_operations_duration_seconds_bucket[5m])))",
    ),
    ("pod starts", "sum by (instance) (rate(kubelet_pod_start_duration_seconds_count[5m]))"),
    ("pod workers", "sum by (instance) (rate(kubelet_pod_worker_duration_seconds_count[5m]))"),
    (
        "storage operations",
        "sum by (instance, operation_name, volume_plugin) (rate(storage_operation_duration_seconds_count[5m]))",
    ),
    ("cgroup manager", "sum by (instance, operation_type) (rate(kubelet_cgroup_manager_duration_seconds_count[5m]))"),
    ("PLEG relists", "sum by (instance) (rate(kubelet_pleg_relist_duration_seconds_count[5m]))"),
    ("PLEG intervals", "histogram_quantile(0.99, sum by (le) (rate(kubelet_pleg_relist_interval_seconds_bucket[5m])))"),
    ("requests", r#"sum(rate(rest_client_requests_total{job="kubelet", code=~"2.."}[5m]))"#),
    (
        "request durations",
        "histogram_quantile(0.99, sum by (verb, le) (rate(rest_client_request_duration_seconds_bucket[5m])))",
    ),
    ("memory", r#"process_resident_memory_bytes{job="kubelet", metrics_path="/metrics"}"#),
    ("CPU", r#"rate(process_cpu_seconds_total{job="kubelet", metrics_path="/metrics"}[5m])"#),
    (
        "CPU throttling",
        r#"sum by (container) (increase(container_cpu_cfs_periods_total{pod="limited", container!=""}[5m]))"#,
    ),
    // The mixin asks for containers; kernels count a container's IO on version 1 only where it is throttled, the machine's always.
    (
        "storage IO",
        r#"sum by (device) (rate(container_fs_reads_total{id="/"}[5m]) + rate(container_fs_writes_total{id="/"}[5m]))"#,
    ),
    (
        "received by a pod",
        r#"sum by (pod) (rate(container_network_receive_bytes_total{namespace="default", pod="stays"}[5m]))"#,
    ),
    (
        "dropped by a pod",
        r#"sum by (pod) (rate(container_network_transmit_packets_dropped_total{namespace="default", pod="stays"}[5m]))"#,
    ),
];

/// Counters in which Prometheus tells that what it was given cannot be kept.
const REFUSALS: [&str; 5] = [
    "prometheus_target_scrapes_sample_duplicate_timestamp_total",
    "prometheus_target_scrapes_sample_out_of_order_total",
    "prometheus_target_scrapes_sample_out_of_bounds_total",
    "prometheus_rule_evaluation_failures_total",
    "prometheus_target_metadata_cache_entries_errors_total",
];

fn fixture(name: &str) -> PathBuf {
    build::workspace_root().join("tests/fixtures/prometheus").join(name)
}

/// A Prometheus in the lab's network; it ends with this value.
pub(super) struct Prometheus {
    process: Child,
    api: Https,
    log: PathBuf,
}

impl Prometheus {
    pub(super) fn start(lab: &Lab, token: &str) -> Result<Self> {
        let folder = lab.folder().join("prometheus");
        std::fs::create_dir_all(&folder)?;
        let (config, cluster, token_file) =
            (folder.join("config.json"), folder.join("cluster.json"), folder.join("token"));
        std::fs::write(&token_file, token)?;
        std::fs::write(&cluster, cluster_state().to_string())?;
        // JSON is YAML.
        std::fs::write(&config, scrape_config(lab, &token_file, &[fixture("rules.yaml"), cluster]).to_string())?;
        promtool(&["check", "config", &config.display().to_string()], None)?;
        let log = folder.join("log");
        let said = std::fs::File::create(&log)?;
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "nsenter"])
            .arg(format!("--net={}", lab.netns().path().display()))
            .arg("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("tsdb").display()))
            .arg("--web.listen-address=127.0.0.1:9090")
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said)
            .spawn()
            .context("starting Prometheus")?;
        let api = Https::plain(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 9090)).within(&lab.netns().path());
        let prometheus = Self { process, api, log };
        eventually("Prometheus is ready", LONG, || {
            ensure!(prometheus.api.get("/-/ready")?.status == 200, "{}", std::fs::read_to_string(&prometheus.log)?);
            Ok(())
        })?;
        Ok(prometheus)
    }

    fn ask(&self, path: &str) -> Result<Value> {
        let answer = self.api.get(path)?;
        let body = answer.json();
        ensure!(answer.status == 200 && body["status"] == "success", "{path}: {} {body}", answer.status);
        Ok(body["data"].clone())
    }

    /// The series that an expression has now.
    pub(super) fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let escaped: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        Ok(self.ask(&format!("/api/v1/query?query={escaped}"))?["result"].as_array().cloned().unwrap_or_default())
    }

    /// Every target has answered its last scrape.
    pub(super) fn targets_are_up(&self) -> Result<()> {
        let targets = self.ask("/api/v1/targets?state=active")?;
        let all = targets["activeTargets"].as_array().context("no list")?;
        ensure!(all.len() == PATHS.len(), "{targets}");
        for target in all {
            ensure!(target["health"] == "up", "{}: {}", target["scrapeUrl"], target["lastError"]);
        }
        Ok(())
    }

    /// Nothing that it was given was refused, by its own counters.
    pub(super) fn took_everything(&self) -> Result<()> {
        let text = String::from_utf8(self.api.get("/metrics")?.body.to_vec())?;
        let refused: Vec<&str> = text
            .lines()
            .filter(|line| REFUSALS.iter().any(|name| line.starts_with(name)) && !line.ends_with(" 0"))
            .collect();
        ensure!(refused.is_empty(), "{}\n{}", refused.join("\n"), std::fs::read_to_string(&self.log)?);
        Ok(())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn scrape_config(lab: &Lab, token: &Path, rules: &[PathBuf]) -> Value {
    let jobs: Vec<Value> = PATHS
        .iter()
        .map(|path| {
            json!({
                "job_name": path, "metrics_path": path, "scheme": "https", "honor_labels": true,
                "honor_timestamps": *path != "/metrics/cadvisor",
                "authorization": {"credentials_file": token}, "tls_config": {"insecure_skip_verify": true},
                "static_configs": [{
                    "targets": [format!("{}:10250", lab.netns().address())],
                    "labels": {"namespace": "kube-system", "service": "kubelet", "endpoint": "https-metrics", "node": NODE},
                }],
                "relabel_configs": [
                    {"source_labels": ["__metrics_path__"], "target_label": "metrics_path"},
                    {"target_label": "job", "replacement": "kubelet"},
                ],
            })
        })
        .collect();
    json!({
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "scrape_configs": jobs,
        "rule_files": rules,
    })
}

/// What kube-state-metrics would say of this cluster: what the rules join a node's series with.
fn cluster_state() -> Value {
    let series = |name: &str, labels: Value, value: u32| json!({"record": name, "expr": format!("vector({value})"), "labels": labels});
    let pod = |name: &str| {
        series("kube_pod_info", json!({"namespace": "default", "pod": name, "node": NODE, "host_network": "false"}), 1)
    };
    let rules = [
        pod("stays"),
        pod("limited"),
        series("kube_node_status_capacity", json!({"node": NODE, "resource": "pods"}), 110),
    ];
    json!({"groups": [{"name": "cluster", "interval": "1s", "rules": rules}]})
}

/// A service account that may read the node's metrics, by the role that is installed with the product.
pub(super) fn scraper(cluster: &Cluster) -> Result<String> {
    cluster.create(&json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "prometheus", "namespace": "default"}}))?;
    match cluster.server() {
        Ok(stand_in) => {
            stand_in.grant(Grant::new("system:serviceaccount:default:prometheus", &["get"], &["nodes/metrics"]));
        }
        Err(_) => {
            // OpenAPI, by which kubectl checks what it sends, comes later than the server.
            let roles = build::workspace_root().join("deploy/rbac/nodes.yaml");
            cluster.kubectl(&["apply", "--validate=false", "-f", &roles.display().to_string()])?;
            cluster.kubectl(&[
                "create",
                "clusterrolebinding",
                "prometheus",
                "--clusterrole=kubelet-metrics-reader",
                "--serviceaccount=default:prometheus",
            ])?;
        }
    }
    cluster.service_account_token("default", "prometheus")
}

/// One pod with probes, one with a limit on its CPU time, one that has ended and one that cannot start.
fn work(cluster: &Cluster) -> Result<()> {
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    create(cluster, Pod::idle("stays").container_field("readinessProbe", probe).empty_dir("v", "", None, "/v"))?;
    create(
        cluster,
        Pod::idle("limited").container_field("resources", json!({"limits": {"cpu": "200m", "memory": "64Mi"}})),
    )?;
    create(cluster, Pod::busybox("ends", "exit 0").restart_policy("Never"))?;
    let cannot = Pod::idle("cannot").container_field("command", json!(["/no/such/program"])).restart_policy("Never");
    create(cluster, cannot)?;
    wait_ready(cluster, "stays")?;
    wait_ready(cluster, "limited")?;
    wait_phase(cluster, "ends", "Succeeded")?;
    wait_phase(cluster, "cannot", "Failed")?;
    Ok(())
}

/// Runs promtool; what it printed, with its exit code.
fn promtool(arguments: &[&str], input: Option<&Path>) -> Result<(Option<i32>, String)> {
    let stdin = input.map_or_else(|| Ok(Stdio::null()), |path| std::fs::File::open(path).map(Stdio::from))?;
    let output = Command::new("promtool").args(arguments).stdin(stdin).output().context("starting promtool")?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    if input.is_none() {
        ensure!(output.status.success(), "promtool {}: {said}", arguments.join(" "));
    }
    Ok((output.status.code(), said))
}

/// promtool finds nothing in any endpoint that it does not find in that of the Kubernetes kubelet.
fn promtool_is_content(lab: &Lab, client: &Https) -> Result<()> {
    const LINTED: i32 = 3;
    let known = std::fs::read_to_string(fixture("complaints.txt"))?;
    let file = lab.folder().join("scraped.txt");
    let mut found = Vec::new();
    for path in PATHS {
        let answer = client.get(path)?;
        ensure!(answer.status == 200, "{path}: {answer:?}");
        std::fs::write(&file, &answer.body)?;
        let (code, said) = promtool(&["check", "metrics"], Some(&file))?;
        if !matches!(code, Some(0 | LINTED)) {
            bail!("{path}: {code:?} {said}");
        }
        let new = said.lines().filter(|line| !known.lines().any(|one| one == *line));
        found.extend(new.map(|line| format!("{path}: {line}")));
    }
    ensure!(found.is_empty(), "{}", found.join("\n"));
    Ok(())
}

#[test]
fn a_monitoring_stack_reads_the_node() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    bulkhead_testkit::machine::ensure_monitoring(&|line| eprintln!("{line}"))?;
    let mut member = Member::start(&lab, &[], |node| node)?;
    let token = scraper(&member.cluster)?;
    work(&member.cluster)?;
    let prometheus = Prometheus::start(&lab, &token)?;
    eventually("every endpoint is scraped", LONG, || prometheus.targets_are_up())?;

    eventually("every rule has series", LONG, || {
        for group in prometheus.ask("/api/v1/rules")?["groups"].as_array().context("no groups")? {
            for rule in group["rules"].as_array().context("no rules")? {
                ensure!(rule["health"] == "ok", "{rule}");
                if rule["type"] == "recording" {
                    let name = rule["name"].as_str().unwrap_or_default();
                    ensure!(!prometheus.query(name)?.is_empty(), "{name} has none");
                }
            }
        }
        Ok(())
    })?;
    eventually("every panel shows something", LONG, || {
        for (panel, expression) in PANELS {
            ensure!(!prometheus.query(expression)?.is_empty(), "{panel} is empty: {expression}");
        }
        Ok(())
    })?;
    // What is recorded of a container is its own, once. The sandbox has an image, and so a series without a container, as upstream.
    for name in [
        "container_memory_working_set_bytes",
        "container_memory_rss",
        "container_memory_cache",
        "container_memory_swap",
    ] {
        let recorded = prometheus.query(&format!(r#"node_namespace_pod_container:{name}{{pod="limited"}}"#))?;
        let labels: Vec<&Value> = recorded.iter().map(|one| &one["metric"]).collect();
        let of_container = labels.iter().filter(|labels| labels["container"] == "main").count();
        let of_sandbox = labels.iter().filter(|labels| labels["container"].is_null()).count();
        let of_node = labels.iter().all(|labels| labels["node"] == NODE);
        ensure!((of_container, of_sandbox, of_node) == (1, labels.len() - 1, true), "{name}: {labels:?}");
        ensure!(of_sandbox <= 1, "{name}: {labels:?}");
    }
    let alerts = prometheus.query("ALERTS")?;
    ensure!(alerts.is_empty(), "alerts on a node that is well: {alerts:?}");
    promtool_is_content(
        &lab,
        &Https::new(SocketAddr::new(lab.netns().address().into(), 10250), &Credential::Token(token)),
    )?;

    // Every process of the node begins anew: the scrapes come back, and nothing that they bring contradicts what was told before.
    for daemon in ["kubelet-evictiond", "kubelet-syncd", "kubelet-statusd"] {
        member.node.kill_daemon(daemon)?;
        member.node.wait_healthy()?;
        eventually(&format!("scraped after the end of {daemon}"), LONG, || prometheus.targets_are_up())?;
    }
    prometheus.took_everything()?;
    drop(prometheus);
    member.node.finish()
}
