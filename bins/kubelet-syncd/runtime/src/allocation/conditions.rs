//! The conditions PodResizePending and PodResizeInProgress of one pod: when they change, and when that is news (upstream
//! `pkg/kubelet/status/status_manager.go`).

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kubelet_model::v1::Pod;

pub const PENDING: &str = "PodResizePending";
pub const IN_PROGRESS: &str = "PodResizeInProgress";
/// Reason of a resize that waits for room.
pub const DEFERRED: &str = "Deferred";
/// Reason of a resize that this node can never do.
pub const INFEASIBLE: &str = "Infeasible";
/// Reason of a resize that the runtime or a cgroup refused.
pub const ERROR: &str = "Error";

/// One of the two, where it is true; they are never false.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Condition {
    reason: String,
    message: String,
    generation: i64,
    /// Since when with this reason.
    since: Timestamp,
}

impl Condition {
    fn next(before: Option<&Condition>, reason: &str, message: &str, generation: i64, now: Timestamp) -> Self {
        let since = before.filter(|b| b.reason == reason).map_or(now, |b| b.since);
        Condition { reason: reason.to_owned(), message: message.to_owned(), generation, since }
    }

    fn to_api(&self, kind: &str) -> PodCondition {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let since = Timestamp::from_second(self.since.as_second()).unwrap_or(self.since);
        PodCondition {
            type_: kind.to_owned(),
            status: "True".to_owned(),
            reason: some(&self.reason),
            message: some(&self.message),
            last_transition_time: Some(Time(since)),
            // Upstream writes the time of its last look; a look that finds nothing new is not worth a request.
            last_probe_time: None,
            observed_generation: Some(self.generation).filter(|g| *g > 0),
        }
    }
}

/// Both conditions of one pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResizeConditions {
    pending: Option<Condition>,
    in_progress: Option<Condition>,
}

impl ResizeConditions {
    /// As the API server has them: after a restart they go on from there.
    pub fn of(pod: &Pod) -> Self {
        let all = pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or(&[]);
        let find = |kind: &str| {
            let c = all.iter().find(|c| c.type_ == kind && c.status == "True")?;
            Some(Condition {
                reason: c.reason.clone().unwrap_or_default(),
                message: c.message.clone().unwrap_or_default(),
                generation: c.observed_generation.unwrap_or(0),
                since: c.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0),
            })
        };
        ResizeConditions { pending: find(PENDING), in_progress: find(IN_PROGRESS) }
    }

    pub fn is_empty(&self) -> bool {
        self.pending.is_none() && self.in_progress.is_none()
    }

    pub fn is_deferred(&self) -> bool {
        self.pending.as_ref().is_some_and(|c| c.reason == DEFERRED)
    }

    pub fn is_infeasible(&self) -> bool {
        self.pending.as_ref().is_some_and(|c| c.reason == INFEASIBLE)
    }

    pub fn is_in_progress(&self) -> bool {
        self.in_progress.is_some()
    }

    /// Since when the resize has been waiting.
    pub fn pending_since(&self) -> Option<Timestamp> {
        self.pending.as_ref().map(|c| c.since)
    }

    /// The resize cannot be granted now. `infeasible`: not on this node at all. True: worth an event.
    pub fn set_pending(&mut self, infeasible: bool, message: &str, generation: i64, now: Timestamp) -> bool {
        let reason = if infeasible { INFEASIBLE } else { DEFERRED };
        let next = Condition::next(self.pending.as_ref(), reason, message, generation, now);
        let before = self.pending.replace(next);
        before.is_none_or(|b| b.reason != reason || b.generation != generation)
    }

    pub fn clear_pending(&mut self) {
        self.pending = None;
    }

    /// The resize has been granted: a new one begins, whatever became of the one before.
    pub fn start(&mut self, generation: i64, now: Timestamp) {
        self.pending = None;
        self.in_progress = Some(Condition::next(None, "", "", generation, now));
    }

    /// What runs is not what is allocated. What was said of it before stays said.
    pub fn go_on(&mut self, generation: i64, now: Timestamp) {
        self.in_progress.get_or_insert_with(|| Condition::next(None, "", "", generation, now));
    }

    /// It did not work. Answers the generation that it was for, when that is news.
    pub fn fail(&mut self, message: &str, generation: i64, now: Timestamp) -> Option<i64> {
        let generation = self.in_progress.as_ref().map_or(generation, |c| c.generation);
        let next = Condition::next(self.in_progress.as_ref(), ERROR, message, generation, now);
        let told = self.in_progress.replace(next);
        let is_news = told.is_none_or(|t| t.reason != ERROR || t.message != message);
        is_news.then_some(generation)
    }

    /// What runs is what is allocated. Answers the generation that this was for, when it was under way.
    pub fn complete(&mut self) -> Option<i64> {
        self.in_progress.take().map(|c| c.generation)
    }

    /// As the status shows them, upstream's order.
    pub fn to_api(&self) -> Vec<PodCondition> {
        let pending = self.pending.iter().map(|c| c.to_api(PENDING));
        pending.chain(self.in_progress.iter().map(|c| c.to_api(IN_PROGRESS))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn waiting_then_granted_then_done() {
        let mut c = ResizeConditions::default();
        assert!(c.set_pending(false, "no room", 2, at(1)) && c.is_deferred());
        assert!(!c.set_pending(false, "still no room", 2, at(2)), "the text alone is no news");
        assert_eq!(c.pending_since(), Some(at(1)));
        assert!(c.set_pending(false, "no room", 3, at(3)), "another wish is");
        assert!(c.set_pending(true, "never", 3, at(4)) && c.is_infeasible() && !c.is_deferred());
        assert_eq!(c.pending_since(), Some(at(4)));
        c.start(4, at(5));
        assert!(c.is_in_progress() && !c.is_infeasible());
        c.go_on(9, at(6));
        let shown = c.to_api();
        assert_eq!((shown.len(), shown[0].type_.as_str(), shown[0].observed_generation), (1, IN_PROGRESS, Some(4)));
        assert_eq!((shown[0].reason.as_deref(), &shown[0].last_transition_time), (None, &Some(Time(at(5)))));
        assert_eq!((c.complete(), c.complete()), (Some(4), None));
        assert!(c.is_empty());
    }

    #[test]
    fn a_failure_is_reported_once_and_keeps_its_generation() {
        let mut c = ResizeConditions::default();
        c.start(2, at(1));
        assert_eq!(c.fail("no", 5, at(2)), Some(2));
        assert_eq!(c.fail("no", 5, at(3)), None);
        c.go_on(5, at(4));
        assert_eq!(c.to_api()[0].reason.as_deref(), Some(ERROR), "a failure is not unsaid by trying again");
        assert_eq!(c.fail("not", 5, at(5)), Some(2));
        assert_eq!(c.to_api()[0].last_transition_time, Some(Time(at(2))));
    }

    #[test]
    fn they_go_on_from_what_the_api_server_has() {
        let mut c = ResizeConditions::default();
        c.set_pending(false, "no room", 7, at(1));
        c.start(3, at(2));
        c.set_pending(true, "never", 7, at(3));
        let status = k8s_openapi::api::core::v1::PodStatus { conditions: Some(c.to_api()), ..Default::default() };
        assert_eq!(ResizeConditions::of(&Pod { status: Some(status), ..Default::default() }), c);
        assert!(ResizeConditions::of(&Pod::default()).is_empty());
    }
}
