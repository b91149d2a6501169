//! Container images without a registry: an OCI archive made of the machine's static busybox, written in plain Rust.
//!
//! Format: the OCI image layout (oci-layout, index.json, blobs/sha256) in one tar file, as `ctr images import` takes it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bulkhead_types::go_arch;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{cache, machine};

/// What the recorded pods of Kubernetes' own tests name as their busybox.
pub const BUSYBOX: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
/// The same content under a name that no registry has.
pub const LOCAL_BUSYBOX: &str = "bulkhead.test/busybox:1";
/// The image of a pod sandbox: sleeps and does nothing else.
pub const PAUSE: &str = "bulkhead.test/pause:1";

/// Names under which the busybox layer is imported, and the program that runs when a pod names none.
const IMAGES: &[(&str, &[&str])] =
    &[(BUSYBOX, &["/bin/sh"]), (LOCAL_BUSYBOX, &["/bin/sh"]), (PAUSE, &["/bin/busybox", "sleep", "2147483647"])];

/// How the names of its archives begin.
const ARCHIVE: &str = "images-";

/// All names of the archive.
pub fn names() -> impl Iterator<Item = &'static str> {
    IMAGES.iter().map(|(name, _)| *name)
}

/// One image of an archive.
#[derive(Debug, Clone)]
pub(crate) struct Image<'a> {
    pub name: &'a str,
    /// Tar files, the lowest first.
    pub layers: &'a [&'a [u8]],
    pub entrypoint: &'a [&'a str],
    pub command: &'a [&'a str],
    /// `NAME=value`, besides PATH.
    pub environment: &'a [&'a str],
    /// Whom its processes run as; empty: root.
    pub user: &'a str,
}

/// The archive with all images of this module: written once for the same busybox and the same code, and kept.
///
/// # Errors
/// No static busybox on this machine, or the file cannot be written.
pub fn archive() -> Result<PathBuf> {
    let busybox = static_busybox()?;
    let facts = std::fs::metadata(&busybox).with_context(|| busybox.display().to_string())?;
    // Any change of what is written here gives another name.
    let made_of = format!("{} {} {}", busybox.display(), facts.len(), facts.mtime());
    let digest = hex(&Sha256::digest([include_str!("image.rs"), &made_of].concat()));
    cache::file(ARCHIVE, &digest[..16], write_archive)
}

fn write_archive(path: &Path) -> Result<()> {
    let layer = busybox_layer()?;
    let layers = [layer.as_slice()];
    let of = |(name, command): &(&'static str, &'static [&'static str])| Image {
        name,
        layers: &layers,
        entrypoint: &[],
        command,
        environment: &[],
        user: "",
    };
    write_images(path, &IMAGES.iter().map(of).collect::<Vec<_>>())
}

/// Gives a lab's runtime busybox under more names, each of which runs as a user of its own: name and user.
///
/// # Errors
/// The archive cannot be written, or the runtime does not take it.
pub fn import_with_users(lab: &crate::Lab, images: &[(&'static str, &'static str)]) -> Result<()> {
    let layer = busybox_layer()?;
    let layers = [layer.as_slice()];
    let of = |(name, user): &(&'static str, &'static str)| Image {
        name,
        layers: &layers,
        entrypoint: &[],
        command: &["/bin/sh"],
        environment: &[],
        user,
    };
    import(lab, &images.iter().map(of).collect::<Vec<_>>())
}

/// Gives a lab's runtime an image by this name: busybox, and this statically linked program in its root folder.
///
/// # Errors
/// The program cannot be read, the archive cannot be written, or the runtime does not take it.
pub fn import_with_program(lab: &crate::Lab, name: &str, program: &Path) -> Result<()> {
    let content = std::fs::read(program).with_context(|| format!("reading {}", program.display()))?;
    let at = program.file_name().context("a program without a name")?.to_string_lossy();
    let mut own = Tar::new(Vec::new());
    own.file(&at, 0o755, &content)?;
    let (busybox, own) = (busybox_layer()?, own.finish_into()?);
    let layers: &[&[u8]] = &[&busybox, &own];
    import(lab, &[Image { name, layers, entrypoint: &[], command: &["/bin/sh"], environment: &[], user: "" }])
}

/// Makes these images known to the lab's runtime.
///
/// # Errors
/// The archive cannot be written, or the runtime does not take it.
pub(crate) fn import(lab: &crate::Lab, images: &[Image<'_>]) -> Result<()> {
    let archive = lab.folder().join("images.tar");
    write_images(&archive, images)?;
    lab.containerd().import(&archive, &images.iter().map(|image| image.name).collect::<Vec<_>>())?;
    std::fs::remove_file(&archive).context("removing the image archive")
}

/// Writes an archive with these images.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write_images(path: &Path, images: &[Image<'_>]) -> Result<()> {
    let mut archive = Tar::new(BufWriter::new(
        File::create(path).with_context(|| format!("creating the image archive {}", path.display()))?,
    ));
    archive.folder("blobs", 0o755)?;
    archive.folder("blobs/sha256", 0o755)?;
    archive.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    let mut manifests = Vec::new();
    let mut written: BTreeMap<*const u8, String> = BTreeMap::new();
    for image in images {
        let mut layers = Vec::new();
        let mut diffs = Vec::new();
        for layer in image.layers {
            let digest = match written.get(&layer.as_ptr()) {
                Some(digest) => digest.clone(),
                None => archive.blob(layer)?,
            };
            written.insert(layer.as_ptr(), digest.clone());
            diffs.push(format!("sha256:{digest}"));
            layers.push(json!({
                "mediaType": "application/vnd.oci.image.layer.v1.tar",
                "digest": format!("sha256:{digest}"),
                "size": layer.len(),
            }));
        }
        let mut environment = vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"];
        environment.extend(image.environment);
        let mut config = json!({
            "architecture": go_arch(),
            "os": "linux",
            "config": {"Env": environment, "Cmd": image.command},
            "rootfs": {"type": "layers", "diff_ids": diffs},
            // Two images with the same content would be one image with two names: the name keeps their ids apart.
            "history": [{"created_by": image.name}],
        });
        if !image.entrypoint.is_empty() {
            config["config"]["Entrypoint"] = json!(image.entrypoint);
        }
        if !image.user.is_empty() {
            config["config"]["User"] = json!(image.user);
        }
        let config = config.to_string();
        let config_digest = archive.blob(config.as_bytes())?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": format!("sha256:{config_digest}"),
                "size": config.len(),
            },
            "layers": layers,
        })
        .to_string();
        let manifest_digest = archive.blob(manifest.as_bytes())?;
        manifests.push(json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": format!("sha256:{manifest_digest}"),
            "size": manifest.len(),
            "annotations": {"io.containerd.image.name": image.name, "org.opencontainers.image.ref.name": image.name},
            "platform": {"architecture": go_arch(), "os": "linux"},
        }));
    }
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests,
    });
    archive.file("index.json", 0o644, index.to_string().as_bytes())?;
    archive.finish()
}

/// The machine's static busybox with all its names, as a layer.
///
/// # Errors
/// No static busybox on this machine.
pub(crate) fn busybox_layer() -> Result<Vec<u8>> {
    let busybox = static_busybox()?;
    let program = std::fs::read(&busybox).with_context(|| format!("reading {}", busybox.display()))?;
    let applets = machine::run(&busybox.to_string_lossy(), &["--list"])?;
    layer(&program, &applets)
}

fn static_busybox() -> Result<PathBuf> {
    machine::static_busybox().context("there is no static busybox (package busybox-static)")
}

fn layer(busybox: &[u8], applets: &str) -> Result<Vec<u8>> {
    let mut layer = Tar::new(Vec::new());
    for folder in ["bin", "etc", "dev", "proc", "sys", "root", "usr", "usr/bin", "usr/sbin", "sbin", "var", "home"] {
        layer.folder(folder, 0o755)?;
    }
    layer.folder("tmp", 0o1777)?;
    layer.file("bin/busybox", 0o755, busybox)?;
    for applet in applets.lines().map(str::trim).filter(|name| !name.is_empty() && *name != "busybox") {
        layer.link(&format!("bin/{applet}"), "busybox")?;
    }
    layer.file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")?;
    layer.file("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n")?;
    layer.finish_into()
}

/// A writer of the ustar format, with no more of it than an image layer needs.
pub(crate) struct Tar<W: Write> {
    out: W,
}

const BLOCK: usize = 512;

impl<W: Write> Tar<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out }
    }

    fn blob(&mut self, content: &[u8]) -> Result<String> {
        let digest = hex(&Sha256::digest(content));
        self.file(&format!("blobs/sha256/{digest}"), 0o644, content)?;
        Ok(digest)
    }

    pub(crate) fn folder(&mut self, name: &str, mode: u32) -> Result<()> {
        self.entry(&format!("{name}/"), b'5', mode, "", &[])
    }

    pub(crate) fn file(&mut self, name: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.entry(name, b'0', mode, "", content)
    }

    pub(crate) fn link(&mut self, name: &str, target: &str) -> Result<()> {
        self.entry(name, b'2', 0o777, target, &[])
    }

    fn entry(&mut self, name: &str, kind: u8, mode: u32, target: &str, content: &[u8]) -> Result<()> {
        self.write_entry(name, kind, mode, target, content).with_context(|| format!("writing {name} into an archive"))
    }

    fn write_entry(&mut self, name: &str, kind: u8, mode: u32, target: &str, content: &[u8]) -> io::Result<()> {
        let mut header = [0u8; BLOCK];
        put(&mut header, 0, 100, name.as_bytes())?;
        put(&mut header, 100, 8, format!("{mode:07o}").as_bytes())?;
        put(&mut header, 108, 8, b"0000000")?;
        put(&mut header, 116, 8, b"0000000")?;
        put(&mut header, 124, 12, format!("{:011o}", content.len()).as_bytes())?;
        // A fixed time, so that the same busybox always gives the same digests.
        put(&mut header, 136, 12, b"00000000000")?;
        put(&mut header, 148, 8, b"        ")?;
        header[156] = kind;
        put(&mut header, 157, 100, target.as_bytes())?;
        put(&mut header, 257, 8, b"ustar\x0000")?;
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        put(&mut header, 148, 8, format!("{sum:06o}\0 ").as_bytes())?;
        self.out.write_all(&header)?;
        self.out.write_all(content)?;
        let rest = content.len() % BLOCK;
        if rest != 0 {
            self.out.write_all(&[0u8; BLOCK][rest..])?;
        }
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        self.out.write_all(&[0u8; 2 * BLOCK])?;
        self.out.flush()
    }

    fn finish(mut self) -> Result<()> {
        self.end().context("ending an archive")
    }
}

impl Tar<Vec<u8>> {
    pub(crate) fn finish_into(mut self) -> Result<Vec<u8>> {
        self.end()?;
        Ok(self.out)
    }
}

fn put(header: &mut [u8; BLOCK], at: usize, width: usize, value: &[u8]) -> io::Result<()> {
    if value.len() > width {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too long for a ustar header"));
    }
    header[at..at + value.len()].copy_from_slice(value);
    Ok(())
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_the_sum_that_tar_checks() {
        let mut tar = Tar::new(Vec::new());
        tar.file("a", 0o644, b"hello").unwrap();
        let bytes = tar.finish_into().unwrap();
        assert_eq!(bytes.len() % BLOCK, 0);
        let stored = u32::from_str_radix(std::str::from_utf8(&bytes[148..154]).unwrap(), 8).unwrap();
        let sum: u32 = bytes[..BLOCK]
            .iter()
            .enumerate()
            .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) })
            .sum();
        assert_eq!(stored, sum);
        assert_eq!(&bytes[BLOCK..BLOCK + 5], b"hello");
    }

    #[test]
    fn a_name_that_does_not_fit_is_refused() {
        assert!(Tar::new(Vec::new()).file(&"x".repeat(101), 0o644, b"").is_err());
    }
}
