use serde_json::json;

use super::*;

const GOOD: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\nspec:\n  containers:\n  - name: c\n    image: i\n";

fn name_of(bytes: &[u8]) -> String {
    pod(bytes).unwrap().0.metadata.name.unwrap()
}

#[test]
fn takes() {
    let crlf = GOOD.replace('\n', "\r\n");
    let bom = format!("\u{feff}{GOOD}");
    let wide: Vec<u8> = [0xff, 0xfe].into_iter().chain(GOOD.encode_utf16().flat_map(u16::to_le_bytes)).collect();
    let json = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}).to_string();
    let tabbed_json = "{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"Pod\",\n\t\"metadata\": {\"name\": \"a\"}\n}";
    let leading = format!("# a comment\n\n---\n{GOOD}");
    let ended = format!("{GOOD}...\n");
    let unknown = format!("{GOOD}    surprise: 1\nmore: [1]\n");
    let no_newline = GOOD.trim_end();
    let flow = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i},]}}";
    let duplicate = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: b\n  name: a\n";
    let duplicate_json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b","name":"a"}}"#;
    let directive = format!("%YAML 1.1\n---\n{GOOD}");
    let nulls =
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels:\n  annotations: ~\nspec:\n  volumes: null\n";
    for (what, bytes) in [
        ("plain", GOOD.as_bytes()),
        ("crlf", crlf.as_bytes()),
        ("bom", bom.as_bytes()),
        ("utf-16", &wide),
        ("json", json.as_bytes()),
        ("json with tabs", tabbed_json.as_bytes()),
        ("leading marker", leading.as_bytes()),
        ("document end", ended.as_bytes()),
        ("unknown fields", unknown.as_bytes()),
        ("no newline at the end", no_newline.as_bytes()),
        ("flow with a trailing comma", flow.as_bytes()),
        ("equal keys, the last wins", duplicate.as_bytes()),
        ("equal keys in json", duplicate_json.as_bytes()),
        ("directive", directive.as_bytes()),
        ("nulls", nulls.as_bytes()),
    ] {
        let got = pod(bytes).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(got.0.metadata.name.as_deref(), Some("a"), "{what}");
        assert!(!got.1, "{what}");
    }
}

#[test]
fn of_several_documents_the_first_counts() {
    let two = format!("{GOOD}---\n{}", GOOD.replace("name: a", "name: b"));
    let (first, more) = pod(two.as_bytes()).unwrap();
    assert_eq!(first.metadata.name.as_deref(), Some("a"));
    assert!(more);
    let broken_second = format!("{GOOD}---\n\t{{[");
    assert_eq!(name_of(broken_second.as_bytes()), "a");
    let empty_rest = format!("{GOOD}---\n# nothing\n");
    assert!(!pod(empty_rest.as_bytes()).unwrap().1);
    assert_eq!(pod(format!("---\n---\n{GOOD}").as_bytes()).unwrap_err(), DecodeError::Empty);
}

#[test]
fn refuses() {
    let list = "apiVersion: v1\nkind: PodList\nitems: []\n";
    let other = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: a\n";
    let deep = format!("apiVersion: v1\nkind: Pod\nx: {}", "[".repeat(10_000));
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n\
                d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n\
                g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n";
    for (what, text, part) in [
        ("empty", "", "empty"),
        ("blank", " \n\n", "empty"),
        ("comment", "# x\n", "empty"),
        ("scalar", "hello", "mapping"),
        ("sequence", "- a\n", "mapping"),
        ("tab indentation", "apiVersion: v1\nkind: Pod\nmetadata:\n\tname: a\n", "neither YAML nor JSON"),
        ("unclosed flow", "{apiVersion: v1", "neither YAML nor JSON"),
        ("half json", "{\"apiVersion\": \"v1\", \"kind\": \"Po", "neither YAML nor JSON"),
        ("unclosed quote", "apiVersion: \"v1\nkind: Pod\n", "neither YAML nor JSON"),
        ("two json objects", "{\"a\":1}{\"a\":1}", "neither YAML nor JSON"),
        ("no kind", "apiVersion: v1\nmetadata:\n  name: a\n", "\"kind\" is missing"),
        ("no apiVersion", "kind: Pod\nmetadata:\n  name: a\n", "\"apiVersion\" is missing"),
        ("list in a file", list, "holds v1 PodList; a v1 Pod is needed"),
        ("other kind", other, "holds apps/v1 Deployment"),
        ("core group", "apiVersion: core/v1\nkind: Pod\n", "holds core/v1 Pod"),
        ("field names are case sensitive", "apiVersion: v1\nKind: Pod\n", "\"kind\" is missing"),
        (
            "number for text",
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: 1\n",
            "metadata.name: invalid type: integer",
        ),
        ("depth", &deep, "neither YAML nor JSON"),
        ("alias bomb", bomb, "neither YAML nor JSON"),
    ] {
        let error = pod(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(part), "{what}: {error}");
    }
    assert_eq!(pod(&[0xff, 0x00, 0xc3]).unwrap_err(), DecodeError::NotText);
    assert_eq!(pod(&vec![b'#'; MANIFEST_MAX_BYTES]).unwrap_err(), DecodeError::TooLarge);
}

/// `spec` below a good head.
fn with_container(lines: &str) -> Result<Pod, DecodeError> {
    pod(format!("{GOOD}{lines}").as_bytes()).map(|(pod, _)| pod)
}

#[test]
fn values_come_out_as_upstream_reads_them() {
    let errors = [
        ("    env:\n    - name: A\n      value: yes\n", "spec.containers[0].env[0].value: invalid type: boolean"),
        ("    env:\n    - name: A\n      value: 0644\n", "spec.containers[0].env[0].value: invalid type: integer"),
        ("    env:\n    - name: A\n      value: 1.5\n", "spec.containers[0].env[0].value: invalid type: floating"),
        ("    tty: 1\n", "spec.containers[0].tty: invalid type: integer"),
        ("    tty: \"true\"\n", "spec.containers[0].tty: invalid type: string"),
        (
            "    ports:\n    - containerPort: \"80\"\n",
            "spec.containers[0].ports[0].containerPort: invalid type: string",
        ),
        ("    ports:\n    - containerPort: 1.5\n", "spec.containers[0].ports[0].containerPort"),
        ("    ports:\n    - containerPort: 4294967296\n", "spec.containers[0].ports[0].containerPort"),
        ("    command: sh\n", "spec.containers[0].command: invalid type: string"),
        ("    resources:\n      limits:\n        cpu: a\n", "spec.containers[0].resources.limits[cpu]: \"a\": "),
        ("    resources:\n      limits:\n        cpu: \"\"\n", "spec.containers[0].resources.limits[cpu]"),
        ("    resources: []\n", "spec.containers[0].resources"),
    ];
    for (lines, part) in errors {
        let error = with_container(lines).unwrap_err().to_string();
        assert!(error.contains(part), "{lines}: {error}");
    }
    let taken = with_container(
        "    env:\n    - {name: A, value: \"yes\"}\n    - {name: B, value: '0644'}\n    - {name: C, value: 2001-01-01}\n    \
         tty: on\n    ports:\n    - containerPort: 1e3\n    resources:\n      limits:\n        cpu: 1\n        memory: 1024Ki\n      \
         requests: {cpu: 0.5}\n",
    )
    .unwrap();
    let container = &taken.spec.as_ref().unwrap().containers[0];
    let values: Vec<&str> = container.env.iter().flatten().filter_map(|e| e.value.as_deref()).collect();
    assert_eq!(values, ["yes", "0644", "2001-01-01"]);
    assert_eq!(container.tty, Some(true));
    assert_eq!(container.ports.as_ref().unwrap()[0].container_port, 1000);
    let resources = container.resources.as_ref().unwrap();
    let shown = |list: &Option<resources::ResourceList>, name: &str| list.as_ref().unwrap()[name].0.clone();
    assert_eq!(shown(&resources.limits, "cpu"), "1");
    assert_eq!(shown(&resources.limits, "memory"), "1Mi");
    assert_eq!(shown(&resources.requests, "cpu"), "500m");

    let octal = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels: {x: }\nspec:\n  containers: []\n  volumes:\n  \
                 - name: v\n    downwardAPI:\n      defaultMode: 0640\n";
    let (octal, _) = pod(octal.as_bytes()).unwrap();
    assert_eq!(octal.metadata.labels.unwrap()["x"], "");
    let volumes = octal.spec.unwrap().volumes.unwrap();
    assert_eq!(volumes[0].downward_api.as_ref().unwrap().default_mode, Some(0o640));
}

/// A dash too many makes a list of what is to be an object.
#[test]
fn lists_are_no_objects() {
    let head = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n";
    for (rest, message) in [
        ("spec: []\n", "spec: invalid type: sequence, expected PodSpec"),
        ("spec:\n  containers:\n  - - name: c\n", "spec.containers[0]: invalid type: sequence, expected Container"),
        (
            "spec:\n  containers: []\n  volumes:\n  - - name: v\n",
            "spec.volumes[0]: invalid type: sequence, expected Volume",
        ),
        ("spec: x\n", "spec: invalid type: string \"x\", expected PodSpec"),
    ] {
        assert_eq!(pod(format!("{head}{rest}").as_bytes()).unwrap_err().to_string(), message);
    }
    let list = "apiVersion: v1\nkind: PodList\nitems:\n- - metadata: {name: a}\n";
    let refused = document(list.as_bytes()).and_then(Document::into_pod_list).unwrap_err();
    assert_eq!(refused.to_string(), "items[0]: invalid type: sequence, expected Pod");
}

#[test]
fn anchors_and_merge_keys() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - &base\n    name: c\n    image: i\n    \
                imagePullPolicy: Never\n  - <<: *base\n    name: d\n";
    let (pod, _) = pod(text.as_bytes()).unwrap();
    let containers = pod.spec.unwrap().containers;
    assert_eq!(containers[1].name, "d");
    assert_eq!(containers[1].image_pull_policy.as_deref(), Some("Never"));
}

#[test]
fn lists() {
    let read = |text: &str| document(text.as_bytes()).and_then(Document::into_pod_list);
    let two = "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: a}\n- kind: Pod\n  metadata: {name: b}\n";
    assert_eq!(read(two).unwrap().len(), 2);
    assert_eq!(read("apiVersion: v1\nkind: PodList\n").unwrap().len(), 0);
    let bad = "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: a}\n- metadata: {name: 1}\n";
    assert!(read(bad).unwrap_err().to_string().starts_with("items[1].metadata.name: "));
    let generic = "apiVersion: v1\nkind: List\nitems: []\n";
    assert!(matches!(read(generic).unwrap_err(), DecodeError::WrongKind { .. }));
}

proptest::proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
        let _ = pod(&bytes);
    }

    #[test]
    fn no_cut_panics(at in 0usize..200, junk in "[\\x00-\\x7f]{0,8}") {
        let at = at.min(GOOD.len());
        let _ = pod(format!("{}{junk}{}", &GOOD[..at], &GOOD[at..]).as_bytes());
    }
}
