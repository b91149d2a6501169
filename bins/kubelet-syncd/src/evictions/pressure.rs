//! The node's conditions as the eviction manager reported them last. They are kept: whoever starts after this process admits by the
//! same word, for kubelet-evictiond is not asked.

use std::sync::Arc;

use bulkhead_ipc::syncd::ReportPressureRequest;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::admission::Pressure;

/// The form of the state file.
pub const VERSION: u64 = 1;

/// As the state file has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    pub memory: bool,
    pub disk: bool,
    pub pid: bool,
    pub boot_id: String,
}

/// Where it is kept.
pub trait PressureStore: std::fmt::Debug + Send + Sync {
    /// Returns when it is on the disk.
    ///
    /// # Errors
    /// It is not.
    fn save(&self, pressure: &Saved) -> std::io::Result<()>;
}

/// The last report.
#[derive(Debug)]
pub struct PressureReports {
    boot_id: String,
    store: Arc<dyn PressureStore>,
    last: watch::Sender<Pressure>,
    /// The disk had no room for the last one. Held while one is taken in: what is on the disk is the last.
    is_unwritten: Mutex<bool>,
}

impl PressureReports {
    /// Goes on with what was saved; a report of another boot is none.
    pub fn new(saved: Option<Saved>, boot_id: &str, store: Arc<dyn PressureStore>) -> Self {
        let saved = saved.filter(|saved| saved.boot_id == boot_id).unwrap_or_default();
        let last = Pressure { memory: saved.memory, disk: saved.disk, pids: saved.pid };
        PressureReports {
            boot_id: boot_id.to_owned(),
            store,
            last: watch::Sender::new(last),
            is_unwritten: Mutex::new(false),
        }
    }

    /// By which pods are admitted.
    pub fn last(&self) -> Pressure {
        *self.last.borrow()
    }

    /// Takes a report. It counts when this has returned.
    ///
    /// # Errors
    /// It could not be kept, and not because the disk is full; then the one before still counts.
    pub fn report(&self, report: ReportPressureRequest) -> std::io::Result<()> {
        let pressure = Pressure { memory: report.memory, disk: report.disk, pids: report.pid };
        let mut is_unwritten = self.is_unwritten.lock();
        if pressure == self.last() {
            return Ok(());
        }
        match self.save(pressure) {
            Ok(()) => *is_unwritten = false,
            // Of all things that a full disk is told: a node that waits for room before it heeds that goes on taking pods.
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                tracing::warn!(%error, "failed to save the node's pressure conditions");
                *is_unwritten = true;
            }
            Err(error) => return Err(error),
        }
        let Pressure { memory, disk, pids } = pressure;
        tracing::info!(memory, disk, pid = pids, "eviction manager: conditions of the node have changed");
        self.last.send_replace(pressure);
        Ok(())
    }

    /// Writes down the last report, where that could not be done when it came and none is being taken in.
    pub fn write_down(&self) {
        let Some(mut is_unwritten) = self.is_unwritten.try_lock() else { return };
        if *is_unwritten && self.save(self.last()).is_ok() {
            tracing::info!("saved the node's pressure conditions");
            *is_unwritten = false;
        }
    }

    fn save(&self, Pressure { memory, disk, pids }: Pressure) -> std::io::Result<()> {
        self.store.save(&Saved { memory, disk, pid: pids, boot_id: self.boot_id.clone() })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;

    #[derive(Debug, Default)]
    struct Disk(Mutex<Option<Saved>>, Mutex<Option<std::io::ErrorKind>>);

    impl PressureStore for Disk {
        fn save(&self, pressure: &Saved) -> std::io::Result<()> {
            if let Some(kind) = *self.1.lock() {
                return Err(kind.into());
            }
            *self.0.lock() = Some(pressure.clone());
            Ok(())
        }
    }

    #[test]
    fn the_last_report_of_this_boot_counts() {
        let disk = Arc::new(Disk::default());
        let reports = PressureReports::new(None, "one", disk.clone());
        assert_eq!(reports.last(), Pressure::default());
        reports.report(ReportPressureRequest::default()).unwrap();
        assert_eq!(*disk.0.lock(), None, "no news, nothing to write");
        reports.report(ReportPressureRequest { disk: true, ..Default::default() }).unwrap();
        let pressed = Pressure { disk: true, ..Pressure::default() };
        assert_eq!(reports.last(), pressed);
        let saved = disk.0.lock().clone();
        assert_eq!(PressureReports::new(saved.clone(), "one", disk.clone()).last(), pressed);
        assert_eq!(PressureReports::new(saved, "two", disk).last(), Pressure::default());
    }

    #[test]
    fn a_full_disk_keeps_no_report_from_counting_and_other_failures_do() {
        let disk = Arc::new(Disk::default());
        let reports = PressureReports::new(None, "one", disk.clone());
        let pressed = ReportPressureRequest { disk: true, ..Default::default() };
        *disk.1.lock() = Some(std::io::ErrorKind::PermissionDenied);
        assert!(reports.report(pressed).is_err());
        assert_eq!(reports.last(), Pressure::default());
        *disk.1.lock() = Some(std::io::ErrorKind::StorageFull);
        reports.report(pressed).unwrap();
        let counts = Pressure { disk: true, ..Pressure::default() };
        assert_eq!(reports.last(), counts);
        reports.write_down();
        assert_eq!(*disk.0.lock(), None);
        // As soon as there is room, and once.
        *disk.1.lock() = None;
        reports.write_down();
        let saved = disk.0.lock().take();
        assert_eq!(PressureReports::new(saved, "one", disk.clone()).last(), counts);
        reports.write_down();
        assert_eq!(*disk.0.lock(), None);
    }

    /// A disk that is full for the first report; while it writes a later one, housekeeping comes by.
    #[derive(Debug, Default)]
    struct Busy(OnceLock<Arc<PressureReports>>, Mutex<Vec<Saved>>);

    impl PressureStore for Busy {
        fn save(&self, pressure: &Saved) -> std::io::Result<()> {
            let Some(reports) = self.0.get() else { return Err(std::io::ErrorKind::StorageFull.into()) };
            if pressure.memory {
                reports.write_down();
            }
            self.1.lock().push(pressure.clone());
            Ok(())
        }
    }

    #[test]
    fn nothing_older_is_written_over_a_report_that_is_being_taken_in() {
        let disk = Arc::new(Busy::default());
        let reports = Arc::new(PressureReports::new(None, "one", disk.clone()));
        reports.report(ReportPressureRequest { disk: true, ..Default::default() }).unwrap();
        disk.0.set(reports.clone()).unwrap();
        reports.report(ReportPressureRequest { memory: true, ..Default::default() }).unwrap();
        let written = disk.1.lock().clone();
        assert_eq!(written, [Saved { memory: true, boot_id: "one".into(), ..Saved::default() }]);
    }
}
