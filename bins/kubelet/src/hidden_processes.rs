//! Whether the daemons may see each other in /proc (proc(5), `hidepid=`). Who is at the other end of a socket is looked up there, and
//! a daemon without privileges that may not look believes nobody.

use std::path::Path;

use bulkhead_sys::mountinfo;

/// The node's daemons could not tell who calls them.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "/proc is mounted with {option}, which hides the node agent's processes from each other: let the group of its daemons see \
     them (`mount -o remount,hidepid=invisible,gid={group} /proc`, and the same in /etc/fstab), or mount it without hidepid"
)]
pub struct HiddenProcesses {
    option: String,
    group: u32,
}

/// # Errors
/// `group`, which the daemons are in, is not let to see processes of others.
pub fn check(group: u32) -> Result<(), HiddenProcesses> {
    // What cannot be read is found out by the first call.
    hiding(&std::fs::read("/proc/self/mountinfo").unwrap_or_default())
        .filter(|hiding| hiding.seen_by != Some(group))
        .map_or(Ok(()), |hiding| Err(HiddenProcesses { option: hiding.option, group }))
}

#[derive(Debug, PartialEq, Eq)]
struct Hiding {
    /// As the mount has it: `hidepid=invisible`, before Linux 5.8 a number.
    option: String,
    /// The group that sees all processes nevertheless.
    seen_by: Option<u32>,
}

fn hiding(mountinfo: &[u8]) -> Option<Hiding> {
    // The last one lies on top.
    let proc = mountinfo::parse(mountinfo).filter(|mount| *mount.mount_point == *Path::new("/proc")).last()?;
    let value =
        |key: &str| proc.super_options.split(',').find_map(|option| option.strip_prefix(key)?.strip_prefix('='));
    let hidden = value("hidepid").filter(|level| !matches!(*level, "0" | "off"))?;
    // With this level the kernel asks for the right to trace, and for no group.
    let is_by_group = !matches!(hidden, "4" | "ptraceable");
    let seen_by = value("gid").filter(|_| is_by_group).and_then(|gid| gid.parse().ok());
    Some(Hiding { option: format!("hidepid={hidden}"), seen_by })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounted(options: &[&str]) -> Vec<u8> {
        let line = |options: &&str| format!("20 28 0:22 / /proc rw,nosuid shared:12 - proc proc {options}\n");
        options.iter().map(line).collect::<String>().into_bytes()
    }

    #[test]
    fn only_what_hides_and_not_from_the_group() {
        let option = |text: &str| hiding(&mounted(&[text])).map(|hiding| (hiding.option, hiding.seen_by));
        assert_eq!(option("rw"), None);
        assert_eq!(option("rw,hidepid=off"), None);
        assert_eq!(option("rw,hidepid=2"), Some(("hidepid=2".into(), None)));
        assert_eq!(option("rw,gid=990,hidepid=invisible"), Some(("hidepid=invisible".into(), Some(990))));
        assert_eq!(option("rw,gid=990,hidepid=ptraceable"), Some(("hidepid=ptraceable".into(), None)));
        // What is mounted over it counts.
        assert_eq!(hiding(&mounted(&["rw,hidepid=1", "rw"])), None);
        assert_eq!(hiding(b""), None);
        let told = HiddenProcesses { option: "hidepid=2".into(), group: 990 }.to_string();
        assert!(told.contains("hidepid=2") && told.contains("hidepid=invisible,gid=990"), "{told}");
        assert_eq!(check(0), Ok(()), "where this test runs nothing is hidden");
    }
}
