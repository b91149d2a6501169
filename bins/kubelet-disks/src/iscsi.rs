//! Disks of iSCSI targets (upstream `pkg/volume/iscsi/iscsi_util.go`). Sessions are the machine's iscsid's: iscsiadm asks it over its
//! socket, and nothing of this process goes over a network. So a target is not discovered, which iscsiadm itself would connect for:
//! its record is made of what the volume says.
//!
//! Passwords are written into that record, and stand in no argument.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_helper::{Ended, Program};
use bulkhead_ipc::common::{IscsiChap, IscsiDisk};

use crate::fc::write;
use crate::multipath::{self, names};
use crate::programs::FOLDERS;
use crate::sysfs::{self, Tree};

const ISCSIADM: Program = Program { name: "iscsiadm", folders: FOLDERS };
/// iscsid gives up a login after two minutes by default.
const LONGEST: Duration = Duration::from_secs(150);
/// Upstream deviceDiscoveryTimeout and multipathDeviceTimeout.
const DEVICE: Duration = Duration::from_secs(30);
const MULTIPATH: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Upstream minMultipathCount, minAttachAttempts, maxAttachAttempts.
const PATHS: usize = 2;
const FEW: u32 = 2;
const MANY: u32 = 5;
/// Exit codes of iscsiadm: a session is there already, there is none, there is no record.
const EXISTS: i32 = 15;
const NO_SESSION: i32 = 2;
const NO_RECORD: i32 = 21;
/// Where records are: of Debian's and older ones, of newer ones.
const RECORDS: [&str; 2] = ["etc/iscsi/nodes", "var/lib/iscsi/nodes"];

/// SCSI hosts by portals of a target that sessions lead to (upstream GetISCSIPortalHostMapForTarget).
fn hosts(root: &Path, iqn: &str) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    let read = |path: PathBuf| Some(std::fs::read_to_string(path).ok()?.trim().to_owned());
    for (host, session) in sessions(root, iqn) {
        for name in names(&session).into_iter().filter(|name| name.starts_with("connection")) {
            let connection = session.join(&name).join("iscsi_connection").join(&name);
            for (address, port) in [("address", "port"), ("persistent_address", "persistent_port")] {
                let (address, port) = (read(connection.join(address)), read(connection.join(port)));
                if let (Some(address), Some(port)) = (address, port) {
                    let address = if address.contains(':') { format!("[{address}]") } else { address };
                    found.insert(format!("{address}:{port}"), host);
                }
            }
        }
    }
    found
}

/// Sessions to a target: number of the SCSI host, and folder.
fn sessions(root: &Path, iqn: &str) -> Vec<(u32, PathBuf)> {
    let folder = root.join("sys/class/iscsi_host");
    let mut found = Vec::new();
    for host in names(&folder) {
        let Some(number) = host.strip_prefix("host").and_then(|number| number.parse().ok()) else { continue };
        let device = folder.join(&host).join("device");
        for session in names(&device).into_iter().filter(|name| name.starts_with("session")) {
            let target = device.join(&session).join("iscsi_session").join(&session).join("targetname");
            if std::fs::read_to_string(target).is_ok_and(|name| name.trim() == iqn) {
                found.push((number, device.join(session)));
            }
        }
    }
    found
}

/// Devices of a target's disk, by SCSI host (upstream FindDevicesForISCSILun).
fn devices(root: &Path, iqn: &str, lun: u32) -> BTreeMap<u32, String> {
    let of = |(host, session): (u32, PathBuf)| {
        let disk = session.join(format!("target{host}:0:0")).join(format!("{host}:0:0:{lun}")).join("block");
        Some((host, names(&disk).into_iter().next()?))
    };
    sessions(root, iqn).into_iter().filter_map(of).collect()
}

/// The record of a node: a file by its address, or in a folder of that name one by its interface.
fn record(root: &Path, disk: &IscsiDisk, portal: &str) -> Option<PathBuf> {
    let (address, port) = portal.rsplit_once(':')?;
    let begins = format!("{},{port}", address.trim_matches(['[', ']']));
    let is_it = |name: &String| *name == begins || name.starts_with(&format!("{begins},"));
    for folder in RECORDS.map(|records| root.join(records).join(&disk.iqn)) {
        for path in names(&folder).into_iter().filter(is_it).map(|name| folder.join(name)) {
            let of_interface = path.join(&disk.interface);
            match path.is_dir() {
                true if of_interface.is_file() => return Some(of_interface),
                true => {}
                false => return Some(path),
            }
        }
    }
    None
}

/// The record's text with CHAP in it. Pure.
fn with_chap(text: &str, chap: &IscsiChap) -> String {
    let values = [
        ("node.session.auth.username", &chap.username),
        ("node.session.auth.password", &chap.password),
        ("node.session.auth.username_in", &chap.username_in),
        ("node.session.auth.password_in", &chap.password_in),
    ];
    let is_ours = |line: &&str| {
        let key = line.split('=').next().unwrap_or_default().trim();
        key == "node.session.auth.authmethod" || values.iter().any(|(name, _)| *name == key)
    };
    let mut lines: Vec<String> = text.lines().filter(|line| !is_ours(line)).map(str::to_owned).collect();
    let end = lines.iter().position(|line| line.starts_with("# END RECORD")).unwrap_or(lines.len());
    let set = values.into_iter().filter(|(_, value)| !value.is_empty());
    let mut added = vec!["node.session.auth.authmethod = CHAP".to_owned()];
    added.extend(set.map(|(name, value)| format!("{name} = {value}")));
    lines.splice(end..end, added);
    lines.push(String::new());
    lines.join("\n")
}

fn write_chap(root: &Path, disk: &IscsiDisk, portal: &str) -> Result<(), String> {
    let Some(chap) = &disk.chap else { return Ok(()) };
    let failed = |why: String| format!("iscsi: failed to update node with CHAP, output: {why}");
    let record = record(root, disk, portal).ok_or_else(|| failed("its record is not found".to_owned()))?;
    let text = std::fs::read_to_string(&record).map_err(|error| failed(error.to_string()))?;
    // The file is root's alone already, and stays the same file.
    std::fs::write(&record, with_chap(&text, chap)).map_err(|error| failed(error.to_string()))
}

async fn iscsiadm(environment: Vec<(OsString, OsString)>, arguments: &[&str]) -> io::Result<Ended> {
    ISCSIADM.run_in(environment, arguments, LONGEST).await.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            io::Error::new(error.kind(), "executable file iscsiadm not found (the package open-iscsi has it)")
        }
        _ => error,
    })
}

/// Ends well, or with one of these codes.
async fn done(arguments: &[&str], or: &[i32]) -> Result<String, String> {
    done_in(Vec::new(), arguments, or).await
}

async fn done_in(environment: Vec<(OsString, OsString)>, arguments: &[&str], or: &[i32]) -> Result<String, String> {
    let ended = iscsiadm(environment, arguments).await.map_err(|error| error.to_string())?;
    match ended.code {
        Some(code) if code == 0 || or.contains(&code) => Ok(ended.output),
        Some(code) => Err(format!("{} (exit status {code})", ended.output)),
        None => Err(format!("{} (ended by a signal)", ended.output)),
    }
}

/// Parameters of an interface that are set, but for its name (upstream parseIscsiadmShow). Pure.
fn parameters(shown: &str) -> BTreeMap<String, String> {
    let line = |line: &str| {
        let (key, value) = line.split_once(" = ")?;
        let is_set = key.starts_with("iface.") && key != "iface.iscsi_ifacename" && !value.contains("<empty>");
        is_set.then(|| (key.to_owned(), value.trim().to_owned()))
    };
    shown.lines().filter_map(line).collect()
}

/// An interface of the initiator's name, made of one that is there.
async fn clone_interface(disk: &IscsiDisk, shown: &str) -> Result<(), String> {
    let mut parameters = parameters(shown);
    parameters.insert("iface.initiatorname".to_owned(), disk.initiator_name.clone());
    let new = done(&["-m", "iface", "-I", &disk.interface, "-o", "new"], &[EXISTS]).await;
    new.map_err(|why| format!("iscsi: failed to create new iface: {why}"))?;
    for (key, value) in &parameters {
        let update = ["-m", "iface", "-I", &disk.interface, "-o", "update", "-n", key, "-v", value];
        if let Err(why) = done(&update, &[]).await {
            let _ = done(&["-m", "iface", "-I", &disk.interface, "-o", "delete"], &[]).await;
            return Err(format!(
                "iscsi: failed to update iface records: {why}. iface({}) will be used",
                disk.init_interface
            ));
        }
    }
    Ok(())
}

/// Opens a session to a portal.
async fn log_in(root: &Path, disk: &IscsiDisk, portal: &str) -> Result<(), String> {
    let of_node = |more: &[&'static str]| -> Vec<String> {
        let node = ["-m", "node", "-p", portal, "-T", &disk.iqn, "-I", &disk.interface].into_iter();
        node.chain(more.iter().copied()).map(str::to_owned).collect()
    };
    let run = |arguments: Vec<String>, or: &'static [i32]| async move {
        done(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), or).await
    };
    let made = run(of_node(&["-o", "new"]), &[EXISTS]).await;
    made.map_err(|why| format!("iscsi: failed to make a node record of portal {portal}: {why}"))?;
    for setting in [["node.session.scan", "manual"], ["node.startup", "manual"]] {
        // Older ones do not know the first.
        if let Err(why) = run(of_node(&["-o", "update", "-n", setting[0], "-v", setting[1]]), &[]).await {
            tracing::warn!(portal, "iscsi: failed to update node with {}={}: {why}", setting[0], setting[1]);
        }
    }
    let chap = write_chap(root, disk, portal);
    let logged_in = match chap {
        Ok(()) => {
            let done = run(of_node(&["--login"]), &[EXISTS]).await;
            done.map_err(|why| format!("iscsi: failed to attach disk: Error: {why}"))
        }
        Err(why) => Err(why),
    };
    if logged_in.is_err() {
        let _ = run(of_node(&["-o", "delete"]), &[]).await;
    }
    logged_in.map(drop)
}

/// Waits for what is looked for.
async fn until<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = tokio::time::Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if tokio::time::Instant::now() >= deadline {
            return None;
        }
        // Nobody tells of a new folder in /sys.
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Opens what sessions are missing and scans for the one disk. Answers its device.
///
/// # Errors
/// No path leads to it, in upstream's words.
pub async fn attach(root: &Path, disk: &IscsiDisk) -> Result<PathBuf, String> {
    let shown = done(&["-m", "iface", "-I", &disk.init_interface, "-o", "show"], &[]).await;
    let shown = shown.map_err(|why| format!("iscsi: could not read iface {} error: {why}", disk.init_interface))?;
    if !disk.initiator_name.is_empty() {
        clone_interface(disk, &shown).await?;
    }
    let mut found: BTreeMap<&str, String> = BTreeMap::new();
    let mut last = String::new();
    for attempt in 1..=MANY {
        for portal in &disk.portals {
            if found.contains_key(portal.as_str()) {
                continue;
            }
            match path(root, disk, portal).await {
                Ok(device) => drop(found.insert(portal, device)),
                Err(why) => last = why,
            }
        }
        if found.is_empty() {
            if !disk.initiator_name.is_empty() {
                let _ = done(&["-m", "iface", "-I", &disk.interface, "-o", "delete"], &[]).await;
            }
            return Err(format!("failed to get any path for iscsi disk, last err seen:\n{last}"));
        }
        if found.len() == disk.portals.len() || (found.len() >= PATHS && attempt >= FEW) {
            break;
        }
    }
    let limit = if disk.portals.len() > 1 { MULTIPATH } else { Duration::ZERO };
    let joined = until(limit, || found.values().find_map(|device| multipath::parent(root, device))).await;
    let device = joined.or_else(|| found.into_values().next()).unwrap_or_default();
    tracing::info!(device, iqn = disk.iqn, "iscsi: attached the disk");
    Ok(Path::new("/dev").join(device))
}

/// The device by one portal.
async fn path(root: &Path, disk: &IscsiDisk, portal: &str) -> Result<String, String> {
    let mut host = hosts(root, &disk.iqn).get(portal).copied();
    if host.is_none() {
        log_in(root, disk, portal).await?;
        host = hosts(root, &disk.iqn).get(portal).copied();
    }
    let host = host.ok_or_else(|| format!("Could not get SCSI host number for portal {portal} after logging in"))?;
    let scan = root.join(format!("sys/class/scsi_host/host{host}/scan"));
    write(&scan, &format!("0 0 {}", disk.lun)).map_err(|error| format!("{}: {error}", scan.display()))?;
    let device = until(DEVICE, || devices(root, &disk.iqn, disk.lun).remove(&host)).await;
    device
        .ok_or_else(|| format!("Timed out waiting for device of LUN {} at portal {portal} after {DEVICE:?}", disk.lun))
}

/// Names of the devices that lead to a disk.
pub fn paths(root: &Path, disk: &IscsiDisk) -> Vec<String> {
    devices(root, &disk.iqn, disk.lun).into_values().collect()
}

/// Closes the target's sessions, and forgets it.
///
/// # Errors
/// iscsiadm's.
pub async fn log_out(root: &Path, disk: &IscsiDisk) -> Result<(), String> {
    let tree = Tree::make(root).map_err(|error| format!("iscsi: a tree of /sys for iscsiadm: {error}"))?;
    for portal in &disk.portals {
        let node = ["-m", "node", "-p", portal, "-T", &disk.iqn, "-I", &disk.interface];
        for more in [&["--logout"][..], &["-o", "delete"]] {
            let arguments = [&node[..], more].concat();
            let environment = vec![(sysfs::VARIABLE.into(), tree.path().into())];
            done_in(environment, &arguments, &[NO_RECORD, NO_SESSION])
                .await
                .map_err(|why| format!("iscsi: {}: {why}", more.join(" ")))?;
        }
        tracing::info!(portal, iqn = disk.iqn, "iscsi: log out target");
    }
    if !disk.initiator_name.is_empty() {
        let delete = ["-m", "iface", "-I", &disk.interface, "-o", "delete"];
        done(&delete, &[NO_RECORD, NO_SESSION])
            .await
            .map_err(|why| format!("iscsi: failed to delete iface Error: {why}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const IQN: &str = "iqn.2003-01.test:disk";

    fn put(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// As recorded of two sessions to one target, one over IPv6, and one to another.
    fn machine() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (host, session, iqn, address, device) in [
            (3, 1, IQN, "10.0.0.1", "sda"),
            (4, 2, IQN, "fd00::1", "sdb"),
            (5, 3, "iqn.2003-01.test:other", "10.0.0.1", "sdc"),
        ] {
            let at = format!("sys/class/iscsi_host/host{host}/device/session{session}");
            put(folder.path(), &format!("{at}/iscsi_session/session{session}/targetname"), &format!("{iqn}\n"));
            let connection = format!("{at}/connection{session}:0/iscsi_connection/connection{session}:0");
            for (file, text) in
                [("address", address), ("port", "3260"), ("persistent_address", address), ("persistent_port", "3261")]
            {
                put(folder.path(), &format!("{connection}/{file}"), &format!("{text}\n"));
            }
            put(folder.path(), &format!("{at}/target{host}:0:0/{host}:0:0:7/block/{device}/dev"), "8:0\n");
        }
        folder
    }

    #[test]
    fn sessions_and_devices_of_a_target() {
        let machine = machine();
        let found = hosts(machine.path(), IQN);
        let wanted = [("10.0.0.1:3260", 3), ("10.0.0.1:3261", 3), ("[fd00::1]:3260", 4), ("[fd00::1]:3261", 4)];
        assert_eq!(found, wanted.map(|(portal, host)| (portal.to_owned(), host)).into());
        assert_eq!(devices(machine.path(), IQN, 7), [(3, "sda".to_owned()), (4, "sdb".to_owned())].into());
        assert!(devices(machine.path(), IQN, 0).is_empty() && hosts(machine.path(), "iqn.none").is_empty());
        assert!(hosts(Path::new("/nowhere"), IQN).is_empty());
    }

    #[test]
    fn passwords_are_in_the_record() {
        let text = "# BEGIN RECORD 2.1.8\nnode.name = x\nnode.session.auth.authmethod = None\n\
                    node.session.auth.password = old\nnode.session.auth.chap_algs = MD5\n# END RECORD\n";
        let chap = IscsiChap { username: "u".into(), password: "p = q".into(), ..IscsiChap::default() };
        assert_eq!(
            with_chap(text, &chap),
            "# BEGIN RECORD 2.1.8\nnode.name = x\nnode.session.auth.chap_algs = MD5\nnode.session.auth.authmethod = CHAP\n\
             node.session.auth.username = u\nnode.session.auth.password = p = q\n# END RECORD\n"
        );
        let folder = tempfile::tempdir().unwrap();
        let disk = |interface: &str| IscsiDisk {
            iqn: IQN.into(),
            interface: interface.into(),
            chap: Some(chap.clone()),
            ..IscsiDisk::default()
        };
        put(folder.path(), &format!("etc/iscsi/nodes/{IQN}/10.0.0.1,3260"), text);
        put(folder.path(), &format!("var/lib/iscsi/nodes/{IQN}/fd00::1,3260,1/default"), text);
        put(folder.path(), &format!("var/lib/iscsi/nodes/{IQN}/10.0.0.1,32600,1/default"), text);
        for (portal, interface, file) in [
            ("10.0.0.1:3260", "default", Some(format!("etc/iscsi/nodes/{IQN}/10.0.0.1,3260"))),
            ("[fd00::1]:3260", "default", Some(format!("var/lib/iscsi/nodes/{IQN}/fd00::1,3260,1/default"))),
            ("[fd00::1]:3260", "other", None),
            ("10.0.0.2:3260", "default", None),
        ] {
            let found = record(folder.path(), &disk(interface), portal);
            assert_eq!(found, file.map(|file| folder.path().join(file)), "{portal}");
            assert_eq!(write_chap(folder.path(), &disk(interface), portal).is_ok(), found.is_some());
        }
        let written = std::fs::read_to_string(folder.path().join(format!("etc/iscsi/nodes/{IQN}/10.0.0.1,3260")));
        assert!(written.unwrap().contains("node.session.auth.password = p = q\n# END RECORD"));
    }

    #[test]
    fn an_interface_is_made_of_another() {
        let shown = "# BEGIN RECORD 2.1.8\niface.iscsi_ifacename = default\niface.transport_name = tcp\n\
                     iface.ipaddress = <empty>\niface.mtu = 0\n# END RECORD\n";
        let wanted = [("iface.transport_name", "tcp"), ("iface.mtu", "0")];
        assert_eq!(parameters(shown), wanted.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    }
}
