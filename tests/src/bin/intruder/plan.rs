//! What there is on the node to be attacked, written down by the test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

/// Paths are those that the intruder sees.
#[derive(Debug)]
pub struct Plan {
    pub run_dir: PathBuf,
    pub root_dir: PathBuf,
    /// Act and file: what must not be read.
    pub read: BTreeMap<String, PathBuf>,
    /// Act and file: what must not be opened for writing, or made.
    pub write: BTreeMap<String, PathBuf>,
    /// Act and process: launcher, daemons, a pod's.
    pub processes: BTreeMap<String, i32>,
    pub runtime_socket: PathBuf,
    /// A socket in a pod's volume to which anybody may connect.
    pub pod_socket: PathBuf,
    /// A folder where anybody may write.
    pub scratch: PathBuf,
}

impl Plan {
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).with_context(|| format!("reading the plan {}", path.display()))?;
        let plan: Value = serde_json::from_slice(&text)?;
        let one = |field: &str| plan[field].as_str().map(PathBuf::from).with_context(|| format!("no {field}"));
        let paths = |field: &str| -> BTreeMap<String, PathBuf> {
            let entries = plan[field].as_object().into_iter().flatten();
            entries.filter_map(|(name, path)| Some((name.clone(), PathBuf::from(path.as_str()?)))).collect()
        };
        let processes = plan["processes"].as_object().into_iter().flatten();
        Ok(Plan {
            run_dir: one("run_dir")?,
            root_dir: one("root_dir")?,
            read: paths("read"),
            write: paths("write"),
            processes: processes
                .filter_map(|(name, pid)| Some((name.clone(), i32::try_from(pid.as_i64()?).ok()?)))
                .collect(),
            runtime_socket: one("runtime_socket")?,
            pod_socket: one("pod_socket")?,
            scratch: one("scratch")?,
        })
    }
}
