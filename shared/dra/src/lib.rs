//! What kubelets ask of drivers of dynamic resource allocation, as generated: prepare and unprepare claims (`DRAPlugin`, versions v1
//! and v1beta1), and the health of devices.

/// `DRAPlugin` as Kubernetes 1.34 and later has it.
#[allow(missing_debug_implementations)]
pub mod v1 {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");

    /// Under this name a plugin says at its registration that it serves this version.
    pub const SERVICE: &str = "v1.DRAPlugin";
}

/// `DRAPlugin` of drivers from before that: the same without shares of a device.
#[allow(missing_debug_implementations)]
pub mod v1beta1 {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1beta1");

    /// Under this name a plugin says at its registration that it serves this version.
    pub const SERVICE: &str = "v1beta1.DRAPlugin";
}

/// `DRAResourceHealth`, which a driver may serve beside.
pub mod health {
    /// The only version.
    #[allow(missing_debug_implementations)]
    pub mod v1alpha1 {
        tonic::include_proto!("v1alpha1");
    }
}
