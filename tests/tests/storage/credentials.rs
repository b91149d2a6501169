//! Secrets and service-account tokens: each driver gets those that it is to have, and nothing of them is anywhere else.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::csi::{Driver, objects};
use bulkhead_testkit::{LONG, eventually, mounts};
use bulkhead_tests::lab;
use bulkhead_tests::storage::{NODE, Scene};
use serde_json::{Value, json};

use crate::DRIVER;

const CONTEXT: &str = "context.test";
const SECRETS: &str = "secrets.test";
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

fn secret(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"},
        "stringData": {"password": value}})
}

fn reference(name: &str) -> Value {
    json!({"name": name, "namespace": "default"})
}

/// The tokens by audience.
fn tokens(text: &Value) -> Result<Value> {
    serde_json::from_str(text.as_str().with_context(|| format!("no tokens: {text}"))?).context("reading tokens")
}

/// The secrets of a volume's calls, once there are some.
fn wait_secrets(driver: &Driver, method: &str, volume: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    eventually(&format!("{method} of {volume} came with its secrets"), LONG, || {
        let all = driver.secrets_of(method, volume)?;
        all.iter().find(|one| wanted(one)).cloned().with_context(|| format!("{} calls", all.len()))
    })
}

/// Files below a folder that hold one of the texts. What is mounted below it is not entered, and neither are sockets.
fn holding(folder: &Path, texts: &[String], found: &mut Vec<String>) -> Result<()> {
    let mounted = mounts::below(folder);
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        // A folder may go while it is looked at.
        for entry in std::fs::read_dir(&next).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(facts) = std::fs::symlink_metadata(&path) else { continue };
            if facts.is_dir() && !mounted.contains(&path) {
                folders.push(path);
            } else if facts.is_file()
                && let Ok(content) = std::fs::read(&path)
            {
                let holds = |text: &&String| content.windows(text.len()).any(|part| part == text.as_bytes());
                found.extend(texts.iter().find(holds).map(|_| path.display().to_string()));
            }
        }
    }
    Ok(())
}

#[test]
fn drivers_get_secrets_and_tokens_and_nobody_else_does() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let scene = Scene::start_with(lab, cluster, |node| node.config("syncFrequency", json!("4s")))?;
    let cluster = &scene.cluster;
    let requests = json!([{"audience": "vault", "expirationSeconds": 3600}, {"audience": "store"}]);
    let plain = json!({"tokenRequests": requests, "requiresRepublish": true});
    let hidden = json!({"tokenRequests": requests, "serviceAccountTokenInSecrets": true});
    let context = scene.driver(DRIVER, CONTEXT, &plain)?.start()?;
    let secrets = scene.driver(DRIVER, SECRETS, &hidden)?.start()?;
    for driver in [&context, &secrets] {
        driver.wait_registered()?;
    }
    let values = ["of-the-stage-4711", "of-the-publish-4712", "of-the-expansion-4713", "of-the-publish-4714"];
    for (name, value) in ["stage", "publish", "expand"].into_iter().zip(values) {
        cluster.create(&secret(name, value))?;
    }
    cluster.create(&json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "reader", "namespace": "default"}}))?;
    let references = json!({"csi": {"nodeStageSecretRef": reference("stage"),
        "nodePublishSecretRef": reference("publish"), "nodeExpandSecretRef": reference("expand")}});
    objects::create_bound(cluster, "disk", CONTEXT, &references)?;
    scene.volume("quiet", SECRETS)?;
    let mut spec = json!({"volumes": [objects::of_claim("disk"), objects::of_claim("quiet")],
        "serviceAccountName": "reader", "containers": [{
            "name": "main", "image": bulkhead_testkit::image::BUSYBOX, "command": ["sh", "-c", bulkhead_testkit::IDLE],
            "volumeMounts": [{"name": "disk", "mountPath": "/disk"}, {"name": "quiet", "mountPath": "/quiet"}]}]});
    spec["nodeName"] = json!(NODE);
    scene.create("reads", &spec)?;
    scene.wait_ready("reads")?;

    // Each call has its own, and no other.
    ensure!(wait_secrets(&context, "NodeStageVolume", "disk", |_| true)? == json!({"password": values[0]}));
    ensure!(wait_secrets(&context, "NodePublishVolume", "disk", |_| true)? == json!({"password": values[1]}));
    let call = context.wait_call("NodePublishVolume", "disk", |call| call.is_ok())?;
    let told = tokens(&call.request["volume_context"][TOKENS])?;
    let token = told["vault"]["token"].as_str().unwrap_or_default().to_owned();
    ensure!(token.split('.').count() == 3 && told["store"]["token"] != told["vault"]["token"], "{told}");
    ensure!(told["vault"]["expirationTimestamp"].as_str().is_some_and(|time| time.ends_with('Z')), "{told}");
    let staged = context.wait_call("NodeStageVolume", "disk", |call| call.is_ok())?;
    ensure!(
        staged.request["volume_context"][TOKENS].is_null(),
        "tokens are a pod's, not a device's: {}",
        staged.request
    );
    // Of the other driver they are among the secrets.
    let call = secrets.wait_call("NodePublishVolume", "quiet", |call| call.is_ok())?;
    ensure!(call.request["volume_context"][TOKENS].is_null(), "{}", call.request);
    let hidden = tokens(&wait_secrets(&secrets, "NodePublishVolume", "quiet", |_| true)?[TOKENS])?;
    ensure!(hidden["vault"]["token"].as_str().is_some_and(|token| token.split('.').count() == 3));
    ensure!(wait_secrets(&secrets, "NodeStageVolume", "quiet", |_| true)? == json!({}));

    // A driver that wants to is called again, with what the secret is by then; the other one is not.
    cluster.patch("secrets", "default", "publish", &json!({"stringData": {"password": values[3]}}))?;
    wait_secrets(&context, "NodePublishVolume", "disk", |one| one["password"] == values[3])?;
    ensure!(secrets.calls_of("NodePublishVolume", "quiet")?.len() == 1);
    ensure!(context.calls_of("NodeStageVolume", "disk")?.len() == 1, "a republication stages nothing");

    // A larger volume is seen with the pod's next look.
    cluster.patch("persistentvolumes", "", "disk", &json!({"spec": {"capacity": {"storage": "32Mi"}}}))?;
    ensure!(wait_secrets(&context, "NodeExpandVolume", "disk", |_| true)? == json!({"password": values[2]}));
    scene.wait_event("reads", "FileSystemResizeSuccessful MountVolume.NodeExpandVolume succeeded")?;

    // Whoever has no token any more asks for a new one, and the driver gets that.
    if Scene::is_ours() {
        scene.node.kill_daemon("kubelet-syncd")?;
        context.wait_call("NodePublishVolume", "disk", |call| {
            let told = tokens(&call.request["volume_context"][TOKENS]).unwrap_or_default();
            call.is_ok() && told["vault"]["token"].as_str().is_some_and(|new| new != token)
        })?;
    }

    // On no disk, in no log, in no record.
    let hidden = hidden["vault"]["token"].as_str().unwrap_or_default().to_owned();
    let texts: Vec<String> = values.iter().map(|value| (*value).to_owned()).chain([token, hidden]).collect();
    let mut found = Vec::new();
    for folder in [scene.node.root_dir(), scene.node.run_dir()] {
        holding(folder, &texts, &mut found)?;
    }
    let log = std::fs::read_to_string(scene.node.log())?;
    ensure!(found.is_empty(), "{found:#?}");
    ensure!(texts.iter().all(|text| !log.contains(text)), "a secret is in the log");
    if Scene::is_ours() {
        let audit = scene.node.ctl(&["audit", "-o", "json", "--newest", "0"])?;
        ensure!(texts.iter().all(|text| !audit.contains(text)), "a secret is in a record");
    }
    scene.delete("reads")?;
    scene.wait_no_traces()?;
    drop((context, secrets));
    scene.finish_after_deaths()
}

#[test]
fn a_secret_that_is_not_there_is_named_and_the_driver_is_not_called() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let scene = Scene::start(lab, cluster)?;
    let driver = scene.driver(DRIVER, CONTEXT, &Value::Null)?.start()?;
    driver.wait_registered()?;
    let references = json!({"csi": {"nodePublishSecretRef": reference("later")}});
    objects::create_bound(&scene.cluster, "disk", CONTEXT, &references)?;
    scene.pod("waits", &["disk"])?;
    scene.wait_event(
        "waits",
        "FailedMount MountVolume.SetUp failed for volume \"disk\" : fetching NodePublishSecretRef default/later failed: \
         kubernetes.io/csi: failed to find the secret later in the namespace default with error: secrets \"later\" ",
    )?;
    ensure!(driver.calls_of("NodePublishVolume", "disk")?.is_empty());
    scene.cluster.create(&secret("later", "x"))?;
    scene.wait_ready("waits")?;
    ensure!(driver.secrets_of("NodePublishVolume", "disk")? == [json!({"password": "x"})]);
    scene.delete("waits")?;
    scene.wait_no_traces()?;
    drop(driver);
    scene.finish()
}
