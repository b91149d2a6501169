//! What the kernel does for the privileged: mounts, namespaces, modules, clocks, tracing, foreign calls.

use std::io;

use bulkhead_sys::attempt::Call;

use crate::plan::Plan;
use crate::report::Report;

const CALLS: [(&str, Call); 38] = [
    ("acct", Call::Acct),
    ("add-key", Call::AddKey),
    ("adjtimex", Call::AdjTime),
    ("bpf", Call::Bpf),
    ("chroot", Call::Chroot),
    ("clone-user-namespace", Call::CloneUserNamespace),
    ("clone3", Call::Clone3),
    ("delete-module", Call::DeleteModule),
    ("fanotify", Call::Fanotify),
    ("fsopen", Call::FileSystemOpen),
    ("int-0x80", Call::Foreign32Bit),
    ("x32-call", Call::ForeignX32),
    ("ioperm", Call::HardwarePorts),
    ("init-module", Call::InitModule),
    ("tiocsti", Call::InsertTerminalInput),
    ("io-uring", Call::IoUring),
    ("kernel-log", Call::KernelLog),
    ("kexec", Call::KexecLoad),
    ("keyctl", Call::Keyctl),
    ("listmount", Call::ListMounts),
    ("mount", Call::Mount),
    ("mount-setattr", Call::MountSetAttributes),
    ("move-mount", Call::MoveMount),
    ("open-by-handle", Call::OpenByHandle),
    ("open-tree", Call::OpenTree),
    ("perf-event", Call::PerfEvent),
    ("personality", Call::Personality),
    ("pivot-root", Call::PivotRoot),
    ("quotactl", Call::Quota),
    ("reboot", Call::Reboot),
    ("setdomainname", Call::SetDomainName),
    ("sethostname", Call::SetHostName),
    ("setns", Call::SetNamespace),
    ("settimeofday", Call::SetTime),
    ("swapon", Call::SwapOn),
    ("umount", Call::Unmount),
    ("unshare", Call::UnshareAll),
    ("userfaultfd", Call::Userfault),
];

pub fn all(report: &mut Report, plan: &Plan) {
    for (name, call) in CALLS {
        report.call(name, call);
    }
    // In earnest, and undone: what a process that may mount at all can do.
    report.attempt("mount-a-tmpfs", || {
        let at = plan.scratch.join("mounted");
        let flags = rustix::mount::MountFlags::NOSUID;
        rustix::mount::mount("none", &at, "tmpfs", flags, None)?;
        Ok(rustix::mount::unmount(&at, rustix::mount::UnmountFlags::DETACH)?)
    });
    report.attempt("raise-own-limits", || {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let now = getrlimit(Resource::Nofile);
        let Some(most) = now.maximum else { return Err(io::Error::from_raw_os_error(1)) };
        Ok(setrlimit(Resource::Nofile, Rlimit { current: now.current, maximum: Some(most + 1) })?)
    });
    report.attempt("raise-core-limit", || {
        use rustix::process::{Resource, Rlimit, setrlimit};
        Ok(setrlimit(Resource::Core, Rlimit { current: None, maximum: None })?)
    });
    // Dies by an abort: with a core file or without.
    report.attempt("core-dump", || nix::sys::signal::raise(nix::sys::signal::Signal::SIGABRT).map_err(io::Error::from));
}
