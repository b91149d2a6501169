//! `<root-dir>/pods/<uid>/etc-hosts`, mounted on /etc/hosts of every container (upstream
//! `pkg/kubelet/kubelet_pods.go` ensureHostsFile). The text is upstream's to the byte.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use bulkhead_sys::open;
use bulkhead_types::PodUid;
use rustix::fs::{Mode, OFlags};

use super::FileError;
use crate::node::Node;
use crate::volumes::pod_dir;

/// More than any /etc/hosts; what is beyond is not copied into pods.
const MAX_HOST_FILE: u64 = 1 << 20;

/// Checked contents.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hosts {
    pub host_network: bool,
    pub pod_ips: Vec<String>,
    pub hostname: String,
    /// Empty for none.
    pub domain: String,
    pub aliases: Vec<(String, Vec<String>)>,
}

/// Writes the file. In place, so that containers which have it mounted see the new contents.
pub fn write(node: &Node, pod: &PodUid, hosts: &Hosts) -> Result<PathBuf, FileError> {
    let path = node.settings.paths.etc_hosts(pod);
    let open_error = |source| FileError::Open { doing: "open", path: path.clone(), source };
    let io_error = |source| FileError::Io { doing: "write", path: path.clone(), source };
    let node_hosts = if hosts.host_network { read_node_hosts()? } else { Vec::new() };
    let text = render(hosts, &node_hosts);
    let dir = pod_dir(&node.settings, pod)?;
    if unchanged(&dir, &text) {
        return Ok(path);
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    let mut file = std::fs::File::from(open::beneath(dir.as_fd(), "etc-hosts", flags, 0o644).map_err(open_error)?);
    file.write_all(&text).map_err(io_error)?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644)).map_err(|e| io_error(e.into()))?;
    Ok(path)
}

fn unchanged(dir: &std::os::fd::OwnedFd, text: &[u8]) -> bool {
    use std::io::Read;
    let Ok(fd) = open::regular_beneath(dir.as_fd(), "etc-hosts") else { return false };
    let mode_ok = rustix::fs::fstat(&fd).is_ok_and(|stat| stat.st_mode & 0o7777 == 0o644);
    let mut now = Vec::new();
    let limit = text.len() as u64 + 1;
    mode_ok && std::fs::File::from(fd).take(limit).read_to_end(&mut now).is_ok() && now == text
}

fn read_node_hosts() -> Result<Vec<u8>, FileError> {
    use std::io::Read;
    let path = Path::new("/etc/hosts");
    let fd = open::operator(path, open::FileKind::RegularFile).map_err(|source| FileError::Open {
        doing: "open",
        path: path.to_owned(),
        source,
    })?;
    let mut text = Vec::new();
    std::fs::File::from(fd).take(MAX_HOST_FILE).read_to_end(&mut text).map_err(|source| FileError::Io {
        doing: "read",
        path: path.to_owned(),
        source,
    })?;
    Ok(text)
}

/// Upstream `managedHostsFileContent` and `nodeHostsFileContent`.
fn render(hosts: &Hosts, node_hosts: &[u8]) -> Vec<u8> {
    let mut text = String::new();
    let mut out = Vec::new();
    if hosts.host_network {
        out.extend_from_slice(b"# Kubernetes-managed hosts file (host network).\n");
        out.extend_from_slice(node_hosts);
    } else {
        text.push_str(
            "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
             fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n",
        );
        let (name, domain) = (&hosts.hostname, &hosts.domain);
        for ip in &hosts.pod_ips {
            // Writing to a String cannot fail.
            let _ = if domain.is_empty() {
                writeln!(text, "{ip}\t{name}")
            } else {
                writeln!(text, "{ip}\t{name}.{domain}\t{name}")
            };
        }
    }
    if !hosts.aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
        for (ip, names) in &hosts.aliases {
            let _ = writeln!(text, "{ip}\t{}", names.join("\t"));
        }
    }
    out.extend_from_slice(text.as_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_text() {
        let mut hosts =
            Hosts { pod_ips: vec!["10.0.0.5".into(), "fd00::5".into()], hostname: "web".into(), ..Hosts::default() };
        let show = |h: &Hosts| String::from_utf8(render(h, b"127.0.0.1 node\n")).unwrap();
        let head = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n";
        assert_eq!(show(&hosts), format!("{head}10.0.0.5\tweb\nfd00::5\tweb\n"));
        hosts.domain = "sub.ns.svc.cluster.local".into();
        hosts.pod_ips.pop();
        hosts.aliases = vec![("1.2.3.4".into(), vec!["a".into(), "b".into()])];
        assert_eq!(
            show(&hosts),
            format!(
                "{head}10.0.0.5\tweb.sub.ns.svc.cluster.local\tweb\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n"
            )
        );
        hosts.host_network = true;
        assert_eq!(
            show(&hosts),
            "# Kubernetes-managed hosts file (host network).\n127.0.0.1 node\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n"
        );
    }
}
