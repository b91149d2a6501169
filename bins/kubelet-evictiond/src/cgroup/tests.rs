//! Whole trees of both versions, as folders.

use super::*;
use proptest::prelude::*;

const HYBRID: &str = "\
25 1 0:22 / /sys rw - sysfs sysfs rw
30 25 0:26 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw
31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 25 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 25 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
";

#[test]
fn mounts_are_found() {
    assert_eq!(
        Hierarchy::from_mountinfo(HYBRID.as_bytes()),
        Some(Hierarchy::V1(Mounts {
            cpu: Some("/sys/fs/cgroup/cpu,cpuacct".into()),
            cpuacct: Some("/sys/fs/cgroup/cpu,cpuacct".into()),
            memory: Some("/sys/fs/cgroup/memory".into()),
            unified: Some("/sys/fs/cgroup/unified".into()),
            ..Mounts::default()
        }))
    );
    assert_eq!(
        Hierarchy::from_mountinfo(b"30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"),
        Some(Hierarchy::V2 { root: "/sys/fs/cgroup".into() })
    );
    assert_eq!(Hierarchy::from_mountinfo(b"1 0 8:1 / / rw - ext4 /dev/vda rw\n"), None);
    // A pod may have something mounted on a folder of any name.
    assert!(matches!(
        Hierarchy::from_mountinfo(b"29 25 0:9 / /\xff rw - tmpfs tmpfs rw\n30 25 0:26 / /c rw - cgroup2 cgroup2 rw\n"),
        Some(Hierarchy::V2 { root }) if root == Path::new("/c")
    ));
    let spaced = Hierarchy::from_mountinfo(b"30 25 0:26 / /a\\040b rw - cgroup2 cgroup2 rw\n");
    assert_eq!(spaced, Some(Hierarchy::V2 { root: "/a b".into() }));
}

fn folder(at: &Path, files: &[(&str, &str)]) {
    std::fs::create_dir_all(at).unwrap();
    for (name, text) in files {
        std::fs::write(at.join(name), text).unwrap();
    }
}

const PRESSURE: &str = "some avg10=1.50 avg60=0.00 avg300=0.00 total=2000000\n\
                        full avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\n";

#[test]
fn a_tree_of_v2() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path();
    let cgroup = "/kubepods.slice/kubepods-podu1.slice/cri-containerd-c1.scope";
    folder(
        &root.join(&cgroup[1..]),
        &[
            (
                "cpu.stat",
                "usage_usec 5000000\nuser_usec 3000000\nsystem_usec 2000000\nnr_periods 10\nnr_throttled 4\n\
                         throttled_usec 700000\nnr_bursts 1\nburst_usec 9\n",
            ),
            ("cpu.max", "50000 100000\n"),
            ("cpu.weight", "20\n"),
            ("cpu.pressure", PRESSURE),
            ("memory.pressure", PRESSURE),
            ("io.pressure", PRESSURE),
            ("memory.current", "1000000\n"),
            ("memory.max", "4000000\n"),
            ("memory.min", "0\n"),
            ("memory.peak", "1500000\n"),
            (
                "memory.stat",
                "anon 400000\nfile 500000\nkernel 100000\nfile_mapped 7\ninactive_file 200000\nactive_file 300000\npgfault 5\npgmajfault 1\n",
            ),
            ("memory.swap.current", "4096\n"),
            ("memory.swap.max", "max\n"),
            ("memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\n"),
            ("memory.events.local", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 1\n"),
            ("pids.current", "3\n"),
            ("pids.max", "max\n"),
            ("io.stat", "8:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n"),
            ("cgroup.procs", "17\n18\n"),
            ("cgroup.events", "populated 1\n"),
        ],
    );
    let hierarchy = Hierarchy::V2 { root: root.to_owned() };
    let mut reader = Reader::default();
    let usage = hierarchy.usage(&mut reader, cgroup);
    assert_eq!(usage.cpu_nanoseconds, Some(5_000_000_000));
    let memory = usage.memory.unwrap();
    assert_eq!((memory.usage, memory.working_set, memory.limit), (1_000_000, 800_000, Some(4_000_000)));
    assert_eq!(usage.swap, Some(Swap { usage: 4096, limit: None }));
    assert_eq!((usage.tasks, usage.pressure.io.unwrap().some.total), (Some(3), 2_000_000));
    let detail = hierarchy.detail(&mut reader, cgroup);
    assert_eq!((detail.cpu.quota, detail.cpu.period, detail.cpu.shares), (Some(50_000), Some(100_000), Some(500)));
    assert_eq!((detail.cpu.user, detail.cpu.system), (Some(3_000_000_000), Some(2_000_000_000)));
    assert_eq!((detail.cpu.cfs_throttled_periods, detail.cpu.cfs_throttled), (4, 700_000_000));
    assert_eq!((detail.memory.max_usage, detail.memory.failures), (Some(1_500_000), Some(12)));
    assert_eq!((detail.oom_kills, detail.threads_max), (Some(1), Some(0)), "its own kills; no limit is 0");
    assert_eq!((detail.io[0].write_bytes, detail.io[0].reads), (Some(8192), Some(1)));
    assert_eq!(hierarchy.processes(&mut reader, cgroup), Some(vec![17, 18]));
    assert!(hierarchy.made_at(cgroup).is_some_and(|at| at.as_second() > 1_700_000_000));
    assert_eq!(hierarchy.made_at("/none"), None);

    // The root has neither memory.current nor pids.current.
    folder(root, &[("cpu.stat", "usage_usec 7\n"), ("memory.stat", "anon 3\nfile 4\ninactive_file 1\n")]);
    let usage = hierarchy.usage(&mut reader, "/");
    assert_eq!((usage.memory.unwrap().usage, usage.memory.unwrap().working_set), (7, 6));
}

#[test]
fn trees_of_v1() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path();
    let at = |controller: &str| Some(root.join(controller));
    let mounts = Mounts {
        cpu: at("cpu"),
        cpuacct: at("cpuacct"),
        memory: at("memory"),
        pids: at("pids"),
        blkio: at("blkio"),
        unified: at("unified"),
    };
    let cgroup = "/kubepods/burstable/podu1/c1";
    let inside = |controller: &str| root.join(controller).join(&cgroup[1..]);
    folder(
        &inside("cpu"),
        &[
            ("cpu.shares", "102\n"),
            ("cpu.cfs_period_us", "100000\n"),
            ("cpu.cfs_quota_us", "-1\n"),
            ("cpu.stat", "nr_periods 1\nnr_throttled 1\nthrottled_time 5\n"),
            ("cgroup.procs", "5\n"),
        ],
    );
    folder(&inside("cpuacct"), &[("cpuacct.usage", "123456789\n"), ("cpuacct.stat", "user 7\nsystem 3\n")]);
    folder(
        &inside("memory"),
        &[
            ("memory.usage_in_bytes", "1000000\n"),
            ("memory.limit_in_bytes", "4000000\n"),
            ("memory.memsw.limit_in_bytes", "6000000\n"),
            ("memory.soft_limit_in_bytes", "9223372036854771712\n"),
            ("memory.max_usage_in_bytes", "2000000\n"),
            ("memory.kmem.usage_in_bytes", "300\n"),
            ("memory.failcnt", "6\n"),
            ("memory.stat", "pgfault 9\ntotal_rss 8\ntotal_swap 4096\ntotal_inactive_file 100000\n"),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
        ],
    );
    folder(&inside("pids"), &[("pids.current", "4\n"), ("pids.max", "1024\n")]);
    folder(
        &inside("blkio"),
        &[
            ("blkio.bfq.io_service_bytes_recursive", "Total 0\n"),
            ("blkio.throttle.io_service_bytes_recursive", "8:0 Read 10\n8:0 Write 20\n8:0 Total 30\nTotal 30\n"),
            ("blkio.throttle.io_serviced_recursive", "8:0 Read 1\n8:0 Write 2\n8:0 Total 3\nTotal 3\n"),
        ],
    );
    folder(&inside("unified"), &[("cpu.pressure", PRESSURE), ("memory.pressure", PRESSURE), ("io.pressure", PRESSURE)]);
    let hierarchy = Hierarchy::V1(mounts);
    let mut reader = Reader::default();
    let usage = hierarchy.usage(&mut reader, cgroup);
    assert_eq!((usage.cpu_nanoseconds, usage.tasks), (Some(123_456_789), Some(4)));
    assert_eq!(usage.memory.unwrap().working_set, 900_000);
    assert_eq!(usage.swap, Some(Swap { usage: 4096, limit: Some(2_000_000) }), "what swap may take beside memory");
    assert_eq!(usage.pressure.memory.unwrap().full.total, 1_000_000, "of v2's tree beside them");
    let detail = hierarchy.detail(&mut reader, cgroup);
    assert_eq!((detail.cpu.quota, detail.cpu.shares, detail.cpu.cfs_periods), (None, Some(102), 0));
    assert_eq!((detail.cpu.user, detail.cpu.system), (Some(70_000_000), Some(30_000_000)));
    assert_eq!(
        detail.memory,
        MemoryDetail {
            max_usage: Some(2_000_000),
            kernel: Some(300),
            failures: Some(6),
            reservation: None,
            swap_limit: Some(6_000_000)
        }
    );
    assert_eq!((detail.oom_kills, detail.threads_max), (Some(2), Some(1024)));
    assert_eq!((detail.io[0].read_bytes, detail.io[0].writes), (Some(10), Some(2)), "the first that counts anything");
    assert_eq!(hierarchy.processes(&mut reader, cgroup), Some(vec![5]));
}

#[test]
fn this_machine_has_usage() {
    let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let hierarchy = Hierarchy::from_mountinfo(mountinfo.as_bytes()).unwrap();
    let usage = hierarchy.machine(&mut Reader::default());
    let memory = usage.memory.unwrap();
    assert!(usage.cpu_nanoseconds.is_some_and(|cpu| cpu > 0));
    assert!(memory.working_set > 0 && memory.working_set <= memory.limit.unwrap());
    assert!(usage.swap.is_some());
    assert_eq!(hierarchy.usage(&mut Reader::default(), "/no/such/cgroup"), Usage::default());
    assert!(!hierarchy.exists("/no/such/cgroup") && hierarchy.exists("/"));
}

proptest! {
    #[test]
    fn no_mount_table_makes_it_panic(text in ".{0,300}") {
        let _ = Hierarchy::from_mountinfo(text.as_bytes());
    }
}
