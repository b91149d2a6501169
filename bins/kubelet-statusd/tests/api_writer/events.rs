//! Events, from both sources.

use std::sync::Arc;

use bulkhead_daemon::StateDir;
use bulkhead_daemon::progress::{LOOP_BOUND, Progress};
use bulkhead_ipc::syncd::Event;
use kubelet_statusd::events::backlog::Backlog;
use kubelet_statusd::events::{EventMetrics, EventQueue, Involved, Record, Sender};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::api_writer::api::{Api, Fault};
use crate::api_writer::syncd::Syncd;

struct Run {
    task: JoinHandle<()>,
    queue: EventQueue,
    backlog: Backlog,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Run {
    /// Ends as a process ends that is told to.
    async fn stop(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
        self.backlog.write().await;
    }
}

fn start(api: &Api, syncd: &Syncd, state: &tempfile::TempDir) -> Run {
    let folder: std::os::fd::OwnedFd = std::fs::File::open(state.path()).unwrap().into();
    let backlog = Backlog::read(Arc::new(StateDir::lock(folder).unwrap()));
    let (queue, own) = EventQueue::new();
    let sender = Sender {
        client: api.client(),
        syncd: syncd.link(),
        node: "n".into(),
        queue: queue.clone(),
        backlog: backlog.clone(),
        metrics: EventMetrics::new().unwrap(),
        heartbeat: Progress::default().register("events", LOOP_BOUND),
    };
    Run { task: tokio::spawn(sender.run(own)), queue, backlog }
}

fn about(pod: &str, message: &str) -> Event {
    Event {
        time: jiff::Timestamp::now().to_string(),
        r#type: "Normal".into(),
        reason: "Created".into(),
        message: message.into(),
        pod_uid: pod.into(),
        namespace: "d".into(),
        pod_name: pod.into(),
        field_path: "spec.containers{main}".into(),
        ..Event::default()
    }
}

fn messages(api: &Api) -> Vec<String> {
    let mut all: Vec<String> =
        api.list("/api/v1/namespaces/d/events/").iter().map(|e| e["message"].as_str().unwrap().to_owned()).collect();
    all.sort();
    all
}

fn counts(api: &Api) -> Vec<(Value, Value)> {
    api.list("/api/v1/namespaces/d/events/").iter().map(|e| (e["message"].clone(), e["count"].clone())).collect()
}

#[tokio::test]
async fn both_sources_and_equal_ones_counted() {
    let (api, syncd, state) = (Api::default(), Syncd::start().await, tempfile::tempdir().unwrap());
    let run = start(&api, &syncd, &state);
    run.queue.pod_seen("a", "17");
    run.queue.record(Record {
        involved: Involved::Node,
        kind: "Normal",
        reason: "Starting".into(),
        message: "Starting kubelet.".into(),
    });
    syncd.event(about("a", "one"));
    api.until("both", |api| api.list("/").len() == 2).await;
    let of_node = api.list("/api/v1/namespaces/default/events/n.").remove(0);
    assert_eq!(of_node["involvedObject"], json!({"kind": "Node", "name": "n", "apiVersion": "v1"}));
    let of_pod = api.list("/api/v1/namespaces/d/events/a.").remove(0);
    assert_eq!((&of_pod["involvedObject"]["resourceVersion"], &of_pod["count"]), (&json!("17"), &json!(1)));

    syncd.event(about("a", "one"));
    syncd.event(about("a", "one"));
    api.until("counted", |api| counts(api) == [(json!("one"), json!(3))]).await;
    assert_eq!(api.requests("PATCH").len(), 2);

    // It has expired on the server: it begins again under its name, with its count.
    api.remove(&format!("/api/v1/namespaces/d/events/{}", of_pod["metadata"]["name"].as_str().unwrap()));
    syncd.event(about("a", "one"));
    api.until("created again", |api| counts(api) == [(json!("one"), json!(4))]).await;
}

#[tokio::test]
async fn a_restart_goes_on_where_it_was() {
    let (api, syncd, state) = (Api::default(), Syncd::start().await, tempfile::tempdir().unwrap());
    let run = start(&api, &syncd, &state);
    for message in ["1", "2", "3"] {
        syncd.event(about("a", message));
    }
    api.until("three", |api| messages(api).len() == 3).await;
    // Their answers have been taken once another is on its way.
    syncd.event(about("a", "4"));
    api.until("four", |api| messages(api).len() == 4).await;
    run.stop().await;
    syncd.event(about("a", "5"));
    let run = start(&api, &syncd, &state);
    api.until("five", |api| messages(api) == ["1", "2", "3", "4", "5"]).await;
    let repeated = api.requests("POST").len() - 5;
    assert!(repeated <= 1, "at most the one whose answer had not come: {repeated}");

    // Killed before anything was written: what is sent again is known by its name.
    run.task.abort();
    std::fs::remove_file(state.path().join("events.json")).unwrap();
    drop(run);
    let state = tempfile::tempdir().unwrap();
    let _run = start(&api, &syncd, &state);
    syncd.event(about("a", "6"));
    api.until("six", |api| messages(api) == ["1", "2", "3", "4", "5", "6"]).await;
}

#[tokio::test]
async fn another_kubelet_syncd_has_other_events() {
    let (api, mut syncd, state) = (Api::default(), Syncd::start().await, tempfile::tempdir().unwrap());
    let _run = start(&api, &syncd, &state);
    for message in ["1", "2", "3"] {
        syncd.event(about("a", message));
    }
    api.until("three", |api| messages(api).len() == 3).await;
    syncd.restart(Vec::new()).await;
    syncd.event(about("a", "4"));
    api.until("four", |api| messages(api) == ["1", "2", "3", "4"]).await;
}

#[tokio::test]
async fn a_server_that_is_away_gets_them_all_later() {
    let (api, syncd, state) = (Api::default(), Syncd::start().await, tempfile::tempdir().unwrap());
    let run = start(&api, &syncd, &state);
    api.fail("", usize::MAX, Fault::Broken);
    for i in 0..20 {
        syncd.event(about(&format!("p{i}"), &format!("{i:02}")));
        run.queue.record(Record {
            involved: Involved::Node,
            kind: "Normal",
            reason: format!("R{i}"),
            message: "m".into(),
        });
    }
    api.until("it was tried", |api| api.requests("").len() >= 2).await;
    api.heal();
    api.until("all", |api| api.list("/").len() == 40).await;
}

#[tokio::test]
async fn what_was_read_outlives_both_processes() {
    let (api, mut syncd, state) = (Api::default(), Syncd::start().await, tempfile::tempdir().unwrap());
    api.fail("", usize::MAX, Fault::Broken);
    let run = start(&api, &syncd, &state);
    let keep = run.backlog.clone();
    let keeping = tokio::spawn(async move { keep.keep().await });
    for message in ["1", "2", "3"] {
        syncd.event(about("a", message));
    }
    let file = state.path().join("events.json");
    api.until("they are on the disk", |_| {
        std::fs::read_to_string(&file).is_ok_and(|text| text.contains(r#""seq":3,"#))
    })
    .await;
    // Both are killed; nobody else knows of these events.
    keeping.abort();
    run.task.abort();
    drop(run);
    syncd.restart(Vec::new()).await;
    api.heal();
    let _run = loop {
        // The folder is held until the last of the killed process's tasks is gone.
        let folder: std::os::fd::OwnedFd = std::fs::File::open(state.path()).unwrap().into();
        match StateDir::lock(folder) {
            Ok(lock) => {
                drop(lock);
                break start(&api, &syncd, &state);
            }
            Err(_) => tokio::task::yield_now().await,
        }
    };
    syncd.event(about("a", "4"));
    api.until("four", |api| messages(api) == ["1", "2", "3", "4"]).await;
    assert!(counts(&api).iter().all(|(_, count)| *count == 1), "{:?}", counts(&api));
}

#[tokio::test]
async fn what_is_refused_is_dropped_and_what_is_not_is_tried_again() {
    let (api, syncd, state) = (Api::default(), Syncd::start().await, tempfile::tempdir().unwrap());
    let _run = start(&api, &syncd, &state);
    let causes = json!({"causes": [{"reason": "NamespaceTerminating"}]});
    api.fail("POST", 1, Fault::Answer(403, causes));
    syncd.event(about("a", "in a namespace that ends"));
    syncd.event(about("b", "sent"));
    api.until("the next", |api| messages(api) == ["sent"]).await;
    api.fail("POST", 2, Fault::Answer(429, json!({})));
    api.fail("POST", 2, Fault::Answer(500, json!({})));
    api.fail("POST", 1, Fault::Unheard);
    syncd.event(about("c", "stubborn"));
    syncd.event(about("d", "after it"));
    api.until("both", |api| messages(api) == ["after it", "sent", "stubborn"]).await;
    // One refused, one sent; five failures, then known; one sent.
    assert_eq!(api.requests("POST").len(), 9);
}
