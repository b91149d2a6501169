//! `<root-dir>/pods/<uid>/etc-hosts`, mounted on /etc/hosts of every container (upstream
//! `pkg/kubelet/kubelet_pods.go` ensureHostsFile). The text is upstream's to the byte.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};

use bulkhead_sys::open;
use bulkhead_types::PodUid;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::FileError;
use crate::node::Node;
use crate::volumes::pod_dir;

/// The node's own file, which pods of the host's network are given.
const NODE_HOSTS: &str = "/etc/hosts";
/// Bytes of it, far more than any has; lines beyond are not copied into pods.
const MAX_NODE_HOSTS: usize = 16 << 20;

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
    let text = match hosts.host_network {
        true => render(hosts, &read_node_hosts(Path::new(NODE_HOSTS))?),
        false => render(hosts, &[]),
    };
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
    let mut now = Vec::with_capacity(text.len() + 1);
    let limit = text.len() as u64 + 1;
    mode_ok && std::fs::File::from(fd).take(limit).read_to_end(&mut now).is_ok() && now == text
}

/// Whoever may write it: it names hosts to pods that are on the host's network anyway, and decides nothing here.
fn read_node_hosts(path: &Path) -> Result<Vec<u8>, FileError> {
    use std::io::Read as _;
    let error = |doing| move |source| FileError::Io { doing, path: path.to_owned(), source };
    let os_error = |doing| move |errno: Errno| error(doing)(errno.into());
    // First a handle, which opens no device and waits for nobody at a FIFO; then the type; then the thing itself.
    let handle = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(os_error("open"))?;
    let stat = rustix::fs::fstat(&handle).map_err(os_error("examine"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(FileError::NoRegularFile { path: path.to_owned() });
    }
    let through = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(through, flags, Mode::empty()).map_err(os_error("open"))?;
    // A byte more shows whether it ends there.
    let size = usize::try_from(stat.st_size).unwrap_or(0).min(MAX_NODE_HOSTS);
    let mut text = Vec::with_capacity(size + 1);
    std::fs::File::from(file).take(MAX_NODE_HOSTS as u64 + 1).read_to_end(&mut text).map_err(error("read"))?;
    if cut_to_lines(&mut text, MAX_NODE_HOSTS) {
        tracing::warn!(path = %path.display(), bytes = MAX_NODE_HOSTS, "too large: lines beyond are not in pods' hosts files");
    }
    Ok(text)
}

/// Cuts what has more than `max` bytes after its last whole line; answers whether it had.
fn cut_to_lines(text: &mut Vec<u8>, max: usize) -> bool {
    let is_longer = text.len() > max;
    if is_longer {
        text.truncate(max);
        let whole_lines = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        text.truncate(whole_lines);
    }
    is_longer
}

/// Upstream `managedHostsFileContent` and `nodeHostsFileContent`.
fn render(hosts: &Hosts, node_hosts: &[u8]) -> Vec<u8> {
    let mut text = String::new();
    let (head, copied): (&str, &[u8]) = match hosts.host_network {
        true => ("# Kubernetes-managed hosts file (host network).\n", node_hosts),
        false => ("", &[]),
    };
    if !hosts.host_network {
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
    [head.as_bytes(), copied, text.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_nodes_file_is_read_whoever_may_write_it() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link, fifo) = (dir.path().join("hosts"), dir.path().join("link"), dir.path().join("fifo"));
        // More than a MiB, which was the most once.
        let text = "127.0.0.1 node\n".repeat(100_000);
        std::fs::write(&file, &text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o664)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&file, &link] {
            assert_eq!(read_node_hosts(path).unwrap(), text.as_bytes());
        }
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        for path in [fifo.as_path(), dir.path(), Path::new("/dev/zero")] {
            let error = read_node_hosts(path).unwrap_err();
            assert!(matches!(error, FileError::NoRegularFile { .. }), "{error:?}");
        }
        assert!(matches!(read_node_hosts(&dir.path().join("none")), Err(FileError::Io { .. })));
    }

    #[test]
    fn what_is_too_long_ends_with_a_line() {
        for (text, left, is_longer) in
            [("a\nb\n", "a\nb\n", false), ("a\nbc\nd\n", "a\n", true), ("abcdef", "", true), ("a\nb", "a\nb", false)]
        {
            let mut bytes = text.as_bytes().to_vec();
            assert_eq!((cut_to_lines(&mut bytes, 4), &*bytes), (is_longer, left.as_bytes()), "{text:?}");
        }
    }

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
