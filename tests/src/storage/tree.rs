//! A folder as the recordings have it: a line for each entry, sorted by path.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use anyhow::{Context as _, Result};

/// What is at and below each of `folders`. A file whose name ends in `.json` is there with its content.
///
/// # Errors
/// A folder cannot be read.
pub fn lines(folders: &[&Path]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for folder in folders {
        walk(folder, &mut found)?;
    }
    found.sort_by(|one, other| path_of(one).cmp(path_of(other)));
    Ok(found)
}

/// `d 00750 0:0 /path ...`: the path.
fn path_of(line: &str) -> &str {
    line.split(' ').nth(3).unwrap_or_default()
}

fn walk(path: &Path, found: &mut Vec<String>) -> Result<()> {
    let facts = match std::fs::symlink_metadata(path) {
        Ok(facts) => facts,
        // Gone between two looks.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    let kind = facts.file_type();
    let (letter, more) = if kind.is_dir() {
        ('d', String::new())
    } else if kind.is_symlink() {
        ('l', format!(" -> {}", std::fs::read_link(path)?.display()))
    } else if kind.is_socket() {
        ('s', String::new())
    } else if kind.is_block_device() {
        ('b', format!(" rdev {}:{}", nix::sys::stat::major(facts.rdev()), nix::sys::stat::minor(facts.rdev())))
    } else if path.extension().is_some_and(|end| end == "json") {
        ('-', format!(" content {}", std::fs::read_to_string(path)?.trim_end_matches('\n')))
    } else {
        ('-', String::new())
    };
    let (mode, owner) = (facts.mode() & 0o7777, format!("{}:{}", facts.uid(), facts.gid()));
    found.push(format!("{letter} {mode:05o} {owner} {}{more}", path.display()));
    if kind.is_dir() {
        for entry in std::fs::read_dir(path)?.flatten() {
            walk(&entry.path(), found)?;
        }
    }
    Ok(())
}
