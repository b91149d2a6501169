//! What the machine is: kernel, operating system, ids, architecture. Read once, but for what an upgrade of the operating system changes
//! under a running kernel; parsing is pure.

use std::path::Path;

use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::volnetd::{ProductUuid, open_request::Kind};

/// Files of this kind have a line or some lines.
const MAX_BYTES: u64 = 64 * 1024;

/// For `status.nodeInfo`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    pub machine_id: String,
    pub system_uuid: String,
    pub boot_id: String,
    pub kernel_version: String,
    pub os_image: String,
    /// As Go names it.
    pub architecture: &'static str,
    /// Cgroup v1 or hybrid: upstream warns of it with an event.
    pub cgroup_v1: bool,
    /// cgroup v1 without the CPU bandwidth controller, which upstream appends to Ready's message.
    pub no_cpu_quota: bool,
}

impl Facts {
    /// Reads the world-readable files, and asks kubelet-volnetd for the one that only root may read. What cannot be read
    /// is empty, as with upstream. `boot_id`: the configuration's; empty, the kernel's is taken.
    pub async fn read(broker: &BrokerClient, boot_id: &str) -> Self {
        let mut facts = Facts::without_system_uuid();
        if !boot_id.is_empty() {
            boot_id.clone_into(&mut facts.boot_id);
        }
        facts.system_uuid = match product_uuid(broker).await {
            Some(uuid) => uuid,
            // The same files in the same order as cAdvisor (`utils/sysfs`, GetSystemUUID).
            None => ["/proc/device-tree/system-id", "/proc/device-tree/vm,uuid", "/etc/machine-id"]
                .into_iter()
                .find_map(line_of)
                .unwrap_or_default(),
        };
        facts
    }

    /// Reads again what may change while the machine runs, as upstream does for each status (cAdvisor `manager/manager.go`,
    /// getVersionInfo). What cannot be read now stays.
    pub fn read_again(&mut self) {
        self.read_os_release(&OS_RELEASE);
    }

    fn read_os_release(&mut self, paths: &[&str]) {
        if let Some(text) = paths.iter().copied().find_map(read) {
            self.os_image = os_image(&text);
        }
    }

    fn without_system_uuid() -> Self {
        let cgroups = rustix::fs::statfs("/sys/fs/cgroup").map(|found| found.f_type);
        let cgroup_v1 = cgroups.is_ok_and(|kind| i128::from(kind) != CGROUP2_MAGIC);
        let cpu = Path::new("/sys/fs/cgroup/cpu");
        Facts {
            machine_id: ["/etc/machine-id", "/var/lib/dbus/machine-id"]
                .into_iter()
                .find_map(line_of)
                .unwrap_or_default(),
            system_uuid: String::new(),
            boot_id: line_of("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            kernel_version: line_of("/proc/sys/kernel/osrelease").unwrap_or_default(),
            os_image: OS_RELEASE.into_iter().find_map(read).map(|text| os_image(&text)).unwrap_or_default(),
            architecture: bulkhead_types::go_arch(),
            cgroup_v1,
            no_cpu_quota: cgroup_v1 && cpu.exists() && !cpu.join("cpu.cfs_quota_us").exists(),
        }
    }
}

/// The first that can be read counts.
const OS_RELEASE: [&str; 2] = ["/etc/os-release", "/usr/lib/os-release"];

/// `CGROUP2_SUPER_MAGIC` of linux/magic.h.
const CGROUP2_MAGIC: i128 = 0x6367_7270;

fn read(path: &str) -> Option<String> {
    text_of(std::fs::File::open(path).ok()?)
}

fn text_of(file: std::fs::File) -> Option<String> {
    use std::io::Read as _;
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The text without white space and NUL at its ends (the device tree ends its texts with one); none when empty.
fn line_of(path: &str) -> Option<String> {
    read(path).and_then(|text| trimmed(&text))
}

fn trimmed(text: &str) -> Option<String> {
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!text.is_empty()).then(|| text.to_owned())
}

async fn product_uuid(broker: &BrokerClient) -> Option<String> {
    match broker.open(Kind::ProductUuid(ProductUuid {})).await {
        Ok(fd) => text_of(fd.into()).and_then(|text| trimmed(&text)),
        Err(error) => {
            tracing::debug!(%error, "no product UUID");
            None
        }
    }
}

/// `PRETTY_NAME` of os-release, "Linux" when it has none (cAdvisor `machine/operatingsystem_unix.go`).
fn os_image(text: &str) -> String {
    text.lines()
        .find_map(|line| line.trim().strip_prefix("PRETTY_NAME="))
        .map_or_else(|| "Linux".to_owned(), |value| value.trim_matches(['"', '\'']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_systems() {
        assert_eq!(
            os_image("NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n"),
            "Debian GNU/Linux 12 (bookworm)"
        );
        assert_eq!(os_image("PRETTY_NAME=Plain\n"), "Plain");
        assert_eq!(os_image("NAME=x\n"), "Linux");
        assert_eq!(trimmed(" a-b\n").as_deref(), Some("a-b"));
        assert_eq!(trimmed("uuid\0").as_deref(), Some("uuid"));
        assert_eq!(trimmed("\n"), None);
    }

    #[test]
    fn an_upgraded_system_has_its_new_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("os-release");
        let path = path.to_str().unwrap();
        let mut facts = Facts { os_image: "Old".to_owned(), kernel_version: "6".to_owned(), ..Facts::default() };
        facts.read_os_release(&["/nowhere", path]);
        assert_eq!(facts.os_image, "Old");
        std::fs::write(path, "PRETTY_NAME=New\n").unwrap();
        facts.read_os_release(&["/nowhere", path]);
        assert_eq!((facts.os_image.as_str(), facts.kernel_version.as_str()), ("New", "6"));
    }

    #[test]
    fn this_machine_has_a_kernel_and_a_boot_id() {
        let facts = Facts::without_system_uuid();
        assert!(!facts.kernel_version.contains(char::is_whitespace) && !facts.kernel_version.is_empty());
        assert_eq!(facts.boot_id.len(), 36);
        assert!(!facts.architecture.is_empty());
    }
}
