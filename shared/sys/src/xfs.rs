//! Growth of an xfs that is mounted (xfsctl(3)). Needs CAP_SYS_ADMIN.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// XFS_IOC_FSGEOMETRY_V1 and XFS_IOC_FSGROWFSDATA of xfs_fs.h.
const GEOMETRY: libc::c_ulong = 0x8070_5864;
const GROW: libc::c_ulong = 0x4010_586E;

/// `struct xfs_fsop_geom_v1`.
#[repr(C)]
#[derive(Default)]
struct Geometry {
    block_bytes: u32,
    words: [u32; 6],
    most_inodes_percent: u32,
    blocks: u64,
    rest: [u64; 9],
}

/// `struct xfs_growfs_data`.
#[repr(C)]
struct Growth {
    blocks: u64,
    most_inodes_percent: u32,
}

/// The file system of an open folder has as many blocks as fit into so many bytes. One that has them already stays as it is.
///
/// # Errors
/// It is no xfs, or it would shrink.
pub fn grow(folder: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    let mut is = Geometry::default();
    // SAFETY: the request fills a structure of this size, and the descriptor is open.
    if unsafe { libc::ioctl(folder.as_raw_fd(), GEOMETRY as _, &raw mut is) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let blocks = bytes.checked_div(is.block_bytes.into()).unwrap_or_default();
    if blocks == is.blocks {
        return Ok(());
    }
    if blocks < is.blocks {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the device is smaller than its file system"));
    }
    let growth = Growth { blocks, most_inodes_percent: is.most_inodes_percent };
    // SAFETY: the request reads a structure of this size, and the descriptor is open.
    if unsafe { libc::ioctl(folder.as_raw_fd(), GROW as _, &raw const growth) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    /// The sizes are part of the requests' numbers.
    #[test]
    fn structures_are_the_kernels() {
        assert_eq!((size_of::<Geometry>(), size_of::<Growth>()), (0x70, 0x10));
    }

    #[test]
    fn what_is_no_xfs_is_refused() {
        let folder = std::fs::File::open("/proc").unwrap();
        assert!(grow(folder.as_fd(), 1 << 30).is_err());
    }
}
