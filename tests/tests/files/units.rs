//! The units as files: systemd understands them, they are as tight as promised, every line that tightens says why, and
//! they give each process what the privilege map gives it. No machine is started; tests/units_live.rs does that.

#![allow(clippy::unwrap_used, reason = "a test's panic is its message")]

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use bulkhead_privileges::{Program, User};
use bulkhead_testkit::build::workspace_root;

/// The services and the most exposure that `systemd-analyze security` may find, in tenths.
const SERVICES: [(&str, Program, u32); 9] = [
    ("kubelet-volnetd", Program::Daemon(bulkhead_types::Process::Volnetd), 50),
    ("kubelet-syncd", Program::Daemon(bulkhead_types::Process::Syncd), 15),
    ("kubelet-evictiond", Program::Daemon(bulkhead_types::Process::Evictiond), 15),
    ("kubelet-statusd", Program::Daemon(bulkhead_types::Process::Statusd), 15),
    ("kubelet-walker", Program::Walker, 15),
    ("kubelet-journal", Program::Journal, 15),
    ("kubelet-iptables", Program::Iptables, 20),
    ("kubelet-disks", Program::Disks, 20),
    ("kubelet-flexvolume", Program::Flexvolume, 55),
];

/// Directives that say what a process may not do: each must come with its reason.
const HARDENING: [&str; 37] = [
    "AmbientCapabilities",
    "CapabilityBoundingSet",
    "DeviceAllow",
    "DevicePolicy",
    "IPAddressAllow",
    "IPAddressDeny",
    "InaccessiblePaths",
    "KeyringMode",
    "LimitCORE",
    "LockPersonality",
    "MemoryDenyWriteExecute",
    "NoNewPrivileges",
    "PrivateDevices",
    "PrivateMounts",
    "PrivateNetwork",
    "PrivateTmp",
    "ProcSubset",
    "ProtectClock",
    "ProtectControlGroups",
    "ProtectHome",
    "ProtectHostname",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "ProtectProc",
    "ProtectSystem",
    "RemoveIPC",
    "RestrictAddressFamilies",
    "RestrictNamespaces",
    "RestrictRealtime",
    "RestrictSUIDSGID",
    "SecureBits",
    "SystemCallArchitectures",
    "SystemCallErrorNumber",
    "SystemCallFilter",
    "TasksMax",
    "UMask",
];

/// What would put kubelet-volnetd into a mount namespace of its own (systemd.exec(5)), where the runtime and the pods would
/// not see what it mounts; and what else breaks it.
const NOT_FOR_VOLNETD: [&str; 24] = [
    "BindPaths",
    "BindReadOnlyPaths",
    "DynamicUser",
    "InaccessiblePaths",
    "MountFlags",
    "PrivateDevices",
    "PrivateMounts",
    "PrivateTmp",
    "ProcSubset",
    "ProtectControlGroups",
    "ProtectHome",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "ProtectProc",
    "ProtectSystem",
    "ReadOnlyPaths",
    "ReadWritePaths",
    "RootDirectory",
    "TemporaryFileSystem",
    // fsGroup sets the group's bit on folders of volumes.
    "RestrictSUIDSGID",
    // Loop devices, formatting, iSCSI; ProtectClock brings a list of devices with it.
    "DevicePolicy",
    "DeviceAllow",
    "ProtectClock",
];

/// Targets of the machine, in systemd's own order at a boot (bootup(7)).
const TARGETS: [(&str, &str); 8] = [
    ("basic", "Requires=sysinit.target\nWants=sockets.target\nAfter=sysinit.target sockets.target\n"),
    ("multi-user", "Requires=basic.target\nAfter=basic.target\nWants=kubelet.service\n"),
    ("network-online", ""),
    ("paths", ""),
    ("shutdown", ""),
    ("slices", ""),
    ("sockets", ""),
    ("sysinit", ""),
];

fn folder() -> PathBuf {
    workspace_root().join("systemd")
}

fn units() -> Vec<(String, String)> {
    let mut units = Vec::new();
    for entry in std::fs::read_dir(folder()).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if !name.ends_with(".md") {
            units.push((name, std::fs::read_to_string(entry.path()).unwrap()));
        }
    }
    units.sort();
    units
}

fn unit(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap()
}

/// Values of a directive, one for each line that has it.
fn values<'a>(unit: &'a str, directive: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(directive)?.strip_prefix('=')).collect()
}

fn directives(unit: &str) -> BTreeSet<&str> {
    unit.lines().filter(|line| !line.starts_with('#')).filter_map(|line| Some(line.split_once('=')?.0)).collect()
}

/// A file tree in which the units are installed, with what they refer to.
fn installed() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let system = root.path().join("usr/lib/systemd/system");
    std::fs::create_dir_all(&system).unwrap();
    for (name, text) in units() {
        std::fs::write(system.join(name), text).unwrap();
    }
    for (target, order) in TARGETS {
        let text = format!("[Unit]\nDescription=of the machine\n{order}");
        std::fs::write(system.join(format!("{target}.target")), text).unwrap();
    }
    let program = |path: &str| {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    program("usr/bin/kubelet");
    program("bin/rm");
    for (service, _, _) in SERVICES {
        program(&format!("usr/libexec/bulkhead/{service}"));
    }
    root
}

fn analyze(root: &Path, arguments: &[&str]) -> (bool, String) {
    let output = Command::new("systemd-analyze")
        .arg(arguments[0])
        .arg(format!("--root={}", root.display()))
        .args(&arguments[1..])
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (output.status.success(), text)
}

#[test]
fn systemd_understands_every_line() {
    bulkhead_testkit::machine::ensure_installed_for_tests(&|_: &str| ()).unwrap();
    let root = installed();
    let system = root.path().join("usr/lib/systemd/system");
    let paths: Vec<String> = units().into_iter().map(|(name, _)| system.join(name).display().to_string()).collect();
    let mut arguments = vec!["verify", "--man=no"];
    arguments.extend(paths.iter().map(String::as_str));
    let (good, said) = analyze(root.path(), &arguments);
    assert!(good && said.trim().is_empty(), "{said}");
}

/// Drop-ins that others write for the Kubernetes package's unit: of the project's guide to an etcd cluster of kubeadm's, of
/// its page about the watchdog, and of those who have it tell of its readiness.
#[test]
fn drop_ins_for_the_kubernetes_unit_fit_ours() {
    bulkhead_testkit::machine::ensure_installed_for_tests(&|_: &str| ()).unwrap();
    let root = installed();
    let service = root.path().join("usr/lib/systemd/system/kubelet.service").display().to_string();
    let folder = root.path().join("etc/systemd/system/kubelet.service.d");
    std::fs::create_dir_all(&folder).unwrap();
    for lines in [
        "ExecStart=\nExecStart=/usr/bin/kubelet --config=/etc/systemd/system/kubelet.service.d/kubelet.conf\nRestart=always\n",
        "WatchdogSec=30s\nRestart=on-failure\n",
        "Type=notify\nRestart=always\n",
        "CPUAccounting=true\nMemoryAccounting=true\n",
    ] {
        std::fs::write(folder.join("20-others.conf"), format!("[Service]\n{lines}")).unwrap();
        let (good, said) = analyze(root.path(), &["verify", "--man=no", &service]);
        assert!(good && said.trim().is_empty(), "{lines}\n{said}");
    }
}

#[test]
fn at_a_boot_nothing_waits_for_itself() {
    bulkhead_testkit::machine::ensure_installed_for_tests(&|_: &str| ()).unwrap();
    let root = installed();
    let target = root.path().join("usr/lib/systemd/system/multi-user.target");
    let (good, said) = analyze(root.path(), &["verify", "--man=no", &target.display().to_string()]);
    assert!(good && said.trim().is_empty(), "{said}");
}

#[test]
fn no_process_is_more_exposed_than_promised() {
    bulkhead_testkit::machine::ensure_installed_for_tests(&|_: &str| ()).unwrap();
    let root = installed();
    for (service, _, tenths) in SERVICES {
        let threshold = format!("--threshold={tenths}");
        let (good, said) =
            analyze(root.path(), &["security", "--offline=true", &threshold, &format!("{service}.service")]);
        let open: Vec<&str> = said.lines().filter(|line| !line.starts_with('✓')).collect();
        assert!(good, "{service} is above {tenths} tenths:\n{}", open.join("\n"));
    }
}

#[test]
fn every_line_that_tightens_says_why() {
    for (name, text) in units() {
        let mut explained = false;
        for line in text.lines() {
            if line.starts_with('#') {
                explained = true;
                continue;
            }
            let Some((directive, _)) = line.split_once('=') else {
                explained = false;
                continue;
            };
            // Lines under one comment have one reason.
            if HARDENING.contains(&directive) {
                assert!(explained, "{name}: {line} has no reason above it");
            } else {
                explained = false;
            }
        }
    }
}

#[test]
fn units_and_privilege_map_say_the_same() {
    for (service, program, _) in SERVICES {
        let text = unit(&format!("{service}.service"));
        let row = program.row();
        let set = |directive: &str| -> BTreeSet<String> {
            values(&text, directive).iter().flat_map(|value| value.split_whitespace()).map(str::to_owned).collect()
        };
        let capabilities: BTreeSet<String> = row.capabilities.iter().map(ToString::to_string).collect();
        assert_eq!(set("CapabilityBoundingSet"), capabilities, "{service}: what it may ever hold");
        assert!(values(&text, "CapabilityBoundingSet").len() == 1, "{service}");
        let mut families: BTreeSet<String> = row.families(None).iter().map(|family| family.name().to_owned()).collect();
        if program == Program::Walker {
            // The one by which it tells systemd its state is made before its own filter.
            families.insert("AF_UNIX".to_owned());
        }
        assert_eq!(set("RestrictAddressFamilies"), families, "{service}: sockets that it may make");
        assert_eq!(values(&text, "NoNewPrivileges"), [if row.no_new_privs { "yes" } else { "no" }], "{service}");
        assert_eq!(values(&text, "LimitCORE"), ["0"], "{service}");
        if row.user == User::Root {
            assert!(values(&text, "User").is_empty(), "{service}");
            // root's exec takes the bounding set; ambient is for users that are not root.
            assert!(values(&text, "AmbientCapabilities").is_empty(), "{service}");
        } else {
            assert_eq!(values(&text, "User"), [service]);
            assert_eq!(set("AmbientCapabilities"), capabilities, "{service}: what it starts with");
        }
        assert_eq!(set("SupplementaryGroups").contains("kubelet-daemons"), row.in_daemons_group, "{service}");
    }
}

/// systemd's sizes: `768M`, `2G`.
fn bytes(size: &str) -> u64 {
    let (digits, unit) = size.split_at(size.len() - 1);
    digits.parse::<u64>().unwrap() << if unit == "G" { 30 } else { 20 }
}

#[test]
fn every_unit_has_its_bound_of_memory_and_dies_before_pods_do_for_it() {
    let services = SERVICES.iter().map(|(service, program, _)| (*service, *program));
    for (service, program) in services.chain([("kubelet", Program::Launcher)]) {
        let text = unit(&format!("{service}.service"));
        // The cgroup of volnetd counts what lies in the secrets of all pods, which no limit of its work may be about.
        let is_volnetd = program == Program::Daemon(bulkhead_types::Process::Volnetd);
        let most = values(&text, if is_volnetd { "LimitDATA" } else { "MemoryMax" });
        assert_eq!(most.iter().map(|size| bytes(size)).collect::<Vec<_>>(), [program.row().memory_bytes], "{service}");
        if is_volnetd {
            assert_eq!((values(&text, "MemoryMax"), values(&text, "MemoryHigh")), (vec!["50%"], vec![]));
        } else {
            // On cgroup v1 systemd ignores it, and the kernel has nothing like it.
            let high = bytes(values(&text, "MemoryHigh")[0]);
            assert!(high < program.row().memory_bytes && high > program.row().memory_bytes / 2, "{service}");
        }
        if program == Program::Launcher {
            continue;
        }
        assert_eq!(values(&text, "LimitNPROC"), ["infinity"], "{service}: its user may be a pod's too");
        assert_eq!(values(&text, "TasksMax").len(), 1, "{service}");
        let score = match program {
            Program::Journal => None,
            _ => Some(program.row().oom_score_adj.unwrap_or(-999).to_string()),
        };
        assert_eq!(values(&text, "OOMScoreAdjust").first().copied(), score.as_deref(), "{service}");
    }
    assert_eq!(
        values(&unit("kubelet-volnetd.service"), "FileDescriptorStoreMax"),
        ["2"],
        "its inotify instance, and the socket of device plugins"
    );
}

#[test]
fn nothing_comes_between_kubelet_volnetd_and_the_mounts_of_the_machine() {
    let text = unit("kubelet-volnetd.service");
    let there: Vec<&str> = directives(&text).into_iter().filter(|name| NOT_FOR_VOLNETD.contains(name)).collect();
    assert!(there.is_empty(), "{there:?}");
    for (name, text) in units() {
        assert!(!directives(&text).contains("PrivateUsers"), "{name}: peers would be seen as 65534");
        // /proc/<pid>/cgroup of a peer is how a server knows that it is no pod.
        assert!(!directives(&text).contains("ProtectProc"), "{name}: peers could not be told from pods");
        // Requires= on the mount of the root directory would follow, which volnetd makes and `kubeadm reset` takes away.
        for bad in ["RequiresMountsFor", "StateDirectory", "WorkingDirectory", "RuntimeDirectory"] {
            assert!(!directives(&text).contains(bad), "{name}: {bad}");
        }
    }
}

#[test]
fn what_must_not_differ_between_the_services_does_not() {
    for (service, _, _) in SERVICES {
        let text = unit(&format!("{service}.service"));
        assert_eq!(values(&text, "Type"), ["notify"], "{service}");
        assert_eq!(values(&text, "NotifyAccess"), ["main"], "{service}");
        assert_eq!(values(&text, "WatchdogSec"), ["30"], "{service}");
        assert_eq!(values(&text, "StartLimitIntervalSec"), ["0"], "{service}: a crash loop must not end");
        assert_eq!(values(&text, "Slice"), ["kubelet.slice"], "{service}");
        let started = values(&text, "ExecStart")[0];
        let program = started.trim_start_matches('@').split(' ').next().unwrap();
        assert_eq!(program, format!("/usr/libexec/bulkhead/{service}"));
        // Who looks for the kubelet's process (`pidof kubelet`) is to find the one that mounts, and no other.
        assert_eq!(
            started.starts_with('@') && started.contains(" kubelet "),
            service == "kubelet-volnetd",
            "{started}"
        );
        assert!(values(&text, "Requires").contains(&"kubelet.service"), "{service}");
    }
}

/// systemd allows five starts in ten seconds else, and a sixth restart of the kubelet would find no sockets.
#[test]
fn sockets_are_started_however_often_the_kubelet_is() {
    for (name, text) in units().into_iter().filter(|(name, _)| name.ends_with(".socket")) {
        assert_eq!(values(&text, "StartLimitIntervalSec"), ["0"], "{name}");
    }
}

/// Programs that nobody of us knows, with root's power: they are an operator's to switch on.
#[test]
fn flexvolume_drivers_are_off_until_somebody_enables_them() {
    for (name, text) in units().into_iter().filter(|(name, _)| !name.starts_with("kubelet-flexvolume.")) {
        assert!(!text.contains("kubelet-flexvolume"), "{name} pulls it in");
    }
    assert_eq!(values(&unit("kubelet-flexvolume.socket"), "WantedBy"), ["kubelet.target"]);
    assert!(values(&unit("kubelet-flexvolume.service"), "WantedBy").is_empty());
    let text = unit("kubelet-flexvolume.service");
    let there: Vec<&str> = directives(&text).into_iter().filter(|name| NOT_FOR_VOLNETD.contains(name)).collect();
    assert!(there.is_empty(), "what drivers mount would be seen by nobody else: {there:?}");
    assert_eq!(values(&text, "KillMode"), ["process"], "servers of file systems outlive it");
}

/// kubelet-volnetd sets them where `kubeReservedCgroup` names the slice, and nobody else does.
#[test]
fn the_slice_has_no_limits_of_its_own() {
    let text = unit("kubelet.slice");
    assert!(!text.contains("[Slice]"), "{text}");
}

#[test]
fn sockets_are_where_the_processes_look_and_go_with_kubelet_service() {
    let expected: BTreeMap<&str, (&str, &str, &str, &str)> = BTreeMap::from([
        ("kubelet-volnetd.socket", ("/run/kubelet/kubelet-volnetd.sock", "grpc", "kubelet-daemons", "0660")),
        (
            "kubelet-volnetd-broker.socket",
            ("/run/kubelet/kubelet-volnetd.fd.sock", "broker", "kubelet-daemons", "0660"),
        ),
        ("kubelet-syncd.socket", ("/run/kubelet/kubelet-syncd.sock", "grpc", "kubelet-daemons", "0660")),
        ("kubelet-evictiond.socket", ("/run/kubelet/kubelet-evictiond.sock", "grpc", "kubelet-daemons", "0660")),
        ("kubelet-statusd.socket", ("/run/kubelet/kubelet-statusd.sock", "grpc", "kubelet-daemons", "0660")),
        ("kubelet-walker.socket", ("/run/kubelet/kubelet-walker.sock", "walker", "kubelet-evictiond", "0600")),
        ("kubelet-journal.socket", ("/run/kubelet/kubelet-journal.sock", "journal", "kubelet-statusd", "0600")),
        ("kubelet-iptables.socket", ("/run/kubelet/kubelet-iptables.sock", "iptables", "root", "0600")),
        ("kubelet-disks.socket", ("/run/kubelet/kubelet-disks.sock", "disks", "root", "0600")),
        ("kubelet-flexvolume.socket", ("/run/kubelet/kubelet-flexvolume.sock", "flexvolume", "root", "0600")),
    ]);
    let sockets = units().into_iter().filter(|(name, _)| name.ends_with(".socket") && name != KERNEL_LOG);
    let sockets: Vec<(String, String)> = sockets.collect();
    assert_eq!(sockets.len(), expected.len());
    for (name, text) in sockets {
        let (path, fd_name, group, mode) = expected[name.as_str()];
        let listens = [values(&text, "ListenStream"), values(&text, "ListenSequentialPacket")].concat();
        assert_eq!(listens, [path], "{name}");
        assert_eq!(values(&text, "FileDescriptorName"), [fd_name], "{name}");
        assert_eq!((values(&text, "SocketGroup"), values(&text, "SocketMode")), (vec![group], vec![mode]), "{name}");
        assert_eq!(values(&text, "Requires"), ["kubelet.service"], "{name} must not start anything that was stopped");
        assert_eq!(values(&text, "TriggerLimitIntervalSec"), ["0"], "{name}");
        let service = unit(values(&text, "Service")[0]);
        assert!(values(&service, "Sockets")[0].split(' ').any(|socket| socket == name), "{name}");
        assert!(values(&service, "Requires").iter().any(|all| all.split(' ').any(|unit| unit == name)), "{name}");
    }
}

/// A device, and no socket.
const KERNEL_LOG: &str = "kubelet-evictiond-kmsg.socket";

#[test]
fn the_kernel_s_log_is_read_where_it_may_be_and_starts_nothing_that_was_stopped() {
    let text = unit(KERNEL_LOG);
    assert_eq!(values(&text, "ListenSpecial"), ["/dev/kmsg"]);
    assert_eq!(values(&text, "FileDescriptorName"), ["kmsg"]);
    assert!(values(&text, "Writable").is_empty(), "it is for reading");
    assert_eq!(values(&text, "Requires"), ["kubelet.service"]);
    assert_eq!(values(&text, "PartOf"), ["kubelet-evictiond.socket"]);
    assert_eq!(values(&text, "TriggerLimitIntervalSec"), ["0"]);
    let service = unit(values(&text, "Service")[0]);
    let says =
        |directive: &str| values(&service, directive).iter().any(|all| all.split(' ').any(|one| one == KERNEL_LOG));
    assert!(says("Sockets") && says("Wants") && says("After") && says("PartOf"));
    assert!(!says("Requires"), "a machine that does not let it be read has the rest all the same");
}

#[test]
fn statusd_is_denied_the_metadata_services_that_are_known() {
    let text = unit("kubelet-statusd.service");
    let denied: Vec<std::net::IpAddr> = values(&text, "IPAddressDeny")
        .iter()
        .flat_map(|all| all.split_whitespace())
        .map(|address| address.parse().unwrap())
        .collect();
    assert_eq!(denied, bulkhead_privileges::METADATA_ADDRESSES);
}

#[test]
fn the_users_of_the_units_are_made() {
    let users = std::fs::read_to_string(workspace_root().join("deploy/sysusers.d/bulkhead.conf")).unwrap();
    let has = |line: &str| {
        users.lines().any(|there| there.split_whitespace().collect::<Vec<_>>().join(" ").starts_with(line))
    };
    for (service, program, _) in SERVICES {
        if program.row().user != User::Root {
            assert!(has(&format!("u {service} -")), "{service}");
            assert_eq!(has(&format!("m {service} kubelet-daemons")), program.row().in_daemons_group, "{service}");
        }
    }
    assert!(has("g kubelet-daemons") && has("m kubelet-journal systemd-journal"));
    assert!(!has("u kubelet "), "that name switches a rule of upstream's on");
}
