//! Open files of processes, as far as everybody may see them: how many descriptors a process has open is the size of its
//! `fd` folder (Linux 6.2), before that the folder's length, which is shown to the process's tracers alone. So is what they are.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::kernel::Reader;

/// Descriptors that are counted one by one in a kernel that does not tell their number.
const COUNTED_MAX: usize = 100_000;

/// The size of an `fd` folder is the number of descriptors: this process has some open.
static SIZES_ARE_COUNTS: LazyLock<bool> =
    LazyLock::new(|| std::fs::metadata("/proc/self/fd").is_ok_and(|folder| folder.len() > 0));

/// Open descriptors of these processes together; those that are gone have none. `None`: this kernel does not tell how many another
/// process has.
pub fn file_descriptors(pids: &[u32]) -> Option<u64> {
    let of_each = pids.iter().map(|pid| {
        let folder = PathBuf::from(format!("/proc/{pid}/fd"));
        let Ok(size) = std::fs::metadata(&folder).map(|folder| folder.len()) else { return Some(0) };
        descriptors(size, *SIZES_ARE_COUNTS, || listed(&folder))
    });
    of_each.sum()
}

/// Of one process. `size`: of its folder, `list`: the folder's length.
fn descriptors(size: u64, sizes_are_counts: bool, list: impl FnOnce() -> io::Result<usize>) -> Option<u64> {
    if sizes_are_counts || size > 0 {
        return Some(size);
    }
    match list() {
        Ok(count) => u64::try_from(count).ok(),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
        // It has gone.
        Err(_) => Some(0),
    }
}

fn listed(folder: &Path) -> io::Result<usize> {
    Ok(std::fs::read_dir(folder)?.take(COUNTED_MAX).count())
}

/// The soft limit of open files of a process; -1: none.
pub fn max_open_files(reader: &mut Reader, pid: u32) -> Option<i64> {
    let limits = reader.read(&PathBuf::from(format!("/proc/{pid}/limits"))).ok()?;
    open_files(limits)
}

/// "Max open files            1024                 524288               files".
fn open_files(limits: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(limits).ok()?;
    let soft = text.lines().find_map(|line| line.strip_prefix("Max open files"))?.split_ascii_whitespace().next()?;
    if soft.eq_ignore_ascii_case("unlimited") { Some(-1) } else { soft.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_open_files() {
        let before = file_descriptors(&[std::process::id()]).unwrap();
        let files: Vec<_> = (0..20).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        let after = file_descriptors(&[std::process::id()]).unwrap();
        assert!(before >= 3 && after >= 20, "{before} {after}");
        drop(files);
        assert_eq!(file_descriptors(&[u32::MAX]), Some(0));
        let limit = max_open_files(&mut Reader::default(), std::process::id()).unwrap();
        assert!(limit == -1 || limit > 3);
    }

    #[test]
    fn descriptors_of_new_and_old_kernels() {
        use io::ErrorKind::{NotFound, PermissionDenied};
        for (size, sizes_are_counts, listed, counted) in [
            (7, true, Err(PermissionDenied), Some(7)),
            (0, true, Err(PermissionDenied), Some(0)),
            (0, false, Ok(7), Some(7)),
            (0, false, Err(NotFound), Some(0)),
            // Nobody may say that it has none.
            (0, false, Err(PermissionDenied), None),
        ] {
            let list = || listed.map_err(io::Error::from);
            assert_eq!(descriptors(size, sizes_are_counts, list), counted, "{size} {sizes_are_counts} {listed:?}");
        }
    }

    #[test]
    fn limits() {
        assert_eq!(open_files(b"Limit  Soft  Hard\nMax open files   1024   4096   files\n"), Some(1024));
        assert_eq!(open_files(b"Max open files   unlimited   unlimited   files\n"), Some(-1));
        assert_eq!(open_files(b""), None);
    }
}
