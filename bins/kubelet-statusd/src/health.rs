//! The health checks: what each one looks at, and the texts that upstream's /healthz has for the outcome. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use bulkhead_apiclient::Reachability;
use bulkhead_ipc::syncd::NodeState;
use tokio::time::Instant;

use crate::routes::Surface;

/// The checks that a server has, in the order of the answer. `log` never fails: nothing buffers log lines here. The health
/// port has more than upstream's, which has ping alone there: it says whether the node works.
pub fn names(surface: Surface) -> &'static [&'static str] {
    match surface {
        Surface::Healthz => &["ping", "log", "syncloop", "pleg", "volnetd", "evictiond"],
        Surface::ReadOnly | Surface::Main => &["ping", "log", "syncloop", "device-plugin"],
    }
}

/// A process may be away for this long, being restarted, before the node counts as unwell.
pub const RESTART_GRACE: Duration = Duration::from_secs(10);
/// Upstream's floor for the sync loop's age (`pkg/kubelet/kubelet.go`, `SyncLoopHealthCheck`).
const SYNC_LOOP_FLOOR: Duration = Duration::from_secs(5 * 60);
/// Upstream's relist thresholds (`pkg/kubelet/kubelet.go`): without and with container events.
const RELIST_THRESHOLD: Duration = Duration::from_secs(3 * 60);
const EVENTED_RELIST_THRESHOLD: Duration = Duration::from_secs(10 * 60);

/// What is known of a process that a check needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    Ready,
    /// It is away, or not ready, for this long. `None`: it has never been there.
    Away(Option<Duration>),
}

/// What the checks look at.
#[derive(Debug, Clone)]
pub struct Inputs {
    pub syncd: Presence,
    /// Its answer, or `None` when it gave none in time.
    pub node: Option<NodeState>,
    pub volnetd: Presence,
    pub evictiond: Presence,
    /// `syncFrequency` of the configuration.
    pub sync_frequency: Duration,
}

/// A check's outcome; `None` when there is no such check.
pub fn check(name: &str, inputs: &Inputs) -> Option<Result<(), String>> {
    match name {
        "ping" | "log" => Some(Ok(())),
        "device-plugin" => Some(device_plugin(inputs)),
        "syncloop" => Some(sync_loop(inputs)),
        "pleg" => Some(pleg(inputs)),
        "volnetd" => Some(presence("kubelet-volnetd", inputs.volnetd)),
        "evictiond" => Some(presence("kubelet-evictiond", inputs.evictiond)),
        _ => None,
    }
}

fn presence(process: &str, presence: Presence) -> Result<(), String> {
    match presence {
        Presence::Ready => Ok(()),
        Presence::Away(Some(away)) if away < RESTART_GRACE => Ok(()),
        Presence::Away(Some(away)) => Err(format!("{process} has not been ready for {}s", away.as_secs())),
        Presence::Away(None) => Err(format!("{process} has not been ready yet")),
    }
}

fn sync_loop(inputs: &Inputs) -> Result<(), String> {
    let Some(node) = &inputs.node else {
        return match inputs.syncd {
            // It says Hello and does not answer the simplest question: its one thread is stuck.
            Presence::Ready => Err("kubelet-syncd does not answer".into()),
            away => presence("kubelet-syncd", away),
        };
    };
    let limit = (inputs.sync_frequency * 2).max(SYNC_LOOP_FLOOR);
    if node.sync_loop_age_seconds > limit.as_secs_f64() {
        return Err("sync Loop took longer than expected".into());
    }
    Ok(())
}

fn pleg(inputs: &Inputs) -> Result<(), String> {
    // What is unknown of syncd is said by `syncloop`.
    let Some(node) = &inputs.node else { return Ok(()) };
    let threshold = if node.pleg == "relist" { RELIST_THRESHOLD } else { EVENTED_RELIST_THRESHOLD };
    // Before the first relist there is no age. That a start takes long is said by the Node's Ready.
    if let Some(age) = node.relist_age_seconds.filter(|age| *age > threshold.as_secs_f64()) {
        return Err(format!("pleg was last seen active {age:.0}s ago; threshold is {}s", threshold.as_secs()));
    }
    Ok(())
}

/// In upstream's words (`pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go`). What is unknown of syncd is said by `syncloop`.
fn device_plugin(inputs: &Inputs) -> Result<(), String> {
    let error =
        inputs.node.as_ref().map(|node| node.device_registration_error.as_str()).filter(|error| !error.is_empty());
    error.map_or(Ok(()), |error| {
        Err(format!(
            "device registration error: device plugin registration gRPC server failed and no device plugins can register: {error}"
        ))
    })
}

/// Whether the API server answers. No check: a node that cannot reach it is well, and goes on (upstream's /healthz does
/// not look either).
pub fn api_server(reachability: &Reachability, now: Instant) -> Result<(), String> {
    match reachability {
        Reachability::Reachable { .. } => Ok(()),
        Reachability::Unknown => Err("was not asked yet, or there are no credentials to ask with".to_owned()),
        Reachability::Unreachable { since, reason } => {
            Err(format!("has not answered for {}s: {reason}", now.saturating_duration_since(*since).as_secs()))
        }
    }
}

/// An HTTP status and its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub healthy: bool,
    pub text: String,
}

/// The answer of /healthz (upstream `apiserver/pkg/server/healthz`): `ok`, or with `verbose` or on failure the list.
pub fn root(outcomes: &[(&str, Result<(), String>)], verbose: bool, exclude: &[String]) -> Answer {
    let mut list = String::new();
    let mut failed = Vec::new();
    let mut unmatched: BTreeSet<&String> = exclude.iter().collect();
    for (name, outcome) in outcomes {
        if exclude.iter().any(|excluded| excluded == name) {
            unmatched.retain(|excluded| excluded != name);
            list.push_str(&format!("[+]{name} excluded: ok\n"));
        } else if let Err(why) = outcome {
            list.push_str(&format!("[-]{name} failed: reason withheld\n"));
            failed.push(format!("{name}: {why}"));
        } else {
            list.push_str(&format!("[+]{name} ok\n"));
        }
    }
    if !unmatched.is_empty() {
        let names: Vec<String> = unmatched.iter().map(|name| format!("{name:?}")).collect();
        list.push_str(&format!("warn: some health checks cannot be excluded: no matches for {}\n", names.join(",")));
    }
    if !failed.is_empty() {
        tracing::warn!(failed = failed.join("; "), "healthz check failed");
        return Answer { healthy: false, text: format!("{list}healthz check failed\n") };
    }
    let text = if verbose { format!("{list}healthz check passed\n") } else { "ok".to_owned() };
    Answer { healthy: true, text }
}

/// The answer of /healthz/<check>.
pub fn single(outcome: Result<(), String>) -> Answer {
    match outcome {
        Ok(()) => Answer { healthy: true, text: "ok".into() },
        Err(why) => Answer { healthy: false, text: format!("internal server error: {why}\n") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs() -> Inputs {
        Inputs {
            syncd: Presence::Ready,
            node: Some(NodeState { pleg: "cri-events".into(), ..Default::default() }),
            volnetd: Presence::Ready,
            evictiond: Presence::Ready,
            sync_frequency: Duration::from_secs(60),
        }
    }

    fn failing(inputs: &Inputs) -> Vec<&'static str> {
        let names = names(Surface::Healthz).iter().copied();
        names.filter(|name| check(name, inputs).unwrap().is_err()).collect()
    }

    #[test]
    fn what_fails_when() {
        let seconds = |s| Presence::Away(Some(Duration::from_secs(s)));
        type Case = (&'static str, fn(&mut Inputs), &'static [&'static str]);
        let cases: [Case; 10] = [
            ("all well", |_| {}, &[]),
            ("volnetd restarts", |i| i.volnetd = Presence::Away(Some(Duration::from_secs(9))), &[]),
            ("volnetd is gone", |i| i.volnetd = Presence::Away(Some(Duration::from_secs(11))), &["volnetd"]),
            ("never there", |i| i.evictiond = Presence::Away(None), &["evictiond"]),
            (
                "syncd restarts",
                |i| {
                    i.node = None;
                    i.syncd = Presence::Away(Some(Duration::from_secs(1)));
                },
                &[],
            ),
            ("syncd is stuck", |i| i.node = None, &["syncloop"]),
            ("slow loop", |i| i.node.as_mut().unwrap().sync_loop_age_seconds = 301.0, &["syncloop"]),
            (
                "slow loop, allowed",
                |i| {
                    i.sync_frequency = Duration::from_secs(1000);
                    i.node.as_mut().unwrap().sync_loop_age_seconds = 301.0;
                },
                &[],
            ),
            ("audit relist, rarely", |i| i.node.as_mut().unwrap().relist_age_seconds = Some(400.0), &[]),
            (
                "relists only",
                |i| {
                    let node = i.node.as_mut().unwrap();
                    node.pleg = "relist".into();
                    node.relist_age_seconds = Some(181.0);
                },
                &["pleg"],
            ),
        ];
        for (what, change, expected) in cases {
            let mut inputs = inputs();
            change(&mut inputs);
            assert_eq!(failing(&inputs), expected, "{what}");
        }
        let mut unbound = inputs();
        unbound.node.as_mut().unwrap().device_registration_error = "no socket".into();
        assert!(failing(&unbound).is_empty(), "the health port has no such check, with upstream neither");
        assert_eq!(
            check("device-plugin", &unbound).unwrap().unwrap_err(),
            "device registration error: device plugin registration gRPC server failed and no device plugins can register: no socket"
        );
        unbound.node = None;
        assert_eq!(check("device-plugin", &unbound), Some(Ok(())));
        let mut gone = inputs();
        gone.node = None;
        gone.syncd = seconds(60);
        assert_eq!(failing(&gone), ["syncloop"]);
        assert!(check("nothing", &gone).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_api_server_is_shown_beside_the_checks() {
        let since = Instant::now();
        let later = since + Duration::from_secs(7);
        assert_eq!(api_server(&Reachability::Reachable { since }, later), Ok(()));
        assert!(api_server(&Reachability::Unknown, later).unwrap_err().contains("not asked"));
        let silent = Reachability::Unreachable { since, reason: "connection refused".into() };
        assert_eq!(api_server(&silent, later).unwrap_err(), "has not answered for 7s: connection refused");
        for surface in [Surface::Healthz, Surface::ReadOnly, Surface::Main] {
            assert!(!names(surface).contains(&"apiserver"), "/healthz does not depend on it");
            assert!(names(surface).iter().all(|name| check(name, &inputs()).is_some()));
        }
    }

    #[test]
    fn texts_are_upstreams() {
        let good = [("ping", Ok(())), ("syncloop", Ok(()))];
        let bad = [("ping", Ok(())), ("syncloop", Err("sync Loop took longer than expected".to_owned()))];
        assert_eq!(root(&good, false, &[]).text, "ok");
        assert_eq!(root(&good, true, &[]).text, "[+]ping ok\n[+]syncloop ok\nhealthz check passed\n");
        let answer = root(&bad, false, &[]);
        assert!(!answer.healthy);
        assert_eq!(answer.text, "[+]ping ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n");
        assert_eq!(
            root(&bad, true, &["y".into(), "syncloop".into(), "x".into(), "y".into()]).text,
            "[+]ping ok\n[+]syncloop excluded: ok\nwarn: some health checks cannot be excluded: no matches for \"x\",\"y\"\nhealthz check passed\n"
        );
        assert_eq!(single(bad[1].1.clone()).text, "internal server error: sync Loop took longer than expected\n");
    }
}
