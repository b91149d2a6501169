//! The folders that a driver mounts a volume on, built of ids: a pod's, `<root>/pods/<uid>/volumes/<vendor~driver>/<volume>`, and the
//! one of all pods, `<root>/plugins/kubernetes.io/flexvolume/<driver>/mounts/<volume>`.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use bulkhead_sys::open;
use bulkhead_types::{FlexDriver, PodUid, VolumeName, chain};

/// A pod's. `is_empty`: nothing is mounted on it, so that it is looked at as well; what is mounted may never answer, and is not entered.
/// kubelet-volnetd has made all of it, and no pod can write above a volume.
///
/// # Errors
/// It is not there, or there is a link on the way.
pub fn of_pod(
    root: &Path,
    pod: &PodUid,
    driver: &FlexDriver,
    volume: &VolumeName,
    is_empty: bool,
) -> Result<PathBuf, String> {
    find(root, &Path::new("pods").join(pod.as_str()).join("volumes").join(driver.folder()), volume, is_empty)
}

/// The one of all pods. `is_empty`: as a pod's.
///
/// # Errors
/// As a pod's.
pub fn of_device(root: &Path, driver: &FlexDriver, volume: &VolumeName, is_empty: bool) -> Result<PathBuf, String> {
    find(root, &driver.mounts(), volume, is_empty)
}

fn find(root: &Path, parent: &Path, volume: &VolumeName, is_empty: bool) -> Result<PathBuf, String> {
    let path = root.join(parent).join(volume.as_str());
    let look = || {
        let folder = open::dir_beneath(open::base_dir(root)?.as_fd(), parent)?;
        if is_empty {
            open::dir_beneath(folder.as_fd(), volume.as_str())?;
        }
        Ok::<_, open::OpenError>(())
    };
    look().map_err(|error| format!("{} is no volume's folder: {}", path.display(), chain(&error)))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_a_folder_without_a_link_on_the_way() {
        let root = tempfile::tempdir().unwrap();
        let (pod, volume) = (PodUid::parse("p").unwrap(), VolumeName::parse("v").unwrap());
        let driver = FlexDriver::parse("a/b").unwrap();
        let at = |is_empty| of_pod(root.path(), &pod, &driver, &volume, is_empty);
        assert!(at(false).is_err());
        let folder = root.path().join("pods/p/volumes/a~b");
        std::fs::create_dir_all(&folder).unwrap();
        assert!(at(true).is_err());
        assert_eq!(at(false).unwrap(), folder.join("v"));
        std::fs::create_dir(folder.join("v")).unwrap();
        assert_eq!(at(true).unwrap(), folder.join("v"));
        std::fs::rename(&folder, root.path().join("else")).unwrap();
        std::os::unix::fs::symlink(root.path().join("else"), &folder).unwrap();
        assert!(at(true).is_err() && at(false).is_err());
        let once = |is_empty| of_device(root.path(), &driver, &volume, is_empty);
        assert!(once(false).is_err());
        let folder = root.path().join("plugins/kubernetes.io/flexvolume/a/b/mounts/v");
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(once(true).unwrap(), folder);
    }
}
