//! Compiles the protocol of device plugins, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    // Maps in order, so that equal answers are equal bytes: they stand in the checkpoint.
    let protocol = tonic_prost_build::configure().btree_map(".").generate_default_stubs(true);
    protocol.compile_fds(protox::compile(["deviceplugin/v1beta1/api.proto"], ["proto"])?)?;
    Ok(())
}
