//! The privilege map: for each process its user, what it may do, what it is denied, whom it serves. The one source for the
//! launcher that gives privileges, the processes that drop to their row, the command that compares map and reality, and
//! the tests of all of them.
//!
//! | module | decides |
//! |---|---|
//! | [`row`] | the table |
//! | [`fences`] | which paths and ports Landlock leaves to whom |
//!
//! **Invariant:** no act, no policy beyond the table. `bulkhead_daemon::privileges` applies a row, decision 32 says why
//! each is what it is.

pub mod fences;
pub mod row;

pub use fences::{Fencing, METADATA_ADDRESSES, XTABLES_LOCK};
pub use row::{Bounding, Program, Row, RunsPrograms, Serves, User};
