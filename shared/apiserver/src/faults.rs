//! Misbehaviour on request: answers that fail, wait or never come, connections that break, watches that fall silent.
//! The kit's own requests are never touched.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::request::Request;
use super::request_log::KIT_AGENT;

/// What happens to a request that a rule is about.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// This HTTP code with the real server's Status; 429 says when to come back.
    Answer { code: u16, retry_after_seconds: Option<u32> },
    /// Code 200, then one ERROR event with such a Status, and the end: how a watch is refused once it was granted.
    ErrorEvent { code: u16, reason: &'static str, message: String },
    /// The optimistic lock fails.
    Conflict,
    /// Answered this much later.
    Delay(Duration),
    /// Answered when the rule is gone.
    Hang,
    /// Done, but the connection breaks before the answer.
    LoseAnswer,
    /// The connection breaks before anything is done.
    DropConnection,
}

/// A rule: which requests, and what happens to them.
#[derive(Debug, Clone)]
pub struct Rule {
    action: Action,
    verbs: Vec<String>,
    resource: Option<String>,
    subresource: Option<String>,
    name: Option<String>,
    user: Option<String>,
    agent: Option<String>,
    streamed_list: bool,
    left: Option<u32>,
}

impl Rule {
    pub fn new(action: Action) -> Self {
        Self {
            action,
            verbs: Vec::new(),
            resource: None,
            subresource: None,
            name: None,
            user: None,
            agent: None,
            streamed_list: false,
            left: None,
        }
    }

    /// As a server answers whose etcd cannot report a watch's progress (before 3.4.31 and 3.5.13, kine): no list is streamed.
    pub fn no_streamed_lists() -> Self {
        let message = "a watch stream was requested by the client but the required storage feature \
                       RequestWatchProgress is disabled";
        let action = Action::ErrorEvent { code: 500, reason: "InternalError", message: message.to_owned() };
        Self { streamed_list: true, ..Self::new(action) }.verb("watch")
    }

    /// Only this verb (`get`, `list`, `watch`, `create`, `update`, `patch`, `delete`); may be given several times.
    pub fn verb(mut self, verb: &str) -> Self {
        self.verbs.push(verb.to_owned());
        self
    }

    /// Only this resource: `pods`, or `pods/status` with its subresource (`pods` alone means none).
    pub fn resource(mut self, resource: &str) -> Self {
        let (plural, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        self.resource = Some(plural.to_owned());
        self.subresource = Some(subresource.to_owned());
        self
    }

    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Only this user, such as `system:node:a`.
    pub fn user(mut self, user: &str) -> Self {
        self.user = Some(user.to_owned());
        self
    }

    /// Only user agents that begin so.
    pub fn agent(mut self, prefix: &str) -> Self {
        self.agent = Some(prefix.to_owned());
        self
    }

    /// Only the first so many.
    pub fn times(mut self, times: u32) -> Self {
        self.left = Some(times);
        self
    }

    fn matches(&self, request: &Request, user: &str, agent: &str) -> bool {
        let is = |wish: &Option<String>, value: &str| wish.as_deref().is_none_or(|wish| wish == value);
        (self.verbs.is_empty() || self.verbs.iter().any(|verb| verb == request.verb))
            && is(&self.resource, request.resource.map_or("", |resource| resource.plural))
            && is(&self.subresource, &request.subresource)
            && is(&self.name, &request.name)
            && is(&self.user, user)
            && self.agent.as_deref().is_none_or(|prefix| agent.starts_with(prefix))
            && (!self.streamed_list || request.query.flag("sendInitialEvents"))
    }
}

/// A rule in force; takes it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleId(u64);

/// What all watches obey.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WatchControl {
    /// Watches that began under another number end.
    pub generation: u64,
    /// Nothing is delivered, bookmarks included.
    pub paused: bool,
    /// Bookmarks of what was delivered go on, events do not.
    pub withheld: bool,
    /// Nothing at all is answered.
    pub blackhole: bool,
    /// Counts changes of the rules, so that whoever hangs looks again.
    pub rules: u64,
}

/// All rules in force.
#[derive(Debug)]
pub struct Faults {
    rules: Mutex<Vec<(RuleId, Rule)>>,
    next: AtomicU64,
    control: watch::Sender<WatchControl>,
}

impl Default for Faults {
    fn default() -> Self {
        Self { rules: Mutex::default(), next: AtomicU64::new(1), control: watch::channel(WatchControl::default()).0 }
    }
}

impl Faults {
    /// Puts a rule into force; earlier rules come first.
    pub fn add(&self, rule: Rule) -> RuleId {
        let id = RuleId(self.next.fetch_add(1, Ordering::Relaxed));
        self.rules.lock().push((id, rule));
        id
    }

    /// Takes a rule back.
    pub fn remove(&self, id: RuleId) {
        self.rules.lock().retain(|(other, _)| *other != id);
        self.control.send_modify(|control| control.rules += 1);
    }

    /// Takes everything back.
    pub fn clear(&self) {
        self.rules.lock().clear();
        self.control.send_modify(|control| {
            control.rules += 1;
            control.paused = false;
            control.withheld = false;
            control.blackhole = false;
        });
    }

    /// Ends all watches now; clients may come again.
    pub fn close_watches(&self) {
        self.control.send_modify(|control| control.generation += 1);
    }

    /// Stops, or goes on with, delivering to watches; what happened meanwhile is delivered then.
    pub fn pause_watches(&self, paused: bool) {
        self.control.send_modify(|control| control.paused = paused);
    }

    /// Stops, or goes on with, delivering events; bookmarks go on all the time, with the version that was reached before.
    pub fn withhold_events(&self, withheld: bool) {
        self.control.send_modify(|control| control.withheld = withheld);
    }

    /// Connections are taken but nothing is answered any more, not even on those that exist.
    pub fn blackhole(&self, on: bool) {
        self.control.send_modify(|control| {
            control.blackhole = on;
            control.paused = on;
        });
    }

    pub(super) fn watch_control(&self) -> watch::Receiver<WatchControl> {
        self.control.subscribe()
    }

    /// What is to happen to this request, if anything; uses up one of the rule's times.
    pub(super) fn meet(&self, request: &Request, user: &str, agent: &str) -> Option<(RuleId, Action)> {
        if agent.starts_with(KIT_AGENT) {
            return None;
        }
        let mut rules = self.rules.lock();
        let found = rules.iter_mut().find(|(_, rule)| rule.left != Some(0) && rule.matches(request, user, agent));
        found.map(|(id, rule)| {
            rule.left = rule.left.map(|left| left - 1);
            (*id, rule.action.clone())
        })
    }

    fn in_force(&self, id: RuleId) -> bool {
        self.rules.lock().iter().any(|(other, _)| *other == id)
    }

    /// Waits until the rule is gone.
    pub(super) async fn gone(&self, id: RuleId) {
        let mut control = self.control.subscribe();
        while self.in_force(id) {
            if control.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until the server answers again at all.
    pub(super) async fn lit(&self, agent: &str) {
        if agent.starts_with(KIT_AGENT) {
            return;
        }
        let mut control = self.control.subscribe();
        let _ = control.wait_for(|control| !control.blackhole).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_matched_counted_and_taken_back() {
        let faults = Faults::default();
        let request = |path: &str| Request::parse("PATCH", path, "").unwrap();
        let status = request("/api/v1/namespaces/n/pods/a/status");
        let rule = Rule::new(Action::Conflict).verb("patch").resource("pods/status").user("system:node:x").times(2);
        let id = faults.add(rule);
        assert_eq!(faults.meet(&request("/api/v1/namespaces/n/pods/a"), "system:node:x", "a"), None);
        assert_eq!(faults.meet(&status, "system:node:y", "a"), None);
        assert_eq!(faults.meet(&status, "system:node:x", "bulkhead-testkit/1"), None, "the kit's own");
        for expected in [Some(Action::Conflict), Some(Action::Conflict), None] {
            assert_eq!(faults.meet(&status, "system:node:x", "a").map(|(_, action)| action), expected);
        }
        assert!(faults.in_force(id));
        faults.remove(id);
        assert!(!faults.in_force(id));
        faults.add(Rule::no_streamed_lists().resource("pods"));
        let watch = |query: &str| {
            let request = Request::parse("GET", "/api/v1/pods", query).unwrap();
            faults.meet(&request, "system:node:x", "a").is_some()
        };
        assert!(watch("watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"));
        assert!(!watch("watch=true&resourceVersion=5") && !watch("limit=500"));
    }
}
