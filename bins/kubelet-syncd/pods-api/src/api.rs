//! The messages, server and client, as generated.

/// Alpha, since 1.36.
#[allow(missing_debug_implementations)]
pub mod v1alpha1 {
    tonic::include_proto!("v1alpha1");
}
