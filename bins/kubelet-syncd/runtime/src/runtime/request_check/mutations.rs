//! Mistakes that a builder could make: each makes a request grant more than a plain pod's spec, and names the field by
//! which it is refused.

use bulkhead_cri::v1;
use bulkhead_cri::v1::security_profile::ProfileType;
use k8s_openapi::api::core::v1::ResourceRequirements;

use super::setup::{PODS, Requests, Setup, UID};

/// Changes a request. True: that now grants more than the spec of this pod.
pub type Change = fn(&Setup, &mut Requests) -> bool;

#[derive(Debug)]
pub struct Mistake {
    pub name: &'static str,
    pub field: &'static str,
    pub change: Change,
}

fn context(requests: &mut Requests) -> &mut v1::LinuxContainerSecurityContext {
    requests.container.linux.as_mut().unwrap().security_context.as_mut().unwrap()
}

fn of_sandbox(requests: &mut Requests) -> &mut v1::LinuxSandboxSecurityContext {
    requests.sandbox.linux.as_mut().unwrap().security_context.as_mut().unwrap()
}

fn namespaces(requests: &mut Requests) -> &mut v1::NamespaceOption {
    context(requests).namespace_options.as_mut().unwrap()
}

fn resources(requests: &mut Requests) -> &mut v1::LinuxContainerResources {
    requests.container.linux.as_mut().unwrap().resources.as_mut().unwrap()
}

fn of_spec<T>(setup: &Setup, get: impl Fn(&kubelet_model::v1::PodSpec) -> T) -> T {
    get(setup.pod.spec.as_ref().unwrap())
}

fn profile(kind: ProfileType, name: &str) -> Option<v1::SecurityProfile> {
    Some(v1::SecurityProfile { profile_type: kind.into(), localhost_ref: name.to_owned() })
}

fn uid(value: i64) -> Option<v1::Int64Value> {
    Some(v1::Int64Value { value })
}

fn mount(host_path: &str, container_path: &str) -> v1::Mount {
    v1::Mount { host_path: host_path.to_owned(), container_path: container_path.to_owned(), ..Default::default() }
}

/// The first mount of the spec that fits is changed.
fn first(requests: &mut Requests, fits: impl Fn(&v1::Mount) -> bool, change: impl Fn(&mut v1::Mount)) -> bool {
    let found = requests.container.mounts.iter_mut().skip(1).find(|mount| fits(mount));
    found.map(change).is_some()
}

fn any(_: &v1::Mount) -> bool {
    true
}

fn is_of_volume(mount: &v1::Mount) -> bool {
    mount.container_path.starts_with("/v/")
}

fn takes_seccomp_away(setup: &Setup) -> bool {
    let of = |p: &k8s_openapi::api::core::v1::SeccompProfile| p.type_ != "Unconfined";
    let own = setup.container().security_context.and_then(|c| c.seccomp_profile);
    let pod = of_spec(setup, |s| s.security_context.as_ref().and_then(|c| c.seccomp_profile.clone()));
    own.or(pod).map_or(setup.facts.seccomp_default, |p| of(&p))
}

fn has_limit(setup: &Setup, name: &str) -> bool {
    let of = |r: Option<ResourceRequirements>| r?.limits?.get(name).cloned().filter(|amount| amount.0 != "0");
    of(setup.container().resources).or_else(|| of(of_spec(setup, |spec| spec.resources.clone()))).is_some()
}

macro_rules! mistakes {
    ($($name:literal, $field:literal, $change:expr;)*) => {
        &[$(Mistake { name: $name, field: $field, change: $change }),*]
    };
}

/// All of them. The order does not matter.
pub const MISTAKES: &[Mistake] = mistakes! {
    "another user", "run_as_user", |_, r| { context(r).run_as_user = uid(4711); true };
    "no user", "run_as_user", |_, r| context(r).run_as_user.take().is_some();
    "a user by name", "run_as_username", |_, r| {
        let changes = context(r).run_as_username != "root";
        context(r).run_as_username = "root".into();
        changes
    };
    "root", "run_as_user", |_, r| context(r).run_as_user.replace(v1::Int64Value { value: 0 }).is_none_or(|was| was.value != 0);
    "another group", "run_as_group", |_, r| { context(r).run_as_group = uid(4711); true };
    "one more group", "supplemental_groups", |_, r| { context(r).supplemental_groups.push(4711); true };
    "root's group", "supplemental_groups", |s, r| {
        context(r).supplemental_groups.push(0);
        of_spec(s, |spec| spec.security_context.as_ref().unwrap().fs_group != Some(0))
    };
    "groups of the image", "supplemental_groups_policy", |s, r| {
        context(r).supplemental_groups_policy = v1::SupplementalGroupsPolicy::Merge.into();
        of_spec(s, |spec| spec.security_context.as_ref().unwrap().supplemental_groups_policy.as_deref() == Some("Strict"))
    };
    "privileged", "privileged", |_, r| !std::mem::replace(&mut context(r).privileged, true);
    "a capability", "add_capabilities", |s, r| {
        context(r).capabilities.get_or_insert_default().add_capabilities.push("SYS_ADMIN".into());
        let caps = s.container().security_context.and_then(|c| c.capabilities?.add).unwrap_or_default();
        !caps.iter().any(|cap| cap == "ALL")
    };
    "all capabilities", "add_capabilities", |s, r| {
        context(r).capabilities.get_or_insert_default().add_capabilities.push("ALL".into());
        let caps = s.container().security_context.and_then(|c| c.capabilities?.add).unwrap_or_default();
        !caps.iter().any(|cap| cap == "ALL")
    };
    "an ambient capability", "add_ambient_capabilities", |_, r| {
        context(r).capabilities.get_or_insert_default().add_ambient_capabilities.push("NET_RAW".into());
        true
    };
    "a capability is kept", "drop_capabilities", |_, r| {
        context(r).capabilities.as_mut().is_some_and(|caps| caps.drop_capabilities.pop().is_some())
    };
    "capabilities forgotten", "drop_capabilities", |_, r| {
        context(r).capabilities.take().is_some_and(|caps| !caps.drop_capabilities.is_empty())
    };
    "new privileges", "no_new_privs", |_, r| std::mem::take(&mut context(r).no_new_privs);
    "writable root", "readonly_rootfs", |_, r| std::mem::take(&mut context(r).readonly_rootfs);
    "seccomp off", "seccomp", |s, r| {
        context(r).seccomp = profile(ProfileType::Unconfined, "");
        takes_seccomp_away(s)
    };
    "seccomp forgotten", "seccomp", |s, r| { context(r).seccomp = None; takes_seccomp_away(s) };
    "no name of a profile", "seccomp", |_, r| { context(r).seccomp = profile(ProfileType::Localhost, ""); true };
    "another profile", "seccomp", |_, r| {
        context(r).seccomp = profile(ProfileType::Localhost, "/var/lib/kubelet/seccomp/lax.json");
        true
    };
    "a profile in the old form", "seccomp_profile_path", |_, r| {
        #[allow(deprecated)]
        context(r).seccomp_profile_path.push_str("unconfined");
        true
    };
    "AppArmor off", "apparmor", |_, r| {
        let off = profile(ProfileType::Unconfined, "");
        let was = std::mem::replace(&mut context(r).apparmor, off.clone());
        was != off
    };
    "another AppArmor profile", "apparmor", |_, r| {
        context(r).apparmor = profile(ProfileType::Localhost, "lax");
        true
    };
    "AppArmor off in the old form", "apparmor_profile", |_, r| {
        #[allow(deprecated)]
        let was = std::mem::replace(&mut context(r).apparmor_profile, "unconfined".into());
        was != "unconfined"
    };
    "another SELinux type", "selinux_options", |_, r| {
        context(r).selinux_options.get_or_insert_default().r#type = "spc_t".into();
        true
    };
    "SELinux forgotten", "selinux_options", |_, r| context(r).selinux_options.take().is_some();
    "a path is shown", "masked_paths", |_, r| context(r).masked_paths.pop().is_some();
    "kernel memory is shown", "masked_paths", |_, r| {
        let before = context(r).masked_paths.len();
        context(r).masked_paths.retain(|path| path != "/proc/kcore");
        context(r).masked_paths.len() < before
    };
    "kernel parameters are writable", "readonly_paths", |_, r| {
        let before = context(r).readonly_paths.len();
        context(r).readonly_paths.retain(|path| path != "/proc/sys");
        context(r).readonly_paths.len() < before
    };
    "no namespaces", "namespace_options", |_, r| context(r).namespace_options.take().is_some();
    "the machine's network", "network", |s, r| {
        namespaces(r).network = v1::NamespaceMode::Node.into();
        of_spec(s, |spec| spec.host_network != Some(true))
    };
    "the machine's processes", "pid", |s, r| {
        namespaces(r).pid = v1::NamespaceMode::Node.into();
        of_spec(s, |spec| spec.host_pid != Some(true))
    };
    "the pod's processes", "pid", |s, r| {
        namespaces(r).pid = v1::NamespaceMode::Pod.into();
        of_spec(s, |spec| spec.host_pid != Some(true) && spec.share_process_namespace != Some(true))
    };
    "another container's processes", "target_id", |_, r| {
        namespaces(r).pid = v1::NamespaceMode::Target.into();
        namespaces(r).target_id = "0123".into();
        true
    };
    "the machine's IPC", "ipc", |s, r| {
        namespaces(r).ipc = v1::NamespaceMode::Node.into();
        of_spec(s, |spec| spec.host_ipc != Some(true))
    };
    "the machine's users", "userns_options", |s, r| {
        namespaces(r).userns_options = Some(v1::UserNamespace { mode: v1::NamespaceMode::Node.into(), ..Default::default() });
        s.runtime.users.is_some()
    };
    "another pod's users", "userns_options", |_, r| {
        let ids = v1::IdMapping { host_id: 196_608, container_id: 0, length: 65_536 };
        namespaces(r).userns_options.as_mut().unwrap().uids = vec![ids];
        true
    };
    "the machine's root", "userns_options", |_, r| {
        let ids = v1::IdMapping { host_id: 0, container_id: 0, length: 65_536 };
        namespaces(r).userns_options.as_mut().unwrap().gids = vec![ids];
        true
    };
    "a folder of the machine", "mounts.container_path", |_, r| { r.container.mounts.push(mount("/", "/host")); true };
    "the runtime's socket", "mounts.container_path", |_, r| {
        r.container.mounts.push(mount("/run/containerd/containerd.sock", "/run/x.sock"));
        true
    };
    "hosts of another pod", "mounts.host_path", |_, r| first(r, |m| m.container_path == "/etc/hosts" && !is_of_volume(m),
        |m| m.host_path = format!("{PODS}/other/etc-hosts"));
    "a file for the hosts file", "mounts.host_path", |_, r| first(r, |m| m.container_path == "/etc/hosts",
        |m| m.host_path = "/etc/shadow".into());
    "a second hosts file", "mounts.container_path", |_, r| {
        let path = format!("{PODS}/{UID}/etc-hosts");
        r.container.mounts.extend([mount(&path, "/etc/hosts"), mount(&path, "/etc/hosts")]);
        true
    };
    "a file for the message", "mounts.host_path", |_, r| first(r, |m| m.container_path == "/dev/termination-log",
        |m| m.host_path = "/etc/shadow".into());
    "out of the folder of messages", "mounts.host_path", |_, r| first(r, |m| m.container_path == "/dev/termination-log",
        |m| m.host_path = format!("{PODS}/{UID}/containers/main/../../etc-hosts"));
    "a place for a volume", "mounts.host_path", |_, r| first(r, is_of_volume, |m| m.host_path = "/etc".into());
    "another pod's volume", "mounts.host_path", |_, r| first(r, |m| m.host_path.contains(UID) && is_of_volume(m),
        |m| m.host_path = m.host_path.replace(UID, "other"));
    "more than the part", "mounts.host_path", |_, r| first(r, |m| m.host_path.contains("volume-subpaths"),
        |m| m.host_path = format!("{PODS}/{UID}/volumes/kubernetes.io~empty-dir/empty"));
    "the folder above a volume", "mounts.host_path", |_, r| first(r, |m| is_of_volume(m) && m.host_path.contains(UID),
        |m| m.host_path = format!("{PODS}/{UID}/volumes/.."));
    "writable", "mounts.readonly", |_, r| first(r, |m| m.readonly, |m| m.readonly = false);
    "writable below", "mounts.recursive_read_only", |_, r| first(r, |m| m.recursive_read_only,
        |m| m.recursive_read_only = false);
    "wider propagation", "mounts.propagation", |_, r| first(r, |m| m.propagation < 2, |m| m.propagation = 2);
    "unknown propagation", "mounts.propagation", |_, r| first(r, any, |m| m.propagation = 7);
    "labels on the machine's files", "mounts.selinux_relabel", |_, r| first(r, |m| m.host_path == "/host/path",
        |m| m.selinux_relabel = true);
    "an image", "mounts.image", |_, r| first(r, any, |m| m.image = Some(v1::ImageSpec::default()));
    "another image", "mounts.image", |_, r| first(r, |m| m.image.is_some(),
        |m| m.image = Some(v1::ImageSpec { user_specified_image: "other:1".into(), ..Default::default() }));
    "a folder for an image", "mounts.host_path", |_, r| first(r, |m| m.image.is_some(), |m| {
        m.image = None;
        m.host_path = "/etc".into();
    });
    "all of an image", "mounts.image_sub_path", |_, r| first(r, |m| !m.image_sub_path.is_empty(),
        |m| m.image_sub_path.clear());
    "ids of a mount", "mounts.uid_mappings", |_, r| first(r, any,
        |m| m.uid_mappings = vec![v1::IdMapping { host_id: 0, container_id: 0, length: 1 }]);
    "groups of a mount", "mounts.gid_mappings", |_, r| first(r, any,
        |m| m.gid_mappings = vec![v1::IdMapping { host_id: 0, container_id: 0, length: 1 }]);
    "a device", "devices", |_, r| {
        let device = v1::Device { container_path: "/dev/x".into(), host_path: "/dev/sda".into(), permissions: "mrw".into() };
        r.container.devices.push(device);
        true
    };
    "a CDI device", "CDI_devices", |_, r| {
        r.container.cdi_devices.push(v1::CdiDevice { name: "vendor.com/gpu=all".into() });
        true
    };
    "another device than the one allocated", "devices", |_, r| {
        r.container.devices[0].host_path = "/dev/g1".into();
        true
    };
    "more on a device than was allocated", "devices", |_, r| {
        r.container.devices[0].permissions = "rwm".into();
        true
    };
    "another CDI device than the one allocated", "CDI_devices", |_, r| {
        r.container.cdi_devices[0].name = "vendor.com/gpu=1".into();
        true
    };
    "a mount that was allocated, writable", "mounts.container_path", |_, r| {
        r.container.mounts[0].readonly = false;
        true
    };
    "a mount that was allocated, of another folder", "mounts.container_path", |_, r| {
        r.container.mounts[0].host_path = "/opt".into();
        true
    };
    "another value of an allocated annotation", "annotations", |_, r| {
        r.container.annotations.insert("vendor.com/a".into(), "2".into());
        true
    };
    "another value of an allocated variable", "envs", |_, r| { r.container.envs[0].value = b"all".to_vec(); true };
    "no allocated variable", "envs", |_, r| { r.container.envs.remove(0); true };
    "an allocated variable behind one of the spec", "envs", |_, r| { r.container.envs.swap(0, 1); true };
    "a variable", "envs", |_, r| {
        r.container.envs.push(v1::KeyValue { key: "VENDOR_VISIBLE_DEVICES".into(), value: b"all".to_vec() });
        true
    };
    "another value of a variable", "envs", |_, r| { r.container.envs[1].value = b"y".to_vec(); true };
    "CPUs of others", "cpuset_cpus", |_, r| { resources(r).cpuset_cpus = "2-4".into(); true };
    "all CPUs", "cpuset_cpus", |_, r| { resources(r).cpuset_cpus = String::new(); true };
    "another NUMA node", "cpuset_mems", |_, r| { resources(r).cpuset_mems = "1".into(); true };
    "no memory limit", "memory_limit_in_bytes", |s, r| {
        resources(r).memory_limit_in_bytes = 0;
        resources(r).memory_swap_limit_in_bytes = 0;
        has_limit(s, "memory")
    };
    "more memory", "memory_limit_in_bytes", |s, r| { resources(r).memory_limit_in_bytes += 1; has_limit(s, "memory") };
    "unlimited swap", "memory_swap_limit_in_bytes", |_, r| { resources(r).memory_swap_limit_in_bytes = -1; true };
    "more swap", "memory_swap_limit_in_bytes", |_, r| {
        resources(r).memory_swap_limit_in_bytes = resources(r).memory_limit_in_bytes + 1;
        true
    };
    "all swap", "unified", |_, r| { resources(r).unified.insert("memory.swap.max".into(), "max".into()); true };
    "memory that is kept", "unified", |_, r| { resources(r).unified.insert("memory.min".into(), (1u64 << 60).to_string()); true };
    "memory that is kept last", "unified", |_, r| { resources(r).unified.insert("memory.low".into(), "max".into()); true };
    "another controller", "unified", |_, r| { resources(r).unified.insert("pids.max".into(), "max".into()); true };
    "no quota", "cpu_quota", |s, r| {
        resources(r).cpu_quota = 0;
        has_limit(s, "cpu") && s.facts.cpu_cfs_quota
    };
    "a larger quota", "cpu_quota", |s, r| {
        resources(r).cpu_quota += 1000;
        has_limit(s, "cpu") && s.facts.cpu_cfs_quota
    };
    "huge pages", "hugepage_limits", |_, r| {
        resources(r).hugepage_limits = vec![v1::HugepageLimit { page_size: "1GB".into(), limit: 1 << 40 }];
        true
    };
    "never killed", "oom_score_adj", |_, r| { resources(r).oom_score_adj = -999; true };
    "killed last", "oom_score_adj", |s, r| {
        resources(r).oom_score_adj = -997;
        let is_critical = of_spec(s, |spec| spec.priority_class_name.is_some());
        !(is_critical || has_limit(s, "cpu") && has_limit(s, "memory"))
    };
    "another container's name", "metadata", |_, r| { r.container.metadata.as_mut().unwrap().name = "x".into(); true };
    "another pod's container", "labels", |_, r| {
        r.container.labels.insert("io.kubernetes.pod.uid".into(), "other".into());
        true
    };
    "an annotation", "annotations", |_, r| { r.container.annotations.insert("runtime/x".into(), "y".into()); true };
    "a log elsewhere", "log_path", |_, r| { r.container.log_path = "../../other/0.log".into(); true };
    "another log", "log_path", |_, r| { r.container.log_path = "x/0.log".into(); true };

    "a privileged sandbox", "sandbox.privileged", |_, r| !std::mem::replace(&mut of_sandbox(r).privileged, true);
    "the sandbox's user", "sandbox.run_as_user", |_, r| { of_sandbox(r).run_as_user = uid(4711); true };
    "the sandbox's group", "sandbox.run_as_group", |_, r| { of_sandbox(r).run_as_group = uid(4711); true };
    "the sandbox's groups", "supplemental_groups", |_, r| { of_sandbox(r).supplemental_groups.push(4711); true };
    "a sandbox without seccomp", "sandbox.seccomp", |_, r| { of_sandbox(r).seccomp = None; true };
    "an unconfined sandbox", "sandbox.seccomp", |_, r| {
        of_sandbox(r).seccomp = profile(ProfileType::Unconfined, "");
        true
    };
    "a sandbox without AppArmor", "sandbox.apparmor", |_, r| {
        of_sandbox(r).apparmor = profile(ProfileType::Unconfined, "");
        true
    };
    "the sandbox's SELinux type", "sandbox.selinux_options", |_, r| {
        of_sandbox(r).selinux_options.get_or_insert_default().r#type = "spc_t".into();
        true
    };
    "the sandbox in the machine's network", "network", |s, r| {
        of_sandbox(r).namespace_options.as_mut().unwrap().network = v1::NamespaceMode::Node.into();
        of_spec(s, |spec| spec.host_network != Some(true))
    };
    "the sandbox among the machine's processes", "pid", |s, r| {
        of_sandbox(r).namespace_options.as_mut().unwrap().pid = v1::NamespaceMode::Node.into();
        of_spec(s, |spec| spec.host_pid != Some(true))
    };
    "the sandbox in a container", "sandbox.target_id", |_, r| {
        of_sandbox(r).namespace_options.as_mut().unwrap().pid = v1::NamespaceMode::Target.into();
        true
    };
    "the sandbox with the machine's users", "userns_options", |s, r| {
        of_sandbox(r).namespace_options.as_mut().unwrap().userns_options = None;
        s.runtime.users.is_some()
    };
    "a kernel parameter", "sysctls", |_, r| {
        r.sandbox.linux.as_mut().unwrap().sysctls.insert("kernel.msgmax".into(), "1".into());
        true
    };
    "another value", "sysctls", |_, r| {
        let sysctls = &mut r.sandbox.linux.as_mut().unwrap().sysctls;
        sysctls.values_mut().next().map(|value| value.push('1')).is_some()
    };
    "another pod's cgroup", "cgroup_parent", |_, r| {
        r.sandbox.linux.as_mut().unwrap().cgroup_parent = "/kubepods/pod1234".into();
        true
    };
    "no cgroup", "cgroup_parent", |_, r| { r.sandbox.linux.as_mut().unwrap().cgroup_parent.clear(); true };
    "another pod", "metadata", |_, r| { r.sandbox.metadata.as_mut().unwrap().uid = "other".into(); true };
    "another namespace", "metadata", |_, r| { r.sandbox.metadata.as_mut().unwrap().namespace = "kube-system".into(); true };
    "another pod's sandbox", "labels", |_, r| {
        r.sandbox.labels.insert("io.kubernetes.pod.name".into(), "other".into());
        true
    };
    "an annotation of the sandbox", "annotations", |_, r| { r.sandbox.annotations.insert("x".into(), "y".into()); true };
    "logs of another pod", "log_directory", |_, r| { r.sandbox.log_directory = "/var/log/pods/a_b_c".into(); true };
    "another handler", "runtime_handler", |_, r| { r.handler = "unsafe".into(); true };
    "a host port", "port_mappings", |_, r| {
        r.sandbox.port_mappings.push(v1::PortMapping { container_port: 1, host_port: 22, ..Default::default() });
        true
    };
    "a host port on every address", "port_mappings", |_, r| {
        let mapped = r.sandbox.port_mappings.iter_mut().find(|port| !port.host_ip.is_empty());
        mapped.map(|port| port.host_ip.clear()).is_some()
    };
};
