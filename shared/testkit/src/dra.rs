//! A DRA driver on a node of a lab: the tests' program `dra_driver`, which misbehaves on demand. It runs on the machine itself, as
//! [`crate::csi`]'s do, and its devices are files of CDI that the lab's runtime reads (2.x).

pub mod upstream;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::csi::process::Process;
use crate::wait::{LONG, SHORT, eventually};
use crate::{Lab, Node};

/// A driver that runs; it ends when this is dropped.
#[derive(Debug)]
pub struct DraDriver {
    name: String,
    root: PathBuf,
    state: PathBuf,
    cdi: PathBuf,
    process: Process,
}

/// What a driver was asked.
#[derive(Debug, Clone, PartialEq)]
pub struct DraCall {
    /// `NodePrepareResources`.
    pub method: String,
    /// Its claims, or what it was told.
    pub request: Value,
}

impl DraDriver {
    /// Starts a driver `name` of a node; `program` is the tests' `dra_driver`, `version` what it says that it speaks
    /// (`v1.DRAPlugin`). Waits until it is told that it is registered.
    ///
    /// # Errors
    /// It has ended, or was not registered.
    pub fn start(program: impl AsRef<Path>, lab: &Lab, node: &Node, name: &str, version: &str) -> Result<Self> {
        let (root, state) = (node.root_dir().to_owned(), lab.folder().join("dra").join(name));
        let cdi = lab.cdi_folder();
        std::fs::create_dir_all(&state).with_context(|| format!("creating {}", state.display()))?;
        let arguments = vec![
            format!("--name={name}"),
            format!("--root={}", root.display()),
            format!("--state={}", state.display()),
            format!("--cdi={}", cdi.display()),
            format!("--version={version}"),
        ];
        let process = Process::start(program.as_ref(), arguments, state.join("log"))?;
        let driver = Self { name: name.to_owned(), root, state, cdi, process };
        driver.wait_registered(1)?;
        Ok(driver)
    }

    /// Waits until it was told so often that it is registered.
    ///
    /// # Errors
    /// What it was told.
    pub fn wait_registered(&self, times: usize) -> Result<()> {
        eventually(&format!("the driver {} is registered", self.name), LONG, || {
            let calls = self.calls_of("NotifyRegistrationStatus")?;
            let told = calls.iter().filter(|call| call.request["plugin_registered"] == true).count();
            ensure!(told >= times, "{calls:?}");
            Ok(())
        })
    }

    /// All calls so far, oldest first, those of earlier lives too.
    ///
    /// # Errors
    /// There is no such file yet.
    pub fn calls(&self) -> Result<Vec<DraCall>> {
        let path = self.state.join("calls.jsonl");
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let call = |line: Value| DraCall {
            method: line["call"].as_str().unwrap_or_default().to_owned(),
            request: line["request"].clone(),
        };
        Ok(lines.map(call).collect())
    }

    /// Those of one method.
    ///
    /// # Errors
    /// As [`DraDriver::calls`].
    pub fn calls_of(&self, method: &str) -> Result<Vec<DraCall>> {
        let mut calls = self.calls()?;
        calls.retain(|call| call.method == method);
        Ok(calls)
    }

    /// Names of the claims that one method was asked for, call by call.
    ///
    /// # Errors
    /// As [`DraDriver::calls`].
    pub fn claims_of(&self, method: &str) -> Result<Vec<Vec<String>>> {
        let names = |call: DraCall| {
            let claims = call.request.as_array().cloned().unwrap_or_default();
            claims.iter().map(|claim| claim["name"].as_str().unwrap_or_default().to_owned()).collect()
        };
        Ok(self.calls_of(method)?.into_iter().map(names).collect())
    }

    /// The claims that are prepared now: those whose CDI files are there.
    pub fn prepared(&self) -> Vec<String> {
        let prefix = format!("{}-", self.name);
        let files = std::fs::read_dir(&self.cdi).into_iter().flatten().flatten();
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        let claim = |name: String| Some(name.strip_prefix(&prefix)?.strip_suffix(".json")?.to_owned());
        let mut claims: Vec<String> = names.filter_map(claim).collect();
        claims.sort();
        claims
    }

    /// From now on it does these things wrong, and no others; an empty list heals it.
    ///
    /// # Errors
    /// Its folder cannot be written.
    pub fn faults(&self, faults: &[Value]) -> Result<()> {
        self.replace("faults.json", &json!(faults))
    }

    /// From now on it tells this of its devices: `Healthy`, or what is wrong.
    ///
    /// # Errors
    /// Its folder cannot be written.
    pub fn health(&self, devices: &Value) -> Result<()> {
        self.replace("health.json", devices)
    }

    fn replace(&self, name: &str, content: &Value) -> Result<()> {
        let draft = self.state.join(format!("{name}.draft"));
        std::fs::write(&draft, content.to_string()).with_context(|| format!("writing {name}"))?;
        std::fs::rename(&draft, self.state.join(name)).with_context(|| format!("moving {name} into place"))
    }

    /// SIGTERM: it takes its sockets away, as a driver that is deleted.
    pub fn stop(&mut self) {
        self.process.stop();
    }

    /// SIGKILL: its sockets stay, and nobody answers there.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it once more, with new sockets, and waits until it serves.
    ///
    /// # Errors
    /// It has ended.
    pub fn again(&mut self) -> Result<()> {
        self.process.kill();
        let socket = self.root.join("plugins").join(&self.name).join("dra.sock");
        let registration = self.root.join("plugins_registry").join(format!("{}-reg.sock", self.name));
        for socket in [&socket, &registration] {
            let _ = std::fs::remove_file(socket);
        }
        self.process.again()?;
        eventually(&format!("the driver {} serves", self.name), SHORT, || {
            std::os::unix::net::UnixStream::connect(&registration)
                .map(drop)
                .with_context(|| format!("{}", registration.display()))
        })
    }
}

impl Drop for DraDriver {
    fn drop(&mut self) {
        self.stop();
    }
}
