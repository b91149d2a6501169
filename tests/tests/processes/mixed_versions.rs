//! Does a pod notice that one process of the node is of another version than the others, that programs are replaced
//! beneath it, or that they are put back? With the programs of the version before, which `cargo xtask test` builds.

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::apiserver::Config;
use bulkhead_testkit::cri::Fingerprint;
use bulkhead_testkit::node::DAEMONS;
use bulkhead_testkit::systemd::{LIBEXEC, Machine, SERVICES};
use bulkhead_testkit::{Cluster, LONG, Lab, Node, Pod, build, eventually};
use bulkhead_tests::history::{pod_only_advances, values_of};
use bulkhead_tests::joined::{NODE, config_map, create, main_of, wait_phase, wait_ready};
use bulkhead_tests::mixed::{self, Age, Mix};
use bulkhead_tests::{lab, systemd_machine};
use serde_json::{Value, json};

/// What is there before anything is replaced, and must not notice.
struct World {
    cluster: Cluster,
    node: Node,
    mix: Mix,
    running: Vec<Fingerprint>,
    shown: Vec<(String, Value)>,
    rounds: usize,
}

/// Ends once by itself, so that its count of restarts is not 0.
const ENDS_ONCE: &str = "test -e /c/was || { touch /c/was; exit 3; }; trap 'exit 0' TERM; while :; do sleep 0.2; done";

impl World {
    fn start(lab: &Lab, previous: &std::path::Path, age: Age) -> Result<Self> {
        let cluster = lab.cluster()?;
        cluster.create(&config_map("words", &json!({"word": "one"})))?;
        let mix = Mix::all(lab.folder().join("programs"), previous, age)?;
        let node = lab
            .node(NODE)
            .joins(&cluster)?
            .config("clusterDNS", json!(["10.96.0.10"]))
            .config("enableSystemLogQuery", json!(true))
            .config("enableSystemLogHandler", json!(true))
            .programs(mix.folder())
            .start()?;
        node.write(&Pod::idle("mirrored"))?;
        let words = json!({"configMap": {"name": "words"}});
        let probe = json!({"exec": {"command": ["test", "-e", "/words/word"]}, "periodSeconds": 1});
        let calm = Pod::idle("calm")
            .volume("words", words.as_object().context("a map")?.clone(), "/words")
            .empty_dir("cache", "Memory", Some("1Mi"), "/cache")
            .container_field("readinessProbe", probe)
            .container_field("resources", json!({"requests": {"cpu": "10m"}, "limits": {"memory": "64Mi"}}));
        create(&cluster, calm)?;
        create(&cluster, Pod::busybox("again", ENDS_ONCE).empty_dir("c", "", None, "/c"))?;
        create(&cluster, Pod::busybox("done", "exit 0").restart_policy("Never"))?;
        let mirrored = node.pod_name("mirrored");
        for pod in [mirrored.as_str(), "calm"] {
            wait_ready(&cluster, pod)?;
        }
        cluster.wait_for("pods", "default", "again", "it runs again", |pod| {
            main_of(pod)["restartCount"] == 1 && main_of(pod)["ready"] == true
        })?;
        wait_phase(&cluster, "done", "Succeeded")?;
        let mut world = World { cluster, node, mix, running: Vec::new(), shown: Vec::new(), rounds: 0 };
        world.new_life("at the beginning")?;
        world.running = world.node.fingerprint()?;
        for pod in [mirrored.as_str(), "calm", "again", "done"] {
            let shown = world.cluster.get("pods", "default", pod)?;
            world.shown.push((pod.to_owned(), shown["status"].clone()));
        }
        Ok(world)
    }

    /// A pod has its whole life, told from beginning to end, and its log is served.
    fn new_life(&mut self, when: &str) -> Result<()> {
        self.rounds += 1;
        let name = format!("round-{}", self.rounds);
        let words = json!({"configMap": {"name": "words"}});
        let pod = Pod::busybox(&name, "cat /words/word; sleep 0.3").restart_policy("Never").volume(
            "words",
            words.as_object().context("a map")?.clone(),
            "/words",
        );
        create(&self.cluster, pod)?;
        wait_phase(&self.cluster, &name, "Succeeded").with_context(|| when.to_owned())?;
        pod_only_advances(&self.cluster.history("pods", "default", &name)?)?;
        let log = eventually(&format!("{when}: the log is served"), LONG, || self.cluster.kubectl(&["logs", &name]))?;
        ensure!(log.trim() == "one", "{when}: {log:?}");
        self.cluster.delete("pods", "default", &name, None)?;
        self.cluster.wait_gone("pods", "default", &name).with_context(|| when.to_owned())?;
        self.node.wait_gone(&name)
    }

    /// Nobody noticed.
    fn undisturbed(&self, when: &str) -> Result<()> {
        let now = self.node.fingerprint()?;
        ensure!(now == self.running, "{when}:\n{:#?}\nbecame\n{now:#?}", self.running);
        for (pod, status) in &self.shown {
            let now = self.cluster.get("pods", "default", pod)?;
            ensure!(now["status"] == *status, "{when}: {pod}: {status:#}\nbecame\n{:#}", now["status"]);
        }
        for age in [Age::Old, Age::New] {
            self.mix.put("kubelet-ctl", age)?;
            eventually(&format!("{when}: {age:?} kubelet-ctl is told of all pods"), LONG, || {
                let listed = self.node.ctl(&["pods"])?;
                ensure!(listed.contains("calm") && listed.contains("mirrored"), "{listed}");
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Nobody noticed, and everything goes on.
    fn look(&mut self, when: &str) -> Result<()> {
        eprintln!("{when}");
        self.new_life(when)?;
        self.undisturbed(when)?;
        // Statistics come from evictiond, their pods from syncd, their disks from volnetd; metrics from all.
        eventually(&format!("{when}: statistics are complete"), LONG, || {
            let summary =
                self.cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{NODE}/proxy/stats/summary")])?;
            let summary: Value = serde_json::from_str(&summary)?;
            let pods = summary["pods"].as_array().context("no pods")?;
            let calm = pods.iter().find(|pod| pod["podRef"]["name"] == "calm").context("calm is missing")?;
            ensure!(calm["containers"][0]["memory"]["workingSetBytes"].is_u64(), "{calm:#}");
            let metrics = self.cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{NODE}/proxy/metrics")])?;
            for daemon in DAEMONS {
                let up = format!("bulkhead_process_up{{process=\"{daemon}\"}} 1");
                ensure!(metrics.contains(&up), "{up} is missing");
            }
            Ok(())
        })
    }

    /// Each daemon in turn is of the other version, and then of the former one again.
    fn one_by_one(&mut self, most: Age) -> Result<()> {
        for daemon in DAEMONS {
            self.mix.exchange(&mut self.node, daemon, most.other()).with_context(|| daemon.to_owned())?;
            self.look(&format!("{daemon} is {:?}, the others are {most:?}", most.other()))?;
            self.mix.exchange(&mut self.node, daemon, most).with_context(|| daemon.to_owned())?;
            self.undisturbed(&format!("{daemon} is {most:?} again, as all others"))?;
        }
        self.look(&format!("all are {most:?} again"))
    }

    fn all(&mut self, age: Age) -> Result<()> {
        for daemon in DAEMONS {
            self.mix.exchange(&mut self.node, daemon, age).with_context(|| daemon.to_owned())?;
        }
        self.look(&format!("all daemons are {age:?}"))
    }

    fn launcher(&mut self, age: Age, daemons: Age) -> Result<()> {
        self.mix.exchange_launcher(&mut self.node, age)?;
        self.look(&format!("the launcher is {age:?}, the daemons are {daemons:?}"))
    }

    fn end(self) -> Result<()> {
        let mirrored = self.node.pod_name("mirrored");
        for pod in ["calm", &mirrored] {
            let history = self.cluster.history("pods", "default", pod)?;
            pod_only_advances(&history)?;
            ensure!(values_of(&history, "Ready") == ["False", "True"], "{pod} flapped");
        }
        self.node.finish()
    }
}

#[test]
fn one_process_of_another_version_and_back() -> Result<()> {
    let Some(previous) = mixed::previous()? else { return Ok(()) };
    let Some(lab) = lab()? else { return Ok(()) };
    let mut world = World::start(&lab, &previous, Age::New)?;
    world.one_by_one(Age::New)?;
    // Downgraded: the launcher alone, then everything.
    world.launcher(Age::Old, Age::New)?;
    world.all(Age::Old)?;
    world.one_by_one(Age::Old)?;
    // And upgraded: the launcher first, or last.
    world.launcher(Age::New, Age::Old)?;
    world.launcher(Age::Old, Age::Old)?;
    world.all(Age::New)?;
    world.launcher(Age::New, Age::New)?;
    world.end()
}

/// What a newer version wrote is no reason for an older one to lose anything, while nobody runs in between.
#[test]
fn a_node_that_is_stopped_changes_its_version_as_a_whole() -> Result<()> {
    let Some(previous) = mixed::previous()? else { return Ok(()) };
    let Some(lab) = lab()? else { return Ok(()) };
    let mut world = World::start(&lab, &previous, Age::Old)?;
    for age in [Age::New, Age::Old, Age::New] {
        world.node.stop()?;
        for program in DAEMONS.iter().chain(&mixed::OTHERS) {
            world.mix.put(program, age)?;
        }
        world.node.launch()?;
        world.node.wait_healthy()?;
        world.look(&format!("everything is {age:?}"))?;
    }
    world.end()
}

/// What 0.1.0, which knew no units, needs of ours: leave to give up by itself what it never had, and that nobody else keeps
/// the ports that it listens on.
const VERSION_BEFORE: &str = "[Service]\nSystemCallFilter=capset\nFileDescriptorStoreMax=0\n";

/// As units: the daemons are of either version, while `kubelet`, which works out the configuration, and the units are of
/// this one.
#[test]
fn one_unit_of_another_version_and_back() -> Result<()> {
    let Some(previous) = mixed::previous()? else { return Ok(()) };
    let Some(builder) = systemd_machine()? else { return Ok(()) };
    let machine = Machine::boot(builder)?;
    let cluster = machine.cluster(Config::default())?;
    machine.install_programs(&build::bin_dir()?)?;
    machine.install_units(&build::workspace_root())?;
    for service in SERVICES {
        machine.drop_in(service, "10-version-before", VERSION_BEFORE)?;
    }
    machine.join(&cluster, |_| ())?;
    machine.check(&["systemctl", "start", "kubelet"])?;
    machine.wait_healthy()?;
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let calm = Pod::idle("calm").empty_dir("cache", "Memory", Some("1Mi"), "/cache");
    create(&cluster, calm.container_field("readinessProbe", probe))?;
    machine.write_pod(&Pod::idle("mirrored"))?;
    let names = ["calm".to_owned(), format!("mirrored-{}", machine.hostname())];
    let mut shown = Vec::new();
    for name in &names {
        shown.push(wait_ready(&cluster, name)?["status"].clone());
    }
    let pods = || Ok::<_, anyhow::Error>((machine.fingerprint()?, machine.mounts_below("/var/lib/kubelet/pods")?));
    let before = pods()?;

    let mut rounds = 0;
    let mut look = |when: &str| -> Result<()> {
        eprintln!("{when}");
        rounds += 1;
        let name = format!("round-{rounds}");
        create(&cluster, Pod::busybox(&name, "exit 0").restart_policy("Never"))?;
        wait_phase(&cluster, &name, "Succeeded").with_context(|| machine.last_words(&["kubelet*"], 40))?;
        cluster.delete("pods", "default", &name, None)?;
        cluster.wait_gone("pods", "default", &name)?;
        // What belongs to the round goes a moment after its object; ids of containers and mounts never come again.
        eventually("the pods are what they were", LONG, || {
            let now = pods()?;
            ensure!(now == before, "{before:#?}\nbecame\n{now:#?}");
            Ok(())
        })?;
        for (name, status) in names.iter().zip(&shown) {
            let now = cluster.get("pods", "default", name)?;
            ensure!(now["status"] == *status, "{name}: {status:#}\nbecame\n{:#}", now["status"]);
        }
        let listed = machine.check(&["kubelet-ctl", "pods"])?;
        ensure!(names.iter().all(|name| listed.contains(name.as_str())), "{listed}");
        Ok(())
    };
    let new = build::bin_dir()?;
    let exchange = |service: &str, age: Age| -> Result<String> {
        let program = service.trim_end_matches(".service");
        machine.install_program(&if age == Age::Old { &previous } else { &new }.join(program))?;
        machine.check(&["systemctl", "restart", service])?;
        machine.wait_healthy()?;
        let (pid, file) = (machine.unit(service)?.main_pid, format!("{LIBEXEC}/{program}"));
        let same = machine.run(&["test", &format!("/proc/{pid}/exe"), "-ef", &file])?;
        ensure!(same.status.success(), "{service} does not run from {file}");
        Ok(format!("{program} is {age:?}"))
    };
    for service in SERVICES {
        let what = exchange(service, Age::Old).with_context(|| format!("{service} Old"))?;
        look(&format!("{what}, the others are New")).with_context(|| what)?;
        exchange(service, Age::New).with_context(|| format!("{service} New again"))?;
    }
    // All of them, and back; some are of either version on the way.
    for age in [Age::Old, Age::New] {
        for service in SERVICES {
            exchange(service, age).with_context(|| format!("{service} {age:?} on the way"))?;
        }
        look(&format!("all daemons are {age:?}"))?;
    }
    for name in &names {
        let history = cluster.history("pods", "default", name)?;
        pod_only_advances(&history)?;
        ensure!(values_of(&history, "Ready") == ["False", "True"], "{name} flapped");
    }
    machine.remove_pod("mirrored")?;
    cluster.delete("pods", "default", "calm", None)?;
    for name in &names {
        cluster.wait_gone("pods", "default", name)?;
    }
    machine.finish()
}
