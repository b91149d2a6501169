//! Files of the machine by which it tells of itself: what a simulated thread, or one that works for it, opens below a folder that was
//! [`replace`]d is another file, so that a story is the same one on each machine. Other files are the kernel's.

use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{follows, is_simulated};

/// How paths begin, and what stands there instead.
static REPLACED: Mutex<Vec<(Vec<u8>, Vec<u8>)>> = Mutex::new(Vec::new());

fn replaced() -> MutexGuard<'static, Vec<(Vec<u8>, Vec<u8>)>> {
    REPLACED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From here on what is opened at `path`, or below it, is opened at `instead`.
pub fn replace(path: &Path, instead: &Path) {
    replaced().push((path.as_os_str().as_bytes().to_vec(), instead.as_os_str().as_bytes().to_vec()));
}

/// Where it is opened instead.
fn elsewhere(path: &[u8]) -> Option<CString> {
    if !is_simulated() && !follows() {
        return None;
    }
    let all = replaced();
    let found = all.iter().find_map(|(prefix, instead)| {
        let rest = path.strip_prefix(prefix.as_slice()).filter(|rest| rest.is_empty() || rest.starts_with(b"/"))?;
        Some([instead.as_slice(), rest].concat())
    });
    found.and_then(|path| CString::new(path).ok())
}

/// # Safety
/// `path` ends with a zero.
unsafe fn open_at(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the caller promises that the path ends with a zero.
    let instead = elsewhere(unsafe { CStr::from_ptr(path) }.to_bytes());
    let path = instead.as_ref().map_or(path, |instead| instead.as_ptr());
    // SAFETY: the path is the caller's, or one that lives until the call is over; the rest are numbers.
    unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags | libc::O_LARGEFILE, mode) as c_int }
}

/// # Safety
/// As the C library's. (Its `mode` is there only with some flags; what stands in its place without them is not looked at.)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the caller's own promise.
    unsafe { open_at(path, flags, mode) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn opendir(path: *const c_char) -> *mut libc::DIR {
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the caller's own promise.
    let descriptor = unsafe { open_at(path, flags, 0) };
    if descriptor < 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: a descriptor of this function's own, which the folder takes over.
    unsafe { libc::fdopendir(descriptor) }
}
