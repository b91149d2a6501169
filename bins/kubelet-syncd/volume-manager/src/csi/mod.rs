//! What a CSI driver is told. All of it is pure.
//!
//! | module | decides |
//! |---|---|
//! | [`policy`] | the access mode that a driver is told, and whether a volume is given to fsGroup |
//! | [`requests`] | the requests themselves |

pub mod policy;
pub mod requests;
