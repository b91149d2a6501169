//! A named network namespace with a way out: lo, an eth0 whose other end is on the host, a default route, and a CNI
//! configuration for the pods behind it. Addresses come from the benchmarking range 198.18.0.0/15 (RFC 2544), which no
//! real network uses, so that a route on the host hides nothing.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns};
use serde_json::json;

use crate::machine;

/// A network namespace; removed on drop.
#[derive(Debug)]
pub struct NetNs {
    number: u8,
}

impl NetNs {
    /// Makes the namespace of lab `number`, removing what an earlier lab of that number left.
    ///
    /// # Errors
    /// What `ip` said.
    pub fn create(number: u8) -> Result<Self> {
        remove(number);
        let netns = Self { number };
        let (name, host_end) = (netns.name(), netns.host_end());
        let ip = |arguments: &[&str]| machine::run("ip", arguments).context("setting up the network namespace");
        ip(&["netns", "add", &name])?;
        ip(&["-n", &name, "link", "set", "lo", "up"])?;
        ip(&["link", "add", &host_end, "type", "veth", "peer", "name", "eth0", "netns", &name])?;
        ip(&["addr", "add", &format!("{}/30", netns.gateway()), "dev", &host_end])?;
        ip(&["link", "set", &host_end, "up"])?;
        ip(&["-n", &name, "addr", "add", &format!("{}/30", netns.address()), "dev", "eth0"])?;
        ip(&["-n", &name, "link", "set", "eth0", "up"])?;
        ip(&["-n", &name, "route", "add", "default", "via", &netns.gateway().to_string()])?;
        // Lets a person on the host reach the pods; it goes away with the veth pair.
        ip(&["route", "replace", &netns.pod_subnet(), "via", &netns.address().to_string(), "dev", &host_end])?;
        Ok(netns)
    }

    /// Gives the host one more address, by which this namespace reaches it; it goes away with the veth pair.
    ///
    /// # Errors
    /// What `ip` said.
    pub fn host_answers_at(&self, address: Ipv4Addr) -> Result<()> {
        machine::run("ip", &["addr", "add", &format!("{address}/32"), "dev", &self.host_end()])
            .context("giving the host an address")?;
        Ok(())
    }

    /// As `ip netns` lists it.
    pub fn name(&self) -> String {
        format!("bulkhead-{}", self.number)
    }

    /// The namespace's file, for `nsenter --net=`.
    pub fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(self.name())
    }

    fn host_end(&self) -> String {
        format!("bulkhead{}", self.number)
    }

    /// The host's end of the way out: what listens there is reached from inside and from the host.
    pub fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.number, 1)
    }

    /// The node's own address.
    pub fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.number, 2)
    }

    /// Where pods get their addresses: 1021 of them.
    pub fn pod_subnet(&self) -> String {
        format!("198.19.{}.0/22", u16::from(self.number) * 4)
    }

    /// Lays a cable to another namespace, so that the nodes and the pods of both reach each other. It goes away with either.
    ///
    /// # Errors
    /// What `ip` said.
    pub fn connect(&self, other: &Self) -> Result<()> {
        let ends = [(self, format!("peer{}", other.number), other), (other, format!("peer{}", self.number), self)];
        let ip = |arguments: &[&str]| machine::run("ip", arguments).context("laying a cable between two machines");
        let [(_, here, _), (_, there, _)] = &ends;
        ip(&["-n", &self.name(), "link", "add", here, "type", "veth", "peer", "name", there, "netns", &other.name()])?;
        for (from, end, to) in &ends {
            let (name, address) = (from.name(), to.address().to_string());
            ip(&["-n", &name, "link", "set", end, "up"])?;
            ip(&["-n", &name, "route", "add", &address, "dev", end])?;
            ip(&["-n", &name, "route", "add", &to.pod_subnet(), "via", &address, "dev", end, "onlink"])?;
        }
        Ok(())
    }

    /// Writes the network list for the runtime: bridge, host-local with `ipam_dir` (so that a leaked address can be seen), portmap.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write_cni_config(&self, conf_dir: &Path, ipam_dir: &Path) -> Result<()> {
        let list = json!({
            "cniVersion": "0.4.0",
            "name": "bulkhead-lab",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": true,
                    "ipMasq": false,
                    "hairpinMode": true,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": ipam_dir,
                        "ranges": [[{"subnet": self.pod_subnet()}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": true}},
            ],
        });
        std::fs::create_dir_all(conf_dir)?;
        let path = conf_dir.join("10-bulkhead-lab.conflist");
        std::fs::write(&path, list.to_string()).with_context(|| format!("writing {}", path.display()))
    }

    /// Runs `action` inside the namespace, on a thread of its own: a namespace belongs to a thread.
    ///
    /// # Errors
    /// The namespace cannot be entered, or what `action` returned.
    pub fn run<T: Send>(&self, action: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        run_in(&self.path(), action)
    }

    /// A GET over HTTP/1.0 inside the namespace: status and body.
    ///
    /// # Errors
    /// No connection, or no HTTP answer.
    pub fn http_get(&self, address: IpAddr, port: u16, path: &str) -> Result<(u16, String)> {
        self.run(|| http_get(SocketAddr::new(address, port), path))
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        remove(self.number);
    }
}

/// Removes the namespace of a lab, whoever made it. The kernel removes the veth pair with it.
pub(crate) fn remove(number: u8) {
    let name = format!("bulkhead-{number}");
    if Path::new("/run/netns").join(&name).exists() {
        let _ = machine::run("ip", &["netns", "del", &name]);
    }
    // The namespace lives on while a process is in it; the host's end must not stand in the way of the next lab.
    let host_end = format!("bulkhead{number}");
    if Path::new("/sys/class/net").join(&host_end).exists() {
        let _ = machine::run("ip", &["link", "del", &host_end]);
    }
}

/// As [`NetNs::run`], for a namespace known by its file.
///
/// # Errors
/// The namespace cannot be entered, or what `action` returned.
pub fn run_in<T: Send>(namespace: &Path, action: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let file = File::open(namespace).with_context(|| format!("opening {}", namespace.display()))?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            setns(&file, CloneFlags::CLONE_NEWNET).with_context(|| format!("entering {}", namespace.display()))?;
            action()
        });
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// A GET over HTTP/1.0 from the namespace that the calling thread is in.
///
/// # Errors
/// No connection within a second, or no HTTP answer within five.
pub fn http_get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))
        .with_context(|| format!("connecting to {address}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    // Far above any page that the tests read; a server that never stops must not fill the memory.
    stream.take(8 << 20).read_to_end(&mut answer).with_context(|| format!("reading from {address}"))?;
    let answer = String::from_utf8_lossy(&answer);
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { bail!("{address} gave no HTTP answer") };
    let status = head.split_ascii_whitespace().nth(1).and_then(|code| code.parse().ok());
    Ok((status.with_context(|| format!("{address} gave no HTTP status"))?, body.to_owned()))
}
