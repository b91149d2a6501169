//! Places in a log of the kernel's (`/dev/kmsg`), which a run gives as a socket that keeps messages apart: each read is a record, one that
//! finds none says so, and it can be waited for. A socket has no place, so who goes to the beginning of one is told that it is there; that
//! is so as long as it has read nothing.

use std::ffi::{c_int, c_void};
use std::mem::size_of;

use crate::is_simulated;

fn keeps_messages_apart(descriptor: c_int) -> bool {
    let mut kind: c_int = 0;
    let mut length = size_of::<c_int>() as libc::socklen_t;
    let value: *mut c_void = (&raw mut kind).cast();
    // SAFETY: a number of this function's own, with its length, both of which live until the call is over.
    let result = unsafe {
        libc::syscall(libc::SYS_getsockopt, descriptor, libc::SOL_SOCKET, libc::SO_TYPE, value, &raw mut length)
    };
    result == 0 && kind == libc::SOCK_SEQPACKET
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn lseek64(descriptor: c_int, offset: i64, whence: c_int) -> i64 {
    if is_simulated() && (offset, whence) == (0, libc::SEEK_SET) && keeps_messages_apart(descriptor) {
        return 0;
    }
    // SAFETY: three numbers; no memory is passed.
    unsafe { libc::syscall(libc::SYS_lseek, descriptor, offset, whence) }
}
