//! How a disk of an iSCSI target is named, its folder with it, and what is written there for whoever detaches it (upstream
//! `pkg/volume/iscsi`). Pure but for that file.

use std::collections::HashSet;
use std::io::Read as _;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};

use bulkhead_ipc::common::{IscsiChap, IscsiDisk};
use bulkhead_sys::open;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::validate::{InvalidRequest, bad};

/// More than a target has: each is logged in at, one after the other.
const MAX_PORTALS: usize = 32;
/// Longest name of anything, bytes; RFC 3720 gives names 223.
const MAX_NAME: usize = 223;
/// Upstream's file in a disk's folder.
pub const FILE: &str = "iscsi.json";
/// More than it ever has.
const MAX_FILE: u64 = 64 * 1024;

/// A disk of a target, without what only a login needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    portals: Vec<String>,
    iqn: String,
    lun: u32,
    interface: String,
    init_interface: String,
    initiator_name: String,
}

/// As Go's encoder writes upstream's iscsiDisk.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Written {
    vol_name: String,
    portals: Vec<String>,
    iqn: String,
    lun: String,
    init_iface: String,
    iface: String,
    #[serde(default)]
    initiator_name: String,
    #[serde(default)]
    metrics_provider: Option<serde_json::Value>,
}

/// Letters, digits, and what stands between them in names, addresses and interfaces.
fn is_word(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".:-_[]".contains(&byte);
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(is_plain) && !text.starts_with(['.', '-'])
}

fn is_portal(text: &str) -> bool {
    let Some((address, port)) = text.rsplit_once(':') else { return false };
    let inner = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_address = match inner {
        Some(inner) => inner.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6()),
        None => address.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4()) || is_host_name(address),
    };
    is_address && port.parse::<u16>().is_ok_and(|port| port != 0)
}

/// A name that iscsid resolves; one that ends with a number would be an address (WHATWG URL, "ends in a number").
fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(is_plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last_is_name = text.rsplit('.').next().is_some_and(|last| last.bytes().any(|byte| !byte.is_ascii_digit()));
    text.len() <= MAX_NAME && text.split('.').all(is_label) && last_is_name
}

fn is_target(text: &str) -> bool {
    is_word(text) && ["iqn.", "eui.", "naa."].iter().any(|kind| text.starts_with(kind))
}

fn is_secret(text: &str) -> bool {
    text.len() <= 255 && !text.chars().any(char::is_control)
}

/// CHAP, as it may be written into a record.
///
/// # Errors
/// A value has more than one line.
pub fn chap(chap: Option<&IscsiChap>) -> Result<(), InvalidRequest> {
    let Some(chap) = chap else { return Ok(()) };
    let all = [&chap.username, &chap.password, &chap.username_in, &chap.password_in];
    if all.into_iter().all(|text| is_secret(text)) {
        return Ok(());
    }
    Err(bad("chap", "", "values of at most 255 bytes without control characters"))
}

impl Disk {
    /// As it is asked for.
    ///
    /// # Errors
    /// A name is none.
    pub fn parse(wire: &IscsiDisk) -> Result<Self, InvalidRequest> {
        let IscsiDisk { portals: all, iqn, lun, interface, init_interface, initiator_name, chap: _ } = wire;
        // targetPortal is often named among the portals once more.
        let mut seen = HashSet::new();
        let portals: Vec<String> = all.iter().filter(|portal| seen.insert(*portal)).cloned().collect();
        if portals.len() > MAX_PORTALS {
            return Err(InvalidRequest::TooMany { field: "portals", count: portals.len(), max: MAX_PORTALS });
        }
        let wrong = portals.iter().find(|portal| !is_portal(portal));
        if let Some(wrong) = wrong.map(String::as_str).or(portals.is_empty().then_some("")) {
            return Err(bad("portals", wrong, "an address or a host's name, and a port"));
        }
        if !is_target(iqn) {
            return Err(bad("iqn", iqn, "a target's name: iqn., eui. or naa. and what follows"));
        }
        for (field, text) in [("interface", interface), ("init_interface", init_interface)] {
            if !is_word(text) {
                return Err(bad(field, text, "the name of an interface of iscsiadm's"));
            }
        }
        if !initiator_name.is_empty() && !is_target(initiator_name) {
            return Err(bad("initiator_name", initiator_name, "an initiator's name"));
        }
        Ok(Disk {
            portals,
            iqn: iqn.clone(),
            lun: *lun,
            interface: interface.clone(),
            init_interface: init_interface.clone(),
            initiator_name: initiator_name.clone(),
        })
    }

    /// Its folder's name (upstream makePDNameInternal).
    pub fn name(&self) -> String {
        let first = self.portals.first().map_or("", String::as_str);
        format!("iface-{}/{first}-{}-lun-{}", self.interface, self.iqn, self.lun)
    }

    /// What begins the names of all folders of the target, in any interface's: while another one is there, its sessions stay
    /// (upstream isSessionBusy).
    pub fn begins(&self) -> String {
        format!("{}-{}-lun-", self.portals.first().map_or("", String::as_str), self.iqn)
    }

    /// The disk of a folder, as far as its name tells.
    ///
    /// # Errors
    /// It is no such folder's name.
    pub fn of_folder(name: &str) -> Result<Self, InvalidRequest> {
        let none = || bad("name", name, "the name of a disk's folder");
        let (interface, disk) = name.strip_prefix("iface-").and_then(|rest| rest.split_once('/')).ok_or_else(none)?;
        let (portal, rest) = ["-iqn.", "-eui.", "-naa."]
            .iter()
            .find_map(|kind| disk.find(kind))
            .map(|at| disk.split_at(at))
            .ok_or_else(none)?;
        let (iqn, lun) = rest[1..].rsplit_once("-lun-").ok_or_else(none)?;
        let wire = IscsiDisk {
            portals: vec![portal.to_owned()],
            iqn: iqn.to_owned(),
            lun: lun.parse().map_err(|_| none())?,
            interface: interface.to_owned(),
            init_interface: interface.to_owned(),
            ..IscsiDisk::default()
        };
        Disk::parse(&wire)
    }

    pub fn to_wire(&self) -> IscsiDisk {
        IscsiDisk {
            portals: self.portals.clone(),
            iqn: self.iqn.clone(),
            lun: self.lun,
            interface: self.interface.clone(),
            init_interface: self.init_interface.clone(),
            initiator_name: self.initiator_name.clone(),
            chap: None,
        }
    }

    /// Upstream's file, to the byte.
    pub fn written(&self, volume: &str) -> String {
        let written = Written {
            vol_name: volume.to_owned(),
            portals: self.portals.clone(),
            iqn: self.iqn.clone(),
            lun: self.lun.to_string(),
            init_iface: self.init_interface.clone(),
            iface: self.interface.clone(),
            initiator_name: self.initiator_name.clone(),
            metrics_provider: None,
        };
        serde_json::to_string(&written).map(|text| text + "\n").unwrap_or_default()
    }

    /// What the file in its folder says besides; the folder's name counts where they differ.
    #[must_use]
    pub fn with_written(self, text: &str) -> Self {
        let Ok(written) = serde_json::from_str::<Written>(text) else { return self };
        let wire = IscsiDisk {
            portals: written.portals,
            iqn: written.iqn,
            lun: written.lun.parse().unwrap_or(u32::MAX),
            interface: written.iface,
            init_interface: written.init_iface,
            initiator_name: written.initiator_name,
            chap: None,
        };
        Disk::parse(&wire).ok().filter(|disk| disk.name() == self.name()).unwrap_or(self)
    }
}

/// Writes the file into a disk's folder, if it is not there.
///
/// # Errors
/// The disk is full, or something else is in its place.
pub fn write(folder: &OwnedFd, text: &str) -> std::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW;
    let file = open::beneath(folder.as_fd(), FILE, flags, 0o644).map_err(std::io::Error::other)?;
    let mut file = std::fs::File::from(file);
    std::io::Write::write_all(&mut file, text.as_bytes())?;
    file.sync_all()
}

/// What it says; empty where there is none.
pub fn read(folder: &OwnedFd) -> String {
    let Ok(file) = open::beneath(folder.as_fd(), FILE, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK, 0) else {
        return String::new();
    };
    let mut text = String::new();
    let read = std::fs::File::from(file).take(MAX_FILE).read_to_string(&mut text);
    read.map(|_| text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire() -> IscsiDisk {
        IscsiDisk {
            portals: vec!["10.0.0.1:3260".into(), "[fd00::1]:3260".into()],
            iqn: "iqn.2003-01.org.linux-iscsi:a-lun-b".into(),
            lun: 3,
            interface: "default".into(),
            init_interface: "default".into(),
            ..IscsiDisk::default()
        }
    }

    #[test]
    fn folders_and_files_as_upstream() {
        let disk = Disk::parse(&wire()).unwrap();
        let name = "iface-default/10.0.0.1:3260-iqn.2003-01.org.linux-iscsi:a-lun-b-lun-3";
        assert_eq!(disk.name(), name);
        assert_eq!(
            disk.written("pv"),
            "{\"VolName\":\"pv\",\"Portals\":[\"10.0.0.1:3260\",\"[fd00::1]:3260\"],\
             \"Iqn\":\"iqn.2003-01.org.linux-iscsi:a-lun-b\",\"Lun\":\"3\",\"InitIface\":\"default\",\"Iface\":\"default\",\
             \"InitiatorName\":\"\",\"MetricsProvider\":null}\n"
        );
        let found = Disk::of_folder(name).unwrap();
        assert_eq!((found.portals.len(), found.iqn.as_str(), found.lun), (1, disk.iqn.as_str(), 3));
        assert_eq!(found.clone().with_written(&disk.written("pv")), disk);
        let another = Disk::parse(&IscsiDisk { lun: 4, ..wire() }).unwrap();
        for text in ["", "{", "{}", &another.written("pv")] {
            assert_eq!(found.clone().with_written(text), found, "{text}");
        }
        assert!(disk.begins() == another.begins() && disk.name().contains(&disk.begins()));
        let by_name = IscsiDisk { portals: vec!["store-1.example:3260".into()], ..wire() };
        assert_eq!(Disk::of_folder(&Disk::parse(&by_name).unwrap().name()).unwrap().portals, by_name.portals);
        let own =
            IscsiDisk { interface: "10.0.0.1:3260:pv".into(), initiator_name: "iqn.2024-01.test:i".into(), ..wire() };
        assert!(Disk::parse(&own).unwrap().name().starts_with("iface-10.0.0.1:3260:pv/10.0.0.1:3260-iqn."));
    }

    #[test]
    fn what_names_no_disk_is_refused() {
        let refused = |change: &dyn Fn(&mut IscsiDisk)| {
            let mut disk = wire();
            change(&mut disk);
            assert!(Disk::parse(&disk).is_err(), "{disk:?}");
        };
        refused(&|disk| disk.portals.clear());
        for portal in [
            "10.0.0.1",
            "10.0.0:1",
            "a..b:1",
            "-a.b:1",
            "a_b:1",
            "10.0.0.1:0",
            "10.0.0.1:x",
            "fd00::1:3260",
            "[10.0.0.1]:1",
            "-p:1",
            "",
        ] {
            refused(&|disk| disk.portals = vec![portal.into()]);
        }
        let many = |count: u32| (1..=count).map(|port| format!("10.0.0.1:{port}")).collect::<Vec<_>>();
        refused(&|disk| disk.portals = many(33));
        let twice = [many(32), many(32)].concat();
        assert_eq!(Disk::parse(&IscsiDisk { portals: twice, ..wire() }).unwrap().to_wire().portals, many(32));
        for iqn in ["", "x", "iqn./../x", "iqn. x", "iqn.a\nb", "--iqn.x"] {
            refused(&|disk| disk.iqn = iqn.into());
        }
        for interface in ["", "..", "a/b", "-I", "a b"] {
            refused(&|disk| disk.interface = interface.into());
            refused(&|disk| disk.init_interface = interface.into());
        }
        refused(&|disk| disk.initiator_name = "me".into());
        for name in [
            "",
            "iface-default",
            "iface-default/x",
            "volumeDevices/x",
            "iface-a/10.0.0.1:1-iqn.x-lun-",
            "iface-/10.0.0.1:1-iqn.x-lun-1",
        ] {
            assert!(Disk::of_folder(name).is_err(), "{name}");
        }
        for secret in ["a\nb", &"x".repeat(256)] {
            assert!(chap(Some(&IscsiChap { password: secret.into(), ..IscsiChap::default() })).is_err());
        }
        assert!(
            chap(None).is_ok() && chap(Some(&IscsiChap { password: "p q".into(), ..IscsiChap::default() })).is_ok()
        );
    }
}
