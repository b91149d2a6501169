//! Init containers and sidecars: in which order they start and end, what waits for them, what is told meanwhile, and what
//! runs again when.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::{IDLE, LONG, Lab, eventually};
use bulkhead_tests::history::condition;
use bulkhead_tests::joined::Member;
use bulkhead_tests::lab;
use serde_json::{Value, json};

/// Shell functions of all containers: `say` writes a line into the pod's book, `seen` waits for one.
const BOOK: &str = "say() { echo \"$*\" >> /v/book; }; seen() { until grep -qx \"$*\" /v/book; do sleep 0.05; done; };";
/// Until it is asked to end, and says so then.
const SIDECAR: &str = "trap 'say $N ends; exit 0' TERM; say $N starts; while true; do sleep 0.05; done";

/// A pod that writes into a book on the host; each container is `(name, restart policy or "", script)`.
struct Story {
    name: &'static str,
    book: PathBuf,
    spec: Value,
}

impl Story {
    fn new(
        lab: &Lab,
        name: &'static str,
        policy: &str,
        init: &[(&str, &str, &str)],
        regular: &[(&str, &str, &str)],
    ) -> Result<Self> {
        let folder = lab.folder().join("books").join(name);
        std::fs::create_dir_all(&folder)?;
        let list = |all: &[(&str, &str, &str)]| -> Vec<Value> {
            let one = |(name, policy, script): &(&str, &str, &str)| {
                let mut container = json!({"name": name, "command": ["sh", "-c", format!("N={name}; {BOOK} {script}")],
                    "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
                if !policy.is_empty() {
                    container["restartPolicy"] = json!(policy);
                }
                container
            };
            all.iter().map(one).collect()
        };
        let spec = json!({"restartPolicy": policy, "initContainers": list(init), "containers": list(regular),
            "volumes": [{"name": "v", "hostPath": {"path": folder}}]});
        Ok(Story { name, book: folder.join("book"), spec })
    }

    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.book).unwrap_or_default();
        text.lines().map(ToOwned::to_owned).collect()
    }

    fn wait_lines(&self, what: &str, wanted: impl Fn(&[String]) -> bool) -> Result<Vec<String>> {
        eventually(&format!("{}: {what}", self.name), LONG, || {
            let lines = self.lines();
            ensure!(wanted(&lines), "{lines:#?}");
            Ok(lines)
        })
    }
}

fn times(lines: &[String], line: &str) -> usize {
    lines.iter().filter(|one| *one == line).count()
}

fn init_status<'a>(pod: &'a Value, name: &str) -> &'a Value {
    status_in(pod, "initContainerStatuses", name)
}

fn status_of<'a>(pod: &'a Value, name: &str) -> &'a Value {
    status_in(pod, "containerStatuses", name)
}

fn status_in<'a>(pod: &'a Value, list: &str, name: &str) -> &'a Value {
    let all = pod["status"][list].as_array();
    all.and_then(|all| all.iter().find(|one| one["name"] == name)).unwrap_or(&Value::Null)
}

fn has_phase(phase: &'static str) -> impl FnMut(&Value) -> bool {
    move |pod| pod["status"]["phase"] == phase
}

fn waits_for_init(status: &Value) -> bool {
    status["state"]["waiting"]["reason"] == "PodInitializing" && status["restartCount"] == 0
}

/// The phases that were told, each once in a row.
fn phases(member: &Member, name: &str) -> Result<Vec<String>> {
    let statuses = member.cluster.statuses("pods", "default", name)?;
    let mut phases: Vec<String> =
        statuses.iter().filter_map(|status| Some(status["phase"].as_str()?.to_owned())).collect();
    phases.dedup();
    Ok(phases)
}

#[test]
fn init_containers_start_in_order_and_sidecars_stop_in_reverse() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let member =
        Member::start(&lab, &[], |node| node.config("crashLoopBackOff", json!({"maxContainerRestartPeriod": "1s"})))?;

    let task = Story::new(
        &lab,
        "task",
        "Never",
        &[
            ("i1", "", "say i1 starts; sleep 0.2; say i1 ends"),
            ("s2", "Always", SIDECAR),
            // It could not end if the sidecar before it did not run meanwhile.
            ("i3", "", "seen s2 starts; say i3 starts; sleep 0.2; say i3 ends"),
            ("s4", "Always", SIDECAR),
        ],
        &[("main", "", "seen s4 starts; say main starts; sleep 1; say main ends")],
    )?;
    let failing = Story::new(
        &lab,
        "failing",
        "Never",
        &[("i1", "", "say i1; exit 7"), ("i2", "", "say i2")],
        &[("main", "", "say main")],
    )?;
    let retrying = Story::new(
        &lab,
        "retrying",
        "Always",
        &[("i1", "", "say i1; test $(grep -cx i1 /v/book) -ge 3"), ("i2", "", "say i2")],
        &[("main", "", &format!("say main; {IDLE}"))],
    )?;
    let hopeless = Story::new(
        &lab,
        "hopeless",
        "Always",
        &[("i1", "", "exit 1"), ("i2", "", "say i2")],
        &[("main", "", "say main")],
    )?;
    let job = Story::new(
        &lab,
        "job",
        "OnFailure",
        &[("steady", "Always", SIDECAR), ("shaky", "Always", "say shaky; sleep 0.2; exit 3")],
        &[("main", "", "say main; test $(grep -cx main /v/book) -ge 2 && seen shaky && exit 0; exit 1")],
    )?;
    for story in [&task, &failing, &retrying, &hopeless, &job] {
        member.create_with(&json!({"name": story.name}), &story.spec)?;
    }

    // One after another, sidecars stay, and end last, the last one first.
    let pod = member.wait("task", "it has succeeded", has_phase("Succeeded"))?;
    let expected = [
        "i1 starts",
        "i1 ends",
        "s2 starts",
        "i3 starts",
        "i3 ends",
        "s4 starts",
        "main starts",
        "main ends",
        "s4 ends",
        "s2 ends",
    ];
    ensure!(task.lines() == expected, "{:#?}", task.lines());
    for (name, code) in [("i1", 0), ("s2", 0), ("i3", 0), ("s4", 0)] {
        let status = init_status(&pod, name);
        ensure!(status["state"]["terminated"]["exitCode"] == code && status["restartCount"] == 0, "{pod:#}");
    }
    ensure!(init_status(&pod, "i1")["ready"] == true && init_status(&pod, "s2")["ready"] == false, "{pod:#}");
    ensure!(condition(&pod, "Initialized")?["reason"] == "PodCompleted", "{pod:#}");
    ensure!(phases(&member, "task")? == ["Pending", "Running", "Succeeded"], "{:?}", phases(&member, "task")?);

    // One that fails for good ends the pod.
    let pod = member.wait("failing", "it has failed", has_phase("Failed"))?;
    ensure!(failing.lines() == ["i1"], "{:#?}", failing.lines());
    ensure!(init_status(&pod, "i1")["state"]["terminated"]["exitCode"] == 7, "{pod:#}");
    let initialized = condition(&pod, "Initialized")?;
    ensure!(initialized["status"] == "False" && initialized["reason"] == "ContainersNotInitialized", "{pod:#}");
    ensure!(initialized["message"] == "containers with incomplete status: [i1 i2]", "{pod:#}");
    let waits = |pod: &Value| waits_for_init(init_status(pod, "i2")) && waits_for_init(status_of(pod, "main"));
    ensure!(waits(&pod), "{pod:#}");
    ensure!(phases(&member, "failing")? == ["Pending", "Failed"], "{:?}", phases(&member, "failing")?);

    // One that may run again does, with a pause, until it succeeds.
    member.wait("retrying", "it runs", has_phase("Running"))?;
    let lines = retrying.wait_lines("main has started", |lines| times(lines, "main") == 1)?;
    ensure!(lines == ["i1", "i1", "i1", "i2", "main"], "{lines:#?}");
    let pod = member.wait_ready("retrying")?;
    ensure!(init_status(&pod, "i1")["restartCount"] == 2 && status_of(&pod, "main")["restartCount"] == 0, "{pod:#}");
    ensure!(phases(&member, "retrying")? == ["Pending", "Running"], "{:?}", phases(&member, "retrying")?);
    // One that never does keeps everything else waiting.
    let pod = member.wait("hopeless", "it has been tried often", |pod| {
        init_status(pod, "i1")["restartCount"].as_i64() >= Some(3)
    })?;
    // Here rather than of one that succeeds soon: a machine may be so slow that each of its few pauses is over when it is seen.
    member.wait_event("hopeless", "BackOff", |text| {
        text.starts_with("Back-off restarting failed container i1 in pod hopeless_default(")
    })?;
    ensure!(pod["status"]["phase"] == "Pending" && waits(&pod), "{pod:#}");
    ensure!(condition(&pod, "Initialized")?["message"] == "containers with incomplete status: [i1 i2]", "{pod:#}");
    ensure!(hopeless.lines().is_empty(), "{:#?}", hopeless.lines());

    // A sidecar comes back whatever it ends with, and does not keep a job from its end.
    let pod = member.wait("job", "it has succeeded", has_phase("Succeeded"))?;
    let lines = job.lines();
    ensure!(
        times(&lines, "steady starts") == 1 && lines.last().map(String::as_str) == Some("steady ends"),
        "{lines:#?}"
    );
    ensure!(times(&lines, "main") == 2 && status_of(&pod, "main")["restartCount"] == 1, "{lines:#?} {pod:#}");
    ensure!(init_status(&pod, "steady")["restartCount"] == 0, "{pod:#}");
    for story in [&task, &failing, &retrying, &hopeless, &job] {
        member.cluster.delete("pods", "default", story.name, None)?;
    }
    member.node.finish()
}

#[test]
fn what_runs_again_when_a_part_of_the_pod_is_lost() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let mut member =
        Member::start(&lab, &[], |node| node.config("crashLoopBackOff", json!({"maxContainerRestartPeriod": "1s"})))?;
    let service = Story::new(
        &lab,
        "service",
        "Always",
        &[
            ("i1", "", "say i1"),
            ("s2", "Always", "say s2 starts; until test -e /v/fail; do sleep 0.05; done; rm /v/fail; exit 9"),
        ],
        &[("main", "", &format!("seen s2 starts; say main; {IDLE}"))],
    )?;
    let mut once = Story::new(&lab, "once", "Never", &[("i1", "", "say i1")], &[("main", "", "say main")])?;
    // What it needs is never there: it has not run when its sandbox is lost.
    once.spec["containers"][0]["image"] = json!("bulkhead.test/none:1");
    once.spec["containers"][0]["imagePullPolicy"] = json!("Never");
    for story in [&service, &once] {
        member.create_with(&json!({"name": story.name}), &story.spec)?;
    }
    member.wait_ready("service")?;
    member.wait_waiting("once", "main", "ErrImageNeverPull")?;

    // A sidecar that ends while the pod runs comes back alone.
    std::fs::write(service.book.with_file_name("fail"), "")?;
    let pod = member.wait("service", "the sidecar is back", |pod| {
        init_status(pod, "s2")["restartCount"] == 1 && init_status(pod, "s2")["state"]["running"].is_object()
    })?;
    ensure!(init_status(&pod, "s2")["lastState"]["terminated"]["exitCode"] == 9, "{pod:#}");
    ensure!(pod["status"]["phase"] == "Running" && status_of(&pod, "main")["restartCount"] == 0, "{pod:#}");
    ensure!(condition(&pod, "Initialized")?["status"] == "True", "{pod:#}");
    let lines = service.wait_lines("the sidecar says so", |lines| times(lines, "s2 starts") == 2)?;
    ensure!(times(&lines, "i1") == 1 && times(&lines, "main") == 1, "{lines:#?}");

    // A restart of the process that decides disturbs nothing, and runs no init container again.
    member.decide_anew("service")?;
    ensure!(service.lines() == lines, "{:#?}", service.lines());

    // The sandbox is lost: everything from the beginning.
    stop_sandbox(&member, "service")?;
    // What ended with it may be tried once more in what is left of it.
    let again = |status: &Value, least: i64| {
        status["restartCount"].as_i64() >= Some(least) && status["state"]["running"].is_object()
    };
    let pod = member
        .wait("service", "it runs again", |pod| again(status_of(pod, "main"), 1) && again(init_status(pod, "s2"), 1))?;
    ensure!(init_status(&pod, "i1")["restartCount"] == 1, "{pod:#}");
    let lines = service.wait_lines("main has started again", |lines| {
        times(lines, "i1") == 2 && lines.last().is_some_and(|line| line == "main")
    })?;
    let anew = lines.iter().rposition(|line| line == "i1").context("i1")?;
    ensure!(lines[anew..] == ["i1", "s2 starts", "main"], "{lines:#?}");
    member.wait_event("service", "SandboxChanged", |text| {
        text == "Pod sandbox changed, it will be killed and re-created."
    })?;

    // A pod that runs once and has not run yet gets a new one, too.
    stop_sandbox(&member, "once")?;
    once.wait_lines("its init container has run again", |lines| times(lines, "i1") == 2)?;
    member.wait_waiting("once", "main", "ErrImageNeverPull")?;
    for story in [&service, &once] {
        member.cluster.delete("pods", "default", story.name, None)?;
    }
    member.node.finish()
}

fn stop_sandbox(member: &Member, pod: &str) -> Result<()> {
    let cri = member.node.cri()?;
    let all = cri.sandboxes()?;
    let found = all.iter().rfind(|one| one.pod == pod && one.ready).context("it has no sandbox")?;
    cri.stop_sandbox(&found.id)
}
