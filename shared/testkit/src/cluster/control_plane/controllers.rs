//! The controllers of a real cluster: kube-controller-manager and kube-scheduler, for one test.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::super::client::Credential;
use super::super::{LOCAL, YEAR, kubeconfig};
use crate::containerd::tail;
use crate::wait::{LONG, SHORT, insist};
use bulkhead_apiserver::authority::Authority;

/// kube-controller-manager first: only it takes a test's flags.
pub(super) const PROGRAMS: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];

/// Both processes; they end with this value, and with the thread that started them.
#[derive(Debug)]
pub(in super::super) struct Controllers {
    processes: Vec<Process>,
}

#[derive(Debug)]
struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Drop for Controllers {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}

/// Where they find what they need.
pub(super) struct Place<'a> {
    pub programs: &'a Path,
    /// For what they are given and what they log.
    pub folder: &'a Path,
    pub address: SocketAddr,
    pub authority: &'a Authority,
    /// With which tokens of service accounts are signed.
    pub account_key: &'a Path,
}

impl Place<'_> {
    fn write(&self, name: &str, text: &str) -> Result<String> {
        let path = self.folder.join(name);
        kubeconfig::write(&path, text)?;
        Ok(path.display().to_string())
    }

    fn start(&self, name: &'static str, port: u16, flags: &[String]) -> Result<Process> {
        let program = self.programs.join(name);
        if !program.is_file() {
            bail!("{} has no {name}", self.programs.display());
        }
        let user = format!("system:{name}");
        let credential = Credential::Certificate(self.authority.client(&user, "", YEAR)?);
        let url = format!("https://{}", self.address);
        let content = kubeconfig::content(&url, &self.authority.pem(), &user, &credential);
        let config = self.write(&format!("{name}.kubeconfig"), &content.to_string())?;
        let log = self.folder.join(format!("{name}.log"));
        let said = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(
                ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"]
                    .map(|flag| format!("--{flag}={config}")),
            )
            .args(["--leader-elect=false", "--bind-address=127.0.0.1"])
            .arg(format!("--secure-port={port}"))
            .args(flags)
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        Ok(Process { name, child, log })
    }
}

impl Controllers {
    /// Starts both and waits until they serve, that is, have read their flags; `flags` are kube-controller-manager's.
    pub(super) fn start(place: &Place<'_>, flags: &[&str]) -> Result<Self> {
        let ca = place.write("ca.crt", &place.authority.pem())?;
        let ca_key = place.write("ca.key", &place.authority.key_pem())?;
        let mut own = vec![
            format!("--service-account-private-key-file={}", place.account_key.display()),
            format!("--root-ca-file={ca}"),
            format!("--cluster-signing-cert-file={ca}"),
            format!("--cluster-signing-key-file={ca_key}"),
            // Its own user may do next to nothing; the roles of the controllers are their accounts'.
            "--use-service-account-credentials".to_owned(),
        ];
        own.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let mut all = Self { processes: Vec::new() };
        for (name, flags) in PROGRAMS.into_iter().zip([own, Vec::new()]) {
            let port = super::free_port(LOCAL)?;
            all.processes.push(place.start(name, port, &flags)?);
            insist(&format!("{name} serves"), LONG, || {
                all.alive().map_or_else(
                    |ended| Ok(Err(ended)),
                    |()| Ok(Ok(TcpStream::connect_timeout(&SocketAddr::new(LOCAL, port), SHORT)?)),
                )
            })??;
        }
        Ok(all)
    }

    /// # Errors
    /// One has ended: the end of its log.
    fn alive(&mut self) -> Result<()> {
        for process in &mut self.processes {
            if let Some(status) = process.child.try_wait().context("looking after the controllers")? {
                bail!("{} has ended: {status}: {}", process.name, tail(&process.log, 20));
            }
        }
        Ok(())
    }
}
