//! Where a driver's program is, and whether it may be run: `<volumePluginDir>/<vendor~driver>/<driver>`, as upstream's prober has it.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_sys::open::{self, FileKind};
use bulkhead_types::{FlexDriver, chain};
use rustix::fs::{OFlags, Stat};

/// The driver's program. Root is given by whoever can write here, so all of it is root's: the folder of drivers and what is above it
/// (where links of root's may lead), the driver's own folder and its program, which are no links.
///
/// # Errors
/// There is none, or somebody else could have put it there.
pub fn find(drivers: &Path, driver: &FlexDriver) -> Result<PathBuf, String> {
    let path = drivers.join(driver.folder()).join(driver.program());
    let missing =
        || format!("no volume plugin matched: there is no FlexVolume driver {driver}, {} is missing", path.display());
    let folder = match open::operator(drivers, FileKind::Directory) {
        Ok(folder) => folder,
        Err(error) if error.is_not_found() => return Err(missing()),
        Err(error) => {
            return Err(format!("FlexVolume drivers in {} are not used: {}", drivers.display(), chain(&error)));
        }
    };
    let own = entry(&folder, &driver.folder(), OFlags::DIRECTORY, &path).map_err(|why| why.unwrap_or_else(missing))?;
    let (_, is) = own;
    trusted(&is, &drivers.join(driver.folder()))?;
    let relative = Path::new(&driver.folder()).join(driver.program()).to_string_lossy().into_owned();
    let (_, is) = entry(&folder, &relative, OFlags::empty(), &path).map_err(|why| why.unwrap_or_else(missing))?;
    trusted(&is, &path)?;
    if rustix::fs::FileType::from_raw_mode(is.st_mode) != rustix::fs::FileType::RegularFile || is.st_mode & 0o111 == 0 {
        return Err(format!("{} is no program", path.display()));
    }
    Ok(path)
}

/// Without following links. `None`: it is not there.
fn entry(folder: &OwnedFd, relative: &str, flags: OFlags, path: &Path) -> Result<(OwnedFd, Stat), Option<String>> {
    let handle = match open::beneath(folder.as_fd(), relative, OFlags::PATH | OFlags::NOFOLLOW | flags, 0) {
        Ok(handle) => handle,
        Err(error) if error.is_not_found() => return Err(None),
        Err(error) => {
            return Err(Some(format!("{} is not run, no link may be on the way: {}", path.display(), chain(&error))));
        }
    };
    let is = rustix::fs::fstat(&handle).map_err(|errno| Some(format!("{}: {errno}", path.display())))?;
    if rustix::fs::FileType::from_raw_mode(is.st_mode) == rustix::fs::FileType::Symlink {
        return Err(Some(format!("{} is not run: it is a link", path.display())));
    }
    Ok((handle, is))
}

fn trusted(is: &Stat, path: &Path) -> Result<(), String> {
    if is.st_uid != 0 {
        return Err(format!("no driver is run there: {} does not belong to root", path.display()));
    }
    if open::others_may_write(is) {
        return Err(format!("no driver is run there: {} may be written by others than root", path.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use bulkhead_testkit::skip::{Lack, skip_this_test};

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn whose_it_is_and_who_may_write() {
        let folder = tempfile::tempdir().unwrap();
        let mut is = rustix::fs::stat(folder.path()).unwrap();
        for (uid, bits, says) in [
            (0, 0o755, None),
            (0, 0o1755, None),
            (0, 0o777, Some("may be written by others than root")),
            (0, 0o757, Some("may be written by others than root")),
            (12345, 0o755, Some("does not belong to root")),
            (12345, 0o777, Some("does not belong to root")),
        ] {
            (is.st_uid, is.st_mode) = (uid, is.st_mode & !0o7777 | bits);
            let refused = trusted(&is, Path::new("/drivers/v~d")).err();
            assert_eq!(refused.is_some(), says.is_some(), "{uid} {bits:o}");
            let why = refused.unwrap_or_default();
            assert!(says.is_none_or(|says| why.contains(says) && why.contains("/drivers/v~d")), "{why}");
        }
    }

    #[test]
    fn only_what_root_alone_can_have_put_there() {
        if !rustix::process::geteuid().is_root() {
            return skip_this_test(Lack::Root).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let drivers = folder.path().join("drivers");
        let own = drivers.join("v~d");
        std::fs::create_dir_all(&own).unwrap();
        mode(folder.path(), 0o755);
        let program = own.join("d");
        let driver = FlexDriver::parse("v/d").unwrap();
        let refused = |says: &str| {
            let why = find(&drivers, &driver).unwrap_err();
            assert!(why.contains(says), "{why}");
        };
        refused("there is no FlexVolume driver v/d");
        std::fs::write(&program, "#!/bin/sh\n").unwrap();
        mode(&program, 0o644);
        refused("is no program");
        mode(&program, 0o755);
        assert_eq!(find(&drivers, &driver).unwrap(), program);
        for (path, bad, good) in [(&program, 0o777, 0o755), (&own, 0o757, 0o755), (&drivers, 0o757, 0o755)] {
            mode(path, bad);
            assert!(find(&drivers, &driver).is_err(), "{}", path.display());
            mode(path, good);
        }
        for path in [&program, &own, &drivers, &folder.path().to_owned()] {
            chown(path, Some(12345), None).unwrap();
            assert!(find(&drivers, &driver).is_err(), "{}", path.display());
            chown(path, Some(0), None).unwrap();
        }
        assert!(find(&drivers, &driver).is_ok());
        let elsewhere = folder.path().join("elsewhere");
        std::fs::rename(&program, &elsewhere).unwrap();
        symlink(&elsewhere, &program).unwrap();
        refused("it is a link");
        std::fs::remove_file(&program).unwrap();
        std::fs::remove_dir(&own).unwrap();
        std::fs::create_dir(folder.path().join("other")).unwrap();
        std::fs::rename(&elsewhere, folder.path().join("other/d")).unwrap();
        symlink(folder.path().join("other"), &own).unwrap();
        assert!(find(&drivers, &driver).is_err(), "its folder is a link");
        assert!(find(Path::new("/no/such/folder"), &driver).unwrap_err().contains("is missing"));
    }
}
