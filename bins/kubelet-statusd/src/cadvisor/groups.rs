//! Which series a cgroup has. Names, help and labels are cAdvisor's (`metrics/prometheus.go`), in the groups that upstream
//! turns on (`pkg/kubelet/server/server.go`). A figure that is not known is absent. Pure.

use bulkhead_ipc::evictiond::CgroupStats;

use super::text::{Extra, Number, label};
use super::values::{
    bytes, cost, cpu, file_systems, memory, milliseconds, network, operations, plain, quota, seconds, stalled, tasks,
    waited,
};
use crate::scrape::exposition::Kind;

/// Takes one series after the other.
pub type Sink<'a> = &'a mut dyn FnMut(&Extra, Number);

/// What a family says of a group.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    pub name: &'static str,
    pub kind: Kind,
    pub help: &'static str,
    /// With the time at which the group was read; what is set and not measured has none.
    pub stamped: bool,
    pub series: fn(&CgroupStats, Sink<'_>),
}

const fn measured(name: &'static str, kind: Kind, help: &'static str, series: fn(&CgroupStats, Sink<'_>)) -> Family {
    Family { name, kind, help, stamped: true, series }
}

const fn set(name: &'static str, help: &'static str, series: fn(&CgroupStats, Sink<'_>)) -> Family {
    Family { name, kind: Kind::Gauge, help, stamped: false, series }
}

use Kind::{Counter, Gauge};

/// In the order of their names. `container_last_seen` and `container_scrape_error`, which are about the scrape, stand
/// between them.
pub const FAMILIES: &[Family] = &[
    measured("container_blkio_device_usage_total", Counter, "Blkio Device bytes usage", |group, sink| {
        for io in &group.io {
            let mut operations: Vec<_> = io.bytes.iter().collect();
            operations.sort();
            for (operation, bytes) in operations {
                let extra = Extra {
                    before_id: label("device", &io.device),
                    before_name: format!("major=\"{}\",minor=\"{}\"", io.major, io.minor),
                    before_pod: label("operation", operation),
                    ..Extra::default()
                };
                sink(&extra, Number::Whole(*bytes));
            }
        }
    }),
    measured(
        "container_cpu_cfs_burst_periods_total",
        Counter,
        "Number of periods when burst occurs.",
        |group, sink| quota(group, sink, |cpu| Number::Whole(cpu.cfs_burst_periods)),
    ),
    measured(
        "container_cpu_cfs_burst_seconds_total",
        Counter,
        "Total time duration the container has been bursted.",
        |group, sink| quota(group, sink, |cpu| seconds(cpu.cfs_burst)),
    ),
    measured(
        "container_cpu_cfs_periods_total",
        Counter,
        "Number of elapsed enforcement period intervals.",
        |group, sink| quota(group, sink, |cpu| Number::Whole(cpu.cfs_periods)),
    ),
    measured(
        "container_cpu_cfs_throttled_periods_total",
        Counter,
        "Number of throttled period intervals.",
        |group, sink| quota(group, sink, |cpu| Number::Whole(cpu.cfs_throttled_periods)),
    ),
    measured(
        "container_cpu_cfs_throttled_seconds_total",
        Counter,
        "Total time duration the container has been throttled.",
        |group, sink| quota(group, sink, |cpu| seconds(cpu.cfs_throttled)),
    ),
    // Upstream shows these two and the states of tasks and never measures them.
    measured(
        "container_cpu_load_average_10s",
        Gauge,
        "Value of container cpu load average over the last 10 seconds.",
        |_, sink| plain(sink, Some(0)),
    ),
    measured(
        "container_cpu_load_d_average_10s",
        Gauge,
        "Value of container cpu load.d average over the last 10 seconds.",
        |_, sink| plain(sink, Some(0)),
    ),
    measured(
        "container_cpu_system_seconds_total",
        Counter,
        "Cumulative system cpu time consumed in seconds.",
        |group, sink| cpu(group, sink, |cpu| cpu.system),
    ),
    measured(
        "container_cpu_usage_seconds_total",
        Counter,
        "Cumulative cpu time consumed in seconds.",
        |group, sink| {
            let usage = group.cpu.and_then(|cpu| cpu.usage).filter(|usage| *usage > 0);
            if let Some(usage) = usage {
                sink(&Extra { before_id: "cpu=\"total\"".to_owned(), ..Extra::default() }, seconds(usage));
            }
        },
    ),
    measured(
        "container_cpu_user_seconds_total",
        Counter,
        "Cumulative user cpu time consumed in seconds.",
        |group, sink| cpu(group, sink, |cpu| cpu.user),
    ),
    measured(
        "container_file_descriptors",
        Gauge,
        "Number of open file descriptors for the container.",
        |group, sink| tasks(group, sink, |tasks| tasks.file_descriptors),
    ),
    measured("container_fs_inodes_free", Gauge, "Number of available Inodes", |group, sink| {
        file_systems(group, sink, |fs| Number::Whole(fs.inodes_free));
    }),
    measured("container_fs_inodes_total", Gauge, "Number of Inodes", |group, sink| {
        file_systems(group, sink, |fs| Number::Whole(fs.inodes));
    }),
    measured(
        "container_fs_io_cost_indebt_seconds_total",
        Counter,
        "Cumulative IOCost debt in seconds",
        |group, sink| cost(group, sink, "indebt"),
    ),
    measured(
        "container_fs_io_cost_indelay_seconds_total",
        Counter,
        "Cumulative IOCost delay in seconds",
        |group, sink| cost(group, sink, "indelay"),
    ),
    measured(
        "container_fs_io_cost_usage_seconds_total",
        Counter,
        "Cumulative IOCost usage in seconds",
        |group, sink| cost(group, sink, "usage"),
    ),
    measured("container_fs_io_cost_wait_seconds_total", Counter, "Cumulative IOCost wait in seconds", |group, sink| {
        cost(group, sink, "wait");
    }),
    measured("container_fs_io_current", Gauge, "Number of I/Os currently in progress", |group, sink| {
        file_systems(group, sink, |fs| Number::Whole(fs.in_progress));
    }),
    measured(
        "container_fs_io_time_seconds_total",
        Counter,
        "Cumulative count of seconds spent doing I/Os",
        |group, sink| file_systems(group, sink, |fs| milliseconds(fs.io_ms)),
    ),
    measured(
        "container_fs_io_time_weighted_seconds_total",
        Counter,
        "Cumulative weighted I/O time in seconds",
        |group, sink| file_systems(group, sink, |fs| milliseconds(fs.weighted_io_ms)),
    ),
    measured(
        "container_fs_limit_bytes",
        Gauge,
        "Number of bytes that can be consumed by the container on this filesystem.",
        |group, sink| file_systems(group, sink, |fs| Number::Whole(fs.capacity_bytes)),
    ),
    measured("container_fs_read_seconds_total", Counter, "Cumulative count of seconds spent reading", |group, sink| {
        file_systems(group, sink, |fs| milliseconds(fs.read_ms));
    }),
    measured("container_fs_reads_bytes_total", Counter, "Cumulative count of bytes read", |group, sink| {
        bytes(group, sink, |io| io.read_bytes, |fs| fs.sectors_read);
    }),
    measured("container_fs_reads_merged_total", Counter, "Cumulative count of reads merged", |group, sink| {
        file_systems(group, sink, |fs| Number::Whole(fs.reads_merged));
    }),
    measured("container_fs_reads_total", Counter, "Cumulative count of reads completed", |group, sink| {
        operations(group, sink, |io| io.reads, |fs| fs.reads);
    }),
    measured(
        "container_fs_sector_reads_total",
        Counter,
        "Cumulative count of sector reads completed",
        |group, sink| file_systems(group, sink, |fs| Number::Whole(fs.sectors_read)),
    ),
    measured(
        "container_fs_sector_writes_total",
        Counter,
        "Cumulative count of sector writes completed",
        |group, sink| file_systems(group, sink, |fs| Number::Whole(fs.sectors_written)),
    ),
    measured(
        "container_fs_usage_bytes",
        Gauge,
        "Number of bytes that are consumed by the container on this filesystem.",
        |group, sink| file_systems(group, sink, |fs| Number::Whole(fs.used_bytes)),
    ),
    measured(
        "container_fs_write_seconds_total",
        Counter,
        "Cumulative count of seconds spent writing",
        |group, sink| {
            file_systems(group, sink, |fs| milliseconds(fs.write_ms));
        },
    ),
    measured("container_fs_writes_bytes_total", Counter, "Cumulative count of bytes written", |group, sink| {
        bytes(group, sink, |io| io.write_bytes, |fs| fs.sectors_written);
    }),
    measured("container_fs_writes_merged_total", Counter, "Cumulative count of writes merged", |group, sink| {
        file_systems(group, sink, |fs| Number::Whole(fs.writes_merged));
    }),
    measured("container_fs_writes_total", Counter, "Cumulative count of writes completed", |group, sink| {
        operations(group, sink, |io| io.writes, |fs| fs.writes);
    }),
    // No health check is known of cgroups, which is -1.
    measured("container_health_state", Gauge, "The result of the container's health check", |_, sink| {
        sink(&Extra::default(), Number::Signed(-1));
    }),
    measured("container_memory_cache", Gauge, "Number of bytes of page cache memory.", |group, sink| {
        memory(group, sink, |memory| memory.cache);
    }),
    measured("container_memory_failcnt", Counter, "Number of memory usage hits limits", |group, sink| {
        memory(group, sink, |memory| memory.failures);
    }),
    measured(
        "container_memory_failures_total",
        Counter,
        "Cumulative count of memory allocation failures.",
        |group, sink| {
            let memory = group.memory.unwrap_or_default();
            for (kind, value) in [("pgfault", memory.page_faults), ("pgmajfault", memory.major_page_faults)] {
                let Some(value) = value else { continue };
                // Upstream has one number for both.
                for scope in ["container", "hierarchy"] {
                    let extra = Extra {
                        before_id: label("failure_type", kind),
                        last: label("scope", scope),
                        ..Extra::default()
                    };
                    sink(&extra, Number::Whole(value));
                }
            }
        },
    ),
    measured("container_memory_kernel_usage", Gauge, "Size of kernel memory allocated in bytes.", |group, sink| {
        memory(group, sink, |memory| memory.kernel);
    }),
    measured("container_memory_mapped_file", Gauge, "Size of memory mapped files in bytes.", |group, sink| {
        memory(group, sink, |memory| memory.mapped_file);
    }),
    measured("container_memory_max_usage_bytes", Gauge, "Maximum memory usage recorded in bytes", |group, sink| {
        memory(group, sink, |memory| memory.max_usage);
    }),
    measured("container_memory_rss", Gauge, "Size of RSS in bytes.", |group, sink| {
        memory(group, sink, |memory| memory.rss);
    }),
    measured("container_memory_swap", Gauge, "Container swap usage in bytes.", |group, sink| {
        memory(group, sink, |memory| memory.swap);
    }),
    measured(
        "container_memory_total_active_file_bytes",
        Gauge,
        "Current total active file in bytes.",
        |group, sink| memory(group, sink, |memory| memory.active_file),
    ),
    measured(
        "container_memory_total_inactive_file_bytes",
        Gauge,
        "Current total inactive file in bytes.",
        |group, sink| memory(group, sink, |memory| memory.inactive_file),
    ),
    measured(
        "container_memory_usage_bytes",
        Gauge,
        "Current memory usage in bytes, including all memory regardless of when it was accessed",
        |group, sink| memory(group, sink, |memory| Some(memory.usage)),
    ),
    measured("container_memory_working_set_bytes", Gauge, "Current working set in bytes.", |group, sink| {
        memory(group, sink, |memory| Some(memory.working_set));
    }),
    measured("container_network_receive_bytes_total", Counter, "Cumulative count of bytes received", |group, sink| {
        network(group, sink, |one| one.rx_bytes);
    }),
    measured(
        "container_network_receive_errors_total",
        Counter,
        "Cumulative count of errors encountered while receiving",
        |group, sink| network(group, sink, |one| one.rx_errors),
    ),
    measured(
        "container_network_receive_packets_dropped_total",
        Counter,
        "Cumulative count of packets dropped while receiving",
        |group, sink| network(group, sink, |one| one.rx_dropped),
    ),
    measured(
        "container_network_receive_packets_total",
        Counter,
        "Cumulative count of packets received",
        |group, sink| network(group, sink, |one| one.rx_packets),
    ),
    measured(
        "container_network_transmit_bytes_total",
        Counter,
        "Cumulative count of bytes transmitted",
        |group, sink| network(group, sink, |one| one.tx_bytes),
    ),
    measured(
        "container_network_transmit_errors_total",
        Counter,
        "Cumulative count of errors encountered while transmitting",
        |group, sink| network(group, sink, |one| one.tx_errors),
    ),
    measured(
        "container_network_transmit_packets_dropped_total",
        Counter,
        "Cumulative count of packets dropped while transmitting",
        |group, sink| network(group, sink, |one| one.tx_dropped),
    ),
    measured(
        "container_network_transmit_packets_total",
        Counter,
        "Cumulative count of packets transmitted",
        |group, sink| network(group, sink, |one| one.tx_packets),
    ),
    measured(
        "container_oom_events_total",
        Counter,
        "Count of out of memory events observed for the container",
        |group, sink| plain(sink, group.oom_kills),
    ),
    measured(
        "container_pressure_cpu_stalled_seconds_total",
        Counter,
        "Total time duration no tasks in the container could make progress due to CPU congestion.",
        |group, sink| stalled(sink, group.cpu_pressure),
    ),
    measured(
        "container_pressure_cpu_waiting_seconds_total",
        Counter,
        "Total time duration tasks in the container have waited due to CPU congestion.",
        |group, sink| waited(sink, group.cpu_pressure),
    ),
    measured(
        "container_pressure_io_stalled_seconds_total",
        Counter,
        "Total time duration no tasks in the container could make progress due to IO congestion.",
        |group, sink| stalled(sink, group.io_pressure),
    ),
    measured(
        "container_pressure_io_waiting_seconds_total",
        Counter,
        "Total time duration tasks in the container have waited due to IO congestion.",
        |group, sink| waited(sink, group.io_pressure),
    ),
    measured(
        "container_pressure_memory_stalled_seconds_total",
        Counter,
        "Total time duration no tasks in the container could make progress due to memory congestion.",
        |group, sink| stalled(sink, group.memory_pressure),
    ),
    measured(
        "container_pressure_memory_waiting_seconds_total",
        Counter,
        "Total time duration tasks in the container have waited due to memory congestion.",
        |group, sink| waited(sink, group.memory_pressure),
    ),
    measured("container_processes", Gauge, "Number of processes running inside the container.", |group, sink| {
        tasks(group, sink, |tasks| tasks.processes);
    }),
    measured("container_sockets", Gauge, "Number of open sockets for the container.", |group, sink| {
        tasks(group, sink, |tasks| tasks.sockets);
    }),
    set("container_spec_cpu_period", "CPU period of the container.", |group, sink| {
        plain(sink, group.cpu.and_then(|cpu| cpu.period));
    }),
    set("container_spec_cpu_quota", "CPU quota of the container.", |group, sink| {
        plain(sink, group.cpu.and_then(|cpu| cpu.quota));
    }),
    set("container_spec_cpu_shares", "CPU share of the container.", |group, sink| {
        plain(sink, group.cpu.and_then(|cpu| cpu.shares));
    }),
    // Here 0 is upstream's word for "no limit".
    set("container_spec_memory_limit_bytes", "Memory limit for the container.", |group, sink| {
        memory(group, sink, |memory| Some(memory.limit.unwrap_or(0)));
    }),
    set(
        "container_spec_memory_reservation_limit_bytes",
        "Memory reservation limit for the container.",
        |group, sink| {
            memory(group, sink, |memory| Some(memory.reservation.unwrap_or(0)));
        },
    ),
    set("container_spec_memory_swap_limit_bytes", "Memory swap limit for the container.", |group, sink| {
        memory(group, sink, |memory| Some(memory.swap_limit.unwrap_or(0)));
    }),
    set("container_start_time_seconds", "Start time of the container since unix epoch in seconds.", |group, sink| {
        if group.start_time_seconds > 0 {
            sink(&Extra::default(), Number::Signed(group.start_time_seconds));
        }
    }),
    measured("container_tasks_state", Gauge, "Number of tasks in given state", |_, sink| {
        for state in ["iowaiting", "running", "sleeping", "stopped", "uninterruptible"] {
            sink(&Extra { last: label("state", state), ..Extra::default() }, Number::Whole(0));
        }
    }),
    measured("container_threads", Gauge, "Number of threads running inside the container", |group, sink| {
        tasks(group, sink, |tasks| Some(tasks.threads.unwrap_or(0)));
    }),
    measured(
        "container_threads_max",
        Gauge,
        "Maximum number of threads allowed inside the container, infinity if value is zero",
        |group, sink| tasks(group, sink, |tasks| tasks.threads_max),
    ),
    measured(
        "container_ulimits_soft",
        Gauge,
        "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice",
        |group, sink| {
            if let Some(limit) = group.tasks.and_then(|tasks| tasks.max_open_files) {
                let extra = Extra { last: "ulimit=\"max_open_files\"".to_owned(), ..Extra::default() };
                sink(&extra, Number::Signed(limit));
            }
        },
    ),
];
