//! Compiles the two versions of the pod resources API, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    for version in ["v1", "v1alpha1"] {
        let file = format!("podresources/{version}/api.proto");
        tonic_prost_build::configure().compile_fds(protox::compile([file], ["proto"])?)?;
    }
    Ok(())
}
