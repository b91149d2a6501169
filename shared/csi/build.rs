//! Compiles the CSI and the plugin registration, without protoc.

/// Messages that carry secrets, or a volume's context, in which tokens may lie; `src/redact.rs` gives them a `Debug` that shows none.
const SECRETS: [&str; 3] =
    ["csi.v1.NodeStageVolumeRequest", "csi.v1.NodePublishVolumeRequest", "csi.v1.NodeExpandVolumeRequest"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    // Maps in order, so that equal requests are equal bytes (tests and recordings compare them).
    // A method that a test's driver does not write answers UNIMPLEMENTED: it writes only those that it needs.
    let csi = tonic_prost_build::configure().btree_map(".").skip_debug(SECRETS).generate_default_stubs(true);
    csi.compile_fds(protox::compile(["csi/v1/csi.proto"], ["proto"])?)?;
    for version in ["v1", "v1beta1"] {
        let registration = tonic_prost_build::configure().generate_default_stubs(true);
        let file = format!("pluginregistration/{version}/api.proto");
        registration.compile_fds(protox::compile([file], ["proto"])?)?;
    }
    Ok(())
}
