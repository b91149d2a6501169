//! What scrapers read from a node that has worked: every family as upstream's, the series that alerts, rules and
//! dashboards of the Kubernetes monitoring mixin are made of, each format, and scrapes while processes restart.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::cluster::client::Credential;
use bulkhead_testkit::https::Https;
use bulkhead_testkit::{Cluster, LONG, Lab, Node, Pod, eventually};
use bulkhead_tests::joined::{NODE, create, wait_phase, wait_ready};
use bulkhead_tests::lab;
use bulkhead_tests::metric_families::differences;
use bulkhead_tests::scrape::{Format, Scrape};
use serde_json::json;

const HOUR: Duration = Duration::from_secs(3600);
const OPEN: (&str, &str) = ("Accept", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.3");
const PROTOBUF: (&str, &str) =
    ("Accept", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited");

struct World {
    cluster: Cluster,
    node: Node,
    /// The main server, as somebody who may scrape.
    main: Https,
    /// The read-only port, as nobody.
    read_only: Https,
}

impl World {
    fn start(lab: &Lab) -> Result<Self> {
        let cluster = lab.cluster()?;
        let node = lab.node(NODE).config("readOnlyPort", json!(10255)).config("rotateCertificates", json!(true));
        let node = node.joins(&cluster)?.start()?;
        let scraper = Credential::Certificate(cluster.client_certificate("scraper", "system:masters", HOUR)?);
        let address = |port| SocketAddr::new(lab.netns().address().into(), port);
        let main = Https::new(address(10250), &scraper);
        Ok(World { cluster, node, main, read_only: Https::plain(address(10255)) })
    }

    fn scrape(&self, path: &str) -> Result<Scrape> {
        let answer = self.main.get(path)?;
        let body = String::from_utf8_lossy(&answer.body);
        ensure!(answer.status == 200, "{path}: {} {body:.500}", answer.status);
        let kind = answer.headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        ensure!(kind == "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", "{path}: {kind}");
        Scrape::read(&body, Format::Prometheus).with_context(|| path.to_owned())
    }
}

/// One pod of each kind of life: it stays, it ends, it cannot start.
fn work(world: &World) -> Result<()> {
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let never = json!({"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1000});
    let stays = Pod::idle("stays")
        .container_field("readinessProbe", probe)
        .container_field("livenessProbe", never)
        .empty_dir("v", "", None, "/v");
    create(&world.cluster, stays)?;
    create(&world.cluster, Pod::busybox("ends", "exit 0").restart_policy("Never"))?;
    let cannot = Pod::idle("cannot").container_field("command", json!(["/no/such/program"])).restart_policy("Never");
    create(&world.cluster, cannot)?;
    wait_ready(&world.cluster, "stays")?;
    wait_phase(&world.cluster, "ends", "Succeeded")?;
    wait_phase(&world.cluster, "cannot", "Failed")?;
    Ok(())
}

#[test]
fn scrapers_read_what_upstream_would_tell_them() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let world = World::start(&lab)?;
    work(&world)?;
    let metrics = eventually("the work is counted", LONG, || {
        let metrics = world.scrape("/metrics")?;
        sane(&metrics)?;
        mixin(&metrics)?;
        Ok(metrics)
    })?;
    let found = differences(&metrics, Format::Prometheus)?;
    ensure!(found.is_empty(), "{}", found.join("\n"));
    values(&metrics)?;
    probes(&world, &metrics)?;
    slis(&world)?;
    formats(&world)?;
    restarts(&world)?;
    world.node.finish()
}

/// Series of every alert, rule and dashboard that reads this endpoint.
fn mixin(metrics: &Scrape) -> Result<()> {
    let series: &[(&str, &[(&str, &str)])] = &[
        ("kubelet_running_containers", &[("container_state", "running")]),
        ("volume_manager_total_volumes", &[("state", "actual_state_of_world")]),
        ("volume_manager_total_volumes", &[("state", "desired_state_of_world")]),
        ("kubelet_runtime_operations_total", &[("operation_type", "run_podsandbox")]),
        ("kubelet_runtime_operations_total", &[("operation_type", "start_container")]),
        ("kubelet_runtime_operations_errors_total", &[("operation_type", "start_container")]),
        ("kubelet_runtime_operations_duration_seconds_bucket", &[("operation_type", "create_container")]),
        ("kubelet_pod_start_duration_seconds_bucket", &[("le", "60")]),
        ("kubelet_pod_start_duration_seconds_count", &[]),
        ("kubelet_pod_worker_duration_seconds_bucket", &[("operation_type", "create"), ("le", "10")]),
        ("kubelet_pod_worker_duration_seconds_count", &[("operation_type", "create")]),
        ("storage_operation_duration_seconds_count", &[("volume_plugin", "kubernetes.io/empty-dir")]),
        ("storage_operation_duration_seconds_bucket", &[("operation_name", "volume_mount"), ("le", "0.1")]),
        ("kubelet_cgroup_manager_duration_seconds_bucket", &[("operation_type", "create")]),
        ("kubelet_pleg_relist_duration_seconds_bucket", &[("le", "10")]),
        ("rest_client_requests_total", &[("code", "200"), ("method", "GET")]),
        ("rest_client_request_duration_seconds_bucket", &[("verb", "PATCH")]),
        ("kubelet_pod_start_sli_duration_seconds_bucket", &[("le", "300")]),
        ("kubelet_started_containers_total", &[("container_type", "container")]),
        ("kubelet_started_containers_errors_total", &[("code", "RunContainerError")]),
        ("kubelet_terminated_containers_total", &[("exit_code", "0"), ("reason", "Completed")]),
        ("kubelet_run_podsandbox_duration_seconds_count", &[("runtime_handler", "")]),
        ("kubelet_http_requests_total", &[("path", "metrics"), ("server_type", "readwrite")]),
    ];
    for (name, labels) in series {
        let value = metrics.sum(name, labels);
        ensure!(value > 0.0, "{name}{labels:?} is {value}, series {:?}", metrics.all(name, &[]));
    }
    Ok(())
}

/// Every value that a label may have, of labels whose values upstream's dashboards tell apart.
const VALUES: [(&str, &str, &str); 7] = [
    (
        "kubelet_runtime_operations_total",
        "operation_type",
        "version status runtime_config update_runtime_config run_podsandbox stop_podsandbox remove_podsandbox \
         podsandbox_status list_podsandbox create_container start_container stop_container remove_container \
         list_containers container_status update_container reopen_container_log exec_sync exec attach port_forward \
         container_stats list_container_stats podsandbox_stats list_podsandbox_stats list_images image_status pull_image \
         remove_image image_fs_info checkpoint_container get_container_events list_metric_descriptors \
         list_podsandbox_metrics update_podsandbox_resources close",
    ),
    ("kubelet_pod_worker_duration_seconds_count", "operation_type", "create update sync kill terminated"),
    ("kubelet_cgroup_manager_duration_seconds_count", "operation_type", "create update destroy"),
    ("kubelet_running_containers", "container_state", "created running exited unknown"),
    ("kubelet_started_containers_total", "container_type", "container init_container ephemeral_container"),
    ("kubelet_image_manager_ensure_image_requests_total", "pull_policy", "always ifnotpresent never"),
    ("storage_operation_duration_seconds_count", "status", "success fail-unknown"),
];

fn values(metrics: &Scrape) -> Result<()> {
    for (name, label, allowed) in VALUES {
        let series = metrics.all(name, &[]);
        ensure!(!series.is_empty(), "no series of {name}");
        let strange = series.iter().find(|series| !allowed.split_whitespace().any(|one| series.labels[label] == one));
        ensure!(strange.is_none(), "{strange:?}");
    }
    Ok(())
}

/// Values that can be known.
fn sane(metrics: &Scrape) -> Result<()> {
    let one = |name: &str, labels: &[(&str, &str)]| metrics.one(name, labels);
    ensure!(one("kubelet_node_name", &[("node", NODE)])? == 1.0, "the node's name counts once");
    let version =
        metrics.family("kubernetes_build_info")?.series.first().context("build")?.labels["git_version"].clone();
    ensure!(version.starts_with("v1.36."), "{version}");
    ensure!(one("kubelet_running_pods", &[])? == 1.0, "running pods");
    ensure!(one("kubelet_running_containers", &[("container_state", "running")])? == 1.0, "running containers");
    ensure!(one("kubelet_desired_pods", &[("static", "")])? == 3.0, "desired pods");
    ensure!(one("kubelet_active_pods", &[("static", "")])? == 1.0, "active pods");
    let sync = [("lifecycle", "sync"), ("config", "desired"), ("static", "")];
    ensure!(one("kubelet_working_pods", &sync)? == 1.0, "working pods");
    ensure!(metrics.family("kubelet_working_pods")?.series.len() == 15, "all combinations of working pods");
    ensure!(one("kubelet_started_pods_total", &[])? == 3.0, "started pods");
    ensure!(one("kubelet_containers_per_pod_count_count", &[])? == 3.0, "pods");
    // Two started; each counts once, and none has a volume that outlives it.
    for name in ["kubelet_pod_start_total_duration_seconds", "kubelet_pod_start_sli_duration_seconds"] {
        let (count, sum) = (one(&format!("{name}_count"), &[])?, one(&format!("{name}_sum"), &[])?);
        ensure!((1.0..=2.0).contains(&count) && (0.0..600.0).contains(&sum), "{name}: {count} in {sum} s");
    }
    let first = one("kubelet_first_network_pod_start_sli_duration_seconds", &[])?;
    ensure!((-1.0..600.0).contains(&first), "{first}");
    let cgroup = one("kubelet_cgroup_version", &[])?;
    ensure!(cgroup == 1.0 || cgroup == 2.0, "{cgroup}");
    let left = one("kubelet_certificate_manager_client_ttl_seconds", &[])?;
    ensure!(left > 60.0 && left.fract() == 0.0, "{left}");
    ensure!(one("kubernetes_feature_enabled", &[("name", "NodeSwap"), ("stage", "")])? == 1.0, "gates");
    ensure!(one("bulkhead_process_up", &[("process", "kubelet-syncd")])? == 1.0, "kubelet-syncd");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs_f64();
    let (seen, started) = (one("kubelet_pleg_last_seen_seconds", &[])?, one("process_start_time_seconds", &[])?);
    ensure!(seen > started && now - seen < 600.0 && now - started < 600.0, "{started} {seen} {now}");
    let processes = metrics.all("bulkhead_process_start_time_seconds", &[]);
    ensure!(processes.len() == 5, "{processes:?}");
    let tasks = metrics.all("bulkhead_tasks", &[]);
    ensure!(tasks.len() == 4 && tasks.iter().all(|process| process.value > 0.0), "{tasks:?}");
    Ok(())
}

fn probes(world: &World, metrics: &Scrape) -> Result<()> {
    ensure!(metrics.families.keys().all(|name| !name.starts_with("prober_")), "series of probes are apart");
    eventually("probes are counted", LONG, || {
        let probes = world.scrape("/metrics/probes")?;
        let names: Vec<&str> = probes.families.keys().map(String::as_str).collect();
        ensure!(
            names == ["prober_probe_duration_seconds", "prober_probe_total", "process_start_time_seconds"],
            "{names:?}"
        );
        let of = |kind, result| {
            let labels = [
                ("probe_type", kind),
                ("result", result),
                ("container", "main"),
                ("pod", "stays"),
                ("namespace", "default"),
            ];
            probes.one("prober_probe_total", &labels)
        };
        ensure!(of("Readiness", "successful")? >= 1.0 && of("Liveness", "failed")? >= 1.0, "both ran");
        let timed = probes.all("prober_probe_duration_seconds_count", &[]);
        ensure!(timed.iter().all(|series| series.labels["probe_type"] == "Readiness"), "a failure takes no time");
        let help = &probes.family("process_start_time_seconds")?.help;
        ensure!(help.starts_with("[ALPHA] "), "{help}");
        Ok(())
    })
}

fn slis(world: &World) -> Result<()> {
    let counted = || -> Result<f64> {
        let slis = world.scrape("/metrics/slis")?;
        slis.family("process_start_time_seconds")?;
        Ok(slis.sum("kubernetes_healthchecks_total", &[("name", "ping"), ("type", "healthz"), ("status", "success")]))
    };
    let reset = world.main.request("DELETE", "/metrics/slis", &[], b"")?;
    ensure!(reset.status == 200 && reset.body.as_ref() == b"metrics reset\n", "{reset:?}");
    ensure!(counted()? == 0.0, "all is forgotten");
    for _ in 0..2 {
        let health = world.main.get("/healthz")?;
        ensure!(health.status == 200, "{health:?}");
    }
    ensure!(counted()? == 2.0, "one for each request");
    let slis = world.scrape("/metrics/slis")?;
    ensure!(slis.one("kubernetes_healthcheck", &[("name", "ping"), ("type", "healthz")])? == 1.0, "ping");
    let refused = world.read_only.request("POST", "/metrics", &[], b"")?;
    ensure!(refused.status == 405, "{refused:?}");
    Ok(())
}

fn formats(world: &World) -> Result<()> {
    let header = |answer: &http::HeaderMap, name: &str| {
        answer.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    for path in ["/metrics", "/metrics/probes", "/metrics/slis", "/metrics/resource"] {
        let answer = world.main.request("GET", path, &[OPEN], b"")?;
        let kind = header(&answer.headers, "content-type");
        ensure!(
            kind == "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores",
            "{path}: {kind}"
        );
        let open = Scrape::read(&String::from_utf8_lossy(&answer.body), Format::OpenMetrics).context(path)?;
        if path == "/metrics" {
            let found = differences(&open, Format::OpenMetrics)?;
            ensure!(found.is_empty(), "{}", found.join("\n"));
            // An alert reads a counter by its name without `_total`; it keeps it in each format.
            ensure!(open.family("kubelet_pleg_discard_events")?.kind == "unknown", "a counter of another name");
        }
        let answer = world.main.request("GET", path, &[PROTOBUF], b"")?;
        ensure!(header(&answer.headers, "content-type").starts_with("application/vnd.google.protobuf; "), "{path}");
        ensure!(messages(&answer.body).is_some_and(|count| count > 0), "{path}: no messages, each behind its length");
        let answer = world.main.request("HEAD", path, &[], b"")?;
        ensure!(answer.status == 200 && answer.body.is_empty(), "{path}: {answer:?}");
    }
    let plain = world.read_only.get("/metrics")?;
    let gzip = world.read_only.request("GET", "/metrics", &[("Accept-Encoding", "gzip")], b"")?;
    ensure!(header(&gzip.headers, "content-encoding") == "gzip" && gzip.body.starts_with(&[0x1f, 0x8b]), "gzip");
    ensure!(gzip.body.len() * 5 < plain.body.len(), "{} of {} bytes", gzip.body.len(), plain.body.len());
    ensure!(header(&plain.headers, "content-encoding").is_empty(), "nobody asked for it");
    let started: u64 = header(&plain.headers, "process-start-time-unix").parse().context("the process's start")?;
    ensure!(started > 1_700_000_000, "{started}");
    Ok(())
}

/// How many messages there are, each behind its length as a varint and beginning with field 1, the family's name.
fn messages(mut body: &[u8]) -> Option<usize> {
    let mut count = 0;
    while !body.is_empty() {
        let (mut length, mut shift) = (0_usize, 0);
        loop {
            let (byte, rest) = body.split_first()?;
            body = rest;
            length |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let message = body.get(..length).filter(|message| message.first() == Some(&0x0a))?;
        body = body.get(message.len()..)?;
        count += 1;
    }
    Some(count)
}

/// A process that is killed costs its own series, and only until it is back.
fn restarts(world: &World) -> Result<()> {
    for process in ["kubelet-syncd", "kubelet-volnetd", "kubelet-evictiond"] {
        world.node.kill_daemon(process)?;
        let mut away = BTreeMap::new();
        eventually(&format!("{process} is back"), LONG, || {
            let metrics = world.scrape("/metrics")?;
            for other in ["kubelet-syncd", "kubelet-volnetd", "kubelet-evictiond", "kubelet-statusd"] {
                if metrics.one("bulkhead_process_up", &[("process", other)])? == 0.0 {
                    *away.entry(other).or_insert(0) += 1;
                }
            }
            ensure!(metrics.one("kubelet_node_name", &[("node", NODE)])? == 1.0, "the node's name");
            ensure!(metrics.one("bulkhead_process_up", &[("process", process)])? == 1.0, "{process} is away");
            metrics.family("kubelet_running_pods")?;
            Ok(())
        })?;
        ensure!(away.keys().all(|other| *other == process), "{process} was killed, away were {away:?}");
    }
    eventually("the pod that stays is counted", LONG, || {
        let metrics = world.scrape("/metrics")?;
        ensure!(metrics.one("kubelet_running_pods", &[])? == 1.0, "running pods");
        ensure!(metrics.one("kubelet_started_pods_total", &[])? == 0.0, "nothing was started again");
        Ok(())
    })
}
