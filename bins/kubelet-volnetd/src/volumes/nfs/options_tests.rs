//! The table of options, and that nothing gets to the kernel that is not in it.

use super::*;
use proptest::prelude::*;

fn parse(text: &str) -> Result<Options, InvalidOption> {
    Options::parse(&[text.to_owned()], false)
}

fn versions(text: &str) -> Vec<String> {
    parse(text).unwrap().versions.iter().map(ToString::to_string).collect()
}

fn parameters(text: &str) -> Vec<String> {
    let one = |(name, value): &(String, Option<String>)| match value {
        Some(value) => format!("{name}={value}"),
        None => name.clone(),
    };
    parse(text).unwrap().parameters.iter().map(one).collect()
}

#[test]
fn versions_are_asked_for_or_tried() {
    for (text, wanted) in [
        ("", &["4.2", "4.1", "4.0", "3"][..]),
        ("hard,timeo=600", &["4.2", "4.1", "4.0", "3"]),
        ("vers=4", &["4.2", "4.1", "4.0"]),
        ("v4", &["4.2", "4.1", "4.0"]),
        ("nfsvers=4.1", &["4.1"]),
        ("vers=3", &["3"]),
        ("v4.0", &["4.0"]),
        ("vers=4,minorversion=1", &["4.1"]),
        ("minorversion=2", &["4.2"]),
        ("vers=4.1,minorversion=1", &["4.1"]),
        ("vers=3,nfsvers=4.2", &["4.2"]),
        ("proto=udp", &["3"]),
        ("udp", &["3"]),
        ("proto=tcp", &["4.2", "4.1", "4.0", "3"]),
    ] {
        assert_eq!(versions(text), wanted, "{text}");
    }
}

#[test]
fn what_the_kernel_gets() {
    for (text, wanted) in [
        ("", &[][..]),
        ("hard,nolock,noac", &["hard", "nolock", "noac"]),
        (
            "rsize=1048576,wsize=1048576,timeo=600,retrans=2",
            &["rsize=1048576", "wsize=1048576", "timeo=600", "retrans=2"],
        ),
        ("timeo=1,timeo=2", &["timeo=2"]),
        ("sec=krb5p:sys,nconnect=16", &["sec=krb5p:sys", "nconnect=16"]),
        ("proto=tcp6,port=2050", &["proto=tcp6", "port=2050"]),
        ("mounthost=10.0.0.1,mountport=20048", &["mountaddr=10.0.0.1", "mountport=20048"]),
        ("defaults,_netdev,nofail,retry=3,x-systemd.automount,fg,rw", &[]),
        ("vers=4.2", &[]),
        (" hard , soft ", &["hard", "soft"]),
        ("ro", &["ro"]),
        ("ro,rw", &[]),
        ("context=\"system_u:object_r:nfs_t:s0\"", &["context=system_u:object_r:nfs_t:s0"]),
    ] {
        assert_eq!(parameters(text), wanted, "{text}");
    }
}

#[test]
fn the_mount_s_own_bits() {
    let bits = |text: &str| MountAttrFlags::from_bits_retain(parse(text).unwrap().attributes);
    assert_eq!(bits("nosuid,nodev,noexec"), {
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC
    });
    assert_eq!(bits("nosuid,suid"), MountAttrFlags::empty());
    assert_eq!(bits("noatime,strictatime"), MountAttrFlags::MOUNT_ATTR_STRICTATIME);
    assert_eq!(bits("noatime,relatime"), MountAttrFlags::empty());
    assert_eq!(bits("ro,nodiratime"), MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODIRATIME);
    let read_only = Options::parse(&["vers=3".to_owned(), "hard".to_owned()], true).unwrap();
    assert!(read_only.is_read_only());
    assert_eq!(read_only.shown, "hard,ro,vers=3", "sorted, as upstream joins them");
    assert_eq!(Options::parse(&["ro,hard,hard".to_owned()], true).unwrap().shown, "hard,ro");
}

#[test]
fn families_of_addresses() {
    assert_eq!(parse("proto=tcp").unwrap().family, Some(Family::V4));
    assert_eq!(parse("proto=rdma6").unwrap().family, Some(Family::V6));
    assert_eq!(parse("tcp").unwrap().family, None);
    assert!(Family::V6.has("::1".parse().unwrap()) && !Family::V6.has("127.0.0.1".parse().unwrap()));
}

#[test]
fn what_is_refused_is_named() {
    for (text, why) in [
        ("bogus", "it is not known here"),
        ("hard,bogus=1", "it is not known here"),
        ("addr=10.0.0.1", "it is not known here"),
        ("source=/dev/sda", "it is not known here"),
        ("bind", "it is not known here"),
        ("remount", "it is not known here"),
        // mount.nfs would go on in the background, and the pod would start without its volume.
        ("bg", "it is not known here"),
        ("vers=2", VERSIONS),
        ("vers=", VERSIONS),
        ("nfsvers=4.3", VERSIONS),
        ("vers", "it is not known here"),
        ("timeo", "it needs a value"),
        ("timeo=0", "a number from 1 to 2147483647 is wanted"),
        ("timeo=+5", "a number from 1 to 2147483647 is wanted"),
        ("timeo=5s", "a number from 1 to 2147483647 is wanted"),
        ("port=65536", "a number from 0 to 65535 is wanted"),
        ("hard=1", "it takes no value"),
        ("ro=1", "it takes no value"),
        ("proto=sctp", "one of tcp, tcp6, udp, udp6, rdma, rdma6 is wanted"),
        ("sec=sys:", "some of none, null, sys, krb5, krb5i, krb5p, separated by colons, are wanted"),
        ("clientaddr=host", "an IPv4 or IPv6 address is wanted"),
        ("mounthost=host", "an address is wanted, names are not resolved here"),
        ("minorversion=9", "a number from 0 to 2 is wanted"),
        ("vers=3,minorversion=1", "another version is named as well"),
        ("context=a b", "a label of SELinux without categories is wanted"),
        ("ha\nrd", "too long, or with characters that no option has"),
    ] {
        let refused = parse(text).unwrap_err();
        assert_eq!(refused.why, why, "{text}");
        assert!(refused.to_string().starts_with("an incorrect mount option was specified: "), "{refused}");
    }
    assert!(parse(&vec!["hard"; 65].join(",")).is_err());
    assert!(parse(&format!("x-{}", "a".repeat(300))).is_err());
}

proptest! {
    /// Whatever is written, what gets to the kernel has a name of the table and a value that cannot become another parameter.
    #[test]
    fn only_what_is_known_gets_through(texts in proptest::collection::vec("[a-z0-9.=,: _\\-\"\n]{0,24}", 0..6), read_only: bool) {
        if let Ok(options) = Options::parse(&texts, read_only) {
            for (name, value) in &options.parameters {
                prop_assert!(rule(name).is_some(), "{name}");
                prop_assert!(value.as_deref().is_none_or(|v| !v.contains([',', '\n', ' ']) && !v.is_empty()));
            }
            prop_assert!(!options.versions.is_empty());
            prop_assert!(!read_only || options.is_read_only());
        }
    }

    /// Any of the kernel's numbers, written back as they were.
    #[test]
    fn numbers_stay(value in 1u32..=i32::MAX as u32) {
        prop_assert_eq!(parameters(&format!("rsize={value}")), vec![format!("rsize={value}")]);
    }
}
