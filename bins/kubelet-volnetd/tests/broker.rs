//! The descriptor broker: who gets which kind, and what comes along.

use crate::world;

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use bulkhead_ipc::peers::Role;
use bulkhead_ipc::volnetd::image_pull_record_file::Folder;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::*;
use kubelet_volnetd::verbs::broker_row;
use prost::Message as _;
use rustix::fs::{FileType, Mode, OFlags};
use tonic::Code;
use world::*;

fn kinds() -> Vec<Kind> {
    vec![
        Kind::RuntimeSocket(RuntimeSocket::default()),
        Kind::Manifest(Manifest::default()),
        Kind::PrivateState(PrivateState::default()),
        Kind::ContainerLog(ContainerLog::default()),
        Kind::TerminationMessage(TerminationMessage::default()),
        Kind::State(State { kind: StateKind::CpuManager.into() }),
        Kind::Kmsg(Kmsg::default()),
        Kind::Psi(Psi { resource: psi::Resource::Memory.into(), pods: false }),
        Kind::MemcgEvent(MemcgEvent { threshold_bytes: 1 << 40, pods: false }),
        Kind::ProductUuid(ProductUuid::default()),
        Kind::NodeLog(NodeLog::default()),
        Kind::Credential(Credential { kind: credential::Kind::Kubeconfig.into() }),
        Kind::RegistryConfig(RegistryConfig::default()),
        Kind::Listener(Listener::default()),
        Kind::PluginSocket(PluginSocket::default()),
        Kind::EnvFile(EnvFile::default()),
        Kind::RotatedLog(RotatedLog::default()),
        Kind::CompressedLog(CompressedLog::default()),
        Kind::ShutdownInhibitor(ShutdownInhibitor::default()),
    ]
}

#[tokio::test(flavor = "current_thread")]
async fn each_kind_to_its_peers_alone() {
    let Some(world) = world().await else { return };
    for (uid, role) in [
        (SYNCD, Some(Role::Syncd)),
        (EVICTIOND, Some(Role::Evictiond)),
        (STATUSD, Some(Role::Statusd)),
        (OPERATOR, Some(Role::Operator)),
        (STRANGER, None),
    ] {
        for kind in kinds() {
            let row = broker_row(&kind);
            let may = role.is_some_and(|role| row.peers.contains(&role));
            let code = world.open(uid, kind).await.map_or_else(|(code, _)| code, |_| Code::Ok);
            assert_eq!(code == Code::PermissionDenied, !may, "{} by uid {uid}: {code:?}", row.kind);
            if row.precondition == "not served yet" && may {
                assert_eq!(code, Code::Unimplemented, "{}", row.kind);
            }
        }
        let (code, ..) = world.broker(uid, put(StateKind::CpuManager), Some(memfd(b"x"))).await;
        assert_eq!(code == Code::PermissionDenied as u32, role != Some(Role::Syncd));
    }
}

fn put(kind: StateKind) -> OpenRequest {
    OpenRequest { id: 3, put_state: Some(PutState { kind: kind.into() }), ..Default::default() }
}

fn memfd(content: &[u8]) -> OwnedFd {
    bulkhead_sys::memfd::sealed("state", content).unwrap()
}

#[tokio::test(flavor = "current_thread")]
async fn a_root_only_runtime_socket() {
    let Some(world) = world().await else { return };
    let path = world.dir.join("runtime/containerd.sock");
    let ask = |image_service| Kind::RuntimeSocket(RuntimeSocket { image_service });
    assert_eq!(world.open(SYNCD, ask(false)).await.unwrap_err().0, Code::NotFound);
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o660)).unwrap();
    let direct = path.clone();
    assert!(as_user(SYNCD, move || std::os::unix::net::UnixStream::connect(direct).is_err()).await);
    for image_service in [false, true] {
        let fd = world.open(SYNCD, ask(image_service)).await.unwrap();
        let (mut server, _) = listener.accept().unwrap();
        assert_eq!(
            rustix::net::sockopt::socket_peercred(&server).unwrap().uid.as_raw(),
            0,
            "the server sees the broker"
        );
        server.write_all(b"hello").unwrap();
        let mut client = std::os::unix::net::UnixStream::from(fd);
        client.set_nonblocking(false).unwrap();
        let mut text = [0; 5];
        client.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"hello");
    }
    drop(listener);
    assert_eq!(world.open(SYNCD, ask(false)).await.unwrap_err().0, Code::Unavailable);
    // A directory that others may write could be given another socket.
    std::fs::set_permissions(world.dir.join("runtime"), std::fs::Permissions::from_mode(0o777)).unwrap();
    let _listener = {
        std::fs::remove_file(&path).unwrap();
        std::os::unix::net::UnixListener::bind(&path).unwrap()
    };
    assert_eq!(world.open(SYNCD, ask(false)).await.unwrap_err().0, Code::FailedPrecondition);
}

#[tokio::test(flavor = "current_thread")]
async fn manifests() {
    let Some(world) = world().await else { return };
    let dir = world.dir.join("manifests");
    let ask = |name: &str| Kind::Manifest(Manifest { index: 0, name: name.into() });
    std::fs::write(dir.join("pod.yaml"), "kind: Pod").unwrap();
    std::fs::set_permissions(dir.join("pod.yaml"), std::fs::Permissions::from_mode(0o600)).unwrap();
    symlink("pod.yaml", dir.join("link.yaml")).unwrap();
    std::fs::create_dir(dir.join("sub")).unwrap();
    let folder = world.open(SYNCD, ask("")).await.unwrap();
    assert_eq!(bulkhead_sys::tree::list(folder.as_fd(), 10).unwrap().len(), 3);
    for name in ["pod.yaml", "link.yaml"] {
        let fd = world.open(SYNCD, ask(name)).await.unwrap();
        assert_eq!(std::io::read_to_string(std::fs::File::from(fd)).unwrap(), "kind: Pod");
    }
    rustix::fs::mknodat(rustix::fs::CWD, dir.join("fifo"), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0)
        .unwrap();
    std::fs::write(dir.join("others.yaml"), "x").unwrap();
    std::os::unix::fs::chown(dir.join("others.yaml"), Some(STRANGER), None).unwrap();
    for (name, code) in [
        ("none.yaml", Code::NotFound),
        ("sub", Code::FailedPrecondition),
        ("fifo", Code::FailedPrecondition),
        ("others.yaml", Code::FailedPrecondition),
        ("../runtime", Code::InvalidArgument),
        (".hidden", Code::InvalidArgument),
    ] {
        assert_eq!(world.open(SYNCD, ask(name)).await.unwrap_err().0, code, "{name}");
    }
    let other = Kind::Manifest(Manifest { index: 1, name: String::new() });
    assert_eq!(world.open(SYNCD, other).await.unwrap_err().0, Code::InvalidArgument);
}

#[tokio::test(flavor = "current_thread")]
async fn private_state_is_the_callers_own() {
    let Some(world) = world().await else { return };
    for (uid, name) in [(SYNCD, "syncd"), (EVICTIOND, "evictiond"), (STATUSD, "statusd")] {
        for round in 0..2 {
            let dir = world.open(uid, Kind::PrivateState(PrivateState {})).await.unwrap();
            let meta = std::fs::metadata(world.dir.join("root/bulkhead").join(name)).unwrap();
            assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (uid, uid, 0o700));
            let flags = OFlags::RDWR | OFlags::CREATE;
            let made = as_user(uid, move || rustix::fs::openat(&dir, "f", flags, Mode::from_raw_mode(0o600)).is_ok());
            assert!(made.await, "{name}, round {round}");
        }
    }
    // The ids were claimed anew: what belonged to the former user goes to the present one, links and hard links do not.
    let dir = world.dir.join("root/bulkhead/syncd");
    std::fs::write(world.dir.join("root/precious"), "").unwrap();
    std::fs::hard_link(world.dir.join("root/precious"), dir.join("hard")).unwrap();
    symlink(world.dir.join("root/precious"), dir.join("soft")).unwrap();
    for entry in [dir.clone(), dir.join("f")] {
        std::os::unix::fs::chown(entry, Some(STRANGER), Some(STRANGER)).unwrap();
    }
    world.open(SYNCD, Kind::PrivateState(PrivateState {})).await.unwrap();
    assert_eq!(std::fs::metadata(dir.join("f")).unwrap().uid(), SYNCD);
    assert_eq!(std::fs::metadata(&dir).unwrap().uid(), SYNCD);
    assert_eq!(std::fs::metadata(world.dir.join("root/precious")).unwrap().uid(), 0);
}

#[tokio::test(flavor = "current_thread")]
async fn state_files_are_replaced_whole() {
    let Some(world) = world().await else { return };
    let ask = |kind: StateKind| Kind::State(State { kind: kind.into() });
    assert_eq!(world.open(SYNCD, ask(StateKind::AllocatedPods)).await.unwrap_err().0, Code::NotFound);
    for content in [&b"{\"a\":1}"[..], b"{}"] {
        let (code, message, fd) = world.broker(SYNCD, put(StateKind::AllocatedPods), Some(memfd(content))).await;
        assert_eq!((code, fd.is_none()), (0, true), "{message}");
        let fd = world.open(SYNCD, ask(StateKind::AllocatedPods)).await.unwrap();
        assert_eq!(std::io::read_to_string(std::fs::File::from(fd)).unwrap().as_bytes(), content);
    }
    let meta = std::fs::metadata(world.dir.join("root/allocated_pods_state")).unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o7777), (0, 0o600));
    let plain: OwnedFd = tempfile::tempfile().unwrap().into();
    let (code, ..) = world.broker(SYNCD, put(StateKind::CpuManager), Some(plain)).await;
    assert_eq!(code, Code::InvalidArgument as u32, "not sealed");
    let (code, ..) = world.broker(SYNCD, put(StateKind::CpuManager), None).await;
    assert_eq!(code, Code::InvalidArgument as u32, "no descriptor");
    assert_eq!(world.open(SYNCD, ask(StateKind::Unspecified)).await.unwrap_err().0, Code::InvalidArgument);
}

#[tokio::test(flavor = "current_thread")]
async fn records_of_image_pulls_are_a_file_each() {
    let Some(world) = world().await else { return };
    let kind = StateKind::ImagePullRecords;
    let digest = "0a".repeat(32);
    let all = async || {
        let fd = world.open(SYNCD, Kind::State(State { kind: kind.into() })).await.unwrap();
        let bytes = bulkhead_sys::memfd::read_sealed(&fd, 1 << 20).unwrap();
        ImagePullRecordFiles::decode(&*bytes).unwrap().files
    };
    assert_eq!(all().await, []);
    let file = |digest: &str, content: Option<&str>| ImagePullRecordFile {
        folder: Folder::Pulled.into(),
        digest: digest.to_owned(),
        content: content.map(Into::into),
    };
    let change = async |uid: u32, file: ImagePullRecordFile| {
        let message = ImagePullRecordFiles { files: vec![file] }.encode_to_vec();
        world.broker(uid, put(kind), Some(memfd(&message))).await.0
    };
    assert_eq!(change(SYNCD, file(&digest, Some("{}"))).await, 0);
    assert_eq!(all().await, [file(&digest, Some("{}"))]);
    let path = world.dir.join("root/image_manager/pulled").join(format!("sha256-{digest}"));
    let meta = std::fs::metadata(&path).unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o7777), (0, 0o600));
    assert_eq!(change(SYNCD, file("../../../precious", None)).await, Code::InvalidArgument as u32);
    assert_eq!(change(STATUSD, file(&digest, None)).await, Code::PermissionDenied as u32);
    assert!(world.open(STATUSD, Kind::State(State { kind: kind.into() })).await.is_err());
    assert_eq!(change(SYNCD, file(&digest, None)).await, 0);
    assert!(!path.exists());
}

#[tokio::test(flavor = "current_thread")]
async fn logs_and_kernel_files() {
    let Some(world) = world().await else { return };
    let dir = world.dir.join("pod-logs/ns_web_u1/c");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("0.log"), "line").unwrap();
    std::fs::set_permissions(dir.join("0.log"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let pod = PodLogId { namespace: "ns".into(), name: "web".into(), uid: "u1".into() };
    for uid in [STATUSD, SYNCD] {
        let log = ContainerLog { pod: Some(pod.clone()), container: "c".into(), restart_count: 0 };
        let mut file = std::fs::File::from(world.open(uid, Kind::ContainerLog(log)).await.unwrap());
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "line");
        assert!(file.write_all(b"x").is_err(), "read-only");
    }
    // Links are never followed, wherever they lead.
    symlink("0.log", dir.join("1.log")).unwrap();
    symlink("/etc/passwd", dir.join("2.log")).unwrap();
    symlink("c", world.dir.join("pod-logs/ns_web_u1/link")).unwrap();
    for (container, number) in [("c", 1), ("c", 2), ("link", 0)] {
        let log = ContainerLog { pod: Some(pod.clone()), container: container.into(), restart_count: number };
        let error = world.open(STATUSD, Kind::ContainerLog(log)).await.unwrap_err();
        assert_eq!(error.0, Code::FailedPrecondition, "{container}/{number}");
    }
    std::fs::create_dir(world.dir.join("var-log/sub")).unwrap();
    std::fs::write(world.dir.join("var-log/sub/syslog"), "x").unwrap();
    world.open(STATUSD, Kind::NodeLog(NodeLog { relative: "sub/syslog".into() })).await.unwrap();
    let var_log = world.dir.join("var-log");
    symlink("sub/syslog", var_log.join("link")).unwrap();
    symlink(var_log.join("sub"), var_log.join("absolute")).unwrap();
    symlink(&dir, var_log.join("out")).unwrap();
    symlink("../root", var_log.join("up")).unwrap();
    for good in ["link", "absolute/syslog"] {
        let file = world.open(STATUSD, Kind::NodeLog(NodeLog { relative: good.into() })).await.unwrap();
        assert_eq!(std::io::read_to_string(std::fs::File::from(file)).unwrap(), "x", "{good}");
    }
    for (directory, names) in [("", 5), ("sub", 1), ("absolute", 1)] {
        let open = world.open(STATUSD, Kind::NodeLog(NodeLog { relative: directory.into() })).await.unwrap();
        assert_eq!(rustix::fs::Dir::new(open).unwrap().count(), names + 2, "{directory}");
    }
    rustix::fs::mknodat(rustix::fs::CWD, var_log.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    for (bad, code) in [
        ("../root/bulkhead", Code::InvalidArgument),
        ("/etc/shadow", Code::InvalidArgument),
        ("fifo", Code::FailedPrecondition),
        ("none", Code::NotFound),
        ("sub/syslog/x", Code::NotFound),
        ("out/0.log", Code::FailedPrecondition),
        ("up/bulkhead", Code::FailedPrecondition),
    ] {
        let asked = world.open(STATUSD, Kind::NodeLog(NodeLog { relative: bad.into() })).await;
        assert_eq!(asked.unwrap_err().0, code, "{bad}");
    }
    // What the kernel has, and a clear word where it has not.
    let event = |pods| Kind::MemcgEvent(MemcgEvent { threshold_bytes: 1 << 40, pods });
    let trigger = |resource: psi::Resource, pods| Kind::Psi(Psi { resource: resource.into(), pods });
    let memory = psi::Resource::Memory;
    for kind in [event(false), event(true), trigger(memory, false), trigger(memory, true)] {
        if let Err((code, message)) = world.open(EVICTIOND, kind).await {
            assert!(matches!(code, Code::NotFound | Code::FailedPrecondition), "{code:?} {message}");
        }
    }
    let refused = world.open(EVICTIOND, trigger(psi::Resource::Io, false)).await.unwrap_err();
    assert_eq!(refused.0, Code::InvalidArgument, "{refused:?}");
}

fn kubeconfig(user: &str, cluster: &str) -> String {
    format!(
        "current-context: here\ncontexts: [{{name: here, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: \
         {{{user}}}}}]\nclusters: [{{name: c, cluster: {{server: 'https://x', {cluster}}}}}]\n"
    )
}

#[tokio::test(flavor = "current_thread")]
async fn credentials_are_the_kubeconfig_and_what_it_names() {
    use credential::Kind as C;
    let Some(world) = world().await else { return };
    let ask = |kind: C| Kind::Credential(Credential { kind: kind.into() });
    let (etc, pki) = (world.dir.join("etc"), world.dir.join("pki"));
    let path = etc.join("kubelet.conf");
    // Before there is one.
    for kind in [C::Kubeconfig, C::ClientCertificate, C::ClientKey, C::ClusterCa, C::Token] {
        for uid in [SYNCD, STATUSD] {
            assert_eq!(world.open(uid, ask(kind)).await.unwrap_err().0, Code::NotFound, "{kind:?}");
        }
    }
    for kind in [C::ServingCertificate, C::ServingKey, C::ClientCa] {
        assert_eq!(world.open(STATUSD, ask(kind)).await.unwrap_err().0, Code::NotFound, "{kind:?}");
        assert_eq!(world.open(SYNCD, ask(kind)).await.unwrap_err().0, Code::PermissionDenied, "{kind:?}");
    }
    assert_eq!(world.open(STATUSD, ask(C::Unspecified)).await.unwrap_err().0, Code::InvalidArgument);

    std::fs::create_dir_all(&etc).unwrap();
    std::fs::create_dir_all(&pki).unwrap();
    let put = |path: &std::path::Path, content: &str| {
        std::fs::write(path, content).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    let pem = pki.join("kubelet-client-current.pem");
    let user = format!("client-certificate: {0}, client-key: {0}", pem.display());
    put(&path, &kubeconfig(&user, "certificate-authority: ca.crt"));
    put(&etc.join("ca.crt"), "the CA");
    put(&pki.join("dated.pem"), "certificate and key");
    symlink(pki.join("dated.pem"), &pem).unwrap();
    let (world, ask) = (&world, &ask);
    let read = |kind: C| async move {
        let fd = world.open(SYNCD, ask(kind)).await.map_err(|(code, message)| format!("{code:?} {message}"))?;
        let again = world.open(STATUSD, ask(kind)).await.unwrap();
        let text = std::io::read_to_string(std::fs::File::from(fd)).unwrap();
        assert_eq!(std::io::read_to_string(std::fs::File::from(again)).unwrap(), text);
        Ok::<_, String>(text)
    };
    assert!(read(C::Kubeconfig).await.unwrap().contains("current-context: here"));
    assert_eq!(read(C::ClientCertificate).await.unwrap(), "certificate and key");
    assert_eq!(read(C::ClientKey).await.unwrap(), "certificate and key");
    assert_eq!(read(C::ClusterCa).await.unwrap(), "the CA");
    let error = read(C::Token).await.unwrap_err();
    assert!(error.starts_with("FailedPrecondition") && error.contains("names no tokenFile"), "{error}");
    // Another kubeconfig, other files: nothing is remembered.
    put(&path, &kubeconfig("tokenFile: token", "server: x"));
    put(&etc.join("token"), "a token");
    assert_eq!(read(C::Token).await.unwrap(), "a token");
    assert!(read(C::ClientKey).await.unwrap_err().contains("names no client-key"));

    // What others could change is nobody's credential; what is no kubeconfig can be read and names nothing.
    put(&path, &kubeconfig(&user, "certificate-authority: ca.crt"));
    std::os::unix::fs::lchown(&pem, Some(STRANGER), None).unwrap();
    assert_eq!(world.open(SYNCD, ask(C::ClientKey)).await.unwrap_err().0, Code::FailedPrecondition);
    std::os::unix::fs::lchown(&pem, Some(0), None).unwrap();
    std::fs::set_permissions(&pki, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(world.open(SYNCD, ask(C::ClientKey)).await.unwrap_err().0, Code::FailedPrecondition);
    std::fs::set_permissions(&pki, std::fs::Permissions::from_mode(0o755)).unwrap();
    world.open(SYNCD, ask(C::ClientKey)).await.unwrap();
    put(&path, "users: s3cret");
    world.open(SYNCD, ask(C::Kubeconfig)).await.unwrap();
    let (code, message) = world.open(SYNCD, ask(C::ClientKey)).await.unwrap_err();
    assert!(code == Code::FailedPrecondition && !message.contains("s3cret"), "{code:?} {message}");
    put(&path, &"#".repeat((1 << 20) + 1));
    assert_eq!(world.open(SYNCD, ask(C::ClientKey)).await.unwrap_err().0, Code::FailedPrecondition);
    std::os::unix::fs::chown(&path, Some(STRANGER), None).unwrap();
    for kind in [C::Kubeconfig, C::ClientKey] {
        assert_eq!(world.open(STATUSD, ask(kind)).await.unwrap_err().0, Code::FailedPrecondition, "{kind:?}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn the_nodes_own_serving_certificate_is_written_once() {
    use bulkhead_ipc::volnetd::{PutCredential, ServingPair};
    use credential::Kind as C;
    use prost::Message as _;
    let Some(world) = world().await else { return };
    let block = |label: &str| format!("-----BEGIN {label}-----\nTUlJ\n-----END {label}-----\n").into_bytes();
    let world = &world;
    let put = |uid: u32, kind: C, certificates: Vec<u8>, private_key: Vec<u8>| async move {
        let content = ServingPair { certificates, private_key }.encode_to_vec();
        let put_credential = Some(PutCredential { kind: kind.into() });
        let request = OpenRequest { id: 4, put_credential, ..Default::default() };
        let content = bulkhead_sys::memfd::sealed("pair", &content).unwrap();
        let (code, ..) = world.broker(uid, request, Some(content)).await;
        Code::from_i32(i32::try_from(code).unwrap())
    };
    let (certificate, key) = (block("CERTIFICATE").repeat(2), block("PRIVATE KEY"));
    let pki = world.dir.join("pki");
    let good = || (certificate.clone(), key.clone());
    let (c, k) = good();
    assert_eq!(put(SYNCD, C::ServingCertificate, c, k).await, Code::PermissionDenied);
    for kind in [C::ClientCertificate, C::ClientCa, C::BootstrapToken, C::ServingKey] {
        let (c, k) = good();
        assert_eq!(put(STATUSD, kind, c, k).await, Code::InvalidArgument, "{kind:?}");
    }
    for (certificates, private_key) in [
        (Vec::new(), key.clone()),
        (certificate.clone(), Vec::new()),
        (key.clone(), certificate.clone()),
        (certificate.clone(), key.repeat(2)),
        (b"#!/bin/sh\n".to_vec(), key.clone()),
    ] {
        assert_eq!(put(STATUSD, C::ServingCertificate, certificates, private_key).await, Code::InvalidArgument);
    }
    assert!(!pki.exists(), "what is refused leaves nothing");
    let (c, k) = good();
    assert_eq!(put(STATUSD, C::ServingCertificate, c, k).await, Code::Ok);
    let mode = |name: &str| std::fs::metadata(pki.join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("kubelet.crt"), mode("kubelet.key")), (0o644, 0o600));
    assert_eq!(std::fs::read(pki.join("kubelet.key")).unwrap(), key);
    assert_eq!(put(STATUSD, C::ServingCertificate, block("CERTIFICATE"), key.clone()).await, Code::AlreadyExists);
    assert_eq!(std::fs::read(pki.join("kubelet.crt")).unwrap(), certificate);
    // A key whose certificate was never written is replaced with it; a folder that others could change is left alone.
    std::fs::remove_file(pki.join("kubelet.crt")).unwrap();
    std::fs::set_permissions(&pki, std::fs::Permissions::from_mode(0o777)).unwrap();
    let (c, k) = good();
    assert_eq!(put(STATUSD, C::ServingCertificate, c, k).await, Code::FailedPrecondition);
    std::fs::set_permissions(&pki, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (c, k) = good();
    assert_eq!(put(STATUSD, C::ServingCertificate, c, k).await, Code::Ok);
}

#[tokio::test(flavor = "current_thread")]
async fn certificates_and_keys_are_kept_where_upstream_keeps_them() {
    use bulkhead_ipc::volnetd::{PutCredential, ServingPair};
    use credential::Kind as C;
    use prost::Message as _;
    let Some(world) = world().await else { return };
    let block = |label: &str, body: &str| format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n");
    let world = &world;
    let put = |uid: u32, kind: C, certificates: String, private_key: String| async move {
        let pair = ServingPair { certificates: certificates.into_bytes(), private_key: private_key.into_bytes() };
        let content = if kind == C::Kubeconfig { Vec::new() } else { pair.encode_to_vec() };
        let put_credential = Some(PutCredential { kind: kind.into() });
        let request = OpenRequest { id: 4, put_credential, ..Default::default() };
        let content = bulkhead_sys::memfd::sealed("pair", &content).unwrap();
        let (code, ..) = world.broker(uid, request, Some(content)).await;
        Code::from_i32(i32::try_from(code).unwrap())
    };
    let read = |uid: u32, kind: C| async move {
        let opened = world.open(uid, Kind::Credential(Credential { kind: kind.into() })).await;
        opened.map(|fd| std::io::read_to_string(std::fs::File::from(fd)).unwrap()).map_err(|(code, _)| code)
    };
    let (pki, etc) = (world.dir.join("pki"), world.dir.join("etc"));
    let none = String::new;
    let pair = || {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, format!("system:node:{NODE}"));
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
        params.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth, rcgen::ExtendedKeyUsagePurpose::ServerAuth];
        let authority = rcgen::CertificateParams::new(["an authority".to_owned()]).unwrap();
        let authority = rcgen::Issuer::new(authority, rcgen::KeyPair::generate().unwrap());
        (params.signed_by(&key, &authority).unwrap().pem(), key.serialize_pem())
    };
    let (certificate, key) = pair();
    let mode = |path: &std::path::Path| std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;

    // The key of a request: statusd's alone, nothing but a key, and gone with the answer.
    let pending = pki.join("kubelet-client.key.tmp");
    assert_eq!(read(STATUSD, C::PendingClientKey).await, Err(Code::NotFound));
    assert_eq!(put(SYNCD, C::PendingClientKey, none(), key.clone()).await, Code::PermissionDenied);
    assert_eq!(put(STATUSD, C::PendingClientKey, none(), certificate.clone()).await, Code::InvalidArgument);
    assert!(!pki.exists(), "what is refused leaves nothing");
    assert_eq!(put(STATUSD, C::PendingClientKey, none(), key.clone()).await, Code::Ok);
    assert_eq!((read(STATUSD, C::PendingClientKey).await, mode(&pending)), (Ok(key.clone()), 0o600));
    assert_eq!(read(SYNCD, C::PendingClientKey).await, Err(Code::PermissionDenied));

    for (kind, prefix) in [(C::ClientPair, "kubelet-client"), (C::ServingPair, "kubelet-server")] {
        let link = pki.join(format!("{prefix}-current.pem"));
        assert_eq!(read(STATUSD, kind).await, Err(Code::NotFound));
        assert_eq!(put(SYNCD, kind, certificate.clone(), key.clone()).await, Code::PermissionDenied);
        assert_eq!(put(STATUSD, kind, certificate.clone(), none()).await, Code::InvalidArgument);
        // Something else than a link is the operator's.
        std::fs::write(&link, "mine").unwrap();
        assert_eq!(put(STATUSD, kind, certificate.clone(), key.clone()).await, Code::FailedPrecondition);
        assert_eq!(std::fs::read_to_string(&link).unwrap(), "mine");
        std::fs::remove_file(&link).unwrap();
        for (certificate, key) in [pair(), pair()] {
            assert_eq!(put(STATUSD, kind, certificate.clone(), key.clone()).await, Code::Ok);
            assert_eq!(read(STATUSD, kind).await, Ok(certificate + &key));
            let target = std::fs::read_link(&link).unwrap();
            assert!(target.is_absolute() && mode(&target) == 0o600, "{target:?}");
        }
        // A client pair is this node's, and its key is the one that comes with it; what is refused changes nothing.
        if kind == C::ClientPair {
            let in_force = read(STATUSD, kind).await.unwrap();
            assert_eq!(put(STATUSD, kind, pair().0, key.clone()).await, Code::InvalidArgument);
            assert_eq!(put(STATUSD, kind, block("CERTIFICATE", "TUlJ"), key.clone()).await, Code::InvalidArgument);
            assert_eq!(read(STATUSD, kind).await, Ok(in_force));
        }
        // A replacement that was cut off between its two links is finished by whoever looks next.
        std::fs::rename(&link, pki.join(format!("{prefix}-updated.pem"))).unwrap();
        assert!(read(STATUSD, kind).await.is_ok() && link.exists());
    }
    assert!(!pending.exists(), "its request is answered");
    assert!(read(SYNCD, C::ClientPair).await.is_ok(), "both processes show it");
    assert_eq!(read(SYNCD, C::ServingPair).await, Err(Code::PermissionDenied));

    // The kubeconfig's words are those of the bootstrap kubeconfig, whoever asks for it to be written.
    let kubeconfig = etc.join("kubelet.conf");
    let _ = std::fs::remove_file(&kubeconfig);
    assert_eq!(put(STATUSD, C::Kubeconfig, none(), none()).await, Code::NotFound);
    assert!(!kubeconfig.exists());
    std::fs::create_dir_all(&etc).unwrap();
    std::fs::set_permissions(&etc, std::fs::Permissions::from_mode(0o755)).unwrap();
    let text = "current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: s3cret, \
                tokenFile: token}}]\nclusters: [{name: c, cluster: {server: 'https://192.0.2.1:6443', certificate-authority: ca.crt}}]\n";
    std::fs::write(etc.join("bootstrap-kubelet.conf"), text).unwrap();
    std::fs::write(etc.join("token"), "t").unwrap();
    assert_eq!(put(SYNCD, C::Kubeconfig, none(), none()).await, Code::PermissionDenied);
    assert_eq!(put(STATUSD, C::Kubeconfig, none(), none()).await, Code::Ok);
    let written = std::fs::read_to_string(&kubeconfig).unwrap();
    assert!(written.contains("server: https://192.0.2.1:6443") && !written.contains("s3cret"), "{written}");
    assert!(
        written.contains(&format!("client-key: {}\n", pki.join("kubelet-client-current.pem").display())),
        "{written}"
    );
    assert_eq!(mode(&kubeconfig), 0o600);

    // What it begins with is statusd's alone.
    assert_eq!(read(STATUSD, C::BootstrapKubeconfig).await.as_deref(), Ok(text));
    assert_eq!(read(STATUSD, C::BootstrapToken).await.as_deref(), Ok("t"));
    assert_eq!(read(STATUSD, C::BootstrapClientKey).await, Err(Code::FailedPrecondition));
    for kind in [C::BootstrapKubeconfig, C::BootstrapToken, C::BootstrapClusterCa] {
        for uid in [SYNCD, EVICTIOND] {
            assert_eq!(read(uid, kind).await, Err(Code::PermissionDenied), "{kind:?}");
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn registry_credentials_by_their_place() {
    let Some(world) = world().await else { return };
    let ask = |index| Kind::RegistryConfig(RegistryConfig { index });
    assert_eq!(world.open(SYNCD, ask(0)).await.unwrap_err().0, Code::NotFound);
    std::fs::write(world.dir.join("root/config.json"), "{}").unwrap();
    let fd = world.open(SYNCD, ask(0)).await.unwrap();
    assert_eq!(std::io::read_to_string(std::fs::File::from(fd)).unwrap(), "{}");
    assert_eq!(world.open(SYNCD, ask(1)).await.unwrap_err().0, Code::NotFound);
    for past in [2, u32::MAX] {
        assert_eq!(world.open(SYNCD, ask(past)).await.unwrap_err().0, Code::OutOfRange);
    }
    std::os::unix::fs::chown(world.dir.join("root/config.json"), Some(STRANGER), None).unwrap();
    assert_eq!(world.open(SYNCD, ask(0)).await.unwrap_err().0, Code::FailedPrecondition);
    assert_eq!(world.open(STATUSD, ask(0)).await.unwrap_err().0, Code::PermissionDenied);
}

/// A copy of what a pod wrote for its next container, and of nothing else, whatever the pod put there.
#[tokio::test(flavor = "current_thread")]
async fn files_with_variables() {
    let Some(world) = world().await else { return };
    let mut volumes = volumes_client::VolumesClient::new(world.channel(SYNCD).await);
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let mut made = Vec::new();
    for (volume, medium) in [("disk", Medium::Disk), ("memory", Medium::Memory)] {
        let request = SetUpEmptyDirRequest {
            pod_uid: "p".into(),
            volume: volume.into(),
            medium: medium.into(),
            ..Default::default()
        };
        made.push(volumes.set_up_empty_dir(request).await.unwrap().into_inner().host_path);
    }
    let ask = |volume: &str, path: &str| {
        Kind::EnvFile(EnvFile { pod_uid: "p".into(), volume: volume.into(), path: path.into() })
    };
    let secret = world.dir.join("secret");
    std::fs::write(&secret, "the host's").unwrap();
    for (volume, dir) in ["disk", "memory"].into_iter().zip(made.iter().map(std::path::Path::new)) {
        std::fs::create_dir(dir.join("in")).unwrap();
        let file = dir.join("in/env");
        std::fs::write(&file, "A='1'").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o000)).unwrap();
        std::os::unix::fs::chown(&file, Some(STRANGER), None).unwrap();
        symlink("in/env", dir.join("link")).unwrap();
        symlink("/in/env", dir.join("absolute")).unwrap();
        symlink("../../../../../../in/env", dir.join("up")).unwrap();
        symlink(&secret, dir.join("out")).unwrap();
        symlink("../../../../../../secret", dir.join("out-up")).unwrap();
        symlink("/proc/self/environ", dir.join("magic")).unwrap();
        symlink("loop", dir.join("loop")).unwrap();
        let (mode, at) = (Mode::from_raw_mode(0o666), rustix::fs::CWD);
        rustix::fs::mknodat(at, dir.join("fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let null = rustix::fs::makedev(1, 3);
        rustix::fs::mknodat(at, dir.join("device"), rustix::fs::FileType::CharacterDevice, mode, null).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.join("socket")).unwrap();
        std::fs::write(dir.join("large"), vec![b'x'; (1 << 20) + 1]).unwrap();
        std::fs::write(dir.join("largest"), vec![b'x'; 1 << 20]).unwrap();

        for path in ["in/env", "in//./env", "link", "absolute", "up"] {
            let fd = world.open(SYNCD, ask(volume, path)).await.unwrap();
            assert_eq!(bulkhead_sys::memfd::read_sealed(&fd, 100).unwrap(), b"A='1'", "{path}");
        }
        let fd = world.open(SYNCD, ask(volume, "largest")).await.unwrap();
        assert_eq!(bulkhead_sys::memfd::read_sealed(&fd, 1 << 20).unwrap().len(), 1 << 20);
        for path in ["out", "out-up", "magic", "loop", "fifo", "device", "socket", "large", "in", "none", "in/env/x"] {
            let (code, message) = world.open(SYNCD, ask(volume, path)).await.unwrap_err();
            assert!(matches!(code, Code::NotFound | Code::InvalidArgument), "{path}: {code:?} {message}");
        }
        for path in ["", "/in/env", "..", "in/../in/env", "a\0b"] {
            assert_eq!(world.open(SYNCD, ask(volume, path)).await.unwrap_err().0, Code::InvalidArgument, "{path:?}");
        }
    }
    assert_eq!(world.open(SYNCD, ask("none", "x")).await.unwrap_err().0, Code::NotFound);
    for (pod_uid, volume) in [("../p", "disk"), ("p", "../disk"), ("", "disk"), ("p", "")] {
        let kind = Kind::EnvFile(EnvFile { pod_uid: pod_uid.into(), volume: volume.into(), path: "in/env".into() });
        assert_eq!(world.open(SYNCD, kind).await.unwrap_err().0, Code::InvalidArgument, "{pod_uid:?} {volume:?}");
    }
    // Nothing stays open: the volumes can be unmounted.
    let request = TearDownPodRequest { pod_uid: "p".into(), guard: world.guard(1), volumes_only: false };
    let reply = volumes.tear_down_pod(request).await.unwrap().into_inner();
    assert!(reply.done, "{:?}", reply.left);
    assert_eq!(std::fs::read_to_string(secret).unwrap(), "the host's");
}

#[tokio::test(flavor = "current_thread")]
async fn the_pods_api_has_a_socket_with_its_gate_alone() {
    let Some(world) = world().await else { return };
    let kind = Kind::Listener(Listener { kind: listener::Kind::PodsApi.into() });
    let (code, message) = world.open(SYNCD, kind).await.unwrap_err();
    assert_eq!(code, Code::FailedPrecondition, "{message}");
    assert!(!world.dir.join("root/pods-api").exists());
}
