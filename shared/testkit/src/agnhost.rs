//! The image that Kubernetes' own tests call agnhost: our stand-in for its program (the tests' program `agnhost`, which
//! says what it can do) on top of the busybox image, with the libraries that it is linked with.
//!
//! A test with a lab makes the image known to its runtime, then uses it as upstream's:
//!
//! ```ignore
//! agnhost::import(&lab, env!("CARGO_BIN_EXE_agnhost"))?;
//! let container = json!({"name": "main", "image": agnhost::IMAGE, "args": ["netexec", "--http-port=8080"]});
//! ```
//!
//! Its servers take connections [`LISTEN_AFTER_MS`] after their start: the first probes of the recorded pods were refused,
//! and those of a probe with a period of a second are made within the first second. A container that is to listen at once
//! has `LISTEN_AFTER_MS: "0"` in its environment. `/localhost.crt` and `/localhost.key` are for `--tls-cert-file` and
//! `--tls-private-key-file`.

use std::path::Path;

use anyhow::Result;

use crate::Lab;
use crate::image::{self, Image, Tar};
use crate::linked::{self, without_symbols};
use bulkhead_apiserver::authority::Authority;

/// What the recorded pods name.
pub const IMAGE: &str = "registry.k8s.io/e2e-test-images/agnhost:2.63.0";
/// Milliseconds between the start of a server and its first connection, where the container's environment says no other.
pub const LISTEN_AFTER_MS: u16 = 1200;

/// Packs `program`, and makes the image known to the lab's runtime.
///
/// # Errors
/// A file cannot be read, or the runtime did not take the image.
pub fn import(lab: &Lab, program: impl AsRef<Path>) -> Result<()> {
    let stripped = lab.folder().join("agnhost.stripped");
    let own = layer(&without_symbols(program.as_ref(), &stripped));
    let _ = std::fs::remove_file(stripped);
    let (busybox, own) = (image::busybox_layer()?, own?);
    let pause = format!("LISTEN_AFTER_MS={LISTEN_AFTER_MS}");
    let image = Image {
        name: IMAGE,
        layers: &[&busybox, &own],
        entrypoint: &["/agnhost"],
        command: &["pause"],
        environment: &[&pause],
        user: "",
    };
    image::import(lab, &[image])
}

fn layer(program: &Path) -> Result<Vec<u8>> {
    let mut layer = Tar::new(Vec::new());
    linked::add(&mut layer, program, "agnhost")?;
    let pair = Authority::new()?.server(&["localhost"], &[])?;
    layer.file("localhost.crt", 0o644, pair.certificate.as_bytes())?;
    layer.file("localhost.key", 0o644, pair.key.as_bytes())?;
    layer.finish_into()
}
