//! Other processes: their memory, descriptors, lives; and becoming another oneself.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};

use bulkhead_daemon::privileges::Program;
use bulkhead_sys::attempt::Call;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::plan::Plan;
use crate::report::Report;

/// Programs that become root on most machines.
const SETUID: [&str; 3] = ["/bin/su", "/usr/bin/passwd", "/usr/bin/chsh"];

pub fn all(report: &mut Report, program: Program, plan: &Plan) {
    for (name, pid) in &plan.processes {
        let pid = *pid;
        if program.name().strip_prefix("kubelet-") == Some(name) {
            continue;
        }
        let act = |what: &str| format!("{what}-of-{name}");
        // Signal 0 asks whether it might be sent one.
        report.attempt(&act("signal"), || kill(Pid::from_raw(pid), None).map_err(io::Error::from));
        report.call(&act("trace"), Call::TraceAttach(pid));
        report.call(&act("process-vm-read"), Call::ProcessVmRead(pid));
        report.call(&act("process-vm-write"), Call::ProcessVmWrite(pid));
        report.call(&act("pidfd-getfd"), Call::PidfdGetfd(pid));
        report.call(&act("move-pages"), Call::MoveProcessPages(pid));
        report.attempt(&act("memory-by-proc"), || memory(pid));
        report
            .attempt(&act("environment"), || File::open(format!("/proc/{pid}/environ"))?.read(&mut [0; 1]).map(|_| ()));
        report.attempt(&act("descriptors"), || std::fs::read_dir(format!("/proc/{pid}/fd")).map(|_| ()));
        report.attempt(&act("root"), || std::fs::read_dir(format!("/proc/{pid}/root/")).map(|_| ()));
        report.attempt(&act("oom-score"), || {
            File::options().write(true).open(format!("/proc/{pid}/oom_score_adj")).map(|_| ())
        });
    }
    report.call("trace-me", Call::TraceMe);
    report.attempt("become-root", || Ok(rustix::thread::set_thread_uid(rustix::thread::Uid::ROOT)?));
    report.attempt("become-nobody", || Ok(rustix::thread::set_thread_uid(rustix::thread::Uid::from_raw(65_534))?));
    report.attempt("join-group-root", || Ok(rustix::thread::set_thread_groups(&[rustix::thread::Gid::ROOT])?));
    report.attempt("run-a-shell", || ran(Command::new("/bin/sh").args(["-c", "exit 0"])));
    report.attempt("gain-by-a-setuid-program", gain_by_a_setuid_program);
    report.attempt("set-capability-ambient", || {
        let set = rustix::thread::configure_capability_in_ambient_set;
        Ok(set(rustix::thread::CapabilitySet::NET_RAW, true)?)
    });
}

fn ran(command: &mut Command) -> io::Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().map(|_| ())
}

/// Starts one, and looks whose process that is.
fn gain_by_a_setuid_program() -> io::Result<()> {
    let is_setuid =
        |path: &&&str| std::fs::metadata(path).is_ok_and(|file| file.uid() == 0 && file.mode() & 0o4000 != 0);
    let program = SETUID.iter().find(is_setuid).ok_or(io::ErrorKind::NotFound)?;
    // It waits for an answer to its question.
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let whose = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
    let _ = child.kill();
    let _ = child.wait();
    // "Uid: real effective saved file-system"
    let effective =
        whose?.lines().find_map(|line| line.strip_prefix("Uid:")?.split_ascii_whitespace().nth(1)?.parse().ok());
    let ours = rustix::process::geteuid().as_raw();
    if effective.is_some_and(|effective: u32| effective == ours) {
        Err(io::Error::from_raw_os_error(1))
    } else {
        Ok(())
    }
}

/// The first bytes of its program, which are there for sure.
fn memory(pid: i32) -> io::Result<()> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let start = maps.split('-').next().and_then(|start| u64::from_str_radix(start, 16).ok());
    let mut memory = File::open(format!("/proc/{pid}/mem"))?;
    memory.seek(SeekFrom::Start(start.unwrap_or(0x40_0000)))?;
    memory.read_exact(&mut [0; 1])
}
