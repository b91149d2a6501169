//! What /proc says of the whole machine. Parsers are pure; [`Reader`] reads small kernel files into one reused buffer.

use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Kernel files that are read here are at most a few KiB (`cgroup.procs` of many processes: 256); a longer one is cut, and
/// what was cut is not looked at.
const MAX_BYTES: u64 = 256 * 1024;

/// A file of the kernel's that may be longer, up to so many bytes.
///
/// # Errors
/// As `open` and `read`.
pub fn read_up_to(path: &Path, most: u64) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    std::fs::File::open(path)?.take(most).read_to_end(&mut content)?;
    Ok(content)
}

/// Reads small files without a new buffer for each.
#[derive(Debug, Default)]
pub struct Reader {
    buffer: Vec<u8>,
    path: PathBuf,
}

impl Reader {
    /// The file's content, valid until the next read.
    ///
    /// # Errors
    /// As `open` and `read`.
    pub fn read(&mut self, path: &Path) -> std::io::Result<&[u8]> {
        self.buffer.clear();
        std::fs::File::open(path)?.take(MAX_BYTES).read_to_end(&mut self.buffer)?;
        Ok(&self.buffer)
    }

    /// As [`Self::read`], of a file in a cgroup's folder below a mount; no path is allocated for it.
    ///
    /// # Errors
    /// As `open` and `read`.
    pub fn below(&mut self, mount: &Path, cgroup: &str, name: &str) -> std::io::Result<&[u8]> {
        let mut path = std::mem::take(&mut self.path);
        path.as_mut_os_string().clear();
        path.push(mount);
        path.push(cgroup.trim_start_matches('/'));
        path.push(name);
        self.buffer.clear();
        let read = std::fs::File::open(&path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut self.buffer));
        self.path = path;
        read?;
        Ok(&self.buffer)
    }

    /// A file that holds one number.
    pub fn number(&mut self, path: &Path) -> Option<u64> {
        self.read(path).ok().and_then(number)
    }

    /// As [`Self::number`], below a mount.
    pub fn number_below(&mut self, mount: &Path, cgroup: &str, name: &str) -> Option<u64> {
        self.below(mount, cgroup, name).ok().and_then(number)
    }
}

/// One number with white space around it. `None` for anything else ("max", too large, negative).
pub fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// The lines of `key value`; others are left out.
pub fn pairs(text: &[u8]) -> impl Iterator<Item = (&[u8], u64)> {
    text.split(|b| *b == b'\n').filter_map(|line| {
        let blank = line.iter().position(u8::is_ascii_whitespace)?;
        let (key, value) = line.split_at(blank);
        Some((key, number(value)?))
    })
}

/// The value of `key` in lines of `key value`.
pub fn keyed(text: &[u8], key: &str) -> Option<u64> {
    text.split(|b| *b == b'\n').find_map(|line| {
        let rest = line.strip_prefix(key.as_bytes())?;
        rest.first().filter(|b| b.is_ascii_whitespace())?;
        number(rest)
    })
}

/// A value of /proc/meminfo in bytes.
pub fn meminfo(text: &[u8], key: &str) -> Option<u64> {
    text.split(|b| *b == b'\n').find_map(|line| {
        let rest = line.strip_prefix(key.as_bytes())?.strip_prefix(b":")?;
        number(rest.strip_suffix(b"kB")?)?.checked_mul(1024)
    })
}

/// Boot time in seconds since the epoch, from /proc/stat.
pub fn boot_time(stat: &[u8]) -> Option<u64> {
    keyed(stat, "btime")
}

/// Tasks that exist now, from /proc/loadavg ("0.20 0.18 0.12 1/80 11206": 80). Upstream counts the same
/// (`pkg/kubelet/stats/pidlimit`).
pub fn tasks(loadavg: &[u8]) -> Option<u64> {
    let field = std::str::from_utf8(loadavg).ok()?.split_whitespace().nth(3)?;
    field.split_once('/')?.1.parse().ok()
}

/// The machine's limit of tasks: the lower of pid_max and threads-max, as upstream.
pub fn max_tasks(pid_max: Option<u64>, threads_max: Option<u64>) -> Option<u64> {
    match (pid_max, threads_max) {
        (Some(pids), Some(threads)) => Some(pids.min(threads)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_and_keys() {
        assert_eq!(number(b"42\n"), Some(42));
        assert_eq!(number(b"max\n"), None);
        assert_eq!(number(b"-1"), None);
        assert_eq!(keyed(b"rss 1\ntotal_rss 7\nrss_huge 3\n", "rss"), Some(1));
        assert_eq!(keyed(b"rss 1\ntotal_rss 7\n", "total_rss"), Some(7));
        assert_eq!(keyed(b"total_rss 7\n", "rss"), None);
        assert_eq!(pairs(b"a 1\nb\nc x\nd 2\n").collect::<Vec<_>>(), [(b"a".as_slice(), 1), (b"d", 2)]);
        assert_eq!(meminfo(b"MemTotal:       24689764 kB\nMemFree:  1 kB\n", "MemTotal"), Some(24_689_764 * 1024));
        assert_eq!(meminfo(b"MemTotal: 1\n", "MemTotal"), None);
        assert_eq!(boot_time(b"cpu  1 2\nbtime 1795222000\nprocesses 5\n"), Some(1_795_222_000));
        assert_eq!(tasks(b"0.20 0.18 0.12 1/80 11206\n"), Some(80));
        assert_eq!(tasks(b"0.20"), None);
        assert_eq!(max_tasks(Some(5), Some(3)), Some(3));
        assert_eq!(max_tasks(None, Some(3)), Some(3));
    }

    #[test]
    fn this_machine_is_readable() {
        let mut reader = Reader::default();
        assert!(reader.read(Path::new("/proc/stat")).is_ok_and(|t| boot_time(t).is_some()));
        assert!(reader.read(Path::new("/proc/loadavg")).is_ok_and(|t| tasks(t).is_some()));
        assert!(reader.read(Path::new("/proc/meminfo")).is_ok_and(|t| meminfo(t, "MemTotal").is_some()));
        assert!(reader.number(Path::new("/proc/sys/kernel/pid_max")).is_some());
    }

    proptest! {
        #[test]
        fn nothing_makes_the_parsers_panic(text in proptest::collection::vec(any::<u8>(), 0..400), key in "[a-z_]{0,8}") {
            let _ = (number(&text), keyed(&text, &key), meminfo(&text, &key), boot_time(&text), tasks(&text));
            let _ = pairs(&text).count();
        }
    }
}
