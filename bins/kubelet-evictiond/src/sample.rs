//! One sample: the node, its pods and their containers, as the messages that the API carries.

use std::path::Path;
use std::time::Instant;

use bulkhead_ipc::evictiond::{
    ContainerStats, CpuStats, FsStats, MemoryStats, NodeStats, PodStats, ProcessStats, SystemContainer, VolumeStats,
};
use bulkhead_types::InstancePaths;

use crate::cgroup::{self, Hierarchy, Usage};
use crate::disk::{FileSystem, Folder};
use crate::kernel::{self, Reader};
use crate::pods::Pod;
use crate::rates::Rates;

/// What a sample is about.
#[derive(Debug, Clone)]
pub struct NodePaths {
    pub node_name: String,
    pub instance: InstancePaths,
    /// The tree of all pods, as /proc/<pid>/cgroup shows it; the first that exists counts.
    pub pods_cgroups: Vec<String>,
}

/// Disk figures of one pod.
#[derive(Debug, Clone, Default)]
pub struct PodDisk {
    pub volumes: Vec<(String, FileSystem, Folder)>,
    /// By container name.
    pub logs: Vec<(String, Folder)>,
    /// The file system of the log folder.
    pub log_fs: Option<FileSystem>,
}

/// Disk figures of the node and of its pods, as far as they are known.
#[derive(Debug, Default)]
pub struct Disks {
    pub node: Option<FileSystem>,
    pub image: Option<FileSystem>,
    pub pods: std::collections::HashMap<String, PodDisk>,
}

/// A node's figures, then each pod's.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    pub node: NodeStats,
    pub pods: Vec<PodStats>,
    /// A cgroup was seen for the first time: it has no CPU rate yet.
    pub without_rate: bool,
}

/// Why the kernel's files cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    #[error("reading /proc/self/mountinfo")]
    Mounts(#[source] std::io::Error),
    #[error("no control groups are mounted: neither v1 nor v2")]
    NoCgroups,
}

/// Reads the kernel's files. Blocking: a few hundred small reads for 60 pods.
#[derive(Debug)]
pub struct Sampler {
    paths: NodePaths,
    hierarchy: Hierarchy,
    reader: Reader,
    rates: Rates,
    started: Instant,
}

impl Sampler {
    /// # Errors
    /// No control groups on this machine.
    pub fn new(paths: NodePaths) -> Result<Self, SamplerError> {
        let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").map_err(SamplerError::Mounts)?;
        let hierarchy = Hierarchy::from_mountinfo(&mountinfo).ok_or(SamplerError::NoCgroups)?;
        Ok(Sampler { paths, hierarchy, reader: Reader::default(), rates: Rates::default(), started: Instant::now() })
    }

    pub fn paths(&self) -> &NodePaths {
        &self.paths
    }

    /// Measures everything now. `pods: None` means that nobody told which pods there are.
    pub fn sample(&mut self, pods: Option<&[Pod]>, disks: &Disks) -> Sample {
        self.rates.begin();
        let mut without_rate = false;
        let time = now();
        let machine = self.hierarchy.machine(&mut self.reader);
        let mut node = NodeStats {
            node_name: self.paths.node_name.clone(),
            start_time: self.boot_time().unwrap_or_default(),
            cpu: self.cpu("/", &machine, &mut without_rate),
            memory: memory(&machine, &time),
            node_fs: disks.node.map(|fs| whole(fs, &time)),
            // What images and writable layers use is known to the runtime alone: left out instead of guessed.
            image_fs: disks.image.map(|fs| FsStats { used_bytes: None, inodes_used: None, ..whole(fs, &time) }),
            container_fs: disks.image.map(|fs| FsStats { used_bytes: None, inodes_used: None, ..whole(fs, &time) }),
            max_pid: 0,
            running_processes: 0,
            system_containers: Vec::new(),
            pods_known: pods.is_some(),
        };
        let pid_max = self.reader.number(Path::new("/proc/sys/kernel/pid_max"));
        let threads_max = self.reader.number(Path::new("/proc/sys/kernel/threads-max"));
        node.max_pid = kernel::max_tasks(pid_max, threads_max).unwrap_or(0);
        node.running_processes = self.reader.read(Path::new("/proc/loadavg")).ok().and_then(kernel::tasks).unwrap_or(0);
        let pods_cgroup = self.paths.pods_cgroups.iter().find(|cgroup| self.hierarchy.exists(cgroup)).cloned();
        if let Some(pods_cgroup) = pods_cgroup {
            let usage = self.hierarchy.usage(&mut self.reader, &pods_cgroup);
            node.system_containers.push(SystemContainer {
                name: "pods".into(),
                cpu: self.cpu(&pods_cgroup, &usage, &mut without_rate),
                memory: memory(&usage, &time),
            });
        }
        let no_disk = PodDisk::default();
        let pods = pods
            .unwrap_or_default()
            .iter()
            .map(|pod| self.pod(pod, disks.pods.get(pod.uid.as_str()).unwrap_or(&no_disk), &mut without_rate))
            .collect();
        self.rates.end();
        Sample { node, pods, without_rate }
    }

    fn pod(&mut self, pod: &Pod, disk: &PodDisk, without_rate: &mut bool) -> PodStats {
        let time = now();
        let mut stats = PodStats {
            uid: pod.uid.to_string(),
            namespace: pod.namespace.to_string(),
            name: pod.name.to_string(),
            start_time: pod.started_at.clone(),
            volumes: disk
                .volumes
                .iter()
                .map(|(name, fs, folder)| VolumeStats { name: name.clone(), fs: Some(part(*fs, *folder, &time)) })
                .collect(),
            ephemeral_storage: ephemeral(disk, &time),
            ..PodStats::default()
        };
        let Some(cgroup) = &pod.cgroup else { return stats };
        let usage = self.hierarchy.usage(&mut self.reader, cgroup);
        stats.cpu = self.cpu(cgroup, &usage, without_rate);
        stats.memory = memory(&usage, &time);
        stats.process = usage.tasks.map(|tasks| ProcessStats { process_count: Some(tasks) });
        for container in &pod.containers {
            let candidates = cgroup::container_candidates(cgroup, &container.id);
            let Some(path) = candidates.into_iter().find(|path| self.hierarchy.exists(path)) else { continue };
            let usage = self.hierarchy.usage(&mut self.reader, &path);
            let time = now();
            let logs = disk.logs.iter().find(|(name, _)| name == container.name.as_str());
            stats.containers.push(ContainerStats {
                name: container.name.to_string(),
                start_time: container.started_at.clone(),
                cpu: self.cpu(&path, &usage, without_rate),
                memory: memory(&usage, &time),
                logs: logs.and_then(|(_, folder)| disk.log_fs.map(|fs| part(fs, *folder, &time))),
                rootfs: None,
            });
        }
        stats
    }

    fn cpu(&mut self, cgroup: &str, usage: &Usage, without_rate: &mut bool) -> Option<CpuStats> {
        let nanoseconds = usage.cpu_nanoseconds?;
        let at = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let rate = self.rates.observe(cgroup, at, nanoseconds);
        *without_rate |= rate.is_none();
        Some(CpuStats { time: now(), usage_nano_cores: rate, usage_core_nano_seconds: Some(nanoseconds) })
    }

    fn boot_time(&mut self) -> Option<String> {
        let seconds = kernel::boot_time(self.reader.read(Path::new("/proc/stat")).ok()?)?;
        Some(jiff::Timestamp::from_second(i64::try_from(seconds).ok()?).ok()?.to_string())
    }
}

/// RFC 3339, milliseconds.
fn now() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}

fn memory(usage: &Usage, time: &str) -> Option<MemoryStats> {
    let memory = usage.memory?;
    Some(MemoryStats {
        time: time.to_owned(),
        available_bytes: memory.limit.map(|limit| limit.saturating_sub(memory.working_set)),
        usage_bytes: Some(memory.usage),
        working_set_bytes: Some(memory.working_set),
        rss_bytes: memory.rss,
        page_faults: memory.page_faults,
        major_page_faults: memory.major_page_faults,
    })
}

fn whole(fs: FileSystem, time: &str) -> FsStats {
    FsStats {
        time: time.to_owned(),
        available_bytes: Some(fs.available),
        capacity_bytes: Some(fs.capacity),
        used_bytes: Some(fs.used),
        inodes_free: Some(fs.inodes_free),
        inodes: Some(fs.inodes),
        inodes_used: Some(fs.inodes.saturating_sub(fs.inodes_free)),
    }
}

/// A folder's share of its file system.
fn part(fs: FileSystem, folder: Folder, time: &str) -> FsStats {
    FsStats { used_bytes: Some(folder.bytes), inodes_used: Some(folder.inodes), ..whole(fs, time) }
}

/// Logs and volumes on the log folder's file system, together.
fn ephemeral(disk: &PodDisk, time: &str) -> Option<FsStats> {
    let fs = disk.log_fs?;
    let folders = disk.logs.iter().map(|(_, folder)| folder).chain(disk.volumes.iter().map(|(_, _, folder)| folder));
    let mut sum = Folder::default();
    for folder in folders {
        sum.bytes = sum.bytes.saturating_add(folder.bytes);
        sum.inodes = sum.inodes.saturating_add(folder.inodes);
    }
    Some(part(fs, sum, time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_measured_without_pods() {
        let instance =
            InstancePaths { root_dir: "/nowhere".into(), run_dir: "/nowhere".into(), pod_logs_dir: "/nowhere".into() };
        let paths = NodePaths { node_name: "n".into(), instance, pods_cgroups: vec!["/no-such-kubepods".into()] };
        let mut sampler = Sampler::new(paths).unwrap();
        let sample = sampler.sample(None, &Disks::default());
        assert!(sample.without_rate, "the first has no rate");
        assert!(!sample.node.pods_known);
        let memory = sample.node.memory.clone().unwrap();
        let total = memory.available_bytes.unwrap() + memory.working_set_bytes.unwrap();
        let meminfo = std::fs::read("/proc/meminfo").unwrap();
        assert_eq!(Some(total), kernel::meminfo(&meminfo, "MemTotal"), "available + working set = capacity");
        assert!(sample.node.max_pid > 0 && sample.node.running_processes > 0);
        assert!(sample.node.start_time.ends_with('Z'), "{}", sample.node.start_time);
        assert!(sample.node.cpu.as_ref().unwrap().time.ends_with('Z'));
    }
}
