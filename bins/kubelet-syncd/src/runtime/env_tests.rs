//! Environments as recorded, expansion, and what needs the API server.

use super::*;
use crate::runtime::node_facts::HostFacts;
use crate::runtime::podspec::containers;

fn pod(container: serde_json::Value) -> Pod {
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": "env", "namespace": "ns", "uid": "u", "labels": {"a/b": "l"},
                     "annotations": {"kubernetes.io/config.source": "file"}},
        "spec": {"enableServiceLinks": true, "nodeName": "node-a", "containers": [container]},
    }))
    .unwrap()
}

fn facts() -> NodeFacts {
    let mut facts = NodeFacts::new(HostFacts::default());
    facts.host_ips = vec!["10.240.0.2".parse().unwrap()];
    facts.allocatable.insert("cpu".into(), Quantity::parse("2").unwrap());
    facts.allocatable.insert("memory".into(), Quantity::parse("24006Mi").unwrap());
    facts
}

fn kubernetes() -> Service {
    Service {
        namespace: "default".into(),
        name: "kubernetes".into(),
        cluster_ip: "10.96.0.1".into(),
        ports: vec![ServicePort { name: "https".into(), protocol: "TCP".into(), port: 443 }],
    }
}

fn run(container: serde_json::Value, services: &[Service]) -> Result<Environment, EnvError> {
    let p = pod(container);
    let ips = ["10.88.3.79".parse().unwrap()];
    environment(&p, &containers(&p)[0], &ips, Services { known: services, synced: false }, &facts())
}

#[test]
fn values_as_recorded() {
    let env = run(
        serde_json::json!({"name": "main", "env": [
            {"name": "A", "value": "one"},
            {"name": "B", "value": "$(A)-two $$(A) $(MISSING)"},
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "NODEIP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
            {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a/b']"}}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "0"}}},
            {"name": "MEM", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
            {"name": "REQ", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}}},
            {"name": "A", "value": "again $(A)"},
        ], "resources": {"requests": {"cpu": "250m"}}}),
        &[],
    )
    .unwrap();
    let expected = [
        ("A", "again one"),
        ("B", "one-two $(A) $(MISSING)"),
        ("POD", "env"),
        ("IP", "10.88.3.79"),
        ("NODEIP", "10.240.0.2"),
        ("LABEL", "l"),
        ("CPU", "2"),
        ("MEM", "24006"),
        ("REQ", "250"),
    ];
    assert_eq!(env, expected.map(|(n, v)| (n.to_owned(), v.to_owned())));
}

#[test]
fn service_variables_as_recorded() {
    let env = run(
        serde_json::json!({"name": "main", "env": [{"name": "KUBERNETES_PORT", "value": "mine"}]}),
        &[kubernetes()],
    )
    .unwrap();
    let get = |name: &str| lookup(&env, name).unwrap();
    assert_eq!(env.len(), 8);
    assert_eq!(get("KUBERNETES_PORT"), "mine");
    assert_eq!(get("KUBERNETES_SERVICE_HOST"), "10.96.0.1");
    assert_eq!(get("KUBERNETES_SERVICE_PORT"), "443");
    assert_eq!(get("KUBERNETES_SERVICE_PORT_HTTPS"), "443");
    assert_eq!(get("KUBERNETES_PORT_443_TCP"), "tcp://10.96.0.1:443");
    assert_eq!(get("KUBERNETES_PORT_443_TCP_PROTO"), "tcp");
    assert_eq!(get("KUBERNETES_PORT_443_TCP_PORT"), "443");
    assert_eq!(get("KUBERNETES_PORT_443_TCP_ADDR"), "10.96.0.1");
}

#[test]
fn which_services_count() {
    let own = Service {
        namespace: "ns".into(),
        name: "my-db".into(),
        cluster_ip: "fd00::5".into(),
        ports: vec![ServicePort { port: 53, protocol: "UDP".into(), ..Default::default() }],
    };
    let headless = Service { cluster_ip: "None".into(), ..own.clone() };
    let other = Service { namespace: "else".into(), ..own.clone() };
    let all = [kubernetes(), headless, other, own];
    let names = |links| service_variables(&all, "ns", links);
    assert_eq!(names(false).len(), 8);
    assert!(names(true).contains(&("MY_DB_PORT_53_UDP".into(), "udp://[fd00::5]:53".into())));
    assert_eq!(names(true).len(), 15);
}

#[test]
fn what_needs_the_api_is_named() {
    let needs = |container| run(container, &[]).unwrap_err().to_string();
    assert_eq!(
        needs(serde_json::json!({"name": "c", "envFrom": [{"configMapRef": {"name": "cm"}}]})),
        "couldn't get configMap ns/cm, no kubeClient defined"
    );
    assert_eq!(
        needs(
            serde_json::json!({"name": "c", "env": [{"name": "S", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "k"}}}]})
        ),
        "couldn't get secret ns/sec, no kubeClient defined"
    );
    let mut p = pod(serde_json::json!({"name": "c"}));
    p.metadata.annotations = None;
    let none = Services::default();
    assert_eq!(environment(&p, &containers(&p)[0], &[], none, &facts()), Err(EnvError::ServicesNotRead));
    p.spec.as_mut().unwrap().enable_service_links = None;
    assert_eq!(environment(&p, &containers(&p)[0], &[], none, &facts()), Err(EnvError::NoServiceLinks));
}

#[test]
fn expansion() {
    let value = |name: &str| match name {
        "A" => Some("x"),
        "EMPTY" => Some(""),
        _ => None,
    };
    for (text, expected) in [
        ("$(A)", "x"),
        ("a$(A)b$(A)", "axbx"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$x"),
        ("$$$$(A)", "$$(A)"),
        ("$(NONE)", "$(NONE)"),
        ("$(A", "$(A"),
        ("$", "$"),
        ("$x", "$x"),
        ("a$", "a$"),
        ("$(EMPTY)!", "!"),
        ("$()", "$()"),
        ("ü$(A)ü", "üxü"),
    ] {
        assert_eq!(expand(text, value), expected, "{text}");
    }
    let p = pod(serde_json::json!({"name": "c", "command": ["$(A)"], "args": ["$$(A)", "$(B)"]}));
    let env = [("A".to_owned(), "1".to_owned())];
    assert_eq!(expand_command(&containers(&p)[0], &env), (vec!["1".into()], vec!["$(A)".into(), "$(B)".into()]));
}
