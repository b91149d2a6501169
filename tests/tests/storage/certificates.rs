//! Projected trust bundles and certificates of pods: what a signer issues is in the pod's files, with its key, and nowhere else.

use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bulkhead_testkit::cluster::Storage;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::{IDLE, LONG, eventually, image};
use bulkhead_tests::lab;
use bulkhead_tests::storage::Scene;
use serde_json::{Value, json};

const API: &str = "/apis/certificates.k8s.io/v1beta1";
const SIGNER: &str = "bulkhead.test/pods";

/// A certificate authority in a folder, by openssl.
struct Authority(PathBuf);

impl Authority {
    fn new(folder: &Path, name: &str) -> Result<Self> {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder)?;
        let authority = Authority(folder);
        authority.openssl(&[
            "req",
            "-x509",
            "-newkey",
            "ed25519",
            "-nodes",
            "-keyout",
            "ca.key",
            "-out",
            "ca.crt",
            "-days",
            "2",
            "-subj",
            &format!("/CN={name}"),
        ])?;
        Ok(authority)
    }

    fn openssl(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new("openssl").args(arguments).current_dir(&self.0).output().context("openssl")?;
        ensure!(output.status.success(), "openssl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    fn certificate(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.0.join("ca.crt"))?)
    }

    /// A request's answer: the chain and its times.
    fn issue(&self, request: &Value) -> Result<Value> {
        let stub = request["spec"]["stubPKCS10Request"].as_str().context("no stub")?;
        std::fs::write(self.0.join("stub"), STANDARD.decode(stub)?)?;
        std::fs::write(self.0.join("extensions"), "keyUsage=digitalSignature\nsubjectAltName=DNS:pod.test\n")?;
        self.openssl(&[
            "x509",
            "-req",
            "-inform",
            "DER",
            "-in",
            "stub",
            "-CA",
            "ca.crt",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "1",
            "-extfile",
            "extensions",
            "-out",
            "leaf.crt",
        ])?;
        let date = |which: &str| -> Result<jiff::Timestamp> {
            let text = self.openssl(&["x509", "-in", "leaf.crt", "-noout", which, "-dateopt", "iso_8601"])?;
            let (_, date) = text.trim().split_once('=').context("no date")?;
            Ok(date.replace(' ', "T").parse()?)
        };
        let (begins, ends) = (date("-startdate")?, date("-enddate")?);
        let refresh = begins + jiff::SignedDuration::from_hours(12);
        let chain = format!("leaf of a test\n{}", std::fs::read_to_string(self.0.join("leaf.crt"))?);
        Ok(json!({"status": {"certificateChain": chain, "notBefore": begins.to_string(), "notAfter": ends.to_string(),
            "beginRefreshAt": refresh.to_string(), "conditions": [condition("Issued", "Issued", "")]}}))
    }

    /// The public key, in PEM, of a private key or a certificate.
    fn public(&self, text: &str) -> Result<String> {
        std::fs::write(self.0.join("looked-at"), text)?;
        if text.contains("PRIVATE KEY") {
            self.openssl(&["pkey", "-in", "looked-at", "-pubout"])
        } else {
            self.openssl(&["x509", "-in", "looked-at", "-noout", "-pubkey"])
        }
    }
}

fn condition(kind: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()})
}

fn send(scene: &Scene, method: &str, path: &str, body: &Value) -> Result<Value> {
    scene.cluster.client().send_json(method, &format!("{API}/{path}"), body)?.success()
}

fn bundle(name: &str, label: &str, text: &str) -> Value {
    json!({"apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle",
        "metadata": {"name": name, "labels": {"use": label}}, "spec": {"signerName": SIGNER, "trustBundle": text}})
}

/// The request of a pod that nobody has answered yet.
fn open_request(scene: &Scene, pod: &str) -> Result<Value> {
    eventually(&format!("{pod} asks for a certificate"), LONG, || {
        let path = format!("{API}/namespaces/default/podcertificaterequests");
        let all = scene.cluster.client().get(&path)?.success()?;
        let items = all["items"].as_array().cloned().unwrap_or_default();
        let open = items.into_iter().find(|one| one["spec"]["podName"] == pod && one["status"]["conditions"].is_null());
        open.context("no open request")
    })
}

fn answer(scene: &Scene, request: &Value, status: &Value) -> Result<()> {
    let name = request["metadata"]["name"].as_str().context("no name")?;
    let path = format!("{API}/namespaces/default/podcertificaterequests/{name}/status");
    let answer = scene.cluster.client().patch(&path, "merge-patch", status)?;
    answer.success().map(drop).with_context(|| format!("answering {name}"))
}

fn pod(scene: &Scene, name: &str) -> Result<Value> {
    let certificate = json!({"signerName": SIGNER, "keyType": "ED25519", "credentialBundlePath": "bundle.pem",
        "keyPath": "key.pem", "certificateChainPath": "chain.pem"});
    let selector = json!({"matchLabels": {"use": "pods"}});
    let sources = json!([
        {"clusterTrustBundle": {"name": "bulkhead.test:pods:one", "path": "one.crt"}},
        {"clusterTrustBundle": {"signerName": SIGNER, "labelSelector": selector, "path": "all.crt"}},
        {"clusterTrustBundle": {"name": "none", "optional": true, "path": "none.crt"}},
        {"podCertificate": certificate},
    ]);
    scene.create(
        name,
        &json!({"securityContext": {"runAsUser": 1234, "fsGroup": 2000},
            "volumes": [{"name": "certs", "projected": {"sources": sources}}],
            "containers": [{"name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", IDLE],
                "volumeMounts": [{"name": "certs", "mountPath": "/certs"}]}]}),
    )
}

#[test]
fn a_pod_has_what_its_signer_issued_and_trusts_what_is_published() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    if !Storage::WithPodCertificates.is_there() {
        return skip_this_test(Lack::ControlPlane);
    }
    let cluster = lab.cluster_on(Storage::WithPodCertificates)?;
    let folder = lab.folder();
    let gates =
        json!({"ClusterTrustBundle": true, "ClusterTrustBundleProjection": true, "PodCertificateRequest": true});
    let scene = Scene::start_with(lab, cluster, |node| node.config("featureGates", gates))?;
    let (one, other) = (Authority::new(&folder, "one")?, Authority::new(&folder, "other")?);
    let (first, second) = (one.certificate()?, other.certificate()?);
    send(&scene, "POST", "clustertrustbundles", &bundle("bulkhead.test:pods:one", "pods", &first))?;
    send(
        &scene,
        "POST",
        "clustertrustbundles",
        &bundle("bulkhead.test:pods:both", "pods", &format!("{first}{second}")),
    )?;
    send(&scene, "POST", "clustertrustbundles", &bundle("bulkhead.test:pods:left", "others", &second))?;

    let created = pod(&scene, "served")?;
    let request = open_request(&scene, "served")?;
    ensure!(request["spec"]["nodeName"] == bulkhead_tests::storage::NODE, "{request:#}");
    scene.wait_event("served", "credential bundle is not issued yet")?;
    answer(&scene, &request, &one.issue(&request)?)?;
    scene.wait_ready("served")?;

    let uid = created["metadata"]["uid"].as_str().context("no uid")?;
    let volume = scene.node.root_dir().join("pods").join(uid).join("volumes/kubernetes.io~projected/certs");
    // The links to them are the pod's user's: the kernel may follow them for nobody else (`fs.protected_symlinks`).
    let data = volume.join("..data");
    let read = |name: &str| std::fs::read_to_string(data.join(name)).with_context(|| name.to_owned());
    ensure!(bulkhead_sys::mount::is_tmpfs(std::fs::File::open(&volume)?.as_fd())?, "keys are on a disk");
    ensure!(read("one.crt")? == first && read("none.crt")?.is_empty());
    let all = read("all.crt")?;
    ensure!(all == format!("{first}{second}") || all == format!("{second}{first}"), "{all}");
    let (key, chain) = (read("key.pem")?, read("chain.pem")?);
    ensure!(read("bundle.pem")? == format!("{key}{chain}") && chain.starts_with("-----BEGIN"), "{chain}");
    ensure!(one.public(&key)? == one.public(&chain)?, "the certificate is another key's");
    for name in ["bundle.pem", "key.pem", "chain.pem", "one.crt"] {
        let mode = std::fs::metadata(data.join(name))?.permissions().mode() & 0o7777;
        ensure!(mode & 0o007 == 0, "{name}: {mode:o}");
    }

    // What is published anew is in the running pod's files.
    let newer = json!({"spec": {"trustBundle": second}});
    let path = format!("{API}/clustertrustbundles/bulkhead.test:pods:one");
    scene.cluster.client().patch(&path, "merge-patch", &newer)?.success()?;
    eventually("the new anchors are there", LONG, || {
        ensure!(read("one.crt")? == second, "the old ones");
        Ok(())
    })?;

    // Keys do not outlive the process that made them: another one is asked for, and until then the old files stay.
    scene.node.kill_daemon("kubelet-syncd")?;
    let request = open_request(&scene, "served")?;
    ensure!(read("key.pem")? == key, "the key is gone");
    answer(&scene, &request, &one.issue(&request)?)?;
    eventually("the new key is there", LONG, || {
        let (newer, chain) = (read("key.pem")?, read("chain.pem")?);
        ensure!(newer != key && one.public(&newer)? == one.public(&chain)?, "the old one");
        Ok(())
    })?;

    pod(&scene, "denied")?;
    let request = open_request(&scene, "denied")?;
    answer(&scene, &request, &json!({"status": {"conditions": [condition("Denied", "NotToday", "come again")]}}))?;
    scene.wait_event("denied", "was denied, reason=\"NotToday\", message=\"come again\"")?;
    scene.wait_event(
        "denied",
        "PodCertificateRequest was permanently denied: reason=\"NotToday\" message=\"come again\"",
    )?;
    scene.delete("denied")?;
    scene.delete("served")?;
    ensure!(!volume.exists(), "the volume is still there");
    scene.finish_after_deaths()
}
