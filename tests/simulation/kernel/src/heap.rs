//! How much the program has on the heap. Processes of the node have their turns one after the other, and what moves between them are
//! bytes in sockets: so what comes and goes in its turns is what a process has.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};

/// The system's allocator, with an account.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
/// Bytes as they were asked for, without those that were given back.
static HELD: AtomicI64 = AtomicI64::new(0);

fn count(taken: usize, given_back: usize) {
    let bytes = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
    HELD.fetch_add(bytes(taken) - bytes(given_back), Ordering::Relaxed);
}

// SAFETY: every call is passed on to the system's allocator as it came, and its answer given back.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        let place = unsafe { System.alloc(layout) };
        if !place.is_null() {
            count(layout.size(), 0);
        }
        place
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        let place = unsafe { System.alloc_zeroed(layout) };
        if !place.is_null() {
            count(layout.size(), 0);
        }
        place
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(place, layout) };
        count(0, layout.size());
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        let moved = unsafe { System.realloc(place, layout, size) };
        if !moved.is_null() {
            count(size, layout.size());
        }
        moved
    }
}

/// What the program has on the heap, bytes.
pub fn held() -> i64 {
    HELD.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::held;

    #[test]
    fn what_is_taken_counts_until_it_is_given_back() {
        // Other tests of the program take a little meanwhile.
        const MUCH: i64 = 64 << 20;
        let before = held();
        let mut much = vec![1_u8; MUCH as usize];
        assert!((held() - before - MUCH).abs() < MUCH / 4);
        much.resize(2 * MUCH as usize, 1);
        much.shrink_to_fit();
        assert!((held() - before - 2 * MUCH).abs() < MUCH / 4);
        drop(much);
        assert!((held() - before).abs() < MUCH / 4);
    }
}
