//! As much of D-Bus as the node needs: calls to systemd and logind that are built in code, their replies, and one signal.
//!
//! | module | what it is |
//! |---|---|
//! | `wire` | messages as bytes |
//! | [`bus`] | one connection to the system bus |
//! | [`login1`] | what is asked of logind |

pub mod bus;
pub mod login1;
pub(crate) mod wire;
