//! State files and the disk below them: what may be there after a power cut, and what must hold of what a process has written.

use std::collections::BTreeMap;

use bulkhead_simulation_kernel::{Doings, Entry, Moment};
use serde::de::IgnoredAny;

use crate::dice::Dice;
use crate::world::World;

/// A folder's files.
pub type Image = BTreeMap<String, Vec<u8>>;

/// One of the states in which a folder may be after a power cut: each name that was not synced stands for what it did before or for what it
/// does now, whatever others do; and each file that was not synced has its old content, its new one, or a part of it, with or without
/// zeros where the rest would be. Pure; `told`: what is not as it was synced, for people.
pub fn after_power_cut(moment: &Moment, dice: &mut Dice, told: &mut Vec<String>) -> Image {
    let mut image = Image::new();
    let more = moment.synced.keys().filter(|name| !moment.now.contains_key(*name));
    for name in moment.now.keys().chain(more) {
        let (before, now) = (moment.synced.get(name), moment.now.get(name));
        let is_open = moment.open.contains(name);
        let is_done = !is_open || dice.percent(50);
        let Some(entry) = (if is_done { now } else { before }) else {
            told.push(format!("{name} is not there"));
            continue;
        };
        let content = content_after(entry, dice);
        if is_open {
            let what = match (is_done, content == entry.content) {
                (false, true) => "what it was",
                (true, true) => "what was just written",
                (_, false) => "neither what it was nor what was just written",
            };
            told.push(format!("{name} is {what} ({} bytes)", content.len()));
        }
        image.insert(name.clone(), content);
    }
    image
}

fn content_after(entry: &Entry, dice: &mut Dice) -> Vec<u8> {
    if entry.synced.as_ref() == Some(&entry.content) {
        return entry.content.clone();
    }
    match dice.below(3) {
        0 => entry.synced.clone().unwrap_or_default(),
        1 => entry.content.clone(),
        _ => {
            let length = entry.content.len();
            let kept = usize::try_from(dice.below(length as u64)).unwrap_or(0);
            let mut content: Vec<u8> = entry.content.iter().take(kept).copied().collect();
            if dice.percent(50) {
                content.resize(length, 0);
            }
            content
        }
    }
}

/// A name that nobody reads: what is being written has it until it is renamed.
fn is_temporary(name: &str) -> bool {
    name.starts_with('.')
}

impl World {
    /// After a turn of a process that has written or synced something: each file is whole, and durable where nothing failed, since whoever
    /// hears from the process now relies on it.
    pub(crate) fn check_state(&mut self, who: &str, moment: &Moment, doings: Doings) {
        let mut wrong = Vec::new();
        for (name, entry) in moment.now.iter().filter(|(name, _)| !is_temporary(name)) {
            if name.ends_with(".damaged") || name.contains(".version-") {
                wrong.push(("state-whole", format!("{who} has set {name} aside")));
            } else if serde_json::from_slice::<IgnoredAny>(&entry.content).is_err() {
                let length = entry.content.len();
                wrong.push(("state-whole", format!("{name} of {who} is not whole: {length} bytes")));
            }
            if moment.open.contains(name) && !doings.failed {
                let text = format!("{name} of {who} would not be there after a power cut, and nothing has failed");
                wrong.push(("state-durable", text));
            }
        }
        for (check, text) in wrong {
            self.breaks(check, text);
        }
    }

    /// As the machine names the time since it was switched on last.
    pub fn boot_id(&self) -> String {
        format!("simulated-{}", self.boots)
    }

    /// The machine loses its power: everything on it ends, and what lives in memory is gone.
    pub(crate) fn lose_power(&mut self) {
        self.boots += 1;
        let running: Vec<String> = self
            .containers
            .values()
            .filter(|container| container.state == crate::world::State::Running)
            .map(|container| container.id.clone())
            .collect();
        for id in running {
            // As a runtime that finds out when it is there again.
            self.exit(&id, 255, "Unknown");
        }
        for sandbox in self.sandboxes.values_mut() {
            sandbox.ready = false;
        }
        self.mounts_are_lost();
        self.cgroups.clear();
        self.resources.reboot();
        self.pressure.reboot();
        self.memory.reboot();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn entry(content: &str, synced: Option<&str>) -> Entry {
        Entry { content: content.as_bytes().to_vec(), synced: synced.map(|text| text.as_bytes().to_vec()) }
    }

    fn moment(now: &[(&str, Entry)], synced: &[(&str, Entry)], open: &[&str]) -> Moment {
        let names =
            |all: &[(&str, Entry)]| all.iter().map(|(name, entry)| ((*name).to_owned(), entry.clone())).collect();
        Moment { now: names(now), synced: names(synced), open: open.iter().map(|name| (*name).to_owned()).collect() }
    }

    /// All states that come up, each file as its content.
    fn states(moment: &Moment) -> BTreeSet<Vec<(String, String)>> {
        let text = |content: &Vec<u8>| String::from_utf8_lossy(content).replace('\0', "0");
        let state = |seed: u64| {
            let image = after_power_cut(moment, &mut Dice::of(seed, "test"), &mut Vec::new());
            image.iter().map(|(name, content)| (name.clone(), text(content))).collect()
        };
        (0..500).map(state).collect()
    }

    fn all(states: &[&[(&str, &str)]]) -> BTreeSet<Vec<(String, String)>> {
        let one = |state: &&[(&str, &str)]| {
            state.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
        };
        states.iter().map(one).collect()
    }

    #[test]
    fn what_is_synced_is_there_and_of_the_rest_anything_may_be() {
        let (old, new) = (entry("old", Some("old")), entry("new", Some("new")));
        // Nothing is open.
        assert_eq!(states(&moment(&[("a", new.clone())], &[("a", new.clone())], &[])), all(&[&[("a", "new")]]));
        // Renamed, and the folder not synced.
        let renamed = moment(&[("a", new.clone())], &[("a", old.clone())], &["a"]);
        assert_eq!(states(&renamed), all(&[&[("a", "old")], &[("a", "new")]]));
        // Removed.
        assert_eq!(states(&moment(&[], &[("a", old.clone())], &["a"])), all(&[&[("a", "old")], &[]]));
        // Renamed, and the file not synced.
        let torn = moment(&[("a", entry("xy", None))], &[("a", old.clone())], &["a"]);
        let of_torn = ["old", "xy", "", "x", "x0", "00"];
        let of_torn: Vec<[(&str, &str); 1]> = of_torn.iter().map(|text| [("a", *text)]).collect();
        let of_torn: Vec<&[(&str, &str)]> = of_torn.iter().map(|state| state.as_slice()).collect();
        assert_eq!(states(&torn), all(&of_torn));
        // Written in place.
        let in_place = moment(&[("a", entry("xy", Some("q")))], &[("a", entry("xy", Some("q")))], &["a"]);
        let expected = ["q", "xy", "", "x", "x0", "00"].map(|text| [("a", text)]);
        let expected: Vec<&[(&str, &str)]> = expected.iter().map(|state| state.as_slice()).collect();
        assert_eq!(states(&in_place), all(&expected));
    }
}
