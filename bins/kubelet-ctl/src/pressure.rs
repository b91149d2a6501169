//! `pressure`: what is left of each resource beside its thresholds and over the last ten minutes, what the eviction manager waits
//! for, who would go next and why, whom it evicted.

use std::fmt::Write as _;

use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::evictiond::pressure_client::PressureClient;
use bulkhead_ipc::evictiond::{self, GetPressureRequest, PressureReport, SignalState};
use bulkhead_types::Process;
use serde::Serialize;

use crate::age::seconds;
use crate::amount::bytes;
use crate::connect::{connect, request, within};
use crate::instance::Instance;
use crate::output::Printer;
use crate::plot;
use crate::table::{Table, printable};
use crate::{Exit, Failure};

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Pressure {
    /// Absent before the first pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    conditions: Option<Conditions>,
    /// "single", "imagefs", "split"; empty: not known yet.
    file_systems: String,
    doing: String,
    signals: Vec<Signal>,
    /// Who would go next, for each resource that has a threshold.
    next: Vec<Ranking>,
    /// Why nobody knows; empty: it is known.
    #[serde(skip_serializing_if = "String::is_empty")]
    next_unknown: String,
    evicted: Vec<Evicted>,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Conditions {
    memory_pressure: bool,
    disk_pressure: bool,
    #[serde(rename = "PIDPressure")]
    pid_pressure: bool,
}

/// Bytes, inodes or tasks.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Signal {
    signal: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    available: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<i64>,
    age_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    fall_per_second: Option<f64>,
    thresholds: Vec<Threshold>,
    /// The least that was left within each ten seconds, the oldest first; null where nothing was read.
    least_available: Vec<Option<i64>>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Ranking {
    signal: String,
    pods: Vec<RankedPod>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct RankedPod {
    namespace: String,
    name: String,
    uid: String,
    priority: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    used: Option<i64>,
    request: i64,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Threshold {
    limit: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    required: Option<i64>,
    grace_period_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    minimum_reclaim: Option<i64>,
    met: bool,
    met_for_seconds: f64,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Evicted {
    namespace: String,
    name: String,
    uid: String,
    signal: String,
    message: String,
    age_seconds: f64,
}

/// `pressure`.
pub(crate) async fn show(instance: &Instance, printer: &mut Printer<'_>) -> Result<Exit, Failure> {
    let connected = connect(instance, Process::Evictiond).await?;
    let mut client = PressureClient::new(connected.channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let call = async { Ok(client.get(request(GetPressureRequest {})).await?.into_inner()) };
    let pressure = view(within(Process::Evictiond, instance, call).await?);
    if pressure.conditions.is_none() {
        printer.note("kubelet-ctl: kubelet-evictiond has not looked everywhere yet");
    }
    printer.print(&pressure, || text(&pressure))?;
    Ok(Exit::Success)
}

fn view(report: PressureReport) -> Pressure {
    Pressure {
        conditions: report.conditions.map(|state| Conditions {
            memory_pressure: state.memory_pressure,
            disk_pressure: state.disk_pressure,
            pid_pressure: state.pid_pressure,
        }),
        file_systems: report.file_systems,
        doing: report.doing,
        signals: report.signals.into_iter().map(signal).collect(),
        next: report.rankings.into_iter().map(ranking).collect(),
        next_unknown: report.rankings_unknown,
        evicted: report
            .evicted
            .into_iter()
            .map(|pod| Evicted {
                namespace: pod.namespace,
                name: pod.name,
                uid: pod.uid,
                signal: pod.signal,
                message: pod.message,
                age_seconds: pod.age_seconds,
            })
            .collect(),
    }
}

fn ranking(ranking: evictiond::Ranking) -> Ranking {
    let pods = ranking.pods.into_iter().map(|pod| RankedPod {
        namespace: pod.namespace,
        name: pod.name,
        uid: pod.uid,
        priority: pod.priority,
        used: pod.used,
        request: pod.request,
    });
    Ranking { signal: ranking.signal, pods: pods.collect() }
}

fn signal(state: SignalState) -> Signal {
    Signal {
        signal: state.signal,
        available: state.available,
        capacity: state.capacity,
        age_seconds: state.age_seconds,
        fall_per_second: state.fall_per_second,
        thresholds: state
            .thresholds
            .into_iter()
            .map(|threshold| Threshold {
                limit: threshold.limit,
                required: threshold.required,
                grace_period_seconds: threshold.grace_period_seconds,
                minimum_reclaim: threshold.minimum_reclaim,
                met: threshold.met,
                met_for_seconds: threshold.met_for_seconds,
            })
            .collect(),
        least_available: state.least_available.into_iter().map(|point| point.least).collect(),
    }
}

/// Bytes in binary units, inodes and tasks as they are.
fn amount(signal: &str, amount: i64) -> String {
    let is_bytes = signal.ends_with(".available") && signal != "pid.available";
    if is_bytes { bytes(amount) } else { amount.to_string() }
}

/// A fall as people say it: what is lost has a minus.
fn movement(signal: &str, fall_per_second: f64) -> String {
    #[allow(clippy::cast_possible_truncation, reason = "the cast saturates, and whole units are shown")]
    let change = -fall_per_second as i64;
    match change {
        0 => "steady".to_owned(),
        1.. => format!("+{}/s", amount(signal, change)),
        _ => format!("{}/s", amount(signal, change)),
    }
}

fn text(pressure: &Pressure) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = match pressure.conditions {
        None => writeln!(out, "Conditions: not known yet"),
        Some(conditions) => {
            let all = [
                (conditions.memory_pressure, "MemoryPressure"),
                (conditions.disk_pressure, "DiskPressure"),
                (conditions.pid_pressure, "PIDPressure"),
            ];
            let names: Vec<&str> = all.into_iter().filter_map(|(is, name)| is.then_some(name)).collect();
            writeln!(out, "Conditions: {}", if names.is_empty() { "no pressure".to_owned() } else { names.join(", ") })
        }
    };
    if !pressure.doing.is_empty() {
        let _ = writeln!(out, "The eviction manager {}", printable(&pressure.doing));
    }
    let mut table = Table::new(&["SIGNAL", "AVAILABLE", "OF", "MOVES", "EVICTS BELOW", "GRACE", "MET FOR"]);
    for signal in &pressure.signals {
        let of = |number: Option<i64>| number.map(|number| amount(&signal.signal, number)).unwrap_or_default();
        let moves = signal.fall_per_second.map(|fall| movement(&signal.signal, fall)).unwrap_or_default();
        let available = signal.available.map_or("unknown".to_owned(), |number| amount(&signal.signal, number));
        if signal.thresholds.is_empty() {
            table.row([signal.signal.as_str(), &available, &of(signal.capacity), &moves, "", "", ""]);
        }
        for threshold in &signal.thresholds {
            let below = match threshold.required {
                Some(required) if threshold.limit.ends_with('%') => {
                    format!("{} ({})", threshold.limit, amount(&signal.signal, required))
                }
                _ => threshold.limit.clone(),
            };
            let grace = if threshold.grace_period_seconds > 0.0 {
                seconds(threshold.grace_period_seconds)
            } else {
                "hard".to_owned()
            };
            let met = if threshold.met { seconds(threshold.met_for_seconds) } else { String::new() };
            table.row([signal.signal.as_str(), &available, &of(signal.capacity), &moves, &below, &grace, &met]);
        }
    }
    let _ = write!(out, "\n{}", table.render(0));
    out += &moves(&pressure.signals);
    out += &next(pressure);
    if !pressure.evicted.is_empty() {
        let mut table = Table::new(&["EVICTED", "NAMESPACE", "POD", "SIGNAL", "MESSAGE"]);
        for pod in &pressure.evicted {
            let ago = format!("{} ago", seconds(pod.age_seconds));
            table.row([ago.as_str(), &pod.namespace, &pod.name, &pod.signal, pod.message.trim_end()]);
        }
        let _ = write!(out, "\n{}", table.render(0));
    }
    out
}

/// Lines of the chart.
const CHART_HEIGHT: usize = 5;
/// A line would not show more than the table does.
const FEWEST_POINTS: usize = 2;

/// The last ten minutes: a line of bars for each signal that has thresholds, and a chart of the one nearest to its own.
fn moves(signals: &[Signal]) -> String {
    let mut table = Table::new(&["SIGNAL", "LEAST", "MOST", "LAST TEN MINUTES, LEAST OF EACH 10S"]);
    let with_points = |signal: &&Signal| {
        !signal.thresholds.is_empty() && signal.least_available.iter().flatten().count() >= FEWEST_POINTS
    };
    for signal in signals.iter().filter(with_points) {
        let known = || signal.least_available.iter().flatten().copied();
        let shown = |number: Option<i64>| number.map(|number| amount(&signal.signal, number)).unwrap_or_default();
        let bars = plot::bars(&signal.least_available);
        table.row([signal.signal.as_str(), &shown(known().min()), &shown(known().max()), &bars]);
    }
    let mut out = if table.is_empty() { String::new() } else { format!("\n{}", table.render(0)) };
    let margin = |signal: &&Signal| {
        let most = signal.thresholds.iter().filter_map(|threshold| threshold.required).max()?;
        let least = signal.least_available.iter().flatten().copied().min()?;
        #[allow(clippy::cast_precision_loss, reason = "shares are compared")]
        Some((least.saturating_sub(most) as f64 / signal.capacity?.max(1) as f64, most))
    };
    let all = signals.iter().filter(with_points).filter_map(|signal| Some((signal, margin(&signal)?)));
    if let Some((signal, (_, mark))) = all.min_by(|(_, (a, _)), (_, (b, _))| a.total_cmp(b)) {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "\n{}, nearest to its threshold of {}:", signal.signal, amount(&signal.signal, mark));
        let lines = plot::chart(&signal.least_available, mark, CHART_HEIGHT, |value| amount(&signal.signal, value));
        for (label, line) in lines {
            let _ = writeln!(out, "{label:>10} {}", line.trim_end());
        }
    }
    out
}

/// Who would go next, and why.
fn next(pressure: &Pressure) -> String {
    if !pressure.next_unknown.is_empty() {
        return format!("\nWho would go next is not known: {}\n", printable(&pressure.next_unknown));
    }
    let mut table = Table::new(&["FOR", "NEXT", "NAMESPACE", "POD", "USES", "REQUEST", "PRIORITY", "WHY"]);
    for ranking in &pressure.next {
        for (place, pod) in (1..).zip(&ranking.pods) {
            let used = pod.used.map_or("unknown".to_owned(), |used| amount(&ranking.signal, used));
            let request = amount(&ranking.signal, pod.request);
            table.row([
                &ranking.signal,
                &format!("{place}."),
                &pod.namespace,
                &pod.name,
                &used,
                &request,
                &pod.priority.to_string(),
                why(&ranking.signal, pod),
            ]);
        }
    }
    if table.is_empty() { String::new() } else { format!("\n{}", table.render(0)) }
}

/// The first of the rules that places it.
fn why(signal: &str, pod: &RankedPod) -> &'static str {
    match pod.used {
        _ if signal == "pid.available" => "lowest priority first, then most processes",
        None => "nothing was measured of it",
        Some(used) if used > pod.request => "uses more than it requested",
        Some(_) => "uses no more than it requested: after all who do",
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_ipc::evictiond::{HistoryPoint, PodEvicted, PressureState, ThresholdState};

    use super::*;

    #[test]
    fn signals_beside_their_thresholds() {
        let threshold = |limit: &str, required, grace, met| ThresholdState {
            limit: limit.into(),
            required: Some(required),
            grace_period_seconds: grace,
            met,
            met_for_seconds: 75.4,
            ..ThresholdState::default()
        };
        let signal = |signal: &str, available, fall, thresholds| SignalState {
            signal: signal.into(),
            available,
            capacity: available.map(|_| 4 << 30),
            fall_per_second: fall,
            thresholds,
            least_available: [available, None, available.map(|now| now * 2)].map(|least| HistoryPoint { least }).into(),
            ..SignalState::default()
        };
        let pod = |name: &str, used, request, priority| evictiond::RankedPod {
            uid: name.into(),
            namespace: "default".into(),
            name: name.into(),
            used,
            request,
            priority,
        };
        let report = PressureReport {
            conditions: Some(PressureState { memory_pressure: true, ..PressureState::default() }),
            signals: vec![
                signal(
                    "memory.available",
                    Some(150 << 20),
                    Some(f64::from(3 << 20)),
                    vec![threshold("100Mi", 100 << 20, 0.0, false), threshold("5%", 200 << 20, 90.0, true)],
                ),
                signal("pid.available", Some(32_000), Some(-0.4), Vec::new()),
                signal("nodefs.available", None, None, vec![threshold("10%", 0, 0.0, false)]),
            ],
            file_systems: "single".into(),
            doing: "waits for the end of the evicted pod u1".into(),
            evicted: vec![PodEvicted {
                uid: "u1".into(),
                namespace: "default".into(),
                name: "taker".into(),
                signal: "memory.available".into(),
                message: "The node was low on resource: memory. ".into(),
                age_seconds: 3.0,
            }],
            rankings: vec![
                evictiond::Ranking {
                    signal: "memory.available".into(),
                    pods: vec![pod("large", Some(300 << 20), 1 << 20, 0), pod("calm", Some(1 << 20), 64 << 20, 5)],
                },
                evictiond::Ranking { signal: "pid.available".into(), pods: vec![pod("forks", Some(400), 0, -1)] },
            ],
            rankings_unknown: String::new(),
        };
        let shown = text(&view(report.clone()));
        let expected = "\
Conditions: MemoryPressure
The eviction manager waits for the end of the evicted pod u1

SIGNAL             AVAILABLE   OF             MOVES      EVICTS BELOW    GRACE   MET FOR
memory.available   150.0Mi     4.0Gi          -3.0Mi/s   100Mi           hard    -
memory.available   150.0Mi     4.0Gi          -3.0Mi/s   5% (200.0Mi)    90s     75s
pid.available      32000       4294967296     steady     -               -       -
nodefs.available   unknown     -              -          10% (0)         hard    -

SIGNAL             LEAST     MOST      LAST TEN MINUTES, LEAST OF EACH 10S
memory.available   150.0Mi   300.0Mi   ▁·█

memory.available, nearest to its threshold of 200.0Mi:
   300.0Mi   █
             █
             █
   200.0Mi ┄┄█
   150.0Mi ▁·█

FOR                NEXT   NAMESPACE   POD     USES      REQUEST   PRIORITY   WHY
memory.available   1.     default     large   300.0Mi   1.0Mi     0          uses more than it requested
memory.available   2.     default     calm    1.0Mi     64.0Mi    5          uses no more than it requested: after all who do
pid.available      1.     default     forks   400       0         -1         lowest priority first, then most processes

EVICTED   NAMESPACE   POD     SIGNAL             MESSAGE
3s ago    default     taker   memory.available   The node was low on resource: memory.
";
        let lines = |text: &str| {
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
        };
        assert_eq!(lines(&shown), lines(expected), "{shown}");
        let json = serde_json::to_value(view(report)).unwrap();
        assert_eq!(json["conditions"]["MemoryPressure"], true);
        assert_eq!(json["signals"][0]["thresholds"][1]["met"], true);
    }
}
