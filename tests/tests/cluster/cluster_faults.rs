//! A member of a cluster whose API server is away, cut off, busy, wrong or slow: pods do not notice, and nothing that
//! happened meanwhile is lost or told twice.
//!
//! `BULKHEAD_OUTAGE` is how long the server is away, in seconds (30).

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::apiserver::Config;
use bulkhead_testkit::apiserver::faults::{Action, Rule};
use bulkhead_testkit::apiserver::request_log::Record;
use bulkhead_testkit::cri::Fingerprint;
use bulkhead_testkit::wait::holds_for;
use bulkhead_testkit::{Cluster, LONG, Lab, Node, Pod, eventually, machine};
use bulkhead_tests::joined::{
    NAMESPACE, NODE, condition, ends_on_sign, give_sign, idle, is_list, is_no_storm, never_back, never_back_but_times,
    never_stirred, one_life, pod, reasons, wait_ready,
};
use bulkhead_tests::lab;
use serde_json::{Value, json};

/// `kubeAPIQPS` and `kubeAPIBurst`: low, so that a storm of requests would show.
const QPS: usize = 10;
const BURST: usize = 20;
/// Pods that nothing happens to.
const CALM: usize = 6;

struct World {
    node: Node,
    cluster: Cluster,
}

fn world(lab: &Lab) -> Result<World> {
    let cluster = lab.stand_in(Config { bookmark_every: Duration::from_secs(1), ..Config::default() })?;
    let node = lab
        .node(NODE)
        .joins(&cluster)?
        .config("kubeAPIQPS", json!(QPS))
        .config("kubeAPIBurst", json!(BURST))
        .config("maxPods", json!(250))
        .start()?;
    Ok(World { node, cluster })
}

impl World {
    fn calm(&self) -> Result<Vec<String>> {
        let names: Vec<String> = (0..CALM).map(|index| format!("calm-{index}")).collect();
        for name in &names {
            self.cluster.create(&idle(&self.node, name))?;
        }
        for name in &names {
            wait_ready(&self.cluster, name)?;
        }
        Ok(names)
    }

    fn fingerprint_of_calm(&self) -> Result<Vec<Fingerprint>> {
        let all = eventually("every listed container is still there", LONG, || self.node.fingerprint())?;
        Ok(all.into_iter().filter(|one| one.pod.starts_with("calm-")).collect())
    }

    fn wait_phase(&self, name: &str, phase: &str) -> Result<Value> {
        self.cluster.wait_for("pods", NAMESPACE, name, phase, |pod| pod["status"]["phase"] == phase)
    }

    fn ready(&self, name: &str) -> Result<Value> {
        wait_ready(&self.cluster, name)
    }

    /// The node's own object never said that it is not ready.
    fn node_stayed_ready(&self) -> Result<()> {
        let history = self.cluster.history("nodes", "", NODE)?;
        let mut said: Vec<&str> = history.iter().map(|node| condition(node, "Ready")).collect();
        said.dedup();
        let said: Vec<&str> = said.into_iter().skip_while(|one| *one != "True").collect();
        ensure!(said == ["True"], "Ready was {said:?}");
        Ok(())
    }

    fn finish(self, pods: impl IntoIterator<Item = String>) -> Result<()> {
        for name in pods {
            never_back(&self.cluster, &name)?;
        }
        self.node_stayed_ready()?;
        self.node.finish()
    }
}

fn outage() -> Duration {
    let seconds = std::env::var("BULKHEAD_OUTAGE").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(30))
}

#[test]
fn a_server_that_was_away_gets_every_change_once() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let world = world(&lab)?;
    let (node, cluster) = (&world.node, &world.cluster);
    let calm = world.calm()?;
    let named = |name: &str| node.pod_name(name);
    for (name, code, policy) in [("done", 0, "Never"), ("failed", 3, "Never"), ("again", 1, "Always")] {
        cluster.create(&ends_on_sign(node, name, code, policy)?)?;
    }
    let stubborn = "trap '' TERM; while true; do sleep 0.2; done";
    cluster.create(&pod(node, "ending", stubborn, &json!({"terminationGracePeriodSeconds": 5})))?;
    for name in ["leaving", "changing"] {
        node.write(&Pod::idle(name))?;
    }
    for name in ["done", "failed", "again", "ending", &named("leaving"), &named("changing")] {
        world.ready(name)?;
    }
    let before = world.fingerprint_of_calm()?;
    let old_mirror = cluster.get("pods", NAMESPACE, &named("changing"))?["metadata"]["uid"].clone();

    // In the middle of an end and of a start.
    cluster.create(&idle(node, "starting"))?;
    cluster.delete("pods", NAMESPACE, "ending", None)?;
    eventually("the node has learned of both", LONG, || {
        let log = cluster.requests()?;
        let told = |name: &str| log.iter().any(|one| one.what() == "patch pods/status" && one.name == name);
        ensure!(told("starting"), "nothing was told of the new pod");
        Ok(())
    })?;
    let mark = cluster.log()?.mark();
    cluster.stop()?;
    let gone = Instant::now();
    for name in ["done", "failed", "again"] {
        give_sign(node, name)?;
    }
    node.remove("leaving")?;
    node.write(&Pod::idle("changing").annotation("changed", "yes"))?;
    node.write(&Pod::idle("coming"))?;
    node.wait_running("coming", 1)?;
    node.wait_gone("leaving")?;
    let cri = node.cri()?;
    eventually("containers end and start again without the server", LONG, || {
        let all = cri.containers()?;
        let of = |name: &str| all.iter().filter(|one| one.pod == name).max_by_key(|one| one.attempt);
        for name in ["done", "failed"] {
            ensure!(of(name).is_some_and(|one| one.exited), "{name}: {:?}", of(name));
        }
        ensure!(of("again").is_some_and(|one| one.attempt == 1 && one.running), "{:?}", of("again"));
        Ok(())
    })?;
    let rest = outage().saturating_sub(gone.elapsed());
    let mut turns = 0;
    holds_for("nothing happens to pods because the server is away", rest, || {
        // Manifests come and go: the last two are there at a time.
        node.write(&Pod::idle(&format!("turn-{turns}")))?;
        if turns >= 2 {
            node.remove(&format!("turn-{}", turns - 2))?;
        }
        turns += 1;
        std::thread::sleep(Duration::from_secs(2));
        node.is_healthy()?;
        let now = world.fingerprint_of_calm()?;
        ensure!(now == before, "{before:#?} became {now:#?}");
        Ok(())
    })?;
    cluster.resume()?;

    ensure!(world.wait_phase("done", "Succeeded")?["status"]["containerStatuses"][0]["restartCount"] == 0);
    let failed = world.wait_phase("failed", "Failed")?;
    ensure!(failed["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3, "{failed:#}");
    let again = cluster.wait_for("pods", NAMESPACE, "again", "its restart is told", |pod| {
        pod["status"]["containerStatuses"][0]["restartCount"] == 1
            && pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
    })?;
    ensure!(again["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1, "{again:#}");
    let started = world.ready("starting")?;
    cluster.wait_gone("pods", NAMESPACE, "ending")?;
    cluster.wait_gone("pods", NAMESPACE, &named("leaving"))?;
    world.ready(&named("coming"))?;
    for turn in 0..turns {
        let name = named(&format!("turn-{turn}"));
        if turn + 2 < turns {
            cluster.wait_gone("pods", NAMESPACE, &name)?;
        } else {
            world.ready(&name)?;
        }
    }
    let changed = cluster.wait_for("pods", NAMESPACE, &named("changing"), "a new mirror", |pod| {
        pod["metadata"]["annotations"]["changed"] == "yes" && condition(pod, "Ready") == "True"
    })?;
    ensure!(changed["metadata"]["uid"] != old_mirror);
    // Of pods that came over the API: the events' object is the pod itself.
    for (pod, wanted, count) in [(&again, "Started", 1), (&started, "Started", 1), (&again, "Created", 1)] {
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        eventually("events of the time without a server arrive", LONG, || {
            let seen = reasons(cluster, uid)?;
            ensure!(seen.iter().filter(|one| *one == wanted).count() >= count, "{wanted}: {seen:?}");
            Ok(())
        })?;
    }
    let uid = again["metadata"]["uid"].clone();
    eventually("both starts of the restarted container were told", LONG, || {
        let events = cluster.list("events", Some(NAMESPACE))?;
        let starts = events.iter().filter(|one| one["involvedObject"]["uid"] == uid && one["reason"] == "Started");
        let starts: i64 = starts.map(|one| one["count"].as_i64().unwrap_or(1)).sum();
        ensure!(starts == 2, "{starts}");
        Ok(())
    })?;
    one_life(cluster, node, "after")?;

    is_no_storm(&cluster.log()?.after(mark), QPS, BURST)?;
    let now = world.fingerprint_of_calm()?;
    ensure!(now == before, "{before:#?} became {now:#?}");
    for name in &calm {
        never_stirred(cluster, name)?;
    }
    never_back_but_times(cluster, "again")?;
    let others = ["done", "failed", "starting", "ending"].map(str::to_owned);
    let mirrors = ["leaving", "changing", "coming"].map(named);
    world.finish(calm.into_iter().chain(others).chain(mirrors))
}

/// Packets between the node and the API server on the connections that exist now go nowhere, in both directions; new
/// connections are not touched. Gives the number of connections.
fn forget_connections(lab: &Lab, cluster: &Cluster) -> Result<usize> {
    let server = format!(":{:04X}", cluster.address().port());
    let netns = lab.netns().path();
    let table = lab.netns().run(|| Ok(std::fs::read_to_string("/proc/thread-self/net/tcp")?))?;
    let mut found = 0;
    for line in table.lines() {
        let columns: Vec<&str> = line.split_ascii_whitespace().collect();
        // Local address, remote address, state: 01 is ESTABLISHED.
        let [_, local, remote, "01", ..] = columns[..] else { continue };
        let Some((_, port)) = local.split_once(':').filter(|_| remote.ends_with(&server)) else { continue };
        let port = u16::from_str_radix(port, 16)?.to_string();
        for (chain, direction) in [("OUTPUT", "--sport"), ("INPUT", "--dport")] {
            let netns = format!("--net={}", netns.display());
            machine::run("nsenter", &[&netns, "iptables", "-A", chain, "-p", "tcp", direction, &port, "-j", "DROP"])?;
        }
        found += 1;
    }
    Ok(found)
}

#[test]
fn connections_that_go_nowhere_are_given_up() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let world = world(&lab)?;
    let (node, cluster) = (&world.node, &world.cluster);
    let calm = world.calm()?;
    for name in ["doomed", "forced"] {
        cluster.create(&idle(node, name))?;
    }
    for name in ["doomed", "forced"] {
        world.ready(name)?;
    }
    let before = world.fingerprint_of_calm()?;
    let mark = cluster.log()?.mark();
    ensure!(forget_connections(&lab, cluster)? >= 4, "two processes have connections for calls and for watches");
    // And who comes again finds a server that takes everything and says nothing, until somebody has waited in vain.
    cluster.faults()?.blackhole(true);
    node.write(&Pod::idle("meanwhile"))?;
    node.wait_running("meanwhile", 1)?;
    // Nobody can tell the node of it until it notices by itself.
    cluster.create(&idle(node, "unseen"))?;
    cluster.delete("pods", NAMESPACE, "doomed", None)?;
    cluster.delete("pods", NAMESPACE, "forced", Some(0))?;
    eventually("a heartbeat goes out on another connection", LONG, || {
        ensure!(cluster.log()?.after(mark).iter().any(|one| one.resource == "leases"), "the old one is believed in");
        Ok(())
    })?;
    cluster.faults()?.blackhole(false);
    world.ready("unseen")?;
    world.ready(&node.pod_name("meanwhile"))?;
    cluster.wait_gone("pods", NAMESPACE, "doomed")?;
    eventually("what was deleted by force runs no more", LONG, || {
        let running: Vec<_> = node.cri()?.containers()?.into_iter().filter(|one| one.running).collect();
        ensure!(running.iter().all(|one| one.pod != "forced" && one.pod != "doomed"), "{running:?}");
        Ok(())
    })?;
    one_life(cluster, node, "after")?;
    is_no_storm(&cluster.log()?.after(mark), QPS, BURST)?;
    let now = world.fingerprint_of_calm()?;
    ensure!(now == before, "{before:#?} became {now:#?}");
    let others = ["doomed", "forced", "unseen", "meanwhile-alpha"].map(str::to_owned);
    world.finish(calm.into_iter().chain(others))
}

#[test]
fn a_server_that_refuses_delays_loses_and_forgets() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let world = world(&lab)?;
    let (node, cluster) = (&world.node, &world.cluster);
    let faults = cluster.faults()?;
    let calm = world.calm()?;
    let before = world.fingerprint_of_calm()?;
    let ours = |action: Action| Rule::new(action).agent("kubelet/");
    let answer = |code: u16, retry_after_seconds: Option<u32>| Action::Answer { code, retry_after_seconds };
    let begin = cluster.log()?.mark();
    let mut pods = Vec::new();
    let mut story = |what: &str, rules: Vec<Rule>| -> Result<()> {
        let began = Instant::now();
        for rule in rules {
            faults.add(rule);
        }
        one_life(cluster, node, what).with_context(|| what.to_owned())?;
        faults.clear();
        println!("{what}: {:.1} s", began.elapsed().as_secs_f32());
        pods.push(what.to_owned());
        Ok(())
    };
    story(
        "conflict",
        vec![
            ours(Action::Conflict).verb("patch").resource("pods/status").times(2),
            ours(Action::Conflict).verb("patch").resource("nodes/status").times(1),
            ours(Action::Conflict).verb("update").resource("leases").times(1),
            ours(Action::Conflict).verb("delete").resource("pods").times(1),
        ],
    )?;
    let mark = cluster.log()?.mark();
    story("busy", vec![ours(answer(429, Some(1))).times(8)])?;
    obeyed(&cluster.log()?.after(mark))?;
    story("broken", vec![ours(answer(500, None)).times(10)])?;
    story("unavailable", vec![ours(answer(503, None)).times(5)])?;
    story("slow", vec![ours(Action::Delay(Duration::from_millis(700)))])?;
    story(
        "lost",
        vec![
            ours(Action::LoseAnswer).verb("patch").resource("pods/status").times(2),
            ours(Action::LoseAnswer).verb("delete").resource("pods").times(1),
            ours(Action::LoseAnswer).verb("create").resource("events").times(1),
        ],
    )?;
    story("cut", vec![ours(Action::DropConnection).times(4)])?;

    // All watches end at once; then the server knows no version any more.
    let mark = cluster.log()?.mark();
    faults.close_watches();
    story("ended", Vec::new())?;
    faults.close_watches();
    story("expired", vec![ours(answer(410, None)).verb("watch").resource("pods").times(2)])?;
    let lists = cluster.log()?.after(mark);
    let lists: Vec<_> = lists.iter().filter(|one| is_list(one) && one.resource == "pods").collect();
    ensure!((1..=3).contains(&lists.len()), "{lists:#?}");

    // A watch that holds back events while its bookmarks go on: late is not lost.
    faults.withhold_events(true);
    cluster.create(&idle(node, "late"))?;
    cluster.create(&idle(node, "never"))?;
    cluster.delete("pods", NAMESPACE, "never", Some(0))?;
    let seen = |name: &str| {
        let patched = |one: &Record| one.what() == "patch pods/status" && one.name == name;
        cluster.requests().is_ok_and(|log| log.iter().any(patched))
    };
    holds_for("nobody could know of the pod", Duration::from_secs(2), || {
        ensure!(!seen("late"));
        Ok(())
    })?;
    faults.withhold_events(false);
    world.ready("late")?;

    // Requests that hang: an answer that comes at last is taken.
    faults.add(ours(Action::Hang).verb("patch").resource("pods/status"));
    cluster.create(&idle(node, "hung"))?;
    eventually("a patch hangs", LONG, || {
        ensure!(seen("hung"), "it was not sent");
        Ok(())
    })?;
    faults.clear();
    world.ready("hung")?;

    println!("{} requests", cluster.log()?.after(begin).len());
    let now = world.fingerprint_of_calm()?;
    ensure!(now == before, "{before:#?} became {now:#?}");
    for name in &calm {
        never_stirred(cluster, name)?;
    }
    pods.extend(calm);
    pods.extend(["late", "hung"].map(str::to_owned));
    world.finish(pods)
}

/// A request that was sent away for a second was not sent again before.
fn obeyed(records: &[Record]) -> Result<()> {
    let refused: Vec<&Record> = records.iter().filter(|one| one.status == 429).collect();
    ensure!(!refused.is_empty(), "nothing was refused");
    for one in refused {
        let same = |other: &&Record| {
            other.number > one.number && other.agent == one.agent && other.method == one.method && other.uri == one.uri
        };
        let Some(next) = records.iter().find(same) else { continue };
        let pause = next.time.as_millisecond() - one.time.as_millisecond();
        // A lane's other request for the same thing may have stood behind it: events are created under one URI.
        let other_request = one.resource == "events";
        ensure!(other_request || pause >= 900, "{} {} came back after {pause} ms", one.method, one.uri);
    }
    Ok(())
}

#[test]
fn a_clock_that_differs_from_the_servers_disturbs_no_pod() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let world = world(&lab)?;
    let (node, cluster) = (&world.node, &world.cluster);
    let calm = world.calm()?;
    let mut with_token = idle(node, "token");
    with_token["spec"]["volumes"] = json!([{"name": "token", "projected": {"sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}]}}]);
    with_token["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "token", "mountPath": "/token"}]);
    cluster.create(&with_token)?;
    world.ready("token")?;
    let before = world.fingerprint_of_calm()?;
    let mark = cluster.log()?.mark();
    let clock = cluster.server()?.clock();
    // An hour ahead; then behind by nearly as much as certificates allow (they begin five minutes early).
    for (name, offset) in [("ahead", 3600), ("behind", -240), ("together", 0)] {
        clock.set_offset_seconds(offset);
        one_life(cluster, node, name)?;
        let mut other = with_token.clone();
        other["metadata"]["name"] = json!(format!("token-{name}"));
        cluster.create(&other)?;
        world.ready(&format!("token-{name}"))?;
        ensure!(condition(&cluster.get("nodes", "", NODE)?, "Ready") == "True");
    }
    let tokens = cluster.log()?.after(mark);
    let tokens = tokens.iter().filter(|one| one.subresource == "token").count();
    ensure!(tokens <= 20, "{tokens} tokens were asked for");
    let now = world.fingerprint_of_calm()?;
    ensure!(now == before, "{before:#?} became {now:#?}");
    world.finish(calm.into_iter().chain(["token".to_owned()]))
}
