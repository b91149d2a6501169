//! A device plugin on a node of a lab: the tests' program `device_plugin`, which misbehaves on demand. It runs on the machine itself,
//! as [`crate::csi`]'s drivers do.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::csi::process::Process;
use crate::image::{self, Image, Tar};
use crate::linked::{self, without_symbols};
use crate::{Lab, Node};

/// The image of the plugin that upstream's specs deploy, as their manifests name it.
pub const SAMPLE_IMAGE: &str = "registry.k8s.io/e2e-test-images/sample-device-plugin:1.7";

/// Makes the tests' plugin known to the lab's runtime as the one of upstream's specs: two healthy devices of the resource that they ask
/// for, and nothing given with them but a variable. The node's root directory has to be `/var/lib/kubelet`.
///
/// # Errors
/// A file cannot be read, or the runtime did not take the image.
pub fn import_sample(lab: &Lab, program: &Path) -> Result<()> {
    let stripped = lab.folder().join("device-plugin.stripped");
    let mut own = Tar::new(Vec::new());
    linked::add(&mut own, &without_symbols(program, &stripped), "device_plugin")?;
    let _ = std::fs::remove_file(stripped);
    let told = json!({"devices": [{"id": "Dev-1"}, {"id": "Dev-2"}], "bare": true}).to_string();
    own.folder("state", 0o755)?;
    own.file("state/told.json", 0o644, told.as_bytes())?;
    let (busybox, own) = (image::busybox_layer()?, own.finish_into()?);
    let image = Image {
        name: SAMPLE_IMAGE,
        layers: &[&busybox, &own],
        entrypoint: &["/device_plugin", "--resource=example.com/resource", "--root=/var/lib/kubelet", "--state=/state"],
        command: &[],
        environment: &[],
        user: "",
    };
    image::import(lab, &[image])
}

/// A plugin that runs; it ends when this is dropped.
#[derive(Debug)]
pub struct DevicePlugin {
    state: PathBuf,
    process: Process,
}

impl DevicePlugin {
    /// Starts a plugin for `resource` of a node; `program` is the tests' `device_plugin`, which says what it can be told.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(program: impl AsRef<Path>, node: &Node, resource: &str, told: &Value) -> Result<Self> {
        let state = node.lab().folder().join("device-plugins").join(resource.replace('/', "_"));
        std::fs::create_dir_all(&state).with_context(|| format!("creating {}", state.display()))?;
        tell(&state, told)?;
        let arguments = vec![
            format!("--resource={resource}"),
            format!("--root={}", node.root_dir().display()),
            format!("--state={}", state.display()),
        ];
        let process = Process::start(program.as_ref(), arguments, state.join("log"))?;
        Ok(Self { state, process })
    }

    /// From now on it offers this, and does these things wrong.
    ///
    /// # Errors
    /// Its folder cannot be written.
    pub fn tell(&self, told: &Value) -> Result<()> {
        tell(&self.state, told)
    }

    /// What it was asked by this call, oldest first, earlier lives included.
    ///
    /// # Errors
    /// A line is not whole.
    pub fn calls(&self, call: &str) -> Result<Vec<Value>> {
        let text = std::fs::read_to_string(self.state.join("calls.jsonl")).unwrap_or_default();
        let all: Vec<Value> = text.lines().map(serde_json::from_str).collect::<serde_json::Result<_>>()?;
        Ok(all.into_iter().filter(|one| one["call"] == call).map(|one| one["what"].clone()).collect())
    }

    /// SIGKILL: its socket stays, and nobody answers there.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it once more, whether it runs or not.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn again(&mut self) -> Result<()> {
        self.process.kill();
        self.process.again()
    }
}

fn tell(state: &Path, told: &Value) -> Result<()> {
    let new = state.join("told.new");
    std::fs::write(&new, told.to_string()).with_context(|| format!("writing {}", new.display()))?;
    std::fs::rename(&new, state.join("told.json")).with_context(|| format!("moving {} into place", new.display()))
}

impl Drop for DevicePlugin {
    fn drop(&mut self) {
        self.process.kill();
    }
}
