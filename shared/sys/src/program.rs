//! The program's own memory: letting go of what is not being used of code and constants, and the title that `ps` shows.
//!
//! They are pages of a file, mapped when first touched, with their neighbours. What only the start or a burst of work ran
//! stays mapped for ever, and counts as this process's memory, until somebody says that it need not.

use std::ffi::c_int;

/// Unmaps every page of this program's code and constants; what is touched again comes back from the page cache, some
/// microseconds for 64 KiB. Answers how many bytes were let go of at most.
///
/// Only segments that nothing can have written to: read-only or executable ones of the program file. What the linker
/// relocates lies in a writable segment, also where it is protected afterwards.
pub fn let_go_of_pages() -> usize {
    let mut segments: Vec<(usize, usize)> = Vec::new();
    // SAFETY: the callback gets a valid description for the time of the call and the pointer that is given here, to a
    // vector that outlives it; it does not unwind, as pushing to a vector does not.
    unsafe { libc::dl_iterate_phdr(Some(first_program), std::ptr::from_mut(&mut segments).cast()) };
    let Ok(page) = usize::try_from(crate::page::size()) else { return 0 };
    let mut bytes = 0;
    for (start, length) in segments {
        let begin = start & !(page - 1);
        let end = (start + length).next_multiple_of(page);
        // SAFETY: the range is a private mapping of a file that nobody writes to, made by the loader for the life of the
        // process and never written by it: its pages read the same when they come back.
        if unsafe { libc::madvise(begin as *mut libc::c_void, end - begin, libc::MADV_DONTNEED) } == 0 {
            bytes += end - begin;
        }
    }
    bytes
}

/// Notes the segments that are not writable of the first object, which is the program, and ends the walk.
extern "C" fn first_program(info: *mut libc::dl_phdr_info, _: usize, found: *mut libc::c_void) -> c_int {
    // SAFETY: dl_iterate_phdr(3) passes a valid description, and `found` is the vector of `let_go_of_pages`.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Vec<(usize, usize)>>()) };
    if info.dlpi_phdr.is_null() {
        return 1;
    }
    // SAFETY: the loader's own table of that many entries.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    for header in headers.iter().filter(|one| one.p_type == libc::PT_LOAD && one.p_flags & libc::PF_W == 0) {
        // Addresses and sizes of this process fit its own pointers.
        let (at, size) = (info.dlpi_addr as usize, header.p_memsz as usize);
        found.push((at + header.p_vaddr as usize, size));
    }
    1
}

/// Where the kernel takes a process's command line from: the arguments that it was started with, in its own memory.
#[derive(Debug, Clone, Copy)]
pub struct Title {
    start: usize,
    length: usize,
}

impl Title {
    /// Looks it up in /proc, so before a fence that closes /proc. `None` where the kernel does not show it.
    pub fn find() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        // proc_pid_stat(5): fields 48 and 49, counted behind the name, which may hold anything.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<usize>().ok().filter(|number| *number != 0);
        let (start, end) = (number(48)?, number(49)?);
        Some(Title { start, length: end.checked_sub(start).filter(|length| *length > 1)? })
    }

    /// Shows this text for the calling process, which must have been forked by [`crate::fork`]: it has one thread, and nobody
    /// in it reads the arguments any more. What has no room is left out.
    pub(crate) fn show(self, text: &str) {
        // SAFETY: the kernel's word for where the arguments of this process lie, on its stack above every frame, writable and
        // there for its life. There is one thread and no reference to them: std reads them through pointers, when asked.
        let area = unsafe { std::slice::from_raw_parts_mut(self.start as *mut u8, self.length) };
        area.fill(0);
        for (to, from) in area.iter_mut().take(self.length - 1).zip(text.bytes()) {
            *to = from;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_kib_of_this_program() -> u64 {
        let me = std::env::current_exe().unwrap();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let (mut ours, mut sum) = (false, 0);
        for line in maps.lines() {
            let is_header = line.split(' ').next().is_some_and(|word| word.contains('-'));
            if is_header {
                ours = line.ends_with(me.to_str().unwrap()) && !line.contains(" rw-p ");
            } else if ours && line.starts_with("Rss:") {
                sum += line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
            }
        }
        sum
    }

    #[test]
    fn unused_code_goes_and_the_program_goes_on() {
        let before = resident_kib_of_this_program();
        assert!(let_go_of_pages() > 0);
        let after = resident_kib_of_this_program();
        assert!(after < before, "{before} KiB before, {after} KiB after");
        assert_eq!(format!("{:?}", "still".to_owned() + " here"), "\"still here\"");
    }
}
