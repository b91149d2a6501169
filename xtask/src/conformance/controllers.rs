//! What makes an API server a cluster that the specs can use: controllers (accounts, namespaces that go away, replica
//! sets), a scheduler, and the service addresses by which pods reach the API.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bulkhead_testkit::cluster::client::Credential;
use bulkhead_testkit::cluster::control_plane::ADVERTISED;
use bulkhead_testkit::{Cluster, Lab};

use super::{NODE, Programs};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The processes; end with this value.
#[derive(Debug, Default)]
pub struct Controllers {
    children: Vec<(&'static str, Child)>,
    folder: PathBuf,
}

impl Controllers {
    /// Starts all three.
    ///
    /// # Errors
    /// One cannot be started.
    pub fn start(lab: &Lab, cluster: &Cluster, programs: &Programs) -> Result<Self> {
        // These two end with the cluster.
        cluster.start_controllers()?;
        let mut all = Self { children: Vec::new(), folder: cluster.folder().to_owned() };
        lab.netns().host_answers_at(ADVERTISED)?;
        // Where the pods are: their packets to a service's address are rewritten in the lab's network namespace.
        let name = "kube-proxy";
        let credential = Credential::Certificate(cluster.client_certificate("system:kube-proxy", "", DAY)?);
        let kubeconfig = cluster.write_kubeconfig(name, "system:kube-proxy", &credential)?.display().to_string();
        let mut proxy = Command::new("nsenter");
        proxy.arg(format!("--net={}", lab.netns().path().display())).arg("--").arg(programs.path(name)).args([
            format!("--kubeconfig={kubeconfig}"),
            format!("--hostname-override={NODE}"),
            "--proxy-mode=iptables".to_owned(),
            // Limits of the whole machine's connection table are not a lab's to set.
            "--conntrack-max-per-core=0".to_owned(),
            "--conntrack-tcp-timeout-established=0".to_owned(),
            "--conntrack-tcp-timeout-close-wait=0".to_owned(),
        ]);
        all.spawn(name, &mut proxy)?;
        Ok(all)
    }

    fn spawn(&mut self, name: &'static str, command: &mut Command) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.log(name)).context("opening a log")?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let child = command.spawn().with_context(|| format!("starting {name}"))?;
        self.children.push((name, child));
        Ok(())
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    /// Whether all still run.
    ///
    /// # Errors
    /// One has ended: the end of its log.
    pub fn check(&mut self) -> Result<()> {
        let ended = self.children.iter_mut().find_map(|(name, child)| Some((*name, child.try_wait().ok()??)));
        let Some((name, status)) = ended else { return Ok(()) };
        bail!("{name} ended: {status}; its log ends:\n{}", last_lines(&self.log(name), 10))
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        for (_, child) in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The end of a log.
pub fn last_lines(log: &Path, count: usize) -> String {
    let text = std::fs::read(log).map(|raw| String::from_utf8_lossy(&raw).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
