//! Who is at the other end of a Unix socket: all processes of the simulation have one user, so one that is to be another has bound its
//! end to [`name_of_user`], and whoever asks the kernel for the other end's user is told that one.

use std::ffi::{c_int, c_void};
use std::mem::size_of;

use crate::is_simulated;

/// Begins the name of a socket, in the abstract namespace, whose owner is another user.
const PREFIX: &str = "bulkhead-simulation-user/";

/// The abstract name to which a process of the user binds its end of a connection. `number`: of the connection, as names are used once.
pub fn name_of_user(user: u32, number: u64) -> String {
    format!("{PREFIX}{user}/{}/{number}", std::process::id())
}

/// The user that a socket's name names.
fn user_in(name: &[u8]) -> Option<u32> {
    let rest = std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?;
    rest.split('/').next()?.parse().ok()
}

/// The user whom the other end's name names.
fn user_of_peer(descriptor: c_int) -> Option<u32> {
    let mut address = libc::sockaddr_un { sun_family: 0, sun_path: [0; 108] };
    let mut length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: an address of this function's own, with its length, both of which live until the call is over.
    if unsafe { libc::getpeername(descriptor, (&raw mut address).cast(), &raw mut length) } != 0 {
        return None;
    }
    if c_int::from(address.sun_family) != libc::AF_UNIX {
        return None;
    }
    let used = (length as usize).checked_sub(size_of::<libc::sa_family_t>())?;
    let name: Vec<u8> = address.sun_path.iter().take(used).map(|byte| byte.cast_unsigned()).collect();
    // A name that is none of a file begins with a zero.
    user_in(name.strip_prefix(&[0])?)
}

/// # Safety
/// As the C library's: `value` has room for `*length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    descriptor: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut libc::socklen_t,
) -> c_int {
    // SAFETY: the same arguments as the caller's, for which it has given the same promise.
    let result = unsafe { libc::syscall(libc::SYS_getsockopt, descriptor, level, name, value, length) } as c_int;
    let is_about_users = level == libc::SOL_SOCKET && name == libc::SO_PEERCRED;
    if result == 0
        && is_about_users
        && is_simulated()
        && let Some(user) = user_of_peer(descriptor)
    {
        // SAFETY: the kernel has just written such a value there, which is as long.
        let mut found = unsafe { value.cast::<libc::ucred>().read_unaligned() };
        found.uid = user;
        // SAFETY: as above.
        unsafe { value.cast::<libc::ucred>().write_unaligned(found) };
    }
    result
}
