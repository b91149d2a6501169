//! From the wire to typed values, in one place. A value that leaves here is safe to use as what its type says: an id is
//! one path component, a word has no white space, a path is absolute and without "..".

mod logs;

use std::path::PathBuf;

use bulkhead_config::cpu_set::CpuSet;
use bulkhead_ipc::volnetd as wire;
use bulkhead_sys::cgroup::Resources;
use bulkhead_types::{ContainerId, ContainerName, IdError, PodUid, QosClass, VolumeName};

pub use logs::{LogPlace, Pick, PodLog, Removal, log_place, log_stamp, pick, pod_log, removals};

/// Bytes: a list that names each second CPU of the largest machine is shorter.
const MAX_CPU_LIST: usize = 32 * 1024;

/// A request that cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    #[error(transparent)]
    Id(#[from] IdError),
    #[error("{field} is missing")]
    Missing { field: &'static str },
    #[error("{field} {value:?} is not valid: {allowed}")]
    Value { field: &'static str, value: String, allowed: &'static str },
    #[error("{field} has {count} entries, at most {max} are allowed")]
    TooMany { field: &'static str, count: usize, max: usize },
}

/// A bad value, shortened for the message.
pub fn bad(field: &'static str, value: &str, allowed: &'static str) -> InvalidRequest {
    InvalidRequest::Value { field, value: value.chars().take(128).collect(), allowed }
}

pub fn pod_uid(text: &str) -> Result<PodUid, InvalidRequest> {
    Ok(PodUid::parse(text)?)
}

pub fn volume(text: &str) -> Result<VolumeName, InvalidRequest> {
    Ok(VolumeName::parse(text)?)
}

pub fn container(text: &str) -> Result<ContainerName, InvalidRequest> {
    Ok(ContainerName::parse(text)?)
}

pub fn container_id(text: &str) -> Result<ContainerId, InvalidRequest> {
    Ok(ContainerId::parse(text)?)
}

/// The known pods of a prune; the bound is far above what a node runs and keeps a message in its limit.
pub fn known_pods(uids: &[String]) -> Result<std::collections::HashSet<PodUid>, InvalidRequest> {
    const MAX: usize = 5000;
    if uids.len() > MAX {
        return Err(InvalidRequest::TooMany { field: "known_pod_uids", count: uids.len(), max: MAX });
    }
    uids.iter().map(|uid| pod_uid(uid)).collect()
}

/// hostPath.path: arbitrary, but absolute and without a ".." that would hide where it leads (upstream
/// `ValidatePathNoBacksteps`).
pub fn host_path(text: &str) -> Result<PathBuf, InvalidRequest> {
    const ALLOWED: &str = "an absolute path of at most 4096 bytes without '..' or NUL";
    let ok = text.starts_with('/')
        && text.len() <= 4096
        && !text.contains('\0')
        && text.split('/').all(|component| component != "..");
    if ok { Ok(PathBuf::from(text)) } else { Err(bad("path", text, ALLOWED)) }
}

/// One field of a hosts file: a word that can end neither the field nor the line.
pub fn hosts_word(field: &'static str, text: &str) -> Result<String, InvalidRequest> {
    let ok = !text.is_empty()
        && text.len() <= 512
        && text.chars().all(|c| !c.is_whitespace() && !c.is_control() && c != '#');
    if ok { Ok(text.to_owned()) } else { Err(bad(field, text, "1 to 512 characters without white space or '#'")) }
}

/// An address, kept as it was written.
pub fn address(field: &'static str, text: &str) -> Result<String, InvalidRequest> {
    match text.parse::<std::net::IpAddr>() {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(bad(field, text, "an IPv4 or IPv6 address")),
    }
}

/// The random end of a termination message's path.
pub fn suffix(text: &str) -> Result<&str, InvalidRequest> {
    let ok = text.len() == 8 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if ok { Ok(text) } else { Err(bad("suffix", text, "8 lower-case hexadecimal digits")) }
}

/// A file name of the manifest folder. Names with a leading dot are ignored by upstream and never asked for.
pub fn manifest_name(text: &str) -> Result<&str, InvalidRequest> {
    let ok = !text.is_empty() && text.len() <= 255 && !text.starts_with('.') && !text.contains(['/', '\0']);
    if ok { Ok(text) } else { Err(bad("name", text, "one file name without a leading dot")) }
}

/// A path below /var/log.
pub fn relative_path(text: &str) -> Result<&str, InvalidRequest> {
    let ok = !text.is_empty()
        && text.len() <= 4096
        && !text.contains('\0')
        && text.split('/').all(|c| !c.is_empty() && c != "." && c != "..");
    if ok { Ok(text) } else { Err(bad("relative", text, "a relative path without empty, '.' or '..' components")) }
}

/// subPath of a volumeMount, without its empty and "." components; nothing left is the volume's root. Links in it are
/// the volume's business (rule 3).
pub fn sub_path(text: &str) -> Result<PathBuf, InvalidRequest> {
    let ok = !text.is_empty()
        && text.len() <= 4096
        && !text.starts_with('/')
        && !text.contains('\0')
        && text.split('/').all(|component| component != ".." && component.len() <= 255);
    if !ok {
        return Err(bad("sub_path", text, "a relative path of at most 4096 bytes without '..' or NUL"));
    }
    Ok(text.split('/').filter(|component| !component.is_empty() && *component != ".").collect())
}

/// A user or group of the API (runAsUser, fsGroup): never the one that means "leave it".
pub fn id(field: &'static str, value: i64) -> Result<u32, InvalidRequest> {
    match u32::try_from(value) {
        Ok(id) if id <= i32::MAX as u32 => Ok(id),
        _ => Err(bad(field, &value.to_string(), "0 to 2147483647")),
    }
}

pub fn qos(value: i32) -> Result<QosClass, InvalidRequest> {
    match wire::Qos::try_from(value) {
        Ok(wire::Qos::Guaranteed) => Ok(QosClass::Guaranteed),
        Ok(wire::Qos::Burstable) => Ok(QosClass::Burstable),
        Ok(wire::Qos::BestEffort) => Ok(QosClass::BestEffort),
        Ok(wire::Qos::Unspecified) | Err(_) => {
            Err(bad("qos", &value.to_string(), "GUARANTEED, BURSTABLE or BEST_EFFORT"))
        }
    }
}

/// What the QoS levels get, in the units of cgroups; None leaves a value as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QosLevels {
    pub burstable_cpu_shares: u64,
    pub kubepods_memory_min: Option<u64>,
    pub burstable_memory_low: Option<u64>,
    pub burstable_memory_limit: Option<i64>,
    pub best_effort_memory_limit: Option<i64>,
}

/// What the QoS levels get.
///
/// # Errors
/// The share is none of CPU shares, or a memory limit is 0 or less.
pub fn qos_levels(wire: &wire::SetQosRequest) -> Result<QosLevels, InvalidRequest> {
    let shares = wire.burstable_cpu_shares;
    resources(Some(&wire::CgroupResources { cpu_shares: Some(shares), ..Default::default() }))?;
    for (field, limit) in [
        ("burstable_memory_limit_bytes", wire.burstable_memory_limit_bytes),
        ("best_effort_memory_limit_bytes", wire.best_effort_memory_limit_bytes),
    ] {
        if let Some(limit) = limit.filter(|limit| *limit <= 0) {
            return Err(bad(field, &limit.to_string(), "a number of bytes above 0"));
        }
    }
    Ok(QosLevels {
        burstable_cpu_shares: shares,
        kubepods_memory_min: wire.kubepods_memory_min_bytes,
        burstable_memory_low: wire.burstable_memory_low_bytes,
        burstable_memory_limit: wire.burstable_memory_limit_bytes,
        best_effort_memory_limit: wire.best_effort_memory_limit_bytes,
    })
}

/// Limits of a cgroup, inside what the kernel takes.
pub fn resources(wire: Option<&wire::CgroupResources>) -> Result<Resources, InvalidRequest> {
    let Some(wire) = wire else { return Ok(Resources::default()) };
    const SIZES: usize = 16;
    if wire.hugepage_limits.len() > SIZES {
        return Err(InvalidRequest::TooMany {
            field: "hugepage_limits",
            count: wire.hugepage_limits.len(),
            max: SIZES,
        });
    }
    for size in wire.hugepage_limits.keys() {
        // Becomes a part of a file name.
        let digits = size.trim_end_matches("KB").trim_end_matches("MB").trim_end_matches("GB");
        if digits.is_empty()
            || digits.len() > 8
            || digits.len() + 2 != size.len()
            || !digits.bytes().all(|b| b.is_ascii_digit())
        {
            return Err(bad("hugepage_limits", size, "a page size as the kernel names it, like 2MB"));
        }
    }
    if let Some(shares) = wire.cpu_shares
        && !(2..=262_144).contains(&shares)
    {
        return Err(bad("cpu_shares", &shares.to_string(), "2 to 262144"));
    }
    if let Some(period) = wire.cpu_period_us
        && !(1_000..=1_000_000).contains(&period)
    {
        return Err(bad("cpu_period_us", &period.to_string(), "1000 to 1000000"));
    }
    let cpus = match &wire.cpus {
        Some(text) => match CpuSet::parse(text) {
            // In normal form, and never empty: the kernel reads that as "all of the parent's".
            Ok(cpus) if text.len() <= MAX_CPU_LIST && !cpus.is_empty() => Some(cpus.to_string()),
            _ => return Err(bad("cpus", text, "a list of CPUs such as 0,2-4")),
        },
        None => None,
    };
    Ok(Resources {
        cpu_shares: wire.cpu_shares,
        cpu_quota_us: wire.cpu_quota_us,
        cpu_period_us: wire.cpu_period_us,
        memory_limit_bytes: wire.memory_limit_bytes,
        pids_limit: wire.pids_limit,
        hugepage_limits: wire.hugepage_limits.iter().map(|(k, v)| (k.clone(), *v)).collect(),
        cpus,
        memory_min_bytes: wire.memory_min_bytes,
        memory_low_bytes: wire.memory_low_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_in_place_of_ids_are_refused() {
        for bad in ["", "..", "../../etc", "/etc", "a/b", "a\0", ".x"] {
            assert!(pod_uid(bad).is_err() && volume(bad).is_err() && container(bad).is_err());
            assert!(container_id(bad).is_err() && suffix(bad).is_err() && manifest_name(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "/x", "../x", "a/../b", "a//b", "a/.", "x\0"] {
            assert!(relative_path(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "x", "/a/..", "/../a", "/a\0"] {
            assert!(host_path(bad).is_err(), "{bad:?}");
        }
        assert!(host_path("/var//log/./..x").is_ok());
        for bad in ["", "/", "/x", "..", "a/..", "../a", "a/../b", "x\0", &"x".repeat(256)] {
            assert!(sub_path(bad).is_err(), "{bad:?}");
        }
        for (good, clean) in [("a//b/./", "a/b"), ("..data/key", "..data/key"), ("./", "")] {
            assert_eq!(sub_path(good).unwrap(), std::path::Path::new(clean));
        }
        assert!(suffix("0123abcd").is_ok() && suffix("0123ABCD").is_err());
    }

    #[test]
    fn words_cannot_end_a_line() {
        for bad in ["", "a b", "a\tb", "a\nb", "a#b", "a\u{0}"] {
            assert!(hosts_word("hostname", bad).is_err(), "{bad:?}");
        }
        assert!(address("ip", "10.0.0.1").is_ok() && address("ip", "fd00::1").is_ok());
        assert!(address("ip", "10.0.0.1 x").is_err());
    }

    #[test]
    fn hugepage_sizes_are_names_of_the_kernel() {
        let ask = |size: &str| {
            resources(Some(&wire::CgroupResources {
                hugepage_limits: [(size.to_owned(), 0)].into(),
                ..Default::default()
            }))
        };
        assert!(ask("2MB").is_ok() && ask("1GB").is_ok() && ask("64KB").is_ok());
        for bad in ["", "MB", "2M", "../2MB", "2MB/x", "x2MB", "2MBKB"] {
            assert!(ask(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cpus_are_a_list_in_normal_form() {
        let ask = |cpus: &str| {
            let wire = wire::CgroupResources { cpus: Some(cpus.to_owned()), ..Default::default() };
            resources(Some(&wire)).map(|resources| resources.cpus.unwrap())
        };
        assert_eq!((ask("3,0-1").unwrap(), ask("0,1,2").unwrap()), ("0-1,3".to_owned(), "0-2".to_owned()));
        for bad in ["", "x", "0-", "3-1", "0\n", "0 1", "99999999"] {
            assert!(ask(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_valid_leaves_its_directory(text in "[a-z./\\x00]{0,20}") {
            if relative_path(&text).is_ok() {
                prop_assert!(std::path::Path::new(&text).components().all(|c| matches!(c, std::path::Component::Normal(_))));
            }
            if let Ok(path) = sub_path(&text) {
                prop_assert!(path.components().all(|c| matches!(c, std::path::Component::Normal(_))));
            }
            if let Ok(path) = host_path(&text) {
                prop_assert!(path.is_absolute() && path.components().all(|c| c != std::path::Component::ParentDir));
            }
        }
    }
}
