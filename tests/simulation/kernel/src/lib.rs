//! The clock, random numbers and waiting of a thread that is simulated, below the standard library (decision 88).
//!
//! This crate defines thirteen functions of the C library under their own names. A program that links it calls these instead, also
//! where the standard library, tokio or a crate of strangers asks:
//!
//! | function | in the simulated thread, after [`begin`] | else |
//! |---|---|---|
//! | `clock_gettime` | virtual time, which moves by [`advance`], and by a nanosecond with each question; in its threads too, but for the monotonic clock, by which they wait | the kernel's |
//! | `getrandom` | numbers of the seed (all threads) | the kernel's |
//! | `epoll_wait` | gives what is ready; never waits, but says how long it would have ([`take_idle`]) | the kernel's |
//! | `open64`, `opendir` | files that were [`replace`]d are others, for its threads too | the kernel's |
//! | `getsockopt` | the user at the other end of a socket is the one that it has bound its name to ([`name_of_user`]) | the kernel's |
//! | `socket`, `connect` | a stream to a port that has a [`route`] is a Unix socket | the kernel's |
//! | `lseek64` | the beginning of a log of the kernel's that is given as a socket is where that stands | the kernel's |
//! | `write`, `fsync`, `fdatasync` | below folders that are [`kept`](keep): account of what is durable, no room, failures; for its threads too | the kernel's |
//! | `pthread_create` | the new thread runs only while the simulated one waits in `epoll_wait`, one after the other | the kernel's |
//!
//! Beside them it counts what is on the heap ([`held`]).
//!
//! No program that is shipped may link it: `tests/tests/files/structure.rs` holds that.

#![allow(unsafe_code, reason = "functions of the C library cannot be given another body without it")]

mod disk;
mod files;
mod heap;
mod network;
mod places;
mod random;
mod threads;
mod users;

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_long};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

pub use disk::{
    Doings, Entry, Failure, Moment, doings, fail, fill, forget, heal, keep, keep_before, keep_once, moment, moments,
    moved, take_kept, take_refused,
};
pub use files::replace;
pub use heap::held;
pub use network::route;
pub use users::name_of_user;

/// What the monotonic clock says when the simulation begins: no time that somebody subtracts from it is before its beginning.
const MONOTONIC_AT_START: u64 = 1_000_000_000_000_000;
/// 2026-01-01T00:00:00Z, what the machine's clock says when the simulation begins, nanoseconds.
const WALL_AT_START: i64 = 1_767_225_600_000_000_000;

static ON: AtomicBool = AtomicBool::new(false);
/// Virtual time since [`begin`], nanoseconds.
static NOW: AtomicU64 = AtomicU64::new(0);
/// By how much the machine's clock has been stepped, nanoseconds.
static STEPPED: AtomicI64 = AtomicI64::new(0);

thread_local! {
    /// Without a destructor, so that it may be asked at any time of the thread's life.
    static SIMULATED: Cell<bool> = const { Cell::new(false) };
    /// A thread that the simulated one has begun.
    static FOLLOWS: Cell<bool> = const { Cell::new(false) };
    static WAITS: Cell<u64> = const { Cell::new(0) };
    static ASKED: Cell<c_int> = const { Cell::new(-1) };
    static IDLE: RefCell<Idleness> = const { RefCell::new(Idleness { found: None, waker: None }) };
}

#[derive(Debug)]
struct Idleness {
    found: Option<Idle>,
    waker: Option<Waker>,
}

/// Nothing was to be done, and the thread would have waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Idle {
    /// When it would have gone on by itself, as [`now`] counts. None: never.
    pub until: Option<Duration>,
}

/// From here on this thread is simulated: its time is virtual, and random numbers follow from `seed`. Once in a process.
pub fn begin(seed: u64) {
    random::seed(seed);
    ON.store(true, Ordering::Relaxed);
    SIMULATED.set(true);
    // The linker keeps what is referred to.
    std::hint::black_box(linked());
}

/// Addresses of the functions that stand in for the C library's.
fn linked() -> [usize; 13] {
    [
        clock_gettime as *const () as usize,
        epoll_wait as *const () as usize,
        random::getrandom as *const () as usize,
        threads::pthread_create as *const () as usize,
        network::socket as *const () as usize,
        network::connect as *const () as usize,
        disk::write as *const () as usize,
        disk::fsync as *const () as usize,
        disk::fdatasync as *const () as usize,
        files::open64 as *const () as usize,
        files::opendir as *const () as usize,
        users::getsockopt as *const () as usize,
        places::lseek64 as *const () as usize,
    ]
}

fn is_simulated() -> bool {
    SIMULATED.get()
}

/// This thread does something for the simulated one, which waits for it.
fn follows() -> bool {
    FOLLOWS.get()
}

/// From here on this thread does something for the simulated one.
pub(crate) fn follow() {
    FOLLOWS.set(true);
}

/// Virtual time since [`begin`].
pub fn now() -> Duration {
    Duration::from_nanos(NOW.load(Ordering::Relaxed))
}

/// Lets time pass until `to`; nothing where that is past.
pub fn advance(to: Duration) {
    NOW.fetch_max(u64::try_from(to.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// Sets the machine's clock forward (or back, where negative) by so many milliseconds. The monotonic clock does not notice.
pub fn step_wall_clock(milliseconds: i64) {
    STEPPED.fetch_add(milliseconds.saturating_mul(1_000_000), Ordering::Relaxed);
}

/// How often the thread has asked `epoll_wait` so far: more than once in a turn means that there was something to do.
pub fn waits() -> u64 {
    WAITS.get()
}

/// What the thread has asked with `epoll_wait` last.
pub fn asked() -> c_int {
    ASKED.get()
}

/// Whether `epoll_wait` would give something, asked by this.
pub fn is_ready(epoll: c_int) -> bool {
    let mut polled = libc::pollfd { fd: epoll, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, as is said.
    unsafe { libc::poll(&raw mut polled, 1, 0) > 0 }
}

/// Whom to wake when the thread would wait.
pub fn on_idle(waker: Waker) {
    IDLE.with_borrow_mut(|idle| idle.waker = Some(waker));
}

/// Whether the thread would have waited since this was asked last.
pub fn take_idle() -> Option<Idle> {
    IDLE.with_borrow_mut(|idle| idle.found.take())
}

fn virtual_time(clock: libc::clockid_t) -> Option<i64> {
    // A machine's clock never says the same twice, and who compares times relies on it.
    let now = NOW.fetch_add(1, Ordering::Relaxed);
    match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => {
            Some(WALL_AT_START + i64::try_from(now).unwrap_or(i64::MAX) + STEPPED.load(Ordering::Relaxed))
        }
        libc::CLOCK_MONOTONIC | libc::CLOCK_MONOTONIC_COARSE | libc::CLOCK_MONOTONIC_RAW | libc::CLOCK_BOOTTIME => {
            i64::try_from(MONOTONIC_AT_START.saturating_add(now)).ok()
        }
        _ => None,
    }
}

/// # Safety
/// As the C library's: `time` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    // What such a thread waits for (tokio's for more work) is over by the kernel's clock.
    let is_by_kernel =
        matches!(clock, libc::CLOCK_MONOTONIC | libc::CLOCK_MONOTONIC_COARSE | libc::CLOCK_MONOTONIC_RAW);
    if (is_simulated() || follows() && !is_by_kernel)
        && let Some(nanoseconds) = virtual_time(clock)
    {
        let value = libc::timespec {
            tv_sec: nanoseconds.div_euclid(1_000_000_000),
            tv_nsec: nanoseconds.rem_euclid(1_000_000_000) as c_long,
        };
        // SAFETY: the caller promises that `time` can be written.
        unsafe { time.write(value) };
        return 0;
    }
    // SAFETY: the same arguments as the caller's, for which it has given the same promise.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as c_int }
}

/// # Safety
/// As the C library's: `events` has room for `max`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(epoll: c_int, events: *mut libc::epoll_event, max: c_int, timeout: c_int) -> c_int {
    let simulated = is_simulated();
    if simulated {
        threads::let_run();
    }
    let wait = if simulated { 0 } else { timeout };
    // SAFETY: the caller's own arguments but for the time, which points nowhere; no mask of signals is given.
    let ready = unsafe {
        libc::syscall(libc::SYS_epoll_pwait, epoll, events, max, wait, std::ptr::null::<libc::sigset_t>(), 8_usize)
    } as c_int;
    if !simulated {
        return ready;
    }
    WAITS.set(WAITS.get() + 1);
    ASKED.set(epoll);
    if ready == 0 && timeout != 0 {
        let until = u64::try_from(timeout).ok().map(|milliseconds| now() + Duration::from_millis(milliseconds));
        let waker = IDLE.with_borrow_mut(|idle| {
            idle.found = Some(Idle { until });
            idle.waker.take()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }
    ready
}
