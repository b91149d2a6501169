//! Compiles the internal API. The descriptor set and the services' names go to OUT_DIR too: reflection serves them.

use prost::Message as _;

/// Proto files, below `kubelet/`.
const FILES: [&str; 24] = [
    "common/v1/common.proto",
    "common/v1/disks.proto",
    "common/v1/flexvolume.proto",
    "common/v1/iptables.proto",
    "common/v1/journal.proto",
    "common/v1/logging.proto",
    "common/v1/traces.proto",
    "common/v1/walker.proto",
    "volnetd/v1/volnetd.proto",
    "volnetd/v1/audit.proto",
    "volnetd/v1/csi.proto",
    "volnetd/v1/shutdown.proto",
    "syncd/v1/syncd.proto",
    "syncd/v1/streams.proto",
    "syncd/v1/eviction.proto",
    "syncd/v1/images.proto",
    "syncd/v1/oom.proto",
    "syncd/v1/resources.proto",
    "syncd/v1/storage.proto",
    "syncd/v1/runtime_stats.proto",
    "syncd/v1/logs.proto",
    "evictiond/v1/evictiond.proto",
    "evictiond/v1/images.proto",
    "statusd/v1/statusd.proto",
];

/// Messages whose generated `Debug` would print secrets; `src/redact.rs` gives them one that does not.
const SECRETS: [&str; 3] =
    ["kubelet.syncd.v1.StreamUrl", "kubelet.common.v1.IscsiChap", "kubelet.common.v1.FlexSecret"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = "../../proto";
    let files: Vec<String> = FILES.iter().map(|file| format!("{root}/kubelet/{file}")).collect();
    for file in &files {
        println!("cargo::rerun-if-changed={file}");
    }
    let set = protox::compile(&files, [root])?;
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    std::fs::write(out.join("descriptors.bin"), set.encode_to_vec())?;
    let services = set.file.iter().flat_map(|file| file.service.iter().map(|one| (file.package(), one.name())));
    let names: Vec<(String, String)> =
        services.map(|(package, name)| (package.to_owned(), format!("{package}.{name}"))).collect();
    std::fs::write(out.join("services.rs"), format!("&{names:?}"))?;
    tonic_prost_build::configure().skip_debug(SECRETS).compile_fds(set)?;
    Ok(())
}
