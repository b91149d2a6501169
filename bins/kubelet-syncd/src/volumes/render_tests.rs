//! Files of volumes: those of the recorded pods, what is missing, and that no file is ever outside.

use std::sync::Arc;

use bulkhead_types::Quantity;
use k8s_openapi::ByteString;
use kubelet_model::v1::Volume;

use super::*;
use kubelet_model::node_facts::HostFacts;
use kubelet_model::objects::named_objects::{Lookup, ObjectReferences};
use kubelet_model::objects::{ObjectError, Token};

fn pod_with(spec: serde_json::Value) -> Pod {
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": "projected", "namespace": "golden", "uid": "u-1", "labels": {"app": "projected", "x": "y"}},
        "spec": spec,
    }))
    .unwrap()
}

fn plain() -> Pod {
    pod_with(serde_json::json!({"serviceAccountName": "default", "containers": [{"name": "main",
        "resources": {"requests": {"cpu": "250m"}}, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}))
}

fn facts() -> NodeFacts {
    let mut facts = NodeFacts::new(HostFacts::default());
    facts.allocatable.insert("memory".into(), Quantity::parse("4Gi").unwrap());
    facts
}

fn config_map(data: serde_json::Value) -> Lookup<Arc<ConfigMap>> {
    Ok(Arc::new(serde_json::from_value(data).unwrap()))
}

/// Every token is `token of <audience>`, other than those of the service account `nobody`.
fn objects_for(content: &Content) -> NamedObjects {
    let mut wanted = ObjectReferences::default();
    content.add_wanted(&mut wanted);
    let mut objects = NamedObjects::default();
    for name in wanted.config_maps {
        let got = match name.as_str() {
            "cm" => config_map(serde_json::json!({"data": {"k1": "v1", "k2": "v2"}})),
            "binary" => config_map(serde_json::json!({"data": {"text": "t"}, "binaryData": {"raw": "/wA="}})),
            "overlap" => config_map(serde_json::json!({"data": {"k2": "over", "user": "over"}})),
            "away" => Err(LookupError::Other(ObjectError::Away("no route".into()))),
            _ => Err(LookupError::NotFound { kind: "configmap", name: name.clone() }),
        };
        objects.config_maps.insert(name, got);
    }
    for name in wanted.secrets {
        let data = [("user", "u"), ("password", "p")].map(|(k, v)| (k.to_owned(), ByteString(v.into())));
        let got = match name.as_str() {
            "sec" => Ok(Arc::new(Secret { data: Some(data.into()), ..Default::default() })),
            _ => Err(LookupError::NotFound { kind: "secret", name: name.clone() }),
        };
        objects.secrets.insert(name, got);
    }
    for token in wanted.tokens {
        let text = format!("token of {}", token.audiences.join(","));
        let got = match token.service_account.as_str() {
            "nobody" => Err(LookupError::NotFound { kind: "serviceaccount", name: "nobody".into() }),
            _ => Ok(Token { token: text, expires: jiff::Timestamp::MAX, renew: jiff::Timestamp::MAX }),
        };
        objects.tokens.insert(token, got);
    }
    objects
}

fn try_volume(pod: &Pod, volume: serde_json::Value) -> Result<Vec<VolumeFile>, RenderError> {
    let mut volume = volume;
    volume["name"] = "v".into();
    let volume: Volume = serde_json::from_value(volume).unwrap();
    let content = Content::of(pod, &volume, 1 << 20).unwrap();
    files(&content, pod, &objects_for(&content))
}

/// As they are sent.
fn files(content: &Content, pod: &Pod, objects: &NamedObjects) -> Result<Vec<VolumeFile>, RenderError> {
    let bytes = render(content, pod, objects, &facts())?.bytes;
    let sent = VolumeContent::decode(&*bytes).unwrap();
    assert!(sent.encode_to_vec() == bytes && bytes.len() <= MAX_CONTENT_BYTES);
    Ok(sent.files)
}

/// Path, contents, mode and owner of each file.
fn volume(pod: &Pod, volume: serde_json::Value) -> Vec<(String, String, u32, Option<i64>)> {
    let files = try_volume(pod, volume).unwrap();
    files.into_iter().map(|f| (f.path, String::from_utf8_lossy(&f.data).into_owned(), f.mode, f.user)).collect()
}

fn file(path: &str, text: &str, mode: u32) -> (String, String, u32, Option<i64>) {
    (path.to_owned(), text.to_owned(), mode, None)
}

#[test]
fn one_object() {
    let shown = volume(
        &plain(),
        serde_json::json!({"configMap": {"name": "cm", "items": [{"key": "k1", "path": "a/b/k1"}], "defaultMode": 416}}),
    );
    assert_eq!(shown, [file("a/b/k1", "v1", 0o640)]);
    let shown = volume(&plain(), serde_json::json!({"secret": {"secretName": "sec", "defaultMode": 420}}));
    assert_eq!(shown, [file("password", "p", 0o644), file("user", "u", 0o644)]);
    let item = serde_json::json!([{"key": "user", "path": "x", "mode": 256}, {"key": "user", "path": "./y//z"}]);
    let shown =
        volume(&plain(), serde_json::json!({"secret": {"secretName": "sec", "items": item, "defaultMode": 420}}));
    assert_eq!(shown, [file("x", "u", 0o400), file("y/z", "u", 0o644)]);
    let raw = try_volume(&plain(), serde_json::json!({"configMap": {"name": "binary", "defaultMode": 420}})).unwrap();
    assert_eq!((raw[0].path.as_str(), &raw[0].data[..]), ("raw", &[0xff, 0][..]));
    assert_eq!((raw[1].path.as_str(), &raw[1].data[..]), ("text", &b"t"[..]));
}

#[test]
fn projected_as_recorded() {
    let sources = serde_json::json!([
        {"configMap": {"name": "cm"}},
        {"secret": {"name": "sec"}},
        {"downwardAPI": {"items": [
            {"path": "labels", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.labels"}},
            {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "requests.cpu", "divisor": "0"}}]}},
        {"serviceAccountToken": {"audience": "x", "expirationSeconds": 3600, "path": "token"}}]);
    let shown = volume(&plain(), serde_json::json!({"projected": {"sources": sources, "defaultMode": 420}}));
    let expected = [
        file("cpu", "1", 0o644),
        file("k1", "v1", 0o644),
        file("k2", "v2", 0o644),
        file("labels", "app=\"projected\"\nx=\"y\"", 0o644),
        file("password", "p", 0o644),
        file("token", "token of x", 0o644),
        file("user", "u", 0o644),
    ];
    assert_eq!(shown, expected);
}

#[test]
fn later_sources_win() {
    let sources = |list: &[&str]| {
        let list: Vec<_> = list.iter().map(|name| serde_json::json!({"configMap": {"name": name}})).collect();
        serde_json::json!({"projected": {"sources": list, "defaultMode": 420}})
    };
    let k2 = |shown: Vec<(String, String, u32, Option<i64>)>| shown.into_iter().find(|f| f.0 == "k2").unwrap().1;
    assert_eq!(k2(volume(&plain(), sources(&["cm", "overlap"]))), "over");
    assert_eq!(k2(volume(&plain(), sources(&["overlap", "cm"]))), "v2");
}

#[test]
fn whose_token_it_is() {
    let token = serde_json::json!({"projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"path": "t"}}, {"configMap": {"name": "cm", "items": [{"key": "k1", "path": "k"}]}}]}});
    let of = |security: serde_json::Value| {
        let spec = serde_json::json!({"securityContext": security, "containers": [{"name": "a"}]});
        volume(&pod_with(spec), token.clone())
    };
    let plain = ("k".to_owned(), "v1".to_owned(), 0o644, None);
    let with = |mode, user| [plain.clone(), ("t".to_owned(), "token of ".to_owned(), mode, user)];
    assert_eq!(of(serde_json::json!({})), with(0o644, None));
    assert_eq!(of(serde_json::json!({"runAsUser": 1001})), with(0o600, Some(1001)));
    assert_eq!(of(serde_json::json!({"fsGroup": 7})), with(0o600, None));
}

#[test]
fn tokens_are_asked_for_by_pod() {
    let token = serde_json::json!({"name": "v", "projected": {"sources": [
        {"serviceAccountToken": {"path": "t", "audience": "vault", "expirationSeconds": 600}},
        {"serviceAccountToken": {"path": "u"}}]}});
    let content = Content::of(&plain(), &serde_json::from_value(token).unwrap(), 0).unwrap();
    let mut wanted = ObjectReferences::default();
    content.add_wanted(&mut wanted);
    let expected = |audiences: &[&str], expiration_seconds| kubelet_model::objects::TokenWanted {
        namespace: "golden".into(),
        service_account: "default".into(),
        service_account_uid: None,
        audiences: audiences.iter().map(|a| (*a).to_owned()).collect(),
        expiration_seconds,
        pod_name: "projected".into(),
        pod_uid: "u-1".into(),
    };
    let wanted: Vec<_> = wanted.tokens.into_iter().collect();
    assert_eq!(wanted, [expected(&[], 3600), expected(&["vault"], 600)]);
}

#[test]
fn what_is_missing_is_named() {
    let config = |extra: serde_json::Value| {
        let mut source = serde_json::json!({"name": "cm", "defaultMode": 420});
        for (key, value) in extra.as_object().unwrap() {
            source[key] = value.clone();
        }
        serde_json::json!({"configMap": source})
    };
    let bad_item = serde_json::json!([{"key": "k1", "path": "a"}, {"key": "z", "path": "b"}]);
    let secret = |name: &str| serde_json::json!({"secret": {"secretName": name, "items": [{"key": "z", "path": "b"}], "defaultMode": 420}});
    let projected =
        |sources: serde_json::Value| serde_json::json!({"projected": {"sources": sources, "defaultMode": 420}});
    for (volume, text, transient) in [
        (config(serde_json::json!({"name": "gone"})), "configmap \"gone\" not found", false),
        (config(serde_json::json!({"name": "away", "optional": true})), "no route", true),
        (config(serde_json::json!({"items": bad_item})), "configmap references non-existent config key: z", false),
        (
            config(serde_json::json!({"defaultMode": null})),
            "no defaultMode used, not even the default value for it",
            false,
        ),
        (secret("gone"), "secret \"gone\" not found", false),
        (secret("sec"), "references non-existent secret key: z", false),
        (
            config(serde_json::json!({"items": [{"key": "k1", "path": "../a"}]})),
            "invalid path: must not contain '..': ../a",
            false,
        ),
        (
            config(serde_json::json!({"items": [{"key": "k1", "path": "a"}, {"key": "k2", "path": "a/b/c"}]})),
            "\"a\" would be a file and a folder",
            false,
        ),
        (
            projected(serde_json::json!([{"configMap": {"name": "gone"}}, {"secret": {"name": "lost"}},
                {"configMap": {"name": "gone"}}, {"configMap": {"name": "cm"}}])),
            "[configmap \"gone\" not found, secret \"lost\" not found]",
            false,
        ),
        (
            projected(serde_json::json!([{"configMap": {"name": "away"}}, {"secret": {"name": "lost"}}])),
            "[no route, secret \"lost\" not found]",
            false,
        ),
        (
            projected(serde_json::json!([{"clusterTrustBundle": {"name": "b", "path": "p"}}])),
            "clustertrustbundle \"TrustBundleWanted { anchors: Named(\\\"b\\\"), optional: false }\" has not been asked for",
            true,
        ),
        (
            projected(serde_json::json!([{"downwardAPI": {"items": [
                {"path": "ip", "fieldRef": {"fieldPath": "status.podIP"}}]}}])),
            "unsupported fieldPath: status.podIP",
            false,
        ),
    ] {
        let error = try_volume(&plain(), volume).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.is_transient()), (text, transient));
    }
}

#[test]
fn what_is_optional_may_be_missing() {
    for source in [
        serde_json::json!({"configMap": {"name": "gone", "optional": true, "defaultMode": 420}}),
        serde_json::json!({"secret": {"secretName": "gone", "optional": true, "defaultMode": 420}}),
        serde_json::json!({"projected": {"defaultMode": 420, "sources": [{"secret": {"name": "gone", "optional": true}}]}}),
    ] {
        assert_eq!(volume(&plain(), source), []);
    }
    let items = serde_json::json!([{"key": "z", "path": "b"}, {"key": "k1", "path": "a"}]);
    let some = serde_json::json!({"configMap": {"name": "cm", "optional": true, "items": items, "defaultMode": 420}});
    assert_eq!(volume(&plain(), some), [file("a", "v1", 0o644)]);
}

#[test]
fn the_same_is_the_same_and_secrets_are_not_printed() {
    let of = |pod: &Pod| {
        let volume: Volume = serde_json::from_value(serde_json::json!({"name": "v", "projected": {"defaultMode": 420,
            "sources": [{"secret": {"name": "sec"}}, {"downwardAPI": {"items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}]}}))
        .unwrap();
        let content = Content::of(pod, &volume, 0).unwrap();
        render(&content, pod, &objects_for(&content), &facts()).unwrap()
    };
    let mut pod = plain();
    let before = of(&pod);
    pod.metadata.resource_version = Some("7".into());
    assert_eq!(of(&pod), before);
    pod.metadata.labels.as_mut().unwrap().insert("new".into(), "1".into());
    assert_ne!(of(&pod).hash, before.hash);
    let content = VolumeContent::decode(&*before.bytes).unwrap();
    assert_eq!(content.files.len(), 3);
    assert!(!format!("{before:?}").contains("password"));
}

/// What comes of a projected volume with one source after another, where the configMap `big` has a key `k` of so many bytes.
fn projected_of(sources: &[serde_json::Value], bytes: usize) -> Result<Vec<VolumeFile>, RenderError> {
    let mut objects = NamedObjects::default();
    objects.config_maps.insert("big".into(), config_map(serde_json::json!({"data": {"k": "x".repeat(bytes)}})));
    let keys: serde_json::Map<_, _> = (0..15_000).map(|index| (index.to_string(), "".into())).collect();
    objects.config_maps.insert("many".into(), config_map(serde_json::json!({"data": keys})));
    let volume = serde_json::json!({"name": "v", "projected": {"defaultMode": 420, "sources": sources}});
    let mut pod = plain();
    pod.metadata.annotations = Some([("a".to_owned(), "x".repeat(250_000))].into());
    let content = Content::of(&pod, &serde_json::from_value(volume).unwrap(), 0).unwrap();
    files(&content, &pod, &objects)
}

#[test]
fn one_large_key_in_many_files_ends_where_volnetd_takes_no_more() {
    let items = |number: usize| -> Vec<_> {
        (0..number).map(|index| serde_json::json!({"key": "k", "path": index.to_string()})).collect()
    };
    let of = |number, bytes| {
        let items = items(number);
        projected_of(&[serde_json::json!({"configMap": {"name": "big", "items": items}})], bytes).map(|f| f.len())
    };
    assert_eq!(of(15, 1 << 20), Ok(15));
    // What is around the data counts as well.
    assert_eq!(of(16, 1 << 20), Err(RenderError::TooLarge("15".into())));
    assert_eq!(of(16, (1 << 20) - 3), Err(RenderError::TooLarge("9".into())));
    assert_eq!(of(16, (1 << 20) - 20), Ok(16));
    assert_eq!(of(5000, 1 << 20), Err(RenderError::TooLarge("15".into())));
    assert_eq!(of(MAX_CONTENT_FILES, 1), Ok(MAX_CONTENT_FILES));
    assert_eq!(of(MAX_CONTENT_FILES + 1, 1), Err(RenderError::TooManyFiles(MAX_CONTENT_FILES.to_string())));
    assert_eq!(
        RenderError::TooLarge("a".into()).to_string(),
        "with \"a\" the volume's files have more than 16777216 bytes"
    );
}

#[test]
fn the_pods_annotations_in_many_files_end_where_volnetd_takes_no_more() {
    let item = |path: String| serde_json::json!({"path": path, "fieldRef": {"fieldPath": "metadata.annotations"}});
    let of = |items: Vec<_>| {
        projected_of(&[serde_json::json!({"downwardAPI": {"items": items}})], 1).map(|files| files.len())
    };
    assert_eq!(of((0..60).map(|index| item(index.to_string())).collect()), Ok(60));
    assert_eq!(of((0..5000).map(|index| item(index.to_string())).collect()), Err(RenderError::TooLarge("67".into())));
    assert_eq!(of(vec![item("a".into()); 100]), Ok(1));
    assert_eq!(of(vec![item("a".into()); 5000]), Err(RenderError::ReplacedTooOften("a".into())));
}

#[test]
fn a_source_is_not_repeated_without_bound() {
    let source = |name: &str| serde_json::json!({"configMap": {"name": name}});
    let of = |name: &str, number: usize, bytes: usize| {
        projected_of(&vec![source(name); number], bytes).map(|files| files.len())
    };
    assert_eq!(of("big", 100, 1 << 20), Ok(1));
    assert_eq!(of("big", 5000, 1 << 20), Err(RenderError::ReplacedTooOften("k".into())));
    assert_eq!(of("many", 10, 1), Ok(15_000));
    assert!(matches!(of("many", 5000, 1), Err(RenderError::ReplacedTooOften(_))));
}

proptest::proptest! {
    /// Whatever keys and paths say, a file is below the volume, and no two of them are in each other's way.
    #[test]
    fn nothing_escapes(
        keys in proptest::collection::btree_map("[a-b./]{0,6}", "[a-z]{0,3}", 0..6),
        paths in proptest::collection::vec("[a-b./]{0,8}", 0..4),
    ) {
        let all = serde_json::json!({"name": "v", "configMap": {"name": "x", "defaultMode": 420}});
        let items: Vec<_> = paths.iter().map(|p| serde_json::json!({"key": "k", "path": p})).collect();
        let some = serde_json::json!({"name": "v", "configMap": {"name": "y", "items": items, "defaultMode": 420}});
        let mut objects = NamedObjects::default();
        objects.config_maps.insert("x".into(), config_map(serde_json::json!({"data": keys})));
        objects.config_maps.insert("y".into(), config_map(serde_json::json!({"data": {"k": "v"}})));
        for volume in [all, some] {
            let content = Content::of(&plain(), &serde_json::from_value(volume).unwrap(), 0).unwrap();
            let Ok(files) = files(&content, &plain(), &objects) else { continue };
            for file in &files {
                proptest::prop_assert!(!file.path.starts_with('/') && !file.path.starts_with(".."));
                proptest::prop_assert!(file.path.split('/').all(|part| !matches!(part, "" | "." | "..")));
                proptest::prop_assert!(file.mode <= 0o777);
                let inside = format!("{}/", file.path);
                proptest::prop_assert!(files.iter().all(|other| !other.path.starts_with(&inside)));
            }
        }
    }

    /// Of projected sources the last that has a file gives it.
    #[test]
    fn overlaps(sources in proptest::collection::vec(proptest::collection::btree_map("[a-c]", "[a-z]{1,3}", 0..3), 0..5)) {
        let mut objects = NamedObjects::default();
        let mut list = Vec::new();
        for (index, data) in sources.iter().enumerate() {
            objects.config_maps.insert(index.to_string(), config_map(serde_json::json!({"data": data})));
            list.push(serde_json::json!({"configMap": {"name": index.to_string()}}));
        }
        let volume = serde_json::json!({"name": "v", "projected": {"sources": list, "defaultMode": 420}});
        let content = Content::of(&plain(), &serde_json::from_value(volume).unwrap(), 0).unwrap();
        let got: Vec<(String, Vec<u8>)> = files(&content, &plain(), &objects)
            .unwrap().into_iter().map(|f| (f.path, f.data)).collect();
        let mut expected = Vec::new();
        for name in ["a", "b", "c"] {
            if let Some(value) = sources.iter().rev().find_map(|data| data.get(name)) {
                expected.push((name.to_owned(), value.clone().into_bytes()));
            }
        }
        proptest::prop_assert_eq!(got, expected);
    }
}
