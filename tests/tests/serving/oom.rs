//! Processes that the kernel kills for want of memory: what is counted of them, by the kernel's own log, while who reads it dies.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::https::Https;
use bulkhead_testkit::{LONG, Pod, cgroups, eventually};
use bulkhead_tests::joined::{Member, NODE, create, wait_ready};
use bulkhead_tests::lab;
use bulkhead_tests::scrape::{Format, Scrape};
use serde_json::json;

struct World {
    member: Member,
    port: Https,
    signs: PathBuf,
}

/// Each time that it is told to, one of its processes takes more than there is.
fn eater(signs: &Path) -> Pod {
    let script = "n=1; while true; do until [ -e /w/eat-$n ]; do sleep 0.1; done; \
                  (exec tail /dev/zero); echo $? > /w/.died; mv /w/.died /w/died-$n; n=$((n+1)); done";
    Pod::busybox("eater", script).container_field("resources", json!({"limits": {"memory": "24Mi"}})).host_path(
        "w",
        &signs.to_string_lossy(),
        "Directory",
        "/w",
    )
}

impl World {
    fn eat(&self, time: u64) -> Result<()> {
        Ok(std::fs::write(self.signs.join(format!("eat-{time}")), "")?)
    }

    fn has_died(&self, time: u64) -> Result<()> {
        let ended = eventually("the kernel has killed it", LONG, || {
            Ok(std::fs::read_to_string(self.signs.join(format!("died-{time}")))?)
        })?;
        ensure!(ended.trim() == "137", "{ended}");
        Ok(())
    }

    /// A new sample's: one answers for ten seconds, but not who wants more than it holds.
    fn scrape(&self) -> Result<Scrape> {
        self.port.get("/stats/summary")?;
        let answer = self.port.get("/metrics/cadvisor")?;
        ensure!(answer.status == 200, "{}", answer.status);
        Scrape::read(&String::from_utf8_lossy(&answer.body), Format::Prometheus)
    }

    /// Waits until the container's count is this one. It never is another but the one before.
    fn counts(&self, times: u64) -> Result<()> {
        let mut wrong = None;
        eventually("the kill is counted", LONG, || {
            let counted =
                self.scrape()?.one("container_oom_events_total", &[("container", "main"), ("pod", "eater")])?;
            if counted > times as f64 || counted + 1.0 < times as f64 {
                wrong = Some(counted);
            }
            ensure!(counted == times as f64, "{counted}");
            Ok(())
        })?;
        ensure!(wrong.is_none(), "{wrong:?} was shown, where {times} had died");
        Ok(())
    }

    fn events_of_the_machine(&self) -> Result<usize> {
        let events = self.member.cluster.list("events", Some("default"))?;
        Ok(events.iter().filter(|event| event["reason"] == "SystemOOM").count())
    }
}

/// The kernel's own count of the group, on either version.
fn killed(group: &str) -> Result<u64> {
    for file in ["memory.oom_control", "memory.events.local"] {
        for mount in cgroups::hierarchies() {
            let path = mount.join(group.trim_start_matches('/')).join(file);
            let text = std::fs::read_to_string(path).unwrap_or_default();
            if let Some(count) = text.lines().find_map(|line| line.strip_prefix("oom_kill ")) {
                return Ok(count.parse()?);
            }
        }
    }
    anyhow::bail!("{group} is nowhere")
}

#[test]
fn each_kill_for_want_of_memory_is_counted_once_although_its_reader_dies() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let signs = lab.folder().join("signs");
    std::fs::create_dir_all(&signs)?;
    let member = Member::start(&lab, &[], |node| {
        node.config("readOnlyPort", json!(10255)).config("singleProcessOOMKill", json!(true))
    })?;
    let port = Https::plain(SocketAddr::new(lab.netns().address().into(), 10255));
    let world = World { member, port, signs };
    create(&world.member.cluster, eater(&world.signs))?;
    wait_ready(&world.member.cluster, "eater")?;
    world.counts(0)?;
    let group = world.scrape()?;
    let group = group.all("container_oom_events_total", &[("container", "main"), ("pod", "eater")]);
    let group = group.first().context("no series")?.labels["id"].clone();

    world.eat(1)?;
    world.has_died(1)?;
    world.counts(1)?;
    // Dead while it happens; dead right after, whether or not it had read of it; and once more, with nothing new.
    world.member.node.kill_daemon("kubelet-evictiond")?;
    world.eat(2)?;
    world.has_died(2)?;
    world.counts(2)?;
    for time in 3..=5 {
        world.eat(time)?;
        world.has_died(time)?;
        world.member.node.kill_daemon("kubelet-evictiond")?;
        world.counts(time)?;
    }
    world.member.node.kill_daemon("kubelet-evictiond")?;
    world.counts(5)?;

    // The log of the kernel is anybody's to write to who is root, in whichever words: a pod with the device, too.
    let mut log = std::fs::File::options().write(true).open("/dev/kmsg")?;
    let head = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0";
    for line in [
        format!("<4>{head},oom_memcg={group},task_memcg={group},task=forged,pid=1,uid=0\n"),
        format!("<4>{head},global_oom,task_memcg={group},task=forged,pid=1,uid=0\n"),
    ] {
        log.write_all(line.as_bytes())?;
    }
    world.eat(6)?;
    world.has_died(6)?;
    world.counts(6)?;
    ensure!(killed(&group)? == 6, "{} by the kernel's own count", killed(&group)?);
    ensure!(world.events_of_the_machine()? == 0, "a limit of a container's is nothing that befalls the machine");
    let metrics = world.member.node.agent()?.metrics("kubelet-evictiond")?;
    ensure!(!metrics.contains("oom_kills_total{victim=\"system\"}"), "{metrics}");
    let hello = world.member.node.agent()?.hello("kubelet-evictiond")?;
    ensure!(!hello.degraded.iter().any(|one| one.contains("kernel")), "{hello:?}");
    ensure!(world.member.cluster.get("nodes", "", NODE)?["kind"] == "Node");
    world.member.node.finish()
}
