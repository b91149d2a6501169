//! The environment of containers, read inside of them: every form of `valueFrom`, `envFrom`, services, expansion; and what
//! is said while something that it names is not there.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use bulkhead_tests::joined::{Member, config_map, secret};
use bulkhead_tests::lab;
use serde_json::{Value, json};

/// What the image, the runtime and the lab's own services set, and no test asks about.
const OTHERS: [&str; 6] = ["PATH", "HOME", "HOSTNAME", "PWD", "SHLVL", "TERM"];

fn service(name: &str, namespace: &str, ip: &str, ports: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": ports}})
}

/// The variables as `env` prints them, without those of the API server's own service, which are counted.
fn variables(output: &str) -> (BTreeMap<&str, &str>, usize) {
    let all: BTreeMap<&str, &str> = output.lines().filter_map(|line| line.split_once('=')).collect();
    let (kubernetes, rest): (BTreeMap<_, _>, BTreeMap<_, _>) =
        all.into_iter().partition(|(name, _)| name.starts_with("KUBERNETES_"));
    (rest.into_iter().filter(|(name, _)| !OTHERS.contains(name)).collect(), kubernetes.len())
}

fn field(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
}

fn resource(name: &str, container: &str, resource: &str, divisor: &str) -> Value {
    json!({"name": name,
        "valueFrom": {"resourceFieldRef": {"containerName": container, "resource": resource, "divisor": divisor}}})
}

fn key(name: &str, kind: &str, object: &str, key: &str, optional: bool) -> Value {
    json!({"name": name, "valueFrom": {format!("{kind}KeyRef"): {"name": object, "key": key, "optional": optional}}})
}

#[test]
fn variables_of_every_form_reach_the_process() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let objects = [
        config_map("cm", &json!({"k": "from map", "with.dot": "dotted", "9lives": "nine"})),
        secret("sec", "Opaque", &json!({"password": "p$(K)", "k": "from secret"})),
        service(
            "db-main",
            "default",
            "10.96.0.7",
            &json!([
            {"name": "sql", "port": 5432, "protocol": "TCP"}, {"name": "probe-x", "port": 53, "protocol": "UDP"}]),
        ),
        service("headless", "default", "None", &json!([{"port": 1, "protocol": "TCP"}])),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}),
        service("elsewhere", "other", "10.96.0.8", &json!([{"port": 80, "protocol": "TCP"}])),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot", "namespace": "default"}}),
    ];
    let member = Member::start(&lab, &objects, |node| node)?;

    let own = json!([
        {"name": "K", "value": "literal"},
        {"name": "COMPOSED", "value": "$(K)/$(k) $$(K) $(NONE) $(LATER) $ $(DB_MAIN_SERVICE_HOST)"},
        {"name": "LATER", "value": "later"},
        {"name": "EMPTY"},
        {"name": "K", "value": "$(K) again"},
        field("NAME", "metadata.name"), field("NS", "metadata.namespace"), field("UID_", "metadata.uid"),
        field("LABEL", "metadata.labels['app']"), field("NOTE", "metadata.annotations['example.com/note']"),
        field("NOTHING", "metadata.labels['none']"),
        field("ON", "spec.nodeName"), field("ACCOUNT", "spec.serviceAccountName"),
        field("HOST_IP", "status.hostIP"), field("HOST_IPS", "status.hostIPs"),
        field("POD_IP", "status.podIP"), field("POD_IPS", "status.podIPs"),
        resource("CPU_LIMIT", "", "limits.cpu", "0"), resource("CPU_REQUEST", "", "requests.cpu", "1m"),
        resource("MEMORY_LIMIT", "main", "limits.memory", "1Mi"), resource("MEMORY_REQUEST", "", "requests.memory", "0"),
        resource("OTHER_CPU", "other", "requests.cpu", "1m"), resource("OTHER_LIMIT", "other", "limits.cpu", "1m"),
        resource("STORAGE", "", "requests.ephemeral-storage", "1"),
        key("OF_MAP", "configMap", "cm", "with.dot", false), key("OF_SECRET", "secret", "sec", "password", false),
        key("MAYBE_KEY", "configMap", "cm", "none", true), key("MAYBE_MAP", "configMap", "none", "k", true),
        key("MAYBE_SECRET", "secret", "none", "k", true), key("P_k", "secret", "none", "k", true),
    ]);
    let from = json!([
        {"configMapRef": {"name": "cm"}},
        {"secretRef": {"name": "sec"}},
        {"prefix": "P_", "configMapRef": {"name": "cm"}},
        {"prefix": "Q-", "secretRef": {"name": "sec"}},
        {"configMapRef": {"name": "none", "optional": true}},
        {"secretRef": {"name": "none", "optional": true}},
    ]);
    let main = json!({"name": "main", "command": ["env", "ARGS=$(K)|$(NONE)|$$(K)"],
        "args": ["MORE=$(DB_MAIN_PORT)"], "env": own, "envFrom": from,
        "resources": {"limits": {"cpu": "1500m", "memory": "64Mi"},
                      "requests": {"cpu": "250m", "memory": "32Mi", "ephemeral-storage": "10M"}}});
    let other = json!({"name": "other", "command": ["env"], "resources": {"requests": {"cpu": "10m"}}});
    let spec = json!({"restartPolicy": "Never", "serviceAccountName": "robot", "containers": [main, other]});
    let metadata = json!({"name": "all", "labels": {"app": "web"}, "annotations": {"example.com/note": "a \"note\""}});
    let pod = member.create_with(&metadata, &spec)?;
    let mut unlinked = json!({"restartPolicy": "Never", "enableServiceLinks": false});
    unlinked["containers"] = json!([{"name": "main", "command": ["env"]}]);
    member.create("unlinked", &unlinked)?;
    let mut host = json!({"restartPolicy": "Never", "hostNetwork": true, "enableServiceLinks": false});
    host["containers"] = json!([{"name": "main", "command": ["env"],
        "env": [field("POD_IP", "status.podIP"), field("HOST_IP", "status.hostIP")]}]);
    member.create("host", &host)?;

    let address = lab.netns().address().to_string();
    let output = member.output("all", "main")?;
    let status = member.cluster.get("pods", "default", "all")?;
    let allocatable = member.cluster.get("nodes", "", "alpha")?["status"]["allocatable"]["cpu"].clone();
    let cores: u64 = allocatable.as_str().unwrap_or_default().parse()?;
    let (default_limit, uid) = ((cores * 1000).to_string(), pod["metadata"]["uid"].as_str().unwrap_or_default());
    let pod_ip = status["status"]["podIP"].as_str().unwrap_or_default();
    ensure!(!pod_ip.is_empty() && !uid.is_empty(), "{status}");
    let (seen, kubernetes) = variables(&output);
    let services = [
        ("DB_MAIN_SERVICE_HOST", "10.96.0.7"),
        ("DB_MAIN_SERVICE_PORT", "5432"),
        ("DB_MAIN_SERVICE_PORT_SQL", "5432"),
        ("DB_MAIN_SERVICE_PORT_PROBE_X", "53"),
        ("DB_MAIN_PORT", "tcp://10.96.0.7:5432"),
        ("DB_MAIN_PORT_5432_TCP", "tcp://10.96.0.7:5432"),
        ("DB_MAIN_PORT_5432_TCP_PROTO", "tcp"),
        ("DB_MAIN_PORT_5432_TCP_PORT", "5432"),
        ("DB_MAIN_PORT_5432_TCP_ADDR", "10.96.0.7"),
        ("DB_MAIN_PORT_53_UDP", "udp://10.96.0.7:53"),
        ("DB_MAIN_PORT_53_UDP_PROTO", "udp"),
        ("DB_MAIN_PORT_53_UDP_PORT", "53"),
        ("DB_MAIN_PORT_53_UDP_ADDR", "10.96.0.7"),
    ];
    let expected: BTreeMap<&str, &str> = [
        // A later envFrom wins over an earlier one, env over both.
        ("k", "from secret"),
        ("password", "p$(K)"),
        ("with.dot", "dotted"),
        ("9lives", "nine"),
        ("P_k", "from map"),
        ("P_with.dot", "dotted"),
        ("P_9lives", "nine"),
        ("Q-password", "p$(K)"),
        ("Q-k", "from secret"),
        ("K", "literal again"),
        ("COMPOSED", "literal/from secret $(K) $(NONE) $(LATER) $ 10.96.0.7"),
        ("LATER", "later"),
        ("EMPTY", ""),
        ("NAME", "all"),
        ("NS", "default"),
        ("UID_", uid),
        ("LABEL", "web"),
        ("NOTE", "a \"note\""),
        ("NOTHING", ""),
        ("ON", "alpha"),
        ("ACCOUNT", "robot"),
        ("HOST_IP", &address),
        ("HOST_IPS", &address),
        ("POD_IP", pod_ip),
        ("POD_IPS", pod_ip),
        ("CPU_LIMIT", "2"),
        ("CPU_REQUEST", "250"),
        ("MEMORY_LIMIT", "64"),
        ("MEMORY_REQUEST", "33554432"),
        ("OTHER_CPU", "10"),
        ("OTHER_LIMIT", &default_limit),
        ("STORAGE", "10000000"),
        ("OF_MAP", "dotted"),
        ("OF_SECRET", "p$(K)"),
        ("ARGS", "literal again|$(NONE)|$(K)"),
        ("MORE", "tcp://10.96.0.7:5432"),
    ]
    .into_iter()
    .chain(services)
    .collect();
    let differ: Vec<_> = expected
        .keys()
        .chain(seen.keys())
        .filter(|name| expected.get(*name) != seen.get(*name))
        .map(|name| format!("{name}: {:?} and not {:?}", seen.get(name), expected.get(name)))
        .collect();
    ensure!(differ.is_empty(), "{differ:#?}");
    ensure!(kubernetes == 8, "the API server's own service: {kubernetes}");

    // The other container: services alone.
    let output = member.output("all", "other")?;
    let (seen, kubernetes) = variables(&output);
    ensure!(seen == BTreeMap::from(services) && kubernetes == 8, "{seen:#?}");
    let output = member.output("unlinked", "main")?;
    let (seen, kubernetes) = variables(&output);
    ensure!(seen.is_empty() && kubernetes == 8, "{seen:?} {kubernetes}");
    let output = member.output("host", "main")?;
    let (seen, _) = variables(&output);
    ensure!(seen == BTreeMap::from([("POD_IP", address.as_str()), ("HOST_IP", &address)]), "{seen:?}");
    member.node.finish()
}

#[test]
fn a_container_waits_for_what_its_environment_names_and_says_what_that_is() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let objects = [config_map("there", &json!({"k": "v"})), secret("hidden", "Opaque", &json!({"k": "v"}))];
    let member = Member::start(&lab, &objects, |node| node)?;
    let containers = [
        ("map", json!({"env": [key("V", "configMap", "late", "k", false)]}), "configmap \"late\" not found"),
        ("secret", json!({"env": [key("V", "secret", "late", "k", false)]}), "secret \"late\" not found"),
        (
            "map-key",
            json!({"env": [key("V", "configMap", "there", "later", false)]}),
            "couldn't find key later in ConfigMap default/there",
        ),
        (
            "secret-key",
            json!({"env": [key("V", "secret", "hidden", "later", false)]}),
            "couldn't find key later in Secret default/hidden",
        ),
        ("from-map", json!({"envFrom": [{"configMapRef": {"name": "late"}}]}), "configmap \"late\" not found"),
        ("from-secret", json!({"envFrom": [{"secretRef": {"name": "late"}}]}), "secret \"late\" not found"),
    ];
    let list: Vec<Value> = containers
        .iter()
        .map(|(name, fields, _)| {
            let mut container = fields.clone();
            container["name"] = json!(name);
            container
        })
        .collect();
    member.create("waits", &json!({"containers": list}))?;
    for (name, _, text) in &containers {
        let message = member.wait_waiting("waits", name, "CreateContainerConfigError")?;
        ensure!(message == *text, "{name}: {message:?}, expected {text:?}");
        let event = member.wait_event("waits", "Failed", |message| message == format!("Error: {text}"))?;
        ensure!(event["type"] == "Warning", "{event}");
    }
    for object in [config_map("late", &json!({"k": "v"})), secret("late", "Opaque", &json!({"k": "v"}))] {
        member.cluster.create(&object)?;
    }
    member.cluster.patch("configmaps", "default", "there", &json!({"data": {"later": "v"}}))?;
    member.cluster.patch("secrets", "default", "hidden", &json!({"stringData": {"later": "v"}}))?;
    let begin = std::time::Instant::now();
    let pod = member.wait_ready("waits")?;
    eprintln!(
        "all six containers were ready {:.1} s after what they waited for was there",
        begin.elapsed().as_secs_f64()
    );
    for status in pod["status"]["containerStatuses"].as_array().into_iter().flatten() {
        ensure!(status["restartCount"] == 0, "{status}");
    }
    for (name, _, _) in &containers {
        let variable = if name.starts_with("from") { "k" } else { "V" };
        let output = member.exec("waits", name, &["sh", "-c", &format!("echo ${variable}")])?;
        ensure!(output.trim() == "v", "{name}: {output:?}");
    }
    member.node.finish()
}
