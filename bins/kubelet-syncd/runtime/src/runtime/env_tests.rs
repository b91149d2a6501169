//! Environments as recorded, expansion, and what needs the API server.

use std::sync::Arc;

use bulkhead_types::Quantity;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};

use super::*;
use kubelet_model::node_facts::HostFacts;
use kubelet_model::objects::named_objects::{Lookup, fetch};
use kubelet_model::objects::{NoObjects, ObjectError, ServicePort};
use kubelet_model::pod::spec::containers;

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

fn inputs<'a>(pod_ips: &'a [IpAddr], services: &'a [Service], objects: &'a NamedObjects) -> Inputs<'a> {
    static NO_FILES: EnvFiles = EnvFiles::new();
    Inputs { pod_ips, services: Services { known: services, synced: false }, objects, files: &NO_FILES }
}

fn run_with(
    container: serde_json::Value,
    services: &[Service],
    objects: &NamedObjects,
) -> Result<Environment, EnvError> {
    let p = pod(container);
    let ips = ["10.88.3.79".parse().unwrap()];
    environment(&p, &containers(&p)[0], inputs(&ips, services, objects), &facts())
}

fn run(container: serde_json::Value, services: &[Service]) -> Result<Environment, EnvError> {
    run_with(container, services, &NamedObjects::default())
}

fn texts(environment: Environment) -> Vec<(String, String)> {
    environment.into_iter().map(|(name, value)| (name, String::from_utf8(value).unwrap())).collect()
}

fn pairs<const N: usize>(list: [(&str, &str); N]) -> Vec<(String, String)> {
    list.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
}

/// The objects of the recordings, and one whose server does not answer.
fn recorded_objects() -> NamedObjects {
    let config_map = |data: serde_json::Value| -> Lookup<Arc<ConfigMap>> {
        Ok(Arc::new(serde_json::from_value(serde_json::json!({"data": data})).unwrap()))
    };
    let secret: Secret =
        serde_json::from_value(serde_json::json!({"data": {"user": "dQ==", "password": "cA==", "raw": "/wA="}}))
            .unwrap();
    let gone = LookupError::NotFound { kind: "configmap", name: "gone".into() };
    NamedObjects {
        config_maps: BTreeMap::from([
            ("cm".to_owned(), config_map(serde_json::json!({"k1": "v1", "k2": "v2"}))),
            ("other".to_owned(), config_map(serde_json::json!({"k2": "other", "A": "from"}))),
            ("gone".to_owned(), Err(gone)),
            ("away".to_owned(), Err(LookupError::Other(ObjectError::Away("no route".into())))),
        ]),
        secrets: BTreeMap::from([("sec".to_owned(), Ok(Arc::new(secret)))]),
        ..NamedObjects::default()
    }
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
    assert_eq!(texts(env), pairs(expected));
}

#[test]
fn objects_as_recorded() {
    let container = serde_json::json!({"name": "main",
        "env": [
            {"name": "A", "value": "one"},
            {"name": "B", "value": "$(A)-two $$(A) $(MISSING)"},
            {"name": "CM", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k1"}}},
            {"name": "SEC", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "password"}}},
        ],
        "envFrom": [{"prefix": "P_", "configMapRef": {"name": "cm"}}]});
    let env = run_with(container, &[kubernetes()], &recorded_objects()).unwrap();
    let expected = pairs([
        ("P_k1", "v1"),
        ("P_k2", "v2"),
        ("A", "one"),
        ("B", "one-two $(A) $(MISSING)"),
        ("CM", "v1"),
        ("SEC", "p"),
        ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
        ("KUBERNETES_SERVICE_PORT", "443"),
        ("KUBERNETES_SERVICE_PORT_HTTPS", "443"),
        ("KUBERNETES_PORT", "tcp://10.96.0.1:443"),
        ("KUBERNETES_PORT_443_TCP", "tcp://10.96.0.1:443"),
        ("KUBERNETES_PORT_443_TCP_PROTO", "tcp"),
        ("KUBERNETES_PORT_443_TCP_PORT", "443"),
        ("KUBERNETES_PORT_443_TCP_ADDR", "10.96.0.1"),
    ]);
    assert_eq!(texts(env), expected);
}

#[test]
fn who_wins() {
    let env = run_with(
        serde_json::json!({"name": "main",
        "envFrom": [
            {"configMapRef": {"name": "cm"}},
            {"configMapRef": {"name": "gone", "optional": true}},
            {"configMapRef": {"name": "other"}},
            {"prefix": "S_", "secretRef": {"name": "sec"}},
        ],
        "env": [
            {"name": "k1", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "none", "optional": true}}},
            {"name": "k2", "valueFrom": {"configMapKeyRef": {"name": "gone", "key": "x", "optional": true}}},
            {"name": "new", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "none", "optional": true}}},
            {"name": "A", "value": "own, was $(A), raw $(S_raw)"},
        ]}),
        &[],
        &recorded_objects(),
    )
    .unwrap();
    let expected: Vec<(String, Vec<u8>)> = [
        ("k1", &b"v1"[..]),
        // The later of two sources, and what is optional and absent takes nothing away.
        ("k2", b"other"),
        ("A", b"own, was from, raw \xff\x00"),
        ("S_password", b"p"),
        ("S_raw", b"\xff\x00"),
        ("S_user", b"u"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_vec()))
    .to_vec();
    assert_eq!(env.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn what_is_missing_is_named() {
    let error = |container| run_with(container, &[], &recorded_objects()).unwrap_err();
    let key = |kind: &str, name: &str, key: &str| serde_json::json!({"name": "c", "env": [{"name": "V", "valueFrom": {kind: {"name": name, "key": key}}}]});
    for (container, text, transient) in [
        (key("configMapKeyRef", "gone", "k"), "configmap \"gone\" not found", false),
        (key("configMapKeyRef", "cm", "none"), "couldn't find key none in ConfigMap ns/cm", false),
        (key("secretKeyRef", "sec", "none"), "couldn't find key none in Secret ns/sec", false),
        (key("configMapKeyRef", "away", "k"), "no route", true),
        (
            serde_json::json!({"name": "c", "envFrom": [{"configMapRef": {"name": "gone"}}]}),
            "configmap \"gone\" not found",
            false,
        ),
        // Optional is for what is known not to exist.
        (
            serde_json::json!({"name": "c", "envFrom": [{"configMapRef": {"name": "away", "optional": true}}]}),
            "no route",
            true,
        ),
    ] {
        let error = error(container);
        assert_eq!((error.to_string().as_str(), error.is_transient()), (text, transient));
    }
}

#[test]
fn variables_from_files() {
    let key = |name: &str, key: &str, optional: bool| {
        serde_json::json!({"name": name, "valueFrom":
            {"fileKeyRef": {"volumeName": "v", "path": "env", "key": key, "optional": optional}}})
    };
    let name = ("v".to_owned(), "env".to_owned());
    let run = |env: serde_json::Value, file: Result<&str, EnvFileError>, gate: bool| {
        let p = pod(serde_json::json!({"name": "c", "env": env}));
        let wanted = ["K", "NONE"].map(str::to_owned).into();
        let file = file.map(|text| env_files::EnvFile::read("/v/env".into(), text.as_bytes(), &wanted));
        let (files, objects) = (EnvFiles::from([(name.clone(), file)]), NamedObjects::default());
        let inputs = Inputs { files: &files, ..inputs(&[], &[], &objects) };
        let facts = NodeFacts { env_files: gate, ..facts() };
        environment(&p, &containers(&p)[0], inputs, &facts)
    };
    let env = || {
        serde_json::json!([
            {"name": "B", "value": "literal"}, {"name": "C", "value": "kept"},
            key("A", "K", false), key("B", "K", true), key("C", "NONE", true), key("D", "NONE", true),
            {"name": "AFTER", "value": "$(A) $(D)"},
        ])
    };
    let pairs = |list: &[(&str, &str)]| list.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect::<Vec<_>>();
    assert_eq!(
        texts(run(env(), Ok("K='$(B)'"), true).unwrap()),
        // What is read is not expanded.
        pairs(&[("B", "$(B)"), ("C", "kept"), ("A", "$(B)"), ("AFTER", "$(B) $(D)")])
    );
    let off = pairs(&[("B", ""), ("C", ""), ("A", ""), ("D", ""), ("AFTER", " ")]);
    assert_eq!(texts(run(env(), Ok("K='x'"), false).unwrap()), off, "without the gate upstream sets them empty");
    for (file, text, transient) in [
        (Ok("X='x'"), "environment variable key \"K\" not found in file \"/v/env\"", false),
        (Ok("nonsense"), "couldn't parse env file", false),
        (Err(EnvFileError::NoVolume("v".into())), "cannot find the volume \"v\" referenced by FileKeyRef", false),
        (Err(EnvFileError::Away("volnetd restarts".into())), "volnetd restarts", true),
    ] {
        let error = run(serde_json::json!([key("A", "K", false)]), file, true).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.is_transient()), (text, transient));
    }
    let container: Container = serde_json::from_value(serde_json::json!({"name": "c", "env": env()})).unwrap();
    let keys = ["K", "NONE"].map(str::to_owned).into();
    assert_eq!(env_files::wanted(&container), [(name, keys)].into());
}

#[test]
fn only_what_counts_is_asked_for() {
    let container: Container = serde_json::from_value(serde_json::json!({"name": "c",
    "envFrom": [{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "b"}}],
    "env": [
        {"name": "1", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
        {"name": "2", "valueFrom": {"secretKeyRef": {"name": "b", "key": "k"}}},
        {"name": "3", "value": "x", "valueFrom": {"secretKeyRef": {"name": "unused", "key": "k"}}},
    ]}))
    .unwrap();
    let wanted = wanted(&container);
    assert_eq!(wanted.config_maps.into_iter().collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!(wanted.secrets.into_iter().collect::<Vec<_>>(), ["b"]);
}

#[test]
fn service_variables_as_recorded() {
    let env = run(
        serde_json::json!({"name": "main", "env": [{"name": "KUBERNETES_PORT", "value": "mine"}]}),
        &[kubernetes()],
    )
    .unwrap();
    let get = |name: &str| std::str::from_utf8(&env[name]).unwrap();
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
    let names = |links| service_variables(&all, "ns", links).unwrap().finish();
    assert_eq!(names(false).len(), 8);
    assert!(names(true)["MY_DB_PORT_53_UDP"] == b"udp://[fd00::5]:53");
    assert_eq!(names(true).len(), 15);
}

#[tokio::test]
async fn what_needs_the_api_is_named() {
    let needs = async |container: serde_json::Value| {
        let objects = NoObjects::new("node-a", BTreeMap::new());
        let wanted = wanted(&serde_json::from_value(container.clone()).unwrap());
        run_with(container, &[], &fetch(&objects, "ns", wanted).await).unwrap_err().to_string()
    };
    assert_eq!(
        needs(serde_json::json!({"name": "c", "envFrom": [{"configMapRef": {"name": "cm"}}]})).await,
        "couldn't get configMap ns/cm, no kubeClient defined"
    );
    assert_eq!(
        needs(
            serde_json::json!({"name": "c", "env": [{"name": "S", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "k"}}}]})
        )
        .await,
        "couldn't get secret ns/sec, no kubeClient defined"
    );
    let mut p = pod(serde_json::json!({"name": "c"}));
    p.metadata.annotations = None;
    let objects = NamedObjects::default();
    let none = inputs(&[], &[], &objects);
    assert_eq!(environment(&p, &containers(&p)[0], none, &facts()), Err(EnvError::ServicesNotRead));
    p.spec.as_mut().unwrap().enable_service_links = None;
    assert_eq!(environment(&p, &containers(&p)[0], none, &facts()), Err(EnvError::NoServiceLinks));
}

#[test]
fn expansion() {
    let value = |name: &str| match name {
        "A" => Some(&b"x"[..]),
        "EMPTY" => Some(&b""[..]),
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
        assert_eq!(expand(text, 100, value), Ok(expected.into()), "{text}");
    }
    let p = pod(serde_json::json!({"name": "c", "command": ["$(A)"], "args": ["$$(A)", "$(B)"]}));
    let env = [("A".to_owned(), b"1".to_vec())].into();
    let expanded = (vec!["1".to_owned()], vec!["$(A)".to_owned(), "$(B)".to_owned()]);
    assert_eq!(expand_command(&containers(&p)[0], &env), Ok(expanded));
    let bytes = [("A".to_owned(), vec![0xff])].into();
    assert_eq!(expand_command(&containers(&p)[0], &bytes), Err(EnvError::NotText("$(A)".into())));
}

/// Objects with one configMap, `big`.
fn big(data: impl IntoIterator<Item = (String, String)>) -> NamedObjects {
    let map = ConfigMap { data: Some(data.into_iter().collect()), ..ConfigMap::default() };
    NamedObjects { config_maps: [("big".to_owned(), Ok(Arc::new(map)))].into(), ..NamedObjects::default() }
}

fn too_long(what: &str) -> EnvError {
    EnvError::TooLong(ArgumentsTooLong::Passed(what.to_owned()))
}

#[test]
fn references_to_references_end_where_no_kernel_takes_more() {
    let level =
        |index: i32| serde_json::json!({"name": format!("V{index}"), "value": format!("$(V{})", index - 1).repeat(20)});
    let env: Vec<_> = std::iter::once(serde_json::json!({"name": "V0", "value": "x".repeat(1000)}))
        .chain((1..=8).map(level))
        .collect();
    let container = |levels: usize| serde_json::json!({"name": "c", "env": env[..=levels].to_vec()});
    // 1000, 20,000 and 400,000 bytes.
    assert_eq!(run(container(2), &[]).unwrap()["V2"].len(), 400_000);
    assert_eq!(run(container(8), &[]), Err(too_long("variable \"V3\"")));
}

#[test]
fn one_large_value_under_many_names_ends_where_no_kernel_takes_more() {
    let objects = big([("k".to_owned(), "x".repeat(1 << 20))]);
    let key = serde_json::json!({"configMapKeyRef": {"name": "big", "key": "k"}});
    let of = |number: usize, same: bool| {
        let name = |index| if same { "SAME".to_owned() } else { format!("V{index}") };
        let env: Vec<_> = (0..number).map(|index| serde_json::json!({"name": name(index), "valueFrom": key})).collect();
        run_with(serde_json::json!({"name": "c", "env": env}), &[], &objects).map(|env| env.len())
    };
    assert_eq!(of(5, false), Ok(5));
    assert_eq!(of(10_000, false), Err(too_long("variable \"V5\"")));
    assert_eq!(of(20, true), Ok(1));
    assert_eq!(of(10_000, true), Err(EnvError::TooLong(ArgumentsTooLong::Written("variable \"SAME\"".into()))));
}

#[test]
fn arguments_count_with_the_environment() {
    let of = |references: usize, value: usize| {
        let args = ["short".to_owned(), "$(V)".repeat(references)];
        let p = pod(serde_json::json!({"name": "c", "command": ["$(V)"], "args": args}));
        let env = Environment::from([("V".to_owned(), vec![b'x'; value])]);
        let expanded = expand_command(&containers(&p)[0], &env);
        let large = is_large(&containers(&p)[0], &env);
        assert_eq!(large.as_ref().err(), expanded.as_ref().err());
        expanded.map(|(command, args)| (command[0].len(), args[1].len(), large.unwrap()))
    };
    assert_eq!(of(3, 10), Ok((10, 30, false)));
    // The variable itself, the command, and three of it in an argument.
    assert_eq!(of(3, 1 << 20), Ok((1 << 20, 3 << 20, true)));
    assert_eq!(of(4, 1 << 20), Err(too_long("args[1]")));
    assert_eq!(of(100_000, 1 << 20), Err(too_long("args[1]")));
    assert_eq!(of(0, 4 << 20), Err(too_long("command[0]")));
}

#[test]
fn very_many_variables_of_one_map() {
    let objects = big((0..100_000).map(|index| (format!("K{index}"), String::new())));
    let of = |prefixes: usize| {
        let from: Vec<_> = (0..prefixes)
            .map(|index| serde_json::json!({"prefix": format!("P{index}_"), "configMapRef": {"name": "big"}}))
            .collect();
        run_with(serde_json::json!({"name": "c", "envFrom": from}), &[kubernetes()], &objects)
    };
    let env = of(3).unwrap();
    assert_eq!(env.len(), 3 * 100_000 + 8);
    assert_eq!(env.get_index(100_000).map(|(name, _)| name.as_str()), Some("P1_K0"));
    assert!(
        matches!(of(1000), Err(EnvError::TooLong(ArgumentsTooLong::Passed(what))) if what.starts_with("variable \"P3_"))
    );
}

#[test]
fn very_many_services() {
    let service = |index| Service { namespace: "ns".into(), name: format!("service-{index}"), ..kubernetes() };
    let some: Vec<_> = (0..2000).map(service).collect();
    let container = || serde_json::json!({"name": "c", "env": [{"name": "A", "value": "$(SERVICE_1999_PORT)"}]});
    let env = run(container(), &some).unwrap();
    assert_eq!((env.len(), env["A"].as_slice()), (2000 * 8 + 1, &b"tcp://10.96.0.1:443"[..]));
    let many: Vec<_> = (0..30_000).map(service).collect();
    assert!(matches!(run(container(), &many), Err(EnvError::TooLong(ArgumentsTooLong::Passed(_)))));
    // `A_SERVICE_PORT` is of both, and the first counts.
    let both = ["a", "a-service"].map(|name| Service { namespace: "ns".into(), name: name.into(), ..kubernetes() });
    assert_eq!(run(serde_json::json!({"name": "c"}), &both).unwrap()["A_SERVICE_PORT"], b"443");
}

proptest::proptest! {
    /// Whatever is declared twice: the last `env` entry wins, else the last `envFrom`, else the service variable; each
    /// name is there once.
    #[test]
    fn precedence(from_first: [bool; 4], from_second: [bool; 4], declared: [bool; 4], linked: bool) {
        let names = ["W", "X", "Y", "DB_SERVICE_HOST"];
        let map = |chosen: [bool; 4], value: &str| -> Lookup<Arc<ConfigMap>> {
            let data = names.iter().zip(chosen).filter(|(_, on)| *on).map(|(n, _)| ((*n).to_owned(), value.to_owned()));
            Ok(Arc::new(ConfigMap { data: Some(data.collect()), ..Default::default() }))
        };
        let objects = NamedObjects {
            config_maps: BTreeMap::from([
                ("a".to_owned(), map(from_first, "first")), ("b".to_owned(), map(from_second, "second"))]),
            ..NamedObjects::default()
        };
        let env: Vec<_> = names.iter().zip(declared).filter(|(_, on)| *on)
            .map(|(n, _)| serde_json::json!({"name": n, "value": "declared"})).collect();
        let container = serde_json::json!({"name": "c", "env": env, "envFrom": [
            {"configMapRef": {"name": "a"}}, {"configMapRef": {"name": "b"}}]});
        let db = Service { namespace: "ns".into(), name: "db".into(), cluster_ip: "10.0.0.9".into(), ports: vec![] };
        let services = if linked { vec![db] } else { vec![] };
        let got = run_with(container, &services, &objects).unwrap();
        for (index, name) in names.iter().enumerate() {
            let values: Vec<&[u8]> =
                got.iter().filter(|(n, _)| n == name).map(|(_, value)| value.as_slice()).collect();
            let expected = match (declared[index], from_second[index], from_first[index]) {
                (true, _, _) => Some(&b"declared"[..]),
                (_, true, _) => Some(&b"second"[..]),
                (_, _, true) => Some(&b"first"[..]),
                _ if linked && *name == "DB_SERVICE_HOST" => Some(&b"10.0.0.9"[..]),
                _ => None,
            };
            proptest::prop_assert_eq!(values, expected.into_iter().collect::<Vec<_>>());
        }
    }
}
