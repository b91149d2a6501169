//! What the driver was asked and has answered: a line for each, in the form of the recordings of real drivers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use bulkhead_csi::v1::volume_capability::{AccessType, access_mode::Mode};
use bulkhead_csi::v1::{CapacityRange, VolumeCapability};
use serde_json::{Map, Value, json};
use tonic::Status;

use crate::Driver;
use crate::faults::{self, screaming};

#[derive(Debug)]
pub(crate) struct Record {
    calls: File,
    secrets: File,
    faults: PathBuf,
    next: AtomicU64,
}

impl Record {
    pub(crate) fn new(state: &Path) -> Result<Self> {
        let path = state.join("calls.jsonl");
        let calls = File::options().create(true).append(true).open(&path);
        let calls = calls.with_context(|| format!("opening {}", path.display()))?;
        let path = state.join("secrets.jsonl");
        let secrets = File::options().create(true).append(true).open(&path);
        let secrets = secrets.with_context(|| format!("opening {}", path.display()))?;
        Ok(Self { calls, secrets, faults: state.join("faults.json"), next: AtomicU64::new(0) })
    }

    /// A call has come; gives its number, which its answer is to name.
    pub(crate) fn begin(&self, service: &str, method: &str, request: &Value) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // A number of this process: a driver that was started again goes on in the same file.
        let id = format!("{}-{number}", std::process::id());
        self.write(&json!({"id": id, "t": now(), "call": format!("/{service}/{method}"), "request": request}));
        id
    }

    pub(crate) fn end<T>(&self, id: &str, answer: &Result<T, Status>) {
        let (code, message) = match answer {
            Ok(_) => ("OK".to_owned(), ""),
            Err(status) => (screaming(status.code()), status.message()),
        };
        self.write(&json!({"id": id, "t": now(), "code": code, "message": message}));
    }

    /// The secrets of a call, which its record names by their keys alone.
    pub(crate) fn secrets(&self, method: &str, volume: &str, secrets: &BTreeMap<String, String>) {
        let line = json!({"call": method, "volume": volume, "secrets": secrets});
        let _ = (&self.secrets).write_all(format!("{line}\n").as_bytes());
    }

    pub(crate) fn faults(&self) -> &Path {
        &self.faults
    }

    /// One write, so that lines of two processes do not mix.
    fn write(&self, line: &Value) {
        let _ = (&self.calls).write_all(format!("{line}\n").as_bytes());
    }
}

impl crate::Served {
    /// One call: written down, subject to faults, then worked on to its end whether the caller still waits or not, as drivers do.
    pub(crate) async fn call<T: Default + Send + 'static>(
        &self,
        service: &str,
        method: &'static str,
        volume: &str,
        request: Value,
        work: impl FnOnce(&Driver, &faults::Course) -> Result<T, Status> + Send + 'static,
    ) -> Result<tonic::Response<T>, Status> {
        let (driver, volume) = (self.0.clone(), volume.to_owned());
        let id = driver.record.begin(service, method, &request);
        let whole = tokio::spawn(async move {
            let answer = match faults::meet(driver.record.faults(), method, &volume).await {
                Err(failure) => Err(failure),
                Ok(faults::Course::Lie) => Ok(T::default()),
                Ok(course) => {
                    let worker = driver.clone();
                    let done = tokio::task::spawn_blocking(move || {
                        let turn = worker.works.lock();
                        let done = work(&worker, &course);
                        drop(turn);
                        match course {
                            faults::Course::WorkThenFail(failure) => done.and(Err(failure)),
                            _ => done,
                        }
                    });
                    done.await.unwrap_or_else(|error| Err(Status::internal(error.to_string())))
                }
            };
            driver.record.end(&id, &answer);
            answer
        });
        whole.await.unwrap_or_else(|error| Err(Status::internal(error.to_string()))).map(tonic::Response::new)
    }
}

/// Seconds since 1970, to the microsecond.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Fields as recordings have them: what is empty is left out, and of secrets only the keys are there.
#[derive(Debug, Default)]
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    pub(crate) fn text(mut self, name: &str, value: &str) -> Self {
        if !value.is_empty() {
            self.0.insert(name.to_owned(), json!(value));
        }
        self
    }

    pub(crate) fn map(mut self, name: &str, value: &BTreeMap<String, String>) -> Self {
        if !value.is_empty() {
            self.0.insert(name.to_owned(), json!(value));
        }
        self
    }

    pub(crate) fn keys(mut self, name: &str, value: &BTreeMap<String, String>) -> Self {
        if !value.is_empty() {
            self.0.insert(name.to_owned(), value.keys().map(|key| json!(key)).collect());
        }
        self
    }

    pub(crate) fn flag(mut self, name: &str, value: bool) -> Self {
        if value {
            self.0.insert(name.to_owned(), json!(true));
        }
        self
    }

    pub(crate) fn capability(mut self, value: Option<&VolumeCapability>) -> Self {
        let Some(value) = value else { return self };
        let mode = value.access_mode.as_ref().map_or(0, |mode| mode.mode);
        let mode = Mode::try_from(mode).map_or("unknown", |mode| mode.as_str_name());
        let mut all = json!({"access_mode": {"mode": mode}});
        match &value.access_type {
            Some(AccessType::Block(_)) => all["block"] = json!({}),
            Some(AccessType::Mount(mount)) => {
                let own = Fields::default()
                    .text("fs_type", &mount.fs_type)
                    .text("volume_mount_group", &mount.volume_mount_group);
                let mut own = own.value();
                if !mount.mount_flags.is_empty() {
                    own["mount_flags"] = json!(mount.mount_flags);
                }
                all["mount"] = own;
            }
            None => {}
        }
        self.0.insert("volume_capability".to_owned(), all);
        self
    }

    pub(crate) fn range(mut self, value: Option<&CapacityRange>) -> Self {
        if let Some(value) = value {
            self.0.insert("capacity_range".to_owned(), json!({"required_bytes": value.required_bytes}));
        }
        self
    }

    pub(crate) fn value(self) -> Value {
        Value::Object(self.0)
    }
}
