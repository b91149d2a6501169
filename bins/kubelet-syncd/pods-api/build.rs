//! Compiles the pods API, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    tonic_prost_build::configure().compile_fds(protox::compile(["pods/v1alpha1/api.proto"], ["proto"])?)?;
    Ok(())
}
