//! Both versions, as generated: messages, servers, and the clients that a test asks with.

/// Served by kubelets since 1.20.
#[allow(missing_debug_implementations)]
pub mod v1 {
    tonic::include_proto!("v1");
}

/// Of devices alone.
#[allow(missing_debug_implementations)]
pub mod v1alpha1 {
    tonic::include_proto!("v1alpha1");
}
