//! When the ResourceSlices of a driver that cannot be asked any more go (upstream `sync` in `dra_plugin_manager.go`): after a grace
//! that lets a plugin be replaced, and not at all when it comes back before that. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// See the module.
#[derive(Debug)]
pub struct Wipes {
    grace: Duration,
    /// Whether a driver could be asked, when somebody looked last.
    usable: BTreeMap<String, bool>,
    due: BTreeMap<String, Instant>,
}

impl Wipes {
    pub const fn new(grace: Duration) -> Self {
        Wipes { grace, usable: BTreeMap::new(), due: BTreeMap::new() }
    }

    /// All drivers that have a plugin now, each with whether one is connected. Answers those that can be asked again: whatever is
    /// under way to wipe their ResourceSlices is called off.
    pub fn take(&mut self, now: Instant, drivers: &BTreeMap<String, bool>) -> Vec<String> {
        let known: Vec<String> = self.usable.keys().filter(|name| !drivers.contains_key(*name)).cloned().collect();
        let gone = known.into_iter().map(|name| (name, false));
        let mut back = Vec::new();
        for (name, is) in gone.chain(drivers.iter().map(|(name, is)| (name.clone(), *is))) {
            match self.usable.insert(name.clone(), is) {
                Some(was) if was == is => {}
                _ if is => {
                    self.due.remove(&name);
                    back.push(name);
                }
                _ => {
                    self.due.entry(name).or_insert(now + self.grace);
                }
            }
        }
        // One that is gone, and wiped, is nothing any more.
        self.usable.retain(|name, _| drivers.contains_key(name) || self.due.contains_key(name));
        back
    }

    /// When the next one goes.
    pub fn next(&self) -> Option<Instant> {
        self.due.values().min().copied()
    }

    /// The drivers whose time is over; each is told once.
    pub fn take_due(&mut self, now: Instant) -> Vec<String> {
        let over: Vec<String> = self.due.iter().filter(|(_, at)| **at <= now).map(|(name, _)| name.clone()).collect();
        for name in &over {
            self.due.remove(name);
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_away_for_how_long() {
        let (grace, start) = (Duration::from_secs(30), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let drivers = |all: &[(&str, bool)]| all.iter().map(|(name, is)| ((*name).to_owned(), *is)).collect();
        let mut wipes = Wipes::new(grace);
        // Registered, and connected a moment later.
        assert!(wipes.take(at(0), &drivers(&[("a", false)])).is_empty());
        assert_eq!(wipes.take(at(1), &drivers(&[("a", true)])), ["a"]);
        assert_eq!(wipes.next(), None);
        // Away twice: the first time counts as long as it has not come back.
        assert!(wipes.take(at(10), &drivers(&[("a", false), ("b", true)])).contains(&"b".to_owned()));
        wipes.take(at(20), &drivers(&[("b", true)]));
        assert_eq!((wipes.next(), wipes.take_due(at(39))), (Some(at(40)), vec![]));
        assert_eq!(wipes.take(at(39), &drivers(&[("a", true), ("b", true)])), ["a"]);
        assert_eq!(wipes.next(), None);
        wipes.take(at(50), &drivers(&[("b", true)]));
        assert_eq!(wipes.take_due(at(80)), ["a"]);
        assert_eq!(wipes.take_due(at(200)), Vec::<String>::new(), "once");
        wipes.take(at(200), &drivers(&[("b", true)]));
        assert_eq!(wipes.usable.len(), 1, "it is forgotten");
        assert_eq!(wipes.take(at(300), &drivers(&[("a", true), ("b", true)])), ["a"]);
    }
}
