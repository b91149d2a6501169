//! What is known of each plugin.

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead_ipc::syncd::Plugin;
use jiff::Timestamp;
use parking_lot::Mutex;

use super::info::PluginInfo;
use crate::storage_writes::StorageWrites;

/// Letters of an error that are kept.
const MAX_ERROR: usize = 1024;

/// How far a plugin is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    Registering,
    Registered,
    Failed(String),
}

#[derive(Debug, Clone)]
struct Row {
    info: Option<PluginInfo>,
    stage: Stage,
    since: Timestamp,
    /// It has said what it is, and was registered or refused.
    settled: bool,
}

#[derive(Debug, Default)]
struct Rows {
    by_socket: BTreeMap<String, Row>,
    listed: bool,
    complete: bool,
}

/// Clones are the same.
#[derive(Debug, Clone)]
pub struct PluginTable {
    rows: Arc<Mutex<Rows>>,
    writes: StorageWrites,
}

impl PluginTable {
    /// `writes` is told when all plugins that were there at the start are settled.
    pub fn new(writes: StorageWrites) -> Self {
        PluginTable { rows: Arc::default(), writes }
    }

    fn change(&self, how: impl FnOnce(&mut Rows)) {
        let complete = {
            let mut rows = self.rows.lock();
            how(&mut rows);
            let complete = rows.listed && rows.by_socket.values().all(|row| row.settled);
            let first = complete && !rows.complete;
            rows.complete |= complete;
            first
        };
        if complete {
            self.writes.drivers_complete();
        }
    }

    /// A socket is there.
    pub fn begin(&self, socket: &str) {
        let row = Row { info: None, stage: Stage::Registering, since: Timestamp::now(), settled: false };
        self.change(|rows| {
            rows.by_socket.insert(socket.to_owned(), row);
        });
    }

    /// It has gone.
    pub fn end(&self, socket: &str) {
        self.change(|rows| {
            rows.by_socket.remove(socket);
        });
    }

    /// Every socket that is there is in the table.
    pub fn listed(&self) {
        self.change(|rows| rows.listed = true);
    }

    /// It has said what it is. One that failed because it had not is on its way from here on; why another one failed stays until it
    /// is registered, or fails otherwise.
    pub fn identified(&self, socket: &str, info: &PluginInfo) {
        self.change(|rows| {
            if let Some(row) = rows.by_socket.get_mut(socket) {
                let first = row.info.replace(info.clone()).is_none();
                if first && row.stage != Stage::Registering {
                    row.stage = Stage::Registering;
                    row.since = Timestamp::now();
                }
            }
        });
    }

    /// It is on its way, or has arrived. `settled`: what it is to this node is decided.
    pub fn stage(&self, socket: &str, stage: Stage, settled: bool) {
        let stage = match stage {
            Stage::Failed(why) => Stage::Failed(why.chars().take(MAX_ERROR).collect()),
            other => other,
        };
        self.change(|rows| {
            if let Some(row) = rows.by_socket.get_mut(socket) {
                if row.stage != stage {
                    row.since = Timestamp::now();
                    row.stage = stage;
                }
                row.settled |= settled;
            }
        });
    }

    /// Socket, and whether it is registered.
    pub fn states(&self) -> Vec<(String, bool)> {
        let rows = self.rows.lock();
        rows.by_socket.iter().map(|(socket, row)| (socket.clone(), row.stage == Stage::Registered)).collect()
    }

    /// All plugins, by socket.
    pub fn list(&self) -> Vec<Plugin> {
        let trouble = self.writes.drivers_trouble();
        let plugin = |(socket, row): (&String, &Row)| {
            let (state, error) = match &row.stage {
                Stage::Registering if row.info.is_some() => ("registering", trouble.clone()),
                Stage::Registering => ("registering", String::new()),
                Stage::Registered => ("registered", String::new()),
                Stage::Failed(why) => ("failed", why.clone()),
            };
            let info = row.info.clone().unwrap_or_default();
            Plugin {
                socket: socket.clone(),
                r#type: info.kind,
                name: info.name,
                endpoint: info.endpoint,
                versions: info.versions,
                state: state.to_owned(),
                error,
                since: row.since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            }
        };
        self.rows.lock().by_socket.iter().map(plugin).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_answers_at_last_is_on_its_way() {
        let table = PluginTable::new(StorageWrites::default());
        let state = || (table.list()[0].state.clone(), table.list()[0].error.clone());
        let failed = |why: &str| table.stage("a", Stage::Failed(why.to_owned()), false);
        table.begin("a");
        failed("nobody listens");
        assert_eq!(state(), ("failed".to_owned(), "nobody listens".to_owned()));
        table.identified("a", &PluginInfo::default());
        assert_eq!(state(), ("registering".to_owned(), String::new()));
        failed("it collides");
        table.identified("a", &PluginInfo::default());
        assert_eq!(
            state(),
            ("failed".to_owned(), "it collides".to_owned()),
            "it is refused for that until something changes"
        );
    }

    #[test]
    fn complete_when_everybody_who_was_there_is_settled() {
        let writes = StorageWrites::default();
        let table = PluginTable::new(writes.clone());
        let complete = || writes.after(0).is_some();
        table.begin("a");
        table.begin("b");
        table.stage("a", Stage::Registered, true);
        table.listed();
        assert!(!complete(), "b has said nothing yet");
        table.stage("b", Stage::Failed("x".repeat(5000)), false);
        assert!(!complete());
        assert_eq!(table.list().iter().map(|plugin| plugin.error.len()).collect::<Vec<_>>(), [0, MAX_ERROR]);
        table.end("b");
        assert!(complete());
    }
}
