//! The allocator's heap: how much of it lies idle, and giving that back to the kernel.
//!
//! glibc returns only what is free at the very end of its heap; one small object that lives keeps everything below it.
//! Elsewhere (musl) there is nothing to ask or to do.

/// Bytes of the main heap that are free, whether the kernel has them back or not. `None`: the allocator does not tell.
pub fn free_bytes() -> Option<usize> {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: takes nothing and only reads the allocator's books, under its own lock.
        let books = unsafe { libc::mallinfo2() };
        Some(books.fordblks)
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

/// Gives every whole page that is free back to the kernel; costs a system call for each free stretch.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: touches free memory only, under the allocator's own lock.
        unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(test)]
#[cfg(target_env = "gnu")]
mod tests {
    use super::*;

    fn resident_pages() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn pages_between_living_objects_go_back() {
        // Small enough for the heap, in pairs of which one stays.
        let mut all: Vec<Option<Vec<u8>>> = (0..2000).map(|_| Some(vec![1u8; 32 << 10])).collect();
        all.iter_mut().step_by(2).for_each(|one| *one = None);
        assert!(free_bytes().unwrap() > 16 << 20);
        let before = resident_pages();
        give_back();
        // 32 MB were freed; how much of that was in this heap is not ours to say exactly.
        assert!(resident_pages() + (8 << 20) / 4096 < before, "{before} pages before, {} after", resident_pages());
        assert!(all.iter().flatten().all(|one| one.len() == 32 << 10));
    }
}
