//! What /proc says about processes: whose they are, when they began, what they cost.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// A process, told apart from a later one with the same number by its start time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId {
    pub pid: i32,
    /// Clock ticks after boot.
    pub start_ticks: u64,
}

/// Every process with its argument vector. A process that ends meanwhile is left out.
pub fn all() -> Vec<(i32, Vec<String>)> {
    all_in(Path::new("/proc"))
}

/// The same from a procfs that counts the processes of another namespace.
pub fn all_in(proc: &Path) -> Vec<(i32, Vec<String>)> {
    let Ok(entries) = std::fs::read_dir(proc) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| {
            let raw = std::fs::read(proc.join(format!("{pid}/cmdline"))).ok()?;
            let arguments: Vec<String> = raw
                .split(|byte| *byte == 0)
                .filter(|part| !part.is_empty())
                .map(|part| String::from_utf8_lossy(part).into_owned())
                .collect();
            (!arguments.is_empty()).then_some((pid, arguments))
        })
        .collect()
}

/// Processes with an argument that equals `text` or lies below it as a path.
pub fn with_argument_below(text: &Path) -> Vec<i32> {
    with_argument(|path| path.starts_with(text))
}

/// Processes with an argument that is such a path, also as the value of an option or the address of a socket.
pub fn with_argument(is_wanted: impl Fn(&Path) -> bool) -> Vec<i32> {
    all()
        .into_iter()
        .filter(|(pid, arguments)| {
            *pid != std::process::id() as i32
                && arguments.iter().any(|argument| {
                    let value = argument.split_once('=').map_or(argument.as_str(), |(_, value)| value);
                    is_wanted(Path::new(value.strip_prefix("unix://").unwrap_or(value)))
                })
        })
        .map(|(pid, _)| pid)
        .collect()
}

/// Sends a signal; a process that is gone is no error.
pub fn signal(pid: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid), signal);
}

/// Ctrl-C for a child of ours.
pub fn interrupt(child: &std::process::Child) {
    if let Ok(pid) = i32::try_from(child.id()) {
        signal(pid, Signal::SIGINT);
    }
}

/// SIGKILL to a whole process group, by its leader.
pub fn kill_group(leader: i32) {
    let _ = killpg(Pid::from_raw(leader), Signal::SIGKILL);
}

/// Whether the process still runs (a zombie does not).
pub fn is_alive(pid: i32) -> bool {
    stat(pid).is_ok_and(|stat| stat.state != 'Z' && stat.state != 'X')
}

/// The fields of /proc/<pid>/stat that are of use here.
#[derive(Debug, Clone)]
pub struct Stat {
    pub state: char,
    pub parent: i32,
    /// User and system time, in clock ticks.
    pub cpu_ticks: u64,
    /// The same of children that have ended and were waited for.
    pub waited_ticks: u64,
    pub start_ticks: u64,
}

/// Reads /proc/<pid>/stat.
///
/// # Errors
/// The process is gone.
pub fn stat(pid: i32) -> Result<Stat> {
    stat_in(Path::new("/proc"), pid)
}

/// The same from a procfs that counts the processes of another namespace.
///
/// # Errors
/// The process is gone.
pub fn stat_in(proc: &Path, pid: i32) -> Result<Stat> {
    let text =
        std::fs::read_to_string(proc.join(format!("{pid}/stat"))).with_context(|| format!("process {pid} is gone"))?;
    // The name is in parentheses and may hold anything, so the fields are counted from the last one.
    let rest = text.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok()).unwrap_or_default();
    Ok(Stat {
        state: fields.first().and_then(|field| field.chars().next()).unwrap_or('X'),
        parent: number(1) as i32,
        cpu_ticks: number(11) + number(12),
        waited_ticks: number(13) + number(14),
        start_ticks: number(19),
    })
}

/// The process with its start time.
///
/// # Errors
/// The process is gone.
pub fn identify(pid: i32) -> Result<ProcessId> {
    Ok(ProcessId { pid, start_ticks: stat(pid)?.start_ticks })
}

/// Proportional set size in KiB.
///
/// # Errors
/// The process is gone, or this process may not look.
pub fn pss_kib(pid: i32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))
        .with_context(|| format!("reading the memory map of process {pid}"))?;
    field(&text, "Pss:").with_context(|| format!("no Pss for process {pid}"))
}

/// Whether the kernel maps each page of its code alone (proc_pid_smaps(5): `uw` among the flags of what may be executed). `None`: it
/// cannot, being older than Linux 6.7.
///
/// # Errors
/// `smaps` is no text of that file, or the kernel has no version.
pub fn maps_pages_singly(smaps: &str, program: &str) -> Result<Option<bool>> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").context("asking for the kernel's version")?;
    let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        anyhow::bail!("{release} is no version of a kernel");
    };
    if (major, minor) < (6, 7) {
        return Ok(None);
    }
    let is_code = |line: &&str| line.contains(" r-xp ") && line.ends_with(program);
    let mut lines = smaps.lines().skip_while(|line| !is_code(line));
    let flags =
        lines.find_map(|line| line.strip_prefix("VmFlags:")).with_context(|| format!("no code of {program}"))?;
    Ok(Some(flags.split_whitespace().any(|flag| flag == "uw")))
}

/// What the process itself has written to, in KiB: heap and stacks, without pages of its program, which come and go with
/// what it does and with who else runs it.
///
/// # Errors
/// The process is gone, or this process may not look.
pub fn heap_kib(pid: i32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))
        .with_context(|| format!("reading the memory map of process {pid}"))?;
    field(&text, "Pss_Anon:").with_context(|| format!("no Pss_Anon for process {pid}"))
}

/// Time on a processor in nanoseconds, all threads that live. Finer than [`Stat::cpu_ticks`], which counts in 10 ms.
///
/// # Errors
/// The process is gone.
pub fn cpu_nanoseconds(pid: i32) -> Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid} is gone"))? {
        let Ok(text) = std::fs::read_to_string(entry?.path().join("schedstat")) else { continue };
        sum += text.split_ascii_whitespace().next().and_then(|first| first.parse::<u64>().ok()).unwrap_or(0);
    }
    if sum == 0 {
        // A kernel without scheduler statistics.
        sum = stat(pid)?.cpu_ticks * (1_000_000_000 / ticks_per_second());
    }
    Ok(sum)
}

/// Voluntary and involuntary context switches of all threads.
///
/// # Errors
/// The process is gone.
pub fn context_switches(pid: i32) -> Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid} is gone"))? {
        let Ok(text) = std::fs::read_to_string(entry?.path().join("status")) else { continue };
        sum += field(&text, "voluntary_ctxt_switches:").unwrap_or(0);
        sum += field(&text, "nonvoluntary_ctxt_switches:").unwrap_or(0);
    }
    Ok(sum)
}

/// A `Name: value` line of /proc/<pid>/status, without its name.
///
/// # Errors
/// The process is gone or has no such line.
pub fn status_line(pid: i32, name: &str) -> Result<String> {
    let text =
        std::fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid} is gone"))?;
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(|value| value.trim().to_owned())
        .with_context(|| format!("/proc/{pid}/status has no line {name}"))
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_ascii_whitespace().next()?.parse().ok())
}

/// File name of the program that a process runs.
pub fn program(pid: i32) -> Option<String> {
    let path: PathBuf = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = path.file_name()?.to_string_lossy().into_owned();
    // A binary that was replaced while it ran.
    Some(name.trim_end_matches(" (deleted)").to_owned())
}

/// Clock ticks in a second, the unit of [`Stat`].
pub fn ticks_per_second() -> u64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)
        .ok()
        .flatten()
        .and_then(|ticks| u64::try_from(ticks).ok())
        .unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found_and_alive() {
        let pid = std::process::id() as i32;
        assert!(is_alive(pid));
        assert!(all().iter().any(|(other, _)| *other == pid));
        assert!(stat(pid).unwrap().start_ticks > 0);
        assert!(context_switches(pid).unwrap() > 0);
        assert!(!is_alive(0x3fff_ffff));
    }
}
