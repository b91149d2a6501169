//! What newer releases of containerd make possible, each of it on one that can do it; and how the node takes what each says
//! of itself. Everything else runs on any of them: `BULKHEAD_RUNTIME` chooses.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::cluster::client::Credential;
use bulkhead_testkit::https::Https;
use bulkhead_testkit::{IDLE, LONG, Lab, NodeBuilder, Release, eventually, image, mounts};
use bulkhead_tests::joined::{Member, NAMESPACE, NODE};
use bulkhead_tests::scrape::{Format, Scrape};
use bulkhead_tests::{lab, lab_on};
use serde_json::{Value, json};

/// What events missed is found by a list once a minute.
const BEFORE_AN_AUDIT: Duration = Duration::from_secs(30);
/// For what anybody may scrape.
const READ_ONLY_PORT: u16 = 10255;

fn member(lab: &Lab, configure: impl FnOnce(NodeBuilder) -> NodeBuilder) -> Result<Member> {
    Member::start(lab, &[], |node| configure(node.config("readOnlyPort", json!(READ_ONLY_PORT))))
}

fn scrape(lab: &Lab) -> Result<Scrape> {
    let answer = Https::plain(SocketAddr::new(lab.netns().address().into(), READ_ONLY_PORT)).get("/metrics")?;
    Scrape::read(&String::from_utf8_lossy(&answer.body), Format::Prometheus)
}

/// The status of a container in one of the lists.
fn status_of<'a>(pod: &'a Value, list: &str, name: &str) -> &'a Value {
    let mut all = pod["status"][list].as_array().into_iter().flatten();
    all.find(|one| one["name"] == name).unwrap_or(&Value::Null)
}

/// User, group and groups of a container's processes, as the kernel has them.
fn user_in(member: &Member, pod: &str, container: &str) -> Result<Value> {
    let said = member.exec(pod, container, &["grep", "-E", "^(Uid|Gid|Groups):", "/proc/self/status"])?;
    let numbers = |key: &str| -> Vec<i64> {
        let line = said.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    let first = |key: &str| numbers(key).first().copied();
    let mut groups = numbers("Groups:");
    groups.sort_unstable();
    Ok(json!({"linux": {"uid": first("Uid:"), "gid": first("Gid:"), "supplementalGroups": groups}}))
}

/// A status's user with its groups in order.
fn told_user(status: &Value) -> Value {
    let mut user = status["user"].clone();
    if let Some(groups) = user["linux"]["supplementalGroups"].as_array_mut() {
        groups.sort_by_key(Value::as_i64);
    }
    user
}

#[test]
fn a_pod_with_users_of_its_own_runs_and_what_fails_in_one_is_counted() -> Result<()> {
    let Some(lab) = lab_on(Release::V2_1)? else { return Ok(()) };
    let member = member(&lab, |node| node)?;
    let volume = json!([{"name": "v", "emptyDir": {}}]);
    let main = json!({"name": "main", "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    member.create("users", &json!({"hostUsers": false, "volumes": volume, "containers": [main]}))?;
    let pod = member.wait_ready("users")?;
    let map = member.exec("users", "main", &["cat", "/proc/self/uid_map"])?;
    let map: Vec<u64> = map.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    ensure!(map.len() == 3 && map[0] == 0 && map[1] >= 65536 && map[2] == 65536, "uid_map: {map:?}");
    // Root inside is somebody without rights outside; its files in a volume belong to root there and here.
    member.exec("users", "main", &["touch", "/v/made"])?;
    ensure!(member.exec("users", "main", &["stat", "-c", "%u", "/v/made"])?.trim_end() == "0");
    let inside = status_of(&pod, "containerStatuses", "main");
    ensure!(inside["user"]["linux"]["uid"] == 0, "{inside}");
    let counted = |errors: f64, pods: f64| {
        eventually("the pods are counted", LONG, || {
            let metrics = scrape(&lab)?;
            let pods_now = metrics.one("kubelet_started_user_namespaced_pods_total", &[])?;
            let errors_now = metrics.one("kubelet_started_user_namespaced_pods_errors_total", &[])?;
            ensure!(pods_now == pods && errors_now == errors, "{pods_now} pods, {errors_now} errors");
            Ok(())
        })
    };
    counted(0.0, 1.0)?;
    // Its sandbox is made; its container cannot be started.
    let cannot = json!({"name": "main", "command": ["/no/such/program"]});
    member.create("cannot", &json!({"hostUsers": false, "restartPolicy": "Never", "containers": [cannot]}))?;
    member.wait("cannot", "it has failed", |pod| pod["status"]["phase"] == "Failed")?;
    counted(1.0, 2.0)?;
    // Its container cannot even be made; that it is tried again makes no second sandbox, and counts no more.
    let profile = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "none.json"}});
    let unmade = json!({"name": "main", "securityContext": profile});
    member.create("unmade", &json!({"hostUsers": false, "containers": [unmade]}))?;
    member.wait_waiting("unmade", "main", "CreateContainerError")?;
    counted(2.0, 3.0)?;
    // One on the machine's users is none of them.
    let cannot = json!({"name": "main", "command": ["/no/such/program"]});
    member.create("other", &json!({"restartPolicy": "Never", "containers": [cannot]}))?;
    member.wait("other", "it has failed", |pod| pod["status"]["phase"] == "Failed")?;
    counted(2.0, 3.0)?;
    member.node.finish()
}

#[test]
fn container_statuses_show_users_and_resources() -> Result<()> {
    let Some(lab) = lab_on(Release::V2_1)? else { return Ok(()) };
    let member = member(&lab, |node| node)?;
    let context = json!({"runAsUser": 1001, "runAsGroup": 2002, "fsGroup": 3003, "supplementalGroups": [4004],
                         "supplementalGroupsPolicy": "Strict"});
    let resources = json!({"requests": {"cpu": "100m", "memory": "16Mi"}, "limits": {"cpu": "500m", "memory": "64Mi"}});
    member.create(
        "users",
        &json!({
            "securityContext": context,
            "initContainers": [{"name": "first", "command": ["true"]}],
            "containers": [
                {"name": "main", "resources": resources},
                {"name": "own", "securityContext": {"runAsUser": 65534, "runAsGroup": 7}},
            ],
        }),
    )?;
    member.wait_ready("users")?;
    let debugger = json!({"name": "debug", "image": member.node.image(), "command": ["sh", "-c", IDLE],
                          "securityContext": {"runAsUser": 5}});
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/users/ephemeralcontainers");
    let patch = json!({"spec": {"ephemeralContainers": [debugger]}});
    member.cluster.client().patch(&path, "strategic-merge-patch", &patch)?.success()?;
    let pod = member.wait("users", "the debugger runs", |pod| {
        status_of(pod, "ephemeralContainerStatuses", "debug")["state"]["running"].is_object()
    })?;
    for (list, name) in
        [("containerStatuses", "main"), ("containerStatuses", "own"), ("ephemeralContainerStatuses", "debug")]
    {
        let (told, real) = (told_user(status_of(&pod, list, name)), user_in(&member, "users", name)?);
        ensure!(told == real, "{name}: told {told}, is {real}");
    }
    let first = told_user(status_of(&pod, "initContainerStatuses", "first"));
    let all = json!({"linux": {"uid": 1001, "gid": 2002, "supplementalGroups": [2002, 3003, 4004]}});
    ensure!(first == all, "the init container: {first}");
    let main = status_of(&pod, "containerStatuses", "main");
    ensure!(main["resources"] == resources && main["allocatedResources"] == resources["requests"], "{main}");
    // The image as the runtime names it, which is how upstream shows it.
    ensure!(main["image"] == member.node.image(), "{main}");
    member.node.finish()
}

#[test]
fn an_image_is_mounted_as_a_volume() -> Result<()> {
    let Some(lab) = lab_on(Release::V2_1)? else { return Ok(()) };
    let member = member(&lab, |node| node)?;
    let reference = json!({"reference": image::LOCAL_BUSYBOX, "pullPolicy": "IfNotPresent"});
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    let containers = json!([{"name": "main", "volumeMounts": mounts}]);
    member.create("image", &json!({"volumes": [{"name": "v", "image": reference}], "containers": containers}))?;
    member.wait_ready("image")?;
    ensure!(member.exec("image", "main", &["ls", "/v/bin/busybox"])?.trim_end() == "/v/bin/busybox");
    let (code, said) = member.try_exec("image", "main", &["touch", "/v/made"])?;
    ensure!(code != 0, "an image was written to: {said}");
    eventually("the volume is counted", LONG, || {
        let metrics = scrape(&lab)?;
        let (wanted, mounted) = (
            metrics.one("kubelet_image_volume_requested_total", &[])?,
            metrics.one("kubelet_image_volume_mounted_succeed_total", &[])?,
        );
        ensure!(wanted > 0.0 && wanted == mounted, "{mounted} of {wanted} mounted");
        Ok(())
    })?;
    member.node.finish()
}

#[test]
fn recursive_read_only_mounts() -> Result<()> {
    let Some(lab) = lab_on(Release::V2_1)? else { return Ok(()) };
    let member = member(&lab, |node| node)?;
    let outside = lab.folder().join("outside");
    let below = outside.join("below");
    std::fs::create_dir_all(&below)?;
    nix::mount::mount(Some("tmpfs"), &below, Some("tmpfs"), nix::mount::MsFlags::empty(), None::<&str>)
        .context("mounting a tmpfs below the volume")?;
    let pods = ["Enabled", "IfPossible", "Disabled"];
    for wanted in pods {
        let mount = json!({"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": wanted});
        let spec = json!({"volumes": [{"name": "v", "hostPath": {"path": outside}}],
                          "containers": [{"name": "main", "volumeMounts": [mount]}]});
        member.create(&wanted.to_lowercase(), &spec)?;
    }
    for wanted in pods {
        let name = wanted.to_lowercase();
        let pod = member.wait_ready(&name)?;
        let recursive = wanted != "Disabled";
        let told = &status_of(&pod, "containerStatuses", "main")["volumeMounts"][0]["recursiveReadOnly"];
        ensure!(*told == if recursive { "Enabled" } else { "Disabled" }, "{wanted}: told as {told}");
        let writes = |path: &str| member.try_exec(&name, "main", &["touch", path]).map(|(code, _)| code == 0);
        ensure!(!writes("/v/made")?, "{wanted}: the volume was written to");
        ensure!(writes("/v/below/made")? != recursive, "{wanted}: wrong of what is mounted below the volume");
    }
    let shut = member.node.finish();
    mounts::detach_below(&outside);
    shut
}

#[test]
fn a_container_is_written_into_an_archive_and_goes_on() -> Result<()> {
    let Some(lab) = lab_on(Release::V2_1)? else { return Ok(()) };
    let member = member(&lab, |node| {
        node.config("authentication", json!({"anonymous": {"enabled": true}, "webhook": {"enabled": false}}))
            .config("authorization", json!({"mode": "AlwaysAllow"}))
    })?;
    let https = Https::new((lab.netns().address(), 10250).into(), &Credential::Nothing);
    member.create("pod", &json!({"initContainers": [{"name": "first", "command": ["true"]}]}))?;
    let before = member.wait_ready("pod")?;

    let answer = https.post("/checkpoint/default/pod/main", b"")?;
    let said = String::from_utf8_lossy(&answer.body);
    ensure!(answer.status == 200, "{} {said}", answer.status);
    let said: Value = serde_json::from_slice(&answer.body)?;
    let archive = said["items"][0].as_str().context("no name of an archive")?;
    let folder = member.node.root_dir().join("checkpoints");
    let beginning = folder.join("checkpoint-pod_default-main-");
    ensure!(archive.starts_with(&*beginning.to_string_lossy()) && archive.ends_with("Z.tar"), "{archive}");
    // It holds the container's memory: nobody else may read it.
    let mode = |path: &Path| Ok::<_, anyhow::Error>(std::fs::metadata(path)?.permissions().mode() & 0o777);
    ensure!(mode(&folder)? == 0o700 && mode(Path::new(archive))? == 0o600, "{:o}", mode(Path::new(archive))?);
    let listed = Command::new("tar").args(["--list", "--file", archive]).output()?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for part in ["spec.dump", "config.dump", "checkpoint/inventory.img"] {
        ensure!(listed.lines().any(|line| line == part), "no {part} in\n{listed}");
    }
    member.exec("pod", "main", &["true"])?;
    let after = member.wait_ready("pod")?;
    let (before, after) =
        (status_of(&before, "containerStatuses", "main"), status_of(&after, "containerStatuses", "main"));
    ensure!(before == after, "it was {before}, it is {after}");

    // The runtime is not asked about what has ended.
    let answer = https.post("/checkpoint/default/pod/first", b"")?;
    let said = String::from_utf8_lossy(&answer.body);
    let words = "checkpointing of default/pod/first failed (container first not found)";
    ensure!(answer.status == 500 && said.starts_with(words), "{} {said}", answer.status);
    eventually("it is counted", LONG, || {
        let metrics = scrape(&lab)?;
        let which = [("operation_type", "checkpoint_container")];
        let (all, timed) = (
            metrics.one("kubelet_runtime_operations_total", &which)?,
            metrics.one("kubelet_runtime_operations_duration_seconds_count", &which)?,
        );
        let failed = metrics.all("kubelet_runtime_operations_errors_total", &which);
        ensure!(all == 1.0 && timed == 1.0 && failed.is_empty(), "{all}, {timed} took a time, failed: {failed:?}");
        Ok(())
    })?;
    member.node.finish()
}

#[test]
fn the_cgroup_driver_of_the_runtime_is_used_and_its_handlers_are_shown() -> Result<()> {
    let Some(lab) = lab_on(Release::V2_1)? else { return Ok(()) };
    // The runtime is set up for cgroupfs, and says so.
    let member = member(&lab, |node| node.config("cgroupDriver", json!("systemd")))?;
    member.create("pod", &json!({}))?;
    member.wait_ready("pod")?;
    let pid = lab.cri()?.containers()?.first().map(|one| lab.cri()?.pid(&one.id)).context("no container")??;
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let at = format!("{}/kubepods/besteffort/pod", member.node.cgroup_root());
    ensure!(cgroups.contains(&at) && !cgroups.contains(".slice/kubepods"), "{at} is not in\n{cgroups}");

    let node = member.cluster.get("nodes", "", NODE)?;
    let handlers = node["status"]["runtimeHandlers"].as_array().cloned().unwrap_or_default();
    let handler = |name: &str| handlers.iter().find(|one| one["name"] == name).context(name.to_owned()).cloned();
    let can = json!({"recursiveReadOnlyMounts": true, "userNamespaces": true});
    for name in ["runc", "crun"] {
        ensure!(handler(name)?["features"] == can, "{handlers:?}");
    }
    ensure!(node["status"]["features"]["supplementalGroupsPolicy"] == true, "{}", node["status"]["features"]);
    member.node.finish()
}

#[test]
fn the_node_takes_what_its_runtime_offers() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let member = member(&lab, |node| node)?;
    let release = lab.containerd().programs().release();
    member.create("ends", &json!({"restartPolicy": "Never", "containers": [{"name": "main", "command": ["true"]}]}))?;
    member.wait("ends", "it has ended", |pod| pod["status"]["phase"] == "Succeeded")?;
    let source = if release == Release::V2_1 { "source=Cri" } else { "source=Containerd" };
    let log = std::fs::read_to_string(member.node.log())?;
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("following the runtime's events")).collect();
    let plain: Vec<String> = lines.iter().map(|line| line.replace('"', "")).collect();
    ensure!(!plain.is_empty() && plain.iter().all(|line| line.contains(source)), "not {source}: {lines:?}");
    let metrics = scrape(&lab)?;
    let connected = metrics.one("kubelet_evented_pleg_connection_success_count", &[])?;
    ensure!(connected == lines.len() as f64, "{connected} connections, {} in the log", lines.len());
    // Only what does not tell its cgroup driver will not be enough for ever.
    let losing = !metrics.all("kubelet_cri_losing_support", &[]).is_empty();
    ensure!(losing == (release != Release::V2_1), "kubelet_cri_losing_support is told: {losing}");
    member.node.finish()
}

#[test]
fn an_end_is_seen_at_once_by_the_next_process_that_decides() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let mut member = member(&lab, |node| node)?;
    // The command that lets it end has ended by then.
    let waits = json!({"name": "main", "command": ["sh", "-c", "until [ -e /go ]; do sleep 0.05; done; sleep 1"]});
    member.create("ends", &json!({"restartPolicy": "Never", "containers": [waits]}))?;
    member.wait_ready("ends")?;
    member.decide_anew("ends")?;
    // The first event since the process before died, which may have been listening yet as far as the runtime knows.
    let asked = Instant::now();
    member.exec("ends", "main", &["touch", "/go"])?;
    member.wait("ends", "it has ended", |pod| pod["status"]["phase"] == "Succeeded")?;
    ensure!(asked.elapsed() < BEFORE_AN_AUDIT, "seen after {:?}", asked.elapsed());
    member.node.finish()
}
