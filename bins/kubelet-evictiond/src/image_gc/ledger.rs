//! Since when an image has been there, and when it was seen used last (upstream imageRecord). Pure.
//!
//! Upstream loses this with each restart of the kubelet; here it is kept, so that the order of images outlives a restart, and none
//! is young anew. Times are milliseconds since boot: a clock that is set changes no age. Of another boot only ages are known, as they
//! were when they were written: the time between the two boots makes nobody older.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_daemon::state_file;
use bulkhead_ipc::syncd::StoredImage;
use serde::{Deserialize, Serialize};

/// The form of the state file.
pub const VERSION: u64 = 1;

/// One image. Of another boot than this one times are below zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub first_detected_ms: i64,
    /// None: it was never seen used.
    #[serde(default)]
    pub last_used_ms: Option<i64>,
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ledger {
    pub boot_id: String,
    /// When it was written.
    pub saved_ms: i64,
    /// By the runtime's id.
    #[serde(deserialize_with = "state_file::map")]
    pub images: BTreeMap<String, Record>,
}

impl Ledger {
    /// What was read from the disk, in this boot's time.
    #[must_use]
    pub fn of_boot(mut self, boot_id: &str, now_ms: i64) -> Self {
        let is_other = self.boot_id != boot_id;
        let saved = self.saved_ms;
        // Nothing has happened later than it was written, and nothing later than now.
        let moved = |at: i64| {
            let at = at.min(saved);
            let at = if is_other { now_ms.saturating_sub(saved.saturating_sub(at)) } else { at };
            at.min(now_ms)
        };
        for record in self.images.values_mut() {
            record.first_detected_ms = moved(record.first_detected_ms);
            record.last_used_ms = record.last_used_ms.map(moved);
        }
        boot_id.clone_into(&mut self.boot_id);
        self.saved_ms = now_ms;
        self
    }

    /// What there is now (upstream detectImages): what is new is noted, what is used was used now, what is gone is forgotten.
    pub fn detect(&mut self, images: &[StoredImage], now_ms: i64) {
        let there: BTreeSet<&str> = images.iter().map(|image| image.id.as_str()).collect();
        self.images.retain(|id, _| there.contains(id.as_str()));
        for image in images {
            let record =
                self.images.entry(image.id.clone()).or_insert(Record { first_detected_ms: now_ms, last_used_ms: None });
            // A start between two detections is known to kubelet-syncd.
            let started = i64::try_from(image.last_used_ms).ok().filter(|at| *at > 0).map(|at| at.min(now_ms));
            let seen = if image.uses > 0 { Some(now_ms) } else { started };
            record.last_used_ms = record.last_used_ms.max(seen);
        }
    }

    pub fn get(&self, id: &str) -> Option<&Record> {
        self.images.get(id)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(in super::super) fn image(id: &str, size_bytes: u64, uses: u32) -> StoredImage {
        StoredImage { id: id.into(), size_bytes, uses, ..StoredImage::default() }
    }

    /// Upstream's published cases of detection: the first one, a new image, a container that stopped, images that went.
    #[test]
    fn detection() {
        let mut ledger = Ledger::default();
        ledger.detect(&[image("a", 1024, 0), image("b", 2048, 1), image("c", 2048, 1)], 0);
        let record = |first, last| Some(Record { first_detected_ms: first, last_used_ms: last });
        let of = |ledger: &Ledger, id: &str| ledger.get(id).copied();
        assert_eq!((of(&ledger, "a"), of(&ledger, "b")), (record(0, None), record(0, Some(0))));
        ledger.detect(&[image("a", 1024, 0), image("b", 1024, 1), image("d", 1024, 0)], 1000);
        assert_eq!((of(&ledger, "a"), of(&ledger, "b")), (record(0, None), record(0, Some(1000))));
        assert_eq!((of(&ledger, "c"), of(&ledger, "d")), (None, record(1000, None)));
        ledger.detect(&[image("a", 1024, 0), image("b", 1024, 0)], 2000);
        assert_eq!((of(&ledger, "b"), ledger.images.len()), (record(0, Some(1000)), 2));
        ledger.detect(&[], 3000);
        assert!(ledger.images.is_empty());
        // It came back: it is a new one.
        ledger.detect(&[image("a", 1024, 0)], 4000);
        assert_eq!(of(&ledger, "a"), record(4000, None));
        // A start between two detections, and one that is said to come.
        ledger.detect(&[StoredImage { last_used_ms: 4500, ..image("a", 1, 0) }], 5000);
        assert_eq!(of(&ledger, "a"), record(4000, Some(4500)));
        ledger.detect(&[StoredImage { last_used_ms: 9000, ..image("a", 1, 0) }], 6000);
        assert_eq!(of(&ledger, "a"), record(4000, Some(6000)));
    }

    proptest! {
        /// No restart, of the process or of the machine, makes an image older than it was plus the time that was watched, and none
        /// changes the order.
        #[test]
        fn a_restart_makes_nobody_old(
            times in proptest::collection::vec((0_i64..1_000_000, proptest::option::of(0_i64..1_000_000)), 1..8),
            saved in 1_000_000_i64..2_000_000,
            now in 0_i64..3_000_000,
            same_boot: bool,
        ) {
            let now = if same_boot { saved + now } else { now };
            let images: BTreeMap<String, Record> = times.iter().enumerate().map(|(number, (first, last))| {
                (number.to_string(), Record { first_detected_ms: *first, last_used_ms: *last })
            }).collect();
            let before = Ledger { boot_id: "b".into(), saved_ms: saved, images };
            let bytes = state_file::encode(VERSION, &before).unwrap();
            let read: Ledger = serde_json::from_slice(&bytes).unwrap();
            prop_assert_eq!(&read, &before);
            let after = read.of_boot(if same_boot { "b" } else { "c" }, now);
            let watched = if same_boot { now - saved } else { 0 };
            for (id, record) in &before.images {
                let moved = after.images[id];
                prop_assert_eq!(now - moved.first_detected_ms, saved - record.first_detected_ms + watched);
                prop_assert_eq!(moved.last_used_ms.map(|at| now - at), record.last_used_ms.map(|at| saved - at + watched));
            }
        }

        /// Whatever stands in the file, nothing lies in the future.
        #[test]
        fn nothing_lies_in_the_future(first: i64, last: Option<i64>, saved: i64, now in 0_i64..i64::MAX, same_boot: bool) {
            let images = [("a".to_owned(), Record { first_detected_ms: first, last_used_ms: last })].into();
            let ledger = Ledger { boot_id: "b".into(), saved_ms: saved, images };
            let record = ledger.of_boot(if same_boot { "b" } else { "c" }, now).images["a"];
            prop_assert!(record.first_detected_ms <= now && record.last_used_ms.is_none_or(|at| at <= now));
        }
    }
}
