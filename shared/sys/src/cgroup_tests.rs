//! Values of both versions, and lives of real cgroups.

use super::*;
use proptest::prelude::*;

const V1_MOUNTS: &str = "1 2 0:1 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
    2 2 0:2 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
    3 2 0:2 / /run/x/memory rw - cgroup cgroup rw,memory\n\
    4 2 0:3 / /sys/fs/cgroup/systemd rw - cgroup systemd rw,xattr,release_agent=/x,name=systemd\n\
    5 2 0:4 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";

fn hierarchies(mounts: &str) -> Result<Hierarchies, CgroupError> {
    Hierarchies::from_mounts(mountinfo::parse(mounts.as_bytes()))
}

#[test]
fn one_old_tree_beside_the_unified_one_changes_nothing() {
    let mounts =
        "1 2 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n2 2 0:2 / /mnt/net_cls rw - cgroup none rw,net_cls\n";
    let found = hierarchies(mounts).unwrap();
    assert_eq!(found.version(), Version::V2);
    assert_eq!(found.trees.len(), 1);
}

#[test]
fn hybrid_counts_as_v1() {
    let hybrid = hierarchies(V1_MOUNTS).unwrap();
    assert_eq!(hybrid.version(), Version::V1);
    assert_eq!(hybrid.mount_point("cpuacct").unwrap(), Path::new("/sys/fs/cgroup/cpu,cpuacct"));
    assert_eq!(hybrid.mount_point("memory").unwrap(), Path::new("/sys/fs/cgroup/memory"));
    assert_eq!(hybrid.trees.len(), 3);
    assert!(
        matches!(hybrid.check_required(), Err(CgroupError::MissingControllers { missing }) if missing == ["cpuset"])
    );
    let v2 = hierarchies("5 2 0:4 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n").unwrap();
    assert_eq!(v2.version(), Version::V2);
    assert!(matches!(hierarchies(""), Err(CgroupError::NoHierarchy)));
}

#[test]
fn values_by_version() {
    let resources = Resources {
        cpu_shares: Some(1024),
        cpu_quota_us: Some(-1),
        cpu_period_us: Some(100_000),
        memory_limit_bytes: Some(-1),
        pids_limit: Some(100),
        hugepage_limits: [("2MB".to_owned(), 0)].into(),
        cpus: Some("0-1".to_owned()),
        memory_min_bytes: Some(0),
        memory_low_bytes: Some(4096),
    };
    let show = |h: Hierarchies| -> Vec<String> {
        h.writes(&resources).into_iter().map(|(c, f, v)| format!("{c}:{f}={v}")).collect()
    };
    assert_eq!(
        show(hierarchies(V1_MOUNTS).unwrap()),
        [
            "cpu:cpu.shares=1024",
            "cpu:cpu.cfs_period_us=100000",
            "cpu:cpu.cfs_quota_us=-1",
            "memory:memory.limit_in_bytes=-1",
            "pids:pids.max=100",
            "hugetlb:hugetlb.2MB.limit_in_bytes=0",
            "hugetlb:hugetlb.2MB.rsvd.limit_in_bytes=0"
        ]
    );
    assert_eq!(
        show(hierarchies("5 2 0:4 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n").unwrap()),
        [
            "cpu:cpu.weight=39",
            "cpu:cpu.max=max 100000",
            "memory:memory.max=max",
            "cpuset:cpuset.cpus=0-1",
            "memory:memory.min=0",
            "memory:memory.low=4096",
            "pids:pids.max=100",
            "hugetlb:hugetlb.2MB.max=0",
            "hugetlb:hugetlb.2MB.rsvd.max=0"
        ]
    );
}

#[test]
fn paths() {
    for (text, ok) in [
        ("/", true),
        ("//", true),
        ("/a/b/", true),
        ("", false),
        ("a", false),
        ("/a//b", false),
        ("/a/../b", false),
        ("/./a", false),
        ("/a\nb", false),
    ] {
        assert_eq!(CgroupPath::parse(text).is_ok(), ok, "{text:?}");
    }
    let path = CgroupPath::parse("/a/b/c/").unwrap();
    assert_eq!(path.with_ancestors().map(|p| p.to_string()).collect::<Vec<_>>(), ["/a", "/a/b", "/a/b/c"]);
    assert_eq!(path.name(), "c");
    assert_eq!(CgroupPath::root().with_ancestors().count(), 0);
    assert!(CgroupPath::root().child("..").is_err());
}

#[test]
fn kernels_before_5_7_do_not_limit_reserved_huge_pages() {
    for version in [Version::V1, Version::V2] {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().display();
        let (mounts, end) = match version {
            Version::V1 => (
                format!(
                    "1 2 0:1 / /nowhere rw - cgroup cgroup rw,cpu\n2 2 0:2 / {top} rw - cgroup cgroup rw,hugetlb\n"
                ),
                "limit_in_bytes",
            ),
            Version::V2 => (format!("1 2 0:1 / {top} rw - cgroup2 cgroup2 rw\n"), "max"),
        };
        let hierarchies = hierarchies(&mounts).unwrap();
        let limits = Resources { hugepage_limits: [("2MB".to_owned(), 4 << 20)].into(), ..Resources::default() };
        let apply = || hierarchies.apply(&CgroupPath::root(), &limits).unwrap();
        let [used, reserved] = [format!("hugetlb.2MB.{end}"), format!("hugetlb.2MB.rsvd.{end}")];
        std::fs::write(folder.path().join(&used), "").unwrap();
        assert_eq!(apply(), [reserved.as_str()]);
        std::fs::write(folder.path().join(&reserved), "").unwrap();
        assert_eq!(apply(), Vec::<String>::new());
        for file in [used, reserved] {
            assert_eq!(std::fs::read_to_string(folder.path().join(&file)).unwrap(), "4194304", "{file}");
        }
        assert_eq!(hierarchies.huge_page_sizes(&CgroupPath::root()), ["2MB"]);
    }
}

/// The machine's own hierarchies where they are v1's and may be written, and a cgroup of this name, which the caller removes.
fn of_v1(name: &str) -> Option<(Hierarchies, CgroupPath)> {
    let is_root = rustix::process::getuid().is_root();
    let Some(found) = Hierarchies::detect().ok().filter(|found| is_root && found.version() == Version::V1) else {
        eprintln!("left out: it takes root, and cgroup v1");
        return None;
    };
    let path = CgroupPath::parse(&format!("/bulkhead-c-test-{name}-{}", std::process::id())).unwrap();
    Some((found, path))
}

/// A container's cgroup has its limits by the former period while the pod's gets those by the new one.
#[test]
fn a_period_follows_where_the_quota_must_come_first() {
    let Some((hierarchies, pod)) = of_v1("period") else { return };
    let container = pod.child("c").unwrap();
    hierarchies.ensure(&container).unwrap();
    let limits = |quota: i64, period: u64| Resources {
        cpu_quota_us: Some(quota),
        cpu_period_us: Some(period),
        ..Resources::default()
    };
    let half = limits(50_000, 100_000);
    hierarchies.apply(&pod, &half).unwrap();
    hierarchies.apply(&container, &half).unwrap();
    let alone = Resources { cpu_period_us: Some(200_000), ..Resources::default() };
    let refused = hierarchies.apply(&pod, &alone).unwrap_err();
    assert!(refused.is_invalid_value(), "{refused:?}");
    for (quota, period) in [(100_000, 200_000), (50_000, 100_000), (500_000, 1_000_000), (25_000, 50_000)] {
        hierarchies.apply(&pod, &limits(quota, period)).unwrap();
        let now = hierarchies.limits(&pod).unwrap();
        assert_eq!((now.cpu_quota_us, now.cpu_period_us), (Some(quota), Some(period)));
    }
    // What is too little for the container by any period is refused as before.
    assert!(hierarchies.apply(&pod, &limits(50_000, 200_000)).is_err());
    hierarchies.kill_and_remove(&pod).unwrap();
}

#[test]
fn who_balances_the_cpus_of_new_cgroups() {
    for disable in [false, true] {
        let Some((mut hierarchies, root)) = of_v1(if disable { "unbalanced" } else { "balanced" }) else { return };
        hierarchies.ensure(&root).unwrap();
        let of = |hierarchies: &Hierarchies, path: &CgroupPath, file: &str| {
            let text = std::fs::read_to_string(hierarchies.file("cpuset", path, file).unwrap()).unwrap();
            text.trim().to_owned()
        };
        if disable {
            hierarchies.set_cpu_load_balance_disable();
        }
        // With an ancestor that is missing, and below ancestors that are there.
        let level = root.child("kubepods").unwrap().child("burstable").unwrap();
        hierarchies.ensure(&level).unwrap();
        let pod = level.child("pod").unwrap();
        hierarchies.ensure(&pod).unwrap();
        for path in [&root.child("kubepods").unwrap(), &level, &pod] {
            let expected = if disable { "0" } else { "1" };
            assert_eq!(of(&hierarchies, path, "cpuset.sched_load_balance"), expected, "{path}");
            assert_ne!(of(&hierarchies, path, "cpuset.cpus"), "", "{path}");
        }
        // What is there stays as it is.
        hierarchies.ensure(&root).unwrap();
        assert_eq!(of(&hierarchies, &root, "cpuset.sched_load_balance"), "1");
        hierarchies.kill_and_remove(&root).unwrap();
    }
}

/// A life on the machine's own hierarchies, below a cgroup of this test's name.
#[test]
fn real_cgroups() {
    if rustix::process::getuid().as_raw() != 0 {
        return;
    }
    let Ok(hierarchies) = Hierarchies::detect() else { return };
    let root = CgroupPath::parse(&format!("/bulkhead-c-test-sys-{}", std::process::id())).unwrap();
    let pod = root.child("kubepods").unwrap().child("podx").unwrap();
    assert!(!hierarchies.exists(&pod));
    assert!(hierarchies.ensure(&pod).unwrap());
    assert!(!hierarchies.ensure(&pod).unwrap());
    assert!(hierarchies.exists(&pod));
    let resources = Resources {
        cpu_shares: Some(100),
        cpu_quota_us: Some(50_000),
        cpu_period_us: Some(100_000),
        memory_limit_bytes: Some(64 << 20),
        pids_limit: Some(50),
        ..Resources::default()
    };
    assert_eq!(hierarchies.apply(&pod, &resources).unwrap(), Vec::<String>::new());
    if hierarchies.version() == Version::V1 {
        let file = |c, f| std::fs::read_to_string(hierarchies.file(c, &pod, f).unwrap()).unwrap();
        assert_eq!(file("cpu", "cpu.shares").trim(), "100");
        assert_eq!(file("cpu", "cpu.cfs_quota_us").trim(), "50000");
        assert_eq!(file("memory", "memory.limit_in_bytes").trim(), "67108864");
        drop(hierarchies.memory_event(&CgroupPath::root(), 1 << 40).unwrap());
    }
    // One more below ancestors that are there, and without anything in it.
    let other = root.child("kubepods").unwrap().child("pody").unwrap();
    assert!(hierarchies.ensure(&other).unwrap() && hierarchies.exists(&other));
    if let Some(file) = hierarchies.file("cpuset", &other, "cpuset.mems")
        && hierarchies.version() == Version::V1
    {
        assert_ne!(std::fs::read_to_string(file).unwrap().trim(), "", "a process can enter it");
    }
    assert!(hierarchies.kill_and_remove(&other).unwrap() && !hierarchies.exists(&other));
    assert!(!hierarchies.kill_and_remove(&other).unwrap(), "it was gone already");
    assert_eq!(hierarchies.children(&root).unwrap().into_iter().collect::<Vec<_>>(), ["kubepods"]);

    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    std::fs::write(hierarchies.file("pids", &pod, "cgroup.procs").unwrap(), child.id().to_string()).unwrap();
    assert_eq!(hierarchies.pids(&pod).unwrap().into_iter().collect::<Vec<_>>(), [child.id().cast_signed()]);
    // Reaped by us: until then a killed child stays in its cgroup.
    let reaper = std::thread::spawn(move || child.wait().unwrap());
    assert!(hierarchies.kill_and_remove(&root).unwrap());
    assert!(!reaper.join().unwrap().success());
    assert!(!hierarchies.kill_and_remove(&root).unwrap());
    assert!(!hierarchies.exists(&root));
    assert!(hierarchies.kill_and_remove(&CgroupPath::root()).is_err());
}

#[test]
fn a_number_that_is_no_member_any_more_kills_nobody() {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let pids = BTreeSet::from([child.id().cast_signed()]);
    // As if its member had ended, and the number had been given to this process, between the first look and the pin.
    kill_members(&pids, || Ok(BTreeSet::new())).unwrap();
    assert!(child.try_wait().unwrap().is_none());
    kill_members(&pids, || Ok(pids.clone())).unwrap();
    assert!(!child.wait().unwrap().success());
}

proptest! {
    #[test]
    fn no_path_leads_out(text in "[/a-z.\\x00]{0,30}") {
        if let Ok(path) = CgroupPath::parse(&text) {
            let full = path.below(Path::new("/m"));
            prop_assert!(full.starts_with("/m"));
            prop_assert!(full.components().all(|c| c.as_os_str() != ".."));
        }
    }
}
