use std::path::Path;

use bulkhead_config::{NodeConfig, Users};
use bulkhead_ipc::common::PrivilegesReply;
use bulkhead_privileges::{Fencing, Program, User};
use bulkhead_sys::process::{PrivilegeReport, short_name};
use bulkhead_types::Process as Daemon;

use super::compare::Comparison;
use super::facts::{self, Context};
use super::{Shown, brief, detail, seen, shown};

fn context(granted: &[&str]) -> Context {
    let mut config = NodeConfig::for_tests(Path::new("/var/lib/kubelet"));
    config.users = Users::block(60706);
    Context {
        config: Some(config),
        granted: Some(granted.iter().map(|one| (*one).to_owned()).collect()),
        by_launcher: true,
    }
}

/// What the map says, word for word.
fn as_mapped(context: &Context, daemon: Daemon) -> seen::Process {
    let config = context.config.as_ref().unwrap();
    let program = Program::Daemon(daemon);
    let row = program.row();
    let capabilities: Vec<String> = row.capabilities.iter().map(|one| short_name(*one)).collect();
    let listeners = row.listeners(config);
    let listening = |one: &String| format!("{} (listening)", one.replace("tcp:", "tcp:0.0.0.0:"));
    let sockets: Vec<String> = listeners.iter().map(listening).collect();
    let kernel = PrivilegeReport {
        pid: 7,
        uid: config.users.uid(daemon),
        gid: config.users.primary_gid(daemon),
        groups: vec![config.users.gid],
        effective: capabilities.clone(),
        permitted: capabilities.clone(),
        bounding: capabilities,
        no_new_privs: true,
        seccomp_mode: 2,
        seccomp_filters: Some(2),
        core_limit: Some(0),
        oom_score_adj: Some(row.oom_score_adj.unwrap_or(-999)),
        sockets: Some(sockets.clone()),
        kept_over_exec: Some(Vec::new()),
        dumpable: (row.user != User::Root).then_some(false),
        ..PrivilegeReport::default()
    };
    let landlock = match row.fencing(Some(config)) {
        Fencing::Fence { fence, .. } => fence.words(),
        Fencing::None(_) => Vec::new(),
    };
    let says = PrivilegesReply {
        pid: 7,
        sockets,
        landlock,
        denied: row.denied(Some(config)).iter().map(ToString::to_string).collect(),
        families: row.families(Some(config)).iter().map(ToString::to_string).collect(),
        securebits: Some(if row.user == User::Root { 0xec } else { 0xef }),
        ..PrivilegesReply::default()
    };
    seen::Process {
        program,
        pids: vec![7],
        kernel: Some(kernel),
        filters_above: Some(1),
        says: Some(says),
        silence: None,
    }
}

const ALL: [&str; 8] =
    ["SYS_ADMIN", "CHOWN", "FOWNER", "FSETID", "DAC_OVERRIDE", "KILL", "SYS_RESOURCE", "DAC_READ_SEARCH"];

fn verdict(context: &Context, process: &seen::Process) -> (Comparison, Vec<String>) {
    let facts = facts::of(context, process);
    let worst = Comparison::of_all(facts.iter().map(|fact| fact.verdict));
    let which = facts.into_iter().filter(|fact| fact.verdict == worst).map(|fact| fact.what).collect();
    (worst, which)
}

#[test]
fn a_process_with_the_privileges_of_its_row_is_shown_as_same() {
    let context = context(&ALL);
    for daemon in Daemon::ALL {
        let (worst, which) = verdict(&context, &as_mapped(&context, daemon));
        assert_eq!(worst, Comparison::Same, "{daemon}: {which:?}");
    }
}

type Departure<T> = fn(&mut T);
type Change = Departure<seen::Process>;

#[test]
fn each_departure_is_noticed() {
    let context = context(&ALL);
    let kernel: [(&str, Departure<PrivilegeReport>); 17] = [
        ("user", |k| k.uid += 1),
        ("group", |k| k.gid = 0),
        ("groups", |k| k.groups.push(0)),
        ("groups", |k| k.groups.clear()),
        ("effective", |k| k.effective.push("NET_RAW".into())),
        ("permitted", |k| k.permitted.push("SYS_PTRACE".into())),
        ("inheritable", |k| k.inheritable.push("KILL".into())),
        ("ambient", |k| k.ambient.push("KILL".into())),
        ("bounding", |k| k.bounding.push("SETUID".into())),
        ("no new privileges", |k| k.no_new_privs = false),
        ("filter", |k| k.seccomp_mode = 0),
        ("filter", |k| k.seccomp_filters = Some(1)),
        ("dumpable", |k| k.dumpable = Some(true)),
        ("largest core file", |k| k.core_limit = Some(u64::MAX)),
        ("oom score", |k| k.oom_score_adj = Some(0)),
        ("descriptors kept over exec", |k| k.kept_over_exec = Some(vec![5])),
        ("listens on", |k| k.sockets.as_mut().unwrap().push("tcp:0.0.0.0:4444 (listening)".into())),
    ];
    for (what, change) in kernel {
        let mut process = as_mapped(&context, Daemon::Syncd);
        change(process.kernel.as_mut().unwrap());
        assert_eq!(verdict(&context, &process), (Comparison::Differs, vec![what.to_owned()]));
    }
    let said: [(&str, Departure<PrivilegesReply>); 7] = [
        ("calls denied", |s| drop(s.denied.pop())),
        ("sockets of", |s| s.families.push("AF_PACKET".into())),
        ("landlock", |s| drop(s.landlock.remove(0))),
        ("landlock", |s| s.landlock.push("read-write /".into())),
        ("landlock", |s| s.landlock[0] = "read-file /".into()),
        ("securebits", |s| s.securebits = Some(0)),
        ("its own word", |s| s.pid = 8),
    ];
    for (what, change) in said {
        let mut process = as_mapped(&context, Daemon::Syncd);
        change(process.says.as_mut().unwrap());
        let (worst, which) = verdict(&context, &process);
        assert!(worst == Comparison::Differs && which.iter().all(|one| one == what), "{what}: {worst:?} {which:?}");
    }
}

#[test]
fn what_the_machine_withholds_is_no_difference_and_what_somebody_else_took_is() {
    let less = |process: &mut seen::Process| {
        let kernel = process.kernel.as_mut().unwrap();
        for set in [&mut kernel.effective, &mut kernel.permitted, &mut kernel.bounding] {
            set.retain(|cap| cap != "KILL");
        }
    };
    let plenty = context(&ALL);
    let mut process = as_mapped(&plenty, Daemon::Volnetd);
    less(&mut process);
    assert_eq!(verdict(&plenty, &process).0, Comparison::Differs);
    let scarce = context(&["SYS_ADMIN"]);
    let mut process = as_mapped(&scarce, Daemon::Volnetd);
    less(&mut process);
    process.kernel.as_mut().unwrap().oom_score_adj = Some(0);
    let (worst, which) = verdict(&scarce, &process);
    assert_eq!((worst, which.len()), (Comparison::Withheld, 4), "{which:?}");
    let unknown = Context { granted: None, ..context(&[]) };
    assert_eq!(verdict(&unknown, &process).0, Comparison::Differs, "the score differs, the sets are unknown");
}

#[test]
fn what_cannot_be_seen_is_no_success() {
    let context = context(&ALL);
    let changes: [Change; 5] = [
        |p| p.kernel = None,
        |p| (p.says, p.silence) = (None, Some("no access".into())),
        |p| p.kernel.as_mut().unwrap().kept_over_exec = None,
        |p| p.kernel.as_mut().unwrap().core_limit = None,
        |p| p.kernel.as_mut().unwrap().oom_score_adj = None,
    ];
    for change in changes {
        let mut process = as_mapped(&context, Daemon::Syncd);
        change(&mut process);
        assert_eq!(verdict(&context, &process).0, Comparison::Unknown);
    }
    let blind = Context { config: None, ..context };
    let process = as_mapped(&self::context(&ALL), Daemon::Statusd);
    assert_eq!(verdict(&blind, &process).0, Comparison::Unknown);
}

#[test]
fn a_socket_that_is_bound_when_it_is_asked_for_may_be_missing() {
    let context = context(&ALL);
    for daemon in [Daemon::Syncd, Daemon::Volnetd] {
        let mut process = as_mapped(&context, daemon);
        let sockets = process.kernel.as_mut().unwrap().sockets.as_mut().unwrap();
        sockets.retain(|socket| !socket.contains("pod-resources"));
        assert_ne!(verdict(&context, &process).0, Comparison::Differs, "{daemon}");
        let sockets = process.kernel.as_mut().unwrap().sockets.as_mut().unwrap();
        sockets.remove(0);
        assert_eq!(verdict(&context, &process).0, Comparison::Differs, "{daemon}: its own socket");
    }
    let mut process = as_mapped(&context, Daemon::Evictiond);
    let socket = "unix:/var/lib/kubelet/pod-resources/kubelet.sock (listening)".to_owned();
    process.kernel.as_mut().unwrap().sockets.as_mut().unwrap().push(socket);
    assert_eq!(verdict(&context, &process).0, Comparison::Differs, "not its own");
}

#[test]
fn a_process_that_is_down_or_there_twice_is_a_difference() {
    let context = context(&ALL);
    for pids in [vec![], vec![7, 9]] {
        let mut process = as_mapped(&context, Daemon::Evictiond);
        process.pids = pids;
        assert_eq!(verdict(&context, &process).0, Comparison::Differs);
    }
}

#[test]
fn a_kernel_s_old_landlock_is_the_machine_s_doing() {
    let context = context(&ALL);
    let mut process = as_mapped(&context, Daemon::Statusd);
    let says = process.says.as_mut().unwrap();
    says.landlock.retain(|rule| !rule.starts_with("signals"));
    says.landlock_left_out.push("Landlock version 4 of this kernel lets signals out (6 would not)".into());
    assert_eq!(verdict(&context, &process).0, Comparison::Withheld);
    // A folder that is not there needs no rule.
    let mut process = as_mapped(&context, Daemon::Statusd);
    let says = process.says.as_mut().unwrap();
    says.landlock.retain(|rule| !rule.ends_with("/nix/store"));
    says.landlock_left_out.push("not there: /nix/store".into());
    assert_eq!(verdict(&context, &process).0, Comparison::Same);
}

#[test]
fn side_by_side() {
    let context = context(&ALL);
    let mut process = as_mapped(&context, Daemon::Evictiond);
    process.kernel.as_mut().unwrap().effective.push("NET_RAW".into());
    let all: Vec<Shown> = vec![shown(&context, &process)];
    let text = detail(&all);
    assert!(text.starts_with("kubelet-evictiond (pid 7): DIFFERS from the map\n"), "{text}");
    let line = text.lines().find(|line| line.contains("effective")).unwrap();
    assert!(line.trim_start().starts_with("!!") && line.contains("too many: NET_RAW"), "{line}");
    assert!(text.contains("serves kubelet-evictiond.sock to kubelet-statusd, operator"), "{text}");
    assert!(
        text.ends_with(
            "1 different from the map (marked !!), 0 not to be seen (??), 0 withheld by this machine (--)\n"
        )
    );
}

#[test]
fn a_line_says_what_a_process_may_do() {
    let context = context(&ALL);
    let line = |process: &seen::Process| {
        let text = brief::table(&[shown(&context, process)]);
        let columns: Vec<&str> = text.lines().nth(1).unwrap_or_default().split("   ").map(str::trim).collect();
        let columns: Vec<String> = columns.into_iter().filter(|text| !text.is_empty()).map(str::to_owned).collect();
        (columns, text)
    };
    let (columns, text) = line(&as_mapped(&context, Daemon::Volnetd));
    assert_eq!(columns[..4], ["kubelet-volnetd", "7", "root", "SYS_ADMIN CHOWN FOWNER FSETID DAC_OVERRIDE KILL"]);
    assert_eq!(columns[4..], ["unix", "any that its user may open", "denies 15", "yes"]);
    assert_eq!(text.lines().count(), 2, "nothing to add: {text}");
    let (columns, _) = line(&as_mapped(&context, Daemon::Evictiond));
    assert_eq!(columns[3], "none");
    assert_eq!(columns[5], "reads /proc /sys/fs/cgroup; writes /var/lib/kubelet/root/bulkhead/evictiond");
    let (columns, _) = line(&as_mapped(&context, Daemon::Statusd));
    assert_eq!(columns[3..5], ["none", "unix, IP; TCP 10250"]);
    assert!(columns[5].contains("reads /etc /proc ") && columns[5].contains("; writes /var/lib/"), "{columns:?}");

    // Of those that cannot be asked what is declared is shown.
    for (program, network, files) in [
        (Program::Walker, "none", "lists /var/lib/kubelet/root/pods /var/lib/kubelet/pod-logs"),
        (Program::Launcher, "unix, IP, netfilter", "any that its user may open"),
        (
            Program::Journal,
            "unix",
            "reads /etc /proc /sys /run /var/log /var/lib/systemd; runs /usr /bin /lib /lib64 /nix/store",
        ),
        (
            Program::Iptables,
            "unix, raw IP, netfilter",
            "reads /etc/ld.so.cache /etc/nsswitch.conf /etc/protocols /etc/services /run/xtables.lock; runs /usr /bin /sbin \
             /lib /lib64 /nix/store",
        ),
        (
            Program::Disks,
            "unix",
            "lists /; reads /etc/ld.so.cache /etc/mke2fs.conf /etc/e2fsck.conf /etc/blkid.conf /etc/fstab /proc /sys; runs /usr \
             /bin /sbin /lib /lib64 /nix/store",
        ),
        (Program::Flexvolume, "unix, IP", "any that its user may open"),
    ] {
        let (columns, _) = line(&seen::Process { program, says: None, ..as_mapped(&context, Daemon::Syncd) });
        assert_eq!(columns[4..6], [network, files]);
    }

    let mut process = as_mapped(&context, Daemon::Syncd);
    process.kernel.as_mut().unwrap().effective.push("NET_RAW".into());
    let (columns, text) = line(&process);
    assert_eq!(columns.last().unwrap(), "NO: effective: NET_RAW; too many: NET_RAW");
    assert!(text.contains("--detail"), "{text}");
}
