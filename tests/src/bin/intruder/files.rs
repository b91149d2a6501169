//! Files and folders that are none of this daemon's, by their paths and by what it was handed.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use bulkhead_daemon::privileges::Program;
use bulkhead_types::Process;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use crate::plan::Plan;
use crate::report::Report;

fn read(path: &Path) -> io::Result<()> {
    // As large as a message of the kernel's log, which is read whole or not at all.
    match File::options().read(true).custom_flags(libc_nonblock()).open(path)?.read(&mut [0; 8192]) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        other => other.map(|_| ()),
    }
}

/// A fifo or a device must not hold up the attempt.
fn libc_nonblock() -> i32 {
    i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0)
}

/// Opens for writing and writes nothing; what was made is removed. The kernel's own files are there or are not.
fn write(path: &Path) -> io::Result<()> {
    let there = path.exists() || ["/dev", "/proc", "/sys"].iter().any(|kernel| path.starts_with(kernel));
    let file = File::options().write(true).create(!there).truncate(false).custom_flags(libc_nonblock()).open(path)?;
    (&file).write_all(b"")?;
    if there { Ok(()) } else { std::fs::remove_file(path) }
}

pub fn all(report: &mut Report, program: Program, plan: &Plan, state: Option<OwnedFd>) {
    for (name, path) in &plan.read {
        report.attempt(&format!("read-{name}"), || read(path));
    }
    for (name, path) in &plan.write {
        report.attempt(&format!("write-{name}"), || write(path));
    }
    report.attempt("list-pods-folder", || std::fs::read_dir(plan.root_dir.join("pods")).map(|_| ()));
    report.attempt("write-own-program", || write(&std::env::current_exe()?));
    for other in Process::ALL.into_iter().filter(|other| Program::Daemon(*other) != program) {
        let folder = plan.root_dir.join("bulkhead").join(other.short());
        report.attempt(&format!("list-state-of-{}", other.short()), || std::fs::read_dir(&folder).map(|_| ()));
        report.attempt(&format!("write-state-of-{}", other.short()), || write(&folder.join("intruder")));
    }
    report.attempt("replace-a-socket", || {
        let draft = plan.run_dir.join("intruder.sock");
        std::os::unix::net::UnixListener::bind(&draft)?;
        std::fs::remove_file(draft)
    });
    report.attempt("device-by-mknod", || {
        let path = plan.scratch.join(format!("device-{}", std::process::id()));
        let device = rustix::fs::makedev(1, 3);
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::CharacterDevice, Mode::RUSR, device)?;
        std::fs::remove_file(path)
    });
    report.attempt("give-away-by-chown", || {
        let path = plan.scratch.join(format!("gift-{}", std::process::id()));
        File::create(&path)?;
        let given = std::os::unix::fs::chown(&path, Some(0), Some(0));
        let _ = std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600));
        std::fs::remove_file(path)?;
        given
    });
    // Past a fence by the kernel's own links, which lead to objects and not to names.
    report.attempt("shadow-by-proc-root", || read(Path::new("/proc/self/root/etc/shadow")));
    report.attempt("shadow-by-proc-cwd", || read(Path::new("/proc/self/cwd/../../../../../../etc/shadow")));
    report.attempt("shadow-by-root-of-pid-1", || read(Path::new("/proc/1/root/etc/shadow")));
    report.attempt("environment-of-pid-1", || read(Path::new("/proc/1/environ")));
    match state {
        Some(state) => handed(report, program, &state),
        None => report.note("handed-folder", "none"),
    }
}

/// A descriptor of its own state folder is all that this daemon was handed of the disk: nothing else can be had by it.
fn handed(report: &mut Report, program: Program, state: &OwnedFd) {
    let below = |path: &str, flags: OFlags| -> io::Result<()> {
        rustix::fs::openat(state.as_fd(), path, flags | OFlags::CLOEXEC, Mode::empty())?;
        Ok(())
    };
    let other = if program == Program::Daemon(Process::Syncd) { "evictiond" } else { "syncd" };
    report.attempt("handed-folder-own-file", || {
        let name = format!("intruder-{}", std::process::id());
        rustix::fs::openat(state, &name, OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR)?;
        Ok(rustix::fs::unlinkat(state, &name, AtFlags::empty())?)
    });
    report.attempt("handed-folder-parent-listed", || below("..", OFlags::RDONLY | OFlags::DIRECTORY));
    report.attempt("handed-folder-sibling", || below(&format!("../{other}"), OFlags::RDONLY | OFlags::DIRECTORY));
    report.attempt("handed-folder-pods", || below("../../pods", OFlags::RDONLY | OFlags::DIRECTORY));
    report.attempt("handed-folder-shadow", || below("../../../../../../../../../../etc/shadow", OFlags::RDONLY));
    report.attempt("handed-folder-new-file-in-parent", || {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        rustix::fs::openat(state, "../intruder", flags, Mode::RUSR)?;
        Ok(rustix::fs::unlinkat(state, "../intruder", AtFlags::empty())?)
    });
}
