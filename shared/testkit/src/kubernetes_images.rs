//! The images that kubeadm names for a control plane, made of upstream's own programs where no registry is reached: each a
//! static program where its image has it, and nothing else.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use sha2::{Digest, Sha256};

use crate::cache;
use crate::cluster::ASSETS;
use crate::image::{self, Image, Tar, hex};

/// The release that the images are called after, as `kubernetesVersion` of kubeadm's configuration.
pub const VERSION: &str = "v1.36.2";
/// `etcd.local.imageTag` of kubeadm's configuration.
pub const ETCD: &str = "3.6.8-0";
/// Names without tags, which are the programs', too.
const PROGRAMS: [&str; 4] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd"];
/// A sandbox's image that ends when it is asked to, as upstream's, so that a machine goes down without waiting for it; and
/// what kubeadm's Job before an upgrade runs, with `-v`.
pub const PAUSE: &str = "registry.k8s.io/pause:3.10.2";
const PAUSE_SCRIPT: &str = r#"[ "$1" = -v ] && exec echo pause.c; trap 'exit 0' TERM INT; sleep 2147483647 & wait"#;

/// The folder that `KUBEBUILDER_ASSETS` names, where all is in it that a cluster of kubeadm's needs.
pub fn programs() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os(ASSETS)?);
    PROGRAMS.iter().chain(&["kubeadm", "kubectl"]).all(|program| folder.join(program).is_file()).then_some(folder)
}

/// All names of the archive.
pub fn names() -> Vec<String> {
    let tag = |program: &str| if program == "etcd" { ETCD } else { VERSION };
    let mut all: Vec<_> =
        PROGRAMS.iter().map(|program| format!("registry.k8s.io/{program}:{}", tag(program))).collect();
    all.push(PAUSE.to_owned());
    all
}

/// The archive with all of them: written once for the same programs and the same code, and kept.
///
/// # Errors
/// A program is missing from the folder, or the file cannot be written.
pub fn archive(programs: &Path) -> Result<PathBuf> {
    let mut made_of = concat!(include_str!("image.rs"), include_str!("kubernetes_images.rs")).to_owned();
    for program in PROGRAMS {
        let path = programs.join(program);
        let facts = std::fs::metadata(&path).with_context(|| path.display().to_string())?;
        made_of.push_str(&format!(" {} {} {}", path.display(), facts.len(), facts.mtime()));
    }
    let digest = hex(&Sha256::digest(&made_of));
    cache::file("kubernetes-images-", &digest[..16], |part| write(part, programs))
}

fn write(path: &Path, programs: &Path) -> Result<()> {
    let mut layers = Vec::new();
    for program in PROGRAMS {
        let content = std::fs::read(programs.join(program)).with_context(|| format!("reading {program}"))?;
        let mut layer = Tar::new(Vec::with_capacity(content.len()));
        for folder in ["etc", "tmp", "usr", "usr/local", "usr/local/bin"] {
            layer.folder(folder, 0o755)?;
        }
        layer.file(&format!("usr/local/bin/{program}"), 0o755, &content)?;
        layers.push(layer.finish_into()?);
    }
    layers.push(image::busybox_layer()?);
    let (names, layers): (_, Vec<[&[u8]; 1]>) = (names(), layers.iter().map(|layer| [layer.as_slice()]).collect());
    let mut images = Vec::new();
    for (name, layers) in names.iter().zip(&layers) {
        let entrypoint: &[&str] = if name == PAUSE { &["/bin/sh", "-c", PAUSE_SCRIPT, "pause"] } else { &[] };
        images.push(Image { name, layers, entrypoint, command: &[], environment: &[], user: "" });
    }
    image::write_images(path, &images)
}
