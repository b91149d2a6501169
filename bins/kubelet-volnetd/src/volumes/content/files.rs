//! The wanted files of a content volume, from the wire to values that cannot lead out of it (upstream
//! `pkg/volume/util/atomic_writer.go` validatePath, and what it finds out only while it writes).

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_ipc::{MAX_CONTENT_FILES, volnetd as wire};

use crate::validate::{self, InvalidRequest, bad};

/// A relative path without "." and "..", whose first component does not begin with "..": below a volume's root, and
/// none of the writer's own names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct FilePath(String);

impl FilePath {
    /// Upstream's rules, applied to the path as it will be used: at most 4096 bytes, each component at most 255.
    pub fn parse(field: &'static str, text: &str) -> Result<Self, InvalidRequest> {
        const ALLOWED: &str = "a relative path of at most 4096 bytes, components of at most 255, without '..' and with a \
                               first component that does not begin with '..'";
        let refused = || bad(field, text, ALLOWED);
        if text.is_empty() || text.starts_with('/') || text.len() > 4096 || text.contains('\0') {
            return Err(refused());
        }
        let components: Vec<&str> = text.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
        let first = components.first().ok_or_else(refused)?;
        if first.starts_with("..") || components.iter().any(|name| *name == ".." || name.len() > 255) {
            return Err(refused());
        }
        Ok(FilePath(components.join("/")))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name at the volume's root under which it is seen.
    pub fn first(&self) -> &str {
        self.0.split('/').next().unwrap_or(&self.0)
    }

    /// Its directories, outermost first.
    pub fn parents(&self) -> impl Iterator<Item = &str> {
        self.0.match_indices('/').map(|(end, _)| &self.0[..end])
    }
}

/// One wanted file.
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    pub data: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Owner, when it is not root.
    pub user: Option<u32>,
}

/// Secrets are not printed.
impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "File({} bytes, mode {:o}, user {:?})", self.data.len(), self.mode, self.user)
    }
}

/// Everything that a volume shall hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Content {
    /// No path is a directory of another one.
    pub files: BTreeMap<FilePath, File>,
    pub fs_group: Option<u32>,
}

impl Content {
    pub fn from_wire(wire: wire::VolumeContent) -> Result<Self, InvalidRequest> {
        if wire.files.len() > MAX_CONTENT_FILES {
            return Err(InvalidRequest::TooMany { field: "files", count: wire.files.len(), max: MAX_CONTENT_FILES });
        }
        let mut files = BTreeMap::new();
        for file in wire.files {
            let path = FilePath::parse("path", &file.path)?;
            if file.mode & !0o777 != 0 {
                return Err(bad("mode", &format!("{:o}", file.mode), "permission bits, 0 to 0777"));
            }
            let user = file.user.map(|user| validate::id("user", user)).transpose()?;
            if files.insert(path, File { data: file.data, mode: file.mode, user }).is_some() {
                return Err(bad("path", &file.path, "a path that no other file has"));
            }
        }
        let directories: BTreeSet<&str> = files.keys().flat_map(FilePath::parents).collect();
        if let Some(both) = files.keys().find(|path| directories.contains(path.as_str())) {
            return Err(bad("path", both.as_str(), "a path that is not another file's directory"));
        }
        let fs_group = wire.fs_group.map(|group| validate::id("fs_group", group)).transpose()?;
        Ok(Content { files, fs_group })
    }

    /// Names at the volume's root, each with the owner of its first file.
    pub fn visible(&self) -> BTreeMap<&str, Option<u32>> {
        let mut names = BTreeMap::new();
        for (path, file) in &self.files {
            let owner = names.entry(path.first()).or_insert(None);
            *owner = owner.or(file.user);
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(path: &str) -> wire::VolumeFile {
        wire::VolumeFile { path: path.into(), data: b"x".to_vec(), mode: 0o644, user: None }
    }

    fn content(paths: &[&str]) -> Result<Content, InvalidRequest> {
        Content::from_wire(wire::VolumeContent { files: paths.iter().map(|p| file(p)).collect(), fs_group: None })
    }

    #[test]
    fn paths() {
        for (text, clean) in [("a", "a"), ("a//b/./c/", "a/b/c"), ("./a", "a"), ("a/..b", "a/..b"), (".a", ".a")] {
            assert_eq!(FilePath::parse("path", text).unwrap().as_str(), clean);
        }
        let long = "x".repeat(256);
        let deep = "x/".repeat(2049);
        for bad in ["", ".", "./", "/", "/a", "..", "../a", "a/../b", "..a", "./..data", "..data", "a\0", &long, &deep]
        {
            assert!(FilePath::parse("path", bad).is_err(), "{bad:?}");
        }
        let path = FilePath::parse("path", "a/b/c").unwrap();
        assert_eq!((path.first(), path.parents().collect::<Vec<_>>()), ("a", vec!["a", "a/b"]));
    }

    #[test]
    fn files_that_cannot_be_together() {
        assert!(content(&["a/b", "a/c", "a.b", "b"]).is_ok());
        for bad in [&["a", "./a"][..], &["a", "a/b"], &["a/b/c", "a/b"]] {
            assert!(content(bad).is_err(), "{bad:?}");
        }
        let with = |file| Content::from_wire(wire::VolumeContent { files: vec![file], fs_group: None });
        assert!(with(wire::VolumeFile { mode: 0o1644, ..file("a") }).is_err());
        assert!(with(wire::VolumeFile { user: Some(-1), ..file("a") }).is_err());
        assert!(with(wire::VolumeFile { user: Some(1000), ..file("a") }).is_ok());
        assert!(Content::from_wire(wire::VolumeContent { files: vec![], fs_group: Some(1 << 32) }).is_err());
        assert!(content(&vec!["a"; MAX_CONTENT_FILES + 1]).is_err());
        let secret = format!("{:?}", with(wire::VolumeFile { data: b"s3cret".to_vec(), ..file("a") }).unwrap());
        assert!(!secret.contains("s3cret") && !secret.contains("115"), "{secret}");
    }

    proptest! {
        #[test]
        fn nothing_valid_leaves_the_volume_or_touches_the_writers_names(text in "[a./\\x00]{0,24}") {
            if let Ok(path) = FilePath::parse("path", &text) {
                let path = std::path::Path::new(path.as_str());
                prop_assert!(path.is_relative() && path.components().count() > 0);
                prop_assert!(path.components().all(|part| matches!(part, std::path::Component::Normal(_))));
                prop_assert!(!path.starts_with("..") && !path.to_str().unwrap().starts_with(".."));
            }
        }
    }
}
