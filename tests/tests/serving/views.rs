//! What a node shows of itself: pods, configuration, health, files below /var/log and the log query, the pages and switches
//! for debugging; on the main server, on the read-only port, and with each of it turned off.

use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::cluster::client::{Answer, Credential};
use bulkhead_testkit::https::Https;
use bulkhead_testkit::processes::{signal, status_line};
use bulkhead_testkit::{Cluster, LONG, Lab, Node, Pod, eventually};
use bulkhead_tests::joined::{NODE, create, wait_ready};
use bulkhead_tests::journald::{self, Journal, reader_of};
use bulkhead_tests::lab;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const HOUR: Duration = Duration::from_secs(3600);
const TEXT: &str = "text/plain; charset=utf-8";

struct World {
    cluster: Cluster,
    node: Node,
    main: Https,
    read_only: Https,
}

fn start(lab: &Lab) -> Result<World> {
    let cluster = lab.cluster()?;
    let node = lab.node(NODE).config("readOnlyPort", json!(10255)).config("enableSystemLogQuery", json!(true));
    let node = node.config("staticPodURLHeader", json!({"X-Token": ["hidden-words"]})).joins(&cluster)?.start()?;
    let admin = Credential::Certificate(cluster.client_certificate("admin", "system:masters", HOUR)?);
    let address = |port| SocketAddr::new(lab.netns().address().into(), port);
    let main = Https::new(address(10250), &admin);
    Ok(World { cluster, node, main, read_only: Https::plain(address(10255)) })
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

fn header<'a>(answer: &'a Answer, name: &str) -> &'a str {
    answer.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Status and body of each path.
fn all_are(server: &Https, table: &[(&str, &str, u16, &str)]) -> Result<()> {
    for (method, path, status, body) in table {
        let answer = server.request(method, path, &[], b"")?;
        let got = text(&answer);
        ensure!((answer.status, got.as_str()) == (*status, *body), "{method} {path}: {} {got:?}", answer.status);
    }
    Ok(())
}

#[test]
fn a_node_shows_what_it_is_and_has() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let world = start(&lab)?;
    world.node.write(&Pod::idle("fixed"))?;
    create(&world.cluster, Pod::idle("bound").empty_dir("v", "", None, "/v"))?;
    wait_ready(&world.cluster, "bound")?;
    wait_ready(&world.cluster, &world.node.pod_name("fixed"))?;
    pods(&world)?;
    running_pods(&world)?;
    configuration(&world)?;
    health(&world)?;
    pages(&world)?;
    verbosity(&world)?;
    all_are(
        &world.main,
        &[
            ("GET", "/", 404, "404 page not found\n"),
            ("GET", "/nothing", 404, "404 page not found\n"),
            ("GET", "/stats/nothing", 404, "404: Page Not Found"),
            ("DELETE", "/pods", 405, "405: Method Not Allowed"),
            ("HEAD", "/pods", 405, ""),
            ("GET", "/run/default/x/main", 405, "405: Method Not Allowed"),
            ("PUT", "/logs/", 405, "405: Method Not Allowed"),
        ],
    )?;
    ensure!(header(&world.main.request("DELETE", "/pods", &[], b"")?, "allow") == "GET");
    read_only(&world)?;
    world.node.finish()
}

fn pods(world: &World) -> Result<()> {
    let fixed = world.node.pod_name("fixed");
    for server in [&world.main, &world.read_only] {
        let answer = server.get("/pods")?;
        ensure!(answer.status == 200 && header(&answer, "content-type") == "application/json", "{}", answer.status);
        let body = text(&answer);
        let begin = r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[{"metadata":{"name":"#;
        ensure!(body.starts_with(begin) && body.ends_with("]}\n"), "{body:.300}");
        let list = answer.json();
        let items = list["items"].as_array().context("no items")?;
        let names: Vec<&str> = items.iter().filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
        ensure!(names == ["bound", fixed.as_str()], "{names:?}");
        for (pod, source) in items.iter().zip(["api", "file"]) {
            let annotations = &pod["metadata"]["annotations"];
            ensure!(annotations["kubernetes.io/config.source"] == source, "{annotations}");
            let seen = annotations["kubernetes.io/config.seen"].as_str().unwrap_or_default();
            ensure!(seen.len() == 30 && seen.ends_with('Z'), "{seen}");
            ensure!(pod["status"]["phase"] == "Running", "{}", pod["status"]);
            ensure!(pod["spec"]["containers"][0]["name"] == "main" && pod["spec"]["nodeName"] == NODE);
            ensure!(pod["spec"]["containers"][0]["resources"] == json!({}));
        }
        let hash = &items[1]["metadata"]["annotations"]["kubernetes.io/config.hash"];
        ensure!(
            *hash == items[1]["metadata"]["uid"]
                && items[0]["metadata"]["annotations"]["kubernetes.io/config.hash"].is_null()
        );
        let container = &items[1]["status"]["containerStatuses"][0];
        ensure!(
            container["ready"] == true && container["state"]["running"].is_object(),
            "the live status: {container}"
        );
        let managers = world.cluster.get("pods", "default", "bound")?["metadata"]["managedFields"].clone();
        ensure!(managers.is_null() == items[0]["metadata"]["managedFields"].is_null(), "{managers}");
    }
    Ok(())
}

fn running_pods(world: &World) -> Result<()> {
    let moved = world.main.get("/runningpods?x=y")?;
    ensure!(moved.status == 307 && header(&moved, "location") == "/runningpods/?x=y", "{}", moved.status);
    let answer = world.main.get("/runningpods/")?;
    let list = answer.json();
    let mut items = list["items"].as_array().context("no items")?.clone();
    items.sort_by_key(|pod| pod["metadata"]["name"].to_string());
    let uid = &world.cluster.get("pods", "default", "bound")?["metadata"]["uid"];
    let image = items[0]["spec"]["containers"][0]["image"].clone();
    ensure!(image.as_str().is_some_and(|image| !image.is_empty()), "{list}");
    let expected = json!({"metadata": {"name": "bound", "namespace": "default", "uid": uid},
        "spec": {"containers": [{"name": "main", "image": image, "resources": {}}]}, "status": {}});
    ensure!(items.len() == 2 && items[0] == expected, "{list:#}");
    Ok(())
}

fn configuration(world: &World) -> Result<()> {
    let answer = world.main.get("/configz")?;
    ensure!(header(&answer, "content-type") == "application/json");
    let body = text(&answer);
    let begin = r#"{"kubeletconfig":{"kind":"KubeletConfiguration","apiVersion":"kubelet.config.k8s.io/v1beta1","enableServer":true,"#;
    ensure!(body.starts_with(begin), "{body:.300}");
    let config = &answer.json()["kubeletconfig"];
    for (field, value) in [
        ("readOnlyPort", json!(10255)),
        ("syncFrequency", json!("1m0s")),
        ("enableSystemLogQuery", json!(true)),
        (
            "authorization",
            json!({"mode": "Webhook", "webhook": {"cacheAuthorizedTTL": "5m0s", "cacheUnauthorizedTTL": "30s"}}),
        ),
        ("staticPodURLHeader", json!({"X-Token": ["hidden-words"]})),
    ] {
        ensure!(config[field] == value, "{field}: {}", config[field]);
    }
    Ok(())
}

fn health(world: &World) -> Result<()> {
    let listed = "[+]ping ok\n[+]log ok\n[+]syncloop ok\n[+]device-plugin ok\nhealthz check passed\n";
    let without = "[+]ping ok\n[+]log excluded: ok\n[+]syncloop ok\n[+]device-plugin ok\nwarn: some health checks cannot be excluded: \
                   no matches for \"x\"\nhealthz check passed\n";
    for server in [&world.main, &world.read_only] {
        all_are(
            server,
            &[
                ("GET", "/healthz", 200, "ok"),
                ("POST", "/healthz", 200, "ok"),
                ("GET", "/healthz?verbose", 200, listed),
                ("GET", "/healthz?verbose=true&exclude=log&exclude=x", 200, without),
                ("GET", "/healthz/ping", 200, "ok"),
                ("GET", "/healthz/log", 200, "ok"),
                ("GET", "/healthz/syncloop", 200, "ok"),
                ("GET", "/healthz/device-plugin", 200, "ok"),
                ("GET", "/healthz/pleg", 404, "404 page not found\n"),
                ("GET", "/healthz/", 404, "404 page not found\n"),
            ],
        )?;
        let answer = server.get("/healthz")?;
        ensure!(header(&answer, "content-type") == TEXT && header(&answer, "x-content-type-options") == "nosniff");
    }
    Ok(())
}

fn pages(world: &World) -> Result<()> {
    let flags = text(&world.main.get("/flagz")?);
    let begin = "\nkubelet flagz\nWarning: This endpoint is not meant to be machine parseable";
    ensure!(flags.starts_with(begin) && flags.contains("\nread-only-port=10255\n"), "{flags:.300}");
    let accept = |kind: &str, as_: &str| format!("{kind};v=v1beta1;g=config.k8s.io;as={as_}");
    let structured = world.main.request("GET", "/flagz", &[("accept", &accept("application/json", "Flagz"))], b"")?;
    ensure!(
        structured.json()["flags"]["node-ip"] == world.node.lab().netns().address().to_string(),
        "{}",
        text(&structured)
    );
    let status = world.main.request("GET", "/statusz", &[("accept", &accept("application/json", "Statusz"))], b"")?;
    let shown = status.json();
    ensure!(shown["metadata"]["name"] == "kubelet" && shown["emulationVersion"] == "1.36", "{shown}");
    ensure!(shown["paths"] == json!(["/configz", "/debug", "/flagz", "/healthz", "/metrics"]), "{shown}");
    let plain = world.main.get("/statusz")?;
    ensure!(header(&plain, "content-type") == TEXT && text(&plain).contains("\nUp: 0 hr "), "{}", text(&plain));
    let refused = world.main.request("GET", "/statusz", &[("accept", "application/json")], b"")?;
    ensure!(refused.status == 406 && refused.json()["reason"] == "NotAcceptable", "{}", text(&refused));

    let words = world.main.get("/debug/pprof/cmdline")?;
    ensure!(words.status == 200 && text(&words).contains("\0--config"), "{:?}", text(&words));
    ensure!(world.main.get("/debug/pprof/")?.status == 200 && world.main.get("/debug/pprof/heap")?.status == 501);
    all_are(&world.main, &[("GET", "/debug/pprof/none", 404, "Unknown profile\n")])
}

fn verbosity(world: &World) -> Result<()> {
    let put = |body: &[u8]| world.main.request("PUT", "/debug/flags/v", &[], body);
    let bad = put(b"loud")?;
    let words = "strconv.ParseUint: parsing \"loud\": invalid syntax\n";
    ensure!((bad.status, text(&bad).as_str()) == (400, words), "{}", text(&bad));
    ensure!(put(&[b'1'; 10_000])?.status == 400);
    all_are(&world.main, &[("GET", "/debug/flags/v", 406, "unsupported http method\n")])?;
    let said = |pid: i32| format!(" {pid:>7} daemon/process_service.rs:");
    let good = put(b"4")?;
    ensure!((good.status, text(&good).as_str()) == (200, "successfully set klog.logging.verbosity to 4\n"));
    let log = std::fs::read_to_string(world.node.log())?;
    let pids = world.node.pids();
    for process in ["kubelet-syncd", "kubelet-volnetd", "kubelet-evictiond"] {
        let pid = *pids.get(process).with_context(|| format!("{process} does not run"))?;
        let told = log.lines().any(|line| line.contains(&said(pid)) && line.contains("log verbosity is changed"));
        ensure!(told, "{process} was not told");
    }
    ensure!(put(b"0")?.status == 200);
    Ok(())
}

fn read_only(world: &World) -> Result<()> {
    let disabled = "Debug endpoints are disabled.\n";
    for path in [
        "run/a/b/c",
        "exec/a/b/c",
        "attach/x",
        "portForward/x",
        "containerLogs/a/b/c",
        "runningpods/",
        "logs/",
        "debug/pprof/heap",
    ] {
        all_are(&world.read_only, &[("GET", &format!("/{path}"), 405, disabled)])?;
    }
    for path in ["/configz", "/debug/flags/v", "/checkpoint/a/b/c", "/flagz", "/statusz", "/", "/nothing"] {
        all_are(&world.read_only, &[("GET", path, 404, "404 page not found\n")])?;
    }
    for (method, path) in
        [("POST", "/stats/summary"), ("GET", "/stats/summary"), ("GET", "/metrics"), ("GET", "/metrics/resource")]
    {
        ensure!(world.read_only.request(method, path, &[], b"")?.status == 200, "{method} {path}");
    }
    Ok(())
}

/// A folder of this test's own below the machine's /var/log.
struct Logs(PathBuf);

impl Logs {
    fn new() -> Result<Self> {
        let folder = Path::new("/var/log").join(format!("bulkhead-views-{}", std::process::id()));
        std::fs::create_dir(&folder)?;
        Ok(Logs(folder))
    }

    fn name(&self) -> String {
        self.0.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn files_of_the_node_and_nothing_beside_them() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let logs = Logs::new()?;
    let open = json!({"anonymous": {"enabled": true}, "webhook": {"enabled": false}});
    let node = lab.node(NODE).config("authentication", open).config("authorization", json!({"mode": "AlwaysAllow"}));
    let node = node.config("enableSystemLogQuery", json!(true)).start()?;
    let https = Https::new((lab.netns().address(), 10250).into(), &Credential::Nothing);
    files(&https, &logs)?;
    escapes(&https, &logs, lab.folder().as_path())?;
    query(&https, &logs)?;
    journal(&node, &https, &logs)?;
    if let Some(journal) = journald::write(&["one plain", "two ERROR", "three plain"])? {
        units(&https, &journal, &logs)?;
        // Who asks starts again, and so does its way to the reader.
        node.kill_daemon("kubelet-statusd")?;
        let asked = format!("/logs/?query={}", journal.service);
        eventually("the journal is asked again", LONG, || {
            let shown = text(&https.get(&asked)?);
            ensure!(shown.contains("one plain"), "{shown}");
            Ok(())
        })?;
    }
    let launcher = *node.pids().get("kubelet").context("no launcher")?;
    node.finish()?;
    ensure!(reader_of(launcher).is_err(), "the reader of the journal ends with its node");
    Ok(())
}

fn files(https: &Https, logs: &Logs) -> Result<()> {
    let name = logs.name();
    let base = format!("/logs/{name}");
    std::fs::create_dir_all(logs.0.join("sub/web"))?;
    std::fs::write(logs.0.join("a.log"), "0123456789")?;
    std::fs::write(logs.0.join("sub/<b>.txt"), "b")?;
    std::fs::write(logs.0.join("sub/web/index.html"), "<html>hi</html>")?;
    std::fs::write(logs.0.join("big"), vec![b'x'; 3 << 20])?;
    symlink("sub/<b>.txt", logs.0.join("inside"))?;
    symlink(logs.0.join("sub"), logs.0.join("absolute"))?;

    let root = https.get("/logs/")?;
    ensure!(
        header(&root, "content-type") == "text/html; charset=utf-8"
            && text(&root).contains(&format!("<a href=\"{name}/\">"))
    );
    let moved = https.get("/logs")?;
    ensure!((moved.status, header(&moved, "location")) == (307, "/logs/"));
    for (path, location) in [
        (base.clone(), format!("{name}/")),
        (format!("{base}/a.log/"), "../a.log".to_owned()),
        (format!("{base}/sub/web/index.html"), "./".to_owned()),
    ] {
        let moved = https.get(&path)?;
        ensure!(
            (moved.status, header(&moved, "location")) == (301, location.as_str()),
            "{path}: {} {}",
            moved.status,
            header(&moved, "location")
        );
    }
    let page = text(&https.get(&format!("{base}/sub/"))?);
    ensure!(
        page.ends_with("<pre>\n<a href=\"%3Cb%3E.txt\">&lt;b&gt;.txt</a>\n<a href=\"web/\">web/</a>\n</pre>\n"),
        "{page}"
    );
    let index = https.get(&format!("{base}/sub/web/"))?;
    ensure!(text(&index) == "<html>hi</html>" && header(&index, "content-type") == "text/html; charset=utf-8");
    for path in ["inside", "absolute/%3Cb%3E.txt", "sub/%3cb%3e.txt"] {
        ensure!(text(&https.get(&format!("{base}/{path}"))?) == "b", "{path}");
    }
    let file = format!("{base}/a.log");
    let whole = https.get(&file)?;
    ensure!(
        (text(&whole).as_str(), header(&whole, "content-type"), header(&whole, "accept-ranges"))
            == ("0123456789", TEXT, "bytes")
    );
    let part = https.request("GET", &file, &[("range", "bytes=-3")], b"")?;
    ensure!((part.status, text(&part).as_str(), header(&part, "content-range")) == (206, "789", "bytes 7-9/10"));
    ensure!(https.request("GET", &file, &[("range", "bytes=10-")], b"")?.status == 416);
    let since = header(&whole, "last-modified").to_owned();
    ensure!(https.request("GET", &file, &[("if-modified-since", &since)], b"")?.status == 304);
    ensure!(https.get(&format!("{base}/big"))?.body.len() == 3 << 20);
    Ok(())
}

/// No way out of /var/log, whatever a path, a link or a pod has put there.
fn escapes(https: &Https, logs: &Logs, secrets: &Path) -> Result<()> {
    let base = format!("/logs/{}", logs.name());
    let secret = secrets.join("secret");
    std::fs::write(&secret, "top secret")?;
    symlink(&secret, logs.0.join("out"))?;
    symlink("../../../../../../../../etc/passwd", logs.0.join("up"))?;
    symlink(secrets, logs.0.join("folder"))?;
    symlink("/proc/self/root/etc/passwd", logs.0.join("magic"))?;
    let fifo = logs.0.join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status()?;
    ensure!(made.success());
    for (path, status, location) in [
        (format!("{base}/out"), 403, ""),
        (format!("{base}/up"), 403, ""),
        (format!("{base}/folder/secret"), 403, ""),
        (format!("{base}/folder/"), 403, ""),
        (format!("{base}/magic"), 403, ""),
        (format!("{base}/fifo"), 403, ""),
        (format!("{base}/none"), 404, ""),
        (format!("{base}/a.log/x"), 404, ""),
        (format!("{base}/a%00.log"), 404, ""),
        ("/logs/../../etc/passwd".to_owned(), 307, "/etc/passwd"),
        ("/logs/%2e%2e/%2e%2e/etc/passwd".to_owned(), 307, "/etc/passwd"),
        ("/logs/..%2f..%2fetc%2fpasswd".to_owned(), 307, "/etc/passwd"),
        ("/logs//etc/passwd".to_owned(), 307, "/logs/etc/passwd"),
        ("/logs/%2fetc/passwd".to_owned(), 307, "/logs/etc/passwd"),
        ("/logs/etc/passwd".to_owned(), 404, ""),
        ("/logs/..%5c..%5cetc%5cpasswd".to_owned(), 404, ""),
        ("/logs/%252e%252e/etc/passwd".to_owned(), 404, ""),
    ] {
        let answer = https.get(&path)?;
        let got = (answer.status, header(&answer, "location"));
        ensure!(got == (status, location), "{path}: {got:?}");
        ensure!(!text(&answer).contains("top secret") && !text(&answer).contains("root:"), "{path}");
    }
    Ok(())
}

fn query(https: &Https, logs: &Logs) -> Result<()> {
    let name = logs.name();
    for (asked, status, words) in [
        ("query=", 400, "query: Invalid value: [\"\"]: query cannot be empty\n".to_owned()),
        ("query=a&sinceTime=soon", 400, "sinceTime: Invalid value: \"soon\": invalid time format\n".to_owned()),
        ("tailLines=5", 406, "query: Required value: cannot be empty with options\n".to_owned()),
        ("query=a%20b", 406, "query: Invalid value: \"a b\": input contains unsupported characters\n".to_owned()),
        (
            "query=/../etc/passwd",
            406,
            "query: Invalid value: [\"/../etc/passwd\"]: statat /../etc/passwd: path escapes from parent, or is no file\n".to_owned(),
        ),
        ("query=/no/such", 406, "query: Invalid value: [\"/no/such\"]: statat /no/such: no such file or directory\n".to_owned()),
        (
            "query=/x&tailLines=1",
            406,
            "query: Invalid value: [\"/x\"]: cannot specify file with options\n".to_owned(),
        ),
    ] {
        let answer = https.get(&format!("/logs/?{asked}"))?;
        ensure!((answer.status, text(&answer)) == (status, words), "{asked}: {} {:?}", answer.status, text(&answer));
    }
    let out = https.get(&format!("/logs/?query=/{name}/out"))?;
    ensure!(out.status == 406 && text(&out).contains("path escapes"), "{}", text(&out));
    ensure!(text(&https.get(&format!("/logs/?query=/{name}/a.log"))?) == "0123456789");
    ensure!(text(&https.get(&format!("/logs/?query={name}/a.log"))?) == "0123456789");
    let with_path = https.get(&format!("/logs/{name}/a.log?query=kubelet"))?;
    ensure!((with_path.status, text(&with_path).as_str()) == (406, "path not allowed in query mode\n"));
    // What asks for nothing asks for the file.
    ensure!(text(&https.get(&format!("/logs/{name}/a.log?other=1"))?) == "0123456789");
    Ok(())
}

/// Services: one that logs to a file, one that nobody knows, and who reads the journal.
fn journal(node: &Node, https: &Https, logs: &Logs) -> Result<()> {
    let service = logs.name();
    let asked = format!("/logs/?query={service}");
    std::fs::write(logs.0.join(format!("{service}.log")), "of the service\n")?;
    let answer = https.get(&asked)?;
    ensure!(header(&answer, "content-type") == "text/plain;charset=UTF-8", "{}", header(&answer, "content-type"));
    ensure!(text(&answer) == "of the service\n", "{}", text(&answer));
    let both = https.get(&format!("{asked}&query=no-such-service"))?;
    ensure!(text(&both) == "of the service\n\nlog not found for no-such-service\n", "{}", text(&both));
    let options = https.get(&format!("{asked}&tailLines=3"))?;
    let words =
        format!("\noptions present and query resolved to log files for [{service}]\ntry without specifying options\n");
    ensure!(options.status == 200 && text(&options) == words, "{}", text(&options));
    let zipped = https.request("GET", &asked, &[("accept-encoding", "gzip")], b"")?;
    ensure!(header(&zipped, "content-encoding") == "gzip" && zipped.body.starts_with(&[0x1f, 0x8b]));
    ensure!(
        header(&https.request("GET", &asked, &[("accept-encoding", "gzip, br")], b"")?, "content-encoding").is_empty()
    );

    // The reader holds nothing, is nobody's user, and comes back.
    let launcher = *node.pids().get("kubelet").context("no launcher")?;
    let reader = eventually("the journal is read by a process of its own", LONG, || reader_of(launcher))?;
    for set in ["CapEff", "CapPrm", "CapBnd", "CapAmb"] {
        ensure!(u64::from_str_radix(&status_line(reader, set)?, 16)? == 0, "{set}");
    }
    ensure!(status_line(reader, "NoNewPrivs")? == "1" && status_line(reader, "Seccomp")? == "2");
    let of = |pid: i32| {
        Ok::<_, anyhow::Error>(status_line(pid, "Uid")?.split_whitespace().next().unwrap_or_default().to_owned())
    };
    let mine = of(reader)?;
    for (process, pid) in node.pids() {
        ensure!(process == "kubelet-journal" || of(pid)? != mine, "{process} has the reader's user");
    }
    signal(reader, Signal::SIGKILL);
    ensure!(text(&https.get(&asked)?) == "of the service\n");
    eventually("it is started again", LONG, || {
        let next = reader_of(launcher)?;
        ensure!(next != reader);
        Ok(())
    })
}

/// Services that the journal has lines of.
fn units(https: &Https, journal: &Journal, logs: &Logs) -> Result<()> {
    let asked = format!("/logs/?query={}", journal.service);
    let all = text(&https.get(&asked)?);
    let lines: Vec<&str> = all.lines().filter(|line| !line.starts_with("--")).collect();
    ensure!(lines.len() == 3 && lines[0].ends_with(": one plain") && lines[2].ends_with(": three plain"), "{all}");
    ensure!(lines[0].get(..7).is_some() && lines[0].contains(" demo["), "short-precise: {all}");
    let last = text(&https.get(&format!("{asked}&tailLines=1&boot=0"))?);
    ensure!(last.contains("three plain") && !last.contains("two"), "{last}");
    let found = text(&https.get(&format!("{asked}&pattern=err.r"))?);
    ensure!(found.contains("two ERROR") && !found.contains("plain"), "{found}");
    for none in ["sinceTime=2099-01-01T00:00:00Z", "untilTime=2001-01-01T00:00:00%2B02:00", "boot=-1"] {
        let shown = text(&https.get(&format!("{asked}&{none}"))?);
        ensure!(!shown.contains("plain"), "{none}: {shown}");
    }
    // A file beside it, and what journalctl is not told.
    let both = text(&https.get(&format!("{asked}&query={}", logs.name()))?);
    ensure!(both.contains("two ERROR") && both.ends_with("of the service\n"), "{both}");
    let zipped = https.request("GET", &asked, &[("accept-encoding", "gzip")], b"")?;
    ensure!(zipped.body.starts_with(&[0x1f, 0x8b]), "{:?}", zipped.body);
    Ok(())
}

#[test]
fn disabled_handlers_are_not_served() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let start = |fields: Value| {
        let open = json!({"anonymous": {"enabled": true}, "webhook": {"enabled": false}});
        let node =
            lab.node(NODE).config("authentication", open).config("authorization", json!({"mode": "AlwaysAllow"}));
        let fields = fields.as_object().cloned().unwrap_or_default();
        fields.into_iter().fold(node, |node, (field, value)| node.config(&field, value)).start()
    };
    let https = Https::new((lab.netns().address(), 10250).into(), &Credential::Nothing);
    let gates = json!({"ComponentFlagz": false, "ComponentStatusz": false});
    let node = start(json!({"enableSystemLogHandler": false, "enableProfilingHandler": false,
        "enableDebugFlagsHandler": false, "featureGates": gates}))?;
    all_are(
        &https,
        &[
            ("GET", "/logs/", 405, "logs endpoint is disabled.\n"),
            ("GET", "/logs/wtmp", 405, "logs endpoint is disabled.\n"),
            ("GET", "/debug/pprof/heap", 405, "profiling endpoint is disabled.\n"),
            ("PUT", "/debug/flags/v", 405, "flags endpoint is disabled.\n"),
            ("GET", "/flagz", 404, "404 page not found\n"),
            ("GET", "/statusz", 404, "404 page not found\n"),
        ],
    )?;
    ensure!(https.get("/configz")?.status == 200);
    // Right after its start a node does not know its pods yet.
    let knows_its_pods = || {
        eventually("the node knows its pods", LONG, || {
            let answer = https.get("/pods")?;
            ensure!(answer.status == 200, "{}", answer.status);
            Ok(())
        })
    };
    knows_its_pods()?;
    // Nothing is wanted and nothing runs.
    let none = "{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{},\"items\":null}\n";
    all_are(&https, &[("GET", "/pods", 200, none), ("GET", "/runningpods/", 200, none)])?;
    node.finish()?;

    let node = start(json!({"enableDebuggingHandlers": false, "enableSystemLogQuery": true}))?;
    let disabled = "Debug endpoints are disabled.\n";
    knows_its_pods()?;
    all_are(
        &https,
        &[
            ("GET", "/logs/?query=kubelet", 405, disabled),
            ("POST", "/exec/a/b/c?command=id", 405, disabled),
            ("GET", "/containerLogs/a/b/c", 405, disabled),
            ("GET", "/runningpods/", 405, disabled),
            ("GET", "/debug/pprof/", 405, disabled),
            ("GET", "/configz", 404, "404 page not found\n"),
            ("PUT", "/debug/flags/v", 404, "404 page not found\n"),
            ("POST", "/checkpoint/a/b/c", 404, "404 page not found\n"),
            ("GET", "/flagz", 404, "404 page not found\n"),
            ("GET", "/healthz", 200, "ok"),
            ("GET", "/pods", 200, none),
        ],
    )?;
    let launcher = *node.pids().get("kubelet").context("no launcher")?;
    ensure!(reader_of(launcher).is_err(), "nobody can ask the reader of the journal");
    node.finish()
}
