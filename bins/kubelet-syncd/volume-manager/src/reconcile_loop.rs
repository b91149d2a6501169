//! The loop around the reconciler: what it says is begun, each operation in a task of its own, and what the Node's status is to list
//! is told.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_types::PodUid;
use kubelet_model::events::EventType;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::back_off::Key;
use crate::context::{Context, State};
use crate::executor;
use crate::pod_facts::PodFacts;
use crate::populator::Unresolved;
use crate::reconciler::{self, Action, Attacher, Look};
use crate::waiting;

/// So long a write of the Node's list that the life before has caused may be under way: no request to the API server takes longer.
const INHERITED_FOR: Duration = Duration::from_secs(30);
/// All of both states is compared in this period, whatever events there were.
const AUDIT: Duration = Duration::from_secs(60);
/// Word that all sources have delivered comes from nobody: it is looked for in this period.
const SOURCES_AGAIN: Duration = Duration::from_millis(500);

/// What the Node's status is to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InUse {
    /// Sorted.
    pub names: Vec<String>,
    /// It is known to be all: a shorter list than the Node's may be written.
    pub complete: bool,
}

/// Never ends.
pub async fn run(context: Arc<Context>, in_use: watch::Sender<InUse>) {
    loop {
        let again = pass(&context, &in_use);
        let audit = Instant::now() + AUDIT;
        let again = again.map_or(audit, |again| again.min(audit));
        tokio::select! {
            () = context.wake.notified() => {}
            () = tokio::time::sleep_until(again) => {}
        }
    }
}

/// Begins what is to be begun. Answers when to look again.
fn pass(context: &Arc<Context>, told: &watch::Sender<InUse>) -> Option<Instant> {
    let now = Instant::now();
    let verbs = &context.ports.verbs;
    let epoch = *verbs.epoch().borrow();
    let sources_ready = verbs.guard("look").is_ok();
    let mut state = context.state();
    let known = state.actual.epoch != 0 && state.actual.epoch == epoch;
    if known && matches!(state.attacher, Attacher::Controller) {
        let State { node, actual, .. } = &mut *state;
        node.inherit(actual, now + INHERITED_FOR);
        node.lapse(now);
    }
    let (actions, again) = reconciler::plan(&Look {
        desired: &state.desired,
        actual: &state.actual,
        busy: &state.busy,
        ended: &state.ended,
        back_offs: &state.back_offs,
        node: &state.node,
        attacher: &state.attacher,
        may_unmount: known && sources_ready,
        populating_until: state.populating.until(now),
        known,
        now,
    });
    begin(context, &mut state, actions);
    let waiting = label_conflicts(context, &mut state);
    forget(&mut state, known);
    let names = reconciler::in_use(&state.desired, &state.actual, &state.node, &state.busy);
    let in_use = InUse { names, complete: known && sources_ready && state.node.known };
    if matches!(state.attacher, Attacher::Controller) {
        state.node.report(&in_use.names, in_use.complete);
    }
    drop(state);
    tell_waiting(context, waiting);
    told.send_if_modified(|told| {
        let changed = *told != in_use;
        *told = in_use;
        changed
    });
    let sources = (!sources_ready).then(|| now + SOURCES_AGAIN);
    again.into_iter().chain(sources).min()
}

fn begin(context: &Arc<Context>, state: &mut State, actions: Vec<Action>) {
    for action in actions {
        if let Action::Forget { volume } = &action {
            state.actual.volumes.remove(volume);
            continue;
        }
        state.busy.begin(action.key().0, action.scope(), action.publishes_to());
        tokio::spawn(executor::operate(context.clone(), action));
    }
}

/// What nobody has a use for any more. `known`: the actual state is of this life of kubelet-volnetd.
fn forget(state: &mut State, known: bool) {
    let State { ended, actual, busy, desired, attacher, back_offs, errors, .. } = state;
    if let Attacher::Node(attached) = attacher {
        attached.retain(|name| desired.wants(name) || actual.volumes.contains_key(name));
    }
    // An ended pod of which nothing is left, and that no operation is about; before kubelet-volnetd's list nobody knows what is left.
    ended.retain(|uid| !known || actual.of_pod(uid).next().is_some() || busy.holding(uid).next().is_some());
    // Nor is it remembered how operations for it failed.
    let busy = &*busy;
    let is_known = |(volume, pod): &Key| match pod {
        Some(pod) => {
            let operates = busy.holding(pod).any(|name| name == volume);
            operates || desired.pods.contains_key(pod) || actual.published(volume, pod).is_some()
        }
        None => busy.excludes(volume, None) || actual.volumes.contains_key(volume),
    };
    back_offs.retain(is_known);
    errors.retain(|key, _| is_known(key));
}

/// A pod that newly waits, and for what.
type NewlyWaiting = (PodUid, Arc<PodFacts>, String);

/// Pods that wait until a volume, mounted with another SELinux label, is taken from the node: said once to each. The volume
/// is mounted as soon as it is free, and the pod need not fail for that.
fn label_conflicts(context: &Context, state: &mut State) -> Vec<NewlyWaiting> {
    if context.ports.selinux.is_none() {
        return Vec::new();
    }
    let mut newly = Vec::new();
    for (volume, uid) in reconciler::labelled_otherwise(&state.desired, &state.actual) {
        let text = format!(
            "waiting for unmount of volume {:?}, because it is already mounted to a different pod with a different SELinux label",
            volume.0
        );
        let known = state.errors.insert((volume, Some(uid.clone())), text.clone());
        if known.as_ref() != Some(&text)
            && let Some(pod) = state.desired.pods.get(&uid)
        {
            newly.push((uid, pod.facts.clone(), text));
        }
    }
    newly
}

fn tell_waiting(context: &Context, waiting: Vec<NewlyWaiting>) {
    for (uid, pod, text) in waiting {
        let unresolved = vec![Unresolved { text, away: false }];
        let text = waiting::waiting(&context.state(), &uid, Some(unresolved)).text;
        let message = format!("Unable to attach or mount volumes: {text}");
        context.event(&pod, EventType::Warning, "FailedMount", message);
    }
}
