//! hostPath (upstream `pkg/volume/hostpath/host_path.go`): nothing is mounted, the runtime binds the path. Here its type
//! is checked, and it is created for the two ...OrCreate types. Nothing is ever removed.
//!
//! The path is the pod's own word and resolved as the host resolves any path: whoever may use hostPath may name any
//! file of the host. What is created is a new name: where the last part is a link, dangling ones included, something exists and
//! nothing is created through it. Messages are upstream's, tools match on them.

use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The API's `hostPath.type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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

/// Checks, and creates where the type says so; gives what was created, the first one first.
///
/// # Errors
/// The path is of another type, or it cannot be created. What was created before the error stays.
pub fn check(path: &Path, wanted: HostPathType) -> Result<Vec<PathBuf>, HostPathError> {
    // Links are followed; a dangling one, or a way that cannot be searched, is "does not exist" as upstream has it.
    let created = match wanted {
        HostPathType::DirectoryOrCreate if !path.exists() => create_directories(path),
        HostPathType::FileOrCreate if !path.exists() => create_file(path),
        _ => Ok(Vec::new()),
    };
    let created = created.map_err(|source| HostPathError::Create { path: path.to_owned(), source })?;
    check_type(path, wanted)?;
    Ok(created)
}

/// The parts of the path that are missing. Another process may create one of them meanwhile: then it is there.
fn create_directories(path: &Path) -> io::Result<Vec<PathBuf>> {
    let missing: Vec<&Path> = path.ancestors().take_while(|part| !part.exists()).collect();
    let mut created = Vec::new();
    for part in missing.into_iter().rev() {
        match std::fs::DirBuilder::new().mode(0o755).create(part) {
            Ok(()) => created.push(part.to_owned()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(created)
}

/// The parent must exist.
fn create_file(path: &Path) -> io::Result<Vec<PathBuf>> {
    match std::fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(path) {
        Ok(_) => Ok(vec![path.to_owned()]),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn check_type(path: &Path, wanted: HostPathType) -> Result<(), HostPathError> {
    let fail = |wanted| Err(HostPathError::Type { path: path.to_owned(), wanted });
    let file_type = std::fs::metadata(path).ok().map(|facts| facts.file_type());
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
                    Ok(created) => assert!(good.contains(&object) && created.is_empty(), "{wanted:?} {object}"),
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
        assert_eq!(check(&deep, HostPathType::DirectoryOrCreate).unwrap(), [dir.path().join("a"), deep.clone()]);
        assert!(check(&deep, HostPathType::DirectoryOrCreate).unwrap().is_empty(), "it is there");
        assert_eq!(std::fs::metadata(&deep).unwrap().permissions().mode() & 0o777, 0o755);
        let file = deep.join("f");
        assert_eq!(check(&file, HostPathType::FileOrCreate).unwrap(), std::slice::from_ref(&file));
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
        std::fs::write(&file, "kept").unwrap();
        assert!(check(&file, HostPathType::FileOrCreate).unwrap().is_empty(), "it is there");
        assert_eq!(std::fs::read(&file).unwrap(), b"kept");
        assert!(matches!(
            check(&dir.path().join("x/f"), HostPathType::FileOrCreate),
            Err(HostPathError::Create { .. })
        ));
        assert!(check(&file, HostPathType::DirectoryOrCreate).is_err());
        assert!(check(&deep, HostPathType::FileOrCreate).is_err());
    }
    #[test]
    fn nothing_is_created_through_a_link_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let (link, target) = (dir.path().join("link"), dir.path().join("elsewhere"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        for wanted in [HostPathType::FileOrCreate, HostPathType::DirectoryOrCreate] {
            assert!(matches!(check(&link, wanted), Err(HostPathError::Type { .. })), "{wanted:?}");
            assert!(!target.exists(), "{wanted:?}");
        }
        std::fs::create_dir(&target).unwrap();
        assert!(check(&link, HostPathType::DirectoryOrCreate).unwrap().is_empty(), "a link to a directory is one");
        assert_eq!(
            check(&link.join("new"), HostPathType::FileOrCreate).unwrap(),
            [link.join("new")],
            "links on the way"
        );
    }
}
