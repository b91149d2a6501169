//! What a CSI driver is told. All of it is pure.
//!
//! | module | decides |
//! |---|---|
//! | [`names`] | the names that are computed: attachments, handles of inline volumes, unique volume names |
//! | [`policy`] | the access mode that a driver is told, and whether a volume is given to fsGroup |
//! | [`requests`] | the requests themselves |

pub mod names;
pub mod policy;
pub mod requests;
