//! The program's own memory: letting go of what is not being used of code and constants, and the title that `ps` shows.
//!
//! They are pages of a file, mapped when first touched, with their neighbours unless that is turned off. What only the start or a
//! burst of work ran stays mapped for ever, and counts as this process's memory, until somebody says that it need not.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::OnceLock;

/// Of linux/userfaultfd.h: `UFFD_USER_MODE_ONLY`, the version, and of its features the one with which any private mapping may be
/// registered (Linux 6.7).
const USER_MODE_ONLY: libc::c_int = 1;
const UFFD_API: u64 = 0xAA;
const WRITE_PROTECT_ASYNC: u64 = 1 << 15;
/// `UFFDIO_API` and `UFFDIO_REGISTER`, and the mode of the latter, `UFFDIO_REGISTER_MODE_WP`.
const API: libc::c_ulong = 0xC018_AA3F;
const REGISTER: libc::c_ulong = 0xC020_AA00;
const MODE_WRITE_PROTECT: u64 = 1 << 1;

/// `struct uffdio_api`.
#[repr(C)]
struct Handshake {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Registration {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

/// The registration lasts as long as this descriptor is open.
static SINGLY: OnceLock<OwnedFd> = OnceLock::new();

/// From now on the kernel maps a page of this program's code and constants when it is touched, alone: without this the pages around it
/// (`fault_around_bytes`, 64 KiB) are mapped with it and count as this process's memory, used or not. To be called before the filter
/// denies userfaultfd(2), which it needs; nobody is told of faults, and nothing is write-protected.
///
/// # Errors
/// The kernel is older than Linux 6.7, or does not let this process. Nothing has changed then.
pub fn map_pages_singly() -> io::Result<()> {
    if SINGLY.get().is_some() {
        return Ok(());
    }
    // SAFETY: userfaultfd(2) takes flags alone and answers a descriptor.
    let opened = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY) };
    let opened = libc::c_int::try_from(opened).map_err(io::Error::other)?;
    if opened < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was opened above and is nobody else's.
    let descriptor = unsafe { OwnedFd::from_raw_fd(opened) };
    let mut handshake = Handshake { api: UFFD_API, features: WRITE_PROTECT_ASYNC, ioctls: 0 };
    // SAFETY: the request's structure is that of the kernel's header, and lives until the call is over.
    if unsafe { libc::ioctl(descriptor.as_raw_fd(), API, &raw mut handshake) } != 0 {
        return Err(io::Error::last_os_error());
    }
    for (begin, end) in segments() {
        let (start, length) = (begin as u64, (end - begin) as u64);
        let mut registration = Registration { start, length, mode: MODE_WRITE_PROTECT, ioctls: 0 };
        // SAFETY: as above. The mode asks for nothing when a page is missing, and no page is ever protected.
        if unsafe { libc::ioctl(descriptor.as_raw_fd(), REGISTER, &raw mut registration) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let _ = SINGLY.set(descriptor);
    Ok(())
}

/// Unmaps every page of this program's code and constants; what is touched again comes back from the page cache, in less than a
/// microsecond for a page. Answers how many bytes were let go of at most.
pub fn let_go_of_pages() -> usize {
    let mut bytes = 0;
    for (begin, end) in segments() {
        // SAFETY: the range is a private mapping of a file that nobody writes to, made by the loader for the life of the
        // process and never written by it: its pages read the same when they come back.
        if unsafe { libc::madvise(begin as *mut libc::c_void, end - begin, libc::MADV_DONTNEED) } == 0 {
            bytes += end - begin;
        }
    }
    bytes
}

/// From where to where code and constants lie, in whole pages.
///
/// Only segments that nothing can have written to: read-only or executable ones of the program file. What the linker
/// relocates lies in a writable segment, also where it is protected afterwards.
fn segments() -> Vec<(usize, usize)> {
    let mut segments: Vec<(usize, usize)> = Vec::new();
    // SAFETY: the callback gets a valid description for the time of the call and the pointer that is given here, to a
    // vector that outlives it; it does not unwind, as pushing to a vector does not.
    unsafe { libc::dl_iterate_phdr(Some(first_program), std::ptr::from_mut(&mut segments).cast()) };
    let Ok(page) = usize::try_from(crate::page::size()) else { return Vec::new() };
    let whole = |(start, length): (usize, usize)| (start & !(page - 1), (start + length).next_multiple_of(page));
    segments.into_iter().map(whole).collect()
}

/// Notes the segments that are not writable of the first object, which is the program, and ends the walk.
extern "C" fn first_program(info: *mut libc::dl_phdr_info, _: usize, found: *mut libc::c_void) -> c_int {
    // SAFETY: dl_iterate_phdr(3) passes a valid description, and `found` is the vector of `segments`.
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

    /// In a process of its own, as it lasts for the process's life.
    #[test]
    fn pages_come_back_alone() {
        const MARK: &str = "BULKHEAD_TEST_PAGES_SINGLY";
        if std::env::var_os(MARK).is_none() {
            let me = std::env::current_exe().unwrap();
            let mut again = std::process::Command::new(me);
            again.args(["--exact", "program::tests::pages_come_back_alone", "--nocapture"]).env(MARK, "1");
            let ended = again.output().unwrap();
            assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
            return;
        }
        let after = || {
            let_go_of_pages();
            resident_kib_of_this_program()
        };
        let with_neighbours = after();
        match map_pages_singly() {
            Ok(()) => {}
            // Older kernels map neighbours as well, for ever.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::EPERM)) => return,
            Err(error) => panic!("{error}"),
        }
        let alone = after();
        assert!(alone * 2 < with_neighbours, "{alone} KiB alone, {with_neighbours} KiB with neighbours");
        map_pages_singly().unwrap();
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
