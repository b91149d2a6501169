//! How a disk behind Fibre Channel is named, and its folder with it (upstream `pkg/volume/fc`). Pure.

use bulkhead_ipc::common::FcDisk;

use crate::validate::{InvalidRequest, bad};

/// More paths than any machine has to one disk.
const MAX_NAMES: usize = 32;
/// Longest name of a folder, bytes.
const MAX_FOLDER: usize = 255;
/// Upstream's folder of maps, in which no disk may be.
const MAPS: &str = "volumeDevices";

/// A disk by its targets' world wide names, or by identifiers of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    wwns: Vec<String>,
    lun: u32,
    wwids: Vec<String>,
}

fn is_wwn(text: &str) -> bool {
    (1..=32).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_wwid(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('.') && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/')
}

impl Disk {
    /// As it is asked for. Targets come before identifiers.
    ///
    /// # Errors
    /// Neither is there, or a name is none.
    pub fn parse(wire: Option<FcDisk>) -> Result<Self, InvalidRequest> {
        let FcDisk { target_wwns, lun, wwids } = wire.ok_or(InvalidRequest::Missing { field: "disk" })?;
        let count = target_wwns.len().max(wwids.len());
        if count > MAX_NAMES {
            return Err(InvalidRequest::TooMany { field: "disk", count, max: MAX_NAMES });
        }
        if let Some(wrong) = target_wwns.iter().find(|wwn| !is_wwn(wwn)) {
            return Err(bad("target_wwns", wrong, "1 to 32 hexadecimal digits"));
        }
        let disk = if target_wwns.is_empty() {
            let wwids: Vec<String> = wwids.iter().map(|wwid| wwid.replace(' ', "_")).collect();
            if let Some(wrong) = wwids.iter().find(|wwid| !is_wwid(wwid)) {
                return Err(bad("wwids", wrong, "printable characters without a slash, and no dot at its begin"));
            }
            Disk { wwns: Vec::new(), lun: 0, wwids }
        } else {
            Disk { wwns: target_wwns, lun, wwids: Vec::new() }
        };
        let name = disk.name();
        if name.is_empty() || name == MAPS || name.len() > MAX_FOLDER {
            return Err(bad("disk", &name, "names that make a folder's of at most 255 bytes"));
        }
        Ok(disk)
    }

    /// Its folder's name (upstream makePDNameInternal).
    pub fn name(&self) -> String {
        if self.wwns.is_empty() {
            return self.wwids.join("-");
        }
        format!("{}-lun-{}", self.wwns.join("-"), self.lun)
    }

    /// The disk of a folder (upstream parsePDName). An identifier may have a hyphen in it: the whole name is tried before its parts.
    ///
    /// # Errors
    /// It is no such folder's name.
    pub fn of_folder(name: &str) -> Result<Self, InvalidRequest> {
        let none = || bad("name", name, "the name of a disk's folder");
        if !is_wwid(name) || name == MAPS || name.len() > MAX_FOLDER {
            return Err(none());
        }
        let parts: Vec<String> = name.split('-').map(ToOwned::to_owned).collect();
        if let [wwns @ .., word, lun] = parts.as_slice()
            && word == "lun"
        {
            let lun = lun.parse().map_err(|_| none())?;
            let whole = !wwns.is_empty() && wwns.iter().all(|wwn| is_wwn(wwn));
            return whole.then(|| Disk { wwns: wwns.to_vec(), lun, wwids: Vec::new() }).ok_or_else(none);
        }
        let mut wwids = vec![name.to_owned()];
        wwids.extend(parts.into_iter().filter(|part| !part.is_empty() && part != name));
        Ok(Disk { wwns: Vec::new(), lun: 0, wwids })
    }

    pub fn to_wire(&self) -> FcDisk {
        FcDisk { target_wwns: self.wwns.clone(), lun: self.lun, wwids: self.wwids.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(wwns: &[&str], lun: u32, wwids: &[&str]) -> Option<FcDisk> {
        let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Some(FcDisk { target_wwns: all(wwns), lun, wwids: all(wwids) })
    }

    #[test]
    fn folders_as_upstream_names_them() {
        for (disk, folder) in [
            (wire(&["50060e801049cfd1"], 0, &[]), "50060e801049cfd1-lun-0"),
            (wire(&["50060e801049cfd1", "50060E801049cfd2"], 7, &["x"]), "50060e801049cfd1-50060E801049cfd2-lun-7"),
            (wire(&[], 3, &["3600508b400105e210000900000490000"]), "3600508b400105e210000900000490000"),
            (wire(&[], 0, &["VENDOR  NUMBER 1", "b"]), "VENDOR__NUMBER_1-b"),
        ] {
            let disk = Disk::parse(disk).unwrap();
            assert_eq!(disk.name(), folder);
            let again = Disk::of_folder(folder).unwrap();
            assert_eq!((&again.wwns, again.lun), (&disk.wwns, disk.lun));
            assert!(disk.wwids.iter().all(|wwid| again.wwids.contains(wwid)), "{again:?}");
        }
        assert_eq!(Disk::of_folder("a-b").unwrap().wwids, ["a-b", "a", "b"]);
    }

    #[test]
    fn what_names_no_disk_is_refused() {
        let long = "f".repeat(33);
        let many = ["f"; 33];
        for disk in [
            None,
            wire(&[], 0, &[]),
            wire(&["xyz"], 0, &[]),
            wire(&[""], 0, &[]),
            wire(&[&long], 0, &[]),
            wire(&many, 0, &[]),
            wire(&[], 0, &["../x"]),
            wire(&[], 0, &[".."]),
            wire(&[], 0, &["a/b"]),
            wire(&[], 0, &["a\nb"]),
            wire(&[], 0, &["volumeDevices"]),
            wire(&[], 0, &[""]),
            wire(&[], 0, &[&"x".repeat(256)]),
        ] {
            assert!(Disk::parse(disk.clone()).is_err(), "{disk:?}");
        }
        for name in ["", ".", "..", "a/b", "volumeDevices", "lun-0", "xyz-lun-0", "f-lun-", "f-lun-x", "a b"] {
            assert!(Disk::of_folder(name).is_err(), "{name}");
        }
    }
}
