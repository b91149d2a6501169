//! Whole texts, beside what cAdvisor in an upstream node says of comparable groups.

use super::*;
use bulkhead_ipc::evictiond::{
    CgroupCpu, CgroupIo, CgroupMemory, CgroupTasks, InterfaceStats, MountedFileSystem, Psi, PsiData,
};
use std::collections::{BTreeMap, BTreeSet};

fn facts() -> Facts {
    Facts {
        machine_id: "m".into(),
        system_uuid: "s".into(),
        boot_id: "b".into(),
        kernel_version: "6.18".into(),
        os_image: "Debian GNU/Linux 12 (bookworm)".into(),
        ..Facts::default()
    }
}

fn machine() -> Machine {
    Machine { cores: 2, physical_cores: 2, sockets: 1, memory_bytes: 1 << 34, pods_known: true, ..Machine::default() }
}

fn group(id: &str) -> CgroupStats {
    let some = Some(PsiData { total: 2_500_000, ..PsiData::default() });
    let psi = Some(Psi { some, full: some });
    CgroupStats {
        id: id.into(),
        time_ms: 1_795_222_062_173,
        start_time_seconds: 1_795_221_992,
        cpu: Some(CgroupCpu {
            usage: Some(62_545_585),
            user: Some(10_000_000),
            system: Some(40_000_000),
            shares: Some(10),
            period: Some(100_000),
            ..CgroupCpu::default()
        }),
        memory: Some(CgroupMemory {
            usage: 688_128,
            working_set: 688_128,
            max_usage: Some(1),
            cache: Some(1),
            rss: Some(1),
            mapped_file: Some(1),
            kernel: Some(1),
            swap: Some(0),
            active_file: Some(1),
            inactive_file: Some(0),
            failures: Some(0),
            page_faults: Some(1941),
            major_page_faults: Some(2),
            ..CgroupMemory::default()
        }),
        tasks: Some(CgroupTasks {
            processes: Some(1),
            file_descriptors: Some(3),
            threads: Some(1),
            threads_max: Some(0),
            max_open_files: None,
            sockets: Some(0),
        }),
        oom_kills: Some(0),
        cpu_pressure: psi,
        memory_pressure: psi,
        io_pressure: psi,
        ..CgroupStats::default()
    }
}

fn interface() -> InterfaceStats {
    InterfaceStats { name: "eth0".into(), rx_bytes: 919_769_466, ..InterfaceStats::default() }
}

fn groups() -> Vec<CgroupStats> {
    let of_pod = |id: &str| CgroupStats { pod: "web".into(), namespace: "default".into(), ..group(id) };
    let pod = "/kubepods/burstable/pod912dbd16";
    let vda = MountedFileSystem { device: "/dev/vda".into(), reads: 7, sectors_read: 9, ..Default::default() };
    let root = CgroupStats {
        file_systems: vec![vda, MountedFileSystem { device: "/dev/shm".into(), ..Default::default() }],
        interfaces: vec![interface()],
        tasks: Some(CgroupTasks { max_open_files: Some(32768), ..CgroupTasks::default() }),
        ..group("/")
    };
    let io = CgroupIo {
        major: 254,
        device: "/dev/vda".into(),
        read_bytes: Some(4096),
        reads: Some(1),
        bytes: [("Write".to_owned(), 8192), ("Read".to_owned(), 4096)].into(),
        cost: [("usage".to_owned(), 1_500_000)].into(),
        ..CgroupIo::default()
    };
    let limited = CgroupCpu { quota: Some(50_000), cfs_throttled: 700_000_000, ..group("").cpu.unwrap() };
    vec![
        root,
        group("/kubepods"),
        group("/kubepods/besteffort"),
        group("/kubepods/burstable"),
        of_pod(pod),
        CgroupStats {
            name: "f076".into(),
            image: "registry.k8s.io/pause:3.10".into(),
            interfaces: vec![interface()],
            ..of_pod(&format!("{pod}/f076"))
        },
        CgroupStats {
            name: "53f0".into(),
            image: "docker.io/library/nginx:1".into(),
            container: "main".into(),
            cpu: Some(limited),
            io: vec![io],
            ..of_pod(&format!("{pod}/53f0"))
        },
    ]
}

fn text() -> String {
    render(&facts(), Some(&machine()), &groups(), 1_795_222_068_127)
}

/// What an upstream node on cgroup v1 says: each family with its kind and the labels beside the six.
const UPSTREAM: &str = "\
cadvisor_version_info gauge cadvisorRevision,cadvisorVersion,dockerVersion,kernelVersion,osVersion
container_cpu_load_average_10s gauge
container_cpu_load_d_average_10s gauge
container_cpu_system_seconds_total counter
container_cpu_usage_seconds_total counter cpu
container_cpu_user_seconds_total counter
container_file_descriptors gauge
container_fs_inodes_free gauge device
container_fs_inodes_total gauge device
container_fs_io_current gauge device
container_fs_io_time_seconds_total counter device
container_fs_io_time_weighted_seconds_total counter device
container_fs_limit_bytes gauge device
container_fs_read_seconds_total counter device
container_fs_reads_merged_total counter device
container_fs_reads_total counter device
container_fs_sector_reads_total counter device
container_fs_sector_writes_total counter device
container_fs_usage_bytes gauge device
container_fs_write_seconds_total counter device
container_fs_writes_merged_total counter device
container_fs_writes_total counter device
container_health_state gauge
container_last_seen gauge
container_memory_cache gauge
container_memory_failcnt counter
container_memory_failures_total counter failure_type,scope
container_memory_kernel_usage gauge
container_memory_mapped_file gauge
container_memory_max_usage_bytes gauge
container_memory_rss gauge
container_memory_swap gauge
container_memory_total_active_file_bytes gauge
container_memory_total_inactive_file_bytes gauge
container_memory_usage_bytes gauge
container_memory_working_set_bytes gauge
container_network_receive_bytes_total counter interface
container_network_receive_errors_total counter interface
container_network_receive_packets_dropped_total counter interface
container_network_receive_packets_total counter interface
container_network_transmit_bytes_total counter interface
container_network_transmit_errors_total counter interface
container_network_transmit_packets_dropped_total counter interface
container_network_transmit_packets_total counter interface
container_oom_events_total counter
container_processes gauge
container_scrape_error gauge none
container_sockets gauge
container_spec_cpu_period gauge
container_spec_cpu_shares gauge
container_spec_memory_limit_bytes gauge
container_spec_memory_reservation_limit_bytes gauge
container_spec_memory_swap_limit_bytes gauge
container_start_time_seconds gauge
container_tasks_state gauge state
container_threads gauge
container_threads_max gauge
container_ulimits_soft gauge ulimit
machine_cpu_books gauge boot_id,machine_id,system_uuid
machine_cpu_cores gauge boot_id,machine_id,system_uuid
machine_cpu_drawers gauge boot_id,machine_id,system_uuid
machine_cpu_physical_cores gauge boot_id,machine_id,system_uuid
machine_cpu_sockets gauge boot_id,machine_id,system_uuid
machine_memory_bytes gauge boot_id,machine_id,system_uuid
machine_nvm_avg_power_budget_watts gauge boot_id,machine_id,system_uuid
machine_nvm_capacity gauge boot_id,machine_id,mode,system_uuid
machine_scrape_error gauge none
machine_swap_bytes gauge boot_id,machine_id,system_uuid
";

/// Of groups with a quota, devices of their own, pressure: upstream has them where the kernel does.
const ALSO: &[&str] = &[
    "container_blkio_device_usage_total",
    "container_cpu_cfs_burst_periods_total",
    "container_cpu_cfs_burst_seconds_total",
    "container_cpu_cfs_periods_total",
    "container_cpu_cfs_throttled_periods_total",
    "container_cpu_cfs_throttled_seconds_total",
    "container_fs_io_cost_usage_seconds_total",
    "container_fs_reads_bytes_total",
    "container_fs_writes_bytes_total",
    "container_pressure_cpu_stalled_seconds_total",
    "container_pressure_cpu_waiting_seconds_total",
    "container_pressure_io_stalled_seconds_total",
    "container_pressure_io_waiting_seconds_total",
    "container_pressure_memory_stalled_seconds_total",
    "container_pressure_memory_waiting_seconds_total",
    "container_spec_cpu_quota",
];

const BASE: [&str; 6] = ["container", "id", "image", "name", "namespace", "pod"];

#[test]
fn where_containers_are_the_runtime_s_to_tell_of_the_machine_is_left() {
    let text = render_machine(&facts(), Some(&machine()));
    let blocks = scrape::lines::scan(&text).unwrap();
    let names: Vec<&str> = blocks.iter().map(|block| block.name).collect();
    assert!(names.iter().all(|name| name.starts_with("machine_")) && names.contains(&"machine_cpu_cores"), "{names:?}");
    assert!(render_machine(&facts(), None).contains("machine_scrape_error 1"));
}

#[test]
fn families_and_labels_of_upstream() {
    let text = text();
    let blocks = scrape::lines::scan(&text).unwrap();
    let ours: BTreeMap<&str, _> = blocks.iter().map(|block| (block.name, block)).collect();
    let mut known: BTreeSet<&str> = ALSO.iter().copied().collect();
    for line in UPSTREAM.lines() {
        let mut fields = line.split(' ');
        let (name, kind, extra) = (fields.next().unwrap(), fields.next().unwrap(), fields.next().unwrap_or(""));
        known.insert(name);
        let block = ours.get(name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(block.kind.as_str(), kind, "{name}");
        let is_group = !name.starts_with("machine") && !name.starts_with("cadvisor") && extra != "none";
        let mut expected: Vec<&str> = extra.split(',').filter(|label| !matches!(*label, "" | "none")).collect();
        expected.extend(BASE.iter().filter(|_| is_group));
        expected.sort_unstable();
        for line in &block.lines {
            let labels: Vec<&str> = line.labels().map(|label| label.unwrap().0).collect();
            assert_eq!(labels, expected, "{}", line.series);
            let stamped = is_group && !name.starts_with("container_spec") && name != "container_start_time_seconds";
            assert_eq!(line.timestamp.is_some(), stamped, "{}", line.series);
        }
    }
    let unknown: Vec<_> = ours.keys().filter(|name| !known.contains(**name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    let names: Vec<_> = blocks.iter().map(|block| block.name).collect();
    assert!(names.is_sorted(), "{names:?}");
}

#[test]
fn whose_series_they_are() {
    let text = text();
    let has = |line: &str| assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
    let pod = "/kubepods/burstable/pod912dbd16";
    has(
        "container_cpu_usage_seconds_total{container=\"\",cpu=\"total\",id=\"/\",image=\"\",name=\"\",namespace=\"\",pod=\"\"} \
         0.062545585 1795222062173",
    );
    has(&format!(
        "container_memory_working_set_bytes{{container=\"\",id=\"{pod}\",image=\"\",name=\"\",namespace=\"default\",\
         pod=\"web\"}} 688128 1795222062173"
    ));
    has(&format!(
        "container_memory_working_set_bytes{{container=\"main\",id=\"{pod}/53f0\",image=\"docker.io/library/nginx:1\",\
         name=\"53f0\",namespace=\"default\",pod=\"web\"}} 688128 1795222062173"
    ));
    has(&format!(
        "container_network_receive_bytes_total{{container=\"\",id=\"{pod}/f076\",\
         image=\"registry.k8s.io/pause:3.10\",interface=\"eth0\",\
         name=\"f076\",namespace=\"default\",pod=\"web\"}} 919769466 1795222062173"
    ));
    has(&format!(
        "container_cpu_cfs_throttled_seconds_total{{container=\"main\",id=\"{pod}/53f0\",\
         image=\"docker.io/library/nginx:1\",name=\"53f0\",namespace=\"default\",pod=\"web\"}} 0.7 1795222062173"
    ));
    has(&format!(
        "container_pressure_cpu_waiting_seconds_total{{container=\"\",id=\"{pod}\",image=\"\",name=\"\",\
         namespace=\"default\",pod=\"web\"}} 2.5 1795222062173"
    ));
    has("container_scrape_error 0");
    has("machine_cpu_cores{boot_id=\"b\",machine_id=\"m\",system_uuid=\"s\"} 2");
    let count = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!(count("container_cpu_cfs_periods_total{"), 1, "only with a quota");
    assert_eq!(count("container_spec_cpu_quota{"), 1);
    assert_eq!(count("container_network_receive_bytes_total{"), 2, "the machine and the sandbox");
    // What dashboards match by: one series for each container, whatever else has the pod's name or an image.
    let container = |line: &&str| line.starts_with("container_memory_rss{") && !line.contains("{container=\"\"");
    assert_eq!(text.lines().filter(container).count(), 1);
}

#[test]
fn reads_and_writes_have_the_same_devices() {
    let text = text();
    let of = |name: &str| {
        let series = text.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once('}'));
        series.map(|(labels, _)| labels.to_owned()).collect::<BTreeSet<_>>()
    };
    for (reads, writes) in [
        ("container_fs_reads_total", "container_fs_writes_total"),
        ("container_fs_reads_bytes_total", "container_fs_writes_bytes_total"),
    ] {
        assert_eq!(of(reads), of(writes));
        assert!(of(reads).len() >= 2, "the machine's and the container's");
    }
}

#[test]
fn disks_of_which_partitions_are_mounted_have_their_operations() {
    let io = |device: &str| CgroupIo { device: device.into(), reads: Some(5), writes: Some(6), ..CgroupIo::default() };
    let mut groups = groups();
    groups[0].io = vec![io("/dev/vda"), io("/dev/dm-0")];
    let text = render(&facts(), Some(&machine()), &groups, 1_795_222_068_127);
    let of = |name: &str| {
        let series = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix("{container=\"\",device=\""));
        let of_root = series.filter(|line| line.contains(",id=\"/\","));
        let told = of_root.map(|line| (line.split('"').next().unwrap(), line.split(' ').nth_back(1).unwrap()));
        told.collect::<Vec<_>>()
    };
    assert_eq!(of("container_fs_reads_total"), [("/dev/vda", "7"), ("/dev/shm", "0"), ("/dev/dm-0", "5")]);
    assert_eq!(of("container_fs_writes_total"), [("/dev/vda", "0"), ("/dev/shm", "0"), ("/dev/dm-0", "6")]);
}

#[test]
fn a_value_that_is_not_measured_is_absent() {
    let text = render(&facts(), None, &[], 1);
    assert!(text.contains("\ncontainer_scrape_error 1\n") && text.contains("\nmachine_scrape_error 1\n"), "{text}");
    assert!(text.contains("cadvisor_version_info{") && !text.contains("machine_cpu") && !text.contains("last_seen"));
    scrape::lines::scan(&text).unwrap();
    let unknown = Machine { pods_known: false, ..machine() };
    assert!(render(&facts(), Some(&unknown), &[], 1).contains("\ncontainer_scrape_error 1\n"));
}
