//! Whether this start of the kubelet has registered the Node before: what is done once per start is not done again when this
//! process is restarted alone.

use std::sync::Arc;

use bulkhead_daemon::StateDir;
use bulkhead_daemon::state_file::{self, StateFile};
use serde::{Deserialize, Serialize};

/// In the state folder.
const FILE: StateFile = StateFile { name: "registered.json", version: 1 };

#[derive(Serialize, Deserialize)]
struct SavedStarts {
    /// Of the start that registered the Node last.
    start: String,
}

/// See the module. Without a folder nothing is remembered.
#[derive(Debug, Clone, Default)]
pub struct Starts {
    state: Option<Arc<StateDir>>,
    id: String,
    registered: bool,
}

impl Starts {
    /// `id`: of this start. A file that cannot be read counts as none: the Node is then put right once more.
    pub fn load(state: Arc<StateDir>, id: &str) -> Self {
        let kept = state.load(FILE, |content| serde_json::from_slice::<SavedStarts>(content));
        let kept = kept.unwrap_or_else(|error| {
            tracing::warn!(%error, "failed to read the record of node registration");
            None
        });
        let registered = !id.is_empty() && kept.is_some_and(|kept| kept.start == id);
        Starts { state: Some(state), id: id.to_owned(), registered }
    }

    /// The Node was not registered by this start yet.
    pub fn is_first(&self) -> bool {
        !self.registered
    }

    /// It is now.
    pub fn registered(&mut self) {
        if std::mem::replace(&mut self.registered, true) || self.id.is_empty() {
            return;
        }
        let Some(state) = &self.state else { return };
        let kept = state_file::encode(FILE.version, &SavedStarts { start: self.id.clone() })
            .map_err(|error| error.to_string());
        if let Err(error) = kept.and_then(|kept| state.write(FILE.name, &kept).map_err(|error| error.to_string())) {
            tracing::warn!(error, "failed to record node registration");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_start_once() {
        let folder = tempfile::tempdir().unwrap();
        let load = |id: &str| {
            let dir = std::fs::File::open(folder.path()).unwrap();
            Starts::load(Arc::new(StateDir::lock(dir.into()).unwrap()), id)
        };
        // The one instance that holds the folder is dropped before the next takes it.
        let first_of = |id: &str| {
            let mut starts = load(id);
            let first = starts.is_first();
            starts.registered();
            assert!(!starts.is_first());
            first
        };
        assert!(first_of("a"));
        assert!(!first_of("a"), "this process was restarted alone");
        assert!(first_of("b"), "the kubelet was");
        std::fs::write(folder.path().join(FILE.name), "{").unwrap();
        assert!(first_of("b"));
        for _ in 0..2 {
            assert!(first_of(""), "a launcher that names no start");
        }
    }
}
