//! `health`: does each process answer, is it ready, what do the checks say, how are runtime and pod sources.

use std::fmt::Write as _;

use bulkhead_ipc::statusd::GetStatusRequest;
use bulkhead_ipc::statusd::status_client::StatusClient;
use bulkhead_ipc::syncd::node_client::NodeClient;
use bulkhead_ipc::syncd::{GetNodeRequest, NodeState, SourceState};
use bulkhead_types::Process;
use serde::Serialize;
use tonic::transport::Channel;

use crate::connect::{connect, request, within};
use crate::instance::Instance;
use crate::output::Printer;
use crate::table::{Table, printable};
use crate::{Exit, Failure};

/// Everything.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Health {
    healthy: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    node_name: String,
    processes: Vec<ProcessHealth>,
    checks: Vec<Check>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    listening: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<NodeHealth>,
}

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct ProcessHealth {
    process: &'static str,
    answers: bool,
    ready: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    epoch: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    problem: String,
    /// What it does with less than it should have; no matter of the node's health.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    degraded: Vec<String>,
}

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Check {
    name: String,
    ok: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    /// Worth knowing, and no matter of the node's health.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    informative: bool,
}

/// What kubelet-syncd says of runtime, events and sources.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeHealth {
    runtime: String,
    runtime_ready: bool,
    runtime_reason: String,
    network_ready: bool,
    network_reason: String,
    pleg: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    relist_age_seconds: Option<f64>,
    events_received: u64,
    events_missed: u64,
    sources_ready: bool,
    sources: Vec<Source>,
    problems: Vec<String>,
}

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Source {
    name: String,
    seen: bool,
    pods: u32,
    errors: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    silent_seconds: Option<f64>,
    /// It has delivered nothing for longer than a start takes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    silent: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    waits_for: String,
}

impl Source {
    fn of(source: SourceState) -> Self {
        Source {
            name: source.name,
            silent_seconds: (!source.seen).then_some(source.silent_seconds),
            seen: source.seen,
            pods: source.pods,
            errors: source.errors,
            silent: source.silent,
            waits_for: source.waits_for,
        }
    }
}

/// `health`.
pub(crate) async fn show(instance: &Instance, printer: &mut Printer<'_>) -> Result<Exit, Failure> {
    let mut health = Health::default();
    let (mut statusd, mut syncd): (Option<Channel>, Option<Channel>) = (None, None);
    for process in Process::ALL {
        let mut row = ProcessHealth { process: process.name(), ..Default::default() };
        match connect(instance, process).await {
            Ok(connected) => {
                row.answers = true;
                row.ready = connected.hello.ready;
                row.version = connected.hello.version;
                row.epoch = format!("{:016x}", connected.hello.epoch);
                row.problem = connected.hello.not_ready_reason;
                row.degraded = connected.hello.degraded;
                match process {
                    Process::Statusd => statusd = Some(connected.channel),
                    Process::Syncd => syncd = Some(connected.channel),
                    Process::Volnetd | Process::Evictiond => {}
                }
            }
            Err(trouble) => row.problem = trouble.to_string(),
        }
        health.processes.push(row);
    }
    if let Some(channel) = statusd {
        let mut client = StatusClient::new(channel);
        match within(Process::Statusd, instance, client.get(request(GetStatusRequest {}))).await {
            Ok(reply) => {
                let reply = reply.into_inner();
                health.node_name = reply.node_name;
                health.listening = reply.listening;
                health.checks = reply
                    .checks
                    .into_iter()
                    .map(|check| Check {
                        name: check.name,
                        ok: check.ok,
                        message: check.message,
                        informative: check.informative,
                    })
                    .collect();
            }
            Err(trouble) => printer.note(&format!("kubelet-ctl: {trouble}")),
        }
    }
    if let Some(channel) = syncd {
        let mut client = NodeClient::new(channel);
        match within(Process::Syncd, instance, client.get(request(GetNodeRequest {}))).await {
            Ok(reply) => health.node = Some(node(reply.into_inner())),
            Err(trouble) => printer.note(&format!("kubelet-ctl: {trouble}")),
        }
    }
    let exit = judge(&mut health);
    printer.print(&health, || text(&health))?;
    Ok(exit)
}

fn node(state: NodeState) -> NodeHealth {
    NodeHealth {
        runtime: format!("{} {}", state.runtime_name, state.runtime_version).trim().to_owned(),
        runtime_ready: state.runtime_ready,
        runtime_reason: state.runtime_reason,
        network_ready: state.network_ready,
        network_reason: state.network_reason,
        pleg: state.pleg,
        relist_age_seconds: state.relist_age_seconds,
        events_received: state.events_received,
        events_missed: state.events_missed,
        sources_ready: state.sources_ready,
        sources: state.sources.into_iter().map(Source::of).collect(),
        problems: state.problems,
    }
}

/// Decides on `healthy` and the exit code. A refused manifest is a matter of its author and not of the node's health. Nor
/// is an API server that does not answer; one that answers and yet brings no pods is.
fn judge(health: &mut Health) -> Exit {
    let answered = health.checks.iter().all(|check| check.name != "apiserver" || check.ok);
    let silent = |source: &Source| source.silent && (source.name != "api" || answered);
    let answering = health.processes.iter().filter(|process| process.answers).count();
    health.healthy = health.processes.iter().all(|process| process.answers && process.ready)
        && health.checks.iter().all(|check| check.ok || check.informative)
        && health
            .node
            .as_ref()
            .is_some_and(|node| node.runtime_ready && node.network_ready && !node.sources.iter().any(silent));
    match (health.healthy, answering) {
        (true, _) => Exit::Success,
        (false, 0) => Exit::Unreachable,
        (false, _) => Exit::NotFound,
    }
}

fn text(health: &Health) -> String {
    let yes = |value: bool| if value { "yes" } else { "no" };
    let mut out = String::new();
    let name = if health.node_name.is_empty() { String::new() } else { format!(" {}", health.node_name) };
    // Writing to a String cannot fail.
    let _ = writeln!(out, "Node{}: {}\n", printable(&name), if health.healthy { "healthy" } else { "NOT HEALTHY" });
    let mut processes = Table::new(&["PROCESS", "ANSWERS", "READY", "VERSION", "EPOCH", "PROBLEM"]);
    for process in &health.processes {
        let cells: [&str; 6] = [
            process.process,
            yes(process.answers),
            yes(process.ready),
            &process.version,
            &process.epoch,
            &process.problem,
        ];
        processes.row(cells);
    }
    out.push_str(&processes.render(0));
    for process in &health.processes {
        for sentence in &process.degraded {
            let _ = writeln!(out, "\nDegraded:  {}: {}", process.process, printable(sentence));
        }
    }
    if !health.checks.is_empty() {
        let mut checks = Table::new(&["CHECK", "OK", "MESSAGE"]);
        for check in &health.checks {
            let cells: [&str; 3] = [&check.name, yes(check.ok), &check.message];
            checks.row(cells);
        }
        let _ = write!(out, "\n{}", checks.render(0));
    }
    if let Some(node) = &health.node {
        let state = |ready: bool, reason: &str| match (ready, reason) {
            (true, _) => "ready".to_owned(),
            (false, "") => "not ready".to_owned(),
            (false, reason) => format!("not ready: {}", printable(reason)),
        };
        let runtime = if node.runtime.is_empty() { "not known yet" } else { &node.runtime };
        let _ =
            writeln!(out, "\nRuntime:   {} ({})", printable(runtime), state(node.runtime_ready, &node.runtime_reason));
        let _ = writeln!(out, "Network:   {}", state(node.network_ready, &node.network_reason));
        let _ = writeln!(
            out,
            "Events:    {}, {} received, {} missed, {}",
            printable(&node.pleg),
            node.events_received,
            node.events_missed,
            node.relist_age_seconds.map_or("no relist yet".to_owned(), |age| format!("last relist {age:.0}s ago"))
        );
        for source in &node.sources {
            let seen = match (source.silent_seconds, &*source.waits_for) {
                (None, _) => format!("{} pods", source.pods),
                (Some(_), "") => "not heard of yet".to_owned(),
                (Some(seconds), waits_for) => {
                    let how = if source.silent { "SILENT" } else { "not heard of" };
                    format!("{how} for {seconds:.0}s, waits for {}", printable(waits_for))
                }
            };
            let _ = writeln!(out, "Source:    {}, {seen}", printable(&source.name));
            // The API server's are failed attempts to hear of it; the others' are manifests.
            let what = if source.name == "api" { "failed" } else { "refused" };
            for error in &source.errors {
                let _ = writeln!(out, "           {what}: {}", printable(error));
            }
        }
        for problem in &node.problems {
            let _ = writeln!(out, "Problem:   {}", printable(problem));
        }
    }
    for address in &health.listening {
        let _ = writeln!(out, "Listening: {}", printable(address));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn well() -> Health {
        Health {
            node_name: "node-a".into(),
            processes: Process::ALL
                .into_iter()
                .map(|process| ProcessHealth {
                    process: process.name(),
                    answers: true,
                    ready: true,
                    version: "0.1.0".into(),
                    epoch: "00000000000000aa".into(),
                    problem: String::new(),
                    degraded: Vec::new(),
                })
                .collect(),
            checks: vec![Check { name: "ping".into(), ok: true, ..Default::default() }],
            listening: vec!["http://127.0.0.1:10248".into()],
            node: Some(NodeHealth {
                runtime: "containerd 1.6.20".into(),
                runtime_ready: true,
                network_ready: true,
                pleg: "containerd-events".into(),
                events_received: 12,
                relist_age_seconds: Some(3.2),
                sources: vec![Source {
                    name: "file".into(),
                    seen: true,
                    pods: 2,
                    errors: vec!["a.yaml: no name".into()],
                    ..Default::default()
                }],
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn a_node_that_is_well() {
        let mut health = well();
        assert_eq!(judge(&mut health), Exit::Success);
        assert_eq!(
            text(&health),
            "\
Node node-a: healthy

PROCESS             ANSWERS   READY   VERSION   EPOCH              PROBLEM
kubelet-volnetd     yes       yes     0.1.0     00000000000000aa   -
kubelet-syncd       yes       yes     0.1.0     00000000000000aa   -
kubelet-evictiond   yes       yes     0.1.0     00000000000000aa   -
kubelet-statusd     yes       yes     0.1.0     00000000000000aa   -

CHECK   OK    MESSAGE
ping    yes   -

Runtime:   containerd 1.6.20 (ready)
Network:   ready
Events:    containerd-events, 12 received, 0 missed, last relist 3s ago
Source:    file, 2 pods
           refused: a.yaml: no name
Listening: http://127.0.0.1:10248
"
        );
    }

    #[test]
    fn what_is_not_well_says_so_by_exit_code() {
        let mut health = well();
        health.checks[0].ok = false;
        assert_eq!(judge(&mut health), Exit::NotFound);
        let mut health = well();
        health.checks.push(Check { name: "apiserver".into(), informative: true, ..Default::default() });
        assert_eq!(judge(&mut health), Exit::Success, "a node without its API server is well");
        assert!(text(&health).contains("apiserver   no"));
        let mut health = well();
        health.processes[0].degraded = vec!["no inotify instance".to_owned()];
        assert_eq!(judge(&mut health), Exit::Success, "what is degraded works");
        assert!(text(&health).contains("\nDegraded:  kubelet-volnetd: no inotify instance\n"));
        let mut health = well();
        health.processes[2].answers = false;
        assert_eq!(judge(&mut health), Exit::NotFound);
        let mut health = well();
        health.node.as_mut().unwrap().runtime_ready = false;
        assert_eq!(judge(&mut health), Exit::NotFound);
        assert!(text(&health).contains("NOT HEALTHY"));
        for process in &mut health.processes {
            process.answers = false;
        }
        assert_eq!(judge(&mut health), Exit::Unreachable);
    }

    #[test]
    fn a_silent_source_is_named() {
        let silent = |silent: bool| {
            let mut health = well();
            let source = SourceState {
                name: "api".into(),
                silent_seconds: 75.4,
                silent,
                waits_for: "the API server's list of the pods of this node".into(),
                errors: vec!["the server answered 500".into()],
                ..Default::default()
            };
            health.node.as_mut().unwrap().sources.push(Source::of(source));
            health
        };
        let mut health = silent(true);
        assert_eq!(judge(&mut health), Exit::NotFound);
        let text = text(&health);
        let line = "Source:    api, SILENT for 75s, waits for the API server's list of the pods of this node\n";
        assert!(text.contains(&format!("{line}           failed: the server answered 500\n")), "{text}");
        assert_eq!(judge(&mut silent(false)), Exit::Success, "a start takes a while");
        // Nobody is there to deliver.
        let mut health = silent(true);
        health.checks.push(Check { name: "apiserver".into(), informative: true, ..Default::default() });
        assert_eq!(judge(&mut health), Exit::Success);
    }
}
