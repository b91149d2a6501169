//! hostPath (upstream `pkg/volume/hostpath/host_path.go`): nothing is mounted, the runtime binds the path. Here its type
//! is checked, and it is created for the two ...OrCreate types. Nothing is ever removed.
//!
//! The path is the pod's own word and resolved as the host resolves any path: whoever may use hostPath may name any
//! file of the host. Messages are upstream's, tools match on them.

use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The API's `hostPath.type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostPathType {
    Unset,
    DirectoryOrCreate,
    Directory,
    FileOrCreate,
    File,
    Socket,
    CharDevice,
    BlockDevice,
}

/// Why the path is not what the pod says.
#[derive(Debug, thiserror::Error)]
pub enum HostPathError {
    #[error("hostPath type check failed: {path} is not {wanted}")]
    Type { path: PathBuf, wanted: &'static str },
    #[error("failed to create the hostPath {path}")]
    Create { path: PathBuf, source: io::Error },
}

/// Checks, and creates where the type says so.
pub fn check(path: &Path, wanted: HostPathType) -> Result<(), HostPathError> {
    let create_error = |source| HostPathError::Create { path: path.to_owned(), source };
    // Links are followed; a dangling one, or a way that cannot be searched, is "does not exist" as upstream has it.
    let exists = path.exists();
    let file_type = || std::fs::metadata(path).ok().map(|m| m.file_type());
    let fail = |wanted| Err(HostPathError::Type { path: path.to_owned(), wanted });
    match wanted {
        HostPathType::Unset => return Ok(()),
        HostPathType::DirectoryOrCreate if !exists => {
            let mut builder = std::fs::DirBuilder::new();
            return builder.recursive(true).mode(0o755).create(path).map_err(create_error);
        }
        HostPathType::FileOrCreate if !exists => {
            // The parent must exist.
            let mut options = std::fs::OpenOptions::new();
            return options.read(true).append(true).create(true).mode(0o644).open(path).map(drop).map_err(create_error);
        }
        _ => {}
    }
    let file_type = file_type();
    let is = |check: fn(&std::fs::FileType) -> bool| file_type.as_ref().is_some_and(check);
    match wanted {
        HostPathType::Unset => Ok(()),
        HostPathType::DirectoryOrCreate | HostPathType::Directory if !is(|t| t.is_dir()) => fail("a directory"),
        HostPathType::FileOrCreate | HostPathType::File if !is(|t| t.is_file()) => fail("a file"),
        HostPathType::Socket if !is(|t| t.is_socket()) => fail("a socket file"),
        HostPathType::CharDevice if !is(|t| t.is_char_device()) => fail("a character device"),
        HostPathType::BlockDevice if !is(|t| t.is_block_device()) => fail("a block device"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn each_type_against_each_object() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("dir")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        std::os::unix::fs::symlink("dir", at("link")).unwrap();
        std::os::unix::fs::symlink("none", at("dangling")).unwrap();
        let objects = ["dir", "file", "socket", "link", "null", "none", "fifo"];
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        use HostPathType::*;
        let table: [(HostPathType, &[&str], &str); 6] = [
            (Unset, &objects, ""),
            (Directory, &["dir", "link"], "a directory"),
            (File, &["file"], "a file"),
            (Socket, &["socket"], "a socket file"),
            (CharDevice, &["null"], "a character device"),
            (BlockDevice, &[], "a block device"),
        ];
        for (wanted, good, message) in table {
            for object in objects {
                let path = if object == "null" { PathBuf::from("/dev/null") } else { at(object) };
                match check(&path, wanted) {
                    Ok(()) => assert!(good.contains(&object), "{wanted:?} {object}"),
                    Err(err) => {
                        assert!(!good.contains(&object), "{wanted:?} {object}: {err}");
                        assert_eq!(
                            err.to_string(),
                            format!("hostPath type check failed: {} is not {message}", path.display())
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn or_create_creates_once() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b");
        for _ in 0..2 {
            check(&deep, HostPathType::DirectoryOrCreate).unwrap();
        }
        assert_eq!(std::fs::metadata(&deep).unwrap().permissions().mode() & 0o777, 0o755);
        let file = deep.join("f");
        check(&file, HostPathType::FileOrCreate).unwrap();
        std::fs::write(&file, "kept").unwrap();
        check(&file, HostPathType::FileOrCreate).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"kept");
        assert!(matches!(
            check(&dir.path().join("x/f"), HostPathType::FileOrCreate),
            Err(HostPathError::Create { .. })
        ));
        assert!(check(&file, HostPathType::DirectoryOrCreate).is_err());
        assert!(check(&deep, HostPathType::FileOrCreate).is_err());
    }
}
