//! Logs of containers through the node's HTTPS server, against a real runtime: every option, every byte, rotations and
//! restarts while somebody follows, what is said where there is no log, and what a stranger's names lead to.

use std::io::Read as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::cluster::client::{Answer, Credential};
use bulkhead_testkit::https::{Arriving, Https};
use bulkhead_testkit::{IDLE, LONG, Lab, Node, Pod, eventually, processes};
use bulkhead_tests::lab;
use serde_json::json;

/// Bytes of noise that a container writes.
const NOISE: usize = 3_000_000;
/// Those who follow at once: `BULKHEAD_FOLLOWERS`.
const FOLLOWERS: usize = 1000;
/// Bytes of a log that nobody takes.
const FLOOD: usize = 40_000_000;
/// Clients that take nothing, and what one of them may cost, KiB.
const STALLED: (usize, u64) = (20, 400);
/// What a follower may cost of kubelet-statusd's memory, KiB: most of it is its TLS connection.
const FOLLOWER_KIB: u64 = 128;

fn start(lab: &Lab) -> Result<(Node, Https)> {
    // Of large logs every byte is looked at.
    let node = lab.node("alpha").config("containerLogMaxSize", json!("-1"));
    let node = node.config("featureGates", json!({"PodLogsQuerySplitStreams": true})).start()?;
    Ok((node, Https::new((lab.netns().address(), 10250).into(), &Credential::Nothing)))
}

fn path(pod: &str, container: &str, query: &str) -> String {
    format!("/containerLogs/default/{pod}-alpha/{container}?{query}")
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

fn log(https: &Https, pod: &str, query: &str) -> Result<String> {
    let answer = https.get(&path(pod, "main", query))?;
    ensure!(answer.status == 200, "{pod} {query}: {} {}", answer.status, text(&answer));
    Ok(text(&answer))
}

fn follow(https: &Https, pod: &str, query: &str) -> Result<Arriving> {
    let arriving = https.open("GET", &path(pod, "main", &format!("follow=true&{query}")), &[])?;
    ensure!(arriving.status == 200, "{pod} {query}: {}", arriving.status);
    Ok(arriving)
}

/// Waits until the log holds `what`.
fn wait_log(https: &Https, pod: &str, what: &str) -> Result<String> {
    eventually(&format!("the log of {pod} says {what:?}"), LONG, || {
        let log = log(https, pod, "")?;
        ensure!(log.contains(what), "{log:?}");
        Ok(log)
    })
}

fn refused(https: &Https, path: &str, status: u16, body: &str) -> Result<()> {
    let answer = https.get(path)?;
    ensure!((answer.status, text(&answer).as_str()) == (status, body), "{path}: {} {}", answer.status, text(&answer));
    Ok(())
}

fn lines(range: impl Iterator<Item = u32>) -> String {
    range.map(|number| format!("line {number}\n")).collect()
}

/// The one log file of the container that was written last.
fn log_file(node: &Node, pod: &str) -> Result<std::path::PathBuf> {
    let folder = node.log_folders(pod).pop().context("no log folder")?.join("main");
    let mut files: Vec<_> = std::fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "log"));
    files.into_iter().max().context("no log")
}

fn statusd(node: &Node) -> Result<i32> {
    node.pids().get("kubelet-statusd").copied().context("kubelet-statusd does not run")
}

fn open_logs(pid: i32, below: &Path) -> usize {
    let all = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    all.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|link| link.starts_with(below))).count()
}

/// Waits for a sign of the test, and then does as told.
fn on_sign(then: &str) -> String {
    format!("until [ -e /go/go ]; do sleep 0.05; done; {then}")
}

fn with_sign(pod: Pod) -> Pod {
    pod.empty_dir("go", "", None, "/go")
}

fn give_sign(node: &Node, pod: &str) -> Result<()> {
    let running = node.wait_running(pod, 1)?;
    let (code, output) = node.cri()?.exec(&running.main().id, &["touch", "/go/go"])?;
    // Who waits for the file may end the container before `touch` has ended, which goes with it.
    ensure!(code == 0 || code == 137, "touch ended with {code}: {output}");
    Ok(())
}

#[test]
fn log_options_limits_instances_and_refusals() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let (node, https) = start(&lab)?;
    // The runtime reads the two streams each for itself.
    let counts = "i=1; while [ $i -le 100 ]; do echo line $i; i=$((i+1)); done; sleep 0.5; echo to stderr >&2; sleep 0.5; echo again";
    node.write(&Pod::busybox("counts", &format!("{counts}; {IDLE}")))?;
    // Of a line's end with a carriage return containerd itself drops that.
    let noise = format!("head -c {NOISE} /dev/urandom | tr -d '\\r' > /noise; cat /noise; echo; echo end >&2; {IDLE}");
    node.write(&Pod::busybox("noise", &noise))?;
    let long = "head -c 1048576 /dev/zero | tr '\\0' x; echo; printf 'a\\0b\\n'; printf torn";
    node.write(&Pod::busybox("long", long).restart_policy("Never"))?;
    let twice = format!("[ -e /go/x ] && {{ echo second; {IDLE}; }}; touch /go/x; echo first; exit 1");
    node.write(&with_sign(Pod::busybox("twice", &twice)))?;
    let never = json!("never.invalid/none:1");
    let unpulled = Pod::idle("unpulled").container_field("image", never);
    node.write(&unpulled.container_field("imagePullPolicy", json!("Never")))?;
    let init = json!([{"name": "first", "image": node.image(), "command": ["sh", "-c", IDLE]}]);
    node.write(&Pod::idle("begins").spec("initContainers", init))?;

    // Options.
    let whole = lines(1..=100) + "to stderr\nagain\n";
    let seen = wait_log(&https, "counts", "again\n")?;
    ensure!(seen == whole, "{seen}");
    let answer = https.get(&path("counts", "main", ""))?;
    ensure!(answer.headers.get("content-type").is_none(), "{:?}", answer.headers);
    ensure!(text(&https.clone().over_http2().get(&path("counts", "main", ""))?) == seen);
    ensure!(https.request("HEAD", &path("counts", "main", ""), &[], b"")?.body.is_empty());
    let both = [log(&https, "counts", "stream=Stdout")?, log(&https, "counts", "stream=Stderr")?];
    ensure!(both == [lines(1..=100) + "again\n", "to stderr\n".to_owned()], "{both:?}");
    for (query, expected) in [
        ("tailLines=0", ""),
        ("tailLines=102", seen.as_str()),
        ("tailLines=5000", seen.as_str()),
        ("tail=all&tailLines=1", seen.as_str()),
        ("tailLines=102&limitBytes=10", "line 1\nlin"),
        ("limitBytes=7", "line 1\n"),
        ("limitBytes=100000", seen.as_str()),
        ("sinceSeconds=100000&follow=false&previous=false&unknown=1&insecureSkipTLSVerifyBackend=true", seen.as_str()),
        ("sinceTime=2999-01-01T00:00:00Z", ""),
    ] {
        let got = log(&https, "counts", query)?;
        ensure!(got == expected, "{query}: {got}");
    }
    ensure!(log(&https, "counts", "tailLines=4")?.starts_with("line 9"), "four from the end");
    let stamped = log(&https, "counts", "timestamps=true")?;
    let stamps: Vec<(&str, &str)> = stamped.lines().filter_map(|line| line.split_once(' ')).collect();
    let untimed: String = stamps.iter().map(|(_, line)| format!("{line}\n")).collect();
    ensure!(untimed == seen, "{stamped}");
    let fixed = |stamp: &str| stamp.len() >= 30 && stamp.as_bytes()[10] == b'T' && stamp.as_bytes()[19] == b'.';
    ensure!(stamps.iter().all(|(stamp, _)| fixed(stamp)), "{stamped}");
    let (from, _) = stamps[50];
    let since = log(&https, "counts", &format!("sinceTime={}", from.replace('+', "%2B")))?;
    ensure!(since.contains("line 51\n") && whole.ends_with("again\n") && since.len() < seen.len(), "{since}");

    // Every byte, whatever it is, and lines of whatever length.
    let running = node.wait_running("noise", 1)?;
    eventually("all noise is there", LONG, || {
        let got = log(&https, "noise", "stream=Stderr")?;
        ensure!(got == "end\n", "{got}");
        Ok(())
    })?;
    let got = https.get(&path("noise", "main", "stream=Stdout"))?.body;
    ensure!(got.len() > NOISE * 9 / 10 && got.ends_with(b"\n"), "{} bytes", got.len());
    let received = tempfile::NamedTempFile::new()?;
    std::fs::write(received.path(), &got[..got.len() - 1])?;
    let sum = std::process::Command::new("sha256sum").arg(received.path()).output()?.stdout;
    let (_, expected) = node.cri()?.exec(&running.main().id, &["sha256sum", "/noise"])?;
    ensure!(expected.as_bytes()[..64] == sum[..64], "{expected} {}", String::from_utf8_lossy(&sum));
    let long = wait_log(&https, "long", "torn")?;
    let x = "x".repeat(1_048_576);
    ensure!(long == format!("{x}\na\0b\ntorn"), "{} bytes: {:?}", long.len(), long.trim_start_matches('x'));
    let stamped = log(&https, "long", "timestamps=true&tailLines=2")?;
    ensure!(stamped.lines().count() == 2 && stamped.ends_with(" torn"), "{stamped:?}");
    let stamped = log(&https, "long", "timestamps=true")?;
    ensure!(stamped.lines().count() == 3 && stamped.len() < long.len() + 200, "one stamp a line");

    // The instance that is meant.
    ensure!(wait_log(&https, "twice", "second")? == "second\n");
    ensure!(log(&https, "twice", "previous=true")? == "first\n");
    ensure!(log(&https, "twice", "previous=true&follow=true")? == "first\n", "who has ended is not waited for");
    let quoted = |container: &str, pod: &str| format!("container \"{container}\" in pod \"{pod}-alpha\"");
    let waits = |pod: &str, why: &str| format!("{} is waiting to start: {why}", quoted("main", pod));
    for (pod, query, expected) in [
        ("unpulled", "", waits("unpulled", "ErrImageNeverPull")),
        ("begins", "follow=true", waits("begins", "PodInitializing")),
        ("counts", "previous=true", format!("previous terminated {} not found", quoted("main", "counts"))),
    ] {
        eventually(&expected, LONG, || refused(&https, &path(pod, "main", query), 400, &expected))?;
    }
    ensure!(https.get(&path("begins", "first", ""))?.status == 200, "init containers have logs too");

    // What is asked wrongly, and names that are none.
    let undecodable = r#"{"message": "Unable to decode query."}"#;
    let invalid = r#"{"message": "Invalid request."}"#;
    for query in ["tailLines=x", "sinceSeconds=1h", "sinceTime=now", "limitBytes=", "tail=some"] {
        refused(&https, &path("counts", "main", query), 400, undecodable)?;
    }
    for query in ["tailLines=-1", "sinceSeconds=0", "limitBytes=0", "stream=x", "stream=Stdout&tailLines=1"] {
        refused(&https, &path("counts", "main", query), 422, invalid)?;
    }
    refused(&https, &path("none", "main", ""), 404, "pod \"none-alpha\" does not exist")?;
    let no_container = "container \"none\" not found in pod \"counts-alpha\"";
    refused(&https, &path("counts", "none", ""), 404, no_container)?;
    let uid = &node.wait_running("counts", 1)?.sandbox.uid;
    refused(&https, &format!("/containerLogs/default/{uid}/main"), 404, &format!("pod {uid:?} does not exist"))?;
    for strange in [
        "default/..%2f..%2f..%2fetc/main",
        "default/counts-alpha/..%2fmain",
        "default/counts-alpha/main%2f..%2f..%2fmain",
        "default/counts-alpha/main%00",
        "default/counts-alpha/.",
        "..%2fdefault/counts-alpha/main",
        "default%00/counts-alpha/main",
        "other/counts-alpha/main",
        "default//main",
        "default/counts-alpha",
        "default/counts-alpha/main/more",
    ] {
        let answer = https.get(&format!("/containerLogs/{strange}"))?;
        let harmless = (300..500).contains(&answer.status) && !text(&answer).contains("line");
        ensure!(harmless, "{strange}: {} {}", answer.status, text(&answer));
    }

    // A log that is a link, and a log that is gone.
    let file = log_file(&node, "counts")?;
    let secret = lab.folder().join("secret");
    std::fs::write(&secret, "2026-01-01T00:00:00Z stdout F secret\n")?;
    std::fs::rename(&file, file.with_extension("log.kept"))?;
    let id = node.wait_running("counts", 1)?.main().id.clone();
    let gone = format!("unable to retrieve container logs for containerd://{id}");
    refused(&https, &path("counts", "main", ""), 400, &gone)?;
    symlink(&secret, &file)?;
    refused(&https, &path("counts", "main", ""), 400, &gone)?;
    std::fs::remove_file(&file)?;
    std::fs::rename(file.with_extension("log.kept"), &file)?;
    ensure!(log(&https, "counts", "")? == seen);
    node.finish()
}

#[test]
fn followers_see_everything_until_the_end() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let (node, https) = start(&lab)?;
    let ticks = "i=0; until [ -e /go/go ]; do echo tick $i; i=$((i+1)); sleep 0.02; done; echo last $i; exit 0";
    node.write(&with_sign(Pod::busybox("ticks", ticks)).restart_policy("Never"))?;
    node.write(
        &with_sign(Pod::busybox("quiet", &on_sign(&format!("echo now; rm /go/go; {}; echo over", on_sign("true")))))
            .restart_policy("Never"),
    )?;
    node.write(&Pod::busybox("flood", &format!("head -c {FLOOD} /dev/zero | tr '\\0' x; echo; {IDLE}")))?;
    let ticking = node.wait_running("ticks", 1)?;
    node.wait_running("quiet", 1)?;
    let mut everything = follow(&https, "ticks", "")?;
    let mut from_now = follow(&https.clone().over_http2(), "ticks", "tailLines=1&timestamps=true")?;
    let mut limited = follow(&https, "ticks", "limitBytes=200")?;
    let mut seen = everything.read_until("tick 5\n")?;
    from_now.read_until(" tick ")?;
    let mut first = String::new();
    limited.read_to_string(&mut first)?;
    ensure!(first.len() == 200 && first.starts_with("tick 0\n"), "{first}");

    // Rotations, and restarts of those whom the log comes from.
    let (cri, file) = (node.cri()?, log_file(&node, "ticks")?);
    for round in 0..3 {
        std::fs::rename(&file, file.with_extension(format!("log.2026-{round}")))?;
        if round > 0 {
            node.kill_daemon(["kubelet-volnetd", "kubelet-syncd"][round - 1])?;
        }
        cri.reopen_log(&ticking.main().id)?;
        let newest = eventually("the new file is written to", LONG, || {
            let text = std::fs::read_to_string(&file)?;
            text.lines()
                .nth(3)
                .and_then(|line| line.split_once(" F "))
                .map(|(_, text)| text.to_owned())
                .context("not yet")
        })?;
        seen += &everything.read_until(&format!("{newest}\n"))?;
    }
    give_sign(&node, "ticks")?;
    everything.read_to_string(&mut seen)?;
    let count = seen.lines().count() as u32 - 1;
    let expected: String = (0..count).map(|number| format!("tick {number}\n")).collect();
    ensure!(seen == format!("{expected}last {count}\n"), "{seen}");
    let mut rest = String::new();
    from_now.read_to_string(&mut rest)?;
    ensure!(rest.ends_with(&format!(" last {count}\n")), "{rest}");

    // Many at once: what they cost, that each gets its line, and that nothing is left of those who went.
    let followers = std::env::var("BULKHEAD_FOLLOWERS").ok().and_then(|text| text.parse().ok()).unwrap_or(FOLLOWERS);
    let (pid, logs) = (statusd(&node)?, node.pod_logs());
    let before = processes::heap_kib(pid)?;
    let mut all = (0..followers).map(|_| follow(&https, "quiet", "")).collect::<Result<Vec<_>>>()?;
    eventually("all follow", LONG, || {
        let open = open_logs(pid, &logs);
        ensure!(open == followers, "{open} descriptors");
        Ok(())
    })?;
    let cost = processes::heap_kib(pid)?.saturating_sub(before);
    ensure!(cost < FOLLOWER_KIB * followers as u64, "{followers} followers cost {cost} KiB");
    all.truncate(followers / 2);
    eventually("who went is forgotten", LONG, || {
        let open = open_logs(pid, &logs);
        ensure!(open == followers / 2, "{open} descriptors");
        Ok(())
    })?;
    give_sign(&node, "quiet")?;
    for one in &mut all {
        one.read_until("now\n")?;
    }

    // Who takes nothing costs no more than what is on its way, and loses nothing.
    eventually("the flood is there", LONG, || {
        let end = log(&https, "flood", "tailLines=1")?;
        ensure!(end.ends_with("x\n"), "{}", end.len());
        Ok(())
    })?;
    let before = processes::heap_kib(pid)?;
    let mut stalled = (0..STALLED.0).map(|_| follow(&https, "flood", "")).collect::<Result<Vec<_>>>()?;
    for one in &mut stalled {
        one.chunk()?;
    }
    ensure!(log(&https, "flood", "limitBytes=5")? == "xxxxx", "others are served meanwhile");
    let cost = processes::heap_kib(pid)?.saturating_sub(before);
    ensure!(cost < STALLED.1 * STALLED.0 as u64, "{} clients that take nothing cost {cost} KiB", STALLED.0);
    let mut taken = 0;
    let mut late = follow(&https, "flood", &format!("limitBytes={}", FLOOD + 1))?;
    while let Some(piece) = late.chunk()? {
        ensure!(piece.iter().all(|byte| matches!(byte, b'x' | b'\n')));
        taken += piece.len();
    }
    ensure!(taken == FLOOD + 1, "{taken} bytes");
    drop(stalled);

    // Who serves dies: the stream breaks, it does not end; the pod goes on.
    let before = node.fingerprint()?;
    node.kill_daemon("kubelet-statusd")?;
    let mut rest = Vec::new();
    ensure!(all[0].read_to_end(&mut rest).is_err(), "a stream that is cut off looks like one that ended");
    let mut again = eventually("it serves again", LONG, || follow(&https, "quiet", ""))?;
    ensure!(node.fingerprint()? == before);
    give_sign(&node, "quiet")?;
    let mut rest = String::new();
    again.read_to_string(&mut rest)?;
    ensure!(rest == "now\nover\n", "{rest}");
    node.finish()
}
