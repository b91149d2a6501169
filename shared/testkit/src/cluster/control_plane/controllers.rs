//! The controllers of a real cluster: kube-controller-manager and kube-scheduler, for one test.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::super::client::Credential;
use super::super::kubeconfig;
use crate::apiserver::authority::Authority;

/// Both processes; they end with this value, and with the thread that started them.
#[derive(Debug)]
pub(in super::super) struct Controllers {
    processes: Vec<Child>,
}

impl Drop for Controllers {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Controllers {
    pub(super) fn start(
        programs: &Path,
        folder: &Path,
        address: SocketAddr,
        authority: &Authority,
        account_key: &Path,
    ) -> Result<Self> {
        let write = |name: &str, text: &str| -> Result<String> {
            let path = folder.join(name);
            kubeconfig::write(&path, text)?;
            Ok(path.display().to_string())
        };
        let (ca, ca_key) = (write("ca.crt", &authority.pem())?, write("ca.key", &authority.key_pem())?);
        let own = [
            format!("--service-account-private-key-file={}", account_key.display()),
            format!("--root-ca-file={ca}"),
            format!("--cluster-signing-cert-file={ca}"),
            format!("--cluster-signing-key-file={ca_key}"),
        ];
        let mut all = Self { processes: Vec::new() };
        let nothing: &[String] = &[];
        for (name, own) in [("kube-controller-manager", &own[..]), ("kube-scheduler", nothing)] {
            let program = programs.join(name);
            if !program.is_file() {
                bail!("{} has no {name}", programs.display());
            }
            let user = format!("system:{name}");
            let credential = Credential::Certificate(authority.client(&user, "", super::super::YEAR)?);
            let content = kubeconfig::content(&format!("https://{address}"), &authority.pem(), &user, &credential);
            let config = write(&format!("{name}.kubeconfig"), &content.to_string())?;
            let log = File::create(folder.join(format!("{name}.log")))?;
            let child = Command::new("setpriv")
                .args(["--pdeathsig", "KILL"])
                .arg(&program)
                .args(
                    ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"]
                        .map(|flag| format!("--{flag}={config}")),
                )
                .args(["--leader-elect=false", "--bind-address=127.0.0.1"])
                .arg(format!("--secure-port={}", super::free_port(super::super::LOCAL)?))
                .args(own)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn()
                .with_context(|| format!("starting {name}"))?;
            all.processes.push(child);
        }
        Ok(all)
    }
}
