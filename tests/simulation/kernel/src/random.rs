//! Random numbers of the seed.

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ON;

static SEED: AtomicU64 = AtomicU64::new(0);
static DRAWN: AtomicU64 = AtomicU64::new(0);

pub(crate) fn seed(seed: u64) {
    SEED.store(seed, Ordering::Relaxed);
    DRAWN.store(0, Ordering::Relaxed);
}

/// One step of SplitMix64 at the given place of its sequence.
fn mixed(place: u64) -> u64 {
    let mut z = place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// # Safety
/// As the C library's: `buffer` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, flags: c_uint) -> isize {
    if !ON.load(Ordering::Relaxed) {
        // SAFETY: the same arguments as the caller's, for which it has given the same promise.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) as isize };
    }
    let seed = mixed(SEED.load(Ordering::Relaxed).wrapping_add(1));
    for start in (0..length).step_by(8) {
        let place = seed.wrapping_add(DRAWN.fetch_add(1, Ordering::Relaxed));
        let bytes = mixed(place).to_le_bytes();
        let count = (length - start).min(bytes.len());
        // SAFETY: `start + count` is at most `length`, for which the caller says that there is room; the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast::<u8>().add(start), count) };
    }
    length as isize
}
