//! Published holes of upstream's kubelet, tried here. `docs/kubelet-cves.md` has all of them, with those that other tests hold or that
//! cannot apply.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::cluster::client::Credential;
use bulkhead_testkit::https::Https;
use bulkhead_testkit::{IDLE, LONG, Node, Pod, eventually};
use bulkhead_tests::lab;
use serde_json::{Value, json};

/// A volume of a pod by its JSON.
fn volume(pod: Pod, source: &Value, path: &str) -> Pod {
    pod.volume("v", source.as_object().cloned().unwrap_or_default(), path)
}

fn runs_nothing_of(node: &Node, pod: &str) -> Result<()> {
    let name = node.pod_name(pod);
    let containers = node.cri()?.containers()?;
    ensure!(containers.iter().all(|one| one.pod != name), "{pod} must not have a container: {containers:#?}");
    Ok(())
}

/// CVE-2017-1002101, and CVE-2021-25741 without the race: a subPath through a link that leads out of the volume.
#[test]
fn cve_2017_1002101_a_sub_path_does_not_lead_out_of_its_volume() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    let secret = lab.folder().join("outside");
    std::fs::create_dir_all(&secret)?;
    std::fs::write(secret.join("secret"), "not for pods\n")?;
    let pod = Pod::idle("way").and_container("out", "cat /part/secret").empty_dir("data", "", None, "/data");
    let mut pod = pod.value().clone();
    pod["spec"]["containers"][1]["volumeMounts"] = json!([{"name": "data", "mountPath": "/part", "subPath": "out"}]);
    pod["spec"]["initContainers"] = json!([{
        "name": "first", "image": node.image(),
        "command": ["sh", "-c", format!("ln -s {} /data/out", secret.display())],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }]);
    node.write(&Pod::from_value(pod))?;
    let text = "failed to prepare subPath for volumeMount \"data\" of container \"out\"";
    node.wait_pod("way", "the part is refused", |pod| {
        pod.containers.iter().any(|c| c.name == "out" && c.reason == "CreateContainerConfigError" && c.message == text)
    })?;
    ensure!(node.cri()?.containers()?.iter().all(|one| one.name != "out"), "it must not even be created");
    node.finish()
}

/// CVE-2017-1002102: what a container puts into a volume that the kubelet writes made the kubelet delete files of the host. No
/// container can put anything there.
#[test]
fn cve_2017_1002102_volumes_that_the_node_writes_are_read_only() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    let fields = json!({"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}});
    let script = format!("cat /v/name; ln -s / /v/..data_tmp; rm /v/name; touch /v/x; echo tried; {IDLE}");
    node.write(&volume(Pod::busybox("planter", &script), &fields, "/v"))?;
    let log = std::fs::read_to_string(node.wait_for_log("planter", "main", "tried")?)?;
    ensure!(log.contains(&node.pod_name("planter")), "the volume is there: {log}");
    ensure!(log.matches("Read-only file system").count() == 3, "{log}");
    node.finish()
}

/// CVE-2019-11248: profiles of the process on the port that asks nobody who he is. CVE-2025-0426: checkpoints, which fill the
/// disk, on the one that only reads.
#[test]
fn cve_2019_11248_and_2025_0426_ports_without_authentication_only_tell() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").config("readOnlyPort", json!(10255)).start()?;
    node.write(&Pod::idle("one"))?;
    node.wait_running("one", 1)?;
    let healthz = |path: &str| node.http_get(Ipv4Addr::LOCALHOST.into(), 10248, path).map(|(status, _)| status);
    ensure!(healthz("/healthz")? == 200);
    let address = lab.netns().address();
    let read_only = Https::plain(SocketAddr::new(address.into(), 10255));
    ensure!(read_only.get("/pods")?.status == 200);
    for path in ["/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile?seconds=1", "/debug/flags/v"] {
        ensure!(healthz(path)? == 404, "{path} on the health port");
        ensure!([404, 405].contains(&read_only.get(path)?.status), "{path} on the read-only port");
    }
    let pod = format!("default/{}/main", node.pod_name("one"));
    let nobody = Https::new((address, 10250).into(), &Credential::Nothing);
    for path in ["checkpoint", "exec", "run", "attach", "portForward"].map(|what| format!("/{what}/{pod}?cmd=id")) {
        let status = read_only.request("POST", &path, &[], b"")?.status;
        ensure!([404, 405].contains(&status), "{path} on the read-only port: {status}");
    }
    // Where the node lets anybody in, as the test kit's default does, it is still no port that only reads.
    ensure!(nobody.get("/healthz")?.status == 200);
    let checkpoints = node.root_dir().join("checkpoints");
    let files = std::fs::read_dir(&checkpoints).map(|entries| entries.count()).unwrap_or_default();
    ensure!(files == 0, "{files} checkpoints in {}", checkpoints.display());
    node.finish()
}

/// CVE-2020-8564: a malformed file with registry credentials is quoted in the log where that is verbose.
#[test]
fn cve_2020_8564_malformed_registry_credentials_are_not_logged() -> Result<()> {
    const SECRET: &str = "c2VjcmV0LW9mLXRoZS1yZWdpc3RyeQ==";
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").argument("--v=10").start()?;
    let config = format!("{{\"auths\": {{\"127.0.0.1:1\": {{\"auth\": \"{SECRET}\" ");
    std::fs::write(node.root_dir().join("config.json"), config)?;
    node.write(&Pod::idle("pulls").container_field("image", json!("127.0.0.1:1/absent:1")))?;
    node.wait_pod("pulls", "its image cannot be pulled", |pod| {
        pod.containers.iter().any(|one| ["ErrImagePull", "ImagePullBackOff"].contains(&one.reason.as_str()))
    })?;
    let log = std::fs::read_to_string(node.log())?;
    ensure!(log.contains("config.json"), "the file was read, and its fault is told");
    ensure!(!log.contains(SECRET) && !log.contains("secret-of-the-registry"), "the credential is in the log");
    node.finish()
}

/// CVE-2023-2431: a profile of type Localhost without a name ran the container without any.
#[test]
fn cve_2023_2431_a_local_profile_without_a_name_is_refused() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    for (name, profile) in
        [("unnamed", json!({"type": "Localhost"})), ("nameless", json!({"type": "Localhost", "localhostProfile": ""}))]
    {
        let confined = json!({"seccompProfile": profile});
        node.write(
            &Pod::busybox(name, &format!("grep Seccomp: /proc/self/status; {IDLE}")).spec("securityContext", confined),
        )?;
        // By validation; an empty name passes that, as upstream's, and is refused when the container would be made.
        eventually("the pod is refused", LONG, || {
            let log = std::fs::read_to_string(node.log())?;
            log.lines()
                .find(|line| line.contains(name) && line.contains("localhostProfile"))
                .map(drop)
                .with_context(|| format!("nothing about {name}"))
        })?;
        runs_nothing_of(&node, name)?;
    }
    node.finish()
}

/// CVE-2024-10220: hooks of a repository run as root on the node. CVE-2025-1767: a repository of another pod is cloned. Nothing is
/// cloned at all.
#[test]
fn cve_2024_10220_and_2025_1767_no_repository_is_cloned() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    let refused = "git-repo volume plugin has been disabled";
    for (name, source) in [
        ("hooks", json!({"repository": "https://192.0.2.1/x.git", "revision": "main", "directory": "x/.git"})),
        ("local", json!({"repository": format!("{}/pods", node.root_dir().display()), "directory": "."})),
    ] {
        node.write(&volume(Pod::idle(name), &json!({"gitRepo": source}), "/v"))?;
        node.wait_pod(name, "it waits for a volume that never comes", |pod| {
            pod.volumes.iter().any(|volume| !volume.ready && volume.error.contains(refused))
                || pod.why.contains(refused)
        })?;
        runs_nothing_of(&node, name)?;
    }
    node.finish()
}
