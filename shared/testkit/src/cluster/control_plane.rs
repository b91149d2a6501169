//! A real control plane: etcd and kube-apiserver from a folder of programs, with our own authority. Controllers run
//! beside them where a test asks for them ([`Controllers`]); without, nothing binds pods, signs requests or cleans up.

use std::fs::File;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::kubeconfig;
use crate::apiserver::authority::Authority;
use crate::containerd::tail;
use crate::processes;

/// What the API server keeps its objects in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Storage {
    /// The programs' own etcd: lists can be streamed.
    #[default]
    Etcd,
    /// An etcd that cannot report the progress of watches (Debian's 3.4): streamed lists are refused.
    WithoutWatchProgress,
}

impl Storage {
    const fn program(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::WithoutWatchProgress => "etcd-old",
        }
    }

    /// Whether `$KUBEBUILDER_ASSETS` names a folder with a control plane on this storage.
    pub fn is_there(self) -> bool {
        super::assets()
            .is_some_and(|folder| ["kube-apiserver", self.program()].iter().all(|one| folder.join(one).is_file()))
    }
}

/// Both processes; end with this value.
#[derive(Debug)]
pub(super) struct ControlPlane {
    apiserver: Child,
    etcd: Child,
    address: SocketAddr,
    authority: Authority,
}

impl ControlPlane {
    /// Starts etcd and kube-apiserver below `folder`, the latter on `address`.
    ///
    /// # Errors
    /// A program is missing or cannot be started.
    pub(super) fn start(assets: &Path, folder: &Path, address: IpAddr, storage: Storage) -> Result<Self> {
        for program in ["kube-apiserver", storage.program()] {
            if !assets.join(program).is_file() {
                bail!("{} has no {program}", assets.display());
            }
        }
        let authority = Authority::new()?;
        let file = |name: &str, text: &str| -> Result<PathBuf> {
            let path = folder.join(name);
            kubeconfig::write(&path, text)?;
            Ok(path)
        };
        let ca = file("ca.crt", &authority.pem())?;
        let server = authority.server(&["localhost", "kubernetes.default.svc"], &[address, super::LOCAL])?;
        let (certificate, key) = (file("apiserver.crt", &server.certificate)?, file("apiserver.key", &server.key)?);
        // The public half as a certificate: the API server reads no public key out of PKCS #8.
        let account = authority.server(&["service-accounts"], &[])?;
        let (account, account_key) = (file("sa.crt", &account.certificate)?, file("sa.key", &account.key)?);
        let kubelet = authority.client("kube-apiserver-kubelet-client", "system:masters", super::YEAR)?;
        let kubelet = (file("kubelet-client.crt", &kubelet.certificate)?, file("kubelet-client.key", &kubelet.key)?);

        let (client_port, peer_port) = (free_port(super::LOCAL)?, free_port(super::LOCAL)?);
        let client_url = format!("http://127.0.0.1:{client_port}");
        let peer_url = format!("http://127.0.0.1:{peer_port}");
        let etcd = spawn(
            &assets.join(storage.program()),
            folder,
            "etcd.log",
            &[
                // Nothing of it is to outlive the power of the machine.
                "--unsafe-no-fsync".to_owned(),
                format!("--data-dir={}", folder.join("etcd").display()),
                format!("--listen-client-urls={client_url}"),
                format!("--advertise-client-urls={client_url}"),
                format!("--listen-peer-urls={peer_url}"),
                format!("--initial-advertise-peer-urls={peer_url}"),
                format!("--initial-cluster=default={peer_url}"),
            ],
        )?;
        let mut etcd = Some(etcd);
        let port = free_port(address)?;
        let started = spawn(
            &assets.join("kube-apiserver"),
            folder,
            "kube-apiserver.log",
            &[
                format!("--etcd-servers={client_url}"),
                format!("--bind-address={address}"),
                format!("--advertise-address={address}"),
                format!("--secure-port={port}"),
                format!("--tls-cert-file={}", certificate.display()),
                format!("--tls-private-key-file={}", key.display()),
                format!("--client-ca-file={}", ca.display()),
                format!("--kubelet-client-certificate={}", kubelet.0.display()),
                format!("--kubelet-client-key={}", kubelet.1.display()),
                // As kubeadm has it: names of nodes resolve nowhere.
                "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname".to_owned(),
                format!("--service-account-key-file={}", account.display()),
                format!("--service-account-signing-key-file={}", account_key.display()),
                "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
                "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
                "--authorization-mode=Node,RBAC".to_owned(),
                "--enable-bootstrap-token-auth".to_owned(),
                "--enable-admission-plugins=NodeRestriction".to_owned(),
                "--allow-privileged=true".to_owned(),
            ],
        );
        match started {
            Ok(apiserver) => {
                let etcd = etcd.take().context("etcd has gone")?;
                Ok(Self { apiserver, etcd, address: SocketAddr::new(address, port), authority })
            }
            Err(error) => {
                etcd.iter_mut().for_each(end);
                Err(error)
            }
        }
    }

    /// # Errors
    /// A server has ended: the end of its log.
    pub(super) fn alive(&self, folder: &Path) -> Result<()> {
        for (pid, name) in [(self.etcd.id(), "etcd"), (self.apiserver.id(), "kube-apiserver")] {
            if !processes::is_alive(pid as i32) {
                bail!("{name} has ended: {}", tail(&folder.join(format!("{name}.log")), 20));
            }
        }
        Ok(())
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn authority(&self) -> &Authority {
        &self.authority
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        end(&mut self.apiserver);
        end(&mut self.etcd);
    }
}

fn spawn(program: &Path, folder: &Path, log: &str, arguments: &[String]) -> Result<Child> {
    let path = folder.join(log);
    let file = File::options().create(true).append(true).open(&path)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
    let mut child = command.spawn().with_context(|| format!("starting {}", program.display()))?;
    if let Ok(Some(status)) = child.try_wait() {
        bail!("{} ended at once: {status}\n{}", program.display(), tail(&path, 20));
    }
    Ok(child)
}

/// At once: an API server with open watches takes a minute to say goodbye, and nothing of it is needed any more.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn free_port(address: IpAddr) -> Result<u16> {
    Ok(TcpListener::bind(SocketAddr::new(address, 0)).context("looking for a free port")?.local_addr()?.port())
}
