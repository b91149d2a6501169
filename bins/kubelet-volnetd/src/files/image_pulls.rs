//! Upstream's records of image pulls, `image_manager/{pulling,pulled}/sha256-<digest>` below the root directory (upstream
//! `pkg/kubelet/images/pullmanager/fs_pullrecords.go`). What stands in them is kubelet-syncd's; folders, names and modes are
//! made here.

use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_ipc::volnetd::image_pull_record_file::Folder;
use bulkhead_ipc::volnetd::{ImagePullRecordFile, ImagePullRecordFiles};
use bulkhead_sys::open::{self, OpenError};
use bulkhead_sys::{memfd, tree};
use prost::Message as _;
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::FileError;
use crate::journal;
use crate::validate::{self, InvalidRequest};

/// Of one file: a record names some hundred bytes for each secret that has opened the image.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Of all files in one answer. Those after it are named, and their content is not told.
const MAX_BYTES: u64 = 8 << 20;
/// Of one folder; twice what kubelet-syncd keeps.
const MAX_FILES: usize = 20_000;
/// How each name begins.
const PREFIX: &str = "sha256-";
/// Upstream makes its folders so.
const FOLDER_MODE: u32 = 0o700;

/// A file that is to be written, or, without content, removed.
#[derive(Debug, PartialEq, Eq)]
pub struct Change {
    folder: &'static str,
    name: String,
    content: Option<Vec<u8>>,
}

const FOLDERS: [(Folder, &str); 2] =
    [(Folder::Pulling, "image_manager/pulling"), (Folder::Pulled, "image_manager/pulled")];

/// What a request asks for.
pub fn parse(bytes: &[u8]) -> Result<Vec<Change>, InvalidRequest> {
    let Ok(request) = ImagePullRecordFiles::decode(bytes) else {
        return Err(validate::bad("content", "", "an ImagePullRecordFiles"));
    };
    request.files.into_iter().map(change).collect()
}

fn change(file: ImagePullRecordFile) -> Result<Change, InvalidRequest> {
    let Some((_, folder)) = FOLDERS.into_iter().find(|(folder, _)| *folder == file.folder()) else {
        return Err(validate::bad("folder", "unspecified", "FOLDER_PULLING or FOLDER_PULLED"));
    };
    if !is_digest(&file.digest) {
        return Err(validate::bad("digest", &file.digest, "64 lower-case hexadecimal digits"));
    }
    if file.content.as_ref().is_some_and(|content| content.len() as u64 > MAX_FILE_BYTES) {
        return Err(validate::bad("content", "", "at most 1 MiB"));
    }
    Ok(Change { folder, name: format!("{PREFIX}{}", file.digest), content: file.content })
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// Writes and removes, one after the other; what was done before an error stays done.
pub fn put(root: BorrowedFd<'_>, changes: &[Change]) -> Result<(), FileError> {
    for (_, path) in FOLDERS {
        let folder = open::create_dirs_beneath(root, path, FOLDER_MODE).map_err(|source| FileError::Open {
            doing: "create",
            path: path.into(),
            source,
        })?;
        for change in changes.iter().filter(|change| change.folder == path) {
            let name = Path::new(&change.name);
            let failed = |doing, source| FileError::Io { doing, path: Path::new(path).join(name), source };
            match &change.content {
                Some(content) => {
                    journal::replace(folder.as_fd(), name, content, 0o600).map_err(|error| failed("write", error))?;
                }
                None => match rustix::fs::unlinkat(&folder, name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(failed("remove", errno.into())),
                },
            }
        }
    }
    Ok(())
}

/// A sealed memfd with the `ImagePullRecordFiles` of all files that have such a name.
pub fn open(root: BorrowedFd<'_>) -> Result<OwnedFd, FileError> {
    let files = ImagePullRecordFiles { files: list(root)? };
    memfd::sealed("image-pulls", &files.encode_to_vec()).map_err(|source| FileError::Io {
        doing: "pass a copy of",
        path: "image_manager".into(),
        source,
    })
}

fn list(root: BorrowedFd<'_>) -> Result<Vec<ImagePullRecordFile>, FileError> {
    let mut left = MAX_BYTES;
    let mut files = Vec::new();
    for (kind, path) in FOLDERS {
        let folder = match open::dir_beneath(root, path) {
            Ok(folder) => folder,
            Err(error) if error.is_not_found() => continue,
            Err(source) => return Err(FileError::Open { doing: "open", path: path.into(), source }),
        };
        let entries = tree::list(folder.as_fd(), MAX_FILES).map_err(|source| FileError::Io {
            doing: "list",
            path: path.into(),
            source,
        })?;
        for entry in entries.into_iter().filter(|entry| !entry.is_dir) {
            let Some(digest) = entry.name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
            if !is_digest(digest) {
                continue;
            }
            let content = match read(folder.as_fd(), Path::new(&entry.name), left.min(MAX_FILE_BYTES)) {
                Ok(content) => content,
                Err(error) if error.is_not_found() => continue,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "skipping unreadable record of an image pull"
                    );
                    None
                }
            };
            left -= content.as_ref().map_or(0, |content| content.len() as u64);
            files.push(ImagePullRecordFile { folder: kind.into(), digest: digest.to_owned(), content });
        }
    }
    Ok(files)
}

/// The file's content; None: it is larger than `max`.
fn read(folder: BorrowedFd<'_>, name: &Path, max: u64) -> Result<Option<Vec<u8>>, FileError> {
    let path = || PathBuf::from(name);
    let opened: Result<OwnedFd, OpenError> = open::regular_beneath(folder, name);
    let file = opened.map_err(|source| FileError::Open { doing: "open", path: path(), source })?;
    let mut content = Vec::new();
    let limited = std::fs::File::from(file).take(max + 1).read_to_end(&mut content);
    limited.map_err(|source| FileError::Io { doing: "read", path: path(), source })?;
    Ok((content.len() as u64 <= max).then_some(content))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn file(folder: Folder, digest: &str, content: Option<&[u8]>) -> ImagePullRecordFile {
        ImagePullRecordFile { folder: folder.into(), digest: digest.to_owned(), content: content.map(<[u8]>::to_vec) }
    }

    fn parsed(files: Vec<ImagePullRecordFile>) -> Result<Vec<Change>, InvalidRequest> {
        parse(&ImagePullRecordFiles { files }.encode_to_vec())
    }

    #[test]
    fn no_name_but_a_digest() {
        let digest = "0a".repeat(32);
        assert!(parsed(vec![file(Folder::Pulled, &digest, Some(b"{}"))]).is_ok());
        for (folder, digest) in [
            (Folder::Unspecified, digest.as_str()),
            (Folder::Pulled, ""),
            (Folder::Pulled, &digest[1..]),
            (Folder::Pulled, &digest.to_uppercase()),
            (Folder::Pulled, &format!("../{}", &digest[3..])),
            (Folder::Pulled, &format!("{digest}.tmp")),
        ] {
            assert!(parsed(vec![file(folder, digest, None)]).is_err(), "{digest}");
        }
        let large = vec![0; usize::try_from(MAX_FILE_BYTES).unwrap() + 1];
        assert!(parsed(vec![file(Folder::Pulled, &digest, Some(&large))]).is_err());
        assert!(parse(b"no message").is_err());
    }

    #[test]
    fn what_is_put_is_told_and_the_rest_stays() {
        let temp = tempfile::tempdir().unwrap();
        let root = open::base_dir(temp.path()).unwrap();
        let told = || {
            let mut files = list(root.as_fd()).unwrap();
            files.sort_by_key(|file| (file.folder, file.digest.clone()));
            files
        };
        assert_eq!(told(), [], "no folder");
        let (a, b, c) = ("a".repeat(64), "b".repeat(64), "c".repeat(64));
        let all = vec![
            file(Folder::Pulling, &a, Some(b"1")),
            file(Folder::Pulled, &a, Some(b"2")),
            file(Folder::Pulled, &b, Some(b"3")),
        ];
        put(root.as_fd(), &parsed(all.clone()).unwrap()).unwrap();
        assert_eq!(told(), all);
        let pulled = temp.path().join("image_manager/pulled");
        for (path, mode) in [(pulled.clone(), 0o700), (pulled.join(format!("sha256-{a}")), 0o600)] {
            assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o7777, mode);
        }
        // What has no such name is nobody's here; what is no file, or too large, is told by its name.
        std::fs::write(pulled.join(format!("temp_sha256-{a}")), "4").unwrap();
        std::fs::write(pulled.join(format!("sha256-{a}.tmp")), "5").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", pulled.join(format!("sha256-{c}"))).unwrap();
        std::fs::write(pulled.join(format!("sha256-{b}")), vec![b'x'; (1 << 20) + 1]).unwrap();
        put(root.as_fd(), &parsed(vec![file(Folder::Pulling, &a, None), file(Folder::Pulling, &b, None)]).unwrap())
            .unwrap();
        assert_eq!(
            told(),
            [file(Folder::Pulled, &a, Some(b"2")), file(Folder::Pulled, &b, None), file(Folder::Pulled, &c, None)]
        );
        assert!(pulled.join(format!("temp_sha256-{a}")).exists());
    }
}
