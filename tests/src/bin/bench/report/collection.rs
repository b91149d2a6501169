//! The measured of collections of statistics, as rows.

use serde_json::json;

use super::{Row, Section};
use crate::collection::Measured;

/// What a full collection costs beside `cat`.
pub fn section(measured: &[Measured]) -> Section {
    let milliseconds = |time: std::time::Duration| time.as_secs_f64() * 1000.0;
    let rows = measured.iter().map(|one| {
        let what = format!("a full collection, {} pods, {} files", one.pods, one.files);
        Row::new(what, Some(milliseconds(one.cat)), milliseconds(one.collection), "ms")
    });
    let facts = measured.iter().map(|one| (format!("pods-{}", one.pods), json!(one.files))).collect();
    Section {
        title: "collection",
        rows: rows.collect(),
        note: "Each pod a sandbox and a container with a process each. floor = cat on the same files, same run, fastest of 9.".to_owned(),
        facts,
    }
}
