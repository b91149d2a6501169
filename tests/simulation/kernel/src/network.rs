//! Connections by address: what a simulated thread connects to on a port that has a [`route`] is a Unix socket of this machine, which
//! delivers at once and in order. Other addresses are the kernel's.

use std::ffi::c_int;
use std::mem::size_of;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::is_simulated;

/// Ports, and the addresses of the sockets behind them.
static ROUTES: Mutex<Vec<(u16, libc::sockaddr_un)>> = Mutex::new(Vec::new());

fn routes() -> MutexGuard<'static, Vec<(u16, libc::sockaddr_un)>> {
    ROUTES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From here on connections to that port, of whatever address, go to the Unix socket at `path`. False: the path is too long for one.
pub fn route(port: u16, path: &Path) -> bool {
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
    let bytes = path.as_os_str().as_bytes();
    // A zero ends it.
    if bytes.len() >= address.sun_path.len() {
        return false;
    }
    for (place, byte) in address.sun_path.iter_mut().zip(bytes) {
        *place = *byte as libc::c_char;
    }
    routes().push((port, address));
    true
}

/// A stream of the internet's family, while there are routes, is one of the machine's own: it cannot be made one later.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let is_stream = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) == libc::SOCK_STREAM;
    let is_routed = is_simulated() && domain == libc::AF_INET && is_stream && !routes().is_empty();
    let (domain, protocol) = if is_routed { (libc::AF_UNIX, 0) } else { (domain, protocol) };
    // SAFETY: three numbers; no memory is passed.
    unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) as c_int }
}

/// # Safety
/// As the C library's: `address` can be read for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(descriptor: c_int, address: *const libc::sockaddr, length: libc::socklen_t) -> c_int {
    if is_simulated() && length as usize >= size_of::<libc::sockaddr_in>() {
        // SAFETY: the caller promises `length` bytes, which are as many as are read.
        let asked = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
        let port = u16::from_be(asked.sin_port);
        let found = routes().iter().find(|(routed, _)| *routed == port).map(|(_, unix)| *unix);
        if c_int::from(asked.sin_family) == libc::AF_INET
            && let Some(unix) = found
        {
            // SAFETY: an address of this function's own, with its length.
            return unsafe {
                libc::syscall(libc::SYS_connect, descriptor, &raw const unix, size_of::<libc::sockaddr_un>()) as c_int
            };
        }
    }
    // SAFETY: the same arguments as the caller's, for which it has given the same promise.
    unsafe { libc::syscall(libc::SYS_connect, descriptor, address, length) as c_int }
}
