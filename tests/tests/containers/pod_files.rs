//! Files that containers get from the API server and volumes of their own: contents, modes, owners, changes, what is said
//! while something is missing, and what stays when processes of the node go and come back.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bulkhead_testkit::{LONG, eventually, mounts, processes};
use bulkhead_tests::joined::{Member, NODE, config_map, secret};
use bulkhead_tests::lab;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// Each file below a folder: mode, owner, group, and its text.
const SHOW: &str = "cd /v; for f in $(find . -follow -type f | grep -v '/\\.\\.' | sort); do \
                    echo \"$(stat -Lc '%n %a %u %g' $f) $(case $f in */raw) od -An -tx1 $f;; *) cat $f;; esac | tr '\\n' '|')\"; done";

fn mounted(volumes: &[(&str, Value)]) -> (Value, Value) {
    let all: Vec<Value> = volumes
        .iter()
        .map(|(name, source)| {
            let mut volume = source.clone();
            volume["name"] = json!(name);
            volume
        })
        .collect();
    let mounts: Vec<Value> =
        volumes.iter().map(|(name, _)| json!({"name": name, "mountPath": format!("/v/{name}")})).collect();
    (json!(all), json!(mounts))
}

/// A pod that shows the files of its volumes and ends.
fn shows(volumes: &[(&str, Value)], security: &Value) -> Value {
    let (volumes, mounts) = mounted(volumes);
    json!({"restartPolicy": "Never", "volumes": volumes, "securityContext": security, "containers": [
        {"name": "main", "command": ["sh", "-c", SHOW], "volumeMounts": mounts,
         "resources": {"limits": {"cpu": "1500m", "memory": "64Mi"}, "requests": {"cpu": "250m", "memory": "32Mi"}}},
        {"name": "other", "command": ["true"]}]})
}

/// Path to `mode user group text`.
fn files(output: &str) -> BTreeMap<&str, &str> {
    output.lines().filter_map(|line| line.trim_start_matches("./").split_once(' ')).collect()
}

fn differences(seen: &BTreeMap<&str, &str>, expected: &BTreeMap<&str, &str>) -> Result<()> {
    let differ: Vec<_> = expected
        .keys()
        .chain(seen.keys())
        .filter(|name| expected.get(*name) != seen.get(*name))
        .map(|name| format!("{name}: {:?} and not {:?}", seen.get(name), expected.get(name)))
        .collect();
    ensure!(differ.is_empty(), "{differ:#?}");
    Ok(())
}

fn cm(extra: Value) -> Value {
    source("configMap", "name", "cm", extra)
}

fn sec(extra: Value) -> Value {
    source("secret", "secretName", "sec", extra)
}

fn source(kind: &str, field: &str, name: &str, extra: Value) -> Value {
    let mut source = extra;
    source[field] = json!(name);
    json!({kind: source})
}

fn downward(extra: Value) -> Value {
    let mut source = extra;
    source["items"] = json!([
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}, "mode": 0o400},
        {"path": "notes", "fieldRef": {"fieldPath": "metadata.annotations"}},
        {"path": "cpu-limit", "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu"}},
        {"path": "memory-limit", "resourceFieldRef": {"containerName": "main", "resource": "limits.memory", "divisor": "1Mi"}},
        {"path": "cpu-request", "resourceFieldRef": {"containerName": "main", "resource": "requests.cpu", "divisor": "1m"}},
        {"path": "memory-request", "resourceFieldRef": {"containerName": "main", "resource": "requests.memory"}},
        {"path": "default-cpu", "resourceFieldRef": {"containerName": "other", "resource": "limits.cpu"}},
    ]);
    json!({"downwardAPI": source})
}

#[test]
fn contents_modes_and_owners_are_those_that_the_pod_asks_for() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let mut map = config_map("cm", &json!({"a": "A", "b": "B\nb\n"}));
    map["binaryData"] = json!({"raw": "/wAB"});
    let elsewhere = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "sec", "namespace": "other"},
        "stringData": {"key": "of another namespace"}});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}});
    let objects = [map, secret("sec", "Opaque", &json!({"key": "S"})), namespace, elsewhere];
    let member = Member::start(&lab, &objects, |node| node)?;
    let items = json!([{"key": "a", "path": "deep/er/a"}, {"key": "b", "path": "b", "mode": 0o640}]);
    let projected = json!({"projected": {"defaultMode": 0o440, "sources": [
        {"configMap": {"name": "cm", "items": [{"key": "a", "path": "a"}]}},
        {"secret": {"name": "sec", "items": [{"key": "key", "path": "in/key", "mode": 0o404}]}},
        {"downwardAPI": {"items": [{"path": "in/name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {"configMap": {"name": "none", "optional": true}},
        {"secret": {"name": "sec", "optional": true, "items": [{"key": "none", "path": "none"}]}},
    ]}});
    let volumes = [
        ("plain", cm(json!({}))),
        ("again", cm(json!({}))),
        ("mode", cm(json!({"defaultMode": 0o400}))),
        ("items", cm(json!({"items": items}))),
        ("none", source("configMap", "name", "none", json!({"optional": true}))),
        ("secret", sec(json!({}))),
        ("secret-mode", sec(json!({"defaultMode": 0o400}))),
        ("secret-items", sec(json!({"items": [{"key": "key", "path": "new/path", "mode": 0o600}]}))),
        ("down", downward(json!({}))),
        ("down-mode", downward(json!({"defaultMode": 0o444}))),
        ("all", projected),
        (
            "token",
            json!({"projected": {"sources": [{"serviceAccountToken": {"path": "token", "expirationSeconds": 700}}]}}),
        ),
    ];
    let metadata = |name: &str| json!({"name": name, "labels": {"app": name}, "annotations": {"b": "\"2\"", "a": "1"}});
    member.create_with(&metadata("root"), &shows(&volumes, &json!({})))?;
    member.create_with(&metadata("group"), &shows(&volumes, &json!({"runAsUser": 1000, "fsGroup": 1001})))?;
    let user_volumes = [volumes[0].clone(), volumes[11].clone()];
    member.create_with(&metadata("user"), &shows(&user_volumes, &json!({"runAsUser": 1000})))?;

    let node = member.cluster.wait_for("nodes", "", "alpha", "it is there", |_| true)?;
    let cores = node["status"]["allocatable"]["cpu"].as_str().context("no cores")?;
    let expected = |name: &str, group: &str| -> BTreeMap<String, String> {
        // What a group adds to modes: reading.
        let add = |mode: u32| if group == "0" { mode } else { mode | 0o440 };
        let mut expected = BTreeMap::new();
        let mut file = |path: String, mode: u32, text: &str| {
            expected.insert(path, format!("{:o} 0 {group} {text}", add(mode)));
        };
        for folder in ["plain", "again", "mode"] {
            let mode = if folder == "mode" { 0o400 } else { 0o644 };
            file(format!("{folder}/a"), mode, "A");
            file(format!("{folder}/b"), mode, "B|b|");
            file(format!("{folder}/raw"), mode, " ff 00 01|");
        }
        file("items/deep/er/a".into(), 0o644, "A");
        file("items/b".into(), 0o640, "B|b|");
        file("secret/key".into(), 0o644, "S");
        file("secret-mode/key".into(), 0o400, "S");
        file("secret-items/new/path".into(), 0o600, "S");
        for (folder, mode) in [("down", 0o644), ("down-mode", 0o444)] {
            file(format!("{folder}/name"), mode, name);
            file(format!("{folder}/labels"), 0o400, &format!("app=\"{name}\""));
            file(format!("{folder}/notes"), mode, "a=\"1\"|b=\"\\\"2\\\"\"");
            file(format!("{folder}/cpu-limit"), mode, "2");
            file(format!("{folder}/memory-limit"), mode, "64");
            file(format!("{folder}/cpu-request"), mode, "250");
            file(format!("{folder}/memory-request"), mode, "33554432");
            file(format!("{folder}/default-cpu"), mode, cores);
        }
        file("all/a".into(), 0o440, "A");
        file("all/in/key".into(), 0o404, "S");
        file("all/in/name".into(), 0o440, name);
        expected
    };
    for (name, group) in [("root", "0"), ("group", "1001")] {
        let output = member.output(name, "main")?;
        // Last come the annotations with which the node notes when it saw the pod, as upstream.
        let own = |line: &str| line.split("|kubernetes.io/config.seen=").next().unwrap_or_default().to_owned();
        let output = output.lines().map(own).collect::<Vec<_>>().join("\n");
        let mut seen = files(&output);
        let token = seen.remove("token/token").context("no token")?;
        let owner = if group == "0" { "644 0 0 " } else { "640 1000 1001 " };
        ensure!(token.starts_with(owner) && token.matches('.').count() == 2, "{token}");
        let expected = expected(name, group);
        let expected = expected.iter().map(|(path, file)| (path.as_str(), file.as_str()));
        differences(&seen, &expected.collect()).with_context(|| name.to_owned())?;
    }
    let output = member.output("user", "main")?;
    let seen = files(&output);
    ensure!(seen["plain/a"] == "644 0 0 A", "{seen:?}");
    ensure!(seen["token/token"].starts_with("600 1000 0 "), "{}", seen["token/token"]);
    member.node.finish()
}

#[test]
fn empty_dirs_have_the_mode_medium_and_size_that_was_asked_for() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let member = Member::start(&lab, &[], |node| node)?;
    let script = "for d in disk memory; do stat -c '%n %a %u' /v/$d; for m in 0644 0666 0777; do \
                  echo text > /v/$d/$(id -u)-$m; chmod $m /v/$d/$(id -u)-$m; stat -c '%n %a %u' /v/$d/$(id -u)-$m; \
                  done; done; df -k /v/memory | tail -1 | awk '{print $1, $2}'; touch /ro/x 2>/dev/null || echo read-only";
    let volumes =
        [("disk", json!({"emptyDir": {}})), ("memory", json!({"emptyDir": {"medium": "Memory", "sizeLimit": "10Mi"}}))];
    let (volumes, mut mounts) = mounted(&volumes);
    if let Some(list) = mounts.as_array_mut() {
        list.push(json!({"name": "disk", "mountPath": "/ro", "readOnly": true}));
    }
    let container = |name: &str, script: &str, user: u32| {
        json!({"name": name, "command": ["sh", "-c", script], "volumeMounts": mounts,
               "securityContext": {"runAsUser": user}})
    };
    let containers = json!([
        container("root", script, 0),
        container("user", script, 1001),
        container(
            "reader",
            "until [ -e /v/disk/0-0777 -a -e /v/memory/1001-0777 ]; do usleep 20000; done; \
                             cat /v/disk/0-0777 /v/memory/1001-0777",
            1002
        )
    ]);
    member.create("pod", &json!({"restartPolicy": "Never", "volumes": volumes, "containers": containers}))?;
    for (name, user) in [("root", 0), ("user", 1001)] {
        let output = member.output("pod", name)?;
        let mut expected = Vec::new();
        for folder in ["disk", "memory"] {
            // A tmpfs is sticky, as upstream leaves it.
            expected.push(format!("/v/{folder} {}777 0", if folder == "memory" { "1" } else { "" }));
            expected.extend(["644", "666", "777"].map(|mode| format!("/v/{folder}/{user}-0{mode} {mode} {user}")));
        }
        expected.extend(["tmpfs 10240".to_owned(), "read-only".to_owned()]);
        ensure!(output.lines().eq(&expected), "{name}: {output}");
    }
    ensure!(member.output("pod", "reader")? == "text\ntext");
    member.node.finish()
}

#[test]
fn files_follow_what_the_api_server_has_and_parts_of_volumes_stay() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let mut fixed = config_map("fixed", &json!({"k": "fixed"}));
    fixed["immutable"] = json!(true);
    let objects = [
        config_map("cm", &json!({"k": "one", "gone": "x"})),
        secret("sec", "Opaque", &json!({"k": "one"})),
        config_map("leaving", &json!({"k": "here"})),
        fixed,
    ];
    let member = Member::start(&lab, &objects, |node| node)?;
    let volumes = [
        ("cm", cm(json!({}))),
        ("sec", sec(json!({}))),
        ("late", source("configMap", "name", "late", json!({"optional": true}))),
        ("leaving", source("configMap", "name", "leaving", json!({"optional": true}))),
        ("must", source("configMap", "name", "leaving", json!({}))),
        ("fixed", source("configMap", "name", "fixed", json!({}))),
        (
            "down",
            json!({"downwardAPI": {"items": [
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
            {"path": "note", "fieldRef": {"fieldPath": "metadata.annotations['note']"}}]}}),
        ),
        (
            "all",
            json!({"projected": {"sources": [
            {"configMap": {"name": "cm", "items": [{"key": "k", "path": "dir/k"}]}},
            {"secret": {"name": "late", "optional": true}}]}}),
        ),
        ("work", json!({"emptyDir": {}})),
    ];
    let (volumes, mut mounts) = mounted(&volumes);
    if let Some(list) = mounts.as_array_mut() {
        list.push(json!({"name": "cm", "mountPath": "/part/file", "subPath": "k"}));
        list.push(json!({"name": "all", "mountPath": "/part/folder", "subPath": "dir"}));
        list.push(json!({"name": "sec", "mountPath": "/etc/inittab.part", "subPath": "k", "readOnly": true}));
        list.push(json!({"name": "down", "mountPath": "/etc/group", "subPath": "labels"}));
        list.push(json!({"name": "work", "mountPath": "/part/mine", "subPathExpr": "$(NAME)/$$x/`date`"}));
    }
    let spec = json!({"volumes": volumes, "containers": [{"name": "main", "volumeMounts": mounts,
        "env": [{"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}]});
    let metadata = json!({"name": "pod", "labels": {"l": "one"}, "annotations": {"note": "one"}});
    member.create_with(&metadata, &spec)?;
    member.wait_ready("pod")?;
    let shell = |script: &str| member.exec("pod", "main", &["sh", "-c", script]);
    let parts = "cat /part/file /etc/inittab.part /etc/group";
    let before = shell(parts)?;
    ensure!(before == "oneonel=\"one\"", "{before:?}");
    ensure!(shell("cat /part/folder/k")? == "one");
    ensure!(shell("echo kept > /part/mine/f; cat '/v/work/pod/$x/`date`/f'")? == "kept\n");
    for path in ["/v/cm/k", "/part/file", "/v/sec/k", "/v/down/note", "/v/all/dir/k", "/etc/inittab.part"] {
        let (code, said) = member.try_exec("pod", "main", &["sh", "-c", &format!("echo x > {path}")])?;
        ensure!(code != 0 && said.contains("Read-only file system"), "{path}: {code} {said}");
    }

    let begin = std::time::Instant::now();
    let follows = |command: &str, text: &str| member.wait_exec("pod", "main", &["sh", "-c", command], text);
    let changed = |what: &str| eprintln!("{what} after {:.2} s", begin.elapsed().as_secs_f64());
    member.cluster.patch("configmaps", "default", "cm", &json!({"data": {"k": "two", "gone": null, "new": "n"}}))?;
    follows("echo $(cat /v/cm/k /v/all/dir/k /v/cm/new; echo; ls /v/cm)", "twotwon k new")?;
    changed("the configMap's change is seen");
    member.cluster.patch("secrets", "default", "sec", &json!({"stringData": {"k": "two"}}))?;
    follows("cat /v/sec/k", "two")?;
    changed("the secret's");
    member.cluster.create(&config_map("late", &json!({"k": "came"})))?;
    member.cluster.create(&secret("late", "Opaque", &json!({"s": "came"})))?;
    follows("cat /v/late/k /v/all/s", "camecame")?;
    changed("what was optional and came");
    let patch = json!({"metadata": {"labels": {"l": "two"}, "annotations": {"note": "two"}}});
    member.cluster.patch("pods", "default", "pod", &patch)?;
    follows("cat /v/down/labels /v/down/note", "l=\"two\"two")?;
    changed("labels and annotations");
    member.cluster.delete("configmaps", "default", "leaving", None)?;
    follows("ls /v/leaving", "")?;
    changed("what was optional and left");
    // What must be there and is not leaves the pod with what it had.
    let text = "MountVolume.SetUp failed for volume \"must\" : configmap \"leaving\" not found";
    member.wait_event("pod", "FailedMount", |message| message == text)?;
    ensure!(shell("cat /v/must/k")? == "here");
    // An immutable object is not looked at again: another one of its name is another matter.
    member.cluster.delete("configmaps", "default", "fixed", None)?;
    member.cluster.create(&config_map("fixed", &json!({"k": "other"})))?;
    ensure!(shell(parts)? == before, "parts of volumes stay as they were");
    ensure!(shell("cat /v/fixed/k")? == "fixed");
    let (code, _) = member.try_exec("pod", "main", &["test", "-e", "/v/cm/gone"])?;
    ensure!(code == 1);
    let pod = member.wait_ready("pod")?;
    ensure!(pod["status"]["containerStatuses"][0]["restartCount"] == 0, "{}", pod["status"]);

    if member.cluster.is_stand_in() {
        // Watches that break are opened again, but for what cannot change.
        let mark = member.cluster.log()?.mark();
        member.cluster.faults()?.close_watches();
        let watched = eventually("watches are open again", LONG, || {
            let records = member.cluster.log()?.after(mark);
            let uris: Vec<String> =
                records.into_iter().map(|one| one.uri).filter(|uri| uri.contains("watch=")).collect();
            for name in ["cm", "sec", "late"] {
                ensure!(uris.iter().any(|uri| uri.contains(&format!("metadata.name%3D{name}"))), "{uris:?}");
            }
            Ok(uris)
        })?;
        ensure!(watched.iter().all(|uri| !uri.contains("%3Dfixed")), "{watched:?}");
    }
    // The next instance of the container gets parts of what there is now.
    let container = pod["status"]["containerStatuses"][0]["containerID"].as_str().context("no container")?;
    let id = container.strip_prefix("containerd://").context("no id")?;
    processes::signal(member.node.cri()?.pid(id)?, Signal::SIGKILL);
    member.wait("pod", "it has restarted", |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        status["restartCount"] == 1 && status["ready"] == true
    })?;
    let after = member.exec("pod", "main", &["sh", "-c", &format!("{parts} /part/folder/k /part/mine/f")])?;
    ensure!(after == "twotwol=\"two\"twokept\n", "{after:?}");
    member.node.finish()
}

#[test]
fn missing_references_are_named_and_containers_start_once_they_exist() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let objects = [config_map("cm", &json!({"k": "v"})), secret("sec", "Opaque", &json!({"k": "v"}))];
    let member = Member::start(&lab, &objects, |node| node)?;
    let item = json!([{"key": "later", "path": "f"}]);
    let cases = [
        ("map-key", cm(json!({"items": item})), "configmap references non-existent config key: later"),
        ("secret-key", sec(json!({"items": item})), "references non-existent secret key: later"),
        ("secret", source("secret", "secretName", "late", json!({})), "secret \"late\" not found"),
        (
            "both",
            json!({"projected": {"sources": [{"configMap": {"name": "late"}}, {"secret": {"name": "late"}}]}}),
            "[configmap \"late\" not found, secret \"late\" not found]",
        ),
    ];
    for (name, volume, _) in &cases {
        let (volumes, mounts) = mounted(&[("v", volume.clone())]);
        member.create(name, &json!({"volumes": volumes, "containers": [{"name": "main", "volumeMounts": mounts}]}))?;
    }
    let expression = |name: &str, value: &str| {
        let metadata = json!({"name": name, "annotations": {"part": value}});
        let spec = json!({"volumes": [{"name": "v", "emptyDir": {}}], "containers": [{"name": "main",
            "env": [{"name": "PART", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['part']"}}}],
            "volumeMounts": [{"name": "v", "mountPath": "/v", "subPathExpr": "$(PART)"}]}]});
        member.create_with(&metadata, &spec)
    };
    let refused = [
        ("absolute", "/tmp", "error SubPath `/tmp` must not be an absolute path"),
        ("upwards", "..", "unable to provision SubPath `..`: must not contain '..'"),
        ("empty", "", "missing value for PART"),
    ];
    for (name, value, _) in refused {
        expression(name, value)?;
    }
    for (name, _, text) in &cases {
        let wanted = format!("MountVolume.SetUp failed for volume \"v\" : {text}");
        let event = member.wait_event(name, "FailedMount", |message| message == wanted)?;
        ensure!(event["type"] == "Warning", "{event}");
        let message = member.wait_waiting(name, "main", "ContainerCreating")?;
        ensure!(message.is_empty(), "{message}");
    }
    for (name, _, text) in refused {
        let message = member.wait_waiting(name, "main", "CreateContainerConfigError")?;
        ensure!(message == text, "{name}: {message:?}");
    }
    member.cluster.patch("configmaps", "default", "cm", &json!({"data": {"later": "v"}}))?;
    member.cluster.patch("secrets", "default", "sec", &json!({"stringData": {"later": "v"}}))?;
    member.cluster.create(&config_map("late", &json!({"f": "v"})))?;
    member.cluster.create(&secret("late", "Opaque", &json!({"s": "v"})))?;
    for (name, _, _) in refused {
        member.cluster.patch("pods", "default", name, &json!({"metadata": {"annotations": {"part": "good"}}}))?;
    }
    let begin = std::time::Instant::now();
    for name in cases.iter().map(|case| case.0).chain(refused.map(|case| case.0)) {
        member.wait_ready(name)?;
        eprintln!("{name} was ready {:.1} s after it was put right", begin.elapsed().as_secs_f64());
    }
    member.node.finish()
}

#[test]
fn volumes_outlive_the_processes_that_made_them_and_end_with_their_pods() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let objects = [config_map("cm", &json!({"k": "1"})), secret("sec", "Opaque", &json!({"k": "1"}))];
    let mut member = Member::start(&lab, &objects, |node| node)?;
    let volumes = [
        ("cm", cm(json!({}))),
        ("sec", sec(json!({}))),
        ("memory", json!({"emptyDir": {"medium": "Memory"}})),
        (
            "all",
            json!({"projected": {"sources": [{"configMap": {"name": "cm"}}, {"serviceAccountToken": {"path": "token"}}]}}),
        ),
    ];
    let (volumes, mut mounts) = mounted(&volumes);
    if let Some(list) = mounts.as_array_mut() {
        list.push(json!({"name": "cm", "mountPath": "/part", "subPath": "k"}));
        list.push(json!({"name": "memory", "mountPath": "/mine", "subPath": "a/b"}));
    }
    let spec = json!({"volumes": volumes, "securityContext": {"fsGroup": 2000},
        "containers": [{"name": "main", "volumeMounts": mounts}]});
    for name in ["stays", "goes"] {
        member.create(name, &spec)?;
    }
    let pods = ["stays", "goes"].map(|name| member.wait_ready(name));
    let [_, goes] = pods;
    let goes = goes?;
    member.exec("stays", "main", &["sh", "-c", "echo kept > /mine/f"])?;
    let containers = member.node.fingerprint()?;
    let shown = ["sh", "-c", "cat /v/cm/k /v/sec/k /v/all/k /part /mine/f"];
    let shows = |member: &Member, value: &str| {
        member.wait_exec("stays", "main", &shown, &format!("{value}{value}{value}1kept"))
    };
    set(&member, "2")?;
    shows(&member, "2")?;
    for daemon in ["kubelet-volnetd", "kubelet-syncd"] {
        member.node.kill_daemon(daemon)?;
        set(&member, daemon)?;
        shows(&member, daemon)?;
    }
    // All of it away, changes and a deletion meanwhile.
    member.node.stop()?;
    set(&member, "3")?;
    member.cluster.delete("pods", "default", "goes", None)?;
    member.node.launch()?;
    member.node.wait_healthy()?;
    shows(&member, "3")?;
    member.cluster.wait_gone("pods", "default", "goes")?;
    let left: Vec<_> = member.node.fingerprint()?;
    let stayed: Vec<_> = containers.into_iter().filter(|one| one.pod == "stays").collect();
    ensure!(left == stayed, "{left:?} and not {stayed:?}");
    let folder = member.node.root_dir().join("pods").join(goes["metadata"]["uid"].as_str().unwrap_or_default());
    ensure!(!folder.exists() && mounts::below(&folder).is_empty(), "{}", folder.display());

    // A pod that ends while volnetd is away.
    member.cluster.delete("pods", "default", "stays", None)?;
    member.node.kill_daemon("kubelet-volnetd")?;
    member.cluster.wait_gone("pods", "default", "stays")?;
    eventually("nothing is mounted any more", LONG, || {
        let left = mounts::below(&member.node.root_dir().join("pods"));
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })?;
    member.node.finish()
}

#[test]
fn a_container_starts_again_with_the_files_of_a_secret_that_has_gone() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let objects = [config_map("cm", &json!({"k": "1"})), secret("sec", "Opaque", &json!({"k": "1"}))];
    let member = Member::start(&lab, &objects, |node| node)?;
    let (volumes, mounts) = mounted(&[("cm", cm(json!({}))), ("sec", sec(json!({})))]);
    member.create("pod", &json!({"volumes": volumes, "containers": [{"name": "main", "volumeMounts": mounts}]}))?;
    let pod = member.wait_ready("pod")?;
    member.cluster.delete("secrets", "default", "sec", None)?;
    member.cluster.patch("configmaps", "default", "cm", &json!({"data": {"k": "2"}}))?;
    // The pod is prepared anew in another life of volnetd.
    member.node.kill_daemon("kubelet-volnetd")?;
    let shown = ["sh", "-c", "cat /v/cm/k /v/sec/k"];
    member.wait_exec("pod", "main", &shown, "21")?;
    let text = "MountVolume.SetUp failed for volume \"sec\" : secret \"sec\" not found";
    member.wait_event("pod", "FailedMount", |message| message == text)?;
    let container = pod["status"]["containerStatuses"][0]["containerID"].as_str().context("no container")?;
    let id = container.strip_prefix("containerd://").context("no id")?;
    processes::signal(member.node.cri()?.pid(id)?, Signal::SIGKILL);
    member.wait("pod", "it has restarted", |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        status["restartCount"] == 1 && status["ready"] == true
    })?;
    member.wait_exec("pod", "main", &shown, "21")?;
    member.node.finish()
}

fn set(member: &Member, value: &str) -> Result<()> {
    member.cluster.patch("configmaps", "default", "cm", &json!({"data": {"k": value}}))?;
    member.cluster.patch("secrets", "default", "sec", &json!({"stringData": {"k": value}}))?;
    Ok(())
}

#[test]
fn a_token_that_grows_old_is_replaced_in_the_running_pod() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.stand_in(bulkhead_testkit::apiserver::Config::default())?;
    // What this server issues is valid for two minutes less than it seems: so near its end that it is time for another.
    cluster.server()?.clock().set_offset_seconds(-500);
    let node = lab.node(NODE).joins(&cluster)?.config("syncFrequency", json!("2s")).start()?;
    let member = Member { cluster, node };
    let (volumes, mounts) = mounted(&[(
        "token",
        json!({"projected": {"sources": [
        {"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 600}}]}}),
    )]);
    let pod =
        member.create("pod", &json!({"volumes": volumes, "containers": [{"name": "main", "volumeMounts": mounts}]}))?;
    member.wait_ready("pod")?;
    let token = || member.exec("pod", "main", &["cat", "/v/token/token"]);
    let claims = |token: &str| -> Result<Value> {
        let part = token.split('.').nth(1).context("no token")?;
        let bytes = URL_SAFE_NO_PAD.decode(part)?;
        Ok(serde_json::from_slice(&bytes)?)
    };
    let first = token()?;
    let said = claims(&first)?;
    ensure!(said["aud"] == json!(["vault"]), "{said}");
    ensure!(said["kubernetes.io"]["pod"]["uid"] == pod["metadata"]["uid"], "{said}");
    ensure!(said["sub"] == "system:serviceaccount:default:default", "{said}");
    ensure!(said["exp"].as_i64().zip(said["iat"].as_i64()).is_some_and(|(exp, iat)| exp - iat == 600), "{said}");
    member.cluster.server()?.clock().set_offset_seconds(0);
    let lasts = |token: &str| -> Result<i64> {
        let end = claims(token)?["exp"].as_i64().context("no end")?;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
        Ok(end - i64::try_from(now)?)
    };
    let second = eventually("the file holds a token that is good for long", LONG, || {
        let token = token()?;
        ensure!(lasts(&token)? > 400, "{} s", lasts(&token)?);
        Ok(token)
    })?;
    // And that one stays.
    let mark = member.cluster.log()?.mark();
    member.cluster.patch("pods", "default", "pod", &json!({"metadata": {"labels": {"a": "change"}}}))?;
    member.wait("pod", "the label was looked at", |pod| pod["metadata"]["labels"]["a"] == "change")?;
    ensure!(token()? == second);
    let asked = member.cluster.log()?.after(mark).into_iter().filter(|one| one.subresource == "token").count();
    ensure!(asked == 0, "{asked}");
    member.node.finish()
}

#[test]
fn four_hundred_config_maps_cost_what_each_strategy_promises() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.stand_in(bulkhead_testkit::apiserver::Config::default())?;
    let names: Vec<String> = (0..400).map(|index| format!("m{index}")).collect();
    for name in &names {
        cluster.create(&config_map(name, &json!({(name): "one"})))?;
    }
    let sources: Vec<Value> = names.iter().map(|name| json!({"configMap": {"name": name}})).collect();
    let (volumes, mounts) = mounted(&[("all", json!({"projected": {"sources": sources}}))]);
    let spec = json!({"volumes": volumes, "containers": [{"name": "main", "volumeMounts": mounts}]});
    for strategy in ["Watch", "Cache", "Get"] {
        if strategy == "Cache" {
            // A cluster of few nodes lets them keep nothing; this is what one of many says.
            let ttl = json!({"metadata": {"annotations": {"node.alpha.kubernetes.io/ttl": "600"}}});
            cluster.patch("nodes", "", NODE, &ttl)?;
        }
        let mark = cluster.log()?.mark();
        let node = lab
            .node(NODE)
            .joins(&cluster)?
            .config("configMapAndSecretChangeDetectionStrategy", json!(strategy))
            .config("kubeAPIQPS", json!(1000))
            .config("kubeAPIBurst", json!(1000))
            .start()?;
        let member = Member { cluster: cluster.clone(), node };
        // Pods that share them share what they cost.
        for name in ["one", "two"] {
            member.create(name, &spec)?;
        }
        for name in ["one", "two"] {
            member.wait_ready(name)?;
        }
        let counts = || -> Result<BTreeMap<&str, usize>> {
            let mut counts = BTreeMap::new();
            for record in member.cluster.log()?.after(mark).iter().filter(|one| one.resource == "configmaps") {
                *counts.entry(record.verb).or_default() += 1;
            }
            Ok(counts)
        };
        let seen = counts()?;
        let of = |verb: &str| seen.get(verb).copied().unwrap_or_default();
        eprintln!("{strategy}: {seen:?}");
        match strategy {
            // kube-root-ca.crt is one more.
            "Watch" => ensure!(of("get") == 0 && of("list") <= 401 && (401..=410).contains(&of("watch")), "{seen:?}"),
            // A new pod sees what was written before it was made.
            "Cache" => ensure!((401..=802).contains(&of("get")) && of("watch") + of("list") == 0, "{seen:?}"),
            _ => ensure!(of("get") >= 802 && of("watch") + of("list") == 0, "{seen:?}"),
        }
        if strategy == "Watch" {
            let patch = json!({"data": {"m7": "two"}});
            member.cluster.patch("configmaps", "default", "m7", &patch)?;
            for name in ["one", "two"] {
                member.wait_exec(name, "main", &["cat", "/v/all/m7"], "two")?;
            }
            ensure!(counts()? == seen, "a change costs no request: {:?}", counts()?);
        }
        member.node.finish()?;
    }
    Ok(())
}

#[test]
fn many_volumes_of_many_pods_come_and_go_at_once() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let names: Vec<String> = (0..50).map(|index| format!("m{index}")).collect();
    let objects: Vec<Value> = names.iter().map(|name| config_map(name, &json!({"k": name}))).collect();
    let member = Member::start(&lab, &objects, |node| node)?;
    let sources: Vec<Value> = names.iter().map(|name| source("configMap", "name", name, json!({}))).collect();
    let volumes: Vec<(&str, Value)> = names.iter().map(String::as_str).zip(sources).collect();
    let (volumes, mounts) = mounted(&volumes);
    let main = json!({"name": "main", "volumeMounts": mounts,
        "command": ["sh", "-c", "cat /v/*/k | tr '\\n' ' '; echo; exit 0"]});
    let spec = json!({"restartPolicy": "Never", "volumes": volumes, "containers": [main]});
    let mut all = names.clone();
    all.sort();
    for round in 0..2 {
        let pods: Vec<String> = (0..5).map(|index| format!("p{round}-{index}")).collect();
        for name in &pods {
            member.create(name, &spec)?;
        }
        for name in &pods {
            ensure!(member.output(name, "main")? == all.concat());
        }
        for name in &pods {
            member.cluster.delete("pods", "default", name, Some(0))?;
        }
    }
    member.node.finish()
}
