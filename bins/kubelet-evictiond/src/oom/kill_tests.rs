use super::*;
use crate::oom::record;
use proptest::prelude::*;

/// All kills that these lines of the kernel tell of.
fn kills(lines: &[&str]) -> Vec<Kill> {
    let mut detector = Detector::default();
    let feed =
        |(sequence, text): (usize, &&str)| detector.feed(Record { sequence: sequence as u64, by_kernel: true, text });
    lines.iter().enumerate().filter_map(feed).collect()
}

fn group(path: &str) -> Scope {
    Scope::Group(Some(path.to_owned()))
}

fn only(text: &str) -> Option<(Scope, String, u32)> {
    let mut kills = kills(&[text]);
    assert!(kills.len() <= 1);
    kills.pop().map(|kill| (kill.scope, kill.process, kill.pid))
}

const HEAD: &str = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c1,mems_allowed=0";

#[test]
fn a_group_that_ran_out_on_linux_6() {
    let found = kills(&[
        "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "CPU: 1 UID: 0 PID: 10771 Comm: python3 Not tainted 6.18.44 #1 PREEMPT(none)",
        "Call Trace:",
        " <TASK>",
        "memory: usage 19528kB, limit 19528kB, failcnt 39",
        "Memory cgroup stats for /oomtest:",
        "Tasks state (memory values in pages):",
        "[  pid  ]   uid  tgid total_vm      rss rss_anon rss_file rss_shmem pgtables_bytes swapents oom_score_adj name",
        "[  10771]     0 10771     9024     7512     6587      925         0   114688        0             0 python3",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/oomtest,task_memcg=/oomtest,task=python3,pid=10771,uid=0",
        "Memory cgroup out of memory: Killed process 10771 (python3) total-vm:36096kB, anon-rss:26348kB, file-rss:3700kB, shmem-rss:0kB, UID:0 pgtables:112kB oom_score_adj:0",
    ]);
    assert_eq!(found, [Kill { sequence: 9, process: "python3".into(), pid: 10771, scope: group("/oomtest") }]);
}

#[test]
fn a_group_whose_processes_all_end_is_one_kill() {
    let found = kills(&[
        "stress invoked oom-killer: gfp_mask=0x100cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=1000",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=cri-containerd-ab.scope,mems_allowed=0,oom_memcg=/kubepods.slice/kubepods-pod1.slice,task_memcg=/kubepods.slice/kubepods-pod1.slice/cri-containerd-ab.scope,task=stress,pid=5,uid=1000",
        "Memory cgroup out of memory: Killed process 5 (stress) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:8kB oom_score_adj:1000",
        "Tasks in /kubepods.slice/kubepods-pod1.slice/cri-containerd-ab.scope are going to be killed due to memory.oom.group set",
        "Memory cgroup out of memory: Killed process 4 (sh) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:8kB oom_score_adj:1000",
        "Memory cgroup out of memory: Killed process 5 (stress) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:8kB oom_score_adj:1000",
        "oom_reaper: reaped process 5 (stress), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    ]);
    let path = "/kubepods.slice/kubepods-pod1.slice/cri-containerd-ab.scope";
    assert_eq!(found, [Kill { sequence: 1, process: "stress".into(), pid: 5, scope: group(path) }]);
}

#[test]
fn the_machine_ran_out() {
    let found = kills(&[
        "systemd invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0",
        "Mem-Info:",
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=init.scope,mems_allowed=0,global_oom,task_memcg=/kubepods/besteffort/podu/c,task=dd,pid=77,uid=0",
        "Out of memory: Killed process 77 (dd) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:8kB oom_score_adj:1000",
    ]);
    assert_eq!(found, [Kill { sequence: 2, process: "dd".into(), pid: 77, scope: Scope::System }]);
    let in_pieces = kills(&[
        "kthreadd invoked oom-killer: gfp_mask=0x0, order=0, oom_score_adj=0",
        "oom-kill:constraint=CONSTRAINT_CPUSET,nodemask=0-1",
        ",cpuset=/,mems_allowed=0-1,global_oom,task_memcg=/,task=a,pid=1,uid=2",
        "Out of memory (oom_kill_allocating_task): Killed process 8 (a) total-vm:1kB",
        "Out of memory: Killed process 9 (b) total-vm:1kB",
    ]);
    assert_eq!(in_pieces, [Kill { sequence: 3, process: "a".into(), pid: 8, scope: Scope::System }]);
    let of_a_group =
        kills(&["x invoked oom-killer: ", "Memory cgroup out of memory: Killed process 8 (a) total-vm:1kB"]);
    assert_eq!(of_a_group[0].scope, Scope::Group(None), "in pieces: not the machine, whosever it is");
}

#[test]
fn older_kernels() {
    let found = kills(&[
        "ruby invoked oom-killer: gfp_mask=0x201da, order=0, oom_score_adj=0",
        "Task in /docker/0a/b killed as a result of limit of /docker/0a",
        "Memory cgroup out of memory: Kill process 19667 (evil-program2) score 1000 or sacrifice child",
        "Killed process 19667 (evil-program2) total-vm:1460016kB, anon-rss:1414008kB, file-rss:4kB",
        "memorymonster invoked oom-killer: gfp_mask=0xd0, order=0, oom_score_adj=0",
        "Out of memory: Kill process 13536 (memorymonster) score 1000 or sacrifice child",
        "Killed process 13536 (memorymonster), UID 1000, total-vm:1460016kB, anon-rss:1414008kB, file-rss:4kB",
    ]);
    let expected = [
        Kill { sequence: 3, process: "evil-program2".into(), pid: 19667, scope: group("/docker/0a/b") },
        Kill { sequence: 6, process: "memorymonster".into(), pid: 13536, scope: Scope::System },
    ];
    assert_eq!(found, expected);
}

#[test]
fn hostile_names_of_processes() {
    for (name, raw) in [
        ("a,pid=1,uid=2", 13),
        ("x,task=y", 8),
        ("a\\x0ab", 3),
        ("\\x5cx41", 4),
        ("", 0),
        (") total-vm:", 11),
        ("a (b)), UID 1", 13),
    ] {
        assert_eq!(unescape_bytes(name).len(), raw);
        let line = format!("{HEAD},oom_memcg=/k/p,task_memcg=/k/p/c,task={name},pid=12,uid=34");
        assert_eq!(only(&line), Some((group("/k/p/c"), name.to_owned(), 12)), "{name}");
        let last = format!("Out of memory: Killed process 12 ({name}) total-vm:1kB, anon-rss:1kB");
        let found = kills(&["x invoked oom-killer: y", &last]);
        assert_eq!((found[0].process.as_str(), found[0].pid), (name, 12));
    }
    let long = format!("{HEAD},oom_memcg=/k,task_memcg=/k,task=sixteen-letters-,pid=12,uid=34");
    assert_eq!(only(&long), None, "no name of a process");
}

#[test]
fn hostile_names_of_groups_lead_to_nobody_else() {
    // What a container in /k/p/c may make below its own group, and a cpuset of any name without a slash.
    for (limit, task) in [
        ("/k/p/c/e,task_memcg=/k/q/d", "/k/p/c/e,task_memcg=/k/q/d"),
        ("/k/p/c", "/k/p/c/e,task_memcg=/k/q/d"),
        ("/k/p/c/e,global_oom,task_memcg=/k/q/d", "/k/p/c/e,global_oom,task_memcg=/k/q/d/x"),
        ("/k/p/c/,oom_memcg=/k/q,task_memcg=/k/q/d", "/k/p/c/,oom_memcg=/k/q,task_memcg=/k/q/d"),
        ("/k/p/c", "/k/p/c/,task=a,pid=1,uid=2"),
        ("/k/p/c", "/k/p/c/,task=abcdefghijklmnopq"),
        ("/k/p/c/,task=a,pid=1,uid=2", "/k/p/c/,task=a,pid=1,uid=2"),
        ("/k/p/c", "/k/p/c/x invoked oom-killer: "),
    ] {
        let line = format!("{HEAD},oom_memcg={limit},task_memcg={task},task=sh,pid=12,uid=34");
        let Some((Scope::Group(Some(found)), _, 12)) = only(&line) else { panic!("{line}: {:?}", only(&line)) };
        assert!(found == "/k/p/c" || found.starts_with("/k/p/c/"), "{line}: {found}");
    }
    for cpuset in [
        "e,mems_allowed=0,global_oom,task_memcg=",
        "e,oom_memcg=,task_memcg=",
        "e,task=x,pid=1,uid=2",
        "x invoked oom-killer: ",
    ] {
        let line = format!(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={cpuset},mems_allowed=0,oom_memcg=/k/p/c,task_memcg=/k/p/c,task=sh,pid=12,uid=34"
        );
        assert_eq!(only(&line), Some((group("/k/p/c"), "sh".to_owned(), 12)), "{line}");
    }
    let of_an_older_kernel = kills(&[
        "sh invoked oom-killer: gfp_mask=0x201da, order=0, oom_score_adj=0",
        "Task in /k/x invoked oom-killer:  killed as a result of limit of /k",
        "Killed process 12 (sh) total-vm:1kB, anon-rss:1kB",
    ]);
    assert_eq!(of_an_older_kernel[0].scope, group("/k/x invoked oom-killer: "));
    assert_eq!(only(&format!("{HEAD},oom_memcg=/k/p,task_memcg=/k/other,task=sh,pid=1,uid=2")), None);
    assert_eq!(only(&format!("{HEAD},oom_memcg=/,task_memcg=/k\\x0ax,task=sh,pid=1,uid=2")).unwrap().0, group("/k\nx"));
}

#[test]
fn whoever_else_writes_is_not_believed() {
    let mut detector = Detector::default();
    let lines = [
        "12,1,1,-;dd invoked oom-killer: gfp_mask=0x0, order=0, oom_score_adj=0\n",
        "12,2,1,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/,task=dd,pid=1,uid=0\n",
        "12,3,1,-;Out of memory: Killed process 1 (dd) total-vm:1kB\n",
        // The kernel's, and not where it would stand.
        "6,4,1,-;audit: oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/,task=dd,pid=1,uid=0\n",
        "6,5,1,-;Out of memory: Killed process 1 (dd) total-vm:1kB\n",
    ];
    for line in lines {
        assert_eq!(detector.feed(record::parse(line.as_bytes()).unwrap()), None, "{line}");
    }
}

proptest! {
    #[test]
    fn whatever_comes_names_what_stands_there(lines in proptest::collection::vec(".{0,200}", 0..6)) {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let mut all = vec!["x invoked oom-killer: y"];
        all.extend(lines);
        for kill in kills(&all) {
            prop_assert!(all.iter().any(|line| line.contains(&kill.process)));
        }
    }

    /// A container's own groups and processes, however they are named, count for it and for no other.
    #[test]
    fn names_of_a_container_lead_to_it(
        below in "(/(,task_memcg=|,oom_memcg=|,global_oom|,task=|,pid=1|,uid=2|k|q|d|[a-c,=]){0,4}){0,4}",
        depth in 0_usize..3,
        name in "[a-c,=()]{0,5}|,task=[a-c]{0,5}|,pid=[0-9],uid=[0-9]",
    ) {
        let below: String = below.split('/').filter(|part| !part.is_empty()).map(|part| format!("/{part}")).collect();
        let task = format!("/k/p/c{below}");
        // Any of the groups around it may have been the one that ran out.
        let parts: Vec<&str> = task.split('/').collect();
        let limit = parts[..parts.len() - depth.min(parts.len() - 3)].join("/");
        let line = format!("{HEAD},oom_memcg={limit},task_memcg={task},task={name},pid=12,uid=34");
        let Some((Scope::Group(Some(found)), _, pid)) = only(&line) else {
            return Err(TestCaseError::fail(format!("{line}: {:?}", only(&line))));
        };
        prop_assert_eq!(pid, 12);
        prop_assert!(found == "/k/p/c" || found.starts_with("/k/p/c/"), "{}: {}", line, found);
    }
}
