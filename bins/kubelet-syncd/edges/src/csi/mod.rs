//! The drivers of the Container Storage Interface: which of them can be called now, and their eight Node calls as a trait.
//!
//! Upstream's `pkg/volume/csi/{csi_client,csi_drivers_store}.go`.
//! A module uses only those above it in this table.
//!
//! | module | decides |
//! |---|---|
//! | [`connection`] | nothing: one connection to a plugin's socket, and one call on it |
//! | [`error`] | whether a call that failed may have changed something |
//! | [`version`] | which of the versions that a driver names counts |
//! | [`drivers`] | nothing: the drivers that are registered now |
//! | [`node`] | how long a call may take |

pub mod connection;
pub mod drivers;
pub mod error;
pub mod node;
pub mod version;

pub use connection::{BrokerDialer, Dial, PluginAddress};
pub use drivers::{Driver, Drivers};
pub use error::{CsiError, Outcome};
pub use node::{CSI_TIMEOUT, CallObserver, CsiClient, CsiNode};
pub use version::Version;
