//! The whole privileged surface on one page. What is not in these two tables cannot be asked for.
//!
//! Every verb takes ids and typed values, builds its paths itself (rule 2 of `bulkhead_sys::open`), and may be repeated.
//! "Guard" is the destructive guard of [`crate::guard`]: our epoch, a generation that is not stale, every pod source
//! heard. The peer is checked by uid, user namespace and cgroup before a request is decoded; a message has at most
//! 256 KiB, a broker datagram 8 KiB.

use bulkhead_ipc::peers::{MethodRule, Role};
use bulkhead_ipc::volnetd::credential::Kind as CredentialKind;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::{StateKind, WatchKind};
use bulkhead_sys::Capability::{
    self, CAP_CHOWN as CHOWN, CAP_DAC_OVERRIDE as DAC_OVERRIDE, CAP_FOWNER as FOWNER, CAP_FSETID as FSETID,
    CAP_KILL as KILL, CAP_SYS_ADMIN as SYS_ADMIN,
};

use Role::{Evictiond, Operator, Statusd, Syncd};

/// One gRPC method.
#[derive(Debug, Clone, Copy)]
pub struct Verb {
    pub method: &'static str,
    pub peers: &'static [Role],
    /// Beyond well-formed ids.
    pub precondition: &'static str,
    /// What it uses beyond being root (root owns the files that it touches).
    pub uses: &'static [Capability],
    /// Unmounts, removes or kills: carries the guard.
    pub destructive: bool,
}

const fn verb(
    method: &'static str,
    peers: &'static [Role],
    destructive: bool,
    uses: &'static [Capability],
    precondition: &'static str,
) -> Verb {
    Verb { method, peers, precondition, uses, destructive }
}

#[rustfmt::skip]
pub const VERBS: [Verb; 45] = [
    //    method                                            peers                            destructive  uses            precondition
    verb("/kubelet.volnetd.v1.Volumes/PreparePod",          &[Syncd],                        false, &[],                  "none"),
    verb("/kubelet.volnetd.v1.Volumes/SetUpEmptyDir",       &[Syncd],                        false, &[SYS_ADMIN, CHOWN, FOWNER, FSETID, DAC_OVERRIDE], "pod prepared; fsGroup 0 to 2147483647"),
    verb("/kubelet.volnetd.v1.Volumes/CheckHostPath",       &[Syncd],                        false, &[],                  "pod prepared; absolute path without '..'"),
    verb("/kubelet.volnetd.v1.Volumes/SetUpContent",        &[Syncd],                        false, &[SYS_ADMIN],         "pod prepared; mount points are relative paths without '..'"),
    verb("/kubelet.volnetd.v1.Volumes/SetUpLocal",          &[Syncd],                        false, &[SYS_ADMIN, CHOWN, FOWNER, FSETID, DAC_OVERRIDE], "pod prepared; absolute path without '..' to a folder or block device; a file system and mount options of closed lists; fsGroup 0 to 2147483647"),
    verb("/kubelet.volnetd.v1.Volumes/SetUpNfs",            &[Syncd],                        false, &[SYS_ADMIN],         "pod prepared; addresses, absolute path, known options alone"),
    verb("/kubelet.volnetd.v1.Volumes/SetUpFc",             &[Syncd],                        false, &[SYS_ADMIN, CHOWN, FOWNER, FSETID, DAC_OVERRIDE], "pod prepared; hexadecimal names of targets, or printable ones of the disk; a file system and mount options of closed lists; fsGroup 0 to 2147483647"),
    verb("/kubelet.volnetd.v1.Volumes/SetUpIscsi",          &[Syncd],                        false, &[SYS_ADMIN, CHOWN, FOWNER, FSETID, DAC_OVERRIDE], "pod prepared; addresses with ports, names of targets, initiators and interfaces; CHAP of one line each; the rest as SetUpFc"),
    verb("/kubelet.volnetd.v1.Volumes/AskFlexDriver",       &[Syncd],                        false, &[],                  "a driver's name, whose program is root's in volumePluginDir; kubelet-flexvolume is switched on"),
    verb("/kubelet.volnetd.v1.Volumes/SetUpFlex",           &[Syncd],                        false, &[SYS_ADMIN, CHOWN, FOWNER, FSETID, DAC_OVERRIDE], "as AskFlexDriver; pod prepared; of a driver that attaches, and of no other, a word for its device, at most 4096 bytes, no '-' first; growth: mounted; a part: with that word, without growth; fsGroup 0 to 2147483647"),
    verb("/kubelet.volnetd.v1.Volumes/EndDisk",             &[Syncd],                        true,  &[SYS_ADMIN],         "guard; a disk's folder that SetUpFc or SetUpIscsi has made, or SetUpFlex once a node; no pod has it (of SetUpFlex also: no folder of it), nor, of a disk, does anything else of the machine"),
    verb("/kubelet.volnetd.v1.Volumes/ListDisks",           &[Syncd, Evictiond, Operator],   false, &[],                  "none"),
    verb("/kubelet.volnetd.v1.Volumes/PrepareSubPath",      &[Syncd],                        false, &[SYS_ADMIN, DAC_OVERRIDE, FOWNER], "volume set up (rule 3), or an absolute hostPath without '..'; relative path without '..'"),
    verb("/kubelet.volnetd.v1.Volumes/TearDownPod",         &[Syncd],                        true,  &[SYS_ADMIN, DAC_OVERRIDE, FOWNER], "guard"),
    verb("/kubelet.volnetd.v1.Volumes/ListVolumes",         &[Syncd, Evictiond, Operator],   false, &[],                  "none"),
    verb("/kubelet.volnetd.v1.Volumes/Prune",               &[Syncd],                        true,  &[SYS_ADMIN, DAC_OVERRIDE, FOWNER, KILL], "guard"),
    // Each around a call that syncd makes of a driver. Driver: at most 63 bytes, a DNS subdomain but for its case; handle: at most
    // 4096 bytes; a driver's link is followed to the number of a block device alone, and what it has made is entered by workers alone.
    verb("/kubelet.volnetd.v1.Csi/PrepareStage",            &[Syncd],                        false, &[],                  "no other volume, mount or link in its place"),
    verb("/kubelet.volnetd.v1.Csi/CommitStage",             &[Syncd],                        false, &[],                  "prepared; what is staged is a mount or a folder, of a block volume anything"),
    verb("/kubelet.volnetd.v1.Csi/BeginUnstage",            &[Syncd],                        true,  &[],                  "guard; a block volume is published to no pod, a file system is mounted nowhere else on the machine"),
    verb("/kubelet.volnetd.v1.Csi/EndStage",                &[Syncd],                        true,  &[SYS_ADMIN],         "guard; nothing is mounted there, or vol_data.json cannot be read; an empty folder"),
    verb("/kubelet.volnetd.v1.Csi/PreparePublish",          &[Syncd],                        false, &[],                  "pod prepared; no other volume, mount or link in its place"),
    verb("/kubelet.volnetd.v1.Csi/CommitPublish",           &[Syncd],                        false, &[SYS_ADMIN, CHOWN, FOWNER, FSETID, DAC_OVERRIDE], "prepared; what is published is a mount, a folder, a link or nothing, of a block volume a block device, a link to one or a regular file; fsGroup 0 to 2147483647"),
    verb("/kubelet.volnetd.v1.Csi/BeginUnpublish",          &[Syncd],                        true,  &[SYS_ADMIN],         "guard"),
    verb("/kubelet.volnetd.v1.Csi/EndPublish",              &[Syncd],                        true,  &[SYS_ADMIN],         "guard; nothing is mounted there, or vol_data.json cannot be read; an empty folder"),
    verb("/kubelet.volnetd.v1.Csi/ListStaged",              &[Syncd, Evictiond, Operator],   false, &[],                  "none"),
    verb("/kubelet.volnetd.v1.Csi/ListPublished",           &[Syncd, Evictiond, Operator],   false, &[],                  "none"),
    verb("/kubelet.volnetd.v1.Files/WriteEtcHosts",         &[Syncd],                        false, &[],                  "pod prepared; addresses and names are plain words"),
    verb("/kubelet.volnetd.v1.Files/CreateTerminationFile", &[Syncd],                        false, &[],                  "pod prepared"),
    verb("/kubelet.volnetd.v1.Files/PrepareLogDirectory",   &[Syncd],                        false, &[],                  "none"),
    verb("/kubelet.volnetd.v1.Files/LinkContainerLog",      &[Syncd],                        false, &[],                  "none"),
    verb("/kubelet.volnetd.v1.Files/RemoveContainerLog",    &[Syncd],                        true,  &[DAC_OVERRIDE],      "guard"),
    verb("/kubelet.volnetd.v1.Files/PruneLogs",             &[Syncd],                        true,  &[DAC_OVERRIDE],      "guard"),
    verb("/kubelet.volnetd.v1.Files/RotateContainerLog",    &[Syncd],                        true,  &[],                  "guard; regular file; no file is replaced, no stamp goes back"),
    verb("/kubelet.volnetd.v1.Files/RestoreContainerLog",   &[Syncd],                        true,  &[],                  "guard; regular file, the newest rotated one, in one form; no file is replaced"),
    verb("/kubelet.volnetd.v1.Files/RemoveRotatedLogs",     &[Syncd],                        true,  &[],                  "guard; rotated logs alone; of two forms, only while the other is there"),
    verb("/kubelet.volnetd.v1.Cgroups/EnsureNode",          &[Syncd],                        false, &[],                  "cgroupRoot exists"),
    verb("/kubelet.volnetd.v1.Cgroups/EnforceReserved",     &[Syncd],                        false, &[],                  "cgroups and limits of the configuration; a cgroup is there, and is not the root"),
    verb("/kubelet.volnetd.v1.Cgroups/EnsurePod",           &[Syncd],                        false, &[],                  "node cgroups exist"),
    verb("/kubelet.volnetd.v1.Cgroups/SetQos",              &[Syncd],                        false, &[],                  "node cgroups exist"),
    verb("/kubelet.volnetd.v1.Cgroups/RemovePod",           &[Syncd],                        true,  &[KILL],              "guard"),
    verb("/kubelet.volnetd.v1.Cgroups/EndSession",          &[Syncd],                        true,  &[KILL],              "guard; container's cgroup below the pod's; the session's leader has ended, no member is older than not_before"),
    verb("/kubelet.volnetd.v1.Cgroups/List",                &[Syncd, Evictiond, Operator],   false, &[],                  "none"),
    verb("/kubelet.volnetd.v1.Shutdown/Release",            &[Syncd],                        false, &[],                  "none"),
    verb("/kubelet.volnetd.v1.Audit/Read",                  &[Operator],                     false, &[],                  "none"),
    verb("/kubelet.volnetd.v1.Watches/Watch",               &[Syncd, Statusd],               false, &[],                  "known kind; manifests and plugins: syncd, serving: statusd"),
];

/// [`VERBS`] as the server's peer check wants them.
pub const RULES: [MethodRule; VERBS.len()] = {
    let mut rules = [MethodRule { method: "", peers: &[] }; VERBS.len()];
    let mut i = 0;
    while i < VERBS.len() {
        rules[i] = MethodRule { method: VERBS[i].method, peers: VERBS[i].peers };
        i += 1;
    }
    rules
};

/// Who may follow which changes.
pub const fn watch_peers(kind: WatchKind) -> &'static [Role] {
    match kind {
        WatchKind::Unspecified => &[],
        WatchKind::Manifests => &[Syncd],
        WatchKind::Credentials => &[Syncd, Statusd],
        WatchKind::Serving => &[Statusd],
        WatchKind::Plugins => &[Syncd],
    }
}

/// Who may have which credential.
pub const fn credential_peers(kind: CredentialKind) -> &'static [Role] {
    match kind {
        CredentialKind::Unspecified => &[Statusd, Syncd],
        CredentialKind::Kubeconfig
        | CredentialKind::ClientCertificate
        | CredentialKind::ClientKey
        | CredentialKind::ClusterCa
        | CredentialKind::Token
        | CredentialKind::ClientPair => &[Statusd, Syncd],
        CredentialKind::ServingCertificate
        | CredentialKind::ServingKey
        | CredentialKind::ServingPair
        | CredentialKind::ClientCa
        | CredentialKind::BootstrapKubeconfig
        | CredentialKind::BootstrapClientCertificate
        | CredentialKind::BootstrapClientKey
        | CredentialKind::BootstrapClusterCa
        | CredentialKind::BootstrapToken
        | CredentialKind::PendingClientKey => &[Statusd],
    }
}

/// One kind of descriptor.
#[derive(Debug, Clone, Copy)]
pub struct BrokerRow {
    pub kind: &'static str,
    pub peers: &'static [Role],
    /// Which rule of `bulkhead_sys::open` finds it; 0: a fixed path of the kernel's.
    pub rule: u8,
    pub uses: &'static [Capability],
    pub precondition: &'static str,
}

const fn row(
    kind: &'static str,
    peers: &'static [Role],
    rule: u8,
    uses: &'static [Capability],
    precondition: &'static str,
) -> BrokerRow {
    BrokerRow { kind, peers, rule, uses, precondition }
}

#[rustfmt::skip]
pub const BROKER: [BrokerRow; 23] = [
    //   kind                  peers                          rule  uses       precondition
    row("RuntimeSocket",       &[Syncd],                        1, &[],        "endpoint configured; root's socket on root's path"),
    row("Manifest",            &[Syncd],                        1, &[],        "staticPodPath configured; regular file, or the folder"),
    row("PrivateState",        &[Syncd, Evictiond, Statusd],    2, &[CHOWN],   "the caller's own folder"),
    row("ContainerLog",        &[Syncd, Statusd],               2, &[],        "regular file"),
    row("TerminationMessage",  &[Syncd],                        2, &[DAC_OVERRIDE], "regular file; 8 hex digits"),
    row("State",               &[Syncd],                        2, &[],        "the kind's one owner; of records of image pulls a copy is passed"),
    row("PutState",            &[Syncd],                        2, &[],        "the kind's one owner; sealed memfd of at most 16 MiB; records of image pulls: folders and names are volnetd's, but for 64 hex digits"),
    row("Kmsg",                &[Evictiond],                    0, &[],        "not served yet"), // will take CAP_SYSLOG
    row("Psi",                 &[Evictiond],                    0, &[],        "memory; the pods' cgroup with v2 alone; one fixed trigger"),
    row("MemcgEvent",          &[Evictiond],                    0, &[],        "cgroup v1; of the machine or the pods' cgroup"),
    row("ProductUuid",         &[Statusd],                      0, &[],        "machine with DMI"),
    row("NodeLog",             &[Statusd],                      3, &[DAC_OVERRIDE], "regular file or directory below /var/log; relative path without '..'; links inside are followed"),
    // The kubeconfig and what it names, the client pair; for statusd alone what it begins with, what it serves with and the
    // clients' CA.
    row("Credential",          &[Statusd, Syncd],               1, &[],        "configured; regular file of root's on root's path; the kind's peers"),
    row("RegistryConfig",      &[Syncd],                        1, &[],        "place in upstream's search order; regular file of root's on root's path"),
    // A copy is kept. A connection to that of device-plugins is a plugin of root's; whoever can reach one of the others may call
    // the one that answers, not this process.
    row("Listener",            &[Syncd],                        2, &[],        "pod-resources, and with the gate PodsAPI pods-api: folder of root's alone, the same socket again while its file is there; device-plugins: the folder is root's alone, bound once in a start of the kubelet, anew where its name is gone: sockets in the folder are deleted before"),
    row("PluginSocket",        &[Syncd],                        2, &[],        "root's socket below the root directory and not below pods; no link, no folder that others may write, no file system that may not answer on the way; nobody waits for a full backlog"),
    row("PutContent",          &[Syncd],                        2, &[CHOWN, FOWNER, FSETID], "volume set up by SetUpContent; sealed memfd of at most 16 MiB and 20000 files; relative paths without '..'"),
    row("EnvFile",             &[Syncd],                        3, &[DAC_OVERRIDE], "emptyDir set up; relative path without '..'; regular file of at most 1 MiB, of which a copy is passed"),
    row("PutCredential",       &[Statusd],                      1, &[],        "the pair of one's own: none configured and none there; signed pairs, the pending key, the kubeconfig: where the configuration has the node ask; folder of root's on root's path; sealed memfd of at most 64 KiB with PEM alone; the kubeconfig's words are root's own"),
    row("RotatedLog",          &[Evictiond, Statusd],           2, &[],        "regular file; a stamp of a rotated log"),
    row("CompressedLog",       &[Evictiond],                    2, &[CHOWN],   "rotated log that is there plain and not compressed; a file without a name"),
    row("LinkCompressedLog",   &[Evictiond],                    2, &[],        "a file of CompressedLog's, not empty, that never had a name; the rotated log is there plain, of the size that was compressed, and not compressed; no file is replaced, the plain one goes"),
    // logind sees uid 0 and asks nobody else. Its messages are fixed, and so is the file that raises its longest delay.
    row("ShutdownInhibitor",   &[Syncd],                        0, &[],        "a shutdownGracePeriod is configured; the delay is the configuration's"),
];

/// The requests that give volnetd a descriptor.
pub static PUT_STATE: BrokerRow = BROKER[6];
pub static PUT_CONTENT: BrokerRow = BROKER[16];
pub static PUT_CREDENTIAL: BrokerRow = BROKER[18];
pub static LINK_COMPRESSED_LOG: BrokerRow = BROKER[21];

/// The row of a request. Exhaustive, so that a new kind of the contract cannot be forgotten here.
pub fn broker_row(kind: &Kind) -> &'static BrokerRow {
    static ROWS: [BrokerRow; 23] = BROKER;
    &ROWS[match kind {
        Kind::RuntimeSocket(_) => 0,
        Kind::Manifest(_) => 1,
        Kind::PrivateState(_) => 2,
        Kind::ContainerLog(_) => 3,
        Kind::TerminationMessage(_) => 4,
        Kind::State(_) => 5,
        Kind::Kmsg(_) => 7,
        Kind::Psi(_) => 8,
        Kind::MemcgEvent(_) => 9,
        Kind::ProductUuid(_) => 10,
        Kind::NodeLog(_) => 11,
        Kind::Credential(_) => 12,
        Kind::RegistryConfig(_) => 13,
        Kind::Listener(_) => 14,
        Kind::PluginSocket(_) => 15,
        Kind::EnvFile(_) => 17,
        Kind::RotatedLog(_) => 19,
        Kind::CompressedLog(_) => 20,
        Kind::ShutdownInhibitor(_) => 22,
    }]
}

/// Upstream's name of a state file, or of a folder of such files, in the root directory, and the one process that owns it.
pub const fn state_file(kind: StateKind) -> Option<(&'static str, Role)> {
    match kind {
        StateKind::Unspecified => None,
        StateKind::CpuManager => Some(("cpu_manager_state", Syncd)),
        StateKind::MemoryManager => Some(("memory_manager_state", Syncd)),
        StateKind::AllocatedPods => Some(("allocated_pods_state", Syncd)),
        StateKind::ActuatedPods => Some(("actuated_pods_state", Syncd)),
        StateKind::DraManager => Some(("dra_manager_state", Syncd)),
        StateKind::DraHealth => Some(("dra_health_state", Syncd)),
        StateKind::DeviceManager => Some(("device-plugins/kubelet_internal_checkpoint", Syncd)),
        StateKind::GracefulNodeShutdown => Some(("graceful_node_shutdown_state", Syncd)),
        StateKind::ImagePullRecords => Some(("image_manager", Syncd)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every method of the contract has its row, and there is no row without a method.
    #[test]
    fn the_table_is_the_contract() {
        let protos = [
            include_str!("../../../proto/kubelet/volnetd/v1/volnetd.proto"),
            include_str!("../../../proto/kubelet/volnetd/v1/audit.proto"),
            include_str!("../../../proto/kubelet/volnetd/v1/csi.proto"),
            include_str!("../../../proto/kubelet/volnetd/v1/shutdown.proto"),
        ];
        let mut service = "";
        let mut methods = Vec::new();
        for line in protos.into_iter().flat_map(str::lines).map(str::trim) {
            if let Some(rest) = line.strip_prefix("service ") {
                service = rest.trim_end_matches(" {");
            } else if let Some(rest) = line.strip_prefix("rpc ") {
                methods.push(format!("/kubelet.volnetd.v1.{service}/{}", rest.split('(').next().unwrap()));
            }
        }
        methods.sort();
        let mut rows: Vec<String> = VERBS.iter().map(|v| v.method.to_owned()).collect();
        rows.sort();
        assert_eq!(rows, methods);
    }

    #[test]
    fn destructive_verbs_are_syncds_alone_and_guarded() {
        for verb in VERBS {
            assert_eq!(verb.destructive, verb.precondition.contains("guard"), "{}", verb.method);
            let watches = verb.method.ends_with("Watches/Watch");
            let is_read = verb.method.contains("/List") || verb.method.ends_with("Audit/Read");
            if verb.destructive || !(is_read || watches) {
                assert_eq!(verb.peers, [Syncd], "{}", verb.method);
            }
            if watches {
                for kind in [WatchKind::Manifests, WatchKind::Credentials, WatchKind::Serving, WatchKind::Plugins] {
                    assert!(watch_peers(kind).iter().all(|peer| verb.peers.contains(peer)), "{kind:?}");
                }
            }
        }
    }

    #[test]
    fn rows_are_found_by_their_kind_and_use_what_we_hold() {
        use bulkhead_ipc::volnetd as v;
        let kinds = [
            Kind::RuntimeSocket(v::RuntimeSocket::default()),
            Kind::Manifest(v::Manifest::default()),
            Kind::PrivateState(v::PrivateState::default()),
            Kind::ContainerLog(v::ContainerLog::default()),
            Kind::TerminationMessage(v::TerminationMessage::default()),
            Kind::State(v::State::default()),
            Kind::Kmsg(v::Kmsg::default()),
            Kind::Psi(v::Psi::default()),
            Kind::MemcgEvent(v::MemcgEvent::default()),
            Kind::ProductUuid(v::ProductUuid::default()),
            Kind::NodeLog(v::NodeLog::default()),
            Kind::Credential(v::Credential::default()),
            Kind::RegistryConfig(v::RegistryConfig::default()),
            Kind::Listener(v::Listener::default()),
            Kind::PluginSocket(v::PluginSocket::default()),
            Kind::EnvFile(v::EnvFile::default()),
            Kind::RotatedLog(v::RotatedLog::default()),
            Kind::CompressedLog(v::CompressedLog::default()),
            Kind::ShutdownInhibitor(v::ShutdownInhibitor::default()),
        ];
        for kind in &kinds {
            assert_eq!(broker_row(kind).kind, bulkhead_ipc::broker::kind_name(kind));
        }
        assert_eq!(
            (PUT_STATE.kind, PUT_CONTENT.kind, PUT_CREDENTIAL.kind, LINK_COMPRESSED_LOG.kind),
            ("PutState", "PutContent", "PutCredential", "LinkCompressedLog")
        );
        assert_eq!(BROKER.len(), kinds.len() + 4, "these are no kinds of their own");
        let held = bulkhead_daemon::privileges::Program::Daemon(bulkhead_types::Process::Volnetd).row().capabilities;
        let used = || VERBS.iter().flat_map(|v| v.uses).chain(BROKER.iter().flat_map(|r| r.uses));
        for cap in used() {
            assert!(held.contains(cap), "{cap} is used but not held");
        }
        for cap in held {
            assert!(used().any(|used| used == cap), "{cap} is held and nothing uses it");
        }
    }
}
