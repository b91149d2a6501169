//! Compiles what kubelets ask of DRA drivers, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    // Maps in order, so that equal requests are equal bytes. A method that a test's driver does not write answers UNIMPLEMENTED.
    for file in ["dra/v1/api.proto", "dra/v1beta1/api.proto", "dra-health/v1alpha1/api.proto"] {
        let service = tonic_prost_build::configure().btree_map(".").generate_default_stubs(true);
        service.compile_fds(protox::compile([file], ["proto"])?)?;
    }
    Ok(())
}
