//! What probes found out, kept over a restart of this process: nobody's readiness changes because of one, and no count
//! begins anew. Read once at the start; written when a value changes, before anybody is told of it.

use std::collections::{HashMap, HashSet};

use bulkhead_daemon::state_file;
use bulkhead_types::ContainerId;
use serde::{Deserialize, Serialize};

use super::results::ProbeResult;
use super::worker::{Memory, ProbeKind, ProbeOutcome};

/// Where the text is kept.
pub trait ProbeStore: Send + Sync + 'static {
    /// What [`ProbeStore::save`] wrote last.
    fn load(&self) -> Option<Vec<u8>>;
    /// Replaces it. A failure is the store's to tell: what is lost with it is only needed after a restart.
    fn save(&self, json: &[u8]);
}

/// For tests and for where nothing is to be kept.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoStore;

impl ProbeStore for NoStore {
    fn load(&self) -> Option<Vec<u8>> {
        None
    }

    fn save(&self, _: &[u8]) {}
}

#[derive(Debug, Serialize, Deserialize)]
struct File {
    #[serde(deserialize_with = "state_file::list")]
    probes: Vec<Line>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    container: String,
    kind: ProbeKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<SavedResult>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<ProbeOutcome>,
    #[serde(default)]
    run: u32,
    #[serde(default)]
    on_hold: bool,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum SavedResult {
    Success,
    Failure,
    Unknown,
}

/// Of the text's form.
pub const VERSION: u64 = 1;

/// Whether [`Restored::from_json`] makes anything of it.
///
/// # Errors
/// Why not.
pub fn understands(json: &[u8]) -> serde_json::Result<()> {
    serde_json::from_slice::<File>(json).map(drop)
}

/// The text of all memories.
pub fn to_json<'a>(all: impl Iterator<Item = (ProbeKind, &'a Memory)>) -> Vec<u8> {
    let line = |(kind, memory): (ProbeKind, &Memory)| Line {
        container: memory.container.to_string(),
        kind,
        result: memory.result.map(|result| match result {
            ProbeResult::Success => SavedResult::Success,
            ProbeResult::Failure => SavedResult::Failure,
            ProbeResult::Unknown => SavedResult::Unknown,
        }),
        last: memory.last,
        run: memory.run,
        on_hold: memory.on_hold,
    };
    // A struct of plain fields has no way to fail.
    state_file::encode(VERSION, &File { probes: all.map(line).collect() }).unwrap_or_default()
}

/// What an earlier process knew and no worker has taken up yet.
#[derive(Debug, Default)]
pub struct Restored(HashMap<(ContainerId, ProbeKind), Memory>);

impl Restored {
    /// From the kept text. What cannot be read is as good as absent: probes begin anew.
    pub fn from_json(json: &[u8]) -> Self {
        let file: File = match serde_json::from_slice(json) {
            Ok(file) => file,
            Err(error) => {
                tracing::warn!(%error, "failed to load probe results: probes begin anew");
                return Restored::default();
            }
        };
        let memory = |line: Line| {
            let container = ContainerId::parse(&line.container).ok()?;
            let result = line.result.map(|kept| match kept {
                SavedResult::Success => ProbeResult::Success,
                SavedResult::Failure => ProbeResult::Failure,
                SavedResult::Unknown => ProbeResult::Unknown,
            });
            let Line { kind, last, run, on_hold, .. } = line;
            Some(((container.clone(), kind), Memory { container, result, last, run, on_hold }))
        };
        Restored(file.probes.into_iter().filter_map(memory).collect())
    }

    pub fn get(&self, container: &ContainerId, kind: ProbeKind) -> Option<&Memory> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&(container.clone(), kind))
    }

    /// A worker takes it up.
    pub fn take(&mut self, container: &ContainerId, kind: ProbeKind) -> Option<Memory> {
        if self.0.is_empty() {
            return None;
        }
        self.0.remove(&(container.clone(), kind))
    }

    pub fn iter(&self) -> impl Iterator<Item = (ProbeKind, &Memory)> {
        self.0.iter().map(|((_, kind), memory)| (*kind, memory))
    }

    /// Keeps what belongs to containers that still exist.
    pub fn retain(&mut self, exist: &HashSet<ContainerId>) {
        self.0.retain(|(container, _), _| exist.contains(container));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn memories() -> impl Strategy<Value = Vec<(ProbeKind, Memory)>> {
        let result = prop::option::of(prop_oneof![
            Just(ProbeResult::Success),
            Just(ProbeResult::Failure),
            Just(ProbeResult::Unknown)
        ]);
        let last = prop::option::of(prop_oneof![Just(ProbeOutcome::Success), Just(ProbeOutcome::Failure)]);
        let one = (0_usize..3, 0_u8..5, result, last, any::<u32>(), any::<bool>());
        let memory = one.prop_map(|(kind, id, result, last, run, on_hold)| {
            let container = ContainerId::parse(&format!("c{id}")).unwrap();
            (ProbeKind::ALL[kind], Memory { container, result, last, run, on_hold })
        });
        prop::collection::vec(memory, 0..6)
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(all in memories()) {
            let newest: HashMap<_, _> = all.iter().map(|(kind, m)| ((m.container.clone(), *kind), m.clone())).collect();
            let mut restored = Restored::from_json(&to_json(newest.iter().map(|((_, kind), memory)| (*kind, memory))));
            prop_assert_eq!(restored.iter().count(), newest.len());
            for ((id, kind), memory) in newest {
                prop_assert_eq!(restored.get(&id, kind), Some(&memory));
                prop_assert_eq!(restored.take(&id, kind), Some(memory));
                prop_assert_eq!(restored.take(&id, kind), None);
            }
        }

        #[test]
        fn nonsense_is_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            prop_assert_eq!(Restored::from_json(&bytes).iter().count(), 0);
        }
    }

    #[test]
    fn other_entries_and_gone_containers() {
        let line = |id: &str| format!(r#"{{"container":"{id}","kind":"Readiness","result":"Success","run":1}}"#);
        let json = format!(
            r#"{{"version":1,"probes":[{},7,{{"kind":"Liveliness"}},{},{}]}}"#,
            line("a"),
            line("b"),
            line("../c")
        );
        let mut restored = Restored::from_json(json.as_bytes());
        assert_eq!(restored.iter().count(), 2);
        let a = ContainerId::parse("a").unwrap();
        restored.retain(&HashSet::from([a.clone()]));
        assert_eq!(restored.iter().map(|(_, memory)| memory.container.clone()).collect::<Vec<_>>(), [a]);
    }
}
