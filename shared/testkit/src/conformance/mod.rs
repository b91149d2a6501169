//! What upstream's end-to-end specs say about a node: the runner's output while they run, its report at the end, and
//! the list of specs that upstream's kubelet passes, with which the report is compared. Nothing here runs anything.

mod passed_list;
mod progress;
mod report;

pub use passed_list::{Comparison, Header, PassedList};
pub use progress::{Progress, Update};
pub use report::{Outcome, Report, Spec};
