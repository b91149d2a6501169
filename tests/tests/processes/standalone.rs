//! A node without an API server: what a manifest in a folder (or behind a URL) makes of the machine.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bulkhead_testkit::wait::holds_for;
use bulkhead_testkit::{IDLE, LONG, Lab, Pod, eventually, leaks, machine, netns, processes};
use bulkhead_tests::lab;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

#[test]
fn a_static_pod_has_logs_links_labels_and_an_address() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    let pod = Pod::busybox("web", &format!("echo out of $GREETING; echo to stderr >&2; {IDLE}")).container_field(
        "env",
        json!([{"name": "WHO", "value": "pod"}, {"name": "GREETING", "value": "hello $(WHO)"}]),
    );
    node.write(&pod)?;

    let log = node.wait_for_log("web", "main", "out of hello pod")?;
    let running = node.wait_running("web", 1)?;
    let (sandbox, main) = (&running.sandbox, running.main());

    ensure!(sandbox.pod == "web-alpha" && sandbox.namespace == "default" && sandbox.attempt == 0, "{sandbox:?}");
    for (label, value) in [
        ("io.kubernetes.pod.name", "web-alpha"),
        ("io.kubernetes.pod.namespace", "default"),
        ("io.kubernetes.pod.uid", &sandbox.uid),
        ("io.kubernetes.container.name", "main"),
    ] {
        ensure!(main.labels.get(label).map(String::as_str) == Some(value), "{label}: {:?}", main.labels);
    }
    ensure!(sandbox.annotations.get("kubernetes.io/config.source").map(String::as_str) == Some("file"));
    ensure!(main.annotations.get("io.kubernetes.container.restartCount").map(String::as_str) == Some("0"));

    let expected = node.pod_logs().join(format!("default_web-alpha_{}", sandbox.uid)).join("main/0.log");
    ensure!(log == expected, "{} is not {}", log.display(), expected.display());
    let text = std::fs::read_to_string(&log)?;
    ensure!(text.lines().any(|line| line.contains(" stderr F to stderr")), "{text}");
    let link = Path::new("/var/log/containers").join(format!("web-alpha_default_main-{}.log", main.id));
    let linked = || {
        let target = std::fs::read_link(&link).with_context(|| link.display().to_string())?;
        ensure!(target == log, "{} is not {}", target.display(), log.display());
        Ok(())
    };
    // It is made after the start, so that it never leads nowhere.
    eventually("the log is linked", LONG, linked)?;

    let hostname = node.cri()?.exec(&main.id, &["hostname"])?.1;
    ensure!(hostname.trim() == "web-alpha", "{hostname}");
    let hosts = node.cri()?.exec(&main.id, &["cat", "/etc/hosts"])?.1;
    let address = node.cri()?.address(&sandbox.id)?;
    ensure!(
        hosts.starts_with("# Kubernetes-managed hosts file.") && hosts.contains(&format!("{address}\tweb-alpha")),
        "{hosts}"
    );

    let state = node.wait_pod("web", "it runs", |pod| pod.phase == "Running")?;
    ensure!(state.ips == [address.to_string()] && state.uid == sandbox.uid && state.source == "file", "{state:?}");

    // As if somebody had died between the start and the link.
    for daemon in ["kubelet-volnetd", "kubelet-syncd"] {
        std::fs::remove_file(&link)?;
        node.kill_daemon(daemon)?;
        eventually("the log is linked again", LONG, linked)?;
    }
    node.finish()
}

#[test]
fn a_changed_manifest_replaces_the_pod_and_a_removed_one_leaves_no_trace() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    node.write(&Pod::busybox("web", &format!("echo first; {IDLE}")).empty_dir("scratch", "Memory", None, "/scratch"))?;
    node.wait_for_log("web", "main", "first")?;
    let first = node.wait_running("web", 1)?;

    node.write(&Pod::busybox("web", &format!("echo second; {IDLE}")).empty_dir("scratch", "", None, "/scratch"))?;
    node.wait_for_log("web", "main", "second")?;
    let second = node.wait_running("web", 1)?;
    ensure!(second.sandbox.uid != first.sandbox.uid, "another spec is another static pod");
    eventually("the first pod is gone", LONG, || {
        let left: Vec<_> = node.cri()?.sandboxes()?.into_iter().filter(|one| one.uid == first.sandbox.uid).collect();
        let folder = node.root_dir().join("pods").join(&first.sandbox.uid);
        ensure!(left.is_empty() && !folder.exists(), "{left:?}, folder: {}", folder.exists());
        Ok(())
    })?;
    ensure!(node.wait_running("web", 1)?.main().identity() == second.main().identity(), "the second one is left alone");

    node.remove("web")?;
    node.wait_gone("web")?;
    leaks::wait_no_pods(&node, LONG)?;
    node.finish()
}

#[test]
fn a_half_written_or_unreadable_manifest_keeps_the_running_pod() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    let pod = Pod::busybox("web", &format!("echo one; {IDLE}"));
    node.write(&pod)?;
    let before = node.wait_running("web", 1)?;
    let unchanged = || {
        let now = node.wait_running("web", 1)?;
        ensure!(now.main().identity() == before.main().identity(), "{:?} became {:?}", before.main(), now.main());
        Ok(())
    };

    let whole = pod.to_json();
    let path = node.manifests().join("web.yaml");
    for broken in [
        &whole[..whole.len() / 2],
        "",
        "kind: [",
        "just text",
        "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n",
    ] {
        std::fs::write(&path, broken)?;
        holds_for(
            &format!("the pod survives {:?}", &broken[..broken.len().min(20)]),
            Duration::from_secs(1),
            unchanged,
        )?;
    }
    eventually("the source names the broken file", LONG, || {
        let sources = node.agent()?.node()?.sources;
        ensure!(
            sources.iter().any(|source| source.errors.iter().any(|error| error.contains("web.yaml"))),
            "{sources:?}"
        );
        Ok(())
    })?;
    // Editors' leftovers, hidden files and sub-folders are none of our business.
    for name in [".web.yaml.swp", "web.yaml~", "#web.yaml#"] {
        std::fs::write(node.manifests().join(name), "nonsense: [")?;
    }
    std::fs::create_dir(node.manifests().join("folder"))?;
    std::fs::write(node.manifests().join("folder/other.yaml"), Pod::idle("inner").to_json())?;
    // The same content again, whole: nothing to do.
    node.write(&pod)?;
    holds_for("the pod survives its own manifest", Duration::from_secs(2), unchanged)?;
    ensure!(node.cri()?.sandboxes()?.len() == 1, "a sub-folder is not read");
    node.finish()
}

#[test]
fn a_killed_container_restarts_at_once_and_then_with_back_off() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    node.write(&Pod::busybox("web", &format!("echo life; {IDLE}")))?;
    let cri = node.cri()?;
    let first = node.wait_running("web", 1)?;

    processes::signal(cri.pid(&first.main().id)?, Signal::SIGKILL);
    let second = eventually("the container is back", LONG, || {
        let now = node.wait_running("web", 1)?;
        ensure!(now.main().attempt == 1, "attempt {}", now.main().attempt);
        Ok(now)
    })?;
    let told = node.wait_pod("web", "it is known", |_| true)?.recent_events;
    ensure!(told.iter().all(|event| event.reason != "BackOff"), "it was held back: {told:?}");
    ensure!(second.sandbox.id == first.sandbox.id, "the sandbox stays");
    ensure!(second.main().annotations["io.kubernetes.container.restartCount"] == "1");
    ensure!(second.main().log_path.ends_with("/main/1.log"), "{}", second.main().log_path);

    let killed = Instant::now();
    processes::signal(cri.pid(&second.main().id)?, Signal::SIGKILL);
    let waiting = node.wait_pod("web", "it waits for its back-off", |pod| {
        pod.containers.iter().any(|one| one.state == "waiting" && one.reason == "CrashLoopBackOff")
    })?;
    ensure!(
        waiting.containers[0].restart_count == 1 && !waiting.containers[0].back_off_until.is_empty(),
        "{waiting:?}"
    );
    eventually("the container is back a second time", LONG, || {
        ensure!(cri.containers()?.iter().any(|one| one.running && one.attempt == 2));
        Ok(())
    })?;
    let waited = killed.elapsed();
    ensure!(waited > Duration::from_millis(9_500), "upstream waits 10 s, this took {waited:?}");
    node.finish()
}

#[test]
fn restart_policies_decide_what_follows_an_exit() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    node.write(&Pod::busybox("never-ok", "echo done; exit 0").restart_policy("Never"))?;
    node.write(&Pod::busybox("never-bad", "exit 3").restart_policy("Never"))?;
    node.write(&Pod::busybox("failure-ok", "exit 0").restart_policy("OnFailure"))?;
    node.write(&Pod::busybox("failure-bad", "exit 4").restart_policy("OnFailure"))?;
    node.write(&Pod::busybox("always", "exit 0"))?;

    node.wait_pod("never-ok", "it succeeded", |pod| pod.phase == "Succeeded")?;
    let failed = node.wait_pod("never-bad", "it failed", |pod| pod.phase == "Failed")?;
    ensure!(failed.containers[0].exit_code == 3, "{failed:?}");
    node.wait_pod("failure-ok", "it succeeded", |pod| pod.phase == "Succeeded")?;
    node.wait_pod("failure-bad", "it was restarted", |pod| pod.containers.iter().any(|one| one.restart_count >= 1))?;
    node.wait_pod("always", "it was restarted", |pod| pod.containers.iter().any(|one| one.restart_count >= 1))?;
    holds_for("what must not restart does not", Duration::from_secs(3), || {
        let containers = node.cri()?.containers()?;
        for pod in ["never-ok", "never-bad", "failure-ok"] {
            let name = node.pod_name(pod);
            ensure!(containers.iter().filter(|one| one.pod == name).all(|one| one.attempt == 0), "{pod} was restarted");
        }
        Ok(())
    })?;
    node.finish()
}

#[test]
fn a_pod_that_has_ended_keeps_its_log_and_is_not_run_again_by_a_restart() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let mut node = lab.node("alpha").start()?;
    let script = "echo once; echo -n last words > /dev/termination-log; exit 3";
    node.write(&Pod::busybox("job", script).restart_policy("Never").empty_dir("disk", "", None, "/disk"))?;
    let ended = |node: &bulkhead_testkit::Node| {
        node.wait_pod("job", "nothing is left to do", |pod| pod.phase == "Failed" && pod.why.starts_with("finished"))
    };
    ended(&node)?;
    let name = node.pod_name("job");
    let container = || -> Result<String> {
        let all = node.cri()?.containers()?;
        let [one] = all.as_slice() else { bail!("one dead container is kept: {all:?}") };
        ensure!(one.pod == name && !one.running && one.attempt == 0, "{one:?}");
        Ok(one.id.clone())
    };
    let first = container()?;
    ensure!(node.logs("job", "main").len() == 1, "its log is kept");

    node.kill_daemon("kubelet-syncd")?;
    node.wait_healthy()?;
    let again = ended(&node)?;
    ensure!(again.containers[0].exit_code == 3 && again.containers[0].message == "last words", "{again:?}");
    let all = node.cri()?.containers()?;
    ensure!(all.len() == 1 && all[0].id == first, "it was run again: {all:?}");

    node.remove("job")?;
    leaks::wait_no_pods(&node, LONG)?;
    ensure!(node.log_folders("job").is_empty(), "the logs go with the manifest");
    node.finish()
}

#[test]
fn a_pod_that_cannot_start_is_not_tried_without_pause() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    node.write(&Pod::idle("root").container_field("securityContext", json!({"runAsNonRoot": true})))?;
    node.wait_pod("root", "it is refused", |pod| {
        pod.containers.iter().any(|one| one.reason == "CreateContainerConfigError")
    })?;
    holds_for("it waits for its time", Duration::from_secs(4), || {
        let tried = node.ctl(&["events"])?.lines().filter(|line| line.contains(" Failed ")).count();
        // Once, and once more because the sandbox that came up with it is news.
        ensure!(tried <= 3, "tried {tried} times already");
        Ok(())
    })?;
    node.finish()
}

#[test]
fn leftovers_of_pods_removed_while_the_agent_was_down_are_cleaned_up() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let mut node = lab.node("alpha").start()?;
    node.write(&Pod::idle("gone").empty_dir("memory", "Memory", Some("1Mi"), "/memory"))?;
    node.write(&Pod::busybox("over", "exit 0").restart_policy("Never"))?;
    node.wait_running("gone", 1)?;
    node.wait_pod("over", "it succeeded", |pod| pod.phase == "Succeeded")?;
    node.kill_everything();
    node.remove_all()?;
    node.launch()?;
    node.wait_healthy()?;
    // The last sandbox goes in the second pass of garbage collection.
    leaks::wait_no_pods(&node, Duration::from_secs(90))?;
    node.finish()
}

/// The cable is put in late: nothing but what needs an address waits for it, and nobody has to restart anything.
#[test]
fn a_node_without_a_route_runs_pods_and_notices_the_route() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let netns = lab.netns().name();
    machine::run("ip", &["-n", &netns, "route", "del", "default"])?;
    let node = lab.node("alpha").start()?;
    let exec = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    node.write(&Pod::idle("host").host_network().container_field("startupProbe", exec))?;
    let name = node.pod_name("host");
    let seen = || -> Result<Value> {
        let all: Value = serde_json::from_str(&node.ctl(&["pods", "-o", "json"])?)?;
        let pod = all.as_array().into_iter().flatten().find(|pod| pod["name"] == name.as_str());
        pod.cloned().context("no such pod")
    };
    eventually("the probe has passed without an address", LONG, || {
        let pod = seen()?;
        ensure!(pod["containers"][0]["ready"] == true && pod["ips"] == json!([]), "{pod}");
        Ok(())
    })?;
    machine::run("ip", &["-n", &netns, "route", "add", "default", "via", &lab.netns().gateway().to_string()])?;
    let address = lab.netns().address().to_string();
    eventually("the pod has the node's address", LONG, || {
        let pod = seen()?;
        ensure!(pod["ips"] == json!([address]), "{pod}");
        Ok(())
    })?;
    node.finish()
}

#[test]
fn a_host_network_pod_shares_the_node_s_network() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    node.write(&Pod::busybox("host", &format!("ip -4 -o addr show eth0; cat /etc/hosts; {IDLE}")).host_network())?;
    let address = lab.netns().address().to_string();
    node.wait_for_log("host", "main", &address)?;
    node.wait_for_log("host", "main", "# Kubernetes-managed hosts file (host network).")?;
    ensure!(lab.containerd().addresses().is_empty(), "no address was taken: {:?}", lab.containerd().addresses());
    let state = node.wait_pod("host", "it runs", |pod| pod.phase == "Running")?;
    ensure!(state.host_network && state.ips == [address], "{state:?}");
    node.finish()
}

#[test]
fn empty_dirs_on_disk_and_in_memory_are_there_with_their_limits() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    let pod =
        Pod::busybox("vol", &format!("echo from main > /disk/file; df -k /memory | tail -1; stat -c %a /disk; {IDLE}"))
            .and_container(
                "peer",
                &format!("until [ -f /disk/file ]; do sleep 0.1; done; echo peer sees $(cat /disk/file); {IDLE}"),
            )
            .empty_dir("disk", "", None, "/disk")
            .empty_dir("memory", "Memory", Some("8Mi"), "/memory");
    node.write(&pod)?;
    node.wait_for_log("vol", "peer", "peer sees from main")?;
    let log = std::fs::read_to_string(node.wait_for_log("vol", "main", "tmpfs")?)?;
    ensure!(log.contains(" 8192 "), "the limit of 8 Mi is the size of the tmpfs: {log}");
    node.wait_for_log("vol", "main", "777")?;

    let running = node.wait_running("vol", 2)?;
    let volumes = node.root_dir().join("pods").join(&running.sandbox.uid).join("volumes/kubernetes.io~empty-dir");
    ensure!(std::fs::read_to_string(volumes.join("disk/file"))?.trim() == "from main");
    let too_much =
        node.cri()?.exec(&running.main().id, &["dd", "if=/dev/zero", "of=/memory/big", "bs=1M", "count=9"])?;
    ensure!(too_much.0 != 0, "9 Mi do not fit: {}", too_much.1);

    // A restart of a container keeps the content; the end of the pod removes it.
    processes::signal(node.cri()?.pid(&running.main().id)?, Signal::SIGKILL);
    eventually("the container is back", LONG, || {
        let containers = node.cri()?.containers()?;
        ensure!(containers.iter().any(|one| one.name == "main" && one.attempt == 1 && one.running), "{containers:?}");
        Ok(())
    })?;
    ensure!(volumes.join("memory/big").exists());
    node.remove("vol")?;
    node.wait_gone("vol")?;
    eventually("the volumes are gone", LONG, || {
        ensure!(!volumes.exists());
        Ok(())
    })?;
    node.finish()
}

#[test]
fn host_paths_are_checked_against_their_type() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    let base = lab.folder().join("host");
    std::fs::create_dir_all(base.join("dir"))?;
    std::fs::write(base.join("file"), "a file\n")?;
    let at = |name: &str| base.join(name).display().to_string();
    let show = format!("ls -ld /v; {IDLE}");

    for (name, path, kind) in [
        ("any", at("dir"), ""),
        ("dir", at("dir"), "Directory"),
        ("made-dir", at("made/dir"), "DirectoryOrCreate"),
        ("file", at("file"), "File"),
        ("made-file", at("made-file"), "FileOrCreate"),
        ("socket", lab.containerd().socket().display().to_string(), "Socket"),
        ("char", "/dev/null".to_owned(), "CharDevice"),
    ] {
        node.write(&Pod::busybox(name, &show).host_path("v", &path, kind, "/v"))?;
        node.wait_for_log(name, "main", "/v").with_context(|| format!("hostPath of type {kind:?} at {path}"))?;
    }
    ensure!(base.join("made/dir").is_dir() && base.join("made-file").is_file());

    for (name, path, kind) in [
        ("not-a-dir", at("file"), "Directory"),
        ("not-a-file", at("dir"), "File"),
        ("missing", at("nothing"), "File"),
        ("not-a-socket", at("file"), "Socket"),
        ("not-a-char", at("file"), "CharDevice"),
        ("not-a-block", "/dev/null".to_owned(), "BlockDevice"),
    ] {
        node.write(&Pod::busybox(name, &show).host_path("v", &path, kind, "/v"))?;
        node.wait_pod(name, "its volume is refused", |pod| {
            pod.volumes.iter().any(|volume| !volume.ready && volume.error.contains("hostPath type check failed"))
        })?;
        let pod_name = node.pod_name(name);
        ensure!(node.cri()?.containers()?.iter().all(|one| one.pod != pod_name), "{name} must not run");
    }
    ensure!(!base.join("nothing").exists(), "a check creates nothing");
    node.finish()
}

#[test]
fn pods_come_from_a_url_with_its_headers() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let list = json!({"apiVersion": "v1", "kind": "PodList", "items": [
        Pod::busybox("one", &format!("echo from the web; {IDLE}")).value(),
        Pod::idle("two").value(),
    ]});
    let (url, requests) = serve(&lab, list)?;
    let node = lab
        .node("alpha")
        .config("staticPodPath", Value::Null)
        .config("staticPodURL", json!(url))
        .config("staticPodURLHeader", json!({"X-Lab": ["yes"]}))
        .start()?;
    node.wait_for_log("one", "main", "from the web")?;
    let two = node.wait_running("two", 1)?;
    ensure!(two.sandbox.annotations.get("kubernetes.io/config.source").map(String::as_str) == Some("http"));
    let head = requests.recv_timeout(LONG)?.to_ascii_lowercase();
    ensure!(head.contains("x-lab: yes"), "{head}");
    let (status, _) = (node.is_healthy(), node.abandon());
    status
}

/// A web server inside the lab that answers everything with `body`, and hands out the heads of requests.
fn serve(lab: &Lab, body: Value) -> Result<(String, Receiver<String>)> {
    let listener = netns::run_in(&lab.netns().path(), || Ok(TcpListener::bind("127.0.0.1:0")?))?;
    let url = format!("http://{}/pods", listener.local_addr()?);
    let (sender, receiver) = sync_channel(16);
    let body = body.to_string();
    // Ends with the test's process; nothing waits for it.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream);
            let mut head = String::new();
            while reader.read_line(&mut head).is_ok_and(|read| read > 2) {}
            let mut stream = reader.into_inner();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = sender.try_send(head);
        }
    });
    Ok((url, receiver))
}

#[test]
fn the_static_pod_path_may_be_one_file() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let file = lab.folder().join("single.yaml");
    std::fs::write(&file, Pod::busybox("solo", &format!("echo version one; {IDLE}")).to_json())?;
    let node = lab.node("alpha").config("staticPodPath", json!(file)).start()?;
    node.wait_for_log("solo", "main", "version one")?;
    let draft = lab.folder().join("draft");
    std::fs::write(&draft, Pod::busybox("solo", &format!("echo version two; {IDLE}")).to_json())?;
    std::fs::rename(&draft, &file)?;
    node.wait_for_log("solo", "main", "version two")?;
    std::fs::remove_file(&file)?;
    node.wait_gone("solo")?;
    node.finish()
}

#[test]
fn a_pod_with_a_missing_image_shows_err_image_never_pull() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    let absent = json!("bulkhead.test/absent:1");
    node.write(
        &Pod::idle("never").container_field("image", absent).container_field("imagePullPolicy", json!("Never")),
    )?;
    node.wait_pod("never", "its image is refused", |pod| {
        pod.containers.iter().any(|one| one.state == "waiting" && one.reason == "ErrImageNeverPull")
    })?;
    if node.cri()?.containers()?.iter().any(|one| one.running) {
        bail!("a container runs without its image");
    }
    node.finish()
}
