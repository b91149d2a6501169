//! `process_*`, as Prometheus' process collectors have them, of this process or of one whose /proc files are public.

use std::fmt::Write as _;

/// Ticks in a second of the times in /proc/<pid>/stat: USER_HZ, 100 on every architecture that we build for.
const TICKS: f64 = 100.0;

/// The families as text. What cannot be read is left out: another user's open files, for one.
pub fn of(pid: Option<u32>) -> String {
    let at = |file: &str| match pid {
        Some(pid) => format!("/proc/{pid}/{file}"),
        None => format!("/proc/self/{file}"),
    };
    let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    let mut out = String::new();
    let mut add = |name: &str, kind: &str, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
    };
    let stat = read(at("stat"));
    let cpu = field(&stat, 14).zip(field(&stat, 15)).map(|(user, system)| (user + system) / TICKS);
    let started = started(&stat);
    let page = f64::from(u32::try_from(bulkhead_sys::page::size()).unwrap_or(4096));
    add("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", cpu);
    add("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", started);
    add("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", field(&stat, 23));
    add("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", field(&stat, 24).map(|n| n * page));
    let files = std::fs::read_dir(at("fd")).ok().and_then(|entries| u32::try_from(entries.count()).ok());
    add("process_open_fds", "gauge", "Number of open file descriptors.", files.map(f64::from));
    let limits = read(at("limits"));
    add("process_max_fds", "gauge", "Maximum number of open file descriptors.", limit(&limits, "Max open files"));
    add(
        "process_virtual_memory_max_bytes",
        "gauge",
        "Maximum amount of virtual memory available in bytes.",
        limit(&limits, "Max address space"),
    );
    // Of the network namespace, so the same for all processes of the node agent.
    let netstat = if pid.is_none() { read(at("net/netstat")) } else { String::new() };
    let received = "Number of bytes received by the process over the network.";
    add("process_network_receive_bytes_total", "counter", received, ip_octets(&netstat, "InOctets"));
    let sent = "Number of bytes sent by the process over the network.";
    add("process_network_transmit_bytes_total", "counter", sent, ip_octets(&netstat, "OutOctets"));
    out
}

/// When this process started, seconds since the epoch.
pub fn start_time() -> Option<f64> {
    started(&std::fs::read_to_string("/proc/self/stat").ok()?)
}

fn started(stat: &str) -> Option<f64> {
    let boot = std::fs::read_to_string("/proc/stat").ok()?;
    let boot = boot.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok())?;
    Some(boot + field(stat, 22)? / TICKS)
}

/// A field of /proc/<pid>/stat by proc(5)'s number (from 3 on: the name before it may hold spaces and parentheses).
fn field(stat: &str, number: usize) -> Option<f64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

/// A number of /proc/<pid>/net/netstat: each row of names has a row of numbers below it.
fn ip_octets(netstat: &str, name: &str) -> Option<f64> {
    let mut rows = netstat.lines().filter_map(|line| line.strip_prefix("IpExt:"));
    let place = rows.next()?.split_whitespace().position(|known| known == name)?;
    rows.next()?.split_whitespace().nth(place)?.parse().ok()
}

/// The soft limit; upstream shows "unlimited" as the largest number.
#[allow(clippy::cast_precision_loss, reason = "metrics are floating point numbers")]
fn limit(limits: &str, name: &str) -> Option<f64> {
    let soft = limits.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next())?;
    if soft == "unlimited" { Some(u64::MAX as f64) } else { soft.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_behind_the_name() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 1 0 12345 8192000 700 1";
        assert_eq!(field(stat, 14), Some(250.0));
        assert_eq!(field(stat, 15), Some(50.0));
        assert_eq!(field(stat, 22), Some(12345.0));
        assert_eq!(field(stat, 24), Some(700.0));
        assert_eq!(field("", 14), None);
        let netstat = "TcpExt: A InOctets\nTcpExt: 1 2\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 0 77 88\n";
        assert_eq!((ip_octets(netstat, "InOctets"), ip_octets(netstat, "OutOctets")), (Some(77.0), Some(88.0)));
        assert_eq!((ip_octets(netstat, "Other"), ip_octets("", "InOctets")), (None, None));
        assert_eq!(
            limit("Max open files            1024                 4096                 files\n", "Max open files"),
            Some(1024.0)
        );
    }

    #[test]
    fn of_this_process() {
        let text = of(None);
        for name in
            ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds"]
        {
            assert!(text.lines().any(|line| line.starts_with(&format!("{name} "))), "{name} in {text}");
        }
        assert_eq!(of(Some(u32::MAX)), "");
    }
}
