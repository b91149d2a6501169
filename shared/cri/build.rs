//! Makes the stubs of the CRI and of containerd's event service, without protoc.

/// Messages whose generated `Debug` would print secrets; `src/redact.rs` gives them one that does not.
const SECRETS: [&str; 5] = [
    "runtime.v1.AuthConfig",
    "runtime.v1.KeyValue",
    "runtime.v1.ExecResponse",
    "runtime.v1.AttachResponse",
    "runtime.v1.PortForwardResponse",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    // Maps in order, so that equal requests are equal bytes (tests and recordings compare them).
    // Default stubs answer UNIMPLEMENTED: a test's stand-in for a runtime writes only the methods it needs.
    let cri = tonic_prost_build::configure().btree_map(".").skip_debug(SECRETS).generate_default_stubs(true);
    cri.compile_fds(protox::compile(["runtime/v1/api.proto"], ["proto"])?)?;
    // Apart from the CRI: package names of external APIs may clash.
    let own = ["containerd/events.proto", "containerd/payload.proto", "containerd/tasks.proto"];
    let events = protox::compile(own, ["proto"])?;
    tonic_prost_build::configure().generate_default_stubs(true).compile_fds(events)?;
    Ok(())
}
