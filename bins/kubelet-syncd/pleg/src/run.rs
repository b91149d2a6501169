//! The generator's task: the thin async shell around the tracker. One loop owns all state; calls to the runtime run
//! beside it, so a hung one holds up its own pod only.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bulkhead_cri::{CONTAINERD_NAMESPACE, Code, CriClient, CriError, EventStream, RuntimeEvent, RuntimeEventKind, v1};
use bulkhead_daemon::progress::{Heartbeat, asked};
use bulkhead_types::PodUid;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, FuturesUnordered};
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::ended::EndedAhead;
use super::evented::{EventSource, SourcePicker, gives_events_to_one_alone, tells_ends_itself};
use super::inspect::{self, Everything};
use super::metrics::PlegMetrics;
use super::options::PlegOptions;
use super::relist::{PodLifecycleEvent, PodLifecycleEventKind, states_of};
use super::relist_time::Relists;
use super::shared::Shared;
use super::subscribers::room;
use super::tracker::{BUSY_MAX, Tracker};
use super::trust::Trust;
use kubelet_model::pod::model::RuntimePod;

/// Pods that are inspected at the same time. More only queue up inside the runtime; fewer would let some hung calls
/// hold up the rest.
const INSPECTIONS_MAX: usize = 16;
/// Events taken in one go before what they led to is started.
const EVENTS_BATCH: usize = 64;
/// Lists after a stream was opened: one to repair what was missed while there was none, one more because a server
/// that has nothing to say does not tell when it began to listen.
const LIST_AFTER_OPEN: Duration = Duration::from_millis(1);
const LIST_AGAIN_AFTER_OPEN: Duration = Duration::from_secs(1);
/// Pods of the first list that do not answer for this long no longer hold up the rest; they stay doubtful.
const FIRST_INSPECTIONS: Duration = Duration::from_secs(10);
/// Retries of a failed list while a stream stands.
const LIST_RETRY: Duration = Duration::from_secs(1);

enum Done {
    Inspected { uid: PodUid, ordered: Instant, started: Instant, result: Result<RuntimePod, CriError> },
    Listed { started: Instant, result: Result<Everything, CriError> },
    LookedUp { id: Box<str>, owner: Option<PodUid> },
}

/// The future to run beside everything else. It never ends; dropping it ends all waiting on the cache.
pub struct PlegTask {
    client: CriClient,
    options: PlegOptions,
    metrics: PlegMetrics,
    shared: Arc<Shared>,
    tracker: Tracker,
    relists: Relists,
    ended: EndedAhead,
    picker: SourcePicker,
    stream: Option<(EventSource, ToldEvents)>,
    /// Of the stream.
    trust: Trust,
    /// Of the stream: it is the one that will give events, and not a question about the runtime's version.
    stream_asked_for: Arc<AtomicBool>,
    work: FuturesUnordered<BoxFuture<'static, Done>>,
    list_due: Option<Instant>,
    list_again: Option<Instant>,
    listing: bool,
    list_failed: bool,
    last_list_started: Option<Instant>,
    opened_at: Instant,
    /// Pods of the first list that were not inspected yet. None before the first list.
    initial: Option<HashSet<PodUid>>,
    initial_until: Option<Instant>,
    heartbeat: Option<Heartbeat>,
}

/// Events, each with who tells it.
type ToldEvents = BoxStream<'static, Result<(EventSource, RuntimeEvent), CriError>>;

fn told_by(source: EventSource, events: EventStream) -> ToldEvents {
    events.map_ok(move |event| (source, event)).boxed()
}

/// The CRI's own stream; "not implemented" where it is none to rely on. A runtime that does not say what it is has one.
/// With it comes containerd's own word of ends, where the runtime is containerd; that this breaks is no break of the stream.
/// `asked_for` turns true once the runtime is asked for the stream itself.
fn cri_events(client: &CriClient, asked_for: Arc<AtomicBool>) -> ToldEvents {
    let client = client.clone();
    let open = async move {
        let said = client.version(v1::VersionRequest { version: String::new() }).await.unwrap_or_default();
        if gives_events_to_one_alone(&said.runtime_name, &said.runtime_version) {
            let message = "each event is given to one listener alone".to_owned();
            let error = CriError { code: Code::Unimplemented, method: "get_container_events", message };
            let refused: ToldEvents = stream::iter([Err(error)]).boxed();
            return refused;
        }
        asked_for.store(true, Ordering::Relaxed);
        let events = told_by(EventSource::Cri, client.container_events());
        if !tells_ends_itself(&said.runtime_name) {
            return events;
        }
        let ends = told_by(EventSource::Containerd, client.containerd_ends(CONTAINERD_NAMESPACE));
        let ends = ends.filter_map(|told| {
            let told = told.inspect_err(
                |error| info!(%error, "failed to watch container processes: their ends come by CRI events alone"),
            );
            std::future::ready(told.ok().map(Ok))
        });
        stream::select(events, ends).boxed()
    };
    stream::once(open).flatten().boxed()
}

impl std::fmt::Debug for PlegTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlegTask").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Drop for PlegTask {
    fn drop(&mut self) {
        self.shared.cache.close();
    }
}

impl PlegTask {
    pub(super) fn new(client: CriClient, options: PlegOptions, metrics: PlegMetrics, shared: Arc<Shared>) -> Self {
        let now = Instant::now();
        PlegTask {
            client,
            options,
            metrics,
            shared,
            tracker: Tracker::default(),
            relists: Relists::default(),
            ended: EndedAhead::default(),
            picker: SourcePicker::new(now),
            stream: None,
            trust: Trust::default(),
            stream_asked_for: Arc::default(),
            work: FuturesUnordered::new(),
            list_due: Some(now),
            list_again: None,
            listing: false,
            list_failed: false,
            last_list_started: None,
            opened_at: now,
            initial: None,
            initial_until: None,
            heartbeat: None,
        }
    }

    /// The watchdog's beat depends on this loop.
    pub fn with_heartbeat(mut self, heartbeat: Heartbeat) -> Self {
        self.heartbeat = Some(heartbeat);
        self
    }

    /// Runs for ever.
    pub async fn run(mut self) {
        loop {
            self.start_what_is_due();
            let wake = self.next_wake();
            let timer = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let event = async {
                match self.stream.as_mut() {
                    Some((source, stream)) => (*source, stream.next().await),
                    None => std::future::pending().await,
                }
            };
            let behind = self.shared.subscribers.lock().behind();
            let done = async {
                match self.work.is_empty() {
                    true => std::future::pending().await,
                    false => self.work.next().await,
                }
            };
            tokio::select! {
                (source, event) = event => self.on_events(source, event),
                done = done => if let Some(done) = done { self.on_done(done) },
                () = self.shared.cache.wake.notified() => {
                    let now = Instant::now();
                    for (uid, ids) in self.shared.cache.take_anew() {
                        self.tracker.refresh(&uid, ids);
                    }
                    for (uid, tell) in self.shared.cache.take_wanted() {
                        self.tracker.request(&uid, tell, now);
                    }
                }
                () = asked(self.heartbeat.as_ref()) => {}
                () = room(behind) => self.shared.subscribers.lock().catch_up(),
                () = timer => {}
            }
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        let list = if self.listing { None } else { [self.list_due, self.list_again].into_iter().flatten().min() };
        let open = if self.options.events { self.picker.due() } else { None };
        let looks = self.tracker.next_due(INSPECTIONS_MAX);
        [looks, list, open, self.initial_until, self.trust.due()].into_iter().flatten().min()
    }

    fn start_what_is_due(&mut self) {
        let now = Instant::now();
        self.tracker.busy(self.shared.cache.take_busy(BUSY_MAX), now);
        if self.initial_until.is_some_and(|until| until <= now) {
            warn!(pods = ?self.initial, "pods were not inspected in time at the start: going on without them");
            self.initial = Some(HashSet::new());
            self.check_initial();
        }
        if self.trust.wait_is_over(now) {
            self.relist_meanwhile(now);
        }
        if self.options.events && self.picker.due().is_some_and(|due| due <= now) {
            self.open_stream(now);
        }
        if self.list_again.is_some_and(|due| due <= now) {
            self.list_again = None;
            self.list_due = Some(now);
        }
        if !self.listing && self.list_due.is_some_and(|due| due <= now) {
            self.start_list(now);
        }
        for id in self.tracker.take_lookups(now) {
            let client = self.client.clone();
            self.work.push(Box::pin(async move {
                let owner = inspect::find_owner(&client, &id).await.unwrap_or_else(|error| {
                    debug!(%id, %error, "looking up the pod of a container");
                    None
                });
                Done::LookedUp { id, owner }
            }));
        }
        let orders = self.tracker.take_due(now, INSPECTIONS_MAX);
        self.relists.looks(orders.iter().map(|order| &order.uid), now);
        for order in orders {
            let client = self.client.clone();
            let previous = self.shared.cache.get(&order.uid);
            let named = order.named.iter().map(|id| &**id);
            let asked = if order.in_doubt { None } else { self.shared.cache.known(&order.uid, named) };
            self.work.push(Box::pin(async move {
                let (started, uid) = (Instant::now(), order.uid);
                let result = match &asked {
                    Some(ids) => inspect::inspect_known(&client, &uid, &previous, ids).await,
                    None => inspect::inspect_pod(&client, &uid, &previous, &order.refresh).await,
                };
                Done::Inspected { uid, ordered: now, started, result }
            }));
        }
    }

    fn open_stream(&mut self, now: Instant) {
        let source = self.picker.open(now);
        debug!(?source, "opening the runtime's event stream");
        self.stream_asked_for = Arc::new(AtomicBool::new(source == EventSource::Containerd));
        let stream = match source {
            EventSource::Cri => cri_events(&self.client, self.stream_asked_for.clone()),
            EventSource::Containerd => told_by(source, self.client.containerd_events(CONTAINERD_NAMESPACE)),
        };
        self.stream = Some((source, stream));
        self.trust = Trust::default();
        self.opened_at = now;
        // A list begun before the stream stands repairs nothing.
        self.list_due = Some(now + LIST_AFTER_OPEN);
        self.list_again = Some(now + LIST_AGAIN_AFTER_OPEN);
    }

    fn on_events(&mut self, source: EventSource, first: Option<Result<(EventSource, RuntimeEvent), CriError>>) {
        let mut next = first;
        for _ in 0..EVENTS_BATCH {
            match next {
                Some(Ok((teller, event))) => self.on_event(event, teller != source),
                Some(Err(error)) => return self.on_stream_error(source, &error),
                None => return self.on_stream_end(source, false),
            }
            let Some((_, stream)) = self.stream.as_mut() else { return };
            match stream.next().now_or_never() {
                Some(ready) => next = ready,
                None => return,
            }
        }
        // The batch is full: what was taken last must not be lost.
        match next {
            Some(Ok((teller, event))) => self.on_event(event, teller != source),
            Some(Err(error)) => self.on_stream_error(source, &error),
            None => self.on_stream_end(source, false),
        }
    }

    /// `early`: containerd's own word, of which the CRI's event follows.
    fn on_event(&mut self, event: RuntimeEvent, early: bool) {
        let now = Instant::now();
        self.shared.stats.lock().runtime_events += 1;
        if !early && self.trust.told() {
            info!("following the runtime's event stream");
        }
        let told = event.pod_uid.as_deref().and_then(|uid| PodUid::parse(uid).ok());
        let settled = told.is_some();
        let Some(uid) = told.or_else(|| self.shared.cache.owner(&event.id)) else {
            // The event that follows names the pod.
            if !early {
                self.tracker.unresolved_event(&event.id, event.kind, now);
            }
            return;
        };
        let is_end = matches!(event.kind, RuntimeEventKind::Exited(_) | RuntimeEventKind::Finished(_));
        if early && is_end {
            self.tracker.ends_early(&uid, &event.id, now);
        } else {
            self.tracker.event(&uid, &event.id, event.kind, settled, now);
        }
        self.ended.note(&event, now);
        if is_end {
            let mut pod = RuntimePod::clone(&self.shared.cache.get(&uid));
            if self.ended.apply(&mut pod, now) {
                self.shared.cache.amend(&uid, pod);
                let died = self.tracker.finished(&uid, &event.id);
                self.deliver(died.into_iter().collect());
            }
        }
    }

    fn on_stream_error(&mut self, source: EventSource, error: &CriError) {
        let unimplemented = error.is_unimplemented();
        if unimplemented {
            debug!(?source, "the runtime does not offer this event stream");
        } else if self.shared.connected.load(Ordering::Relaxed) {
            warn!(?source, %error, "the runtime's event stream broke");
        } else {
            debug!(?source, %error, "the runtime's event stream does not stand");
        }
        self.on_stream_end(source, unimplemented);
    }

    fn on_stream_end(&mut self, source: EventSource, unimplemented: bool) {
        let now = Instant::now();
        self.stream = None;
        self.trust = Trust::default();
        self.shared.connected.store(false, Ordering::Relaxed);
        self.picker.failed(source, unimplemented, now);
        {
            let mut stats = self.shared.stats.lock();
            stats.source = None;
            if !unimplemented {
                stats.connection_errors += 1;
            }
        }
        if !unimplemented {
            self.metrics.connection_error.inc();
        }
        if !self.picker.supported() && self.initial.is_some() {
            info!("the runtime has no event stream: relisting instead");
        }
        self.list_again = None;
        if self.last_list_started.is_none() {
            self.list_due = Some(now);
        } else if !self.listing {
            self.plan_list(now);
        }
    }

    fn start_list(&mut self, now: Instant) {
        self.listing = true;
        self.list_due = None;
        if let Some(last) = self.last_list_started.replace(now) {
            self.metrics.relist_interval.observe(now.duration_since(last).as_secs_f64());
        }
        let client = self.client.clone();
        self.work.push(Box::pin(async move {
            let started = Instant::now();
            Done::Listed { started, result: inspect::list_all(&client).await }
        }));
    }

    /// The stream stands and has told nothing of what happened.
    fn relist_meanwhile(&mut self, now: Instant) {
        warn!("the runtime's event stream is silent: relisting until it delivers events");
        if !self.listing {
            self.plan_list(now);
        }
    }

    /// When to list next: rarely while events flow, often while they do not.
    fn plan_list(&mut self, now: Instant) {
        let pause = match (&self.stream, self.list_failed) {
            (Some(_), false) if self.trust.is_silent() => self.options.relist_interval,
            (Some(_), false) => jittered(self.options.audit_interval),
            (Some(_), true) => LIST_RETRY,
            (None, _) => self.options.relist_interval,
        };
        self.list_due = Some(now + pause);
    }

    fn on_done(&mut self, done: Done) {
        let now = Instant::now();
        match done {
            Done::LookedUp { id, owner } => self.tracker.looked_up(&id, owner, now),
            Done::Listed { started, result } => self.on_listed(started, result, now),
            Done::Inspected { uid, ordered, started, result } => {
                if result.is_ok() {
                    self.shared.cache.looked_at(&uid, ordered);
                }
                self.on_inspected(&uid, started, result, now);
            }
        }
    }

    fn on_listed(&mut self, started: Instant, result: Result<Everything, CriError>, now: Instant) {
        self.listing = false;
        self.shared.stats.lock().relists += 1;
        let failed_before = std::mem::replace(&mut self.list_failed, result.is_err());
        match result {
            Err(error) => {
                self.relists.listed(started, std::iter::empty());
                if !failed_before {
                    warn!(%error, "failed to list the runtime's pods");
                }
            }
            Ok(Everything { states: pods, ids }) => {
                self.seen(started);
                if failed_before && self.stream.is_none() {
                    self.picker.runtime_is_back(now);
                }
                // What happened while there was no stream, or none that tells anything, is nothing that events missed.
                let is_told = self.stream.is_some() && !self.trust.is_silent();
                let audit = is_told && started >= self.opened_at + LIST_AGAIN_AFTER_OPEN * 2;
                let doubtful = self.tracker.listed(&pods, started, now, audit);
                let ready = doubtful.iter().filter(|uid| self.tracker.is_ready(uid, now));
                self.relists.listed(started, ready.cloned());
                self.shared.cache.set_listed(started, &doubtful, ids);
                if self.initial.is_none() {
                    self.initial_until = Some(now + FIRST_INSPECTIONS);
                    self.initial = Some(pods.into_keys().filter(|uid| doubtful.contains(uid)).collect());
                    self.check_initial();
                }
                if let Some((source, _)) = &self.stream
                    && started >= self.opened_at
                    && self.stream_asked_for.load(Ordering::Relaxed)
                    && !self.shared.connected.swap(true, Ordering::Relaxed)
                {
                    info!(?source, "following the runtime's events");
                    self.trust.stands(SystemTime::now());
                    self.shared.stats.lock().source = Some(*source);
                    self.metrics.connection_success.inc();
                    self.metrics.connection_latency.observe(now.duration_since(self.opened_at).as_secs_f64());
                }
            }
        }
        self.observe_relists(now);
        // A stream that was opened meanwhile has set its own, earlier time.
        if self.list_due.is_none() {
            self.plan_list(now);
        }
    }

    fn on_inspected(&mut self, uid: &PodUid, started: Instant, mut result: Result<RuntimePod, CriError>, now: Instant) {
        self.metrics.pod_relist_duration.observe(now.duration_since(started).as_secs_f64());
        self.relists.looked_at(uid);
        self.observe_relists(now);
        let mut differs = false;
        let states = result.as_mut().ok().map(|pod| {
            let answered = states_of(pod);
            self.ended.agree(pod);
            self.ended.apply(pod, now);
            let states = states_of(pod);
            let known = self.shared.cache.get(uid);
            differs = !states.is_empty() && *known != *pod && states_of(&known) == states;
            (states, answered)
        });
        {
            let mut stats = self.shared.stats.lock();
            stats.inspections += 1;
            stats.inspect_errors += u64::from(result.is_err());
        }
        match &result {
            Ok(_) => self.seen(started),
            Err(error) => debug!(pod_uid = %uid, %error, "inspecting a pod"),
        }
        // The cache first: whoever hears of an event finds its cause there.
        self.shared.cache.set(uid, result, started);
        let mut outcome = self.tracker.inspected(uid, started, states, now);
        self.tracker.resolve_own(uid, now);
        if differs && outcome.events.is_empty() {
            // An address, a reason that came late: no rule makes an event of it, and the status changes all the same.
            let kind = PodLifecycleEventKind::PodSync;
            outcome.events.push(PodLifecycleEvent { uid: uid.clone(), kind, id: "".into() });
        }
        if outcome.missed > 0 {
            warn!(pod_uid = %uid, missed = outcome.missed, "relist found a change that the runtime's events had missed");
            self.metrics.events_missed.inc_by(outcome.missed as u64);
            self.shared.stats.lock().events_missed += outcome.missed as u64;
            if self.trust.missed() {
                self.relist_meanwhile(now);
            }
        }
        self.trust.seen(&self.shared.cache.get(uid), &outcome.events, now);
        self.deliver(outcome.events);
        if let Some(initial) = &mut self.initial
            && initial.remove(uid)
        {
            self.check_initial();
        }
    }

    fn observe_relists(&mut self, now: Instant) {
        for took in self.relists.over(now) {
            self.metrics.relist_duration.observe(took.as_secs_f64());
        }
    }

    fn check_initial(&mut self) {
        if self.initial.as_ref().is_some_and(HashSet::is_empty) {
            self.initial_until = None;
            self.shared.listed_once.send_replace(true);
        }
    }

    fn seen(&self, at: Instant) {
        *self.shared.last_list.lock() = Some(at);
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
        self.metrics.last_seen.set(seconds.trunc());
    }

    fn deliver(&self, events: Vec<PodLifecycleEvent>) {
        if events.is_empty() {
            return;
        }
        for event in &events {
            debug!(pod_uid = %event.uid, kind = ?event.kind, id = %event.id, "pod lifecycle event");
        }
        let discarded = self.shared.subscribers.lock().tell(&events);
        self.metrics.discard_events.inc_by(discarded);
        self.shared.stats.lock().events_discarded += discarded;
    }
}

/// A tenth more or less, so that the nodes of a host do not list in step.
fn jittered(interval: Duration) -> Duration {
    let mut byte = [128_u8; 1];
    // Without randomness the middle does.
    let _ = getrandom::fill(&mut byte);
    interval.mul_f64(0.9 + 0.2 * f64::from(byte[0]) / 255.0)
}
