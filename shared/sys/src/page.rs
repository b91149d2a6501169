//! The size of a page of memory.

/// Bytes. From the C library, which was told at the start: a process that may not be dumped cannot read it in /proc, and
/// kernels before 6.4 tell it nowhere else.
pub fn size() -> u64 {
    // SAFETY: takes a number and returns one.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).ok().filter(|size| *size > 0).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_page_is_a_power_of_two() {
        assert!(super::size().is_power_of_two() && super::size() >= 4096);
    }
}
