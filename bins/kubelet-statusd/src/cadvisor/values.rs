//! How figures of a cgroup become values and labels of series: units, devices, interfaces. Pure.

use bulkhead_ipc::evictiond::{
    CgroupCpu, CgroupIo, CgroupMemory, CgroupStats, CgroupTasks, InterfaceStats, MountedFileSystem, Psi,
};

use super::groups::Sink;
use super::text::{Extra, Number, label};

pub(super) fn plain(sink: Sink<'_>, value: Option<u64>) {
    if let Some(value) = value {
        sink(&Extra::default(), Number::Whole(value));
    }
}

pub(super) fn cpu(group: &CgroupStats, sink: Sink<'_>, value: fn(&CgroupCpu) -> Option<u64>) {
    if let Some(value) = group.cpu.as_ref().and_then(value) {
        sink(&Extra::default(), seconds(value));
    }
}

/// Of groups that have a quota.
pub(super) fn quota(group: &CgroupStats, sink: Sink<'_>, value: fn(&CgroupCpu) -> Number) {
    if let Some(cpu) = group.cpu.as_ref().filter(|cpu| cpu.quota.is_some_and(|quota| quota > 0)) {
        sink(&Extra::default(), value(cpu));
    }
}

pub(super) fn memory(group: &CgroupStats, sink: Sink<'_>, value: fn(&CgroupMemory) -> Option<u64>) {
    plain(sink, group.memory.as_ref().and_then(value));
}

pub(super) fn tasks(group: &CgroupStats, sink: Sink<'_>, value: fn(&CgroupTasks) -> Option<u64>) {
    plain(sink, group.tasks.as_ref().and_then(value));
}

pub(super) fn network(group: &CgroupStats, sink: Sink<'_>, value: fn(&InterfaceStats) -> u64) {
    for one in &group.interfaces {
        let extra = Extra { before_name: label("interface", &one.name), ..Extra::default() };
        sink(&extra, Number::Whole(value(one)));
    }
}

pub(super) fn file_systems(group: &CgroupStats, sink: Sink<'_>, value: fn(&MountedFileSystem) -> Number) {
    for fs in &group.file_systems {
        sink(&device(&fs.device), value(fs));
    }
}

pub(super) fn device(name: &str) -> Extra {
    Extra { before_id: label("device", name), ..Extra::default() }
}

/// Reads and writes have the same devices, because dashboards add them label by label.
fn of_devices<'a>(
    devices: impl IntoIterator<Item = &'a CgroupIo>,
    sink: Sink<'_>,
    value: fn(&CgroupIo) -> Option<u64>,
) {
    for io in devices {
        if io.read_bytes.or(io.write_bytes).or(io.reads).or(io.writes).is_some() {
            sink(&device(&io.device), Number::Whole(value(io).unwrap_or(0)));
        }
    }
}

/// Of the group, where the kernel counts by group; else the machine's of its devices, in sectors of 512 bytes.
pub(super) fn bytes(
    group: &CgroupStats,
    sink: Sink<'_>,
    value: fn(&CgroupIo) -> Option<u64>,
    sectors: fn(&MountedFileSystem) -> u64,
) {
    if !group.io.is_empty() {
        return of_devices(&group.io, sink, value);
    }
    for fs in group.file_systems.iter().filter(|fs| fs.device.starts_with("/dev/") && fs.reads + fs.writes > 0) {
        sink(&device(&fs.device), Number::Whole(sectors(fs).saturating_mul(512)));
    }
}

/// The machine's are those of its file systems' devices, and the root group's of devices that no file system is named by: whole
/// disks of which only partitions are mounted.
pub(super) fn operations(
    group: &CgroupStats,
    sink: Sink<'_>,
    value: fn(&CgroupIo) -> Option<u64>,
    of_machine: fn(&MountedFileSystem) -> u64,
) {
    for fs in &group.file_systems {
        sink(&device(&fs.device), Number::Whole(of_machine(fs)));
    }
    let has_none = |io: &&CgroupIo| group.file_systems.iter().all(|fs| fs.device != io.device);
    of_devices(group.io.iter().filter(has_none), sink, value);
}

pub(super) fn cost(group: &CgroupStats, sink: Sink<'_>, name: &str) {
    for io in &group.io {
        if let Some(value) = io.cost.get(name) {
            sink(&device(&io.device), microseconds(*value));
        }
    }
}

pub(super) fn stalled(sink: Sink<'_>, psi: Option<Psi>) {
    if let Some(full) = psi.and_then(|psi| psi.full) {
        sink(&Extra::default(), microseconds(full.total));
    }
}

pub(super) fn waited(sink: Sink<'_>, psi: Option<Psi>) {
    if let Some(some) = psi.and_then(|psi| psi.some) {
        sink(&Extra::default(), microseconds(some.total));
    }
}

/// Of nanoseconds.
#[allow(clippy::cast_precision_loss, reason = "the format has floating point numbers alone")]
pub(super) fn seconds(nanoseconds: u64) -> Number {
    Number::Real(nanoseconds as f64 / 1e9)
}

#[allow(clippy::cast_precision_loss, reason = "the format has floating point numbers alone")]
pub(super) fn microseconds(value: u64) -> Number {
    Number::Real(value as f64 / 1e6)
}

#[allow(clippy::cast_precision_loss, reason = "the format has floating point numbers alone")]
pub(super) fn milliseconds(value: u64) -> Number {
    Number::Real(value as f64 / 1e3)
}
