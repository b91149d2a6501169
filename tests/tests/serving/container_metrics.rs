//! What upstream's node spec `ContainerMetrics` (test/e2e_node/container_metrics_test.go) demands of `/metrics/cadvisor`, by the same
//! bounds, and the numbers of sockets beside the kernel's own.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::https::Https;
use bulkhead_testkit::{LONG, Pod, eventually};
use bulkhead_tests::lab;
use bulkhead_tests::scrape::{Format, Scrape};
use serde_json::json;

const MB: f64 = 1e6;

/// Of each container: the least and the most.
const BOUNDS: &[(&str, f64, f64)] = &[
    ("container_blkio_device_usage_total", 0.0, 1e7),
    ("container_cpu_system_seconds_total", 0.0, 100.0),
    ("container_cpu_usage_seconds_total", 0.0, 100.0),
    ("container_cpu_user_seconds_total", 0.0, 100.0),
    ("container_file_descriptors", 0.0, 100.0),
    ("container_fs_reads_bytes_total", 0.0, 1e7),
    ("container_fs_reads_total", 0.0, 100.0),
    ("container_fs_writes_bytes_total", 0.0, 1e6),
    ("container_fs_writes_total", 0.0, 200.0),
    ("container_memory_cache", 0.0, 10.0 * MB),
    ("container_memory_failcnt", 0.0, 0.0),
    ("container_memory_failures_total", 0.0, 1e6),
    ("container_memory_mapped_file", 0.0, 1e7),
    ("container_memory_max_usage_bytes", 0.0, 80.0 * MB),
    ("container_memory_rss", 10_000.0, 80.0 * MB),
    ("container_memory_swap", 0.0, 0.0),
    ("container_memory_usage_bytes", 10_000.0, 80.0 * MB),
    ("container_memory_working_set_bytes", 10_000.0, 80.0 * MB),
    ("container_oom_events_total", 0.0, 0.0),
    ("container_processes", 0.0, 10.0),
    ("container_sockets", 0.0, 10.0),
    ("container_spec_cpu_period", 100_000.0, 100_000.0),
    ("container_spec_cpu_shares", 2.0, 2.0),
    ("container_spec_memory_limit_bytes", 79_953_920.0, 79_998_976.0),
    ("container_spec_memory_reservation_limit_bytes", 0.0, 0.0),
    ("container_spec_memory_swap_limit_bytes", 0.0, 80.0 * MB),
    ("container_threads", 0.0, 10.0),
    ("container_threads_max", 0.0, 100_000.0),
    ("container_ulimits_soft", 0.0, 1_073_741_816.0),
];

/// A container's input and output, which a kernel counts on cgroup v1 for devices with a limit alone; the spec is run on v2.
const IO: [&str; 5] = [
    "container_blkio_device_usage_total",
    "container_fs_reads_bytes_total",
    "container_fs_reads_total",
    "container_fs_writes_bytes_total",
    "container_fs_writes_total",
];

/// Of the node or of some pod: that they are there at all.
const FAMILIES: &[&str] = &[
    "container_fs_inodes_free",
    "container_fs_inodes_total",
    "container_fs_io_current",
    "container_fs_io_time_seconds_total",
    "container_fs_io_time_weighted_seconds_total",
    "container_fs_limit_bytes",
    "container_fs_read_seconds_total",
    "container_fs_reads_merged_total",
    "container_fs_sector_reads_total",
    "container_fs_sector_writes_total",
    "container_fs_usage_bytes",
    "container_fs_write_seconds_total",
    "container_fs_writes_merged_total",
    "container_network_receive_bytes_total",
    "container_network_receive_errors_total",
    "container_network_receive_packets_dropped_total",
    "container_network_receive_packets_total",
    "container_network_transmit_bytes_total",
    "container_network_transmit_errors_total",
    "container_network_transmit_packets_dropped_total",
    "container_network_transmit_packets_total",
];

/// The spec's pod: little memory, a volume, a file in its writable layer, written through to the disk.
fn pod(name: &str) -> Pod {
    let script = "dd if=/dev/zero of=/layer bs=4k count=1 conv=fsync 2>/dev/null; \
                  while true; do echo 'hello world' >> /volume/file; sleep 1; done";
    Pod::busybox(name, script)
        .container_field("resources", json!({"limits": {"memory": "80M"}}))
        .empty_dir("volume", "", None, "/volume")
}

/// "sockets: used 3".
fn used(pid: i32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/net/sockstat"))?;
    let used = text.lines().find_map(|line| line.strip_prefix("sockets: used ")).context("no line of sockets")?;
    Ok(used.trim().parse()?)
}

#[test]
fn what_upstream_s_node_spec_demands_is_there() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").config("readOnlyPort", json!(10255)).start()?;
    let port = Https::plain(SocketAddr::new(lab.netns().address().into(), 10255));
    let scrape = || {
        // One with disks makes the next one new.
        port.get("/stats/summary")?;
        let answer = port.get("/metrics/cadvisor")?;
        ensure!(answer.status == 200, "{}", answer.status);
        Scrape::read(&String::from_utf8_lossy(&answer.body), Format::Prometheus)
    };
    let io_is_counted = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let names = ["first", "second"];
    let begun = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs_f64();
    for name in names {
        node.write(&pod(name))?;
    }
    let serves = "httpd -p 8080; httpd -p 8081; while true; do sleep 1000; done";
    node.write(&Pod::busybox("serves", serves).and_container("side", "while true; do sleep 1000; done"))?;
    node.write(&Pod::idle("hosted").host_network())?;
    for (name, containers) in [("first", 1), ("second", 1), ("serves", 2), ("hosted", 1)] {
        node.wait_running(name, containers)?;
    }
    let all = eventually("every series is there, within its bounds", LONG, || {
        let all = scrape()?;
        for name in names {
            let shown = node.pod_name(name);
            let labels = [("pod", shown.as_str()), ("namespace", "default"), ("container", "main")];
            for (series, least, most) in BOUNDS {
                let found = all.all(series, &labels);
                ensure!(!found.is_empty() || (IO.contains(series) && !io_is_counted), "no {series} of {name}");
                for one in found {
                    ensure!((*least..=*most).contains(&one.value), "{series} of {name}: {}", one.value);
                }
            }
            for moment in ["container_last_seen", "container_start_time_seconds"] {
                let at = all.one(moment, &labels)?;
                ensure!((begun - 60.0..begun + 600.0).contains(&at), "{moment} of {name}: {at}");
            }
        }
        Ok(all)
    })?;
    for family in FAMILIES {
        ensure!(!all.family(family)?.series.is_empty(), "{family}");
    }

    let running = node.wait_running("serves", 2)?;
    let pid = node.cri()?.pid(&running.main().id)?;
    let of = |all: &Scrape, pod: &str, container: &str| {
        all.one("container_sockets", &[("pod", node.pod_name(pod).as_str()), ("container", container)])
    };
    eventually("sockets are those of the pod's network", LONG, || {
        let (all, used) = (scrape()?, used(pid)?);
        ensure!(used >= 2.0, "two listen: {used}");
        for container in ["main", "side"] {
            ensure!(of(&all, "serves", container)? == used, "{container}: {used}");
        }
        Ok(())
    })?;
    let all = scrape()?;
    ensure!(of(&all, "hosted", "main")? == 0.0, "those of the host's network are nobody's");
    ensure!(all.one("container_sockets", &[("id", "/")])? > 0.0, "the node's own");
    node.finish()
}
