//! The protocols of plugins, as generated: the Container Storage Interface, and the registration by which a plugin becomes known.
//!
//! Messages whose fields hold secrets print none of their values.

mod redact;

/// `csi.v1`: messages, clients, and servers for tests that stand in for a driver.
#[allow(missing_debug_implementations, clippy::doc_lazy_continuation)]
pub mod v1 {
    tonic::include_proto!("csi.v1");
}

/// `Registration`, by which a plugin says what it is, and is told whether it was taken.
#[allow(missing_debug_implementations)]
pub mod registration {
    /// What registrars serve.
    pub mod v1 {
        tonic::include_proto!("pluginregistration");
    }
    /// The older name of the same service.
    pub mod v1beta1 {
        tonic::include_proto!("v1beta1");
    }
}
