//! Compiles the internal API. The descriptor set goes to OUT_DIR too: reflection serves it.

use prost::Message as _;

const PACKAGES: [&str; 5] = ["common", "volnetd", "syncd", "evictiond", "statusd"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = "../../proto";
    let files: Vec<String> = PACKAGES.iter().map(|p| format!("{root}/kubelet/{p}/v1/{p}.proto")).collect();
    for file in &files {
        println!("cargo::rerun-if-changed={file}");
    }
    let set = protox::compile(&files, [root])?;
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    std::fs::write(out.join("descriptors.bin"), set.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(set)?;
    Ok(())
}
