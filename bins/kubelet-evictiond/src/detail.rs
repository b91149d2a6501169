//! One cgroup with everything that /metrics/cadvisor shows of it, and the names it is shown under.

use bulkhead_ipc::evictiond::{CgroupIo, CgroupMemory, CgroupStats, CgroupTasks};

use crate::cgroup::{Hierarchy, Usage};
use crate::kernel::Reader;
use crate::machine::Device;
use crate::pods::{Pod, PodContainer};
use crate::processes;
use crate::stats::{self, Moment};

/// Whose cgroup it is: nobody's, a pod's, its sandbox's (`id` and no container), a container's.
#[derive(Debug, Clone, Copy, Default)]
pub struct Owner<'a> {
    pub pod: Option<&'a Pod>,
    pub id: &'a str,
    pub container: Option<&'a PodContainer>,
    /// Of a container or sandbox, as far as it is known.
    pub image: &'a str,
    /// Sockets that are shown as its own.
    pub sockets: Option<u64>,
}

/// Reads the rest of what `usage` has begun.
pub fn read(
    hierarchy: &Hierarchy,
    reader: &mut Reader,
    path: &str,
    usage: &Usage,
    time: &Moment,
    owner: Owner<'_>,
    devices: &[Device],
) -> CgroupStats {
    let detail = hierarchy.detail(reader, path);
    let mut cpu = detail.cpu;
    cpu.usage = usage.cpu_nanoseconds;
    let tasks = tasks(hierarchy, reader, path, usage, detail.threads_max, owner);
    let memory = usage.memory.map(|memory| CgroupMemory {
        usage: memory.usage,
        working_set: memory.working_set,
        max_usage: detail.memory.max_usage,
        cache: memory.cache,
        rss: memory.rss,
        mapped_file: memory.mapped_file,
        kernel: detail.memory.kernel.or(memory.kernel),
        swap: usage.swap.map(|swap| swap.usage),
        active_file: memory.active_file,
        inactive_file: memory.inactive_file,
        failures: detail.memory.failures,
        page_faults: memory.page_faults,
        major_page_faults: memory.major_page_faults,
        limit: memory.limit,
        swap_limit: detail.memory.swap_limit,
        reservation: detail.memory.reservation,
    });
    CgroupStats {
        id: path.to_owned(),
        name: owner.id.to_owned(),
        image: owner.image.to_owned(),
        container: owner.container.map(|container| container.name.to_string()).unwrap_or_default(),
        pod: owner.pod.map(|pod| pod.name.to_string()).unwrap_or_default(),
        namespace: owner.pod.map(|pod| pod.namespace.to_string()).unwrap_or_default(),
        time_ms: time.milliseconds,
        start_time_seconds: hierarchy.made_at(path).map_or(0, |time| time.as_second()),
        cpu: Some(cpu),
        memory,
        io: named(detail.io, devices),
        file_systems: Vec::new(),
        interfaces: Vec::new(),
        tasks: Some(tasks),
        oom_kills: detail.oom_kills,
        cpu_pressure: usage.pressure.cpu.map(stats::psi),
        memory_pressure: usage.pressure.memory.map(stats::psi),
        io_pressure: usage.pressure.io.map(stats::psi),
    }
}

/// Block devices that are told of one group.
const DEVICES_MAX: usize = 48;

fn named(mut io: Vec<CgroupIo>, devices: &[Device]) -> Vec<CgroupIo> {
    io.truncate(DEVICES_MAX);
    for one in &mut io {
        let device = devices.iter().find(|device| (device.major, device.minor) == (one.major, one.minor));
        one.device = match device {
            Some(device) => format!("/dev/{}", device.name),
            None => format!("{}:{}", one.major, one.minor),
        };
    }
    io
}

fn tasks(
    hierarchy: &Hierarchy,
    reader: &mut Reader,
    path: &str,
    usage: &Usage,
    threads_max: Option<u64>,
    owner: Owner<'_>,
) -> CgroupTasks {
    let pids = hierarchy.processes(reader, path);
    // The machine's first process stands for all; a group of groups has none of its own.
    let first = match path {
        "/" => Some(1),
        _ if owner.id.is_empty() => None,
        _ => pids.as_ref().and_then(|pids| pids.first().copied()),
    };
    CgroupTasks {
        processes: pids.as_ref().and_then(|pids| u64::try_from(pids.len()).ok()),
        file_descriptors: pids.as_deref().and_then(processes::file_descriptors),
        threads: usage.tasks,
        threads_max,
        max_open_files: first.and_then(|pid| processes::max_open_files(reader, pid)),
        sockets: owner.sockets,
    }
}
