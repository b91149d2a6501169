//! What others are shown: conditions for kubelet-statusd, as a stream; everything for the operator. And kubelet-syncd is told the
//! conditions until it has taken them.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_config::eviction::Signal;
use bulkhead_daemon::progress::Heartbeat;
use bulkhead_ipc::evictiond::pressure_server::Pressure;
use bulkhead_ipc::evictiond::{GetPressureRequest, PressureReport, PressureState, WatchPressureRequest};
use bulkhead_ipc::syncd::ReportPressureRequest;
use bulkhead_types::BackOff;
use futures_util::Stream;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::next::Ranker;
use super::syncd::Syncd;
use crate::pods::PodSource;
use crate::runtime::RuntimeSource;
use crate::signals::observation::Condition;
use crate::signals::thresholds::Layout;

/// For so long whoever asks for the report waits for the manager to make a new one: it may be waiting for others itself.
const FRESH: Duration = Duration::from_millis(200);
/// Pause before a report is repeated, doubled between these.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Conditions of the node that are true.
pub type Conditions = BTreeSet<Condition>;

/// What the operator is shown, and for what pods are ranked when it is asked for.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub pressure: PressureReport,
    pub signals: Vec<Signal>,
    pub layout: Layout,
}

/// What is shown.
#[derive(Debug)]
pub struct Shown {
    /// `None`: nothing has been judged yet.
    conditions: watch::Sender<Option<Conditions>>,
    /// Made when somebody asks, and while the manager does something: to make it takes more than to judge.
    report: watch::Sender<Report>,
    asked: Notify,
    stop: CancellationToken,
}

impl Shown {
    pub fn new(stop: CancellationToken) -> Self {
        Shown { conditions: watch::Sender::new(None), report: watch::Sender::default(), asked: Notify::new(), stop }
    }

    /// True: they are others than before.
    pub fn set_conditions(&self, conditions: &Conditions) -> bool {
        self.conditions.send_if_modified(|shown| {
            let is_new = shown.as_ref() != Some(conditions);
            *shown = Some(conditions.clone());
            is_new
        })
    }

    pub fn set_report(&self, report: Report) {
        self.report.send_replace(report);
    }

    /// Until somebody wants a new report.
    pub async fn asked(&self) {
        self.asked.notified().await;
    }

    /// A new report, or the last one where the manager is busy.
    async fn report(&self) -> Report {
        let mut report = self.report.subscribe();
        self.asked.notify_one();
        let _ = tokio::time::timeout(FRESH, report.changed()).await;
        report.borrow().clone()
    }
}

fn state(conditions: &Conditions) -> PressureState {
    PressureState {
        memory_pressure: conditions.contains(&Condition::Memory),
        disk_pressure: conditions.contains(&Condition::Disk),
        pid_pressure: conditions.contains(&Condition::Pid),
    }
}

/// `kubelet.evictiond.v1.Pressure`.
#[derive(Debug)]
pub struct PressureApi<P, R> {
    pub shown: Arc<Shown>,
    pub ranker: Ranker<P, R>,
}

#[tonic::async_trait]
impl<P: PodSource, R: RuntimeSource> Pressure for PressureApi<P, R> {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<PressureState, Status>> + Send>>;

    async fn watch(&self, _: Request<WatchPressureRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let mut conditions = self.shown.conditions.subscribe();
        conditions.mark_changed();
        let start = (conditions, self.shown.stop.clone());
        let stream = futures_util::stream::unfold(start, |(mut conditions, stop)| async move {
            loop {
                tokio::select! {
                    changed = conditions.changed() => changed.ok()?,
                    () = stop.cancelled() => return None,
                }
                // Nothing is said before the first pass.
                let now = conditions.borrow_and_update().as_ref().map(state);
                if let Some(now) = now {
                    return Some((Ok(now), (conditions, stop)));
                }
            }
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get(&self, _: Request<GetPressureRequest>) -> Result<Response<PressureReport>, Status> {
        let conditions = self.shown.conditions.borrow().as_ref().map(state);
        let report = self.shown.report().await;
        let (rankings, rankings_unknown) = match self.ranker.rankings(&report.signals, report.layout).await {
            Ok(rankings) => (rankings, String::new()),
            Err(status) => (Vec::new(), status.message().to_owned()),
        };
        Ok(Response::new(PressureReport { conditions, rankings, rankings_unknown, ..report.pressure }))
    }
}

/// Tells kubelet-syncd, each of its lives, what the conditions are, until it has taken them. Never ends.
pub async fn report(syncd: Syncd, shown: Arc<Shown>, heartbeat: Heartbeat) {
    let mut conditions = shown.conditions.subscribe();
    let mut retry = BackOff::new(RETRY.0, RETRY.1);
    let mut taken = None;
    loop {
        let epoch = heartbeat.rests(syncd.ready()).await;
        let now = conditions.borrow_and_update().clone();
        if let Some(now) = now.filter(|now| taken.as_ref() != Some(&(epoch, now.clone()))) {
            let PressureState { memory_pressure: memory, disk_pressure: disk, pid_pressure: pid } = state(&now);
            let told = syncd.report(ReportPressureRequest { memory, disk, pid });
            match heartbeat.rests(told).await {
                Ok(()) => {
                    taken = Some((epoch, now));
                    retry.reset();
                }
                Err(status) => {
                    tracing::debug!(code = ?status.code(), "pressure was not taken: {}", status.message());
                    heartbeat.rests(tokio::time::sleep(retry.pause())).await;
                    continue;
                }
            }
        }
        heartbeat
            .rests(async {
                tokio::select! {
                    changed = conditions.changed() => if changed.is_err() { std::future::pending().await },
                    () = syncd.another_life(epoch) => {}
                }
            })
            .await;
    }
}
