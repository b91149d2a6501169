//! What kubelet-syncd says of the node: followed by one stream for all who need it, asked again now and then, and
//! remembered while it is away.
//!
//! A restart takes seconds and says nothing about the node, so what was known holds for [`GRACE`]; silence for longer is
//! told as what it is. The same holds for the first words of a new syncd, which has not looked at the runtime yet.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_daemon::progress::Heartbeat;
use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::client::{Link, PeerState};
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::syncd::node_client::NodeClient;
use bulkhead_ipc::syncd::{GetNodeRequest, NodeState, WatchNodeRequest};
use bulkhead_types::{BackOff, Epoch};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Code;

use crate::pods::facts::Facts;

/// For so long a silent or new kubelet-syncd counts as being restarted.
pub const GRACE: Duration = Duration::from_secs(20);
/// Ages do not come by the stream: they are asked for. Also proves that the process answers.
const REFRESH: Duration = Duration::from_secs(5);
/// The same where there is no stream.
const POLL: Duration = Duration::from_secs(1);
const DEADLINE: Duration = Duration::from_secs(3);
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// What is known, and since when.
#[derive(Debug, Clone)]
pub struct View {
    /// The newest state that says something of the node.
    pub state: Option<Arc<NodeState>>,
    /// When it answered last; the start of this process when it never did.
    pub answered: Instant,
    /// Since when all that it has said is that of a start that goes on.
    starting: Option<Instant>,
}

impl View {
    pub fn new(now: Instant) -> Self {
        View { state: None, answered: now, starting: None }
    }

    /// It has just said this.
    pub fn of(state: NodeState, now: Instant) -> Self {
        View { state: Some(Arc::new(state)), ..View::new(now) }
    }

    /// It has not answered for longer than a restart takes.
    pub fn is_silent(&self, now: Instant) -> bool {
        now.duration_since(self.answered) > GRACE
    }
}

/// Whether a state speaks of the node or of a start that goes on: the machine is measured, the runtime was asked what it
/// is and what it runs.
pub fn is_complete(state: &NodeState) -> bool {
    !state.capacity.is_empty() && state.runtime_status_age_seconds.is_some() && state.relist_age_seconds.is_some()
}

/// Whether a new state replaces the known one: the first words of a new process do only when it stays with them.
/// `starting`: for how long nothing else has been said. Not the age of the process: over a socket that outlives it a new one
/// may answer before anybody knows that it is new.
pub fn accepts(known: Option<&NodeState>, incoming: &NodeState, starting: Duration) -> bool {
    is_complete(incoming) || starting > GRACE || known.is_some_and(|known| !is_complete(known))
}

/// Whether two states differ in more than ages and counters that nobody outside looks at.
pub fn differs(old: &NodeState, new: &NodeState) -> bool {
    // That there is an age at all is none.
    let age = |old: Option<f64>, new: Option<f64>| if new.is_some() { old.or(new) } else { None };
    let of_old_ages = NodeState {
        relist_age_seconds: age(old.relist_age_seconds, new.relist_age_seconds),
        sync_loop_age_seconds: old.sync_loop_age_seconds,
        runtime_status_age_seconds: age(old.runtime_status_age_seconds, new.runtime_status_age_seconds),
        events_received: old.events_received,
        events_missed: old.events_missed,
        generation: old.generation,
        ..new.clone()
    };
    *old != of_old_ages
}

/// Who is told.
#[derive(Debug)]
pub struct ViewSenders {
    /// The node's own part.
    pub view: watch::Sender<View>,
    /// What the writer of pods has to know of the node, as the kubelet-syncd of now says it.
    pub facts: watch::Sender<Facts>,
}

impl ViewSenders {
    /// The channels, before anything is known.
    pub fn new() -> (Self, watch::Receiver<View>, watch::Receiver<Facts>) {
        let (view, views) = watch::channel(View::new(Instant::now()));
        let (facts, known) = watch::channel(Facts::default());
        (ViewSenders { view, facts }, views, known)
    }

    fn take(&self, state: NodeState, epoch: Epoch) {
        let facts = Facts::of(&state, epoch.get());
        self.facts.send_if_modified(|known| {
            let news = *known != facts;
            *known = facts;
            news
        });
        take(&self.view, state);
    }
}

/// Follows kubelet-syncd for ever. `heartbeat`: the loop's registration with the watchdog; a kubelet-syncd that is silent is waited for.
pub async fn follow(link: Link, told: ViewSenders, heartbeat: Heartbeat) {
    let mut retry = BackOff::new(RETRY.0, RETRY.1);
    loop {
        let epoch = heartbeat.rests(link.ready()).await;
        let began = Instant::now();
        if let Err(status) = converse(&link, &told, epoch, &heartbeat).await {
            tracing::debug!(code = ?status.code(), "kubelet-syncd's node state: {}", status.message());
        }
        if began.elapsed() > RETRY.1 {
            retry.reset();
        }
        heartbeat.rests(tokio::time::sleep(retry.pause())).await;
    }
}

/// Until the stream or an answer fails, or another life speaks.
async fn converse(link: &Link, told: &ViewSenders, epoch: Epoch, heartbeat: &Heartbeat) -> Result<(), tonic::Status> {
    let mut client = NodeClient::new(link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    // An answer does not say whose it is: of another life than was thought, it is asked for anew.
    let mut lives = link.watch();
    let is_other = move |state: &PeerState| state.ready_epoch().is_some_and(|now| now != epoch);
    let request = CallContext::new().streaming_request(WatchNodeRequest {});
    let mut stream = match heartbeat.within(DEADLINE, tokio::time::timeout(DEADLINE, client.watch(request))).await {
        Ok(Ok(stream)) => stream.into_inner(),
        Ok(Err(status)) if status.code() == Code::Unimplemented => loop {
            told.take(heartbeat.within(DEADLINE, get(&mut client)).await?, epoch);
            heartbeat.rests(tokio::time::sleep(POLL)).await;
            if is_other(&lives.borrow_and_update()) {
                return Ok(());
            }
        },
        Ok(Err(status)) => return Err(status),
        Err(_) => return Err(tonic::Status::deadline_exceeded("the stream did not start")),
    };
    let mut refresh = tokio::time::interval_at(Instant::now() + REFRESH, REFRESH);
    refresh.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let state = tokio::select! {
            () = heartbeat.asked() => continue,
            () = until(&mut lives, is_other) => return Ok(()),
            message = stream.message() => message?,
            _ = refresh.tick() => Some(heartbeat.within(DEADLINE, get(&mut client)).await?),
        };
        match state {
            Some(state) if !is_other(&lives.borrow()) => told.take(state, epoch),
            _ => return Ok(()),
        }
    }
}

async fn until(lives: &mut watch::Receiver<PeerState>, holds: impl FnMut(&PeerState) -> bool) {
    // A link that is no more is no life either.
    let _ = lives.wait_for(holds).await;
}

async fn get(client: &mut NodeClient<tonic::transport::Channel>) -> Result<NodeState, tonic::Status> {
    let call = client.get(CallContext::new().request(GetNodeRequest {}, DEADLINE));
    let answer = tokio::time::timeout(DEADLINE, call).await;
    Ok(answer.map_err(|_| tonic::Status::deadline_exceeded("no answer"))??.into_inner())
}

fn take(view: &watch::Sender<View>, state: NodeState) {
    let now = Instant::now();
    view.send_if_modified(|view| {
        let was_silent = view.is_silent(now);
        view.answered = now;
        let since = if is_complete(&state) { now } else { view.starting.unwrap_or(now) };
        view.starting = (!is_complete(&state)).then_some(since);
        if !accepts(view.state.as_deref(), &state, now.duration_since(since)) {
            return was_silent;
        }
        let tell = was_silent || view.state.as_ref().is_none_or(|old| differs(old, &state));
        view.state = Some(Arc::new(state));
        tell
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete() -> NodeState {
        NodeState {
            capacity: [("cpu".to_owned(), "2".to_owned())].into(),
            runtime_status_age_seconds: Some(1.0),
            relist_age_seconds: Some(1.0),
            runtime_ready: true,
            ..NodeState::default()
        }
    }

    #[test]
    fn a_new_process_is_given_time() {
        let (fresh, first) = (NodeState::default(), Duration::from_secs(1));
        assert!(!is_complete(&NodeState { relist_age_seconds: None, ..complete() }));
        let later = GRACE + Duration::from_secs(1);
        assert!(accepts(None, &complete(), first));
        assert!(accepts(Some(&complete()), &complete(), first));
        assert!(!accepts(Some(&complete()), &fresh, first), "a restart takes nothing away");
        assert!(!accepts(None, &fresh, first), "nor does a start say that the node does not work");
        assert!(accepts(Some(&complete()), &fresh, later), "but who stays blind is believed");
        assert!(accepts(None, &fresh, later));
    }

    #[tokio::test(start_paused = true)]
    async fn an_age_alone_is_no_change_and_silence_is_long() {
        let (sender, mut receiver) = watch::channel(View::new(Instant::now()));
        take(&sender, complete());
        assert!(receiver.has_changed().unwrap());
        receiver.mark_unchanged();
        tokio::time::advance(Duration::from_secs(5)).await;
        let older = NodeState { runtime_status_age_seconds: Some(9.0), relist_age_seconds: Some(3.0), ..complete() };
        take(&sender, older.clone());
        assert!(!receiver.has_changed().unwrap());
        assert_eq!(receiver.borrow().state.as_deref(), Some(&older), "but they are known");
        take(&sender, NodeState { runtime_ready: false, ..older.clone() });
        assert!(receiver.has_changed().unwrap());
        receiver.mark_unchanged();
        tokio::time::advance(GRACE).await;
        assert!(!receiver.borrow().is_silent(Instant::now()));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(receiver.borrow().is_silent(Instant::now()));
        take(&sender, NodeState { runtime_ready: false, ..older });
        assert!(receiver.has_changed().unwrap(), "the end of a silence is news");
    }

    #[tokio::test(start_paused = true)]
    async fn a_syncd_of_unknown_epoch_removes_nothing() {
        let (sender, receiver) = watch::channel(View::new(Instant::now()));
        take(&sender, complete());
        // The one before has lived for long, and it is believed to be the one that speaks.
        tokio::time::advance(10 * GRACE).await;
        take(&sender, NodeState::default());
        assert_eq!(receiver.borrow().state.as_deref(), Some(&complete()));
        tokio::time::advance(GRACE / 2).await;
        take(&sender, complete());
        tokio::time::advance(GRACE).await;
        take(&sender, NodeState::default());
        assert_eq!(receiver.borrow().state.as_deref(), Some(&complete()), "another start, another while");
        tokio::time::advance(GRACE + Duration::from_secs(1)).await;
        take(&sender, NodeState::default());
        assert_eq!(receiver.borrow().state.as_deref(), Some(&NodeState::default()));
    }
}
