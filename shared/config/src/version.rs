//! The version that is reported: the Kubernetes version that this node agent stands in for, and our own behind it.

/// Kubernetes minor version, for rules such as `showHiddenMetricsForVersion`.
pub const MINOR: u32 = 36;
/// Kubernetes release whose kubelet this is a drop-in for.
pub const KUBERNETES: &str = "v1.36.0";

/// `v1.36.0-bulkhead.0.1.0`: a pre-release by semver's order, as tools that compare versions expect of a build.
pub fn reported() -> String {
    format!("{KUBERNETES}-bulkhead.{}", env!("CARGO_PKG_VERSION"))
}

/// `--version=raw`: the whole of it, in the form that Go prints.
pub fn raw() -> String {
    format!(
        "version.Info{{Major:\"1\", Minor:\"{MINOR}\", GitVersion:{:?}, GitTreeState:\"clean\", Compiler:\"rustc\", Platform:\"{}/{}\"}}",
        reported(),
        std::env::consts::OS,
        std::env::consts::ARCH
    )
}
