//! The protocol of device plugins, as generated: `Registration`, which the kubelet serves, and `DevicePlugin`, which plugins do.

/// The one version that there is.
#[allow(missing_debug_implementations)]
pub mod v1beta1 {
    tonic::include_proto!("v1beta1");
}

/// The protocol's version as a plugin names it.
pub const VERSION: &str = "v1beta1";
/// What a plugin says of a device that can be used; every other word means that it cannot.
pub const HEALTHY: &str = "Healthy";
/// The usual other word.
pub const UNHEALTHY: &str = "Unhealthy";
