//! Open files of processes, as far as everybody may see them: how many descriptors a process has open is the size of its
//! `fd` folder (Linux 6.2), before that the folder's length. What they are is shown to its tracers alone.

use std::path::PathBuf;

use crate::kernel::Reader;

/// Descriptors that are counted one by one in a kernel that does not tell their number.
const COUNTED_MAX: usize = 100_000;

/// Open descriptors of these processes together; those that are gone have none.
pub fn file_descriptors(pids: &[u32]) -> u64 {
    pids.iter().map(|pid| descriptors_of(*pid)).fold(0, u64::saturating_add)
}

fn descriptors_of(pid: u32) -> u64 {
    let folder = PathBuf::from(format!("/proc/{pid}/fd"));
    match std::fs::metadata(&folder).map(|folder| folder.len()) {
        Ok(0) => {
            let count = std::fs::read_dir(&folder).map_or(0, |entries| entries.take(COUNTED_MAX).count());
            u64::try_from(count).unwrap_or(u64::MAX)
        }
        Ok(open) => open,
        Err(_) => 0,
    }
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
        let before = file_descriptors(&[std::process::id()]);
        let files: Vec<_> = (0..20).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        let after = file_descriptors(&[std::process::id()]);
        assert!(before >= 3 && after >= 20, "{before} {after}");
        drop(files);
        assert_eq!(file_descriptors(&[u32::MAX]), 0);
        let limit = max_open_files(&mut Reader::default(), std::process::id()).unwrap();
        assert!(limit == -1 || limit > 3);
    }

    #[test]
    fn limits() {
        assert_eq!(open_files(b"Limit  Soft  Hard\nMax open files   1024   4096   files\n"), Some(1024));
        assert_eq!(open_files(b"Max open files   unlimited   unlimited   files\n"), Some(-1));
        assert_eq!(open_files(b""), None);
    }
}
