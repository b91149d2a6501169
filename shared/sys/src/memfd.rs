//! Sealed memory files: how more than a message's worth of bytes is handed over so that the receiver can trust that
//! nothing changes under it.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};

const SEALS: SealFlags = SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

/// Why a received memfd is refused.
#[derive(Debug, thiserror::Error)]
pub enum MemfdError {
    #[error("the descriptor is not a memfd with all of the seals SEAL, SHRINK, GROW and WRITE")]
    NotSealed,
    #[error("the memfd has {size} bytes, more than the {max} allowed")]
    TooLarge { size: u64, max: u64 },
    #[error("failed to read the memfd")]
    Read(#[source] io::Error),
}

/// A memfd with these contents, sealed against every change. `name` shows in /proc only.
pub fn sealed(name: &str, contents: &[u8]) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(contents)?;
    rustix::fs::fcntl_add_seals(&file, SEALS)?;
    Ok(file.into())
}

/// Reads a memfd that another process made: only if it is sealed and not larger than `max` bytes.
pub fn read_sealed(fd: impl AsFd, max: u64) -> Result<Vec<u8>, MemfdError> {
    let fd = fd.as_fd();
    match rustix::fs::fcntl_get_seals(fd) {
        Ok(seals) if seals.contains(SEALS) => {}
        // A file that cannot have seals answers EINVAL.
        _ => return Err(MemfdError::NotSealed),
    }
    let size = rustix::fs::fstat(fd).map_err(|e| MemfdError::Read(e.into()))?.st_size;
    let size = u64::try_from(size).map_err(|_| MemfdError::NotSealed)?;
    if size > max {
        return Err(MemfdError::TooLarge { size, max });
    }
    let mut file = std::fs::File::from(fd.try_clone_to_owned().map_err(MemfdError::Read)?);
    // The offset is shared with the sender, who may have left it anywhere.
    io::Seek::rewind(&mut file).map_err(MemfdError::Read)?;
    let mut contents = Vec::new();
    file.take(max).read_to_end(&mut contents).map_err(MemfdError::Read)?;
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_is_read_and_others_are_refused() {
        let fd = sealed("test", b"state").unwrap();
        assert_eq!(read_sealed(&fd, 5).unwrap(), b"state");
        assert!(matches!(read_sealed(&fd, 4), Err(MemfdError::TooLarge { size: 5, max: 4 })));
        assert!(std::fs::File::from(fd).write_all(b"x").is_err());
        let plain = tempfile::tempfile().unwrap();
        assert!(matches!(read_sealed(&plain, 4), Err(MemfdError::NotSealed)));
        let open = rustix::fs::memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(matches!(read_sealed(&open, 4), Err(MemfdError::NotSealed)));
    }
}
