//! Whether the node works, and the words for it: the Ready condition out of what the other processes say. Pure.
//!
//! Texts, order and aggregation are upstream's (`pkg/kubelet/runtime.go`, `nodestatus/setters.go`,
//! `apimachinery/pkg/util/errors`). Two sentences are our own, because one process has become four: that one of
//! the others does not answer, and that kubelet-syncd's loop stands still.

use std::time::Duration;

use bulkhead_ipc::syncd::NodeState;
use bulkhead_types::{GoDuration, go_aggregate};

/// Upstream's `baseRuntimeSyncThreshold`: the runtime has not answered for so long.
const RUNTIME_SILENT: Duration = Duration::from_secs(30);
/// Upstream's relist thresholds, without and with container events.
const RELIST: Duration = Duration::from_secs(3 * 60);
const EVENTED_RELIST: Duration = Duration::from_secs(10 * 60);
/// Upstream's floor for the age of the sync loop, which its health check has.
const SYNC_LOOP_FLOOR: Duration = Duration::from_secs(5 * 60);

/// What is known of kubelet-syncd.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Syncd<'a> {
    /// What it said last, not longer ago than a restart takes.
    Says(&'a NodeState),
    /// It has been silent for longer than a restart takes.
    Silent,
}

/// Which of the other two processes that the node cannot do without has been silent for longer than a restart takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SilentPeers {
    pub volnetd: bool,
    pub evictiond: bool,
}

/// Everything that Ready depends on.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    pub syncd: Syncd<'a>,
    pub silent_peers: SilentPeers,
    /// Why the CSINode object does not stand yet.
    pub storage: Option<&'a str>,
    pub shutting_down: bool,
    /// Resources that capacity has to name and does not.
    pub missing_capacity: &'a [&'a str],
    /// Appended to the message, whatever the status.
    pub soft_warning: Option<&'a str>,
    /// `syncFrequency`.
    pub sync_frequency: Duration,
}

/// Status, reason and message of the Ready condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    pub ready: bool,
    pub reason: &'static str,
    pub message: String,
}

/// The condition's content.
pub fn ready(inputs: &Inputs<'_>) -> Ready {
    let mut errors = Vec::new();
    match inputs.syncd {
        Syncd::Silent => errors.push(does_not_answer("kubelet-syncd")),
        Syncd::Says(state) => errors.extend(runtime(state, inputs.sync_frequency)),
    }
    // Without it nothing starts, restarts or ends, and what syncd says of the runtime stays well.
    if inputs.silent_peers.volnetd {
        errors.push(does_not_answer("kubelet-volnetd"));
    }
    // Without it the pressures stay at its last word, whatever has become of memory and disks.
    if inputs.silent_peers.evictiond {
        errors.push(does_not_answer("kubelet-evictiond"));
    }
    errors.extend(inputs.storage.map(str::to_owned));
    if inputs.shutting_down {
        errors.push("node is shutting down".to_owned());
    }
    if !inputs.missing_capacity.is_empty() {
        errors.push(format!("missing node capacity for resources: {}", inputs.missing_capacity.join(", ")));
    }
    let mut condition = match go_aggregate(&errors) {
        None => Ready { ready: true, reason: "KubeletReady", message: "kubelet is posting ready status".to_owned() },
        Some(message) => Ready { ready: false, reason: "KubeletNotReady", message },
    };
    if let Some(warning) = inputs.soft_warning {
        condition.message = format!("{}. WARNING: {warning}", condition.message);
    }
    condition
}

fn does_not_answer(process: &str) -> String {
    format!("{process} is not healthy: it does not answer")
}

fn runtime(state: &NodeState, sync_frequency: Duration) -> Vec<String> {
    let mut errors = Vec::new();
    match state.runtime_status_age_seconds {
        None => errors.push("container runtime status check may not have completed yet".to_owned()),
        Some(age) if age >= RUNTIME_SILENT.as_secs_f64() => errors.push("container runtime is down".to_owned()),
        Some(_) => {}
    }
    let threshold = if state.pleg == "relist" { RELIST } else { EVENTED_RELIST };
    match state.relist_age_seconds {
        None => errors.push("PLEG is not healthy: pleg has yet to be successful".to_owned()),
        Some(age) if age > threshold.as_secs_f64() => errors.push(format!(
            "PLEG is not healthy: pleg was last seen active {} ago; threshold is {}",
            minutes(age),
            minutes(threshold.as_secs_f64())
        )),
        Some(_) => {}
    }
    if state.sync_loop_age_seconds > (sync_frequency * 2).max(SYNC_LOOP_FLOOR).as_secs_f64() {
        errors.push("kubelet-syncd is not healthy: sync Loop took longer than expected".to_owned());
    }
    let known = state.runtime_status_age_seconds.is_some();
    if known && !state.runtime_ready {
        errors.push(format!("container runtime not ready: {}", state.runtime_reason));
    }
    // Upstream reads the network's state only from a runtime that is ready, and calls it unknown until then.
    if !known {
        errors.push("network state unknown".to_owned());
    } else if !state.network_ready {
        errors.push(format!("container runtime network not ready: {}", state.network_reason));
    }
    errors
}

/// In whole minutes: a text that changes with every look would cost a PATCH each time.
fn minutes(seconds: f64) -> GoDuration {
    GoDuration::from_secs((seconds / 60.0).floor().clamp(0.0, 1e9) as i64 * 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn well() -> NodeState {
        NodeState {
            runtime_ready: true,
            network_ready: true,
            runtime_status_age_seconds: Some(1.0),
            pleg: "cri-events".into(),
            relist_age_seconds: Some(1.0),
            ..Default::default()
        }
    }

    fn inputs<'a>(syncd: Syncd<'a>) -> Inputs<'a> {
        Inputs {
            syncd,
            silent_peers: SilentPeers::default(),
            storage: None,
            shutting_down: false,
            missing_capacity: &[],
            soft_warning: None,
            sync_frequency: Duration::from_secs(60),
        }
    }

    #[test]
    fn texts() {
        type Case = (&'static str, fn(&mut NodeState), &'static str);
        let cases: [Case; 12] = [
            ("well", |_| {}, "kubelet is posting ready status"),
            ("never listed", |s| s.relist_age_seconds = None, "PLEG is not healthy: pleg has yet to be successful"),
            (
                "never asked",
                |s| s.runtime_status_age_seconds = None,
                "[container runtime status check may not have completed yet, network state unknown]",
            ),
            ("runtime down", |s| s.runtime_status_age_seconds = Some(30.0), "container runtime is down"),
            ("just not down", |s| s.runtime_status_age_seconds = Some(29.9), "kubelet is posting ready status"),
            (
                "relist only",
                |s| {
                    s.pleg = "relist".into();
                    s.relist_age_seconds = Some(245.5);
                },
                "PLEG is not healthy: pleg was last seen active 4m0s ago; threshold is 3m0s",
            ),
            ("rare relists beside events", |s| s.relist_age_seconds = Some(245.5), "kubelet is posting ready status"),
            (
                "no relist for long",
                |s| s.relist_age_seconds = Some(600.5),
                "PLEG is not healthy: pleg was last seen active 10m0s ago; threshold is 10m0s",
            ),
            (
                "stuck loop",
                |s| s.sync_loop_age_seconds = 301.0,
                "kubelet-syncd is not healthy: sync Loop took longer than expected",
            ),
            (
                "runtime",
                |s| {
                    s.runtime_ready = false;
                    s.runtime_reason = "RuntimeReady=false reason:R message:m".into();
                },
                "container runtime not ready: RuntimeReady=false reason:R message:m",
            ),
            (
                "network",
                |s| {
                    s.network_ready = false;
                    s.network_reason = "NetworkReady=false reason:NetworkPluginNotReady message:no".into();
                },
                "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:no",
            ),
            (
                "both",
                |s| {
                    s.runtime_status_age_seconds = Some(99.0);
                    s.network_ready = false;
                    s.network_reason = "N".into();
                },
                "[container runtime is down, container runtime network not ready: N]",
            ),
        ];
        for (what, change, expected) in cases {
            let mut state = well();
            change(&mut state);
            let got = ready(&inputs(Syncd::Says(&state)));
            assert_eq!(got.message, expected, "{what}");
            assert_eq!(got.ready, expected == "kubelet is posting ready status", "{what}");
            assert_eq!(got.reason, if got.ready { "KubeletReady" } else { "KubeletNotReady" }, "{what}");
        }
    }

    #[test]
    fn a_silent_syncd_storage_capacity_and_shutdown() {
        let silent = ready(&inputs(Syncd::Silent));
        assert_eq!(
            (silent.ready, silent.message.as_str()),
            (false, "kubelet-syncd is not healthy: it does not answer")
        );
        let state = well();
        let all = ready(&Inputs {
            storage: Some("CSINode is not yet initialized"),
            shutting_down: true,
            missing_capacity: &["cpu", "pods"],
            ..inputs(Syncd::Says(&state))
        });
        assert_eq!(
            all.message,
            "[CSINode is not yet initialized, node is shutting down, missing node capacity for resources: cpu, pods]"
        );
    }

    #[test]
    fn a_process_that_is_silent_for_long_is_named() {
        let state = well();
        for (volnetd, evictiond, expected) in [
            (false, false, "kubelet is posting ready status"),
            (true, false, "kubelet-volnetd is not healthy: it does not answer"),
            (false, true, "kubelet-evictiond is not healthy: it does not answer"),
            (
                true,
                true,
                "[kubelet-volnetd is not healthy: it does not answer, kubelet-evictiond is not healthy: it does not answer]",
            ),
        ] {
            let silent_peers = SilentPeers { volnetd, evictiond };
            let got = ready(&Inputs { silent_peers, ..inputs(Syncd::Says(&state)) });
            assert_eq!((got.ready, got.message.as_str()), (!volnetd && !evictiond, expected));
        }
    }

    #[test]
    fn a_soft_warning_changes_the_message_alone() {
        let state = well();
        let warned =
            ready(&Inputs { soft_warning: Some("CPU hardcapping unsupported"), ..inputs(Syncd::Says(&state)) });
        assert!(warned.ready);
        assert_eq!(warned.message, "kubelet is posting ready status. WARNING: CPU hardcapping unsupported");
    }
}
