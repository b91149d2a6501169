//! Limits in systemd's words, for the systemd driver (runc's `libcontainer/cgroups/systemd`, v1 and v2).
//!
//! systemd keeps what it was told and writes it again whenever it likes: on `daemon-reload`, or when a neighbour changes. So
//! it is told each limit that it knows, before the same value is written to the file.

use bulkhead_config::cpu_set::CpuSet;
use bulkhead_sys::cgroup::{Resources, Version};
use bulkhead_sys::systemd::{Property, Value};
use bulkhead_types::cpu;

/// systemd keeps a quota in whole percents of a CPU: microseconds in a second for one of them.
const PERCENT_US: u64 = 10_000;
const SECOND_US: u64 = 1_000_000;
const INFINITY: u64 = u64::MAX;

/// The quota as systemd can keep it: rounded up to a whole percent, so that both agree on what is in the file. Pure.
pub fn rounded(resources: &Resources) -> Resources {
    let period = resources.cpu_period_us.unwrap_or(cpu::QUOTA_PERIOD_US);
    let quota = resources.cpu_quota_us.and_then(|quota| u64::try_from(quota).ok()).filter(|quota| *quota > 0);
    let rounded = quota.map(|quota| per_second(quota, period).saturating_mul(period) / SECOND_US);
    let cpu_quota_us = match rounded.and_then(|quota| i64::try_from(quota).ok()) {
        Some(quota) => Some(quota),
        None => resources.cpu_quota_us,
    };
    Resources { cpu_quota_us, ..resources.clone() }
}

/// CPU time of a second, microseconds, in whole percents.
fn per_second(quota_us: u64, period_us: u64) -> u64 {
    let exact = quota_us.saturating_mul(SECOND_US) / period_us.max(1);
    exact.div_ceil(PERCENT_US).saturating_mul(PERCENT_US)
}

/// What systemd is told for these limits; huge pages are none of its business. Pure.
pub fn of(resources: &Resources, version: Version) -> Vec<Property> {
    let mut properties = Vec::new();
    let mut add = |name, number| properties.push(Property { name, value: Value::Number(number) });
    let or_infinity = |limit: i64| u64::try_from(limit).unwrap_or(INFINITY);
    if let Some(limit) = resources.memory_limit_bytes {
        let name = if version == Version::V2 { "MemoryMax" } else { "MemoryLimit" };
        add(name, or_infinity(limit));
    }
    if let Some(shares) = resources.cpu_shares {
        match version {
            Version::V2 => add("CPUWeight", cpu::shares_to_weight(shares)),
            Version::V1 => add("CPUShares", shares),
        }
    }
    if let Some(period) = resources.cpu_period_us {
        add("CPUQuotaPeriodUSec", period);
    }
    if let Some(quota) = resources.cpu_quota_us {
        let period = resources.cpu_period_us.unwrap_or(cpu::QUOTA_PERIOD_US);
        let quota = u64::try_from(quota).ok().filter(|quota| *quota > 0);
        add("CPUQuotaPerSecUSec", quota.map_or(INFINITY, |quota| per_second(quota, period)));
    }
    if let Some(limit) = resources.pids_limit {
        // systemd does not take 0.
        add("TasksMax", or_infinity(limit).max(1));
    }
    if version == Version::V2 {
        if let Some(bytes) = resources.memory_min_bytes {
            add("MemoryMin", bytes);
        }
        if let Some(bytes) = resources.memory_low_bytes {
            add("MemoryLow", bytes);
        }
        if let Some(cpus) = resources.cpus.as_deref().and_then(|cpus| CpuSet::parse(cpus).ok()) {
            properties.push(Property { name: "AllowedCPUs", value: Value::Bits(bits(&cpus)) });
        }
    }
    properties
}

/// Bit n of byte n / 8 for CPU n.
fn bits(cpus: &CpuSet) -> Vec<u8> {
    let mut bits = Vec::new();
    for cpu in cpus.iter() {
        let byte = (cpu / 8) as usize;
        if bits.len() <= byte {
            bits.resize(byte + 1, 0);
        }
        bits[byte] |= 1 << (cpu % 8);
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn show(resources: &Resources, version: Version) -> Vec<String> {
        of(resources, version).iter().map(|p| format!("{}={:?}", p.name, p.value)).collect()
    }

    #[test]
    fn limits_by_version() {
        let resources = Resources {
            cpu_shares: Some(1024),
            cpu_quota_us: Some(25_000),
            cpu_period_us: Some(100_000),
            memory_limit_bytes: Some(1 << 20),
            pids_limit: Some(0),
            hugepage_limits: [("2MB".to_owned(), 0)].into(),
            cpus: Some("0-1,9".to_owned()),
            memory_min_bytes: Some(0),
            memory_low_bytes: Some(4096),
        };
        assert_eq!(
            show(&resources, Version::V2),
            [
                "MemoryMax=Number(1048576)",
                "CPUWeight=Number(39)",
                "CPUQuotaPeriodUSec=Number(100000)",
                "CPUQuotaPerSecUSec=Number(250000)",
                "TasksMax=Number(1)",
                "MemoryMin=Number(0)",
                "MemoryLow=Number(4096)",
                "AllowedCPUs=Bits([3, 2])",
            ]
        );
        assert_eq!(
            show(&resources, Version::V1),
            [
                "MemoryLimit=Number(1048576)",
                "CPUShares=Number(1024)",
                "CPUQuotaPeriodUSec=Number(100000)",
                "CPUQuotaPerSecUSec=Number(250000)",
                "TasksMax=Number(1)",
            ]
        );
        let none = Resources {
            cpu_quota_us: Some(-1),
            memory_limit_bytes: Some(-1),
            pids_limit: Some(-1),
            ..Resources::default()
        };
        let infinite = format!("Number({})", u64::MAX);
        for line in show(&none, Version::V2) {
            assert!(line.ends_with(&infinite), "{line}");
        }
        assert!(of(&Resources::default(), Version::V2).is_empty());
    }

    #[test]
    fn quotas_are_whole_percents() {
        for (quota, period, expected) in [
            (1500, 100_000, 2000),
            (25_000, 100_000, 25_000),
            (1000, 100_000, 1000),
            (5001, 50_000, 5500),
            (-1, 100_000, -1),
        ] {
            let resources =
                Resources { cpu_quota_us: Some(quota), cpu_period_us: Some(period), ..Resources::default() };
            assert_eq!(rounded(&resources).cpu_quota_us, Some(expected), "{quota} of {period}");
        }
        assert_eq!(rounded(&Resources::default()), Resources::default());
    }

    proptest! {
        #[test]
        fn rounding_takes_nothing_away_and_is_done_once(quota in any::<i64>(), period in 1_000u64..=1_000_000) {
            let given = Resources { cpu_quota_us: Some(quota), cpu_period_us: Some(period), ..Resources::default() };
            let once = rounded(&given);
            // What overflows is far above any machine.
            if quota > 0 && quota < 1 << 40 {
                prop_assert!(once.cpu_quota_us >= given.cpu_quota_us);
            }
            prop_assert_eq!(rounded(&once).cpu_quota_us.is_some(), true);
            let _ = of(&once, Version::V2);
        }
    }
}
