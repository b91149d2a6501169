//! When a registered driver is asked anew how many volumes the node can have of it (upstream `csiNodeUpdater`): in the period that
//! its CSIDriver says, and at once when a volume could not be attached because the limit is reached.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bulkhead_types::later;
use kubelet_edges::csi::{CsiNode, Driver};
use kubelet_volume_manager::operations::driver_facts::allocatable_period;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::csi::refresh;
use crate::api::storage::Known;
use crate::storage_writes::StorageWrites;

/// A driver of this node, its period, and when its next turn is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Turn {
    period: Duration,
    at: Instant,
}

/// Whose turn is when. Pure.
#[derive(Debug, Default)]
pub struct Turns {
    turns: BTreeMap<String, Turn>,
    /// Those that are being asked, and whether once more after that.
    asked: BTreeMap<String, bool>,
}

impl Turns {
    /// Drivers that are registered and have a period. One whose period is another one begins anew with it.
    pub fn set(&mut self, wanted: &BTreeMap<String, Duration>, now: Instant) {
        self.turns.retain(|name, turn| wanted.get(name) == Some(&turn.period));
        for (name, period) in wanted {
            self.turns.entry(name.clone()).or_insert_with(|| Turn { period: *period, at: later(now, *period) });
        }
    }

    /// Whom to ask now. One that has not answered yet is passed over, as a ticker's beat is.
    pub fn due(&mut self, now: Instant) -> Vec<String> {
        let mut due = Vec::new();
        for (name, turn) in self.turns.iter_mut().filter(|(_, turn)| turn.at <= now) {
            turn.at = later(now, turn.period);
            if !self.asked.contains_key(name) {
                self.asked.insert(name.clone(), false);
                due.push(name.clone());
            }
        }
        due
    }

    /// Its limit was reached: whether to ask now. One that is being asked is asked once more after that, as it may have counted
    /// before. One without a period has fixed its limit for good.
    pub fn at_once(&mut self, name: &str) -> bool {
        if !self.turns.contains_key(name) {
            return false;
        }
        match self.asked.get_mut(name) {
            Some(again) => {
                *again = true;
                false
            }
            None => self.asked.insert(name.to_owned(), false).is_none(),
        }
    }

    /// It has answered, or failed: whether to ask again now.
    pub fn answered(&mut self, name: &str) -> bool {
        self.asked.remove(name) == Some(true) && self.at_once(name)
    }

    /// The next turn.
    pub fn next(&self) -> Option<Instant> {
        self.turns.values().map(|turn| turn.at).min()
    }
}

/// Drivers that are registered, with the periods of their objects.
fn wanted(registered: &BTreeMap<String, Driver>, objects: &Known) -> BTreeMap<String, Duration> {
    let period = |name: &String| Some((name.clone(), allocatable_period(objects.as_ref()?.get(name)?)?));
    registered.keys().filter_map(period).collect()
}

/// What makes somebody's turn.
#[derive(Debug)]
pub struct Causes {
    pub registered: watch::Receiver<BTreeMap<String, Driver>>,
    pub objects: watch::Receiver<Known>,
    /// How often each driver's limit was reached.
    pub limits_reached: watch::Receiver<BTreeMap<String, u64>>,
}

/// Asks drivers when it is their turn, each in a task of its own. Ends with its causes.
pub async fn run<C: CsiNode + Clone + 'static>(mut causes: Causes, client: C, writes: StorageWrites) {
    let mut turns = Turns::default();
    let mut reached = BTreeMap::new();
    let mut again = BTreeSet::new();
    let mut calls = JoinSet::new();
    loop {
        let now = Instant::now();
        turns.set(&wanted(&causes.registered.borrow_and_update(), &causes.objects.borrow_and_update()), now);
        let mut ask = std::mem::take(&mut again);
        ask.extend(turns.due(now));
        let counts = causes.limits_reached.borrow_and_update().clone();
        let more = counts.iter().filter(|(name, count)| reached.get(*name) != Some(*count));
        ask.extend(more.filter(|(name, _)| turns.at_once(name)).map(|(name, _)| name.clone()));
        reached = counts;
        for name in ask {
            let (client, writes) = (client.clone(), writes.clone());
            calls.spawn(async move {
                if let Err(error) = refresh(&client, &writes, &name).await {
                    tracing::warn!(driver = name, "Failed to update CSIDriver: {error}");
                }
                name
            });
        }
        let next = turns.next();
        let turn = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = causes.registered.changed() => if changed.is_err() { return },
            changed = causes.objects.changed() => if changed.is_err() { return },
            changed = causes.limits_reached.changed() => if changed.is_err() { return },
            Some(answered) = calls.join_next() => {
                if let Ok(name) = answered && turns.answered(&name) {
                    again.insert(name);
                }
            }
            () = turn => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn of(drivers: &[(&str, u64)]) -> BTreeMap<String, Duration> {
        drivers.iter().map(|(name, seconds)| ((*name).to_owned(), SECOND * u32::try_from(*seconds).unwrap())).collect()
    }

    #[test]
    fn each_driver_has_its_own_period() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        turns.set(&of(&[("a", 10), ("b", 30)]), start);
        assert_eq!(turns.due(start + 9 * SECOND), [""; 0]);
        assert_eq!(turns.next(), Some(start + 10 * SECOND));
        assert_eq!(turns.due(start + 10 * SECOND), ["a"]);
        // It has not answered yet: its next turn is passed over, and those after it are not.
        assert_eq!(turns.due(start + 20 * SECOND), [""; 0]);
        assert!(!turns.answered("a"));
        assert_eq!(turns.due(start + 30 * SECOND), ["a", "b"]);
        // The same once more changes nothing; another period begins anew.
        turns.set(&of(&[("a", 10), ("b", 60)]), start + 31 * SECOND);
        assert_eq!(turns.next(), Some(start + 40 * SECOND));
        turns.set(&of(&[("b", 60)]), start + 31 * SECOND);
        assert_eq!(turns.next(), Some(start + 91 * SECOND));
        turns.set(&of(&[]), start);
        assert_eq!(turns.next(), None);
    }

    #[test]
    fn a_period_of_any_length_is_one() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        let longest = BTreeMap::from([("a".to_owned(), Duration::from_secs(i64::MAX.unsigned_abs()))]);
        turns.set(&longest, start);
        assert_eq!(turns.due(start + 3600 * SECOND), [""; 0]);
        let at = turns.next().unwrap();
        assert_eq!(turns.due(at), ["a"]);
        assert!(turns.next().unwrap() > at);
    }

    #[test]
    fn a_limit_that_is_reached_is_asked_for_at_once() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        assert!(!turns.at_once("a"), "it has no period");
        turns.set(&of(&[("a", 10)]), now);
        assert!(turns.at_once("a"));
        // While it answers two more pods see the limit: it is asked once more.
        assert!(!turns.at_once("a") && !turns.at_once("a"));
        assert!(turns.answered("a"));
        assert!(!turns.answered("a"));
    }

    #[test]
    fn only_registered_drivers_with_a_period_have_turns() {
        let driver = |endpoint: &str| Driver {
            endpoint: endpoint.to_owned(),
            version: kubelet_edges::csi::Version::parse("1.0.0").unwrap(),
        };
        let registered = BTreeMap::from([("a".to_owned(), driver("/a")), ("b".to_owned(), driver("/b"))]);
        let object = |name: &str, seconds: serde_json::Value| {
            let object = serde_json::json!({"metadata": {"name": name}, "spec": {"nodeAllocatableUpdatePeriodSeconds": seconds}});
            (name.to_owned(), std::sync::Arc::new(serde_json::from_value(object).unwrap()))
        };
        let objects =
            BTreeMap::from([object("a", 10.into()), object("b", serde_json::Value::Null), object("c", 10.into())]);
        assert_eq!(wanted(&registered, &Some(objects)), of(&[("a", 10)]));
        assert_eq!(wanted(&registered, &None), of(&[]));
    }
}
