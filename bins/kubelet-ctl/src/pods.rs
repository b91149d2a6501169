//! `pods` and `pod NAME`: where each pod is, and why.

use std::fmt::Write as _;

use bulkhead_ipc::MAX_POD_BYTES;
use bulkhead_ipc::syncd::node_client::NodeClient;
use bulkhead_ipc::syncd::pods_client::PodsClient;
use bulkhead_ipc::syncd::{GetNodeRequest, ListPodsRequest, PodState, WatchPodsRequest, pod_update::Update};
use bulkhead_types::Process;
use jiff::Timestamp;
use tonic::transport::Channel;

use crate::connect::{ConnectError, connect, request, within};
use crate::instance::Instance;
use crate::output::{Format, Printer};
use crate::table::{Table, printable};
use crate::view::{Pod, PodEvent};
use crate::{Exit, Failure, age};

const COLUMNS: [&str; 9] = ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "SOURCE", "WHY"];

fn client(channel: Channel) -> PodsClient<Channel> {
    PodsClient::new(channel).max_decoding_message_size(MAX_POD_BYTES)
}

/// All pods of kubelet-syncd, sorted by namespace and name.
pub(crate) async fn all(instance: &Instance, namespace: Option<&str>) -> Result<Vec<PodState>, Failure> {
    let connected = connect(instance, Process::Syncd).await?;
    let mut client = client(connected.channel);
    let call = async {
        let mut stream = client.list(request(ListPodsRequest {})).await?.into_inner();
        let mut pods = Vec::new();
        while let Some(pod) = stream.message().await? {
            pods.push(pod);
        }
        Ok(pods)
    };
    let mut pods = within(Process::Syncd, instance, call).await?;
    pods.retain(|pod| namespace.is_none_or(|namespace| pod.namespace == namespace));
    pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    Ok(pods)
}

/// `pods`.
pub(crate) async fn list(
    instance: &Instance,
    namespace: Option<&str>,
    printer: &mut Printer<'_>,
) -> Result<Exit, Failure> {
    let pods: Vec<Pod> = all(instance, namespace).await?.into_iter().map(|pod| Pod::new(pod, false)).collect();
    if pods.is_empty() && printer.format == Format::Table {
        printer.note(&match namespace {
            Some(namespace) => format!("No pods in namespace {namespace}."),
            None => "No pods on this node.".to_owned(),
        });
        // None may also mean "none yet".
        for reason in still_starting(instance).await {
            printer.note(&format!("kubelet-syncd is not there yet: {}", printable(&reason)));
        }
        return Ok(Exit::Success);
    }
    printer.print(&pods, || table(&pods, Timestamp::now()))?;
    Ok(Exit::Success)
}

/// Why kubelet-syncd may not know all pods; nothing when it does.
async fn still_starting(instance: &Instance) -> Vec<String> {
    let Ok(connected) = connect(instance, Process::Syncd).await else { return Vec::new() };
    let mut client = NodeClient::new(connected.channel);
    match within(Process::Syncd, instance, client.get(request(GetNodeRequest {}))).await {
        Ok(reply) => {
            let node = reply.into_inner();
            let unheard = node.sources.into_iter().filter(|source| !source.seen);
            let sources = unheard.map(|source| format!("pod source {:?} has not been read", source.name));
            if node.sources_ready { Vec::new() } else { node.problems.into_iter().chain(sources).collect() }
        }
        Err(_) => Vec::new(),
    }
}

/// The table of `pods`.
pub(crate) fn table(pods: &[Pod], now: Timestamp) -> String {
    let mut table = Table::new(&COLUMNS);
    for pod in pods {
        table.row(row(pod, now));
    }
    table.render(0)
}

fn row(pod: &Pod, now: Timestamp) -> [String; 9] {
    let ip = pod.ips.first().cloned().unwrap_or_default();
    [
        pod.namespace.clone(),
        pod.name.clone(),
        pod.ready(),
        pod.status_word(),
        pod.restarts().to_string(),
        age::since(&pod.started_at, now),
        ip,
        pod.origin(),
        why(pod, now),
    ]
}

fn why(pod: &Pod, now: Timestamp) -> String {
    match (pod.why.as_str(), age::since(&pod.why_since, now).as_str()) {
        ("", _) => String::new(),
        (why, "") => why.to_owned(),
        (why, since) => format!("{why} ({since})"),
    }
}

/// `pods --watch`: all pods, then every change until interrupted.
pub(crate) async fn watch(
    instance: &Instance,
    namespace: Option<&str>,
    printer: &mut Printer<'_>,
) -> Result<Exit, Failure> {
    let connected = connect(instance, Process::Syncd).await?;
    let mut client = client(connected.channel);
    let trouble = |status: tonic::Status| ConnectError::of(Process::Syncd, instance, &status);
    let started = within(Process::Syncd, instance, client.watch(WatchPodsRequest { cursor: None })).await?;
    let mut stream = started.into_inner();
    let mut table = Table::new(&COLUMNS);
    let mut in_snapshot = true;
    while let Some(update) = stream.message().await.map_err(trouble)? {
        match update.update {
            Some(Update::Upsert(pod)) if namespace.is_none_or(|namespace| pod.namespace == namespace) => {
                let pod = Pod::new(pod, false);
                table.row(row(&pod, Timestamp::now()));
                match printer.format {
                    // The first pods come as one table with widths that fit them all.
                    Format::Table if in_snapshot => {}
                    Format::Table => printer.text(&table.drain(false))?,
                    Format::Json | Format::Yaml => {
                        table.drain(false);
                        printer.stream(&pod, String::new)?;
                    }
                }
            }
            Some(Update::SnapshotDone(_)) if in_snapshot => {
                in_snapshot = false;
                if printer.format == Format::Table {
                    printer.text(&table.drain(true))?;
                }
            }
            Some(Update::RemovedUid(uid)) => match printer.format {
                Format::Table => printer.note(&format!("pod with uid {} is gone", printable(&uid))),
                Format::Json | Format::Yaml => printer.stream(&serde_json::json!({"removedUid": uid}), String::new)?,
            },
            _ => {}
        }
    }
    Err(ConnectError::NoAnswer { process: Process::Syncd, socket: instance.socket(Process::Syncd) }.into())
}

/// `pod NAME`.
pub(crate) async fn one(
    instance: &Instance,
    namespace: Option<&str>,
    name: &str,
    printer: &mut Printer<'_>,
) -> Result<Exit, Failure> {
    let (namespace, name) = match name.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (namespace, name),
    };
    let pods = all(instance, namespace).await?;
    let names: Vec<(&str, &str, &str)> =
        pods.iter().map(|pod| (pod.namespace.as_str(), pod.name.as_str(), pod.uid.as_str())).collect();
    let at = find(&names, name).map_err(Failure::NotFound)?;
    let Some(pod) = pods.into_iter().nth(at) else {
        return Err(Failure::NotFound(format!("there is no pod {name:?} on this node")));
    };
    let pod = Pod::new(pod, true);
    printer.print(&pod, || describe(&pod, Timestamp::now()))?;
    Ok(Exit::Success)
}

/// Which of (namespace, name, uid) is meant: the very name or uid, else the only one whose name begins so.
pub(crate) fn find(pods: &[(&str, &str, &str)], wanted: &str) -> Result<usize, String> {
    let list = |matching: &[usize]| {
        let names = matching.iter().filter_map(|at| pods.get(*at)).map(|(ns, name, _)| format!("  {ns}/{name}"));
        names.collect::<Vec<_>>().join("\n")
    };
    let matching = |test: &dyn Fn(&str, &str) -> bool| -> Vec<usize> {
        pods.iter().enumerate().filter(|(_, (_, name, uid))| test(name, uid)).map(|(at, _)| at).collect()
    };
    for matching in [
        matching(&|name, uid| name == wanted || uid == wanted),
        matching(&|name, _| !wanted.is_empty() && name.starts_with(wanted)),
    ] {
        match matching.as_slice() {
            [] => {}
            [one] => return Ok(*one),
            several => return Err(format!("{wanted:?} can mean several pods:\n{}", list(several))),
        }
    }
    Err(format!("there is no pod {wanted:?} on this node"))
}

/// The text of `pod NAME`.
pub(crate) fn describe(pod: &Pod, now: Timestamp) -> String {
    let mut out = format!("{}\n\n{}", printable(&answer(pod, now)), heading(pod, now));
    section(&mut out, "Containers", &containers(pod, now));

    let mut volumes = Table::new(&["NAME", "KIND", "READY", "PATH", "PROBLEM"]);
    for volume in &pod.volumes {
        let ready = if volume.ready { "yes" } else { "no" };
        table_row(&mut volumes, [&volume.name, &volume.kind, ready, &volume.host_path, &volume.error]);
    }
    section(&mut out, "Volumes", &volumes);

    let mut conditions = Table::new(&["TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"]);
    for condition in &pod.conditions {
        let status = if condition.status { "True" } else { "False" };
        let since = age::since(&condition.last_transition, now);
        table_row(&mut conditions, [&condition.r#type, status, &since, &condition.reason, &condition.message]);
    }
    section(&mut out, "Conditions", &conditions);

    let mut events = Table::new(&["AGE", "TYPE", "REASON", "ABOUT", "MESSAGE"]);
    for PodEvent { time, r#type, reason, message, field_path, .. } in &pod.events {
        table_row(&mut events, [&age::since(time, now), r#type, reason, field_path, message]);
    }
    section(&mut out, "Events", &events);
    out
}

/// What whoever asks for a pod wants to know first: how it is, and what it waits for.
fn answer(pod: &Pod, now: Timestamp) -> String {
    let state = format!("{}/{} is {}, {} containers ready", pod.namespace, pod.name, pod.status_word(), pod.ready());
    let reasons = [why(pod, now), pod.message.clone()];
    let reasons: Vec<String> = reasons.into_iter().filter(|reason| !reason.is_empty()).collect();
    if reasons.is_empty() { state } else { format!("{state}: {}", reasons.join("; ")) }
}

/// What there is once of a pod, a line each.
fn heading(pod: &Pod, now: Timestamp) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{:<13}{}", format!("{name}:"), printable(value));
        }
    };
    let network = if pod.host_network { "the node's" } else { "" };
    let sandbox = match (pod.sandbox_id.as_str(), pod.sandbox_ready) {
        ("", _) => String::new(),
        (id, true) => format!("{id} (ready)"),
        (id, false) => format!("{id} (not ready)"),
    };
    let aged = |time: &str| match age::since(time, now).as_str() {
        "" => time.to_owned(),
        age => format!("{time} ({age} ago)"),
    };
    line("Name", &pod.name);
    line("Namespace", &pod.namespace);
    line("UID", &pod.uid);
    line("Source", &pod.source);
    if let Some(api) = &pod.api {
        let kind = if api.mirror { format!("mirror pod {}, ", api.uid) } else { String::new() };
        let deleting = if api.deleting { ", is being deleted" } else { "" };
        line("API server", &format!("{kind}version {}{deleting}", api.resource_version));
    } else if pod.source == "api" {
        line("API server", "has it no more");
    }
    line("Status", &pod.status_word());
    line("Worker", pod.worker);
    line("Why", &why(pod, now));
    line("Phase", &pod.phase);
    line("Reason", &pod.reason);
    line("Message", &pod.message);
    line("Started", &aged(&pod.started_at));
    line("QoS class", &pod.qos_class);
    line("Resize", &pod.resize());
    line("Cgroup", &pod.cgroup);
    line("Sandbox", &sandbox);
    line("IP", &pod.ips.join(", "));
    line("Network", network);
    line("Logs", &pod.log_directory);
    out
}

fn containers(pod: &Pod, now: Timestamp) -> Table {
    let mut containers = Table::new(&["NAME", "STATE", "READY", "RESTARTS", "SINCE", "IMAGE", "ID", "WHY"]);
    for container in &pod.containers {
        let name = if container.init { format!("{} (init)", container.name) } else { container.name.clone() };
        let since = if container.finished_at.is_empty() || container.state == "running" {
            &container.started_at
        } else {
            &container.finished_at
        };
        let mut why = vec![container.reason.clone()];
        if let Some(code) = container.exit_code {
            why.push(format!("exit code {code}"));
        }
        let again = age::until(&container.back_off_until, now);
        if !again.is_empty() {
            why.push(format!("next start {again}"));
        }
        why.push(container.message.clone());
        // A pod that ends is not probed as one that is to run.
        if pod.worker == "Sync" {
            why.push(container.probes_wait_for().to_owned());
        }
        why.retain(|part| !part.is_empty());
        let id = container.id.get(..13).unwrap_or(&container.id);
        table_row(
            &mut containers,
            [
                &name,
                &container.state,
                if container.ready { "yes" } else { "no" },
                &container.restarts.to_string(),
                &age::since(since, now),
                &container.image,
                id,
                &why.join(", "),
            ],
        );
    }
    containers
}

fn table_row<const N: usize>(table: &mut Table, cells: [&str; N]) {
    table.row(cells);
}

fn section(out: &mut String, name: &str, table: &Table) {
    if table.is_empty() {
        let _ = writeln!(out, "\n{name}: none");
    } else {
        let _ = write!(out, "\n{name}:\n{}", table.render(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_ipc::syncd::{Condition, ContainerState, Event, PodVolume, WorkerState};

    fn now() -> Timestamp {
        "2026-01-01T01:00:00Z".parse().unwrap()
    }

    fn web() -> Pod {
        let state = PodState {
            uid: "u1".into(),
            namespace: "default".into(),
            name: "web-node-a".into(),
            source: "file".into(),
            worker: WorkerState::Sync.into(),
            phase: "Running".into(),
            why: "waits to start container main again".into(),
            why_since: "2026-01-01T00:59:50Z".into(),
            qos_class: "BestEffort".into(),
            cgroup: "/kubepods/besteffort/podu1".into(),
            sandbox_id: "0123456789abcdef".into(),
            sandbox_ready: true,
            ips: vec!["10.0.0.5".into()],
            started_at: "2026-01-01T00:55:00Z".into(),
            containers: vec![ContainerState {
                name: "main".into(),
                id: "fedcba9876543210".into(),
                state: "waiting".into(),
                reason: "CrashLoopBackOff".into(),
                message: "back-off 10s restarting failed container".into(),
                restart_count: 2,
                image: "busybox:1".into(),
                finished_at: "2026-01-01T00:59:49Z".into(),
                back_off_until: "2026-01-01T01:00:09Z".into(),
                ..Default::default()
            }],
            volumes: vec![PodVolume {
                name: "scratch".into(),
                kind: "emptyDir".into(),
                ready: true,
                host_path: "/var/lib/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/scratch".into(),
                ..Default::default()
            }],
            conditions: vec![Condition {
                r#type: "Ready".into(),
                reason: "ContainersNotReady".into(),
                last_transition: "2026-01-01T00:59:50Z".into(),
                ..Default::default()
            }],
            recent_events: vec![Event {
                time: "2026-01-01T00:59:49Z".into(),
                r#type: "Warning".into(),
                reason: "BackOff".into(),
                message: "Back-off restarting failed container\u{1b}[2J".into(),
                field_path: "spec.containers{main}".into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        Pod::new(state, false)
    }

    #[test]
    fn the_table_of_pods() {
        assert_eq!(
            table(&[web()], now()),
            "\
NAMESPACE   NAME         READY   STATUS             RESTARTS   AGE   IP         SOURCE   WHY
default     web-node-a   0/1     CrashLoopBackOff   2          5m    10.0.0.5   file     waits to start container main again (10s)
"
        );
    }

    #[test]
    fn one_pod_in_words() {
        assert_eq!(
            describe(&web(), now()),
            "\
default/web-node-a is CrashLoopBackOff, 0/1 containers ready: waits to start container main again (10s)

Name:        web-node-a
Namespace:   default
UID:         u1
Source:      file
Status:      CrashLoopBackOff
Worker:      Sync
Why:         waits to start container main again (10s)
Phase:       Running
Started:     2026-01-01T00:55:00Z (5m ago)
QoS class:   BestEffort
Cgroup:      /kubepods/besteffort/podu1
Sandbox:     0123456789abcdef (ready)
IP:          10.0.0.5

Containers:
  NAME   STATE     READY   RESTARTS   SINCE   IMAGE       ID              WHY
  main   waiting   no      2          11s     busybox:1   fedcba9876543   CrashLoopBackOff, next start in 9s, back-off 10s restarting failed container

Volumes:
  NAME      KIND       READY   PATH                                                               PROBLEM
  scratch   emptyDir   yes     /var/lib/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/scratch   -

Conditions:
  TYPE    STATUS   SINCE   REASON               MESSAGE
  Ready   False    10s     ContainersNotReady   -

Events:
  AGE   TYPE      REASON    ABOUT                   MESSAGE
  11s   Warning   BackOff   spec.containers{main}   Back-off restarting failed container\\u{1b}[2J
"
        );
    }

    #[test]
    fn the_status_of_the_api_server_is_shown() {
        let mut pod = web();
        let api = |mirror, deleting| crate::view::ApiCopy {
            uid: "m1".into(),
            resource_version: "12".into(),
            deleting,
            mirror,
        };
        let line = |pod: &Pod| {
            let text = describe(pod, now());
            text.lines().find_map(|line| line.strip_prefix("API server:")).map(|text| text.trim().to_owned())
        };
        assert_eq!(line(&pod), None);
        pod.api = Some(api(true, false));
        assert_eq!(line(&pod).unwrap(), "mirror pod m1, version 12");
        pod.source = "api".into();
        pod.api = Some(api(false, true));
        assert_eq!(line(&pod).unwrap(), "version 12, is being deleted");
        pod.api = None;
        assert_eq!(line(&pod).unwrap(), "has it no more");
    }

    #[test]
    fn names_are_found() {
        let pods = [("default", "web-node-a", "u1"), ("default", "web-2-node-a", "u2"), ("kube-system", "dns", "u3")];
        assert_eq!(find(&pods, "dns"), Ok(2));
        assert_eq!(find(&pods, "u2"), Ok(1));
        assert_eq!(find(&pods, "web-n"), Ok(0));
        assert_eq!(
            find(&pods, "web"),
            Err("\"web\" can mean several pods:\n  default/web-node-a\n  default/web-2-node-a".into())
        );
        assert!(find(&pods, "x").unwrap_err().contains("there is no pod"));
        assert!(find(&pods, "").is_err());
    }
}
