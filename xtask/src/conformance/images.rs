//! The images that specs name. A runtime with a way to their registry pulls them before the specs begin; for one without,
//! they are given as archives, or a command brings them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bulkhead_testkit::{Cluster, Lab, build, device_plugin, image, machine, wait};
use parking_lot::Mutex;

use super::Programs;

/// What the specs about nodes run, by the image's name without registry and tag. e2e.test names dozens more, gigabytes,
/// that only specs about other things want; those are left to be pulled when a spec asks for one.
const OF_NODE_SPECS: &[&str] =
    &["agnhost", "busybox", "nonewprivs", "nonroot", "ipc-utils", "glibc-dns-testing", "nginx"];
/// Of these, the ones without which next to nothing passes.
const INDISPENSABLE: &[&str] = &["agnhost", "busybox"];
/// Registries that have no such image on purpose: specs expect the failure.
const MEANT_TO_FAIL: &[&str] = &["invalid.registry.k8s.io/", "gcr.io/k8s-authenticated-test/"];

/// What the command line says about images.
#[derive(Debug, Default)]
pub struct Sources {
    /// OCI archives, or folders of them.
    pub archives: Vec<PathBuf>,
    /// Run by the shell, with `ctr`'s variables set.
    pub command: Option<String>,
    /// This project's plugin takes the place of the one that specs about devices deploy.
    pub device_plugin: bool,
}

/// All images that e2e.test may ask for.
fn wanted(programs: &Programs) -> Result<BTreeSet<String>> {
    let listed = machine::run(&programs.path("e2e.test").display().to_string(), &["--list-images"])?;
    let names = listed.split_whitespace().filter(|name| !MEANT_TO_FAIL.iter().any(|prefix| name.starts_with(prefix)));
    Ok(names.map(str::to_owned).collect())
}

/// `agnhost` for `registry.k8s.io/e2e-test-images/agnhost:2.55`.
fn short(image: &str) -> &str {
    let name = image.rsplit('/').next().unwrap_or(image);
    name.split(':').next().unwrap_or(name)
}

fn present(lab: &Lab) -> Result<BTreeSet<String>> {
    Ok(lab.containerd().ctr(&["images", "ls", "--quiet"])?.lines().map(str::to_owned).collect())
}

/// Brings images into the lab's runtime.
///
/// # Errors
/// An archive cannot be imported, the command failed, or an image without which nothing works cannot be had.
pub fn provide(lab: &Lab, programs: &Programs, sources: &Sources, say: &dyn Fn(&str)) -> Result<()> {
    let wanted = wanted(programs)?;
    // The lab's own busybox bears the name of the one that the specs mean.
    lab.containerd().ctr(&["images", "rm", "--sync", image::BUSYBOX])?;
    for archive in archives(&sources.archives)? {
        say(&format!("importing {}", archive.display()));
        lab.containerd().ctr(&["images", "import", &archive.display().to_string()])?;
    }
    if let Some(command) = &sources.command {
        say(&format!("sh -c {command:?}"));
        let status = Command::new("sh")
            .args(["-c", command])
            .env("CONTAINERD_ADDRESS", lab.containerd().socket())
            .env("CONTAINERD_NAMESPACE", "k8s.io")
            .status()
            .context("starting the command that brings images")?;
        if !status.success() {
            bail!("the command that brings images ended with {status}");
        }
    }
    if sources.device_plugin {
        say(&format!("{} is the tests' own plugin", device_plugin::SAMPLE_IMAGE));
        let built = ["build", "--locked", "--quiet", "--package", "bulkhead-tests", "--bin", "device_plugin"];
        crate::checks::cargo(&built)?;
        device_plugin::import_sample(lab, &build::target_dir().join("debug").join("device_plugin"))?;
    }
    let there = present(lab)?;
    let mut missing = Vec::new();
    for name in wanted.difference(&there).filter(|name| OF_NODE_SPECS.contains(&short(name))) {
        if wait::interrupted() {
            bail!("interrupted");
        }
        say(&format!("pulling {name}"));
        // By ctr, whose requests leave from here: the runtime itself is in a network namespace without a way out.
        if let Err(error) = lab.containerd().ctr(&["images", "pull", name]) {
            missing.push((name, error));
        }
    }
    let list = || missing.iter().map(|(name, _)| format!("  {name}")).collect::<Vec<_>>().join("\n");
    if let Some((_, error)) = missing.iter().find(|(name, _)| INDISPENSABLE.contains(&short(name))) {
        bail!(
            "the specs want these images, and they can neither be found nor be pulled:\n{}\n({error:#})\n\
             Give them with --images (OCI archives that hold them by these names) or --images-command; \
             `e2e.test --list-images` names all",
            list()
        );
    }
    if !missing.is_empty() {
        say(&format!("specs that need these images will fail, they cannot be pulled:\n{}", list()));
    }
    Ok(())
}

fn archives(given: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for path in given {
        if !path.is_dir() {
            all.push(path.clone());
            continue;
        }
        let mut found: Vec<PathBuf> = std::fs::read_dir(path)
            .with_context(|| format!("reading {}", path.display()))?
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "tar"))
            .collect();
        if found.is_empty() {
            bail!("--images {}: there is no archive (*.tar) in this folder", path.display());
        }
        found.sort();
        all.append(&mut found);
    }
    match all.iter().find(|path| !path.is_file()) {
        Some(path) => bail!("--images {}: there is no such file", path.display()),
        None => Ok(all),
    }
}

/// How long the listener may be away from the question whether it is to end.
const LOOK: Duration = Duration::from_secs(1);

/// Listens to the node's events while specs run, for images that it could not pull: they are gone with their namespaces.
#[derive(Debug)]
pub struct FailedPulls {
    end: Arc<AtomicBool>,
    found: Arc<Mutex<BTreeSet<String>>>,
    thread: std::thread::JoinHandle<()>,
}

impl FailedPulls {
    /// Begins to listen.
    ///
    /// # Errors
    /// e2e.test does not say which images it wants.
    pub fn listen(cluster: &Cluster, programs: &Programs) -> Result<Self> {
        let wanted = wanted(programs)?;
        let (end, found) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(BTreeSet::new())));
        let (cluster, ended, noted) = (cluster.clone(), end.clone(), found.clone());
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::SeqCst) {
                // The server ends a watch now and then; what is lost between two is told again by the next failure.
                let Ok(mut events) = cluster.watch("events", None, "fieldSelector=reason%3DFailed") else {
                    std::thread::sleep(LOOK);
                    continue;
                };
                while !ended.load(Ordering::SeqCst) {
                    let asked = Instant::now();
                    match events.next(LOOK) {
                        Ok(Some(event)) => {
                            let message = event.object["message"].as_str().unwrap_or_default();
                            if let Some(image) = image_of(message).filter(|image| wanted.contains(*image)) {
                                noted.lock().insert(image.to_owned());
                            }
                        }
                        Ok(None) => break,
                        // Nothing has happened; a broken watch says so at once.
                        Err(_) if asked.elapsed() >= LOOK => {}
                        Err(_) => break,
                    }
                }
            }
        });
        Ok(Self { end, found, thread })
    }

    /// The images, now that all specs have ended.
    pub fn finish(self) -> BTreeSet<String> {
        self.end.store(true, Ordering::SeqCst);
        // A thread that panicked has said so; what it had found counts.
        let _ = self.thread.join();
        self.found.lock().clone()
    }
}

/// The image in the kubelet's message `Failed to pull image "...": ...`.
fn image_of(message: &str) -> Option<&str> {
    message.strip_prefix("Failed to pull image \"")?.split('"').next()
}

/// Whether the path of an image archive or a kubelet is one, for the command line.
pub fn existing(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path)
        .ok()
        .filter(|path| path.exists())
        .with_context(|| format!("{} does not exist", path.display()))
}
