//! Commands, terminals and connections into pods through the node's HTTPS server, against a real runtime: every byte, how
//! it ends, what is refused, and what a client that stalls or a process that dies does to others.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::cluster::client::{Answer, Credential};
use bulkhead_testkit::https::Https;
use bulkhead_testkit::wait::holds_for;
use bulkhead_testkit::{IDLE, LONG, Lab, Node, Pod, Release, eventually, processes};
use bulkhead_tests::channels::{self, RESIZE, STDIN, STDOUT, Socket};
use bulkhead_tests::scrape::{Format, Scrape};
use bulkhead_tests::{Dice, lab};
use serde_json::json;

/// Everybody may do everything: who may do what is another test's question.
fn start(lab: &Lab) -> Result<(Node, Https)> {
    let authentication = json!({"anonymous": {"enabled": true}, "webhook": {"enabled": false}});
    let node = lab
        .node("alpha")
        .config("authentication", authentication)
        .config("authorization", json!({"mode": "AlwaysAllow"}))
        .config("logging", json!({"verbosity": 4}))
        .start()?;
    let https = Https::new((lab.netns().address(), 10250).into(), &Credential::Nothing);
    Ok((node, https))
}

fn query(command: &[&str]) -> String {
    command.iter().map(|word| format!("&command={}", escape(word))).collect()
}

/// For a query.
fn escape(text: &str) -> String {
    text.bytes()
        .map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}

fn exec_path(pod: &str, container: &str, streams: &str, command: &[&str]) -> String {
    format!("/exec/default/{pod}-alpha/{container}?{streams}{}", query(command))
}

/// A command in a shell of the pod `web`, all of its streams but a terminal.
fn shell(https: &Https, script: &str) -> Result<Socket> {
    channels::open(https, &exec_path("web", "main", "input=1&output=1&error=1", &["sh", "-c", script]))
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut dice = Dice::from_environment();
    (0..bytes).map(|_| u8::try_from(dice.below(256)).unwrap_or_default()).collect()
}

/// How much goes through the large streams, bytes: `BULKHEAD_STREAM_MIB`.
fn large() -> usize {
    let given = std::env::var("BULKHEAD_STREAM_MIB").ok().and_then(|text| text.parse().ok());
    given.unwrap_or(16) << 20
}

/// Memory that the process has written, KiB: shares of pages of its program depend on who else runs it.
fn private_kib(pid: i32) -> Result<u64> {
    let line = processes::status_line(pid, "RssAnon")?;
    line.split_whitespace().next().context("no number")?.parse().with_context(|| line.clone())
}

fn statusd(node: &Node) -> Result<i32> {
    node.pids().get("kubelet-statusd").copied().context("kubelet-statusd does not run")
}

#[test]
fn commands_terminals_and_ports_of_pods() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let (node, https) = start(&lab)?;
    let reads = "echo up; while read line; do echo got $line; done";
    let gate = "until [ -f /tmp/go ]; do sleep 0.1; done";
    node.write(
        &Pod::busybox("web", &format!("nc -ll -p 8080 -e cat & nc -ll -p 8081 -e cat & {IDLE}"))
            .container_field("env", json!([{"name": "WHO", "value": "ünd"}])),
    )?;
    node.write(&Pod::busybox("reader", reads).container_field("stdin", json!(true)))?;
    let terminal = Pod::busybox("terminal", reads).container_field("stdin", json!(true));
    node.write(&terminal.container_field("tty", json!(true)))?;
    let init = json!([{"name": "first", "image": node.image(), "command": ["sh", "-c", gate]}]);
    node.write(&Pod::idle("begins").spec("initContainers", init))?;
    let web = node.wait_running("web", 1)?;

    // Outputs apart, exit codes, the environment, nothing at all.
    let mut talks = shell(&https, "echo out $WHO; echo err >&2; exit 42")?;
    let ended = talks.messages.to_end()?;
    ensure!(ended.stdout() == "out ünd\n" && ended.stderr == b"err\n", "{ended:?}");
    ensure!(ended.exit_code()? == 42 && ended.status["reason"] == "NonZeroExitCode", "{}", ended.status);
    ensure!(shell(&https, "true")?.messages.to_end()?.exit_code()? == 0);
    let nothing = channels::open(&https, &exec_path("web", "main", "output=1", &["/none"]))?.messages.to_end()?;
    ensure!(
        nothing.status["status"] == "Failure" && nothing.status["message"].as_str().is_some(),
        "{}",
        nothing.status
    );
    let path = format!("/exec/default/web-alpha/{}/main?output=1&command=hostname", web.sandbox.uid);
    ensure!(channels::open(&https, &path)?.messages.to_end()?.stdout() == "web-alpha\n");

    // An init container that runs.
    eventually("the init container takes a command", LONG, || {
        let done = channels::open(&https, &exec_path("begins", "first", "output=1", &["touch", "/tmp/go"]))?;
        ensure!({ done }.messages.to_end()?.exit_code()? == 0);
        Ok(())
    })?;
    node.wait_running("begins", 1)?;

    // A terminal of a command, and its sizes.
    let sizes = "echo begun; read x; stty size; read x";
    let mut sized =
        channels::open(&https, &exec_path("web", "main", "input=1&output=1&error=1&tty=1", &["sh", "-c", sizes]))?;
    sized.messages.read_until("begun")?;
    sized.input.send(RESIZE, br#"{"Width":123,"Height":45}"#)?;
    eventually("the terminal has the size", LONG, || {
        let shown = shell(&https, "for t in /dev/pts/[0-9]*; do stty size -F $t; done")?.messages.to_end()?.stdout();
        ensure!(shown.contains("45 123"), "{shown:?}");
        Ok(())
    })?;
    sized.input.send(STDIN, b"\n")?;
    sized.messages.read_until("45 123\r\n")?;
    sized.input.send(STDIN, b"\n")?;
    ensure!(sized.messages.to_end()?.exit_code()? == 0);

    // The containers' own processes, the second with its terminal whatever the client says.
    let mut reader = channels::open(&https, "/attach/default/reader-alpha/main?input=1&output=1&error=1")?;
    reader.input.send(STDIN, b"one\n")?;
    reader.messages.read_until("got one\n")?;
    let mut terminal = channels::open(&https, "/attach/default/terminal-alpha/main?input=1&output=1")?;
    terminal.input.send(STDIN, b"two\n")?;
    terminal.messages.read_until("two\r\ngot two\r\n")?;

    // Ports: channels in pairs, each begins with its port.
    let mut ports = channels::open(&https, "/portForward/default/web-alpha?port=8080,8081")?;
    let mut begun = Vec::new();
    for _ in 0..4 {
        begun.push(ports.messages.message()?.context("closed")?);
    }
    begun.sort();
    let port = |channel: u8, port: u16| (channel, port.to_le_bytes().to_vec());
    ensure!(begun == [port(0, 8080), port(1, 8080), port(2, 8081), port(3, 8081)], "{begun:?}");
    ports.input.send(2, b"second")?;
    ports.input.send(0, b"first")?;
    let mut answers = vec![ports.messages.message()?.context("closed")?, ports.messages.message()?.context("closed")?];
    answers.sort();
    ensure!(answers == [(0, b"first".to_vec()), (2, b"second".to_vec())], "{answers:?}");

    refusals(&https)?;
    runs(&https, lab.containerd().programs().release())?;
    kept_from_logs(&node)?;
    drop((reader, terminal, ports));
    node.finish()
}

fn refusals(https: &Https) -> Result<()> {
    let no_stream = "you must specify at least 1 of stdin, stdout, stderr";
    for (path, status, words) in [
        ("/exec/default/none/main?output=1&command=true", 404, "pod does not exist"),
        ("/exec/other/web-alpha/main?output=1&command=true", 404, "pod does not exist"),
        ("/exec/default/web-alpha/x?output=1&command=true", 500, "container not found (\"x\")"),
        ("/exec/default/web-alpha/not-this-uid/main?output=1&command=true", 500, "container not found (\"main\")"),
        ("/exec/default/web-alpha/main?command=true", 400, no_stream),
        ("/exec/default/web-alpha/main?output=true&command=true", 400, no_stream),
        ("/attach/default/none/main?output=1", 404, "pod does not exist"),
        ("/attach/default/web-alpha/x?output=1", 500, "container x not found in pod web-alpha_default"),
        ("/attach/default/web-alpha/main", 400, no_stream),
        ("/portForward/default/none?port=1", 404, "pod does not exist"),
        ("/portForward/default/web-alpha/not-this-uid?port=1", 404, "pod not found"),
        ("/portForward/default/web-alpha", 400, "query parameter \"port\" is required"),
        ("/portForward/default/web-alpha?port=x", 400, "unable to parse \"x\" as a port"),
    ] {
        let refused = channels::ask(https, path)?.refused()?;
        ensure!(
            refused.status == status && text(&refused).contains(words),
            "{path}: {} {}",
            refused.status,
            text(&refused)
        );
    }
    // The runtime's own refusal comes through.
    let none =
        https.upgrade("POST", "/exec/default/web-alpha/main?output=1&command=true", "SPDY/3.1", &[])?.refused()?;
    ensure!(
        none.status == 400 && text(&none).contains("X-Stream-Protocol-Version"),
        "{}: {}",
        none.status,
        text(&none)
    );
    let old = [("x-stream-protocol-version", "v9.channel.k8s.io")];
    let old =
        https.upgrade("POST", "/exec/default/web-alpha/main?output=1&command=true", "SPDY/3.1", &old)?.refused()?;
    ensure!(old.status == 403, "{}", old.status);
    ensure!(old.headers.get_all("x-accepted-stream-protocol-versions").iter().any(|name| name == "v4.channel.k8s.io"));
    for path in ["/exec/default/web-alpha/main?output=1&command=true", "/portForward/default/web-alpha"] {
        let plain = https.post(path, b"")?;
        ensure!(plain.status == 500 && text(&plain) == "Upgrade request required\n", "{path}: {}", text(&plain));
    }
    let wrong = https.request("PUT", "/exec/default/web-alpha/main?output=1", &[], b"")?;
    ensure!(wrong.status == 405, "{}", wrong.status);
    Ok(())
}

fn runs(https: &Https, release: Release) -> Result<()> {
    let run = |command: &str| https.post(&format!("/run/default/web-alpha/main?cmd={}", escape(command)), b"");
    let said = run("hostname -s")?;
    ensure!(said.status == 200 && text(&said) == "web-alpha\n", "{}: {}", said.status, text(&said));
    ensure!(said.headers.get("content-type").is_some_and(|kind| kind == "application/json"), "{:?}", said.headers);
    let empty = run("true")?;
    ensure!(empty.status == 200 && empty.body.is_empty() && empty.headers.get("content-type").is_none(), "{empty:?}");
    // More than a message between processes holds.
    let long = run("head -c 1000000 /dev/zero")?;
    ensure!(long.status == 200 && long.body.len() == 1_000_000 && long.body.iter().all(|b| *b == 0));
    let failed = run("ls /none")?;
    let words = "command 'ls /none' exited with 1: ls: /none: No such file or directory\n";
    ensure!(failed.status == 500 && text(&failed) == words, "{}: {}", failed.status, text(&failed));
    for (path, status, words) in [
        ("/run/default/none/main?cmd=true", 404, "pod does not exist"),
        ("/run/default/web-alpha/x?cmd=true", 500, "container not found (\"x\")"),
        ("/checkpoint/default/none/main", 404, "pod does not exist"),
        ("/checkpoint/default/web-alpha/x", 404, "container x does not exist"),
        ("/checkpoint/default/web-alpha/main?timeout=1s", 404, "cannot parse value of timeout parameter"),
        (
            "/checkpoint/default/web-alpha/main",
            500,
            "checkpointing of default/web-alpha/main failed (rpc error: code = ",
        ),
    ] {
        let asks_the_runtime = status == 500 && path.starts_with("/checkpoint/");
        if asks_the_runtime && release == Release::V2_1 {
            // That one can: tests/runtimes.rs.
            continue;
        }
        let refused = https.post(path, b"")?;
        ensure!(
            refused.status == status && text(&refused).starts_with(words),
            "{path}: {} {}",
            refused.status,
            text(&refused)
        );
        if asks_the_runtime {
            let metrics = Scrape::read(&text(&https.get("/metrics")?), Format::Prometheus)?;
            for name in ["kubelet_runtime_operations_total", "kubelet_runtime_operations_errors_total"] {
                let count = metrics.one(name, &[("operation_type", "checkpoint_container")])?;
                ensure!(count == 1.0, "{name}: {count}");
            }
        }
    }
    Ok(())
}

/// The node logs what it does in full: no one-time URL stands there.
fn kept_from_logs(node: &Node) -> Result<()> {
    let log = std::fs::read_to_string(node.log())?;
    let token = |rest: &str| rest.chars().take_while(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).count() == 8;
    for kind in ["/exec/", "/attach/", "/portforward/"] {
        let shown = log.split(kind).skip(1).filter(|rest| token(rest)).count();
        ensure!(shown == 0, "{shown} tokens behind {kind}");
    }
    // kubelet-syncd's own trace of what was asked for.
    for verb in ["exec", "attach", "port-forward", "run"] {
        let traced = |line: &str| line.contains("asked for by kubelet-statusd") && line.contains(verb);
        ensure!(log.lines().any(traced), "{verb} left no trace");
    }
    Ok(())
}

#[test]
fn every_byte_arrives_and_a_client_that_does_not_read_holds_up_no_other() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let (node, https) = start(&lab)?;
    node.write(&Pod::busybox("web", &format!("nc -ll -p 8080 -e cat & {IDLE}")))?;
    node.wait_running("web", 1)?;
    ensure!(shell(&https, "true")?.messages.to_end()?.exit_code()? == 0);
    let pid = statusd(&node)?;
    let before = private_kib(pid)?;
    let data = noise(large());

    // A command's input comes back as its output.
    let mut echo = shell(&https, &format!("head -c {}", data.len()))?;
    let back = std::thread::scope(|scope| {
        let input = scope.spawn(|| data.chunks(30_000).try_for_each(|piece| echo.input.send(STDIN, piece)));
        let ended = echo.messages.to_end();
        input.join().map_err(|_| anyhow::anyhow!("the writer died"))??;
        ended
    })?;
    ensure!(back.stdout == data, "{} bytes came back of {}", back.stdout.len(), data.len());
    ensure!(back.exit_code()? == 0);

    // So it does through a port.
    let mut port = channels::open(&https, "/portForward/default/web-alpha?port=8080")?;
    port.messages.message()?;
    port.messages.message()?;
    let back = std::thread::scope(|scope| {
        let input = scope.spawn(|| data.chunks(30_000).try_for_each(|piece| port.input.send(0, piece)));
        let mut back = Vec::new();
        while back.len() < data.len() {
            back.extend(port.messages.next_of(0)?);
        }
        input.join().map_err(|_| anyhow::anyhow!("the writer died"))??;
        anyhow::Ok(back)
    })?;
    ensure!(back == data, "what came back through the port is not what went");

    // Clients that read no more: what they are sent is held by the kernel.
    let mut stalled = Vec::new();
    for _ in 0..20 {
        let mut endless = shell(&https, "exec cat /dev/zero")?;
        endless.messages.next_of(STDOUT)?;
        stalled.push(endless);
    }
    let mut slow = Vec::new();
    for number in 0..100 {
        slow.push((number, shell(&https, "head -c 4")?));
    }
    holds_for("memory is bounded", Duration::from_secs(2), || {
        let now = private_kib(pid)?;
        ensure!(now < before + 8 * 1024, "{before} KiB before, {now} KiB now");
        Ok(())
    })?;
    for (number, socket) in &mut slow {
        socket.input.send(STDIN, format!("{number:04}").as_bytes())?;
    }
    for (number, socket) in &mut slow {
        // The runtime starts a hundred commands as fast as it can.
        socket.messages.set_limit(LONG);
        let ended = socket.messages.to_end()?;
        ensure!(ended.stdout() == format!("{number:04}") && ended.exit_code()? == 0, "{number}: {ended:?}");
    }
    println!("memory of kubelet-statusd: {before} KiB, then {} KiB", private_kib(pid)?);

    // The process that serves the streams dies: they end, and nothing else does.
    let mut cut = shell(&https, "echo begun; sleep 1000")?;
    cut.messages.read_until("begun")?;
    let containers = node.fingerprint()?;
    node.kill_daemon("kubelet-statusd")?;
    let end = cut.messages.message();
    ensure!(matches!(end, Ok(None) | Err(_)), "{end:?}");
    drop(stalled);
    eventually("streams are served again", LONG, || {
        ensure!(shell(&https, "true")?.messages.to_end()?.exit_code()? == 0);
        Ok(())
    })?;
    ensure!(node.fingerprint()? == containers, "containers have changed");
    let seen = node.wait_pod("web", "it runs as before", |pod| pod.phase == "Running")?;
    ensure!(seen.containers.iter().all(|c| c.restart_count == 0), "{seen:?}");
    node.finish()
}
