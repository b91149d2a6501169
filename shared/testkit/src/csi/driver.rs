//! The driver of our own, as a process: what it is told, what it was asked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::process::Process;
use crate::wait::{LONG, SHORT, eventually};
use crate::{Node, loops, mounts};

/// What drivers can do unless a test says otherwise.
const CAPABILITIES: [&str; 4] =
    ["STAGE_UNSTAGE_VOLUME", "GET_VOLUME_STATS", "EXPAND_VOLUME", "SINGLE_NODE_MULTI_WRITER"];

/// A driver that is being described.
#[derive(Debug)]
pub struct DriverBuilder {
    program: PathBuf,
    name: String,
    root: PathBuf,
    state: PathBuf,
    capabilities: Vec<String>,
    arguments: Vec<String>,
}

/// A driver that runs; it ends when this is dropped, and with it what it has mounted.
#[derive(Debug)]
pub struct Driver {
    name: String,
    root: PathBuf,
    state: PathBuf,
    registers: bool,
    process: Process,
}

/// What a driver was asked, and has answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// `NodeStageVolume`.
    pub method: String,
    /// As recordings have it: what is empty is left out; of secrets only the keys.
    pub request: Value,
    /// Seconds since 1970.
    pub began: f64,
    /// The same, with gRPC's name of the code, and the message; `None` as long as there is no answer.
    pub answer: Option<(f64, String, String)>,
}

impl Call {
    /// The volume's handle.
    pub fn volume(&self) -> &str {
        self.request["volume_id"].as_str().unwrap_or_default()
    }

    /// Whether it was answered well.
    pub fn is_ok(&self) -> bool {
        self.answer.as_ref().is_some_and(|(_, code, _)| code == "OK")
    }
}

/// What a driver does wrong, at one method.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault(Value);

impl Fault {
    fn new(call: &str, act: &str, fields: Value) -> Self {
        let mut all = json!({"call": call, "act": act});
        for (key, value) in fields.as_object().into_iter().flatten() {
            all[key] = value.clone();
        }
        Self(all)
    }

    /// It does nothing, and answers with `code` (`INTERNAL`).
    pub fn fails(call: &str, code: &str, message: &str) -> Self {
        Self::new(call, "fail", json!({"code": code, "message": message}))
    }

    /// It works, and then answers so.
    pub fn fails_after_work(call: &str, code: &str, message: &str) -> Self {
        Self::new(call, "work-then-fail", json!({"code": code, "message": message}))
    }

    /// It waits until the fault is taken away, then works and answers.
    pub fn hangs(call: &str) -> Self {
        Self::new(call, "hang", json!({}))
    }

    /// It works and answers after a while.
    pub fn answers_late(call: &str, after: Duration) -> Self {
        Self::new(call, "late", json!({"milliseconds": u64::try_from(after.as_millis()).unwrap_or(u64::MAX)}))
    }

    /// It does nothing, and says that all is well.
    pub fn lies(call: &str) -> Self {
        Self::new(call, "lie", json!({}))
    }

    /// Of NodeExpandVolume: it works, and says that the volume is half as large as it was asked to be.
    pub fn says_smaller() -> Self {
        Self::new("NodeExpandVolume", "smaller", json!({}))
    }

    /// Of NodePublishVolume: the target becomes a symbolic link.
    pub fn links(to: &Path) -> Self {
        Self::new("NodePublishVolume", "link", json!({"to": to}))
    }

    /// Its answer has more than 4 MiB.
    pub fn answers_big(call: &str) -> Self {
        Self::new(call, "big", json!({}))
    }

    /// It dies at this call.
    pub fn dies(call: &str) -> Self {
        Self::new(call, "die", json!({}))
    }

    /// Only for this volume.
    pub fn of_volume(mut self, handle: &str) -> Self {
        self.0["volume"] = json!(handle);
        self
    }
}

impl DriverBuilder {
    /// A driver `name` of a node; `program` is the tests' `csi_driver`. Its state lies beside the node.
    pub fn new(program: impl AsRef<Path>, node: &Node, name: &str) -> Self {
        let state = node.lab().folder().join("csi").join(name);
        Self::at(program, node.root_dir(), &state, name).argument("--node-id", node.name())
    }

    /// The same by the kubelet's root directory.
    pub fn at(program: impl AsRef<Path>, root: &Path, state: &Path, name: &str) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            name: name.to_owned(),
            root: root.to_owned(),
            state: state.to_owned(),
            capabilities: CAPABILITIES.map(str::to_owned).to_vec(),
            arguments: Vec::new(),
        }
    }

    /// What its node service says that it can, instead of what most can.
    pub fn capabilities(mut self, names: &[&str]) -> Self {
        self.capabilities = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// One more argument of the program, which says what there are.
    pub fn argument(mut self, name: &str, value: &str) -> Self {
        self.arguments.push(format!("{name}={value}"));
        self
    }

    /// Starts it, and waits until it serves.
    ///
    /// # Errors
    /// It has ended: the end of its log.
    pub fn start(self) -> Result<Driver> {
        std::fs::create_dir_all(&self.state).with_context(|| format!("creating {}", self.state.display()))?;
        let mut arguments = vec![
            format!("--name={}", self.name),
            format!("--root={}", self.root.display()),
            format!("--state={}", self.state.display()),
        ];
        arguments.extend(self.capabilities.iter().map(|one| format!("--capability={one}")));
        arguments.extend(self.arguments);
        let registers = !arguments.iter().any(|one| one == "--registration=none");
        let process = Process::start(&self.program, arguments, self.state.join("log"))?;
        let mut driver = Driver { name: self.name, root: self.root, state: self.state, registers, process };
        driver.wait_serving()?;
        Ok(driver)
    }
}

impl Driver {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The socket of Identity and Node.
    pub fn socket(&self) -> PathBuf {
        self.root.join("plugins").join(&self.name).join("csi.sock")
    }

    /// The socket in plugins_registry.
    pub fn registration_socket(&self) -> PathBuf {
        self.root.join("plugins_registry").join(format!("{}-reg.sock", self.name))
    }

    /// What it says of itself.
    pub fn log(&self) -> &Path {
        self.process.log()
    }

    /// The folder of its files: a place for a link to lead to.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// What it has used of a processor since its start.
    ///
    /// # Errors
    /// It does not run.
    pub fn cpu_nanoseconds(&self) -> Result<u64> {
        self.process.cpu_nanoseconds()
    }

    fn wait_serving(&mut self) -> Result<()> {
        let last = if self.registers { self.registration_socket() } else { self.socket() };
        eventually(&format!("the driver {} serves", self.name), SHORT, || {
            match self.process.alive() {
                // It will not: no need to wait for the limit.
                Err(ended) => Ok(Err(ended)),
                Ok(()) => {
                    std::os::unix::net::UnixStream::connect(&last).with_context(|| format!("{}", last.display()))?;
                    Ok(Ok(()))
                }
            }
        })?
    }

    // === Misbehaving ===

    /// From now on it does these things wrong, and no others.
    ///
    /// # Errors
    /// Its folder cannot be written.
    pub fn faults(&self, faults: &[Fault]) -> Result<()> {
        let draft = self.state.join("faults.json.draft");
        let all: Vec<&Value> = faults.iter().map(|fault| &fault.0).collect();
        std::fs::write(&draft, json!(all).to_string()).context("writing faults")?;
        std::fs::rename(&draft, self.state.join("faults.json")).context("moving faults into place")
    }

    /// From now on it does nothing wrong; what hangs goes on.
    ///
    /// # Errors
    /// As [`Driver::faults`].
    pub fn heal(&self) -> Result<()> {
        self.faults(&[])
    }

    /// From now on it says that the node can have so many of its volumes.
    ///
    /// # Errors
    /// Its folder cannot be written.
    pub fn max_volumes(&self, count: i64) -> Result<()> {
        let draft = self.state.join("max-volumes.draft");
        std::fs::write(&draft, count.to_string()).context("writing the number of volumes")?;
        std::fs::rename(&draft, self.state.join("max-volumes")).context("moving the number of volumes into place")
    }

    /// From now on these volumes are abnormal, for these reasons, and no others.
    ///
    /// # Errors
    /// Its folder cannot be written.
    pub fn abnormal(&self, volumes: &[(&str, &str)]) -> Result<()> {
        let all: std::collections::BTreeMap<_, _> = volumes.iter().copied().collect();
        let draft = self.state.join("abnormal.json.draft");
        std::fs::write(&draft, json!(all).to_string()).context("writing what is wrong with volumes")?;
        std::fs::rename(&draft, self.state.join("abnormal.json"))
            .context("moving what is wrong with volumes into place")
    }

    /// SIGKILL. Its sockets stay, and nobody answers there.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Waits until it has died by a fault.
    ///
    /// # Errors
    /// It still runs.
    pub fn wait_dead(&mut self) -> Result<()> {
        self.process.wait_end()
    }

    /// SIGTERM: it takes its sockets away, as a driver that is deleted.
    pub fn stop(&mut self) {
        self.process.stop();
    }

    /// Starts it once more, with new sockets.
    ///
    /// # Errors
    /// As [`DriverBuilder::start`].
    pub fn again(&mut self) -> Result<()> {
        self.process.kill();
        // What is left of the one before would be taken for the new one.
        for socket in [self.socket(), self.registration_socket()] {
            let _ = std::fs::remove_file(socket);
        }
        self.process.again()?;
        self.wait_serving()
    }

    // === What it was asked ===

    /// All calls so far, oldest first, those of earlier lives too.
    ///
    /// # Errors
    /// There is no such file yet.
    pub fn calls(&self) -> Result<Vec<Call>> {
        let path = self.state.join("calls.jsonl");
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let mut calls: Vec<(String, Call)> = Vec::new();
        // The last line may be half written.
        for line in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let text = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
            let at = line["t"].as_f64().unwrap_or_default();
            if line["call"].is_string() {
                let method = text("call").rsplit('/').next().unwrap_or_default().to_owned();
                calls.push((text("id"), Call { method, request: line["request"].clone(), began: at, answer: None }));
            } else if let Some((_, call)) = calls.iter_mut().find(|(id, _)| *id == text("id")) {
                call.answer = Some((at, text("code"), text("message")));
            }
        }
        Ok(calls.into_iter().map(|(_, call)| call).collect())
    }

    /// The calls of one method about one volume.
    ///
    /// # Errors
    /// As [`Driver::calls`].
    pub fn calls_of(&self, method: &str, volume: &str) -> Result<Vec<Call>> {
        let mut calls = self.calls()?;
        calls.retain(|call| call.method == method && call.volume() == volume);
        Ok(calls)
    }

    /// The secrets that came with the calls of one method about one volume, oldest first, as objects of texts.
    ///
    /// # Errors
    /// There is no such file yet.
    pub fn secrets_of(&self, method: &str, volume: &str) -> Result<Vec<Value>> {
        let path = self.state.join("secrets.jsonl");
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let of = |line: &Value| line["call"] == method && line["volume"] == volume;
        Ok(lines.filter(of).map(|line| line["secrets"].clone()).collect())
    }

    /// Waits until a volume's call that `wanted` accepts is there.
    ///
    /// # Errors
    /// The calls that there were.
    pub fn wait_call(&self, method: &str, volume: &str, wanted: impl Fn(&Call) -> bool) -> Result<Call> {
        eventually(&format!("{method} of {volume} was called as wanted"), LONG, || {
            let calls = self.calls_of(method, volume)?;
            calls.iter().find(|call| wanted(call)).cloned().with_context(|| format!("{calls:#?}"))
        })
    }

    /// Waits until it was told that it is registered.
    ///
    /// # Errors
    /// What it was told.
    pub fn wait_registered(&self) -> Result<()> {
        eventually(&format!("the driver {} is registered", self.name), LONG, || {
            let calls = self.calls()?;
            let told = calls.iter().rfind(|call| call.method == "NotifyRegistrationStatus");
            let told = told.with_context(|| format!("nothing was said; {} calls", calls.len()))?;
            ensure!(told.request["plugin_registered"] == true, "{}", told.request);
            Ok(())
        })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop();
        let folder = self.state.clone();
        // Loop devices hold their files, and mounts their loop devices; the lab takes down what lies below the node.
        mounts::detach_below(&folder);
        loops::detach_below(&folder);
    }
}
