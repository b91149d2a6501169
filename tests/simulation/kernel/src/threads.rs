//! Threads of the simulated one: each runs only while the simulated thread waits for it, in the order in which they were begun, so that
//! no two things of the process happen at the same time.

use std::ffi::{c_int, c_void};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::is_simulated;

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;

#[derive(Debug)]
struct Turns {
    begun: u64,
    /// Threads up to this one may run.
    may: u64,
    ended: u64,
}

static TURNS: Mutex<Turns> = Mutex::new(Turns { begun: 0, may: 0, ended: 0 });
static CHANGED: Condvar = Condvar::new();

fn turns() -> MutexGuard<'static, Turns> {
    TURNS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets each thread that was begun run to its end.
pub(crate) fn let_run() {
    let mut turns = turns();
    while turns.ended < turns.begun {
        turns.may = turns.ended + 1;
        CHANGED.notify_all();
        turns = CHANGED.wait(turns).unwrap_or_else(PoisonError::into_inner);
    }
}

struct Begun {
    start: Start,
    argument: *mut c_void,
    number: u64,
}

extern "C" fn in_turn(begun: *mut c_void) -> *mut c_void {
    // SAFETY: `pthread_create` below has made it by `Box::into_raw`, for this one call.
    let Begun { start, argument, number } = *unsafe { Box::from_raw(begun.cast::<Begun>()) };
    {
        let mut turns = turns();
        while turns.may < number {
            turns = CHANGED.wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
    }
    crate::follow();
    let result = start(argument);
    turns().ended += 1;
    CHANGED.notify_all();
    result
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: a name that ends with a zero, and a handle that asks for the next definition after this program's own.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()) };
    if found.is_null() {
        return libc::ENOSYS;
    }
    // SAFETY: the C library's function of this name has this type.
    let create: Create = unsafe { std::mem::transmute::<*mut c_void, Create>(found) };
    if !is_simulated() {
        // SAFETY: the caller's own arguments.
        return unsafe { create(thread, attributes, start, argument) };
    }
    let number = {
        let mut turns = turns();
        turns.begun += 1;
        turns.begun
    };
    let begun = Box::into_raw(Box::new(Begun { start, argument, number })).cast::<c_void>();
    // SAFETY: the caller's own arguments, and a function that takes what it is given.
    let failed = unsafe { create(thread, attributes, in_turn, begun) };
    if failed != 0 {
        turns().begun -= 1;
        // SAFETY: no thread has taken it.
        drop(unsafe { Box::from_raw(begun.cast::<Begun>()) });
    }
    failed
}
