//! Termination message files: `<root-dir>/pods/<uid>/containers/<container>/<8 hex digits>`, a new one for each start
//! of a container, writable for any user inside it. The runtime's mount list remembers which.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use bulkhead_sys::open;
use bulkhead_types::{ContainerName, PodUid};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::FileError;
use crate::node::Node;
use crate::volumes::pod_dir;

/// Creates an empty file and answers its path.
pub fn create(node: &Node, pod: &PodUid, container: &ContainerName) -> Result<PathBuf, FileError> {
    let base = node.settings.paths.container(pod, container);
    let open_error = |source| FileError::Open { doing: "create", path: base.clone(), source };
    let pod_dir = pod_dir(&node.settings, pod)?;
    let relative = Path::new("containers").join(container.as_str());
    let dir = open::create_dirs_beneath(pod_dir.as_fd(), relative, 0o750).map_err(open_error)?;
    // A clash of 32 random bits is unlikely once and out of the question eight times.
    for _ in 0..8 {
        let mut random = [0; 4];
        getrandom::fill(&mut random).map_err(|e| FileError::Io {
            doing: "name a file in",
            path: base.clone(),
            source: std::io::Error::other(e.to_string()),
        })?;
        let name = format!("{:08x}", u32::from_le_bytes(random));
        match open::beneath(dir.as_fd(), &name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, 0o666) {
            Ok(file) => {
                let path = base.join(&name);
                // Past the umask.
                rustix::fs::fchmod(&file, Mode::from_raw_mode(0o666)).map_err(|e| FileError::Io {
                    doing: "set the mode of",
                    path: path.clone(),
                    source: e.into(),
                })?;
                return Ok(path);
            }
            Err(err) if err.errno() == Some(Errno::EXIST) => {}
            Err(err) => return Err(open_error(err)),
        }
    }
    Err(FileError::Io { doing: "name a file in", path: base, source: std::io::ErrorKind::AlreadyExists.into() })
}
