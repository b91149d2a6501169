//! Kills for want of the machine's memory that kubelet-evictiond found in the kernel's log: the node's event SystemOOM (upstream
//! `pkg/kubelet/oom`), once for each. Which one was told last is kept, because kubelet-evictiond tells again what it does not know to
//! have been taken (docs/decisions/0063-who-reads-the-kernels-log.md).

use std::sync::Arc;

use bulkhead_ipc::syncd::ReportOomRequest;
use kubelet_model::events::{EventType, NodeEvent};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// The form of the state file.
pub const VERSION: u64 = 1;
/// Letters of a process's name: 15 bytes, each written as `\xNN`.
const PROCESS_MAX: usize = 60;

/// The last one that was told, as the state file has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    pub boot_id: String,
    pub sequence: u64,
}

/// Where it is kept.
pub trait OomStore: std::fmt::Debug + Send + Sync {
    /// Returns when it is on the disk.
    ///
    /// # Errors
    /// It is not.
    fn save(&self, last: &Saved) -> std::io::Result<()>;
}

/// Why a report was not taken.
#[derive(Debug, thiserror::Error)]
pub enum OomError {
    #[error("boot_id: {0:?} is another boot than this one")]
    OtherBoot(String),
    #[error("failed to keep which out of memory kill was told last")]
    Store(#[source] std::io::Error),
}

/// See the module.
#[derive(Debug)]
pub struct OomReports {
    boot_id: String,
    store: Arc<dyn OomStore>,
    last: Mutex<Option<u64>>,
}

impl OomReports {
    /// Goes on after what was told last, if it was in this boot.
    pub fn new(saved: Option<Saved>, boot_id: &str, store: Arc<dyn OomStore>) -> Self {
        let last = saved.filter(|saved| saved.boot_id == boot_id).map(|saved| saved.sequence);
        OomReports { boot_id: boot_id.to_owned(), store, last: Mutex::new(last) }
    }

    /// The event to tell; `None`: it was told. From here on it counts as told, for a second event of one kill would be one kill too
    /// many, and a process that ends between this and the event's way out is rarer than one that ends in a write.
    ///
    /// # Errors
    /// Nothing was taken.
    pub fn take(&self, report: &ReportOomRequest) -> Result<Option<NodeEvent>, OomError> {
        if report.boot_id != self.boot_id {
            return Err(OomError::OtherBoot(report.boot_id.chars().take(PROCESS_MAX).collect()));
        }
        let mut last = self.last.lock();
        if last.is_some_and(|last| report.sequence <= last) {
            return Ok(None);
        }
        let saved = Saved { boot_id: self.boot_id.clone(), sequence: report.sequence };
        match self.store.save(&saved) {
            // A machine without memory may have no room on its disk: the event is worth more than that it is not told again.
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                tracing::warn!(%error, "failed to save the last reported OOM kill");
            }
            saved => saved.map_err(OomError::Store)?,
        }
        *last = Some(report.sequence);
        Ok(Some(NodeEvent { kind: EventType::Warning, reason: "SystemOOM", message: message(report) }))
    }
}

/// Upstream's words.
fn message(report: &ReportOomRequest) -> String {
    let process: String = report.process.chars().take(PROCESS_MAX).map(printable).collect();
    match (process.as_str(), report.pid) {
        ("", _) | (_, 0) => "System OOM encountered".to_owned(),
        (process, pid) => format!("System OOM encountered, victim process: {process}, pid: {pid}"),
    }
}

/// What the kernel's log does not have is not believed.
fn printable(letter: char) -> char {
    if letter == ' ' || letter.is_ascii_graphic() { letter } else { '?' }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Disk {
        file: Mutex<Option<Saved>>,
        fails: Mutex<Option<std::io::ErrorKind>>,
    }

    impl OomStore for Disk {
        fn save(&self, last: &Saved) -> std::io::Result<()> {
            if let Some(kind) = *self.fails.lock() {
                return Err(kind.into());
            }
            *self.file.lock() = Some(last.clone());
            Ok(())
        }
    }

    fn report(sequence: u64, process: &str, pid: u32) -> ReportOomRequest {
        ReportOomRequest { boot_id: "one".into(), sequence, process: process.into(), pid }
    }

    #[test]
    fn each_is_told_once_in_whichever_life() {
        let disk = Arc::new(Disk::default());
        let reports = OomReports::new(None, "one", disk.clone());
        let told = reports.take(&report(0, "dd", 7)).unwrap().unwrap();
        assert_eq!((told.kind, told.reason), (EventType::Warning, "SystemOOM"));
        assert_eq!(told.message, "System OOM encountered, victim process: dd, pid: 7");
        assert_eq!(reports.take(&report(0, "dd", 7)).unwrap(), None);
        assert!(reports.take(&report(9, "dd", 8)).unwrap().is_some());
        let saved = disk.file.lock().clone();
        let next = OomReports::new(saved.clone(), "one", disk.clone());
        assert_eq!(next.take(&report(9, "dd", 8)).unwrap(), None);
        assert!(next.take(&report(10, "dd", 8)).unwrap().is_some());
        let of_boot_two = OomReports::new(saved, "two", disk);
        assert!(matches!(of_boot_two.take(&report(11, "dd", 8)), Err(OomError::OtherBoot(_))));
        let report = ReportOomRequest { boot_id: "two".into(), ..report(3, "dd", 8) };
        assert!(of_boot_two.take(&report).unwrap().is_some());
    }

    #[test]
    fn what_cannot_be_kept_is_not_told_unless_the_disk_is_full() {
        let disk = Arc::new(Disk::default());
        let reports = OomReports::new(None, "one", disk.clone());
        *disk.fails.lock() = Some(std::io::ErrorKind::ReadOnlyFilesystem);
        assert!(matches!(reports.take(&report(1, "dd", 7)), Err(OomError::Store(_))));
        *disk.fails.lock() = Some(std::io::ErrorKind::StorageFull);
        assert!(reports.take(&report(1, "dd", 7)).unwrap().is_some());
        assert_eq!(reports.take(&report(1, "dd", 7)).unwrap(), None);
    }

    #[test]
    fn words_of_a_victim() {
        for (process, pid, said) in [
            ("", 7, "System OOM encountered"),
            ("dd", 0, "System OOM encountered"),
            ("a\\x0ab, c", 7, "System OOM encountered, victim process: a\\x0ab, c, pid: 7"),
            ("a\nb\u{1b}[1mü", 7, "System OOM encountered, victim process: a?b?[1m?, pid: 7"),
        ] {
            assert_eq!(message(&report(1, process, pid)), said);
        }
        assert!(message(&report(1, &"x".repeat(100_000), 7)).len() < 130);
    }
}
