//! Image pulls against a real registry that asks for a password: whose credentials are used, in which order, and what is
//! said when they do not do.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bulkhead_testkit::{Lab, NodeBuilder, eventually, image};
use bulkhead_tests::joined::{Member, secret};
use bulkhead_tests::lab;
use bulkhead_tests::registry::{PASSWORD, Registry, USER};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

const JSON: &str = "kubernetes.io/dockerconfigjson";
const CFG: &str = "kubernetes.io/dockercfg";

fn registry() -> Result<Option<(Lab, Registry)>> {
    let Some(lab) = lab()? else { return Ok(None) };
    let registry = Registry::start(&lab)?;
    Ok(Some((lab, registry)))
}

fn pull_secret(name: &str, password: &str) -> Value {
    secret(name, JSON, &json!({".dockerconfigjson": Registry::docker_config(password)}))
}

/// A pod whose image is asked of the registry at each start.
fn pulling(image: &str, secrets: &[&str]) -> Value {
    let secrets: Vec<Value> = secrets.iter().map(|name| json!({"name": name})).collect();
    json!({"imagePullSecrets": secrets,
        "containers": [{"name": "main", "image": image, "imagePullPolicy": "Always"}]})
}

#[test]
fn secrets_of_the_pod_open_the_registry() -> Result<()> {
    let Some((lab, registry)) = registry()? else { return Ok(()) };
    let image = registry.image();
    let plain = format!(r#"{{"{}":{{"username":"{USER}","password":"{PASSWORD}"}}}}"#, registry.address());
    let objects = [
        pull_secret("right", PASSWORD),
        pull_secret("wrong", "guessed"),
        secret("old", CFG, &json!({".dockercfg": plain})),
        json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "builder", "namespace": "default"}, "imagePullSecrets": [{"name": "right"}]}),
    ];
    let member = Member::start(&lab, &objects, |node| node)?;

    // Those that cannot: what is said, while the others start.
    member.create("wrong", &pulling(&image, &["wrong"]))?;
    member.create("late", &pulling(&image, &["late"]))?;
    member.create("json", &pulling(&image, &["right"]))?;
    member.create("cfg", &pulling(&image, &["old"]))?;
    member.create("second", &pulling(&image, &["wrong", "right"]))?;
    let mut account = pulling(&image, &[]);
    account["serviceAccountName"] = json!("builder");
    account.as_object_mut().map(|spec| spec.remove("imagePullSecrets"));
    member.create("account", &account)?;
    // An image that came with the node is nobody's secret (one of another content: the same would be the same image).
    let present = json!({"imagePullSecrets": [{"name": "right"}],
        "containers": [{"name": "main", "image": image::LOCAL_BUSYBOX, "imagePullPolicy": "IfNotPresent"}]});
    member.create("present", &present)?;

    for name in ["json", "cfg", "second", "account", "present"] {
        member.wait_ready(name)?;
    }
    member.wait_event("present", "Pulled", |message| message.contains("already present on machine"))?;
    member.wait_event("json", "Pulled", |message| {
        message.starts_with(&format!("Successfully pulled image {image:?} in "))
    })?;

    let failed = format!("Failed to pull image {image:?}: ");
    let event = member.wait_event("wrong", "Failed", |message| message.starts_with(&failed))?;
    let why = event["message"].as_str().unwrap_or_default().strip_prefix(&failed).unwrap_or_default().to_owned();
    ensure!(event["type"] == "Warning" && event["involvedObject"]["fieldPath"] == "spec.containers{main}", "{event}");
    ensure!(why.contains("401") || why.contains("authorization failed"), "{why}");
    ensure!(!why.contains("guessed"), "{why}");
    let held = member.wait_waiting("wrong", "main", "ImagePullBackOff")?;
    ensure!(held == format!("Back-off pulling image {image:?}: ErrImagePull: {why}"), "{held}");
    member.wait_event("wrong", "Failed", |message| message == "Error: ErrImagePull")?;
    member.wait_event("wrong", "Failed", |message| message == "Error: ImagePullBackOff")?;
    member.wait_event("wrong", "BackOff", |message| message == format!("Back-off pulling image {image:?}"))?;
    let missing = member.wait_event("late", "FailedToRetrieveImagePullSecret", |message| {
        message == "Unable to retrieve some image pull secrets (late); attempting to pull the image may not succeed."
    })?;
    ensure!(missing["type"] == "Warning" && missing["involvedObject"]["fieldPath"].is_null(), "{missing}");
    member.wait_waiting("late", "main", "ImagePullBackOff")?;

    // What is put right is used by the next attempt.
    member.cluster.create(&pull_secret("late", PASSWORD))?;
    let right = json!({"stringData": {".dockerconfigjson": Registry::docker_config(PASSWORD)}});
    member.cluster.patch("secrets", "default", "wrong", &right)?;
    for name in ["late", "wrong"] {
        member.wait_ready(name)?;
    }
    member.node.finish()
}

/// An operator who brings an image to the node (`ctr images import`, `kind load`) waits for no back-off: a pod whose image is missing
/// is looked at every 10 to 15 s, as with upstream.
#[test]
fn an_image_that_is_brought_to_the_node_is_found_before_its_back_off_ends() -> Result<()> {
    let Some((lab, registry)) = registry()? else { return Ok(()) };
    let image = registry.image_of("brought");
    let member = Member::start(&lab, &[], |node| node)?;
    let mut spec = pulling(&image, &[]);
    spec["containers"][0]["imagePullPolicy"] = json!("IfNotPresent");
    member.create("waits", &spec)?;
    // The third attempt, after 10 s and 20 s, is followed by 40 s without any.
    eventually("three pulls have failed", Duration::from_secs(90), || {
        let events = member.events("waits")?;
        let failed = |event: &&Value| event["reason"] == "Failed" && event["message"] == "Error: ErrImagePull";
        let count = events.iter().find(failed).map(|event| event["count"].clone());
        ensure!(count.as_ref().and_then(Value::as_u64) >= Some(3), "{count:?}");
        Ok(())
    })?;
    lab.containerd().ctr(&["images", "tag", image::BUSYBOX, &image])?;
    eventually("the pod runs", Duration::from_secs(25), || {
        let pod = member.cluster.get("pods", "default", "waits")?;
        ensure!(pod["status"]["phase"] == "Running", "{}", pod["status"]);
        Ok(())
    })?;
    member.node.finish()
}

/// A program that says who it is for, if it was asked as agreed; each time it is asked it writes a line beside itself.
fn plugin(folder: &Path, name: &str, body: &str) -> Result<()> {
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{body}\n"))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

fn answer(address: &str, password: &str, key: &str) -> String {
    format!(
        r#"echo '{{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"{key}","cacheDuration":"1h","auth":{{"{address}":{{"username":"{USER}","password":"{password}"}}}}}}'"#
    )
}

#[test]
fn the_nodes_own_credentials_and_its_providers_open_the_registry() -> Result<()> {
    let Some((lab, registry)) = registry()? else { return Ok(()) };
    let address = registry.address();
    let images = ["own", "plugged", "plugged-too", "locked", "token"].map(|team| registry.image_of(team));
    for image in &images {
        registry.push(image)?;
    }
    let [own, plugged, plugged_too, locked, token] = &images;
    let bin = lab.folder().join("plugins");
    std::fs::create_dir_all(&bin)?;
    // Where the programs, which are nobody in particular, may write.
    let notes = lab.folder().join("notes");
    std::fs::create_dir_all(&notes)?;
    std::fs::set_permissions(&notes, std::fs::Permissions::from_mode(0o777))?;
    let (count, key_file) = (notes.join("asked"), lab.folder().join("key"));
    std::fs::write(&key_file, PASSWORD)?;
    std::fs::set_permissions(&key_file, std::fs::Permissions::from_mode(0o600))?;

    let asked = format!(
        r#"question=$(cat); echo "$(id -u) $1 $question" >> {}
[ "$1" = --team ] && [ "$REALM" = west ] || {{ echo not as agreed >&2; exit 1; }}"#,
        count.display()
    );
    plugin(&bin, "plugged", &format!("{asked}\n{}", answer(address, PASSWORD, "Registry")))?;
    let reading = format!("key=$(cat {}) || exit 3\n{}", key_file.display(), answer(address, "'$key'", "Image"));
    plugin(&bin, "locked", &reading)?;
    let token_body = format!(
        r#"question=$(cat)
case "$question" in *'"serviceAccountToken":"'*.*.*'"'*) ;; *) echo no token >&2; exit 1;; esac
case "$question" in *'"serviceAccountAnnotations":{{"role":"reader"}}'*) ;; *) echo no annotation >&2; exit 1;; esac
{}"#,
        answer(address, PASSWORD, "Image")
    );
    plugin(&bin, "token", &token_body)?;
    let provider = |name: &str, pattern: &str| {
        json!({"name": name, "matchImages": [format!("{address}/{pattern}")], "defaultCacheDuration": "0s",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1"})
    };
    let mut providers =
        json!([provider("plugged", "plugged"), provider("locked", "locked"), provider("token", "token")]);
    providers[0]["args"] = json!(["--team"]);
    providers[0]["env"] = json!([{"name": "REALM", "value": "west"}]);
    providers[2]["tokenAttributes"] = json!({"serviceAccountTokenAudience": "registry", "cacheType": "ServiceAccount",
        "requireServiceAccount": true, "requiredServiceAccountAnnotationKeys": ["role"]});
    let config = lab.folder().join("providers.json");
    let text =
        json!({"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": providers});
    std::fs::write(&config, text.to_string())?;

    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "reader", "namespace": "default", "annotations": {"role": "reader", "other": "x"}}});
    let configure = |node: NodeBuilder| {
        node.argument(&format!("--image-credential-provider-config={}", config.display()))
            .argument(&format!("--image-credential-provider-bin-dir={}", bin.display()))
    };
    let member = Member::start(&lab, &[account], configure)?;
    // Upstream looks for it in the root directory first.
    let node_file = member.node.root_dir().join("config.json");
    std::fs::write(
        &node_file,
        format!(r#"{{"auths":{{"{address}/own":{{"username":"{USER}","password":"{PASSWORD}"}}}}}}"#),
    )?;
    std::fs::set_permissions(&node_file, std::fs::Permissions::from_mode(0o600))?;

    let mut with_token = pulling(token, &[]);
    with_token["serviceAccountName"] = json!("reader");
    // A node may ask for tokens of those audiences alone that its pods name (or that a role grants it).
    with_token["volumes"] = json!([{"name": "token", "projected":
        {"sources": [{"serviceAccountToken": {"path": "token", "audience": "registry"}}]}}]);
    with_token["containers"][0]["volumeMounts"] = json!([{"name": "token", "mountPath": "/token"}]);
    member.create("locked", &pulling(locked, &[]))?;
    member.create("own", &pulling(own, &[]))?;
    member.create("token", &with_token)?;
    member.create("plugged", &pulling(plugged, &[]))?;
    for name in ["own", "token", "plugged"] {
        member.wait_ready(name)?;
    }
    member.create("plugged-too", &pulling(plugged_too, &[]))?;
    member.wait_ready("plugged-too")?;
    let asked = std::fs::read_to_string(&count)?;
    ensure!(asked.lines().count() == 1, "one answer is good for the registry:\n{asked}");
    let expected = format!(
        r#" --team {{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"{address}/plugged/busybox"}}"#
    );
    let (user, rest) = asked.trim_end().split_at(asked.find(' ').unwrap_or_default());
    ensure!(rest == expected, "{rest}");
    ensure!(user != "0", "it must not run as root");

    // A program that may not read what only root may: told, by name, and the pull goes on without.
    let file = key_file.display().to_string();
    let event = member.wait_event("locked", "FailedImageCredentialProvider", |message| message.contains(&file))?;
    ensure!(event["message"].as_str().is_some_and(|text| text.contains("Permission denied")), "{event}");
    member.wait_waiting("locked", "main", "ImagePullBackOff")?;
    std::fs::set_permissions(&key_file, std::fs::Permissions::from_mode(0o644))?;
    member.wait_ready("locked")?;
    member.node.finish()
}

/// An image that is on the node because one pod's secret opened the registry is there for pods that have that secret, or
/// the same credential in another; what came with the node is everybody's.
#[test]
fn a_pulled_image_is_for_pods_with_the_pull_secret() -> Result<()> {
    let Some((lab, registry)) = registry()? else { return Ok(()) };
    let image = registry.image();
    let objects = [pull_secret("right", PASSWORD), pull_secret("copy", PASSWORD), pull_secret("wrong", "guessed")];
    let member = Member::start(&lab, &objects, |node| node)?;
    let present = |policy: &str, secrets: &[&str]| {
        let mut spec = pulling(&image, secrets);
        spec["containers"][0]["imagePullPolicy"] = json!(policy);
        spec
    };
    let fits = format!("Container image {image:?} already present on machine and can be accessed by the pod");
    let hidden = format!("Container image {image:?} is not present with pull policy of Never");
    member.create("first", &present("IfNotPresent", &["right"]))?;
    member.wait_ready("first")?;
    let round = |member: &Member, round: &str| -> Result<()> {
        for (name, secrets) in [("same", &["right"][..]), ("copy", &["copy"])] {
            let name = format!("{name}-{round}");
            member.create(&name, &present("Never", secrets))?;
            member.wait_ready(&name)?;
            member.wait_event(&name, "Pulled", |message| message == fits)?;
        }
        for (name, secrets) in [("without", &[][..]), ("wrong", &["wrong"])] {
            let never = format!("{name}-never-{round}");
            member.create(&never, &present("Never", secrets))?;
            let message = member.wait_waiting(&never, "main", "ErrImageNeverPull")?;
            ensure!(message == hidden, "{message}");
            let pulls = format!("{name}-{round}");
            member.create(&pulls, &present("IfNotPresent", secrets))?;
            member.wait_waiting(&pulls, "main", "ImagePullBackOff")?;
        }
        Ok(())
    };
    round(&member, "before")?;
    member.node.kill_daemon("kubelet-syncd")?;
    round(&member, "after")?;
    // An image that came with the node asks nobody for anything (one of another content: the same would be the same image).
    let own = json!({"name": "main", "image": image::LOCAL_BUSYBOX, "imagePullPolicy": "Never"});
    member.create("free", &json!({"containers": [own]}))?;
    member.wait_ready("free")?;
    member.node.finish()
}

/// What upstream's node specs do (`test/e2e_node/util_kubeletconfig.go`, tempRemoveImagePulledRecord): the file is there within 5 s,
/// and an image whose file is taken away while the kubelet is stopped came with the node, until the file is back.
#[test]
fn a_pulled_image_whose_record_is_taken_away_came_with_the_node() -> Result<()> {
    let Some((lab, registry)) = registry()? else { return Ok(()) };
    let image = registry.image();
    let mut member = Member::start(&lab, &[pull_secret("right", PASSWORD)], |node| node)?;
    member.create("first", &pulling(&image, &["right"]))?;
    member.wait_ready("first")?;
    let records = member.node.root_dir().join("image_manager/pulled");
    let (path, record) = eventually("the record has its file", Duration::from_secs(5), || {
        for entry in std::fs::read_dir(&records)? {
            let path = entry?.path();
            // One that is being written has another name.
            let stands = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("sha256-"));
            if !stands {
                continue;
            }
            let text = std::fs::read_to_string(&path)?;
            if text.contains(registry.address()) {
                return Ok((path, serde_json::from_str::<Value>(&text)?));
            }
        }
        bail!("none of {image}")
    })?;
    let (name, _) = image.rsplit_once(':').context("no tag")?;
    let secret = &record["credentialMapping"][name]["kubernetesSecrets"][0];
    ensure!(secret["name"] == "right" && record["apiVersion"] == "kubelet.config.k8s.io/v1beta1", "{record:#}");
    let digest = Sha256::digest(record["imageRef"].as_str().unwrap_or_default());
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    ensure!(path == records.join(format!("sha256-{digest}")), "{} of {record:#}", path.display());
    let aside = records.join(format!("temp_sha256-{digest}"));
    let without = |policy: &str| {
        let mut spec = pulling(&image, &[]);
        spec["containers"][0]["imagePullPolicy"] = json!(policy);
        spec
    };
    member.create("before", &without("Never"))?;
    member.wait_waiting("before", "main", "ErrImageNeverPull")?;
    member.node.stop()?;
    std::fs::rename(&path, &aside)?;
    member.node.launch()?;
    member.node.wait_healthy()?;
    for (pod, policy) in [("never", "Never"), ("present", "IfNotPresent")] {
        member.create(pod, &without(policy))?;
        member.wait_ready(pod)?;
    }
    member.node.stop()?;
    std::fs::rename(&aside, &path)?;
    member.node.launch()?;
    member.node.wait_healthy()?;
    member.create("after", &without("Never"))?;
    member.wait_waiting("after", "main", "ErrImageNeverPull")?;
    ensure!(path.exists(), "a file that is taken over stays");
    member.node.finish()
}
