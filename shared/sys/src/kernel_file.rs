//! Small files that the kernel makes up when they are read (`/proc`, `/sys`), whose size it does not tell.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Bytes that are asked for at first: nearly all such files have fewer, and the kernel gives no more than a page of most.
const PAGE: usize = 4096;

/// The whole file, in as few system calls as there can be: `std::fs::read_to_string` asks for a size, which is none, and so feels
/// its way with a few bytes at a time.
///
/// # Errors
/// It cannot be opened or read, or is no text.
pub fn read(path: &Path) -> io::Result<String> {
    let mut text = String::with_capacity(PAGE);
    // What `take` answers has no size to ask for.
    File::open(path)?.take(u64::MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_any_length_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for length in [0, 1, PAGE - 1, PAGE, PAGE + 1, 100_000] {
            let text = "x".repeat(length);
            std::fs::write(&path, &text).unwrap();
            assert_eq!(read(&path).unwrap(), text, "{length} bytes");
        }
        assert_eq!(
            read(Path::new("/proc/self/uid_map")).unwrap(),
            std::fs::read_to_string("/proc/self/uid_map").unwrap()
        );
        assert_eq!(read(&folder.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
