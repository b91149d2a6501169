//! What people do with kubectl on a node, with the real kubectl, over WebSockets and over SPDY.

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::https::Https;
use bulkhead_testkit::{IDLE, LONG, Lab, eventually, machine};
use bulkhead_tests::joined::{Member, NODE};
use bulkhead_tests::kubectl::{Kubectl, Talk, Transport};
use bulkhead_tests::{Dice, lab};
use serde_json::{Value, json};

fn start(lab: &Lab) -> Result<Member> {
    Member::start(lab, &[], |node| node)
}

/// Sixteen MiB and a bit, that no coding makes smaller and no text reader leaves alone.
fn noise(dice: &mut Dice) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((16 << 20) + 13);
    while bytes.len() < (16 << 20) + 13 {
        bytes.push(u8::try_from(dice.below(256)).unwrap_or_default());
    }
    bytes
}

/// Lines of a text, without those that kubectl adds on its own.
fn lines(text: &str) -> Vec<&str> {
    text.lines().collect()
}

#[test]
fn logs_with_every_flag() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let member = start(&lab)?;
    let kubectl = Kubectl::new(&member.cluster, Transport::WebSocket)?;
    let talker = "echo early; echo 'ünd'; sleep 2; echo late-1; echo late-2; echo end; until [ -f /tmp/go ]; do \
                  sleep 0.1; done; echo after; exit 0";
    let long = "head -c 40000 /dev/zero | tr '\\0' x; echo; head -c 20000 /dev/zero | tr '\\0' y; echo";
    let container = |name: &str, script: &str| json!({"name": name, "command": ["sh", "-c", script]});
    member.create_with(
        &json!({"name": "talker", "labels": {"app": "talk"}}),
        &json!({"restartPolicy": "Never", "containers": [
            container("main", talker), container("side", &format!("echo aside >&2; {IDLE}")),
        ]}),
    )?;
    let idle = format!("{long}; {IDLE}");
    member.create_with(
        &json!({"name": "long", "labels": {"app": "talk"}}),
        &json!({"containers": [container("main", &idle)]}),
    )?;
    let again = format!("if [ -f /data/x ]; then echo second; {IDLE}; fi; touch /data/x; printf first; exit 3");
    let mut twice = container("main", &again);
    twice["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    member.create("twice", &json!({"containers": [twice], "volumes": [{"name": "data", "emptyDir": {}}]}))?;
    member.wait_ready("talker")?;
    let mut follower = kubectl.start(&["logs", "-f", "talker", "-c", "main"])?;
    follower.wait_for("end")?;

    let main = ["logs", "talker", "-c", "main"];
    let with = |flags: &[&str]| kubectl.say(&[&main, flags].concat());
    let all = "early\nünd\nlate-1\nlate-2\nend\n";
    ensure!(with(&[])? == all, "{:?}", with(&[])?);
    ensure!(with(&["--since=1h"])? == all, "since an hour");
    for (flags, expected) in [
        (&["--tail=2"][..], "late-2\nend\n"),
        (&["--tail=0"], ""),
        (&["--limit-bytes=8"], "early\n\u{fc}"),
        (&["--tail=3", "--limit-bytes=4"], "late"),
    ] {
        let seen = with(flags)?;
        ensure!(seen == expected, "{flags:?}: {seen:?}");
    }
    let stamped = with(&["--timestamps"])?;
    let mut late = String::new();
    for (line, text) in lines(&stamped).into_iter().zip(all.lines()) {
        let (stamp, rest) = line.split_once(' ').with_context(|| format!("no time in {line:?}"))?;
        let fits = stamp.len() > 20 && stamp.contains('T') && (stamp.ends_with('Z') || stamp.contains('+'));
        ensure!(fits && rest == text, "{line:?}");
        if rest == "late-1" {
            stamp.clone_into(&mut late);
        }
    }
    // Whole seconds are what the API carries; between early and late there are two.
    let late = format!("{}Z", late.get(..19).context("a short time")?);
    ensure!(with(&[&format!("--since-time={late}")])? == "late-1\nlate-2\nend\n", "since {late}");

    let side = kubectl.say(&["logs", "talker", "--container=side"])?;
    ensure!(side == "aside\n", "{side:?}");
    let both = kubectl.say(&["logs", "talker", "--all-containers", "--prefix"])?;
    for line in ["[pod/talker/main] early", "[pod/talker/side] aside"] {
        ensure!(both.contains(line), "no {line} in {both}");
    }
    member.wait_ready("long")?;
    let expected = format!("{}\n{}\n", "x".repeat(40_000), "y".repeat(20_000));
    eventually("the long lines come whole", LONG, || {
        let long = kubectl.say(&["logs", "long"])?;
        ensure!(long == expected, "{} bytes instead of {}", long.len(), expected.len());
        Ok(())
    })?;
    let labelled = kubectl.say(&["logs", "-l", "app=talk", "--all-containers", "--tail=1", "--prefix"])?;
    for line in ["[pod/talker/main] end", "[pod/talker/side] aside", "[pod/long/main] yyy"] {
        ensure!(labelled.contains(line), "no {line} in {labelled:.300}");
    }
    member.wait("twice", "it runs again", |pod| {
        let main = &pod["status"]["containerStatuses"][0];
        main["restartCount"] == 1 && main["state"]["running"].is_object()
    })?;
    let previous = kubectl.say(&["logs", "twice", "--previous"])?;
    ensure!(previous == "first", "{previous:?}");
    eventually("the second log is there", LONG, || {
        let current = kubectl.say(&["logs", "twice"])?;
        ensure!(current == "second\n", "{current:?}");
        Ok(())
    })?;
    for (arguments, complaint) in [
        (
            &["logs", "talker", "-p", "-c", "main"][..],
            "previous terminated container \"main\" in pod \"talker\" not found",
        ),
        (&["logs", "talker", "-c", "nobody"], "container nobody is not valid for pod talker"),
        (&["logs", "nobody"], "pods \"nobody\" not found"),
    ] {
        let refused = kubectl.run(arguments)?.failure()?;
        ensure!(refused.contains(complaint), "{arguments:?}: {refused}");
    }
    member.exec("talker", "main", &["touch", "/tmp/go"])?;
    let followed = follower.end()?.success()?;
    ensure!(followed == format!("{all}after\n"), "{followed:?}");
    member.node.finish()
}

/// What was said between the markers that a shell on a terminal was told to print.
fn answer_on_terminal(terminal: &mut Talk, number: u32, command: &str) -> Result<String> {
    // The echo of the line shows the arithmetic, not its result.
    terminal.write(&format!("{command}; echo answer-$(({number}+100))-over\n"))?;
    let marker = format!("answer-{}-over", number + 100);
    let said = terminal.wait_for(&marker)?;
    let before = said.split(&marker).next().unwrap_or_default();
    Ok(before.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned())
}

fn terminal_follows_its_size(kubectl: &Kubectl) -> Result<()> {
    let mut terminal = kubectl.start_on_terminal(40, 100, &["exec", "-it", "box", "--", "sh"])?;
    let size = answer_on_terminal(&mut terminal, 1, "stty size")?;
    ensure!(size == "40 100", "{size:?} in {:?}", terminal.stdout());
    let said = terminal.stdout();
    let name = said.lines().map(str::trim).find(|line| line.starts_with("/dev/pts/"));
    let name = name.with_context(|| format!("no terminal in {said:?}"))?.to_owned();
    machine::run("stty", &["-F", &name, "rows", "50", "cols", "120"])?;
    let mut number = 1;
    eventually("the size is told", LONG, || {
        number += 1;
        let size = answer_on_terminal(&mut terminal, number, "stty size")?;
        ensure!(size == "50 120", "{size:?}");
        Ok(())
    })?;
    terminal.write("exit 5\n")?;
    let ended = terminal.end()?;
    ensure!(ended.code() == Some(5), "{ended:?}");
    Ok(())
}

fn commands(kubectl: &Kubectl) -> Result<()> {
    let ended = kubectl.run(&["exec", "box", "--", "sh", "-c", "echo out; echo err >&2; exit 7"])?;
    ensure!(ended.code() == Some(7) && ended.stdout == b"out\n", "{ended:?}");
    ensure!(ended.stderr.contains("err\n") && ended.stderr.contains("exit code 7"), "{ended:?}");
    let counted = kubectl.run_with(&["exec", "-i", "box", "--", "wc", "-c"], &[b'x'; 3_000_001])?.success()?;
    ensure!(counted.trim() == "3000001", "{counted}");
    let words = kubectl.say(&["exec", "box", "-c", "main", "--", "printf", "%s|", "a b", "", "ü&=+%"])?;
    ensure!(words == "a b||ü&=+%|", "{words:?}");
    let none = kubectl.run(&["exec", "box", "--", "/no/such/program"])?;
    ensure!(none.code().is_some_and(|code| code != 0) && none.stderr.contains("no such file"), "{none:?}");
    Ok(())
}

fn copies(kubectl: &Kubectl, noise: &[u8]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (here, back) = (folder.path().join("here"), folder.path().join("back"));
    std::fs::write(&here, noise)?;
    let text = |path: &std::path::Path| path.display().to_string();
    kubectl.say(&["cp", &text(&here), "box:/tmp/there"])?;
    kubectl.say(&["cp", "box:/tmp/there", &text(&back)])?;
    let came = std::fs::read(&back)?;
    ensure!(came.len() == noise.len(), "{} bytes of {}", came.len(), noise.len());
    ensure!(came == noise, "other bytes");
    kubectl.say(&["exec", "box", "--", "rm", "/tmp/there"])?;
    Ok(())
}

fn attachments(kubectl: &Kubectl, transport: Transport) -> Result<()> {
    let mut attached = kubectl.start(&["attach", "-i", "listener", "-c", "main"])?;
    // What is written before the runtime has attached is not said back, so it is repeated.
    eventually("the listener answers", LONG, || {
        attached.write("hello\n")?;
        ensure!(attached.stdout().contains("heard hello"), "{:?}", attached.stdout());
        Ok(())
    })?;
    drop(attached);
    let mut terminal = kubectl.start_on_terminal(30, 90, &["attach", "-it", "listener", "-c", "terminal"])?;
    eventually("the terminal answers", LONG, || {
        terminal.write("x\n")?;
        ensure!(terminal.stdout().contains("heard x on 30 90"), "{:?}", terminal.stdout());
        Ok(())
    })?;
    drop(terminal);
    let name = format!("debugger-{}", transport.method().to_lowercase());
    let image = bulkhead_testkit::image::BUSYBOX;
    // It says each line back until it is asked to end: the output of one that ends at once can be lost before it is attached to.
    let script = "while read line && [ \"$line\" != end ]; do echo got $line; done; ps | grep -c sleep";
    let target = ["debug", "box", "-i", "-q", "--image", image, "--target=main", "-c", &name, "--", "sh", "-c", script];
    let mut debugger = kubectl.start(&target)?;
    eventually("the debugger answers", LONG, || {
        debugger.write("a line\n").with_context(|| debugger.so_far())?;
        ensure!(debugger.stdout().contains("got a line"), "{}", debugger.so_far());
        Ok(())
    })?;
    debugger.write("end\n")?;
    let ended = debugger.end()?;
    ensure!(ended.status.success(), "{ended:?}");
    Ok(())
}

#[test]
fn commands_terminals_copies_and_attachments() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let member = start(&lab)?;
    member.create("box", &json!({}))?;
    let say_back = "while read line; do echo heard $line; done; sleep 3600";
    let on_terminal = "while read line; do echo heard $line on $(stty size); done; sleep 3600";
    member.create(
        "listener",
        &json!({"containers": [
            {"name": "main", "stdin": true, "command": ["sh", "-c", say_back]},
            {"name": "terminal", "stdin": true, "tty": true, "command": ["sh", "-c", on_terminal]},
        ]}),
    )?;
    member.wait_ready("box")?;
    member.wait_ready("listener")?;
    let noise = noise(&mut Dice::from_environment());
    for transport in Transport::BOTH {
        let kubectl = Kubectl::new(&member.cluster, transport)?;
        let mark = member.cluster.log().map(|log| log.mark()).unwrap_or_default();
        let all = commands(&kubectl)
            .and_then(|()| terminal_follows_its_size(&kubectl))
            .and_then(|()| copies(&kubectl, &noise))
            .and_then(|()| attachments(&kubectl, transport));
        all.with_context(|| format!("over {transport:?}"))?;
        let method = transport.method();
        let streams = kubectl.streams_since(mark).unwrap_or_default();
        ensure!(streams.iter().all(|one| one.starts_with(method)), "not all over {transport:?}: {streams:?}");
    }
    member.node.finish()
}

/// The local ports of a port-forward, in the order of the pod's.
fn local_ports(forward: &Talk, ports: &[u16]) -> Result<Vec<u16>> {
    let mut found = Vec::new();
    for port in ports {
        let said = forward.wait_for(&format!("-> {port}\n"))?;
        let line = said.lines().find(|line| line.ends_with(&format!("-> {port}"))).context("the line")?;
        let local = line.split_whitespace().nth(2).and_then(|place| place.rsplit(':').next());
        found.push(local.and_then(|port| port.parse().ok()).with_context(|| format!("no port in {line:?}"))?);
    }
    Ok(found)
}

fn forwards(kubectl: &Kubectl, noise: &[u8]) -> Result<()> {
    let forward = kubectl.start(&["port-forward", "pod/web", ":8080", ":8081", "--address", "127.0.0.1"])?;
    let ports = local_ports(&forward, &[8080, 8081])?;
    let clients: Vec<Https> = ports.iter().map(|port| Https::plain(([127, 0, 0, 1], *port).into())).collect();
    // Over one connection of kubectl's to the node: one after another and at once.
    for (client, page) in clients.iter().zip(["first", "second"]) {
        ensure!(client.get("/page")?.body.as_ref() == page.as_bytes(), "not the {page} page");
    }
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..6).map(|_| scope.spawn(|| clients[0].get("/noise"))).collect();
        for one in all {
            let answer = one.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
            ensure!(answer.body.len() == noise.len(), "{} bytes of {}", answer.body.len(), noise.len());
            ensure!(answer.body.as_ref() == noise, "other bytes");
        }
        Ok(())
    })?;
    drop(forward);
    let mut closed = kubectl.start(&["port-forward", "pod/web", ":9", "--address", "127.0.0.1"])?;
    let port = local_ports(&closed, &[9])?[0];
    let answer = Https::plain(([127, 0, 0, 1], port).into()).get("/");
    ensure!(answer.is_err(), "{answer:?}");
    // kubectl gives up with the first port that nobody listens on.
    let ended = closed.end()?;
    ensure!(ended.stderr.to_lowercase().contains("connection refused"), "{ended:?}");
    Ok(())
}

/// What the node serves, asked through the API server.
fn asked_through_the_server(kubectl: &Kubectl) -> Result<()> {
    let raw = |path: &str| kubectl.say(&["get", "--raw", &format!("/api/v1/nodes/{NODE}/proxy{path}")]);
    ensure!(raw("/healthz")? == "ok", "healthz");
    let pods: Value = serde_json::from_str(&raw("/pods")?)?;
    ensure!(pods["kind"] == "PodList" && pods["items"][0]["metadata"]["name"] == "web", "{pods:#}");
    let running: Value = serde_json::from_str(&raw("/runningpods/")?)?;
    ensure!(running["items"][0]["spec"]["containers"][0]["name"] == "main", "{running:#}");
    let summary: Value = serde_json::from_str(&raw("/stats/summary")?)?;
    ensure!(summary["node"]["nodeName"] == NODE, "{summary:#}");
    let config: Value = serde_json::from_str(&raw("/configz")?)?;
    ensure!(config["kubeletconfig"]["authorization"]["mode"] == "Webhook", "{config:#}");
    for (path, series) in [
        ("/metrics", "kubelet_running_pods"),
        ("/metrics/cadvisor", "container_memory_working_set_bytes{"),
        ("/metrics/resource", "node_cpu_usage_seconds_total"),
        ("/metrics/probes", "prober_probe_total{"),
    ] {
        eventually(&format!("{path} has {series}"), LONG, || {
            let metrics = raw(path)?;
            ensure!(metrics.contains(series), "{metrics:.2000}");
            Ok(())
        })?;
    }
    ensure!(raw("/logs/")?.contains("<a href="), "no listing of logs");
    let log = raw("/containerLogs/default/web/main?tailLines=1")?;
    ensure!(log == "serving\n", "{log:?}");
    let refused = kubectl.run(&["get", "--raw", &format!("/api/v1/nodes/{NODE}/proxy/no/such/path")])?.failure()?;
    ensure!(refused.contains("could not find the requested resource"), "{refused}");
    Ok(())
}

#[test]
fn ports_are_forwarded_and_the_node_is_asked_through_the_server() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let member = start(&lab)?;
    let script = "mkdir -p /www/a /www/b; printf first > /www/a/page; printf second > /www/b/page; \
                  until [ -f /tmp/ready ]; do sleep 0.1; done; httpd -p 8081 -h /www/b; echo serving; \
                  exec httpd -f -p 8080 -h /www/a";
    let probe = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1});
    member.create(
        "web",
        &json!({"containers": [
            {"name": "main", "command": ["sh", "-c", script], "readinessProbe": probe},
        ]}),
    )?;
    member.wait("web", "it runs", |pod| pod["status"]["containerStatuses"][0]["state"]["running"].is_object())?;
    let noise = noise(&mut Dice::from_environment());
    let first = Kubectl::new(&member.cluster, Transport::WebSocket)?;
    first
        .run_with(&["exec", "-i", "web", "--", "sh", "-c", "cat > /www/a/noise; touch /tmp/ready"], &noise)?
        .success()?;
    member.wait_ready("web")?;
    asked_through_the_server(&first)?;
    for transport in Transport::BOTH {
        let kubectl = Kubectl::new(&member.cluster, transport)?;
        let mark = member.cluster.log().map(|log| log.mark()).unwrap_or_default();
        forwards(&kubectl, &noise).with_context(|| format!("over {transport:?}"))?;
        if let Some(streams) = kubectl.streams_since(mark) {
            let expected = format!("{} pods/portforward", transport.method());
            ensure!(streams == [expected.clone(), expected], "{streams:?}");
        }
    }
    member.node.finish()
}

#[test]
fn streams_end_when_the_process_that_carries_them_dies_and_pods_do_not() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let mut member = start(&lab)?;
    let counting = "i=0; trap 'exit 0' TERM; while true; do i=$((i+1)); echo count-$i; sleep 0.2; done";
    member.create("box", &json!({"containers": [{"name": "main", "command": ["sh", "-c", counting]}]}))?;
    let before = member.wait_ready("box")?;
    let kubectl = Kubectl::new(&member.cluster, Transport::WebSocket)?;
    let spdy = Kubectl::new(&member.cluster, Transport::Spdy)?;
    let mut log = kubectl.start(&["logs", "-f", "box"])?;
    log.wait_for("count-2")?;
    let listener = ["exec", "-i", "box", "--", "sh", "-c", "echo here; cat"];
    let mut commands = [kubectl.start(&listener)?, spdy.start(&listener)?];
    for command in &commands {
        command.wait_for("here")?;
    }
    let forward = spdy.start(&["port-forward", "pod/box", ":8080", "--address", "127.0.0.1"])?;
    local_ports(&forward, &[8080])?;

    member.node.kill_daemon("kubelet-statusd")?;
    log.end()?;
    let ended = commands[0].end()?;
    ensure!(!ended.status.success() && ended.stderr.contains("error"), "{ended:?}");
    // Over SPDY kubectl takes the end of a connection for that of the command.
    let ended = commands[1].end()?;
    ensure!(ended.stdout == b"here\n", "{ended:?}");
    drop(forward);
    member.node.wait_healthy()?;
    eventually("commands are taken again", LONG, || {
        let said = kubectl.say(&["exec", "box", "--", "echo", "again"])?;
        ensure!(said == "again\n", "{said:?}");
        Ok(())
    })?;
    let text = kubectl.say(&["logs", "box"])?;
    ensure!(text.starts_with("count-1\ncount-2\n"), "{text:.100}");
    let after = member.wait_ready("box")?;
    let container = |pod: &Value| pod["status"]["containerStatuses"][0].clone();
    ensure!(container(&before) == container(&after), "{:#} became {:#}", container(&before), container(&after));
    member.node.finish()
}
