//! The recordings as files.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bulkhead_testkit::Release;
use serde_json::{Value, json};

use super::proxy::Call;

/// One pod under upstream's kubelet.
#[derive(Debug, Clone)]
pub struct Recording {
    pub name: String,
    pub uid: String,
    pub pod_ips: Vec<String>,
    /// The pod to create; None for the static pod, which comes from a file.
    pub pod: Option<Value>,
    /// The static pod's mirror.
    pub mirror: Option<Value>,
    /// Put in after the pod ran.
    pub ephemeral: Option<Value>,
    /// Distinct statuses in order, normalised as [`super::normal::status`] does.
    pub statuses: Vec<Value>,
    /// By the time they were made at: seconds since the first.
    pub calls: Vec<(f64, Call)>,
    /// `{type, reason, message, fieldPath, count}`.
    pub events: Vec<Value>,
}

impl Recording {
    /// The namespace that the pod was created in.
    pub fn namespace(&self) -> &str {
        self.pod.as_ref().and_then(|pod| pod["metadata"]["namespace"].as_str()).unwrap_or("default")
    }

    /// Writes it into a folder as it is read. `plain` takes out of a text what is particular to the machine.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, folder: &Path, plain: impl Fn(&str) -> String) -> Result<()> {
        let call = |(at, call): &(f64, Call)| {
            let mut one = json!({"t": (at * 1000.0).round() / 1000.0, "method": call.method, "request": call.request});
            if !call.of.is_empty() {
                one["of"] = json!(call.of);
            }
            one
        };
        let mut all = json!({
            "name": self.name,
            "uid": self.uid,
            "podIPs": self.pod_ips,
            "statuses": self.statuses,
            "cri": self.calls.iter().map(call).collect::<Vec<_>>(),
            "events": self.events,
        });
        for (key, value) in [("pod", &self.pod), ("mirror", &self.mirror), ("ephemeralContainers", &self.ephemeral)] {
            if let Some(value) = value {
                all[key] = value.clone();
            }
        }
        let mut text = plain(&serde_json::to_string_pretty(&all)?);
        text.push('\n');
        std::fs::write(folder.join(format!("{}.json", self.name)), text)?;
        Ok(())
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// All recordings, by name.
///
/// # Errors
/// A file cannot be read or is not what it should be.
pub fn all() -> Result<Vec<Recording>> {
    in_folder(&folder())
}

/// The same for a runtime: pods that live another life there have a recording of their own, `golden/runtimes/<release>/`.
///
/// # Errors
/// As [`all`].
pub fn all_on(release: Release) -> Result<Vec<Recording>> {
    let mut all = all()?;
    if release == Release::V2_1 {
        let own = in_folder(&folder().join("runtimes").join(release.name()))?;
        all.retain(|one| own.iter().all(|other| other.name != one.name));
        all.extend(own);
    }
    Ok(all)
}

fn in_folder(folder: &Path) -> Result<Vec<Recording>> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_, std::io::Error>>()?;
    paths
        .retain(|path| path.extension().is_some_and(|e| e == "json") && path.file_stem().is_some_and(|n| n != "meant"));
    paths.sort();
    paths.iter().map(|path| load(path).with_context(|| path.display().to_string())).collect()
}

fn load(path: &Path) -> Result<Recording> {
    let value: Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let list = |key: &str| value[key].as_array().cloned().with_context(|| format!("no {key}"));
    let calls = list("cri")?
        .into_iter()
        .map(|call| {
            let method = call["method"].as_str().context("no method")?.to_owned();
            let of = call["of"].as_str().unwrap_or_default().to_owned();
            let call_itself = Call { method, request: call["request"].clone(), pod_uid: String::new(), of };
            Ok((call["t"].as_f64().context("no time")?, call_itself))
        })
        .collect::<Result<_>>()?;
    Ok(Recording {
        name: value["name"].as_str().context("no name")?.to_owned(),
        uid: value["uid"].as_str().context("no uid")?.to_owned(),
        pod_ips: list("podIPs")?.iter().filter_map(|ip| Some(ip.as_str()?.to_owned())).collect(),
        ephemeral: value.get("ephemeralContainers").cloned(),
        pod: value.get("pod").cloned(),
        mirror: value.get("mirror").cloned(),
        statuses: list("statuses")?,
        calls,
        events: list("events")?,
    })
}
